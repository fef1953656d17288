"""Pendulum, equal step by step to Gymnasium's `Pendulum-v1`.

Integrated by the semi-implicit Euler rule. Episodes never terminate; they are only truncated.
"""

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
    """Angle, angular velocity and the number of steps taken."""

    values: Float[Array, "2"]
    """Angle from upright, not wrapped, and angular velocity."""
    time: Int[Array, ""]


class Pendulum(AbstractEnv):
    """Swing up a rod, with a torque too weak to lift it at once, and hold it upright.

    The action is the torque, clipped to ±2 both for the motion and for its cost. A step pays
    −(angle² + 0.1 angular velocity² + 0.001 torque²) of the state before it, with the angle from
    upright in [−π, π).

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import Pendulum
        >>> env = Pendulum()
        >>> state = env.reset(jax.random.key(0))
        >>> step = env.step(jax.random.key(1), state, jnp.array([0.5]))
        >>> step.observation.shape  # cosine and sine of the angle, angular velocity
        (3,)
        >>> bool(step.reward <= 0)
        True
    """

    max_steps: int = eqx.field(static=True, default=200)
    observation_size: int = eqx.field(static=True, default=3, init=False)
    actions: Actions = eqx.field(
        static=True, default=Actions(size=1, bounds=((-TORQUE_LIMIT, TORQUE_LIMIT),)), init=False
    )

    def __check_init__(self):
        check_max_steps(self.max_steps)

    def reset(self, key: PRNGKeyArray) -> PendulumState:
        largest = jnp.array(START)
        values = jax.random.uniform(key, (2,), minval=-largest, maxval=largest)
        return PendulumState(values, jnp.zeros((), jnp.int32))

    def observe(self, state: PendulumState) -> Float[Array, "3"]:
        angle, spin = state.values
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), spin])

    def step(self, key: PRNGKeyArray, state: PendulumState, action: Float[Array, "1"]) -> Step:
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
