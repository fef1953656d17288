"""Compiled classic-control environments against the Gymnasium originals.

Single steps, whole episodes, first states.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control import acrobot as original_acrobot

from recollect.envs import make
from recollect.envs.acrobot import AcrobotState, wrap
from recollect.envs.mountain_car import MountainCarState
from recollect.envs.pendulum import PendulumState


class Twin(NamedTuple):
    """One environment and the region over which it is compared with its original."""

    name: str
    state: Callable[..., Any]
    span: tuple[tuple[float, ...], tuple[float, ...]]
    """Least and largest values of the compared states, beyond what an episode reaches."""
    start: tuple[tuple[float, ...], tuple[float, ...]]
    """Least and largest values of a first state."""
    act: Callable[[np.random.Generator, int], np.ndarray]
    """Random actions, also outside the bounds."""
    swing: Callable[[np.ndarray, float], Any]
    """An action for a state and a noise in [−1, 1] that takes an episode to its end: push with the
    motion."""
    tolerance: Any
    """Largest difference of each number of the state after one step, in the precision that the
    original keeps."""
    drift: float
    """Largest difference after a whole episode."""

    def step(self, values, action):
        return make(self.name).step(jax.random.key(0), self.state(values, jnp.array(0)), action)


TWINS = [
    Twin(
        name="Pendulum-v1",
        state=PendulumState,
        span=((-90, -12), (90, 12)),
        start=((-np.pi, -1), (np.pi, 1)),
        act=lambda draw, count: draw.uniform(-5, 5, (count, 1)),
        swing=lambda values, noise: np.array([3 * np.sign(values[1]) + 2 * noise]),
        tolerance=1e-13,
        drift=1e-10,
    ),
    Twin(
        name="Acrobot-v1",
        state=AcrobotState,
        span=((-10, -10, -14, -31), (10, 10, 14, 31)),
        start=((-0.1,) * 4, (0.1,) * 4),
        act=lambda draw, count: draw.integers(0, 3, count),
        swing=lambda values, noise: int(noise > 0.8) if values[2] > 0 else 2,
        tolerance=[
            1e-12,
            1e-12,
            1e-10,
            1e-10,
        ],  # at such speeds one unit in the last place before a step becomes 2e-11 after it
        drift=1e-10,
    ),
    Twin(
        name="MountainCarContinuous-v0",
        state=MountainCarState,
        span=((-1.5, -0.12), (0.9, 0.12)),
        start=((-0.6, 0), (-0.4, 0)),
        act=lambda draw, count: draw.uniform(-3, 3, (count, 1)),
        swing=lambda values, noise: np.array([1.2 * np.sign(values[1]) + noise]),
        tolerance=0,  # both rounded to float32, as the original does
        drift=1e-4,  # the original rounds every step
    ),
]
each_twin = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)


@each_twin
def test_one_step_equals_gymnasium(twin):
    count, draw = 20_000, np.random.default_rng(0)
    states, actions = draw.uniform(*twin.span, (count, len(twin.span[0]))), twin.act(draw, count)
    reference = gymnasium.make(twin.name).unwrapped
    reference.reset(seed=0)
    after, observations, rewards, ended = [], [], np.empty(count), np.empty(count, bool)
    for i in range(count):
        reference.state = states[i]
        observation, rewards[i], ended[i], _, _ = reference.step(actions[i])
        after.append(reference.state)
        observations.append(observation)
    after = np.array(after)
    with jax.enable_x64(True):
        steps = jax.tree.map(
            np.asarray, jax.jit(jax.vmap(twin.step))(jnp.asarray(states), jnp.asarray(actions))
        )
    error = np.abs(steps.state.values.astype(after.dtype) - after)
    assert (error <= twin.tolerance).all(), error.max(0)
    np.testing.assert_allclose(steps.observation, observations, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(steps.reward, rewards, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(steps.terminated, ended)
    # The comparison reached the limits (many states share an extreme value) and the ending, where
    # there is one.
    assert ((after == after.min(0)) | (after == after.max(0))).any(1).mean() > 0.02
    assert ended.mean() == 0 if twin.name == "Pendulum-v1" else 0.1 < ended.mean() < 0.5


@each_twin
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("swinging", [True, False], ids=["swinging", "random"])
def test_episodes_equal_gymnasium(twin, seed, swinging):
    draw = np.random.default_rng(seed)
    start = draw.uniform(*twin.start)
    reference = gymnasium.make(twin.name)
    reference.reset(seed=0)
    reference.unwrapped.state = start
    path, actions, rewards, flags = [start], [], [], [(False, False)]
    while not any(flags[-1]):
        actions.append(
            twin.swing(path[-1], draw.uniform(-1, 1)) if swinging else twin.act(draw, 1)[0]
        )
        _, reward, *ending, _ = reference.step(actions[-1])
        path.append(reference.unwrapped.state)
        rewards.append(reward)
        flags.append(tuple(ending))
    with jax.enable_x64(True):
        env = make(twin.name)

        def follow(state, action):
            step = env.step(jax.random.key(0), state, action)
            return step.state, step

        steps = jax.lax.scan(
            follow, twin.state(jnp.asarray(start), jnp.array(0)), jnp.asarray(np.array(actions))
        )[1]
        steps = jax.tree.map(np.asarray, steps)
    np.testing.assert_array_equal(np.stack([steps.terminated, steps.truncated], 1), flags[1:])
    np.testing.assert_allclose(steps.state.values, path[1:], rtol=0, atol=twin.drift)
    np.testing.assert_allclose(steps.reward.sum(), sum(rewards), rtol=1e-12)
    assert steps.terminated[-1] == (swinging and twin.name != "Pendulum-v1")


@each_twin
def test_first_states_are_drawn_as_in_gymnasium(twin):
    count = 1000
    reference = gymnasium.make(twin.name).unwrapped
    original = np.array([[reference.reset(seed=seed), reference.state][1] for seed in range(count)])
    compiled = np.asarray(
        jax.vmap(make(twin.name).reset)(jax.random.split(jax.random.key(0), count)).values
    )
    low, high = np.array(twin.start)
    for states in (original, compiled):
        np.testing.assert_allclose(
            [states.min(0), states.max(0)], [low, high], atol=0.01 * (high - low).max()
        )
        assert (states >= np.float32(low)).all()
        assert (states <= np.float32(high)).all()
        assert (
            np.abs(states.mean(0) - (low + high) / 2) <= 4 * (high - low) / (12 * count) ** 0.5
        ).all()


@each_twin
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_precision_is_that_of_the_state(twin, dtype):
    with jax.enable_x64(True):
        values, action = (
            jnp.zeros(len(twin.span[0]), dtype),
            jnp.asarray(twin.act(np.random.default_rng(0), 1)[0]),
        )
        step = jax.eval_shape(twin.step, values, action)
    assert step.state.values.dtype == step.observation.dtype == step.reward.dtype == dtype


def test_wrapped_angles_equal_the_loop():
    # Besides a wide range, each odd multiple of π that an Acrobot step can reach and its nearest
    # numbers on both sides.
    edges = np.arange(-11, 12, 2) * np.pi
    angles = np.concatenate(
        [
            np.linspace(-1000, 1000, 100_001),
            edges,
            np.nextafter(edges, np.inf),
            np.nextafter(edges, -np.inf),
        ]
    )
    expected = [original_acrobot.wrap(angle, -np.pi, np.pi) for angle in angles]
    with jax.enable_x64(True):
        wrapped = np.asarray(wrap(jnp.asarray(angles)))
    # The loop rounds once a turn, so its error grows with the square of the angle; the closed form
    # rounds twice in all.
    assert (np.abs(wrapped - expected) <= 1e-17 * angles**2).all()
