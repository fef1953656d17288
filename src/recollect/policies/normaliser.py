"""Observations in standard units, by what has been seen so far.

The normaliser is a part of the policy (and of the critic), and what is stored are raw observations. So
when it moves, π(a|s) of old transitions is that of the policy as it is now, and importance ratios stay
true. Storing normalised observations instead would compare them with policies that never saw them so.

New statistics are taken at the beginning of an update, before its step is searched for and measured
(`Policy.seeing`): nothing moves π after a trust region has allowed a step. They move π themselves. To
rewrite the first layer so that they do not keeps the network in the units of the first batch for
ever, and learns less: `benchmarks/normaliser.py`.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.tree import Frozen, where_mask

SPREAD_FLOOR = 1e-6
"""Added to every standard deviation, so that a feature that has not varied can be divided by it."""
FURTHEST = 10.0
"""Standard units beyond which a number counts as an outlier and is moved to here."""


class Units(eqx.Module):
    """What is subtracted and divided by to make numbers of mean 0 and standard deviation 1."""

    mean: Float[Array, "*feature"]
    spread: Float[Array, "*feature"]

    @classmethod
    def of(cls, rows: Float[Array, "row *feature"], mask: Bool[Array, " row"]) -> "Units":
        count = jnp.maximum(mask.sum(), 1)
        mean = where_mask(mask, rows).sum(0) / count
        variance = where_mask(mask, (rows - mean) ** 2).sum(0) / count
        return cls(mean, jnp.sqrt(variance) + SPREAD_FLOOR)


class Normaliser(Frozen):
    """x ↦ (x − mean) / spread. Its arrays are statistics and no parameters."""

    units: Units
    seen: Float[Array, ""]
    """Rows that the units stand for."""

    @classmethod
    def fresh(cls, size: int) -> "Normaliser":
        """One that has seen nothing and changes nothing."""
        return cls(Units(jnp.zeros(size), jnp.ones(size)), jnp.zeros(()))

    def __call__(self, x: Float[Array, "*row feature"]) -> Float[Array, "*row feature"]:
        # Without statistics nobody knows what an outlier is.
        furthest = jnp.where(self.seen > 0, FURTHEST, jnp.inf)
        return jnp.clip((x - self.units.mean) / self.units.spread, -furthest, furthest)

    def seeing(self, rows: Float[Array, "row feature"], mask: Bool[Array, " row"]) -> "Normaliser":
        """The units of everything seen so far together with new rows."""
        units, new = self.units, Units.of(rows, mask)
        count = mask.sum().astype(self.seen.dtype)
        total = self.seen + count
        share = count / jnp.maximum(total, 1)
        apart = new.mean - units.mean
        mean = units.mean + share * apart
        variance = (
            (1 - share) * units.spread**2 + share * new.spread**2 + share * (1 - share) * apart**2
        )
        return Normaliser(Units(mean, jnp.sqrt(variance)), total)
