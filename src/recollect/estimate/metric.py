"""Metrics in which the gradients of ages are compared.

What a difference of two gradients means depends on how the algorithm steps. Plain ascent steps
along the gradient itself, and so its error counts as Euclid measures it. A natural step is F⁻¹g,
whose error has the size ‖F⁻¹(g − h)‖_F = ‖g − h‖ in the metric F⁻¹. All that is asked for is the
matrix of inner products of a few gradients.

Cost: n gradients of d parameters take n²d operations, and the inverse Fisher matrix n passes over
the scores of r sampled rows beside a Cholesky decomposition of size r.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from recollect.estimate.fisher import Fisher, ScoreFisher
from recollect.memory.rows import Rows

SAMPLED = 128
"""Rows that the inverse Fisher matrix is estimated from."""
LEAST_DAMPING = 1e-3
"""Smallest damping, as a part of the trace of F: with less, rounding decides."""


class AbstractMetric(eqx.Module):
    """An inner product of gradients.

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect.estimate.metric import Euclidean
        >>> Euclidean().products(jnp.array([[1.0, 2.0], [0.0, 3.0]])).tolist()
        [[5.0, 6.0], [6.0, 9.0]]
    """

    @abc.abstractmethod
    def products(self, vectors: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """⟨u, v⟩ of every pair."""


class Euclidean(AbstractMetric):
    """uᵀv, for steps along the gradient itself."""

    def products(self, vectors):
        return vectors @ vectors.T


class InverseFisher(AbstractMetric):
    """uᵀ(F + εI)⁻¹v with the Fisher matrix of a few rows, for natural steps.

    By Woodbury's identity, with F = AAᵀ: (uᵀv − (Aᵀu)ᵀ(εI + AᵀA)⁻¹Aᵀv) / ε.
    """

    fisher: Fisher
    damping: Float[Array, ""]
    """ε."""

    @classmethod
    def of(cls, rows: Rows, damping: Float[Array, ""] | float) -> "InverseFisher":
        """From the scores of the newest batch.

        Args:
            rows: all that is stored.
            damping: ε of the algorithm.
        """
        fisher = ScoreFisher()(rows.uniform_window(1))
        fisher = fisher.sample(min(SAMPLED, fisher.shape[1]))
        least = LEAST_DAMPING * jnp.trace(fisher.gram())
        return cls(fisher=fisher, damping=jnp.maximum(damping, least))

    def products(self, vectors):
        pushed = jax.vmap(self.fisher.scores.push)(vectors) * self.fisher.root_coefficients()
        gram = self.fisher.gram()
        lower = jnp.linalg.cholesky(gram + self.damping * jnp.eye(len(gram)))
        inside = jax.scipy.linalg.solve_triangular(lower, pushed.T, lower=True)
        return (vectors @ vectors.T - inside.T @ inside) / self.damping
