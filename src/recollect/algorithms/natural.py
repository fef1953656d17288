"""What NPG and TRPO share: a natural direction (F̂ + εI)⁻¹ ∇̂η, each factor over a window of its
own."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from recollect.algorithms.base import AbstractAlgorithm
from recollect.algorithms.update import UpdateStart, in_use, weigh
from recollect.batch import Batch
from recollect.checks import check_count, check_number
from recollect.collect.rollout import Rollout
from recollect.estimate.fisher import AbstractFisherKind, AutoFisher, Fisher
from recollect.estimate.metric import InverseFisher
from recollect.memory.history import History
from recollect.memory.rows import Rows, Window
from recollect.policies import AbstractPolicy
from recollect.refusals import DIRECTION
from recollect.step.solve import AbstractSolver, Auto


class AbstractNatural(AbstractAlgorithm):
    """An algorithm that measures directions by the Fisher matrix."""

    fisher_window: int | None = eqx.field(static=True, default=None)
    """K₂: iterations reused in the Fisher matrix; as many as in the gradient if not given."""
    damping: float = 0.1
    """ε, added to the diagonal of the Fisher matrix."""
    fisher: AbstractFisherKind = AutoFisher()
    """Which estimate of the Fisher matrix is taken."""
    independent_fisher: bool = eqx.field(static=True, default=False)
    """Collect a second batch each iteration for the Fisher matrix alone (assumption A.1.7)."""
    solver: AbstractSolver = Auto()
    """How the direction is solved for."""

    def __check_init__(self):
        if self.fisher_window is not None:
            remedy = "give the number of iterations to reuse, or leave it out to take window"
            check_count("fisher_window", self.fisher_window, remedy)
        remedy = "give a number above 0, for example 0.1; the Fisher matrix alone may be singular"
        check_number("damping", self.damping, low=0, open_low=True, remedy=remedy)

    @property
    def windows(self) -> tuple[int, int]:
        """(K₁, K₂)."""
        return self.window, self.window if self.fisher_window is None else self.fisher_window

    @property
    def capacity(self) -> int:
        """Batches that the history has to hold."""
        most = self.window if self.independent_fisher else max(self.windows)
        return max(most, self.critic_window or 1)

    def metric(self, rows: Rows) -> InverseFisher:
        """That of a natural step, the inverse Fisher matrix."""
        return InverseFisher.of(rows, self.damping)

    def empty_fisher_history(self, batch: Batch, policy: AbstractPolicy) -> History | None:
        """Room for independent batches, if they are asked for."""
        if not self.independent_fisher:
            return None
        return History.empty(batch, self.windows[1], self.weights, policy)


class FisherEstimate(eqx.Module):
    """The Fisher matrix, and what was needed for it."""

    fisher: Fisher
    window: Window
    history: History | None
    """The independent batches, the newest included."""
    usable: Bool[Array, ""]
    """Whether the newest independent batch could be stored."""


def estimate_fisher(
    algorithm: AbstractNatural,
    start: UpdateStart,
    window: Window,
    rollout: Rollout,
    acted: AbstractPolicy,
    history: History | None,
) -> FisherEstimate:
    """Equation (5) without damping.

    Args:
        algorithm: the settings.
        start: where the update starts.
        window: of the gradient, whose shares also serve here unless K₂ is given.
        rollout: holds the independent batch, if one was asked for.
        acted: the policy that collected it.
        history: of independent batches.
    """
    if not algorithm.independent_fisher:
        if algorithm.fisher_window is not None:
            window = start.rows.uniform_window(algorithm.fisher_window)
        return FisherEstimate(
            fisher=algorithm.fisher(window),
            window=window,
            history=None,
            usable=jnp.array(True),
        )
    if rollout.fisher_batch is None or history is None:
        raise ValueError(
            "independent_fisher=True needs a second batch; give the rollout a fisher_batch."
        )
    history, usable = history.push(rollout.fisher_batch, acted, algorithm.weights)
    rows = weigh(algorithm, in_use(algorithm, history), start.state.policy)
    window = rows.uniform_window(algorithm.windows[1])
    return FisherEstimate(
        fisher=algorithm.fisher(window), window=window, history=history, usable=usable
    )


def forget_unusable_fisher(history: History | None, refused: Int[Array, ""]) -> History | None:
    """The independent batches without one that made a direction non-finite.

    Only the newest can be new to a direction that has become so.
    """
    if history is None:
        return None
    newest = jnp.arange(len(history.batches.mask)) == 0
    return history.without(newest & (refused == DIRECTION))


def with_usable(start: UpdateStart, usable: Bool[Array, ""]) -> UpdateStart:
    """The start of an update that is refused if either batch could not be stored."""
    return dataclasses.replace(start, usable=start.usable & usable)
