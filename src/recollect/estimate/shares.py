"""Shares: how much each age of the window contributes to gradient, surrogate and Fisher matrix.

The paper's window counts all rows of the newest K batches alike, whatever has become of them. A
rule of shares may look at what the data says of each age (`Evidence`) before it decides.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from recollect.checks import check_number
from recollect.estimate.gradient import gradient_by_age
from recollect.memory.rows import Rows, weight_by_age
from recollect.memory.weights import positive
from recollect.settings import Settings


class Evidence(eqx.Module):
    """What is known of the newest K ages, newest first.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> evidence = rc.Evidence(
        ...     rows=jnp.array([4.0, 4.0]),
        ...     effective_sample_size=jnp.array([4.0, 3.0]),
        ...     gradients=lambda: jnp.zeros((2, 6)),
        ... )
        >>> (evidence.effective_sample_size / evidence.rows).tolist()
        [1.0, 0.75]
    """

    rows: Float[Array, " age"]
    """S_j, the weight of the transitions of each age: their number, if states are not
    discounted."""
    effective_sample_size: Float[Array, " age"]
    gradients: Callable[[], Float[Array, "age d"]]
    """The gradient from each age alone; all of them cost as much as one over all rows."""


class AbstractShares(Settings, eqx.Module):
    """How the shares of the ages are chosen.

    Example:
        Half for the newest batch, half for all others together.

        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> class Halves(rc.AbstractShares):
        ...     def __call__(self, evidence):
        ...         newest = jnp.arange(len(evidence.rows)) == 0
        ...         older = jnp.where(newest, 0, evidence.rows)
        ...         return jnp.where(newest, 0.5, 0.5 * older / older.sum())
        >>> rc.RNPG(window=4, shares=Halves()).shares
        Halves()
    """

    @abc.abstractmethod
    def __call__(self, evidence: Evidence) -> Float[Array, " age"]:
        """α_j ≥ 0 of every age, which sum to one (or are all zero, where there is no row)."""

    def ages_in_use(self) -> Int[Array, ""] | int | None:
        """How many of the newest ages count at all, where that is known before any is weighed.

        For this update it is as if no more were stored. None: all may count.
        """
        return None


class Uniform(AbstractShares):
    """All rows of the window count alike, the paper's choice: α_j = S_j / Σ S.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> rows = jnp.array([4.0, 2.0, 2.0])
        >>> evidence = rc.Evidence(rows, rows, gradients=lambda: jnp.zeros((3, 6)))
        >>> rc.Uniform()(evidence).tolist()
        [0.5, 0.25, 0.25]
        >>> rc.Uniform(newest=1).ages_in_use()
        1
    """

    newest: int | None = None
    """Ages that count, as if no more were stored; all if not given. Another number compiles nothing
    anew."""

    def __check_init__(self):
        if self.newest is not None:
            remedy = "give how many ages count, at least 1, or leave it out for all"
            check_number("newest", self.newest, low=1, remedy=remedy)

    def ages_in_use(self):
        return self.newest

    def __call__(self, evidence):
        return _normalised(evidence.rows)


class Geometric(AbstractShares):
    """A row counts by a constant factor less for every update that it is older: α_j ∝ q^j S_j.

    Between no reuse, as q → 0, and the paper's window, q = 1. A batch whose weights are not finite,
    or all zero, has no share.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> rows = jnp.array([4.0, 4.0, 8.0])
        >>> evidence = rc.Evidence(rows, rows, gradients=lambda: jnp.zeros((3, 6)))
        >>> rc.Geometric(0.5)(evidence).tolist()
        [0.5, 0.25, 0.25]
    """

    factor: float = 0.8
    """q, above 0 and at most 1. Another number compiles nothing anew."""

    def __check_init__(self):
        remedy = "give a number above 0 and at most 1"
        check_number("factor", self.factor, low=0, high=1, open_low=True, remedy=remedy)

    def __call__(self, evidence):
        discounted = evidence.rows * self.factor ** jnp.arange(len(evidence.rows))
        return _normalised(jnp.where(evidence.effective_sample_size > 0, discounted, 0))


class ByEffectiveSize(AbstractShares):
    """An age counts by what its rows are worth under the current policy: α_j ∝ ESS_j.

    If the estimate from age j alone has a variance in proportion to 1/ESS_j, and all have the same
    mean, no other shares have less variance. A batch whose weights are not finite has no share.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> evidence = rc.Evidence(
        ...     rows=jnp.array([4.0, 4.0]),
        ...     effective_sample_size=jnp.array([3.0, 1.0]),
        ...     gradients=lambda: jnp.zeros((2, 6)),
        ... )
        >>> rc.ByEffectiveSize()(evidence).tolist()
        [0.75, 0.25]
    """

    def __call__(self, evidence):
        return _normalised(evidence.effective_sample_size)


def _normalised(amounts: Float[Array, " age"]) -> Float[Array, " age"]:
    """The amounts over their sum; zeros, if there is nothing."""
    return amounts / positive(amounts.sum())


def evidence_of(rows: Rows, ages: int, advantages: Float[Array, " newest"] | None) -> Evidence:
    """The evidence of the newest ages; without advantages there are no gradients to ask for."""

    def gradients() -> Float[Array, "age d"]:
        if advantages is None:
            raise ValueError("the Fisher matrix has no gradients to look at.")
        return gradient_by_age(rows, advantages)

    return Evidence(
        rows=weight_by_age(rows)[:ages],
        effective_sample_size=rows.effective_sample_size()[1][:ages],
        gradients=gradients,
    )
