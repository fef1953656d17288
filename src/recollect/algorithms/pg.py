"""Policy gradient, vanilla (VPG) and with reuse of past trajectories (RPG)."""

from recollect.algorithms.base import (
    AbstractAscent,
    accept,
    begin,
    check_settings,
    common_failures,
    describe,
    finish,
    initial_state,
    judge,
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
        start = begin(self, state, batch, oracle)
        advantages, estimates, critic = judge(self, start.state, start.recalled, oracle, key)
        gradient = self.scaled(reweighed_gradient(self, start.recalled, advantages))
        moved = self.ascend(start.state, gradient)
        failures = common_failures(start.usable, gradient, gradient, moved[0])
        (policy, optimizer), refused = accept((state.policy, state.optimizer), moved, failures)
        info = describe(start, policy, gradient, gradient, estimates, refused)
        return finish(start, refused, policy=policy, optimizer=optimizer, critic=critic), info


def VPG(**settings) -> PG:
    """Vanilla policy gradient: only the current iteration's trajectories."""
    return PG(window=1, **settings)


def RPG(window: int = 10, **settings) -> PG:
    """Policy gradient that reuses the last `window` iterations."""
    return PG(window=window, **settings)
