"""Natural policy gradient, vanilla (VNPG) and with reuse of past trajectories (RNPG), Algorithm 1 of the paper."""

import jax.numpy as jnp

from recollect.algorithms.base import (
    AbstractAscent,
    State,
    accept,
    common_failures,
    describe,
    judge,
    push_and_recall,
    reweighed_gradient,
)
from recollect.algorithms.natural import AbstractNatural, check_natural, reweighed_fisher


class NPG(AbstractAscent, AbstractNatural):
    """θ ← Proj(θ + α (F̂ + εI)⁻¹ ∇̂η(θ)), Equation (6), gradient and Fisher matrix each over a window of its own."""

    def __check_init__(self):
        check_natural(self)

    def update(self, state, batch, key, oracle=None, fisher_batch=None):
        history, usable, recalled = push_and_recall(self, state.history, state.policy, batch, oracle)
        advantages, estimates, critic = judge(self, state, history, recalled, oracle, key)
        gradient = self.scaled(reweighed_gradient(self, recalled, advantages))
        fisher, fisher_history, also_usable = reweighed_fisher(self, state, recalled, fisher_batch, oracle)
        solution = self.solver(fisher, gradient, self.damping, state.direction)
        moved = (*self.ascend(state, solution.direction), solution.direction)
        failures = common_failures(usable & also_usable, gradient, solution.direction, moved[0])
        (policy, optimizer, direction), refused = accept((state.policy, state.optimizer, state.direction), moved, failures, batch)

        solved = dict(solver_residual=solution.residual, solver_steps=solution.steps, damping=jnp.asarray(self.damping))
        info = describe(recalled, history, state.policy, policy, gradient, solution.direction, estimates, refused, **solved)
        return State(policy, optimizer, critic, history, fisher_history, direction, state.caution, state.iteration + 1), info


def VNPG(**settings) -> NPG:
    """Vanilla natural policy gradient: only the current iteration's trajectories."""
    return NPG(window=1, fisher_window=1, **settings)


def RNPG(window: int = 10, fisher_window: int | None = None, **settings) -> NPG:
    """Natural policy gradient that reuses the last `window` iterations (and `fisher_window` for the Fisher matrix)."""
    return NPG(window=window, fisher_window=fisher_window, **settings)
