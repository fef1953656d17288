"""Standardised observations, by the mean and standard deviation of all observations so far.

The normaliser is a part of the policy (and of the critic), while stored observations are raw. So
when its statistics change, π(a|s) of old transitions is computed with those of the current policy,
and importance ratios stay correct. Stored observations that are already normalised would be paired
with policies that never saw them in that form.

Statistics are updated at the beginning of an update, before its step is searched for and measured
(`Policy.seeing`), so that nothing changes π after a trust region has accepted a step. The new
statistics do change π. Rewriting the first layer to undo that change keeps the network in the units
of the first batch for good, and learns less: `benchmarks/normaliser.py`.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.tree import Frozen, where_mask

SPREAD_FLOOR = 1e-6
"""Added to every standard deviation, so that a feature that never varied is not divided by 0."""
FURTHEST = 10.0
"""Standardised observations are clipped to ± this."""


class Units(eqx.Module):
    """Mean and standard deviation, in terms of which numbers are standardised."""

    mean: Float[Array, "*feature"]
    spread: Float[Array, "*feature"]

    @classmethod
    def of(cls, rows: Float[Array, "row *feature"], mask: Bool[Array, " row"]) -> "Units":
        """Mean and standard deviation of the rows where `mask` is true."""
        count = jnp.maximum(mask.sum(), 1)
        mean = where_mask(mask, rows).sum(0) / count
        variance = where_mask(mask, (rows - mean) ** 2).sum(0) / count
        return cls(mean, jnp.sqrt(variance) + SPREAD_FLOOR)


class Normaliser(Frozen):
    """x ↦ (x − mean) / spread, clipped to ±10. Its arrays are statistics, not part of θ.

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect import Normaliser
        >>> rows = jnp.array([[0.0, 10.0], [2.0, 30.0]])
        >>> normaliser = Normaliser.fresh(2).seeing(rows, mask=jnp.array([True, True]))
        >>> normaliser.units.mean.tolist()
        [1.0, 20.0]
        >>> normaliser(rows).round(3).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
    """

    units: Units
    seen: Float[Array, ""]
    """Number of rows that the statistics are taken of."""

    @classmethod
    def fresh(cls, size: int) -> "Normaliser":
        """A normaliser without statistics, which returns observations unchanged."""
        return cls(Units(jnp.zeros(size), jnp.ones(size)), jnp.zeros(()))

    def __call__(self, x: Float[Array, "*row feature"]) -> Float[Array, "*row feature"]:
        # Before the first statistics the units are arbitrary, so nothing is clipped.
        furthest = jnp.where(self.seen > 0, FURTHEST, jnp.inf)
        return jnp.clip((x - self.units.mean) / self.units.spread, -furthest, furthest)

    def seeing(self, rows: Float[Array, "row feature"], mask: Bool[Array, " row"]) -> "Normaliser":
        """The normaliser with statistics that include the rows where `mask` is true.

        Means and variances of the two sets of rows are combined by the parallel algorithm of Chan,
        Golub and LeVeque (1979).
        """
        units = self.units
        new = Units.of(rows, mask)
        count = mask.sum().astype(self.seen.dtype)
        total = self.seen + count
        share = count / jnp.maximum(total, 1)
        apart = new.mean - units.mean
        mean = units.mean + share * apart
        variance = (
            (1 - share) * units.spread**2 + share * new.spread**2 + share * (1 - share) * apart**2
        )
        return Normaliser(Units(mean, jnp.sqrt(variance)), total)
