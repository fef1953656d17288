"""Shares: how much each age of the window contributes to gradient, surrogate and Fisher matrix.

The paper's window counts all rows of the newest K batches alike, whatever has become of them. A
rule of shares may look at what the data says of each age (`evidence.py`) before it decides, and
remember what it has seen. `least_error.py` and `controllers.py` have rules that decide whether to
reuse at all.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from recollect.checks import check_number
from recollect.estimate.evidence import Evidence
from recollect.memory.weights import positive
from recollect.settings import Settings


class ChosenShares(eqx.Module):
    """What a rule of shares has decided.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> rc.ChosenShares(jnp.array([0.5, 0.25, 0.25])).step_scale
        1.0
    """

    shares: Float[Array, " age"]
    """α_j ≥ 0 of every age, which sum to one (or are all zero, where there is no row)."""
    memory: Any = None
    """What the rule is to remember, shaped like that of `init`."""
    report: Any = None
    """What the rule has measured; a module, each of whose fields is a curve."""
    step_scale: Float[Array, ""] | float = 1.0
    """By what the step is multiplied: the step size of PG, NPG and PPO, the root of TRPO's
    radius."""


class AbstractShares(Settings, eqx.Module):
    """How the shares of the ages are chosen.

    Example:
        Half for the newest batch, half for all others together.

        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> class Halves(rc.AbstractShares):
        ...     def __call__(self, evidence, memory):
        ...         newest = jnp.arange(len(evidence.rows)) == 0
        ...         older = jnp.where(newest, 0, evidence.rows)
        ...         return rc.ChosenShares(jnp.where(newest, 0.5, 0.5 * older / older.sum()))
        >>> rc.RNPG(window=4, shares=Halves()).shares
        Halves()
    """

    def init(self, ages: int) -> Any:
        """What is remembered before the first update.

        Args:
            ages: how many there are in the window.

        Returns:
            A pytree of arrays; nothing by default. An update that could not use the newest batch,
            and one that would put a number in it that is not finite, leave it as it was.
        """
        del ages
        return None

    @abc.abstractmethod
    def __call__(self, evidence: Evidence, memory: Any) -> ChosenShares:
        """The shares, and what is remembered from now on.

        Args:
            evidence: what the stored batches say.
            memory: what was remembered until now.
        """

    def ages_in_use(self) -> Int[Array, ""] | int | None:
        """How many of the newest ages count at all, where that is known before any is weighed.

        For this update it is as if no more were stored. None: all may count.
        """
        return None

    @property
    def in_newest_units(self) -> bool:
        """Whether advantages are shifted and scaled as the newest batch alone would have them.

        A rule that may leave all older batches out wants that: a share of one for the newest is
        then the same as a window of 1. By default the units are those of the window.
        """
        return False

    @property
    def steps_of_newest(self) -> bool:
        """Whether PPO takes as many minibatch steps as the newest batch alone would have.

        A rule that chooses a window, all rows of which count alike, then decides about data and
        not about how much work an update is. By default every row with a share is swept over as
        often as `epochs` says.
        """
        return False


class Uniform(AbstractShares):
    """All rows of the window count alike, the paper's choice: α_j = S_j / Σ S.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> evidence = rc.Evidence.fresh(jnp.array([4.0, 2.0, 2.0]))
        >>> rc.Uniform()(evidence, None).shares.tolist()
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

    def __call__(self, evidence, memory):
        return ChosenShares(normalised(evidence.rows))


class Geometric(AbstractShares):
    """A row counts by a constant factor less for every update that it is older: α_j ∝ q^j S_j.

    Between no reuse, as q → 0, and the paper's window, q = 1. A batch whose weights are not finite,
    or all zero, has no share.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> evidence = rc.Evidence.fresh(jnp.array([4.0, 4.0, 8.0]))
        >>> rc.Geometric(0.5)(evidence, None).shares.tolist()
        [0.5, 0.25, 0.25]
    """

    factor: float = 0.8
    """q, above 0 and at most 1. Another number compiles nothing anew."""

    def __check_init__(self):
        remedy = "give a number above 0 and at most 1"
        check_number("factor", self.factor, low=0, high=1, open_low=True, remedy=remedy)

    def __call__(self, evidence, memory):
        discounted = evidence.rows * self.factor ** jnp.arange(len(evidence.rows))
        return ChosenShares(
            normalised(jnp.where(evidence.effective_sample_size > 0, discounted, 0))
        )


class ByEffectiveSize(AbstractShares):
    """An age counts by what its rows are worth under the current policy: α_j ∝ ESS_j.

    If the estimate from age j alone has a variance in proportion to 1/ESS_j, and all have the same
    mean, no other shares have less variance. A batch whose weights are not finite has no share.

    Example:
        >>> import dataclasses
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> evidence = rc.Evidence.fresh(jnp.array([4.0, 4.0]))
        >>> sizes = jnp.array([3.0, 1.0])
        >>> evidence = dataclasses.replace(evidence, effective_sample_size=sizes)
        >>> rc.ByEffectiveSize()(evidence, None).shares.tolist()
        [0.75, 0.25]
    """

    def __call__(self, evidence, memory):
        return ChosenShares(normalised(evidence.effective_sample_size))


def normalised(amounts: Float[Array, "*n age"]) -> Float[Array, "*n age"]:
    """The amounts over their sum; zeros, if there is nothing."""
    return amounts / positive(amounts.sum(-1, keepdims=True))
