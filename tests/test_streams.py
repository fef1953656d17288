"""From one iteration to the next: which episodes go on, and which random numbers are drawn."""

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from jaxtyping import Array, Float, Int
from plain import RNPG, VPG

from recollect import Episodes, Steps, host, train
from recollect.collect.host import HostCollector
from recollect.envs import AbstractEnv, Actions, Step
from recollect.estimate.advantages import Returns
from recollect.keys import seed_keys
from recollect.policies import AbstractPolicy, softmax_policy
from recollect.run.hosted import HostRun
from recollect.run.state import CorePool, Limits

KEY = jax.random.key(3)
LENGTH = 7


class Clock(AbstractEnv):
    """Observes the time in an episode of seven steps, and pays 1 a step."""

    max_steps: int = eqx.field(static=True, default=10, init=False)
    observation_size: int = eqx.field(static=True, default=1, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=2), init=False)

    def reset(self, key) -> Int[Array, ""]:
        return jnp.zeros((), jnp.int32)

    def observe(self, state):
        return state.astype(float)[None]

    def step(self, key, state, action):
        after = state + 1
        return Step(after, self.observe(after), jnp.ones(()), after == LENGTH, jnp.array(False))


class HostClock(gym.Env):
    """The same on the host; every copy made remembers the seeds and actions that it was given."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)
    made: list["HostClock"] = []

    def __init__(self):
        self.seeds, self.taken = [], []
        HostClock.made.append(self)

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.now = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.taken.append(int(action))
        self.now += 1
        return np.full(1, self.now, np.float32), 1.0, self.now == LENGTH, False, {}


@pytest.fixture
def host_clock():
    """A host environment, and the list of the copies that will be made of it."""
    env = host(HostClock, max_steps=10)
    HostClock.made.clear()
    yield env
    HostClock.made.clear()


class Logistic(AbstractPolicy):
    """Goes right with probability σ(θ s). At θ = 0 its score squared is s²/4, whatever it does."""

    slope: Float[Array, ""]

    def sample(self, key, observation):
        right = jax.random.bernoulli(key, jax.nn.sigmoid(self.slope * observation[0]))
        return right.astype(jnp.int32)

    def log_prob(self, observation, action):
        return jax.nn.log_sigmoid(jnp.where(action == 1, 1, -1) * self.slope * observation[0])

    def mode(self, observation):
        return (self.slope * observation[0] > 0).astype(jnp.int32)

    def entropy(self, observation):
        log_probs = self._log_probs(observation)
        return -jnp.sum(jnp.exp(log_probs) * log_probs)

    def kl(self, other, observation):
        log_probs = self._log_probs(observation)
        return jnp.sum(jnp.exp(log_probs) * (log_probs - other._log_probs(observation)))

    def _log_probs(self, observation):
        return jnp.stack([self.log_prob(observation, action) for action in (0, 1)])


BLIND = Logistic(jnp.array(0.0))
INDEPENDENT = RNPG(
    window=1,
    independent_fisher=True,
    learning_rate=1e-9,
    damping=1e-3,
    advantages=Returns(baseline="none"),
)
"""Hardly moves the policy, and has a second batch for the Fisher matrix."""
FIELDS = (
    "observations",
    "actions",
    "rewards",
    "next_observations",
    "terminated",
    "truncated",
    "times",
)


def fisher_of(curves) -> np.ndarray:
    """F̂ of a policy with one parameter, from the lengths of gradient and natural direction."""
    return curves["gradient_norm"][0] / curves["direction_norm"][0] - INDEPENDENT.damping


@pytest.mark.parametrize("engine", ["compiled", "host"])
def test_steps_go_on_where_the_last_batch_ended(engine, host_clock):
    """Seven steps an episode, three a batch: episodes end in the third iteration and the fifth."""
    env = Clock() if engine == "compiled" else host_clock
    curves = train(env, INDEPENDENT, collector=Steps(1, 3), policy=BLIND, iterations=5).curves
    expected = [np.nan, np.nan, LENGTH, np.nan, LENGTH]
    np.testing.assert_array_equal(curves["return_mean"][0], expected)
    # The independent batch goes on, too: its Fisher matrix is the mean of t²/4 over its times.
    times = np.arange(15).reshape(5, 3) % LENGTH
    np.testing.assert_allclose(fisher_of(curves), (times**2).mean(1) / 4, rtol=1e-3)


def test_the_run_state_holds_what_the_host_carries_on(host_clock):
    """Three of seven steps a batch: afterwards 3, 6, then 2 of the next episode, each paid 1."""
    shared = (INDEPENDENT, Steps(2, 3), Limits(np.inf, np.inf), BLIND)
    with CorePool(2) as pool:
        run = HostRun(host_clock, *shared, (0, 1), seed_keys((0, 1)), pool)
        state = run.start()
        assert state.hosted == (None, None)
        for expected in (3, 6, 2):
            state, _ = run.advance(state, 1)
            for ongoing in state.hosted:
                np.testing.assert_array_equal(ongoing.times, np.full(4, expected))
                np.testing.assert_array_equal(ongoing.totals, np.full(4, expected))
                np.testing.assert_array_equal(ongoing.dropped, np.zeros(4))
        run.close()


@pytest.mark.parametrize("collector", [Steps(3, 5), Episodes(3)], ids=["steps", "episodes"])
def test_the_host_draws_the_actions_of_the_compiled_engine(collector, host_clock):
    policy = softmax_policy(KEY, 1, 2)
    stacked = jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, policy)
    on_host = HostCollector(host_clock, collector, (0,))
    carry, compiled = collector.init(KEY, Clock()), eqx.filter_jit(collector)
    ongoing = None
    for iteration in range(3):
        key = jax.random.fold_in(KEY, iteration)
        carry, expected = compiled(key, Clock(), policy, carry, 0.99)
        ongoing, found = on_host(stacked, key[None], iteration, ongoing)
        mask = np.asarray(expected.batch.mask)
        np.testing.assert_array_equal(found.batch.mask[0], mask)
        for field in FIELDS:
            ours = np.asarray(getattr(found.batch, field))[0]
            theirs = np.asarray(getattr(expected.batch, field))
            np.testing.assert_array_equal(ours[mask], theirs[mask], err_msg=field)
        assert int(found.environment_steps[0]) == int(expected.environment_steps)
    on_host.close()


@pytest.mark.parametrize("collector", [Steps(3, 10), Episodes(3)], ids=["steps", "episodes"])
def test_every_reset_on_the_host_has_a_seed_of_its_own(collector, host_clock):
    policies = eqx.filter_vmap(lambda key: softmax_policy(key, 1, 2))(jax.random.split(KEY, 2))

    def seeds_of(stream, iterations):
        HostClock.made.clear()
        on_host = HostCollector(host_clock, collector, (4, 9), stream)
        ongoing = None
        for iteration in iterations:
            ongoing, _ = on_host(policies, jax.random.split(KEY, 2), iteration, ongoing)
        on_host.close()
        return [seed for copy in HostClock.made for seed in copy.seeds]

    first, again, other = seeds_of(0, range(3)), seeds_of(0, range(3)), seeds_of(1, range(3))
    assert len(first) >= 6 * 3
    assert len({*first, *other}) == len(first) + len(other)
    assert first == again
    # An iteration is repeated by its number, not by how many came before it.
    assert set(seeds_of(0, [2])) <= set(first) or isinstance(collector, Steps)


def test_the_independent_batch_on_the_host_has_seeds_and_actions_of_its_own(host_clock):
    train(host_clock, INDEPENDENT, collector=Steps(2, 20), policy=BLIND, iterations=2)
    copies = HostClock.made
    assert len(copies) == 4
    assert {len(copy.taken) for copy in copies} == {40}
    assert len({tuple(copy.taken) for copy in copies}) == 4
    seeds = [seed for copy in copies for seed in copy.seeds]
    assert len(set(seeds)) == len(seeds)


class Once(AbstractEnv):
    """One step: a random number is seen, and going right pays 1, left −1."""

    max_steps: int = eqx.field(static=True, default=1, init=False)
    observation_size: int = eqx.field(static=True, default=1, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=2), init=False)

    def reset(self, key):
        return jax.random.uniform(key, minval=0.5)

    def observe(self, state):
        return state[None]

    def step(self, key, state, action):
        return Step(state, state[None], 2.0 * action - 1, jnp.array(True), jnp.array(True))


def test_the_independent_batch_is_another():
    """The gradient is s/2 and F̂ is s²/4 of another step, and so not the gradient squared."""
    curves = train(Once(), INDEPENDENT, collector=Steps(1, 1), policy=BLIND, iterations=6).curves
    gradients = curves["gradient_norm"][0]
    fisher = fisher_of(curves)
    assert ((gradients > 0.25) & (gradients < 0.5)).all()
    assert (np.abs(fisher - gradients**2) > 1e-3 * fisher).all()
    assert len(np.unique(gradients)) == 6  # and no iteration repeats another


def test_log_probabilities_on_the_host_are_those_of_the_policy_that_acted(host_clock):
    """Then every weight of the newest batch is one, however far a seed's policy has moved."""
    policy = lambda key: softmax_policy(key, 1, 2, (4,))
    algorithm = VPG(learning_rate=0.5)
    settings = dict(collector=Steps(2, 20), policy=policy, seeds=4, iterations=4)
    run = train(host_clock, algorithm, **settings)
    np.testing.assert_allclose(run.curves["max_weight"], 1, rtol=1e-4)
    np.testing.assert_allclose(run.curves["ess"], 40, rtol=1e-3)
    assert (run.curves["kl"].max(1) > 1e-3).all()


class Shrinking(gym.Env):
    """Episodes of nine, seven and five steps, one after another."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.length = 11

    def reset(self, *, seed=None, options=None):
        self.length -= 2
        self.now = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.now += 1
        return np.full(1, self.now, np.float32), 1.0, self.now == self.length, False, {}


def test_a_shorter_batch_on_the_host_leaves_nothing_of_a_longer_one():
    policy = softmax_policy(KEY, 1, 2)
    stacked = jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, policy)
    on_host = HostCollector(host(Shrinking, max_steps=12), Episodes(2), (0,))
    for iteration, length in enumerate((9, 7, 5)):
        _, found = on_host(stacked, KEY[None], iteration)
        np.testing.assert_array_equal(found.batch.mask[0], [np.arange(12) < length] * 2)
        assert int(found.environment_steps[0]) == 2 * length
    on_host.close()
