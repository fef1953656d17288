"""Weight rules: how much an old transition counts under the current policy.

A rule turns what the current policy says of the stored rows (`View`) into importance weights. What
it has to remember of each batch beside the batch itself, it keeps in a part of the history that is
its own. To bring a rule, derive from `AbstractWeightRule`; `examples/weight_rule.py` is one.
"""

import abc
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from recollect.batch import Batch
from recollect.checks import check_number
from recollect.envs.base import AbstractOracle
from recollect.policies import AbstractPolicy
from recollect.settings import Settings


class View(eqx.Module):
    """What a weight rule sees: one row for each stored transition, newest batch first.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> view = rc.View(
        ...     policy=rc.ShiftPolicy(jnp.array(2.0)),
        ...     observations=jnp.zeros((2, 1)),
        ...     actions=jnp.zeros((2, 1)),
        ...     log_ratio=jnp.array([0.0, 1.5]),
        ...     age=jnp.array([0, 1]),
        ...     mask=jnp.array([True, True]),
        ...     shares=jnp.array([0.5, 0.5]),
        ...     memory=None,
        ... )
        >>> rc.PolicyRatio(truncate=2.0).weights(view).round(3).tolist()
        [1.0, 2.0]
    """

    policy: AbstractPolicy
    """π, the current policy."""
    observations: Float[Array, "row ..."]
    actions: Shaped[Array, "row ..."]
    log_ratio: Float[Array, " row"]
    """log π(a|s) / μ(a|s), where μ is the policy that acted; zero in padding."""
    age: Int[Array, " row"]
    """Updates since the batch of a row arrived."""
    mask: Bool[Array, " row"]
    """False in padding, whose weight has no meaning."""
    shares: Float[Array, " age"]
    """α: how much each age contributes to the mean that the weights are for."""
    memory: Any
    """What the rule remembered, with rows in place of the axes window, episode, time."""


class AbstractWeightRule(Settings, eqx.Module):
    """How importance weights are made.

    A rule of one's own has to say `weights`; the other methods have defaults that suit a rule that
    looks at nothing but the view.

    Example:
        Old transitions count as if they were new.

        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> class NoCorrection(rc.AbstractWeightRule):
        ...     def weights(self, view):
        ...         return jnp.ones_like(view.log_ratio)
        >>> rc.RNPG(weights=NoCorrection()).weights
        NoCorrection()
    """

    def init(self, batches: Batch, policy: AbstractPolicy) -> Any:
        """What is remembered beside an empty history.

        Args:
            batches: the stored batches; all arrays begin with the axes window, episode, time.
            policy: shows the shapes of those to come; what it holds is not used.

        Returns:
            A pytree of arrays that begin with the axis window; nothing by default.
        """
        del batches, policy
        return None

    def remember(self, memory: Any, batches: Batch, policy: AbstractPolicy) -> Any:
        """What is remembered after a new batch has been stored.

        Args:
            memory: what was remembered before.
            batches: the stored batches, the new one first.
            policy: that acted in the new one.

        Returns:
            The new memory, with its entry of the newest batch first.
        """
        del batches, policy
        return memory

    def by_transition(self, memory: Any) -> Any:
        """The part of the memory that `weights` sees, in which each transition has its own entry.

        Args:
            memory: all that is remembered.

        Returns:
            A pytree of arrays that begin with the axes window, episode, time; all by default.
        """
        return memory

    @property
    def remembers_across_batches(self) -> bool:
        """Whether a new batch changes what is remembered of older ones.

        They then have to be there at every update, also those that do not count in it.
        """
        return False

    @abc.abstractmethod
    def weights(self, view: View) -> Float[Array, " row"]:
        """ω of every row; what it is in padding does not matter, if it is finite."""

    def occupancy_ratio(self, view: View) -> Float[Array, " row"]:
        """The part of ω that is about states alone, d^π(s) / d^μ(s): one, if the rule leaves it
        out.

        What has integrated the actions out, as the closed form of the Fisher matrix, is weighed
        by it.
        """
        return jnp.ones_like(view.log_ratio)

    def denominator(
        self, weights: Float[Array, " row"], state_weights: Float[Array, " row"]
    ) -> Float[Array, ""]:
        """What the weighted sum is divided by: the number of transitions.

        Args:
            weights: ω of every row.
            state_weights: 1 for a transition that counts fully, 0 for padding.
        """
        del weights
        return positive(state_weights.sum())


class PolicyRatio(AbstractWeightRule):
    """ω̂ = π(a|s) / μ(a|s), the paper's practical ratio (section 3.3).

    It corrects which actions were taken, not which states were visited.

    Example:
        >>> import recollect as rc
        >>> rc.RNPG(window=10, weights=rc.PolicyRatio(truncate=2.0)).weights.truncate
        2.0
    """

    truncate: float = float("inf")
    """Largest weight allowed."""
    self_normalise: bool = eqx.field(static=True, default=False)
    """Divide by the sum of the weights instead of the number of transitions: a little bias for less
    variance."""

    def __check_init__(self):
        check_truncation(self.truncate)

    def weights(self, view):
        return truncated(view.log_ratio, self.truncate)

    def denominator(self, weights, state_weights):
        return _denominator(self.self_normalise, weights, state_weights)


class OccupancyRatio(AbstractWeightRule):
    """ω = d^π(s, a) / d^μ(s, a), Equation (4), for environments that know their occupancy measure.

    Unbiased if the current policy did not depend on the stored transitions. log d^μ(s) is kept
    beside each batch, as μ itself is not.

    Example:
        >>> import recollect as rc
        >>> exact = dict(advantages=rc.ExactAdvantages(), weights=rc.OccupancyRatio())
        >>> rc.RNPG(window=3, discount=0.5, **exact).weights.oracle is None  # `train` binds it
        True
    """

    truncate: float = float("inf")
    """Largest weight allowed."""
    self_normalise: bool = eqx.field(static=True, default=False)
    """Divide by the sum of the weights instead of the number of transitions."""
    oracle: AbstractOracle | None = None
    """The environment, which `train` fills in."""

    def __check_init__(self):
        check_truncation(self.truncate)

    def init(self, batches, policy):
        return jnp.zeros_like(batches.rewards)

    def remember(self, memory, batches, policy):
        newest = log_occupancies(self.oracle, policy, batches.observations[0])
        return jnp.concatenate([newest[None], memory[:-1]])

    def weights(self, view):
        return truncated(view.log_ratio + self._log_occupancy_ratio(view), self.truncate)

    def occupancy_ratio(self, view):
        return truncated(self._log_occupancy_ratio(view), self.truncate)

    def denominator(self, weights, state_weights):
        return _denominator(self.self_normalise, weights, state_weights)

    def _log_occupancy_ratio(self, view: View) -> Float[Array, " row"]:
        now = log_occupancies(self.oracle, view.policy, view.observations)
        return jnp.where(view.mask, now - view.memory, 0)


class PowerMean(AbstractWeightRule):
    """ω̂ / (λω̂ + 1 − λ), bounded by 1/λ, where ω̂ = π(a|s) / μ(a|s).

    The power mean of exponent −1 of ω̂ and 1: the density of the current policy over a mixture of
    the current one, with the share λ, and the one that acted. It needs no other policy, unlike
    `Mixture`, and is biased: towards no correction at all, which is λ = 1; λ = 0 is the policy
    ratio. Metelli, Russo and Restelli (2021), "Subgaussian and differentiable importance sampling
    for off-policy evaluation and learning".

    Example:
        >>> import recollect as rc
        >>> rc.RNPG(window=10, weights=rc.PowerMean(0.1)).weights.mix
        0.1
    """

    mix: float = 0.5
    """λ, from 0 to 1."""

    def __check_init__(self):
        remedy = "give the share of the current policy, from 0 to 1"
        check_number("mix", self.mix, low=0, high=1, remedy=remedy)

    def weights(self, view):
        # In logs, as the ratio itself may overflow.
        mixture = jnp.logaddexp(jnp.log(self.mix) + view.log_ratio, jnp.log1p(-self.mix))
        return jnp.exp(view.log_ratio - mixture)


Ratio = Literal["policy", "occupancy"]
WEIGHT_RULES: dict[Ratio, type[PolicyRatio | OccupancyRatio]] = {
    "policy": PolicyRatio,
    "occupancy": OccupancyRatio,
}
"""The paper's two, by their short names."""


def log_occupancies(
    oracle: AbstractOracle | None,
    policy: AbstractPolicy,
    observations: Float[Array, "*row feature"],
) -> Float[Array, "*row"]:
    """log d^π(s) of every observation."""
    if oracle is None:
        raise ValueError(
            "these weights need an environment that knows its occupancy measure; use LQC or "
            "Tabular, or PolicyRatio() or Mixture()."
        )
    flat = observations.reshape(-1, observations.shape[-1])
    of_rows = jax.vmap(lambda observation: oracle.log_occupancy(policy, observation))(flat)
    return of_rows.reshape(observations.shape[:-1])


def truncated(
    log_weights: Float[Array, "*row"], most: Float[Array, ""] | float
) -> Float[Array, "*row"]:
    """min(exp(log_weights), most); the minimum is taken of logarithms, so that nothing
    overflows."""
    return jnp.exp(jnp.minimum(log_weights, jnp.log(most)))


def check_truncation(most: float) -> None:
    """Raise unless weights could be cut there."""
    remedy = "give the largest weight allowed, above 0"
    check_number("truncate", most, low=0, open_low=True, infinite=True, remedy=remedy)


def effective_sample_size(weights: Float[Array, "*row sample"]) -> Float[Array, "*row"]:
    """(Σω)² / Σω²: how many unweighted samples the weighted ones are worth; 0 where there are
    none."""
    # Scaled by the largest weight first, so that squares of large weights cannot overflow.
    weights = weights / positive(weights.max(-1, keepdims=True))
    square = jnp.sum(weights**2, -1)
    some = square > 0
    return jnp.where(some, jnp.sum(weights, -1) ** 2 / jnp.where(some, square, 1), 0.0)


def positive(value: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The value, or where it is zero the smallest number that can be divided by."""
    return jnp.maximum(value, jnp.finfo(value.dtype).tiny)


def _denominator(self_normalise: bool, weights, state_weights) -> Float[Array, ""]:
    return positive(jnp.sum(weights * state_weights if self_normalise else state_weights))
