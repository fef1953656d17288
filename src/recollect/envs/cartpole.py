"""CartPole, equal step by step to Gymnasium's `CartPole-v1` (explicit Euler, reward 1 per step)."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.envs.base import AbstractEnv, Actions, Step, check_max_steps

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.0 + POLE_MASS
HALF_LENGTH = 0.5
POLE_MOMENT = POLE_MASS * HALF_LENGTH
FORCE = 10.0
INTERVAL = 0.02
POSITION_LIMIT = 2.4
ANGLE_LIMIT = 12 * 2 * math.pi / 360


class CartPoleState(eqx.Module):
    """Positions, velocities and the number of steps taken."""

    values: Float[Array, "4"]
    """Position, velocity, angle, angular velocity."""
    time: Int[Array, ""]


class CartPole(AbstractEnv):
    """Balance a pole on a cart by pushing the cart left (action 0) or right (action 1).

    Every step pays 1. The episode terminates when the cart leaves ±2.4 or the pole ±12°. The paper
    truncates episodes after 200 steps, Gymnasium after 500.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import CartPole
        >>> env = CartPole(max_steps=200)
        >>> step = env.step(jax.random.key(1), env.reset(jax.random.key(0)), jnp.array(1))
        >>> float(step.reward), bool(step.terminated), bool(step.truncated)
        (1.0, False, False)
    """

    max_steps: int = eqx.field(static=True, default=500)
    observation_size: int = eqx.field(static=True, default=4, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=2), init=False)

    def __check_init__(self):
        check_max_steps(self.max_steps)

    def reset(self, key: PRNGKeyArray) -> CartPoleState:
        values = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return CartPoleState(values, jnp.zeros((), jnp.int32))

    def observe(self, state: CartPoleState) -> Float[Array, "4"]:
        return state.values

    def step(self, key: PRNGKeyArray, state: CartPoleState, action: Int[Array, ""]) -> Step:
        del key
        _, velocity, angle, spin = state.values
        force = jnp.where(action == 1, FORCE, -FORCE)
        cosine = jnp.cos(angle)
        sine = jnp.sin(angle)
        push = (force + POLE_MOMENT * spin**2 * sine) / TOTAL_MASS
        angular = (GRAVITY * sine - cosine * push) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine**2 / TOTAL_MASS)
        )
        linear = push - POLE_MOMENT * angular * cosine / TOTAL_MASS
        values = state.values + INTERVAL * jnp.stack([velocity, linear, spin, angular])
        after = CartPoleState(values, state.time + 1)
        return Step(
            state=after,
            observation=self.observe(after),
            reward=jnp.ones((), values.dtype),
            terminated=(jnp.abs(values[0]) > POSITION_LIMIT) | (jnp.abs(values[2]) > ANGLE_LIMIT),
            truncated=after.time >= self.max_steps,
        )
