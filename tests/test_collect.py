"""What is collected: distribution, boundaries, and that draws depend on nothing but their key."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers import computed
from jaxtyping import Array, Int

from recollect.collect.compiled import Draws, Episodes, Steps
from recollect.envs import AbstractEnv, Actions, CartPole, Step, garnet
from recollect.policies import softmax_policy, tabular_softmax_policy
from recollect.prng import unrolled
from recollect.tree import flatten

KEY = jax.random.key(7)


class Counter(eqx.Module):
    steps: Int[Array, ""]
    length: Int[Array, ""]


class Counting(AbstractEnv):
    """Pays its step number; terminates after a random number of steps, or is cut at `max_steps`."""

    max_steps: int = eqx.field(static=True, default=6)
    observation_size: int = eqx.field(static=True, default=2, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=2), init=False)

    def reset(self, key):
        return Counter(jnp.zeros((), jnp.int32), jax.random.randint(key, (), 1, 10))

    def observe(self, state):
        return jnp.stack([state.steps, state.length]).astype(float)

    def step(self, key, state, action):
        after = Counter(state.steps + 1, state.length)
        return Step(
            after,
            self.observe(after),
            after.steps.astype(float),
            after.steps >= after.length,
            after.steps >= self.max_steps,
        )


def policy_for(env):
    return softmax_policy(jax.random.key(1), env.observation_size, env.actions.count)


def test_draws_follow_the_occupancy_measure():
    env = garnet(2, states=4, actions=2, discount=0.8)
    θ, unflatten = flatten(tabular_softmax_policy(4, 2))
    policy = unflatten(jax.random.normal(jax.random.key(0), θ.shape))
    count = 20_000
    _, collected = computed(Draws(count), KEY, env, policy, None, 0.8)
    batch = collected.batch
    cells = (batch.observations.argmax(-1) * 2 + batch.actions).ravel()
    expected = np.asarray(
        env.occupancy(policy)[:, None] * env.probabilities(policy), np.float64
    ).ravel()
    assert (
        scipy.stats.chisquare(
            np.bincount(cells, minlength=8), expected / expected.sum() * count
        ).pvalue
        > 1e-3
    )
    # The same test must reject the stationary distribution of a slightly different discount.
    other = garnet(2, states=4, actions=2, discount=0.5)
    wrong = np.asarray(
        other.occupancy(policy)[:, None] * env.probabilities(policy), np.float64
    ).ravel()
    assert (
        scipy.stats.chisquare(np.bincount(cells, minlength=8), wrong / wrong.sum() * count).pvalue
        < 1e-6
    )
    assert abs(float(collected.returns.mean()) - float(env.expected_return(policy))) < 0.05
    assert abs(float(collected.environment_steps) / count - 1 / (1 - 0.8)) < 0.2


def test_whole_episodes_end_where_the_environment_says():
    env = Counting()
    _, collected = computed(Episodes(50), KEY, env, policy_for(env), None, 0.99)
    batch = collected.batch
    lengths = batch.observations[:, 0, 1].astype(int)
    np.testing.assert_array_equal(batch.mask.sum(1), np.minimum(lengths, 6))
    last = batch.mask.sum(1) - 1
    rows = np.arange(50)
    np.testing.assert_array_equal(batch.terminated[rows, last], lengths <= 6)
    np.testing.assert_array_equal(batch.truncated[rows, last], lengths >= 6)
    np.testing.assert_array_equal(
        batch.next_observations[:, :-1][batch.mask[:, 1:]],
        batch.observations[:, 1:][batch.mask[:, 1:]],
    )
    np.testing.assert_allclose(
        collected.returns, [sum(range(1, min(n, 6) + 1)) for n in lengths], rtol=1e-6
    )
    assert int(collected.environment_steps) == int(batch.mask.sum())


def test_steps_never_cross_an_episode_and_count_returns_exactly():
    env, collector = Counting(), Steps(copies=20, steps=500)
    policy, carry = policy_for(env), collector.init(KEY, env)
    seen = []
    run = eqx.filter_jit(collector)
    for i in range(10):
        carry, collected = run(jax.random.fold_in(KEY, i), env, policy, carry, 0.99)
        seen.append(jax.device_get(collected))
    joined = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *[c.batch for c in seen])
    assert joined.mask.sum() == 100_000
    ended = joined.terminated | joined.truncated
    # Within an episode the true successor is the next observation; after an end it is not, and
    # the clock restarts.
    inside = ~ended[:, :-1]
    np.testing.assert_array_equal(
        joined.next_observations[:, :-1][inside], joined.observations[:, 1:][inside]
    )
    np.testing.assert_array_equal(joined.observations[..., 0], joined.times)
    assert (joined.times[:, 1:][~inside] == 0).all()
    np.testing.assert_array_equal(joined.next_observations[..., 0], joined.times + 1)
    for c in seen[1:]:
        last = (c.batch.terminated | c.batch.truncated).T
        length = c.batch.times.T[last] + 1
        np.testing.assert_allclose(
            c.returns[np.isfinite(c.returns)], length * (length + 1) / 2, rtol=1e-5
        )


def test_a_draw_depends_on_its_copy_alone():
    env = CartPole(max_steps=30)
    policy = policy_for(env)
    episodes = lambda count, key: computed(Episodes(count), key, env, policy, None, 0.99)[1].batch
    few, many = episodes(2, KEY), episodes(5, KEY)
    np.testing.assert_array_equal(few.actions, many.actions[:2])
    assert len(np.unique(many.observations[:, 0], axis=0)) == 5
    jax.tree.map(np.testing.assert_array_equal, few, episodes(2, KEY))
    other = episodes(2, jax.random.key(8))
    assert not np.array_equal(few.observations, other.observations)


@pytest.mark.parametrize(
    "collector", [Episodes(3), Steps(3, 5), Draws(3)], ids=["episodes", "steps", "draws"]
)
def test_behaviour_log_probabilities_are_those_of_the_policy(collector):
    env = CartPole(max_steps=10)
    policy = policy_for(env)
    batch = computed(lambda: collector(KEY, env, policy, collector.init(KEY, env), 0.9)[1].batch)
    log_prob = eqx.filter_jit(policy.log_prob)
    for index in np.argwhere(batch.mask):
        at = tuple(index)
        np.testing.assert_allclose(
            batch.log_probs[at], log_prob(batch.observations[at], batch.actions[at]), rtol=1e-5
        )


def test_unrolled_keys_give_the_numbers_of_jax():
    """Actions on the host are drawn with them, and have to be those of the compiled engine."""
    key, many = jax.random.key(3), jax.random.split(jax.random.key(4), 5)
    assert jnp.array_equal(jax.random.key_data(unrolled(many)), jax.random.key_data(many))
    for draw in (
        lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
        lambda key: jax.random.key_data(jax.random.fold_in(key, jnp.int32(77))),
        lambda key: jax.random.normal(key, (3, 5)),
        lambda key: jax.random.categorical(key, jnp.arange(4.0)),
        lambda key: jax.random.bits(key, (7,), jnp.uint8),
        lambda key: jax.random.permutation(key, 9),
        lambda key: jax.vmap(jax.random.gumbel)(jax.random.split(key, 4)),
    ):
        assert jnp.array_equal(jax.jit(draw)(key), jax.jit(draw)(unrolled(key)))
    with jax.enable_x64(True):
        assert jnp.array_equal(
            jax.random.normal(key, (6,), jnp.float64),
            jax.random.normal(unrolled(key), (6,), jnp.float64),
        )
    other = jax.random.key(0, impl="rbg")
    assert unrolled(other) is other


class Blinking(AbstractEnv):
    """Ends in its third step and not in its fourth, if it is stepped on."""

    max_steps: int = eqx.field(static=True, default=6)
    observation_size: int = eqx.field(static=True, default=1, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=2), init=False)

    def reset(self, key):
        return jnp.zeros((), jnp.int32)

    def observe(self, state):
        return state.astype(float)[None]

    def step(self, key, state, action):
        after = state + 1
        return Step(after, self.observe(after), jnp.ones(()), after == 3, after == self.max_steps)


def test_what_comes_after_the_end_of_an_episode_is_padding():
    env = Blinking()
    _, collected = computed(Episodes(2), KEY, env, policy_for(env), None, 0.99)
    np.testing.assert_array_equal(collected.batch.mask, [[1, 1, 1, 0, 0, 0]] * 2)
    np.testing.assert_array_equal(collected.returns, [3, 3])


class Coin(AbstractEnv):
    """One step that pays 1 or 0 by a coin of its own, whatever is done."""

    max_steps: int = eqx.field(static=True, default=1)
    observation_size: int = eqx.field(static=True, default=1, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=2), init=False)

    def reset(self, key):
        return jnp.zeros((), jnp.int32)

    def observe(self, state):
        return jnp.ones(1)

    def step(self, key, state, action):
        paid = (jax.random.uniform(key) >= 0.5).astype(float)
        return Step(state, jnp.ones(1), paid, jnp.array(True), jnp.array(True))


@pytest.mark.parametrize("collector", [Episodes(2000), Steps(2000, 1)], ids=["episodes", "steps"])
def test_transitions_do_not_depend_on_how_the_action_was_drawn(collector):
    env, count = Coin(), 2000
    policy = tabular_softmax_policy(1, 2)
    _, collected = computed(collector, KEY, env, policy, collector.init(KEY, env), 0.0)
    paid, right = collected.batch.rewards[:, 0], collected.batch.actions[:, 0]
    assert abs(paid.mean() - 0.5) < 4 * 0.5 / count**0.5
    assert abs(np.corrcoef(paid, right)[0, 1]) < 4 / count**0.5
