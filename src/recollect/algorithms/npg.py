"""Natural policy gradient, vanilla (VNPG) and with reuse of past trajectories (RNPG), Algorithm 1 of the paper."""

import jax.numpy as jnp

from recollect.algorithms.base import (
    UNSOLVED,
    AbstractAscent,
    accept,
    begin,
    common_failures,
    describe,
    finish,
    judge,
    reweighed_gradient,
)
from recollect.algorithms.natural import AbstractNatural, check_natural, reweighed_fisher


class NPG(AbstractAscent, AbstractNatural):
    """θ ← Proj(θ + α (F̂ + εI)⁻¹ ∇̂η(θ)), Equation (6), gradient and Fisher matrix each over a window of its own."""

    def __check_init__(self):
        check_natural(self)

    def update(self, state, batch, key, oracle=None, fisher_batch=None):
        start = begin(self, state, batch, oracle)
        advantages, estimates, critic = judge(self, start.state, start.recalled, oracle, key)
        gradient = self.scaled(reweighed_gradient(self, start.recalled, advantages))
        fisher, start = reweighed_fisher(self, start, state.policy, fisher_batch, oracle)
        solution = self.solver(fisher, gradient, self.damping, state.direction)
        moved = (*self.ascend(start.state, solution.direction), solution.direction)
        failures = [
            *common_failures(start.usable, gradient, solution.direction, moved[0]),
            (UNSOLVED, ~solution.solved),
        ]
        (policy, optimizer, direction), refused = accept(
            (state.policy, state.optimizer, state.direction), moved, failures
        )

        solved = dict(
            solver_residual=solution.residual,
            solver_steps=solution.steps,
            damping=jnp.asarray(self.damping),
        )
        info = describe(start, policy, gradient, solution.direction, estimates, refused, **solved)
        return finish(
            start, refused, policy=policy, optimizer=optimizer, critic=critic, direction=direction
        ), info


def VNPG(**settings) -> NPG:
    """Vanilla natural policy gradient: only the current iteration's trajectories."""
    return NPG(window=1, fisher_window=1, **settings)


def RNPG(window: int = 10, fisher_window: int | None = None, **settings) -> NPG:
    """Natural policy gradient that reuses the last `window` iterations (and `fisher_window` for the Fisher matrix)."""
    return NPG(window=window, fisher_window=fisher_window, **settings)
