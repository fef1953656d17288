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
        In proportion to the effective sample size of each age.

        >>> import recollect as rc
        >>> class Effective(rc.AbstractShares):
        ...     def __call__(self, evidence):
        ...         return evidence.effective_sample_size / evidence.effective_sample_size.sum()
        >>> rc.RNPG(window=4, shares=Effective()).shares
        Effective()
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
        rows = evidence.rows
        return rows / jnp.maximum(rows.sum(), jnp.finfo(rows.dtype).tiny)


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
