"""The gradients of ages, compared by their inner products.

Any question about combinations of gradients is a quadratic form of one small matrix: (K + 1)²
numbers for K ages, of which the newest is in two halves.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.estimate.evidence import Evidence, Gradients
from recollect.estimate.shares import normalised
from recollect.memory.weights import positive


class Comparison(eqx.Module):
    """The gradients of ages, of which only those count that are usable, as their inner products."""

    gradients: Gradients
    products: Float[Array, "part part"]
    """Of g_a, g_b, g₁, …; zero for those that are not usable."""
    rows: Float[Array, " age"]
    """Of every age; zero where it is not usable."""
    usable: Bool[Array, " age"]
    """Whether an age has rows, and weights and a gradient that are finite; none has, if the newest
    has not."""

    @classmethod
    def of(cls, evidence: Evidence) -> "Comparison":
        """The gradients of the evidence, compared."""
        gradients = evidence.gradients()
        products = gradients.products()
        # A sum of squares is finite only if all products are that a gradient has a part in.
        finite = jnp.isfinite(jnp.diagonal(products))
        of_ages = jnp.concatenate([finite[:1] & finite[1:2], finite[2:]])
        usable = of_ages & (evidence.effective_sample_size > 0)
        usable &= usable[0]
        parts = jnp.concatenate([usable[:1], usable])
        return cls(
            gradients=gradients,
            products=jnp.where(parts & parts[:, None], products, 0),
            rows=jnp.where(usable, evidence.rows, 0),
            usable=usable,
        )

    @property
    def newest(self) -> Float[Array, " age"]:
        """The shares of a window of 1."""
        return jnp.where(jnp.arange(len(self.rows)) == 0, 1.0, 0.0)

    @property
    def noise(self) -> Float[Array, ""]:
        """v₀."""
        return self.gradients.noise(self.products)

    def windows(self) -> Float[Array, "window age"]:
        """The shares of windows of 1, 2, … batches, all usable rows alike; of the newest alone
        where there are none."""
        inside = jnp.tri(len(self.rows))
        return jnp.where(self.usable[0], normalised(inside * self.rows), self.newest)

    def squared_norm(self, shares: Float[Array, "*n age"]) -> Float[Array, "*n"]:
        """‖Σ_j α_j g_j‖²."""
        parts = self.gradients.parts(shares)
        return jnp.maximum(jnp.sum((parts @ self.products) * parts, -1), 0)

    def gains(self, shares: Float[Array, "window age"]) -> Float[Array, " window"]:
        """What windows gain on the half that they have not seen; see `CrossValidated`."""
        one_way = [self._gain(shares, half) for half in (0, 1)]
        return (one_way[0] + one_way[1]) / 2

    def _gain(self, shares: Float[Array, "window age"], half: int) -> Float[Array, " window"]:
        """⟨h, g⟩ / ‖h‖, where h has `half` in place of the newest batch and g is the other."""
        seen = jnp.arange(2) == half
        parts = jnp.concatenate([shares[:, :1] * seen, shares[:, 1:]], axis=1)
        products = parts @ self.products
        norm = jnp.sqrt(jnp.maximum(jnp.sum(products * parts, -1), 0))
        return products[:, 1 - half] / positive(norm)
