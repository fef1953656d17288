"""The window as rows, with the eyes of the current policy: which old transitions count, and how much.

This is the step that reuse adds to a policy gradient. Rows stand newest batch first, so a smaller
window is a prefix of a larger one: what is built once serves the gradient and the Fisher matrix.

A window of no more than one chunk (`CHUNK` rows) is only reshaped. A longer one is packed: real
transitions first, then padding, so that work which goes chunk by chunk stops where the data stops.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from recollect.batch import Batch
from recollect.envs.base import AbstractOracle
from recollect.memory.history import History
from recollect.memory.weights import Weights, effective_sample_size
from recollect.policies import AbstractPolicy
from recollect.policies.scores import CHUNK, AbstractScores, score_matrix


class Packing(eqx.Module):
    """Where each row comes from. Rows of newer batches always stand before those of older ones."""

    counts: Int[Array, " window"]
    """Real transitions in each batch."""
    source: Int[Array, " row"] | None
    """For each row its place in the flattened (window, episode, time) axes, or one past the end; None: the same place."""
    shape: tuple[int, ...] = eqx.field(static=True)
    """Of the arrays that rows are taken from: window, episode, time."""

    @classmethod
    def of(cls, mask: Bool[Array, "window episode time"]) -> "Packing":
        packed = mask.size > CHUNK
        source = (
            jnp.nonzero(mask.ravel(), size=mask.size, fill_value=mask.size)[0] if packed else None
        )
        return cls(mask.sum((1, 2)), source, mask.shape)

    def rows(self, values: Shaped[Array, "window episode time ..."]) -> Shaped[Array, "row ..."]:
        """The values as rows, zero (or false) in rows that stand for nothing."""
        flat = values.reshape(-1, *values.shape[3:])
        return flat if self.source is None else flat.at[self.source].get(mode="fill", fill_value=0)

    def unpack(self, values: Float[Array, " row"]) -> Float[Array, "window episode time"]:
        """Back from the rows of all batches, or of the newest ones, to their places; zero where there is no row."""
        shape = (len(values) // self._per_batch, *self.shape[1:])
        if self.source is None:
            return values.reshape(shape)
        return (
            jnp.zeros_like(values)
            .at[self.source[: len(values)]]
            .set(values, mode="drop")
            .reshape(shape)
        )

    @property
    def _per_batch(self) -> int:
        return self.shape[1] * self.shape[2]

    def prefix(self, window: int) -> tuple[int, Int[Array, ""]]:
        """How many rows hold the newest `window` batches: at most (a shape), and in fact."""
        bound = window * self._per_batch
        return bound, jnp.array(bound) if self.source is None else self.counts[:window].sum()


class Recall(eqx.Module):
    """The window as rows, with scores and importance weights under the current policy."""

    packing: Packing
    observations: Float[Array, "row ..."]
    actions: Shaped[Array, "row ..."]
    scores: AbstractScores
    log_probs: Float[Array, " row"]
    """log π(a|s) under the current policy."""
    log_ratio: Float[Array, " row"]
    """log π(a|s) / μ(a|s), where μ is the policy that acted; no meaning in padding."""
    weights: Float[Array, " row"]
    """ω, zero in padding."""
    occupancy_weights: Float[Array, " row"]
    """The part of ω that is about states, d^π(s) / d^μ(s): one where the rule is a ratio of policies; zero in padding."""
    importance: Float[Array, " row"]
    """1 for a transition (γ^t if states are discounted), 0 for padding."""
    absorbed: Float[Array, " window"] | None
    """By age, the importance of the time after an ending, when no action matters any more; None if it does not count."""
    rule: Weights

    def coefficients(self, window: int) -> Float[Array, " row"]:
        """c = ω · importance / normaliser over the newest `window` batches, so that Σ c f estimates E[f].

        Time after an ending counts with f = 0.
        """
        return self._coefficients(self.weights, window)

    def state_coefficients(self, window: int) -> Float[Array, " row"]:
        """The same for functions of the state alone, which no ratio of action probabilities concerns."""
        return self._coefficients(self.occupancy_weights, window)

    def _coefficients(self, weights: Float[Array, " row"], window: int) -> Float[Array, " newest"]:
        weights, importance = self._newest(weights, window), self._newest(self.importance, window)
        mean = weights * importance / self.rule.normaliser(weights, importance)
        return mean * self.coverage(window)

    def coverage(self, window: int) -> Float[Array, ""]:
        """Share of the importance of the newest `window` batches that transitions have, and not the time after endings."""
        if self.absorbed is None:
            return jnp.ones(())
        total = self._newest(self.importance, window).sum()
        everything = total + self.absorbed[:window].sum()
        return total / jnp.maximum(everything, jnp.finfo(total.dtype).tiny)

    def average(
        self, values: Float[Array, " row"], window: int
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean of values over the newest `window` batches, and its standard error.

        States that follow one another say nearly the same, so the error comes from how much whole trajectories differ.
        """
        importance = self._newest(self.importance, window)
        total = jnp.maximum(importance.sum(), jnp.finfo(importance.dtype).tiny)
        mean = jnp.sum(importance * values[: len(importance)]) / total
        deviations = self.packing.unpack(importance * (values[: len(importance)] - mean)).sum(-1)
        trajectories = self.packing.unpack(importance).any(-1).sum()
        return mean, jnp.sqrt(
            jnp.sum(deviations**2) * trajectories / jnp.maximum(trajectories - 1, 1)
        ) / total

    def _newest(self, values: Float[Array, " row"], window: int) -> Float[Array, " newest"]:
        """Values of the newest `window` batches, with zeros in place of older rows."""
        bound, count = self.packing.prefix(window)
        return jnp.where(jnp.arange(bound) < count, values[:bound], 0)

    def effective_sample_size(self) -> tuple[Float[Array, ""], Float[Array, " window"]]:
        """Of all rows, and of the rows of each age."""
        by_age = self.packing.unpack(self.weights).reshape(len(self.packing.counts), -1)
        return effective_sample_size(self.weights), effective_sample_size(by_age)


def recall(
    history: History,
    policy: AbstractPolicy,
    rule: Weights,
    discount: Float[Array, ""] | float | None = None,
    oracle: AbstractOracle | None = None,
) -> Recall:
    """Scores and weights of everything in the history; states count by γ^t if a `discount` is given."""
    batches = history.batches
    packing = Packing.of(batches.mask)
    rows = jax.tree.map(packing.rows, batches)
    # A real row stands in for padding: the policy is never asked about an observation that cannot occur.
    first = jnp.min(jnp.where(rows.mask, jnp.arange(len(rows.mask)), len(rows.mask) - 1))
    stand_in = lambda x: jnp.where(rows.mask.reshape(-1, *[1] * (x.ndim - 1)), x, x[first])
    observations, actions = stand_in(rows.observations), stand_in(rows.actions)
    log_probs, scores = score_matrix(policy, observations, actions)
    log_ratio = log_probs - rows.log_probs
    states = jnp.zeros_like(log_ratio)
    if rule.ratio == "occupancy":
        states = log_occupancy(observations, policy, oracle) - rows.log_occupancy
    importance = rows.mask if discount is None else rows.mask * discount**rows.times
    return Recall(
        packing=packing,
        observations=observations,
        actions=actions,
        scores=scores,
        log_probs=log_probs,
        log_ratio=log_ratio,
        weights=rule(log_ratio + states, rows.mask),
        occupancy_weights=rule(states, rows.mask),
        importance=importance.astype(log_ratio.dtype),
        absorbed=_absorbed(batches, discount),
        rule=rule,
    )


def _absorbed(
    batches: Batch, discount: Float[Array, ""] | float | None
) -> Float[Array, " window"] | None:
    """The importance of time after endings, by age; None where it does not count.

    An episode that ended at time t stays in an absorbing state from t + 1 on, which discounted
    states visit with Σ_{k > t} γ^k = γ^{t+1} / (1 − γ). An independent draw that fell there counts one.
    """
    if discount is None and batches.absorbed is None:
        return None
    total = jnp.zeros(len(batches.mask))
    if discount is not None:
        ended = batches.mask & (batches.terminated | batches.truncated)
        total += jnp.where(ended, discount ** (batches.times + 1.0) / (1 - discount), 0).sum((1, 2))
    if batches.absorbed is not None:
        total += batches.absorbed.sum((1, 2))
    return total


def log_occupancy(
    observations: Float[Array, "row ..."], policy: AbstractPolicy, oracle: AbstractOracle | None
) -> Float[Array, " row"]:
    """log d^π(s) of every row, which only an environment with exact answers can tell."""
    if oracle is None:
        raise ValueError(
            "ratio='occupancy' needs an environment that knows its occupancy measure; use LQC or Tabular, or ratio='policy'."
        )
    return jax.vmap(lambda observation: oracle.log_occupancy(policy, observation))(observations)


def remember_occupancy(
    batch: Batch, policy: AbstractPolicy, rule: Weights, oracle: AbstractOracle | None
) -> Batch:
    """The batch with log d^π(s) of the policy that acted, if the weights will ask for it."""
    if rule.ratio == "policy":
        return batch
    density = jax.vmap(lambda row: log_occupancy(row, policy, oracle))(batch.observations)
    return eqx.tree_at(lambda b: b.log_occupancy, batch, density, is_leaf=lambda x: x is None)
