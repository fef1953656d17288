"""MuJoCo's inverted pendulum as a formula, step by step equal to Gymnasium's `InvertedPendulum-v5`.

A cart of mass M at x carries a pole of mass m, hinged at the cart's centre. The model draws the pole
from (0, 0) to (0.001, 0.6), so its centre of mass, at the distance l, stands at φ = θ + `LEAN`. With
F = 100·clip(a, ±3), damping one in both joints and I the pole's moment about the hinge,

    (M + m) v̇ + m l cos φ ω̇ = F − v + m l ω² sin φ + f
      m l cos φ v̇ +       I ω̇ = m g l sin φ − ω

where f is the push of the rail's end. It acts while |x| > 1, is soft, and never pulls. At the depth
r = |x| − 1 on the side s = sign x, MuJoCo would have the cart move like a critically damped spring,
v̇ = −b v − s k d r, and weighs that against the motion without the push. With a⁰ the value of v̇ at
f = 0 and A = ∂v̇/∂f,

    f = −s max(0, s (a⁰ + b v) + k d r) / (A + A₀ (1 − d)/d),    b = 2/(d₁ τ),    k = 1/(d₁ τ)²

The impedance d(r) climbs along two parabolas from d₀ = 0.9 at the rail's end to d₁ = 0.95 a
millimetre beyond; A₀ is A at θ = 0. The model asks for τ = 0.02, one interval; MuJoCo raises it to
two, the least that it deems safe to integrate. The formula is the exact minimum of the problem that
MuJoCo's iterative solver stops some 1e-6 short of. It exists because no second constraint is ever
active: the hinge's limit at 90° is out of reach of a step that begins within the 0.2 rad of an episode.

Each step of the environment is two of the classical Runge-Kutta method, with the push taken anew in
every stage. Masses and moments follow from the model's capsules, of density 1000, and equal those of
the compiled model to rounding.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.envs.base import AbstractEnv, Actions, Step, check_max_steps


def capsule(radius: float, half_length: float, density: float = 1000.0) -> tuple[float, float]:
    """Mass of a cylinder with two half balls for ends, and its moment about an axis across its centre."""
    cylinder = density * math.pi * radius**2 * 2 * half_length
    ball = density * math.pi * radius**3 * 4 / 3
    across_cylinder = cylinder * (radius**2 / 4 + half_length**2 / 3)
    # Half a ball has its own centre 3/8 of the radius beyond the cylinder's end.
    across_ball = ball * (2 * radius**2 / 5 + half_length**2 + 3 * half_length * radius / 4)
    return cylinder + ball, across_cylinder + across_ball


GRAVITY = 9.81
GEAR = 100.0
CONTROL_LIMIT = 3.0
INTERVAL = 0.02
FRAME_SKIP = 2
ANGLE_LIMIT = 0.2
START = 0.01

CENTRE = math.hypot(0.0005, 0.3)
LEAN = math.atan2(0.0005, 0.3)
CART_MASS, _ = capsule(0.1, 0.1)
POLE_MASS, POLE_INERTIA = capsule(0.049, CENTRE)
TOTAL_MASS = CART_MASS + POLE_MASS
POLE_MOMENT = POLE_MASS * CENTRE
HINGE_INERTIA = POLE_INERTIA + POLE_MOMENT * CENTRE

RAIL_END = 1.0
RAIL_WIDTH = 0.001
LEAST_IMPEDANCE, LARGEST_IMPEDANCE = 0.9, 0.95
RAIL_DAMPING = 2 / (LARGEST_IMPEDANCE * 2 * INTERVAL)
RAIL_STIFFNESS = 1 / (LARGEST_IMPEDANCE * 2 * INTERVAL) ** 2
RESTING_MOBILITY = HINGE_INERTIA / (
    TOTAL_MASS * HINGE_INERTIA - (POLE_MOMENT * math.cos(LEAN)) ** 2
)

Scalar = Float[Array, ""]
Motion = tuple[Scalar, Scalar, Scalar, Scalar]


def rate(motion: Motion, force: Scalar) -> Motion:
    """Time derivative of (x, θ, v, ω) under a force on the cart: the equations of the module's head, solved for v̇ and ω̇.

    The determinant divides four times rather than being inverted once. XLA on the CPU stores a quotient
    but computes sums and products again wherever they are used, and ends up ten times slower with one inverse.
    """
    position, angle, velocity, spin = motion
    cosine, sine = jnp.cos(angle + LEAN), jnp.sin(angle + LEAN)
    coupling = POLE_MOMENT * cosine
    determinant = TOTAL_MASS * HINGE_INERTIA - coupling**2
    torque = POLE_MOMENT * GRAVITY * sine - spin
    pull = force - velocity + POLE_MOMENT * spin**2 * sine
    free = (HINGE_INERTIA * pull - coupling * torque) / determinant
    mobility = HINGE_INERTIA / determinant
    pull = pull + rail_push(position, velocity, free, mobility)
    linear = (HINGE_INERTIA * pull - coupling * torque) / determinant
    angular = (TOTAL_MASS * torque - coupling * pull) / determinant
    return velocity, spin, linear, angular


def rail_push(position: Scalar, velocity: Scalar, free: Scalar, mobility: Scalar) -> Scalar:
    """The force f of the rail's end on a cart whose acceleration without it is `free`, and `free` + `mobility`·f with it."""
    side, depth = jnp.sign(position), jnp.abs(position) - RAIL_END
    share = jnp.clip(depth / RAIL_WIDTH, 0, 1)
    climb = jnp.where(share < 0.5, 2 * share**2, 1 - 2 * (1 - share) ** 2)
    impedance = LEAST_IMPEDANCE + (LARGEST_IMPEDANCE - LEAST_IMPEDANCE) * climb
    excess = side * (free + RAIL_DAMPING * velocity) + RAIL_STIFFNESS * impedance * depth
    push = jnp.maximum(excess, 0) / (mobility + RESTING_MOBILITY * (1 - impedance) / impedance)
    return jnp.where(depth > 0, -side * push, 0)


def advance(motion: Motion, force: Scalar) -> Motion:
    """One interval of the classical Runge-Kutta method."""
    move = lambda speed, time: tuple(
        value + time * change for value, change in zip(motion, speed, strict=True)
    )
    first = rate(motion, force)
    second = rate(move(first, INTERVAL / 2), force)
    third = rate(move(second, INTERVAL / 2), force)
    fourth = rate(move(third, INTERVAL), force)
    return move(
        [
            (a + 2 * b + 2 * c + d) / 6
            for a, b, c, d in zip(first, second, third, fourth, strict=True)
        ],
        INTERVAL,
    )


class InvertedPendulumState(eqx.Module):
    values: Float[Array, "4"]
    """Position, angle, velocity, angular velocity."""
    time: Int[Array, ""]


class InvertedPendulum(AbstractEnv):
    """Balance a pole on a cart by pushing the cart with up to 300 newton; a step pays one unless the pole has fallen."""

    max_steps: int = eqx.field(static=True, default=1000)
    observation_size: int = eqx.field(static=True, default=4, init=False)
    actions: Actions = eqx.field(
        static=True, default=Actions(size=1, bounds=((-CONTROL_LIMIT, CONTROL_LIMIT),)), init=False
    )

    def __check_init__(self):
        check_max_steps(self.max_steps)

    def reset(self, key: PRNGKeyArray) -> InvertedPendulumState:
        return InvertedPendulumState(
            jax.random.uniform(key, (4,), minval=-START, maxval=START), jnp.zeros((), jnp.int32)
        )

    def observe(self, state: InvertedPendulumState) -> Float[Array, "4"]:
        return state.values

    def step(
        self, key: PRNGKeyArray, state: InvertedPendulumState, action: Float[Array, "1"]
    ) -> Step:
        del key
        force = GEAR * jnp.clip(action[0], -CONTROL_LIMIT, CONTROL_LIMIT)
        position, angle, velocity, spin = state.values
        motion = (position, angle, velocity, spin)
        for _ in range(FRAME_SKIP):
            motion = advance(motion, force)
        after = InvertedPendulumState(jnp.stack(motion), state.time + 1)
        fallen = (jnp.abs(after.values[1]) > ANGLE_LIMIT) | ~jnp.isfinite(after.values).all()
        return Step(
            state=after,
            observation=self.observe(after),
            reward=jnp.where(fallen, 0, jnp.ones_like(position)),
            terminated=fallen,
            truncated=after.time >= self.max_steps,
        )
