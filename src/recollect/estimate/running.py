"""Means over an update's past of which the latest count most."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.memory.weights import positive


class RunningMeans(eqx.Module):
    """Means of several numbers over the updates that observed them.

    With weights w = 1 for the latest and less by a constant factor for every one before, the mean
    is Σ w x / Σ w, so that nothing pulls it to where it began.

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect.estimate.running import RunningMeans
        >>> means = RunningMeans.empty(2)
        >>> for value in (1.0, 4.0):
        ...     observed = jnp.array([True, value > 1])
        ...     means = means.with_latest(jnp.full(2, value), observed, horizon=2.0)
        >>> means.mean.tolist()  # (½ · 1 + 4) / (½ + 1), and 4 alone
        [3.0, 4.0]
    """

    total: Float[Array, " n"]
    """Σ w x."""
    square: Float[Array, " n"]
    """Σ w x²."""
    weight: Float[Array, " n"]
    """Σ w."""
    square_weight: Float[Array, " n"]
    """Σ w²."""

    @classmethod
    def empty(cls, count: int) -> "RunningMeans":
        """Nothing observed yet."""
        zeros = jnp.zeros(count, float)
        return cls(zeros, zeros, zeros, zeros)

    def with_latest(
        self,
        values: Float[Array, " n"],
        observed: Bool[Array, " n"],
        horizon: Float[Array, ""] | float,
    ) -> "RunningMeans":
        """The means with one more value each.

        Args:
            values: the latest; one that is not finite is not taken in.
            observed: whether there is one; without it the past stays as it is.
            horizon: updates over which a value loses most of its weight, 1/(1 − factor).
        """
        kept = 1 - 1 / horizon
        observed = observed & jnp.isfinite(values**2)
        values = jnp.where(observed, values, 0)
        add = lambda old, factor, new: jnp.where(observed, factor * old + new, old)
        return RunningMeans(
            total=add(self.total, kept, values),
            square=add(self.square, kept, values**2),
            weight=add(self.weight, kept, 1.0),
            square_weight=add(self.square_weight, kept**2, 1.0),
        )

    @property
    def mean(self) -> Float[Array, " n"]:
        """Zero where nothing has been observed."""
        return self.total / positive(self.weight)

    @property
    def count(self) -> Float[Array, " n"]:
        """How many values alike in weight the mean is worth, (Σw)² / Σw²."""
        return self.weight**2 / positive(self.square_weight)

    @property
    def error(self) -> Float[Array, " n"]:
        """Standard error of the mean, if the values are independent; infinite for fewer than two
        values."""
        variance = jnp.maximum(self.square / positive(self.weight) - self.mean**2, 0)
        some = self.count > 1.5
        return jnp.where(some, jnp.sqrt(variance / jnp.where(some, self.count - 1, 1)), jnp.inf)
