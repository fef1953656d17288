"""The reweighed Fisher matrix as a linear operator, Equation (5) without its damping.

A Fisher kind says which scores it is made of.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from recollect.devices import at_full_precision, matrix_chunk_size
from recollect.memory.rows import Window
from recollect.policies.chunks import fold
from recollect.policies.scores import AbstractScores, expected_score_matrix, has_expected_scores
from recollect.settings import Settings


class Fisher(eqx.Module):
    """F = Σ_i c_i ∇log π(a_i|s_i) ∇log π(a_i|s_i)ᵀ, held as scores and coefficients. A product
    costs O(N d).

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> from recollect.policies.scores import score_matrix
        >>> policy = rc.ShiftPolicy(jnp.array(0.0))  # its score is a + s
        >>> observations = jnp.zeros((2, 1))
        >>> _, scores = score_matrix(policy, observations, jnp.array([[1.0], [2.0]]))
        >>> fisher = rc.Fisher(scores, jnp.array([0.5, 0.5]), count=jnp.array(2))
        >>> fisher.matrix().round(3).tolist()  # (1² + 2²) / 2
        [[2.5]]
    """

    scores: AbstractScores
    coefficients: Float[Array, " state"]
    """One for each state, which all of its rows share."""
    count: Int[Array, ""]
    """States from here on are padding."""

    @property
    def shape(self) -> tuple[int, int]:
        """(d, number of rows)."""
        return self.scores.shape

    @at_full_precision
    def mv(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        """F v, one push and one pull."""
        product = lambda scores, c: scores.pull(_of_each(scores, c) * scores.push(vector))
        return fold(product, self.scores, self.coefficients, self.count)

    @at_full_precision
    def matrix(self) -> Float[Array, "d d"]:
        """F written out, O(N d²)."""

        def outer(scores, c):
            # The upper right quarter is the transpose of the lower left: three products instead
            # of four.
            top, bottom = jnp.array_split(scores.columns() * jnp.sqrt(_of_each(scores, c)), 2)
            cross = bottom @ top.T
            return jnp.block([[top @ top.T, cross.T], [cross, bottom @ bottom.T]])

        return fold(
            outer,
            self.scores,
            self.coefficients,
            self.count,
            max(matrix_chunk_size() // self.scores.rank, 1),
        )

    @at_full_precision
    def gram(self) -> Float[Array, "row row"]:
        """C^½ Jᵀ J C^½, the N×N matrix with the same positive eigenvalues as F."""
        root = self.root_coefficients()
        return root[:, None] * self.scores.gram() * root

    def root_coefficients(self) -> Float[Array, " row"]:
        """The diagonal of C^½."""
        return jnp.sqrt(_of_each(self.scores, self.coefficients))

    def sample(self, rows: int) -> "Fisher":
        """An estimate of F from a few rows, drawn without randomness.

        Rows are taken at even steps along a cumulated probability, half of which is in proportion
        to the weight and half to the part in the trace of F: a rare action with a large score must
        not be missed.
        """
        coefficients = _of_each(self.scores, self.coefficients)
        part = coefficients * self.scores.squared_norms()
        share = lambda x: x / jnp.maximum(x.sum(), jnp.finfo(x.dtype).tiny)
        probability = (share(coefficients) + share(part)) / 2
        steps = (jnp.arange(rows) + 0.5) / rows
        indices = jnp.minimum(jnp.searchsorted(jnp.cumsum(probability), steps), len(part) - 1)
        expected = jnp.maximum(rows * probability[indices], jnp.finfo(part.dtype).tiny)
        return Fisher(self.scores.take(indices), coefficients[indices] / expected, jnp.array(rows))


class AbstractFisherKind(Settings, eqx.Module):
    """Which estimate of the Fisher matrix is taken.

    Example:
        From the newest batch alone, whatever the window of the gradient.

        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> class Newest(rc.AbstractFisherKind):
        ...     def __call__(self, window):
        ...         return rc.ScoreFisher()(window.rows.window(jnp.ones(1)))
        >>> rc.RNPG(window=10, fisher=Newest()).fisher
        Newest()
    """

    @abc.abstractmethod
    def __call__(self, window: Window) -> Fisher:
        """F̂ over the window, without damping."""


class ScoreFisher(AbstractFisherKind):
    """Weighted outer products of the scores of the actions taken, the paper's Equation (5).

    Example:
        >>> import recollect as rc
        >>> rc.preset("rnpg", "paper").algorithm.fisher
        ScoreFisher()
    """

    def __call__(self, window):
        scores = window.rows.scores.states(0, window.bound)
        return Fisher(scores=scores, coefficients=window.coefficients(), count=window.count)


class ExpectedFisher(AbstractFisherKind):
    """The mean over actions in closed form, state by state; for policies with an MLP.

    The closed form has integrated the actions out, so that how likely they were no longer concerns
    it: states count by the ratio of occupancies, where the weight rule knows it, and else alike.

    Example:
        >>> import recollect as rc
        >>> rc.RTRPO(window=5, fisher=rc.ExpectedFisher(), fisher_window=1).windows
        (5, 1)
    """

    def __call__(self, window):
        scores = expected_score_matrix(window.rows.policy, window.rows.observations[: window.bound])
        return Fisher(scores=scores, coefficients=window.state_coefficients(), count=window.count)


class AutoFisher(AbstractFisherKind):
    """The closed form of `ExpectedFisher` where it is known, else the outer products of scores.

    Example:
        >>> import recollect as rc
        >>> rc.RNPG().fisher
        AutoFisher()
    """

    def __call__(self, window):
        known = has_expected_scores(window.rows.policy)
        return ExpectedFisher()(window) if known else ScoreFisher()(window)


def _of_each(scores: AbstractScores, coefficients: Float[Array, " state"]) -> Float[Array, " row"]:
    """The coefficient of every row."""
    return jnp.repeat(coefficients, scores.rank)
