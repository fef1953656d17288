"""Policy gradient, vanilla (VPG) and with reuse of past trajectories (RPG)."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from recollect.algorithms.ascent import PERSISTENCE, AbstractAscent
from recollect.algorithms.base import initial_state
from recollect.algorithms.naming import named
from recollect.algorithms.reuse import choose_shares, estimate_advantages, refit_critic
from recollect.algorithms.update import begin, common_failures, describe, finish, keep_or_revert
from recollect.estimate.gradient import policy_gradient
from recollect.tree import flatten


class AscentState(eqx.Module):
    """What PG and PPO keep beside the common state."""

    optimizer: Any
    """State of the Optax transformation."""


class GradientInfo(eqx.Module):
    """What PG measures beside the common figures."""

    gradient_norm: Float[Array, ""]
    """Of the reweighed gradient."""
    direction_norm: Float[Array, ""]
    """Of what the optimizer was given: the gradient."""


class PG(AbstractAscent):
    """θ ← Proj(θ + α ∇̂η(θ)), the gradient averaged over the last `window` iterations.

    Example:
        >>> import recollect as rc
        >>> rc.PG(window=4, learning_rate=0.05) == rc.RPG(window=4, learning_rate=0.05)
        True
    """

    learning_rate: float | Callable[[Int[Array, ""]], Float[Array, ""]] = 3e-3
    """α: a number, or (in Python) an Optax schedule of the iteration."""
    optimizer: str | optax.GradientTransformation = eqx.field(static=True, default="adam")
    """`sgd`, `adam`, `adam:EPSILON`, or (in Python) any Optax transformation that descends; α
    multiplies its updates."""

    @property
    def persistence(self):
        return PERSISTENCE

    def init(self, policy, batch, key):
        own = AscentState(optimizer=self.transformation().init(flatten(policy)[0]))
        return initial_state(self, policy, batch, key, own)

    def update(self, state, rollout, key):
        start = begin(self, state, rollout)
        advantages, estimates = estimate_advantages(self, start)
        critic = refit_critic(self, start, estimates, key)
        chosen = choose_shares(self, start, advantages)
        window = start.rows.window(chosen.shares)
        gradient = self.scaled(policy_gradient(window, advantages))
        policy, optimizer = self.ascend(
            start.state, state.own.optimizer, gradient, chosen.step_scale
        )

        failures = common_failures(start.usable, gradient, gradient, policy)
        old = (state.policy, state.own)
        new = (policy, AscentState(optimizer=optimizer))
        (policy, own), refused = keep_or_revert(old, new, failures)

        norm = jnp.linalg.norm(gradient)
        measured = GradientInfo(gradient_norm=norm, direction_norm=norm)
        info = describe(start, chosen, policy, estimates, refused, measured)
        return finish(start, chosen, refused, policy=policy, critic=critic, own=own), info


VPG = named(
    "VPG",
    PG,
    """Vanilla policy gradient: only the current iteration's trajectories.

    Args:
        settings: the fields of `PG`, by name.

    Returns:
        A `PG`.

    Example:
        >>> import recollect as rc
        >>> rc.VPG(learning_rate=0.05).window
        1
    """,
    window=1,
)
RPG = named(
    "RPG",
    PG,
    """Policy gradient that reuses the last `window` iterations.

    Args:
        settings: the fields of `PG`, by name.

    Returns:
        A `PG`.

    Example:
        >>> import recollect as rc
        >>> rc.RPG(window=4, optimizer="adam").window
        4
    """,
    window=5,
)
