"""Policy gradient, vanilla (VPG) and with reuse of past trajectories (RPG)."""

import jax.numpy as jnp

from recollect.algorithms.base import (
    AbstractAlgorithm,
    Info,
    State,
    check_settings,
    initial_state,
    mean_kl,
    push_and_recall,
    reweighed_gradient,
    step,
)


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

        ess, ess_by_age = recalled.effective_sample_size()
        info = Info(
            refused=refused,
            ess=ess,
            ess_by_age=ess_by_age,
            max_weight=recalled.weights.max(),
            gradient_norm=jnp.linalg.norm(gradient),
            direction_norm=jnp.linalg.norm(gradient),
            kl=mean_kl(state.policy, policy, history.batches),
            solver_residual=jnp.zeros(()),
            solver_steps=jnp.zeros((), jnp.int32),
        )
        return State(policy, optimizer, history, None, state.direction, state.iteration + 1), info


def VPG(**settings) -> PG:
    """Vanilla policy gradient: only the current iteration's trajectories."""
    return PG(window=1, **settings)


def RPG(window: int = 10, **settings) -> PG:
    """Policy gradient that reuses the last `window` iterations."""
    return PG(window=window, **settings)
