"""MuJoCo's inverted pendulum in closed form, equal step by step to `InvertedPendulum-v5`.

A cart of mass M at x carries a pole of mass m, hinged at the cart's centre. MuJoCo's model draws
the pole from (0, 0) to (0.001, 0.6), so its centre of mass, at the distance l, is at the angle
φ = θ + `LEAN`. With F = 100·clip(a, ±3), damping 1 in both joints and I the pole's moment of
inertia about the hinge,

    (M + m) v̇ + m l cos φ ω̇ = F − v + m l ω² sin φ + f
      m l cos φ v̇ +       I ω̇ = m g l sin φ − ω

where f is the contact force of the rail's end. It acts while |x| > 1, is soft, and never pulls. At
the depth r = |x| − 1 on the side s = sign x, MuJoCo's target is a critically damped spring,
v̇ = −b v − s k d r, which it weighs against the motion without contact. With a⁰ the value of v̇ at
f = 0 and A = ∂v̇/∂f,

    f = −s max(0, s (a⁰ + b v) + k d r) / (A + A₀ (1 − d)/d),    b = 2/(d₁ τ),    k = 1/(d₁ τ)²

The impedance d(r) rises along two parabolas from d₀ = 0.9 at the rail's end to d₁ = 0.95 a
millimetre beyond; A₀ is A at θ = 0. The model asks for τ = 0.02, one interval; MuJoCo raises it to
two intervals, its minimum for stable integration. The formula is the exact minimum of the problem
that MuJoCo's iterative solver stops some 1e-6 short of. It exists because no second constraint is
ever active: a step that begins within an episode's 0.2 rad cannot reach the hinge's limit at 90°.

Each step of the environment is two steps of the classical Runge–Kutta method, with the contact
force computed anew in every stage. Masses and moments follow from the model's capsules, of density
1000, and equal those of the compiled model up to rounding.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.envs.base import AbstractEnv, Actions, Step, check_max_steps


def capsule(radius: float, half_length: float, density: float = 1000.0) -> tuple[float, float]:
    """Mass of a capsule and its moment of inertia about an axis across its centre.

    A capsule is a cylinder with a hemisphere at each end.

    Args:
        radius: of the cylinder and the hemispheres.
        half_length: of the cylinder alone.
        density: mass per volume; MuJoCo's default.
    """
    cylinder = density * math.pi * radius**2 * 2 * half_length
    ball = density * math.pi * radius**3 * 4 / 3
    across_cylinder = cylinder * (radius**2 / 4 + half_length**2 / 3)
    # The centre of mass of a hemisphere is 3/8 of the radius beyond the cylinder's end.
    across_ball = ball * (2 * radius**2 / 5 + half_length**2 + 3 * half_length * radius / 4)
    return cylinder + ball, across_cylinder + across_ball


GRAVITY = 9.81
GEAR = 100.0
CONTROL_LIMIT = 3.0
INTERVAL = 0.02
FRAME_SKIP = 2
ANGLE_LIMIT = 0.2
START = 0.01
"""The four numbers of a first state are uniform in ±START."""

CENTRE = math.hypot(0.0005, 0.3)
LEAN = math.atan2(0.0005, 0.3)
CART_MASS, _ = capsule(0.1, 0.1)
POLE_MASS, POLE_INERTIA = capsule(0.049, CENTRE)
TOTAL_MASS = CART_MASS + POLE_MASS
POLE_MOMENT = POLE_MASS * CENTRE
HINGE_INERTIA = POLE_INERTIA + POLE_MOMENT * CENTRE

RAIL_END = 1.0
RAIL_WIDTH = 0.001
LEAST_IMPEDANCE = 0.9
LARGEST_IMPEDANCE = 0.95
# b and k of the head of this module, with τ raised to two intervals.
RAIL_DAMPING = 2 / (LARGEST_IMPEDANCE * 2 * INTERVAL)
RAIL_STIFFNESS = 1 / (LARGEST_IMPEDANCE * 2 * INTERVAL) ** 2
RESTING_MOBILITY = HINGE_INERTIA / (
    TOTAL_MASS * HINGE_INERTIA - (POLE_MOMENT * math.cos(LEAN)) ** 2
)
"""A₀: acceleration of the cart per unit of force at θ = 0."""

Scalar = Float[Array, ""]
Motion = tuple[Scalar, Scalar, Scalar, Scalar]
"""Position x, angle θ, velocity v, angular velocity ω."""


def rate(motion: Motion, force: Scalar) -> Motion:
    """Time derivative of (x, θ, v, ω) under a force on the cart.

    It solves the two equations at the head of this module for v̇ and ω̇, first without and then with
    the contact force of the rail's end.
    """
    position, angle, velocity, spin = motion
    cosine = jnp.cos(angle + LEAN)
    sine = jnp.sin(angle + LEAN)
    coupling = POLE_MOMENT * cosine
    determinant = TOTAL_MASS * HINGE_INERTIA - coupling**2
    torque = POLE_MOMENT * GRAVITY * sine - spin
    pull = force - velocity + POLE_MOMENT * spin**2 * sine
    # Four divisions by the determinant instead of four products with its inverse: XLA on the CPU
    # stores a quotient but recomputes sums and products at every use, which is ten times slower.
    free = (HINGE_INERTIA * pull - coupling * torque) / determinant
    mobility = HINGE_INERTIA / determinant
    pull = pull + rail_push(position, velocity, free, mobility)
    linear = (HINGE_INERTIA * pull - coupling * torque) / determinant
    angular = (TOTAL_MASS * torque - coupling * pull) / determinant
    return velocity, spin, linear, angular


def rail_push(position: Scalar, velocity: Scalar, free: Scalar, mobility: Scalar) -> Scalar:
    """The contact force f of the rail's end on the cart.

    Args:
        position: of the cart; the force is zero between the rail's ends.
        velocity: of the cart.
        free: a⁰, the cart's acceleration without the force.
        mobility: A, so that the acceleration with the force is a⁰ + A f.
    """
    side = jnp.sign(position)
    depth = jnp.abs(position) - RAIL_END
    # The impedance rises over the first millimetre of depth, along two parabolas.
    progress = jnp.clip(depth / RAIL_WIDTH, 0, 1)
    rise = jnp.where(progress < 0.5, 2 * progress**2, 1 - 2 * (1 - progress) ** 2)
    impedance = LEAST_IMPEDANCE + (LARGEST_IMPEDANCE - LEAST_IMPEDANCE) * rise
    excess = side * (free + RAIL_DAMPING * velocity) + RAIL_STIFFNESS * impedance * depth
    push = jnp.maximum(excess, 0) / (mobility + RESTING_MOBILITY * (1 - impedance) / impedance)
    return jnp.where(depth > 0, -side * push, 0)


def advance(motion: Motion, force: Scalar) -> Motion:
    """The motion one interval later, by the classical fourth-order Runge–Kutta rule."""
    move = lambda rates, time: tuple(
        value + time * change for value, change in zip(motion, rates, strict=True)
    )
    first = rate(motion, force)
    second = rate(move(first, INTERVAL / 2), force)
    third = rate(move(second, INTERVAL / 2), force)
    fourth = rate(move(third, INTERVAL), force)
    stages = zip(first, second, third, fourth, strict=True)
    mean_rate = [(a + 2 * b + 2 * c + d) / 6 for a, b, c, d in stages]
    return move(mean_rate, INTERVAL)


class InvertedPendulumState(eqx.Module):
    """Positions, velocities and the number of steps taken."""

    values: Float[Array, "4"]
    """Position, angle, velocity, angular velocity."""
    time: Int[Array, ""]


class InvertedPendulum(AbstractEnv):
    """Balance a pole on a cart by pushing the cart with up to 300 newton.

    The action is the force in units of 100 newton, clipped to ±3. A step pays 1 unless the pole has
    fallen, that is, leans by more than 0.2 rad; then the episode terminates.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import InvertedPendulum
        >>> env = InvertedPendulum()
        >>> state = env.reset(jax.random.key(0))
        >>> step = env.step(jax.random.key(1), state, jnp.array([0.1]))
        >>> float(step.reward), bool(step.terminated)
        (1.0, False)
    """

    max_steps: int = eqx.field(static=True, default=1000)
    observation_size: int = eqx.field(static=True, default=4, init=False)
    actions: Actions = eqx.field(
        static=True, default=Actions(size=1, bounds=((-CONTROL_LIMIT, CONTROL_LIMIT),)), init=False
    )

    def __check_init__(self):
        check_max_steps(self.max_steps)

    def reset(self, key: PRNGKeyArray) -> InvertedPendulumState:
        values = jax.random.uniform(key, (4,), minval=-START, maxval=START)
        return InvertedPendulumState(values, jnp.zeros((), jnp.int32))

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
        # As in Gymnasium, a state that is not finite counts as a fall.
        fallen = (jnp.abs(after.values[1]) > ANGLE_LIMIT) | ~jnp.isfinite(after.values).all()
        return Step(
            state=after,
            observation=self.observe(after),
            reward=jnp.where(fallen, 0, jnp.ones_like(position)),
            terminated=fallen,
            truncated=after.time >= self.max_steps,
        )
