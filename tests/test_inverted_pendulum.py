"""The compiled inverted pendulum against MuJoCo itself, on the free rail and at its ends.

At the rail MuJoCo's solver stops as soon as an iteration gains less than 1e-8. Its answer then
depends on the acceleration it started from, that of the stage before, and in one step out of
hundreds is a few 1e-6 away from the minimum it searches. The formula is that minimum. So there are
two references: the environment as Gymnasium ships it, compared at what its solver leaves, and one
whose solver runs to the end, compared at rounding.
"""

from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recollect.envs import InvertedPendulum, Step, make
from recollect.envs.inverted_pendulum import InvertedPendulumState

EPISODES, LENGTH = 200, 250
GAINS = np.array([0.41, 5.2, 0.62, 0.88])
"""Of a feedback that balances the pole and brings the cart to a target, for (x, θ, v, ω)."""


class Policies(NamedTuple):
    """One policy an episode, a = gains · (observation − target) + noise[t]."""

    gains: np.ndarray
    target: np.ndarray
    noise: np.ndarray


class Recorded(NamedTuple):
    """What MuJoCo did: all transitions of all episodes, where each began and how it ended."""

    states: np.ndarray
    actions: np.ndarray
    successors: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    fallen: np.ndarray
    leftover: float
    """How far the solver may stay from its minimum, in the units of an observation."""

    @property
    def at_the_rail(self) -> np.ndarray:
        return np.maximum(np.abs(self.states[:, 0]), np.abs(self.successors[:, 0])) > 1


def draw_policies() -> Policies:
    """Actions at random, a third of them beyond the limit; then feedback to targets around and
    beyond either end of the rail."""
    draw = np.random.default_rng(0)
    gains = np.concatenate([np.zeros((EPISODES, 4)), np.tile(GAINS, (EPISODES, 1))])
    target = np.zeros((2 * EPISODES, 4))
    target[:, 0] = draw.choice([-1, 1], 2 * EPISODES) * draw.uniform(0.9, 1.2, 2 * EPISODES)
    noise = np.concatenate(
        [draw.uniform(-4.5, 4.5, (EPISODES, LENGTH)), 0.2 * draw.normal(size=(EPISODES, LENGTH))]
    )
    return Policies(gains, target, noise)


POLICIES = draw_policies()


def mujoco_pendulum(to_the_end: bool):
    reference = gymnasium.make("InvertedPendulum-v5").unwrapped
    reference.reset(seed=0)
    if to_the_end:
        reference.model.opt.tolerance = 0
    return reference


def record_episodes(reference) -> tuple[list, list, list, list]:
    transitions, starts, lengths, fallen = [], [], [], []
    for gains, target, noise in zip(*POLICIES, strict=True):
        state = reference.reset()[0]
        starts.append(state)
        for time in range(LENGTH):
            action = np.array([gains @ (state - target) + noise[time]])
            successor, reward, terminated, _, _ = reference.step(action)
            transitions.append((state, action, successor, reward, terminated))
            state = successor
            if terminated:
                break
        lengths.append(time + 1)
        fallen.append(terminated)
    return transitions, starts, lengths, fallen


@pytest.fixture(scope="module", params=[False, True], ids=["as-shipped", "solved-to-the-end"])
def recorded(request) -> Recorded:
    transitions, *episodes = record_episodes(mujoco_pendulum(to_the_end=request.param))
    columns = [np.array(column) for column in zip(*transitions, strict=True)]
    return Recorded(*columns, *map(np.array, episodes), leftover=1e-12 if request.param else 1e-5)


@jax.jit
@jax.vmap
def compiled_step(values, action) -> Step:
    return InvertedPendulum().step(
        jax.random.key(0), InvertedPendulumState(values, jnp.array(0)), action
    )


def compiled_steps(states: np.ndarray, actions: np.ndarray) -> Step:
    """In the precision of `states`; as NumPy arrays, since JAX would compare them in single
    precision."""
    with jax.enable_x64(states.dtype == np.float64):
        return jax.tree.map(np.asarray, compiled_step(states, actions))


@jax.jit
@jax.vmap
def compiled_episode(start, policy: Policies):
    """How many steps the environment takes by itself before it falls, and whether it does."""

    def body(carry, noise):
        state, alive = carry
        action = policy.gains @ (state.values - policy.target) + noise
        step = InvertedPendulum().step(jax.random.key(0), state, action[None])
        return (step.state, alive & ~step.terminated), alive

    (_, alive), taken = jax.lax.scan(
        body, (InvertedPendulumState(start, jnp.array(0)), jnp.array(True)), policy.noise
    )
    return taken.sum(), ~alive


def test_every_step_of_an_episode_equals_mujoco(recorded):
    steps = compiled_steps(recorded.states, recorded.actions)
    error = np.abs(steps.observation - recorded.successors).max(1)
    rail = recorded.at_the_rail
    assert error[~rail].max() < 1e-12
    assert error[rail].max() < recorded.leftover
    assert np.mean(error[rail] < 1e-6) > 0.99
    np.testing.assert_array_equal(steps.terminated, recorded.terminated)
    np.testing.assert_array_equal(steps.reward, recorded.rewards)
    # The comparison is worth something only if it saw the rail, falls and actions that had to be
    # clipped.
    assert rail.sum() > 1000
    assert recorded.fallen.sum() > EPISODES
    assert np.sum(np.abs(recorded.actions) > 3) > 200


def test_episodes_of_its_own_end_when_those_of_mujoco_do(recorded):
    with jax.enable_x64(True):
        lengths, fallen = compiled_episode(recorded.starts, POLICIES)
    np.testing.assert_array_equal(lengths, recorded.lengths)
    np.testing.assert_array_equal(fallen, recorded.fallen)


@pytest.mark.parametrize(
    ("to_the_end", "tolerance"),
    [(False, 1e-5), (True, 1e-12)],
    ids=["as-shipped", "solved-to-the-end"],
)
def test_a_cart_thrown_at_the_rail_equals_mujoco(to_the_end, tolerance):
    """Faster and deeper than episodes go: half of the carts are within the millimetres in which the
    rail stiffens, at any force."""
    count, draw = 10_000, np.random.default_rng(1)
    side, shallow = draw.choice([-1, 1], count), draw.random(count) < 0.5
    states = draw.uniform(-1, 1, (count, 4)) * [0.05, 0.2, 4.0, 8.0]
    states[shallow] *= [0.04, 1, 0.05, 1]
    states[:, 0] += side
    actions = draw.uniform(-4.5, 4.5, (count, 1))
    reference = mujoco_pendulum(to_the_end)
    expected, ended = np.empty((count, 4)), np.empty(count, bool)
    for i in range(count):
        reference.set_state(states[i, :2], states[i, 2:])
        expected[i], _, ended[i], _, _ = reference.step(actions[i])
    steps = compiled_steps(states, actions)
    np.testing.assert_allclose(steps.observation, expected, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(steps.terminated, ended)
    # No hit turns the pole so far within a step that the hinge's limit would have mattered.
    assert np.abs(expected[:, 1]).max() < np.pi / 3


def test_single_precision_is_kept_and_near(recorded):
    steps = compiled_steps(recorded.states.astype(np.float32), recorded.actions.astype(np.float32))
    assert steps.observation.dtype == steps.reward.dtype == jnp.float32
    np.testing.assert_allclose(steps.observation, recorded.successors, rtol=0, atol=2e-5)


def test_starts_where_gymnasium_does():
    reference = mujoco_pendulum(to_the_end=False)
    theirs = np.array([reference.reset()[0] for _ in range(2000)])
    states = jax.vmap(InvertedPendulum().reset)(jax.random.split(jax.random.key(0), 2000))
    assert not states.time.any()
    for starts in (states.values, theirs):
        # Quantiles of a uniform distribution on ±0.01, each to four standard errors.
        at = np.linspace(0.1, 0.9, 9)
        expected = np.broadcast_to(0.01 * (2 * at - 1), (4, 9)).T
        np.testing.assert_allclose(
            np.quantile(starts, at, axis=0), expected, atol=4 * 0.02 * (0.25 / 2000) ** 0.5
        )
        assert np.abs(starts).max() <= 0.01


def test_a_balanced_pole_is_cut_by_the_clock():
    env = make("InvertedPendulum-v5")
    reference = gymnasium.make("InvertedPendulum-v5")
    observation, theirs = reference.reset(seed=0)[0], []
    start = observation

    def body(state, _):
        step = env.step(jax.random.key(0), state, (state.values @ GAINS)[None])
        return step.state, (step.reward, step.terminated, step.truncated)

    with jax.enable_x64(True):
        _, ours = jax.lax.scan(
            body, InvertedPendulumState(jnp.asarray(start), jnp.array(0)), length=1000
        )
    for _ in range(1000):
        observation, reward, terminated, truncated, _ = reference.step(
            np.array([observation @ GAINS])
        )
        theirs.append((reward, terminated, truncated))
    np.testing.assert_array_equal(np.stack(ours, 1), np.array(theirs))
    np.testing.assert_array_equal(np.flatnonzero(ours[2]), [999])


def test_a_state_that_is_not_finite_ends_the_episode():
    steps = compiled_steps(
        np.array([[0, 0, np.nan, 0], [np.inf, 0, 0, 0], [0, 0, 0, 0]], np.float32),
        np.zeros((3, 1), np.float32),
    )
    np.testing.assert_array_equal(steps.terminated, [True, True, False])
    np.testing.assert_array_equal(steps.reward, [0, 0, 1])
