"""The window as rows, as the current policy sees them: which old transitions count, and how much.

This is the step that reuse adds to a policy gradient. It is the one place that knows how a
history becomes rows: each has an age, a mask and a weight. Rows stand newest batch first, so a
smaller window is a prefix of a larger one: what is built once serves the gradient and the Fisher
matrix.

A history of no more than one chunk (`chunk_size` rows) is only reshaped. A longer one is packed:
real transitions first, then padding, so that work which goes chunk by chunk stops where the data
stops.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from recollect.batch import Batch
from recollect.devices import chunk_size, divided
from recollect.memory.history import History
from recollect.memory.weights import AbstractWeightRule, View, effective_sample_size, positive
from recollect.policies import AbstractPolicy
from recollect.policies.scores import AbstractScores, score_matrix
from recollect.tree import where_mask


class Packing(eqx.Module):
    """Where each row comes from. Rows of newer batches always stand before those of older ones."""

    counts: Int[Array, " age"]
    """Real transitions in each batch."""
    source: Int[Array, " row"] | None
    """For each row its place in the flattened (window, episode, time) axes, or one past the end;
    None: the same place."""
    shape: tuple[int, ...] = eqx.field(static=True)
    """Of the arrays that rows are taken from: window, episode, time."""

    @classmethod
    def of(cls, mask: Bool[Array, "window episode time"]) -> "Packing":
        """How the transitions inside `mask` become rows."""
        source = None
        if mask.size > chunk_size():
            source = jnp.nonzero(mask.ravel(), size=mask.size, fill_value=mask.size)[0]
        return cls(counts=mask.sum((1, 2)), source=source, shape=mask.shape)

    @property
    def per_batch(self) -> int:
        """Rows of a batch, padding included."""
        return self.shape[1] * self.shape[2]

    def rows(self, values: Shaped[Array, "window episode time ..."]) -> Shaped[Array, "row ..."]:
        """The values as rows, zero (or false) in rows that stand for nothing."""
        flat = values.reshape(-1, *values.shape[3:])
        return flat if self.source is None else flat.at[self.source].get(mode="fill", fill_value=0)

    def unpack(self, values: Float[Array, " row"]) -> Float[Array, "window episode time"]:
        """Back from the rows of all batches, or of the newest ones, to their places.

        Zero where there is no row.
        """
        shape = (len(values) // self.per_batch, *self.shape[1:])
        if self.source is None:
            return values.reshape(shape)
        places = self.source[: len(values)]
        return jnp.zeros_like(values).at[places].set(values, mode="drop").reshape(shape)

    def ages(self) -> Int[Array, " row"]:
        """The age of every row; of padding at the end of packed rows, the oldest."""
        places = jnp.arange(self.shape[0] * self.per_batch) if self.source is None else self.source
        return jnp.minimum(places // self.per_batch, self.shape[0] - 1)

    def of_each_row(self, by_age: Float[Array, " age"]) -> Float[Array, " row"]:
        """A number of each of the newest ages, repeated for their rows."""
        if self.source is None:
            return jnp.repeat(by_age, self.per_batch)
        return by_age[self.ages()[: len(by_age) * self.per_batch]]

    def prefix(self, ages: int) -> tuple[int, Int[Array, ""]]:
        """How many rows hold the batches of the newest ages: at most (a shape), and in fact."""
        bound = ages * self.per_batch
        return bound, jnp.array(bound) if self.source is None else self.counts[:ages].sum()


class Rows(eqx.Module):
    """All stored transitions, with scores and importance weights under the current policy."""

    packing: Packing
    view: View
    """What the weight rule sees of them, each age with its share of all rows."""
    scores: AbstractScores
    log_probs: Float[Array, " row"]
    """log π(a|s) under the current policy."""
    weights: Float[Array, " row"]
    """ω for the mean over all rows, zero in padding."""
    state_weights: Float[Array, " row"]
    """1 for a transition (γ^t if states are discounted), 0 for padding."""
    absorbed: Float[Array, " age"] | None
    """By age, the weight of the time after an ending, when no action matters any more; None if it
    does not count."""
    rule: AbstractWeightRule

    @property
    def policy(self) -> AbstractPolicy:
        """The current one."""
        return self.view.policy

    @property
    def observations(self) -> Float[Array, "row ..."]:
        return self.view.observations

    @property
    def actions(self) -> Shaped[Array, "row ..."]:
        return self.view.actions

    @property
    def log_ratio(self) -> Float[Array, " row"]:
        """log π(a|s) / μ(a|s), where μ is the policy that acted; zero in padding."""
        return self.view.log_ratio

    def effective_sample_size(self) -> tuple[Float[Array, ""], Float[Array, " age"]]:
        """Of all rows, and of the rows of each age."""
        by_age = self.packing.unpack(self.weights).reshape(len(self.packing.counts), -1)
        return effective_sample_size(self.weights), effective_sample_size(by_age)

    def window(self, shares: Float[Array, " age"]) -> "Window":
        """The newest batches, as many as there are shares, each age counting by its share."""
        older = len(self.packing.counts) - len(shares)
        view = dataclasses.replace(self.view, shares=jnp.pad(shares, (0, older)))
        # An age without a share may hold weights that are not finite.
        counts = view.mask & (view.shares[view.age] > 0)
        return Window(
            rows=self,
            shares=shares,
            weights=where_mask(counts, self.rule.weights(view)),
            occupancy_ratio=where_mask(counts, self.rule.occupancy_ratio(view)),
        )

    def uniform_window(self, ages: int) -> "Window":
        """The newest batches, all of their rows alike."""
        amounts = weight_by_age(self)[:ages]
        return self.window(amounts / positive(amounts.sum()))


class Window(eqx.Module):
    """The newest K batches, of which age j contributes the share α_j to every mean.

    With s_i the state weights and S_j their sum over age j (and the time after its endings, where
    that counts), row i of age j counts α_j s_i / S_j.
    """

    rows: Rows
    shares: Float[Array, " age"]
    """α by age; they sum to one."""
    weights: Float[Array, " row"]
    """ω for the mean with these shares; zero in padding, and in ages without a share."""
    occupancy_ratio: Float[Array, " row"]
    """The part of ω that is about states, d^π(s) / d^μ(s); zero in the same rows."""

    @property
    def bound(self) -> int:
        """Rows of the window, padding included."""
        return self.rows.packing.prefix(len(self.shares))[0]

    @property
    def count(self) -> Int[Array, ""]:
        """Rows from here on are padding."""
        return self.rows.packing.prefix(len(self.shares))[1]

    @property
    def state_weights(self) -> Float[Array, " newest"]:
        """How much each row counts before it is reweighed; zero in padding and older rows."""
        plain = self.newest(self.rows.state_weights)
        return plain * self.rows.packing.of_each_row(self._per_weight())

    def newest(self, values: Float[Array, " row"]) -> Float[Array, " newest"]:
        """Values of the rows of the window, with zeros in place of older rows."""
        return jnp.where(jnp.arange(self.bound) < self.count, values[: self.bound], 0)

    def coefficients(self) -> Float[Array, " newest"]:
        """c such that Σ c f estimates E[f]: weights over their denominator.

        Time after an ending counts with f = 0.
        """
        return self._coefficients(self.weights)

    def state_coefficients(self) -> Float[Array, " newest"]:
        """The same for functions of the state alone, which no ratio of action probabilities
        concerns."""
        return self._coefficients(self.occupancy_ratio)

    def coverage(self) -> Float[Array, ""]:
        """The part of the window's weight that transitions have, and not the time after endings."""
        if self.rows.absorbed is None:
            return jnp.ones(())
        absorbed = jnp.sum(self.rows.absorbed[: len(self.shares)] * self._per_weight())
        total = self.state_weights.sum()
        return total / positive(total + absorbed)

    def average(self, values: Float[Array, " row"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean of values over the window, and its standard error.

        States that follow one another say nearly the same, so the error comes from how much whole
        trajectories differ.
        """
        state_weights = self.state_weights
        total = positive(state_weights.sum())
        mean = jnp.sum(state_weights * values[: self.bound]) / total
        unpack = self.rows.packing.unpack
        deviations = unpack(state_weights * (values[: self.bound] - mean)).sum(-1)
        trajectories = unpack(state_weights).any(-1).sum()
        correction = trajectories / jnp.maximum(trajectories - 1, 1)
        return mean, jnp.sqrt(jnp.sum(deviations**2) * correction) / total

    def _coefficients(self, weights: Float[Array, " row"]) -> Float[Array, " newest"]:
        weights = self.newest(weights)
        state_weights = self.state_weights
        mean = weights * state_weights / self.rows.rule.denominator(weights, state_weights)
        return mean * self.coverage()

    def _per_weight(self) -> Float[Array, " age"]:
        """α_j / S_j, and zero for ages without transitions."""
        totals = weight_by_age(self.rows)[: len(self.shares)]
        return jnp.where(totals > 0, self.shares / jnp.where(totals > 0, totals, 1), 0)


def weight_by_age(rows: Rows) -> Float[Array, " age"]:
    """S_j: the sum of the state weights of each age, and of the time after its endings.

    Where states are not discounted it is the number of transitions.
    """
    return _weight_by_age(rows.packing, rows.state_weights, rows.absorbed)


def _weight_by_age(
    packing: Packing,
    state_weights: Float[Array, " row"],
    absorbed: Float[Array, " age"] | None,
) -> Float[Array, " age"]:
    transitions = packing.unpack(state_weights).sum((1, 2))
    return transitions if absorbed is None else transitions + absorbed


def recall(
    history: History,
    policy: AbstractPolicy,
    rule: AbstractWeightRule,
    discount: Float[Array, ""] | float | None = None,
) -> Rows:
    """Everything in the history as rows, weighed by the current policy.

    Args:
        history: the stored batches.
        policy: the current one.
        rule: how weights are made.
        discount: γ, if states count by γ^t; None if all count alike.
    """
    batches = history.batches
    packing = Packing.of(batches.mask)
    batch = divided(jax.tree.map(packing.rows, batches), 0)
    mask = batch.mask
    # A real row stands in for padding: the policy is never asked about an observation that cannot
    # occur.
    first = jnp.min(jnp.where(mask, jnp.arange(len(mask)), len(mask) - 1))
    stand_in = lambda x: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, x[first])
    observations = stand_in(batch.observations)
    actions = stand_in(batch.actions)
    log_probs, scores = score_matrix(policy, observations, actions)
    log_ratio = where_mask(mask, log_probs - batch.log_probs)
    state_weights = mask if discount is None else mask * discount**batch.times
    state_weights = state_weights.astype(log_ratio.dtype)
    absorbed = _absorbed(batches, discount)
    by_age = _weight_by_age(packing, state_weights, absorbed)
    view = View(
        policy=policy,
        observations=observations,
        actions=actions,
        log_ratio=log_ratio,
        age=packing.ages(),
        mask=mask,
        shares=by_age / positive(by_age.sum()),
        memory=jax.tree.map(packing.rows, rule.by_transition(history.memory)),
    )
    return Rows(
        packing=packing,
        view=view,
        scores=scores,
        log_probs=log_probs,
        weights=where_mask(mask, rule.weights(view)),
        state_weights=state_weights,
        absorbed=absorbed,
        rule=rule,
    )


def _absorbed(
    batches: Batch, discount: Float[Array, ""] | float | None
) -> Float[Array, " age"] | None:
    """The weight of time after endings, by age; None where it does not count.

    An episode that ended at time t stays in an absorbing state from t + 1 on, which discounted
    states visit with Σ_{k > t} γ^k = γ^{t+1} / (1 − γ). An independent draw that fell there counts
    one.
    """
    if discount is None and batches.absorbed is None:
        return None
    total = jnp.zeros(len(batches.mask))
    if discount is not None:
        ended = batches.mask & (batches.terminated | batches.truncated)
        after = discount ** (batches.times + 1.0) / (1 - discount)
        total += jnp.where(ended, after, 0).sum((1, 2))
    if batches.absorbed is not None:
        total += batches.absorbed.sum((1, 2))
    return total
