"""Pendulum, step by step equal to Gymnasium's `Pendulum-v1` (semi-implicit Euler, no ending but the clock)."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.envs.base import AbstractEnv, Actions, Step, check_max_steps

GRAVITY = 10.0
MASS = 1.0
LENGTH = 1.0
TORQUE_LIMIT = 2.0
SPIN_LIMIT = 8.0
INTERVAL = 0.05
SPIN_COST = 0.1
TORQUE_COST = 0.001
START = (math.pi, 1.0)
"""Largest angle and angular velocity of a first state."""


class PendulumState(eqx.Module):
    values: Float[Array, "2"]
    """Angle from upright, not wrapped, and angular velocity."""
    time: Int[Array, ""]


class Pendulum(AbstractEnv):
    """Swing a rod up and hold it there with a torque too weak to lift it at once; torques beyond ±2 act, and cost, as ±2."""

    max_steps: int = eqx.field(static=True, default=200)
    observation_size: int = eqx.field(static=True, default=3, init=False)
    actions: Actions = eqx.field(
        static=True, default=Actions(size=1, bounds=((-TORQUE_LIMIT, TORQUE_LIMIT),)), init=False
    )

    def __check_init__(self):
        check_max_steps(self.max_steps)

    def reset(self, key: PRNGKeyArray) -> PendulumState:
        largest = jnp.array(START)
        return PendulumState(
            jax.random.uniform(key, (2,), minval=-largest, maxval=largest), jnp.zeros((), jnp.int32)
        )

    def observe(self, state: PendulumState) -> Float[Array, "3"]:
        angle, spin = state.values
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), spin])

    def step(self, key: PRNGKeyArray, state: PendulumState, action: Float[Array, "1"]) -> Step:
        """The state before the step pays: −(angle² + 0.1 spin² + 0.001 torque²), the angle taken in [−π, π)."""
        del key
        angle, spin = state.values
        torque = jnp.clip(action[0].astype(angle.dtype), -TORQUE_LIMIT, TORQUE_LIMIT)
        from_upright = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = from_upright**2 + SPIN_COST * spin**2 + TORQUE_COST * torque**2
        angular = 1.5 * GRAVITY / LENGTH * jnp.sin(angle) + 3.0 / (MASS * LENGTH**2) * torque
        spin = jnp.clip(spin + INTERVAL * angular, -SPIN_LIMIT, SPIN_LIMIT)
        after = PendulumState(jnp.stack([angle + INTERVAL * spin, spin]), state.time + 1)
        return Step(
            state=after,
            observation=self.observe(after),
            reward=-cost,
            terminated=jnp.array(False),
            truncated=after.time >= self.max_steps,
        )
