"""What NPG and TRPO share: a natural direction (F̂ + εI)⁻¹ ∇̂η, each factor over a window of its own."""

import dataclasses
from typing import Literal, get_args

import equinox as eqx

from recollect.algorithms.base import (
    AbstractAlgorithm,
    Start,
    check_settings,
    initial_state,
    push,
    weigh,
)
from recollect.batch import Batch
from recollect.checks import check_count, check_name, check_number
from recollect.envs.base import AbstractOracle
from recollect.estimate.fisher import Fisher
from recollect.memory.rows import Recall
from recollect.policies import AbstractPolicy
from recollect.policies.scores import expected_score_matrix
from recollect.step.solve import Solver

FisherKind = Literal["score", "expected"]


class AbstractNatural(AbstractAlgorithm):
    """An algorithm that measures directions by the Fisher matrix."""

    fisher_window: int | None = eqx.field(static=True, default=None)
    """K₂: iterations reused in the Fisher matrix; as many as in the gradient if not given."""
    damping: float = 1e-3
    """ε, added to the diagonal of the Fisher matrix."""
    fisher: FisherKind = eqx.field(static=True, default="score")
    """`score`: outer products of the scores of the actions taken (the paper's). `expected`: the mean over actions in closed form."""
    independent_fisher: bool = eqx.field(static=True, default=False)
    """Collect a second batch each iteration for the Fisher matrix alone (assumption A.1.7)."""
    solver: Solver = Solver()

    @property
    def windows(self) -> tuple[int, int]:
        """(K₁, K₂)."""
        return self.window, self.window if self.fisher_window is None else self.fisher_window

    def init(self, policy, batch, key):
        if self.independent_fisher:
            return initial_state(self, policy, batch, key, *self.windows)
        return initial_state(self, policy, batch, key, max(self.windows))


def check_natural(algorithm: AbstractNatural) -> None:
    """Raise on settings that no natural direction could come from."""
    check_settings(algorithm)
    if algorithm.fisher_window is not None:
        check_count(
            "fisher_window",
            algorithm.fisher_window,
            "give the number of iterations to reuse, or leave it out to take window",
        )
    remedy = "give a number above 0, for example 1e-3; the Fisher matrix alone may be singular"
    check_number("damping", algorithm.damping, low=0, open_low=True, remedy=remedy)
    check_name("fisher", algorithm.fisher, get_args(FisherKind))


def reweighed_fisher(
    algorithm: AbstractNatural,
    start: Start,
    acted: AbstractPolicy,
    fisher_batch: Batch | None,
    oracle: AbstractOracle | None,
) -> tuple[Fisher, Start]:
    """The Fisher matrix; and the start with `fisher_batch`, which the policy that `acted` collected, in a history of its own."""
    policy = start.state.policy
    if not algorithm.independent_fisher:
        return _fisher(algorithm, start.recalled, policy), start
    if fisher_batch is None or start.state.fisher_history is None:
        raise ValueError(
            "independent_fisher=True needs a second batch; pass fisher_batch to update."
        )
    history, usable = push(algorithm, start.state.fisher_history, acted, fisher_batch, oracle)
    recalled = weigh(algorithm, history, policy, oracle)
    state = dataclasses.replace(start.state, fisher_history=history)
    start = dataclasses.replace(start, state=state, usable=start.usable & usable)
    return _fisher(algorithm, recalled, policy), start


def _fisher(algorithm: AbstractNatural, recalled: Recall, policy: AbstractPolicy) -> Fisher:
    """Equation (5) without damping, over the newest `fisher_window` batches.

    The closed form has integrated the actions out, so that how likely they were no longer concerns it.
    """
    window = algorithm.windows[1]
    bound, count = recalled.packing.prefix(window)
    if algorithm.fisher == "score":
        return Fisher(recalled.scores.rows(0, bound), recalled.coefficients(window), count)
    scores = expected_score_matrix(policy, recalled.observations[:bound])
    return Fisher(scores, recalled.state_coefficients(window), count)
