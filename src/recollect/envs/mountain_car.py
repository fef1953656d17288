"""The continuous mountain car, equal step by step to Gymnasium's `MountainCarContinuous-v0`.

Gymnasium rounds its state to float32 after every step; here a state keeps its own precision.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.envs.base import AbstractEnv, Actions, Step, check_max_steps

FORCE_LIMIT = 1.0
POWER = 0.0015
SLOPE = 0.0025
SPEED_LIMIT = 0.07
LEFT_WALL = -1.2
RIGHT_WALL = 0.6
GOAL = 0.45
GOAL_REWARD = 100.0
FORCE_COST = 0.1
START = (-0.6, -0.4)
"""Least and largest position of a first state, which is at rest."""


class MountainCarState(eqx.Module):
    """Position, velocity and the number of steps taken."""

    values: Float[Array, "2"]
    """Position and velocity."""
    time: Int[Array, ""]


class MountainCarContinuous(AbstractEnv):
    """Drive a car out of a valley with an engine too weak to climb the slope at once.

    A step costs 0.1 force²; reaching the goal pays 100 and terminates the episode. As in Gymnasium,
    the force is clipped to ±1 for the motion, but not for its cost.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import MountainCarContinuous
        >>> env = MountainCarContinuous()
        >>> state = env.reset(jax.random.key(0))
        >>> step = env.step(jax.random.key(1), state, jnp.array([2.0]))
        >>> round(float(step.reward), 3)
        -0.4
    """

    max_steps: int = eqx.field(static=True, default=999)
    observation_size: int = eqx.field(static=True, default=2, init=False)
    actions: Actions = eqx.field(
        static=True, default=Actions(size=1, bounds=((-FORCE_LIMIT, FORCE_LIMIT),)), init=False
    )

    def __check_init__(self):
        check_max_steps(self.max_steps)

    def reset(self, key: PRNGKeyArray) -> MountainCarState:
        low, high = START
        position = jax.random.uniform(key, minval=low, maxval=high)
        values = jnp.stack([position, jnp.zeros_like(position)])
        return MountainCarState(values, jnp.zeros((), jnp.int32))

    def observe(self, state: MountainCarState) -> Float[Array, "2"]:
        return state.values

    def step(self, key: PRNGKeyArray, state: MountainCarState, action: Float[Array, "1"]) -> Step:
        del key
        position, velocity = state.values
        unclipped = action[0].astype(position.dtype)
        force = jnp.clip(unclipped, -FORCE_LIMIT, FORCE_LIMIT)
        velocity = jnp.clip(
            velocity + POWER * force - SLOPE * jnp.cos(3 * position), -SPEED_LIMIT, SPEED_LIMIT
        )
        position = jnp.clip(position + velocity, LEFT_WALL, RIGHT_WALL)
        # Only the left wall stops the car. The right one, beyond the goal, leaves its velocity.
        velocity = jnp.where((position <= LEFT_WALL) & (velocity < 0), 0.0, velocity)
        after = MountainCarState(jnp.stack([position, velocity]), state.time + 1)
        terminated = (position >= GOAL) & (velocity >= 0)
        return Step(
            state=after,
            observation=self.observe(after),
            reward=jnp.where(terminated, GOAL_REWARD, 0.0) - FORCE_COST * unclipped**2,
            terminated=terminated,
            truncated=after.time >= self.max_steps,
        )
