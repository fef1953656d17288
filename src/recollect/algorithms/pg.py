"""Policy gradient, vanilla (VPG) and with reuse of past trajectories (RPG)."""

from recollect.algorithms.base import (
    AbstractAscent,
    State,
    accept,
    check_settings,
    common_failures,
    describe,
    initial_state,
    judge,
    push_and_recall,
    reweighed_gradient,
)


class PG(AbstractAscent):
    """θ ← Proj(θ + α ∇̂η(θ)), the gradient averaged over the last `window` iterations."""

    def __check_init__(self):
        check_settings(self)

    def init(self, policy, batch, key):
        return initial_state(self, policy, batch, key, self.window)

    def update(self, state, batch, key, oracle=None, fisher_batch=None):
        del fisher_batch
        history, usable, recalled = push_and_recall(self, state.history, state.policy, batch, oracle)
        advantages, estimates, critic = judge(self, state, history, recalled, oracle, key)
        gradient = self.scaled(reweighed_gradient(self, recalled, advantages))
        moved = self.ascend(state, gradient)
        failures = common_failures(usable, gradient, gradient, moved[0])
        (policy, optimizer), refused = accept((state.policy, state.optimizer), moved, failures, batch)
        info = describe(recalled, history, state.policy, policy, gradient, gradient, estimates, refused)
        return State(policy, optimizer, critic, history, None, state.direction, state.caution, state.iteration + 1), info


def VPG(**settings) -> PG:
    """Vanilla policy gradient: only the current iteration's trajectories."""
    return PG(window=1, **settings)


def RPG(window: int = 10, **settings) -> PG:
    """Policy gradient that reuses the last `window` iterations."""
    return PG(window=window, **settings)
