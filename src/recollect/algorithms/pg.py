"""Policy gradient, vanilla (VPG) and with reuse of past trajectories (RPG)."""

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
from recollect.solve import Solution


class PG(AbstractAlgorithm):
    """θ ← Proj(θ + α ∇̂η(θ)), the gradient averaged over the last `window` iterations."""

    def __check_init__(self):
        check_settings(self)

    def init(self, policy, batch):
        return initial_state(self, policy, batch, self.window, None)

    def update(self, state, batch, key, oracle=None, fisher_batch=None):
        del key, fisher_batch
        history, usable, recalled = push_and_recall(self, state.history, state.policy, batch, oracle)
        gradient = reweighed_gradient(self, history, recalled, state.policy, oracle)
        policy, optimizer, refused = step(self, state, gradient, gradient, usable)
        solution = Solution(gradient, residual=jnp.zeros(()), steps=jnp.zeros((), jnp.int32))
        info = describe(recalled, history, state.policy, policy, gradient, solution, refused)
        return State(policy, optimizer, history, None, state.direction, state.iteration + 1), info


def VPG(**settings) -> PG:
    """Vanilla policy gradient: only the current iteration's trajectories."""
    return PG(window=1, **settings)


def RPG(window: int = 10, **settings) -> PG:
    """Policy gradient that reuses the last `window` iterations."""
    return PG(window=window, **settings)
