"""Natural policy gradient, vanilla (VNPG) and with reuse of past trajectories (RNPG), Algorithm 1 of the paper."""

from typing import Literal, get_args

import equinox as eqx
import jax.numpy as jnp

from recollect.algorithms.base import (
    AbstractAlgorithm,
    State,
    check_settings,
    describe,
    initial_state,
    push_and_recall,
    reweighed_gradient,
    step,
)
from recollect.checks import check_count, check_name, check_number
from recollect.fisher import Fisher
from recollect.recall import Recall
from recollect.scores import expected_score_matrix
from recollect.solve import Solver

FisherKind = Literal["score", "expected"]


class NPG(AbstractAlgorithm):
    """θ ← Proj(θ + α (F̂ + εI)⁻¹ ∇̂η(θ)), Equation (6), gradient and Fisher matrix each over a window of its own."""

    fisher_window: int | None = eqx.field(static=True, default=None)
    """K₂: iterations reused in the Fisher matrix; as many as in the gradient if not given."""
    damping: float = 1e-3
    """ε, added to the diagonal of the Fisher matrix."""
    fisher: FisherKind = eqx.field(static=True, default="score")
    """`score`: outer products of the scores of the actions taken (the paper's). `expected`: the mean over actions in closed form."""
    independent_fisher: bool = eqx.field(static=True, default=False)
    """Collect a second batch each iteration for the Fisher matrix alone (assumption A.1.7)."""
    solver: Solver = Solver()

    def __check_init__(self):
        check_settings(self)
        if self.fisher_window is not None:
            check_count("fisher_window", self.fisher_window, "give the number of iterations to reuse, or leave it out to take window")
        check_number(
            "damping",
            self.damping,
            low=0,
            open_low=True,
            remedy="give a number above 0, for example 1e-3; the Fisher matrix alone may be singular",
        )
        check_name("fisher", self.fisher, get_args(FisherKind))

    @property
    def windows(self) -> tuple[int, int]:
        """(K₁, K₂)."""
        return self.window, self.window if self.fisher_window is None else self.fisher_window

    def init(self, policy, batch):
        if self.independent_fisher:
            return initial_state(self, policy, batch, *self.windows)
        return initial_state(self, policy, batch, max(self.windows), None)

    def update(self, state, batch, key, oracle=None, fisher_batch=None):
        del key
        history, usable, recalled = push_and_recall(self, state.history, state.policy, batch, oracle)
        fisher_history, fisher_recalled = None, recalled
        if self.independent_fisher:
            if fisher_batch is None or state.fisher_history is None:
                raise ValueError("independent_fisher=True needs a second batch; pass fisher_batch to update.")
            fisher_history, also_usable, fisher_recalled = push_and_recall(self, state.fisher_history, state.policy, fisher_batch, oracle)
            usable = usable & also_usable

        gradient = reweighed_gradient(self, history, recalled, state.policy, oracle)
        fisher = self._fisher(fisher_recalled, state.policy)
        solution = self.solver(fisher, gradient, self.damping, state.direction)
        policy, optimizer, refused = step(self, state, gradient, solution.direction, usable)

        info = describe(recalled, history, state.policy, policy, gradient, solution, refused)
        direction = jnp.where(refused > 0, state.direction, solution.direction)
        return State(policy, optimizer, history, fisher_history, direction, state.iteration + 1), info

    def _fisher(self, recalled: Recall, policy) -> Fisher:
        """Equation (5) without damping, over the newest `fisher_window` batches."""
        window = self.windows[1]
        bound, count = recalled.packing.prefix(window)
        coefficients = recalled.coefficients(window)
        if self.fisher == "score":
            return Fisher(recalled.scores.rows(0, bound), coefficients, count)
        scores = expected_score_matrix(policy, recalled.observations[:bound])
        rank = scores.shape[1] // bound
        return Fisher(scores, jnp.repeat(coefficients, rank), count * rank)


def VNPG(**settings) -> NPG:
    """Vanilla natural policy gradient: only the current iteration's trajectories."""
    return NPG(window=1, fisher_window=1, **settings)


def RNPG(window: int = 10, fisher_window: int | None = None, **settings) -> NPG:
    """Natural policy gradient that reuses the last `window` iterations (and `fisher_window` for the Fisher matrix)."""
    return NPG(window=window, fisher_window=fisher_window, **settings)
