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

    def init(self, batches: Batch) -> Any:
        """What is remembered beside an empty history.

        Args:
            batches: the stored batches; all arrays begin with the axes window, episode, time.

        Returns:
            A pytree of arrays that begin with the same axes; nothing by default.
        """
        del batches
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

    def init(self, batches):
        return jnp.zeros_like(batches.rewards)

    def remember(self, memory, batches, policy):
        newest = jax.vmap(lambda episode: self._log_occupancy(episode, policy))(
            batches.observations[0]
        )
        return jnp.concatenate([newest[None], memory[:-1]])

    def weights(self, view):
        return truncated(view.log_ratio + self._log_occupancy_ratio(view), self.truncate)

    def occupancy_ratio(self, view):
        return truncated(self._log_occupancy_ratio(view), self.truncate)

    def denominator(self, weights, state_weights):
        return _denominator(self.self_normalise, weights, state_weights)

    def _log_occupancy_ratio(self, view: View) -> Float[Array, " row"]:
        now = self._log_occupancy(view.observations, view.policy)
        return jnp.where(view.mask, now - view.memory, 0)

    def _log_occupancy(
        self, observations: Float[Array, "row ..."], policy: AbstractPolicy
    ) -> Float[Array, " row"]:
        """log d^π(s) of every row."""
        oracle = self.oracle
        if oracle is None:
            raise ValueError(
                "OccupancyRatio needs an environment that knows its occupancy measure; use LQC or "
                "Tabular, or PolicyRatio()."
            )
        return jax.vmap(lambda observation: oracle.log_occupancy(policy, observation))(observations)


Ratio = Literal["policy", "occupancy"]
WEIGHT_RULES: dict[Ratio, type[PolicyRatio | OccupancyRatio]] = {
    "policy": PolicyRatio,
    "occupancy": OccupancyRatio,
}
"""By their short names."""


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
