"""Acrobot, step by step equal to Gymnasium's `Acrobot-v1` (the dynamics of Sutton and Barto's book, one Runge–Kutta step of 0.2 s)."""

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
"""Where along a link its mass is; the two links are alike."""
INERTIA = 1.0
COUPLING = MASS * LENGTH * CENTRE
ELBOW_INERTIA = MASS * CENTRE**2 + INERTIA
SHOULDER_INERTIA = 2 * ELBOW_INERTIA + MASS * LENGTH**2
SPIN_LIMITS = (4 * math.pi, 9 * math.pi)
INTERVAL = 0.2
TARGET_HEIGHT = 1.0
START = 0.1


class AcrobotState(eqx.Module):
    values: Float[Array, "4"]
    """Angle of the first link from hanging, of the second from the first, both in [−π, π]; then their angular velocities."""
    time: Int[Array, ""]


class Acrobot(AbstractEnv):
    """Swing the tip of two hanging links up by a torque of −1, 0 or 1 (actions 0, 1, 2) at the elbow; each step before costs one."""

    max_steps: int = eqx.field(static=True, default=500)
    observation_size: int = eqx.field(static=True, default=6, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=3), init=False)

    def __check_init__(self):
        check_max_steps(self.max_steps)

    def reset(self, key: PRNGKeyArray) -> AcrobotState:
        return AcrobotState(
            jax.random.uniform(key, (4,), minval=-START, maxval=START), jnp.zeros((), jnp.int32)
        )

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
    """The state one interval later under a constant torque, by the classical fourth-order Runge–Kutta rule."""
    first = rate(values, torque)
    second = rate(values + INTERVAL / 2 * first, torque)
    third = rate(values + INTERVAL / 2 * second, torque)
    fourth = rate(values + INTERVAL * third, torque)
    return values + INTERVAL / 6 * (first + 2 * second + 2 * third + fourth)


def rate(values: Float[Array, "4"], torque: Float[Array, ""]) -> Float[Array, "4"]:
    """Time derivative of the state: the accelerations α solve M(θ) α = (0, torque) − load(θ, ω), by elimination of the first."""
    shoulder, elbow, shoulder_spin, elbow_spin = values
    bend, twist = COUPLING * jnp.cos(elbow), COUPLING * jnp.sin(elbow)
    whole, shared = (
        SHOULDER_INERTIA + 2 * bend,
        ELBOW_INERTIA + bend,
    )  # M = [[whole, shared], [shared, ELBOW_INERTIA]]
    lower_weight = MASS * CENTRE * GRAVITY * jnp.sin(shoulder + elbow)
    weight = MASS * (CENTRE + LENGTH) * GRAVITY * jnp.sin(shoulder) + lower_weight
    shoulder_load = weight - twist * elbow_spin * (elbow_spin + 2 * shoulder_spin)
    elbow_load = lower_weight + twist * shoulder_spin**2
    elbow_rate = (torque - elbow_load + shared / whole * shoulder_load) / (
        ELBOW_INERTIA - shared**2 / whole
    )
    shoulder_rate = -(shared * elbow_rate + shoulder_load) / whole
    return jnp.stack([shoulder_spin, elbow_spin, shoulder_rate, elbow_rate])


def wrap(angle: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The angle less the fewest whole turns that bring it into [−π, π]; an angle already inside, either end included, stays as it is."""
    turns = jnp.ceil((jnp.abs(angle) - math.pi) / (2 * math.pi))
    return angle - jnp.sign(angle) * turns * (2 * math.pi)
