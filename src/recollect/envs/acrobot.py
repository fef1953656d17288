"""Acrobot, equal step by step to Gymnasium's `Acrobot-v1`.

The dynamics are those of Sutton and Barto's book ("book" in Gymnasium, not "nips"), integrated with
one Runge–Kutta step of 0.2 s.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.envs.base import AbstractEnv, Actions, Step, check_max_steps

GRAVITY = 9.8
MASS = 1.0
LENGTH = 1.0
CENTRE = 0.5
"""Distance of a link's centre of mass from its upper joint. The two links are alike."""
INERTIA = 1.0
COUPLING = MASS * LENGTH * CENTRE
ELBOW_INERTIA = MASS * CENTRE**2 + INERTIA
SHOULDER_INERTIA = 2 * ELBOW_INERTIA + MASS * LENGTH**2
SPIN_LIMITS = (4 * math.pi, 9 * math.pi)
"""Largest angular velocity of the first and of the second joint."""
INTERVAL = 0.2
TARGET_HEIGHT = 1.0
START = 0.1
"""The four numbers of a first state are uniform in ±START."""


class AcrobotState(eqx.Module):
    """Angles, angular velocities and the number of steps taken."""

    values: Float[Array, "4"]
    """Angle of the first link from hanging, angle of the second from the first, both in [−π, π];
    then their angular velocities."""
    time: Int[Array, ""]


class Acrobot(AbstractEnv):
    """Swing the tip of two hanging links above a line with a motor at the elbow.

    Actions 0, 1, 2 apply a torque of −1, 0, 1. A step costs one until the tip is one link's length
    above the upper joint, where the episode terminates.

    Example:
        >>> import jax
        >>> from recollect import Acrobot
        >>> env = Acrobot()
        >>> state = env.reset(jax.random.key(0))
        >>> env.observe(state).shape  # cosine and sine of both angles, angular velocities
        (6,)
    """

    max_steps: int = eqx.field(static=True, default=500)
    observation_size: int = eqx.field(static=True, default=6, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=3), init=False)

    def __check_init__(self):
        check_max_steps(self.max_steps)

    def reset(self, key: PRNGKeyArray) -> AcrobotState:
        values = jax.random.uniform(key, (4,), minval=-START, maxval=START)
        return AcrobotState(values, jnp.zeros((), jnp.int32))

    def observe(self, state: AcrobotState) -> Float[Array, "6"]:
        shoulder, elbow, *spins = state.values
        return jnp.stack(
            [jnp.cos(shoulder), jnp.sin(shoulder), jnp.cos(elbow), jnp.sin(elbow), *spins]
        )

    def step(self, key: PRNGKeyArray, state: AcrobotState, action: Int[Array, ""]) -> Step:
        del key
        torque = (action - 1).astype(state.values.dtype)
        values = integrate(state.values, torque)
        limits = jnp.array(SPIN_LIMITS, values.dtype)
        values = jnp.concatenate([wrap(values[:2]), jnp.clip(values[2:], -limits, limits)])
        after = AcrobotState(values, state.time + 1)
        terminated = -jnp.cos(values[0]) - jnp.cos(values[0] + values[1]) > TARGET_HEIGHT
        return Step(
            state=after,
            observation=self.observe(after),
            reward=jnp.where(terminated, 0.0, -1.0).astype(values.dtype),
            terminated=terminated,
            truncated=after.time >= self.max_steps,
        )


def integrate(values: Float[Array, "4"], torque: Float[Array, ""]) -> Float[Array, "4"]:
    """The state one interval later, by the classical fourth-order Runge–Kutta rule."""
    first = rate(values, torque)
    second = rate(values + INTERVAL / 2 * first, torque)
    third = rate(values + INTERVAL / 2 * second, torque)
    fourth = rate(values + INTERVAL * third, torque)
    return values + INTERVAL / 6 * (first + 2 * second + 2 * third + fourth)


def rate(values: Float[Array, "4"], torque: Float[Array, ""]) -> Float[Array, "4"]:
    """Time derivative of the state.

    The angular accelerations α solve M(θ) α = (0, torque) − load(θ, ω) with the symmetric matrix
    M = [[m₁₁, m₁₂], [m₁₂, `ELBOW_INERTIA`]]; the shoulder's is eliminated first.
    """
    shoulder, elbow, shoulder_spin, elbow_spin = values
    coupling_cosine = COUPLING * jnp.cos(elbow)
    coupling_sine = COUPLING * jnp.sin(elbow)
    m11 = SHOULDER_INERTIA + 2 * coupling_cosine
    m12 = ELBOW_INERTIA + coupling_cosine
    lower_weight = MASS * CENTRE * GRAVITY * jnp.sin(shoulder + elbow)
    weight = MASS * (CENTRE + LENGTH) * GRAVITY * jnp.sin(shoulder) + lower_weight
    shoulder_load = weight - coupling_sine * elbow_spin * (elbow_spin + 2 * shoulder_spin)
    elbow_load = lower_weight + coupling_sine * shoulder_spin**2
    elbow_acceleration = (torque - elbow_load + m12 / m11 * shoulder_load) / (
        ELBOW_INERTIA - m12**2 / m11
    )
    shoulder_acceleration = -(m12 * elbow_acceleration + shoulder_load) / m11
    return jnp.stack([shoulder_spin, elbow_spin, shoulder_acceleration, elbow_acceleration])


def wrap(angle: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The angle minus the fewest full turns that bring it into [−π, π].

    An angle that is already inside, either end included, is returned unchanged, as in Gymnasium.
    """
    turns = jnp.ceil((jnp.abs(angle) - math.pi) / (2 * math.pi))
    return angle - jnp.sign(angle) * turns * (2 * math.pi)
