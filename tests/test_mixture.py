"""Mixture weights: what is stored of every policy, and what the balance heuristic promises."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import batch_of, computed, history_from, parameters, random_policy

from recollect.algorithms import RPG, RPPO
from recollect.algorithms.base import bind
from recollect.algorithms.narrow import narrow_update
from recollect.algorithms.reuse import reweighed_gradient
from recollect.algorithms.update import begin
from recollect.collect.compiled import Draws
from recollect.collect.rollout import Rollout
from recollect.envs import Tabular, garnet
from recollect.estimate.advantages import ExactAdvantages
from recollect.estimate.critic import Critic
from recollect.estimate.shares import ChosenShares, Uniform
from recollect.memory.mixture import Mixture, OccupancyMixture
from recollect.memory.rows import recall
from recollect.memory.weights import OccupancyRatio, PolicyRatio
from recollect.policies import tabular_softmax_policy
from recollect.policies.normaliser import Normaliser, Units
from recollect.theory.enumeration import batch_of_cells, occupancy_of_cells
from recollect.tree import flatten

KEY = jax.random.key(0)


def normalised_policy(seed: int):
    """A policy with statistics of its own."""
    policy = random_policy(jax.random.key(seed))
    units = Units(mean=jnp.full(4, 0.02 * seed), spread=jnp.full(4, 0.5 + 0.5 * seed))
    return dataclasses.replace(policy, normaliser=Normaliser(units, jnp.array(100.0)))


POLICIES = [normalised_policy(seed) for seed in range(4)]
BATCHES = [batch_of(jax.random.key(10 + i), policy) for i, policy in enumerate(POLICIES)]


def probabilities(policy, batch):
    """π(a|s) of all transitions."""
    log_prob = jax.vmap(jax.vmap(policy.log_prob))
    return np.exp(computed(lambda: log_prob(batch.observations, batch.actions)))


@pytest.mark.parametrize("packed", [False, True])
def test_mixture_weights_are_those_of_the_stored_policies(packed, monkeypatch):
    """Four batches for three places; the oldest policy counts no more than its batch does."""
    if packed:
        monkeypatch.setattr("recollect.memory.rows.chunk_size", lambda: 30)
    new = POLICIES[-1]

    def look():
        history = history_from(POLICIES, BATCHES, Mixture(), capacity=3)
        rows = recall(history, new, Mixture())
        unpack = rows.packing.unpack
        return unpack(rows.weights), unpack(rows.window(jnp.array([0.75, 0.25])).weights)

    weights, of_two = computed(look)
    batches, policies = BATCHES[:0:-1], POLICIES[:0:-1]
    counts = np.array([int(batch.mask.sum()) for batch in batches])
    assert len(set(counts)) > 1
    for found, shares in ((weights, counts / counts.sum()), (of_two, np.array([0.75, 0.25]))):
        ages = len(shares)
        for age, batch in enumerate(batches[:ages]):
            mixture = sum(
                share * probabilities(policy, batch)
                for share, policy in zip(shares, policies, strict=False)
            )
            expected = np.where(batch.mask, probabilities(new, batch) / mixture, 0)
            np.testing.assert_allclose(found[age], expected, rtol=1e-4)
        assert found[:ages].max() <= (1 + 1e-5) / shares[0]
    ratio = np.where(batches[2].mask, probabilities(new, batches[2]), 0)
    assert weights[2].max() < (ratio / probabilities(policies[2], batches[2])).max()


def test_one_stored_policy_is_the_policy_ratio_bit_for_bit():
    weigh = lambda rule: (
        lambda: (
            recall(
                history_from(POLICIES[:1], BATCHES[:1], rule, capacity=3), POLICIES[1], rule
            ).weights
        )
    )
    ratio = computed(weigh(PolicyRatio()))
    assert ratio.std() > 0.1
    np.testing.assert_array_equal(computed(weigh(Mixture())), ratio)


def test_a_batch_that_is_not_finite_leaves_the_mixture():
    spoiled = dataclasses.replace(BATCHES[1], rewards=BATCHES[1].rewards + jnp.nan)
    three = [BATCHES[0], spoiled, BATCHES[2]]
    look = lambda policies, batches: recall(
        history_from(policies, batches, Mixture()), POLICIES[2], Mixture()
    ).weights.reshape(len(batches), -1)
    with_spoiled = computed(look, POLICIES[:3], three)
    without = computed(look, POLICIES[0:3:2], three[::2])
    np.testing.assert_allclose(with_spoiled[::2], without, rtol=1e-5)
    assert (with_spoiled[1] == 0).all()


def same_states(env: Tabular) -> Tabular:
    """The MDP whose states do not depend on actions."""
    even = jnp.broadcast_to(env.transitions.mean(1, keepdims=True), env.transitions.shape)
    return Tabular(even, env.rewards, env.initial, env.discount)


GARNET = garnet(0, states=4, actions=3, discount=0.8)


@pytest.mark.parametrize(
    ("mixture", "ratio", "env"),
    [
        (Mixture(), PolicyRatio(), same_states(GARNET)),
        (OccupancyMixture(), OccupancyRatio(), GARNET),
    ],
    ids=["actions", "states and actions"],
)
def test_mixtures_are_unbiased_with_less_variance_than_ratios(mixture, ratio, env):
    """Policies are fixed, so that nothing but the weights could bias the gradient."""
    θ, unflatten = flatten(tabular_softmax_policy(4, 3))
    policies = [unflatten(jax.random.normal(jax.random.key(i), θ.shape)) for i in range(3)]

    def estimate(rule, key):
        algorithm = RPG(
            window=3, discount=0.8, advantages=ExactAdvantages(), weights=rule, objective_scale=True
        )
        algorithm = bind(algorithm, env)
        draw = lambda key, policy: jax.random.categorical(
            key, jnp.log(occupancy_of_cells(env, policy)), shape=(20,)
        )
        batches = [
            batch_of_cells(env, policy, draw(key, policy))
            for policy, key in zip(policies, jax.random.split(key, 3), strict=True)
        ]
        history = history_from(policies[:2], batches[:2], algorithm.weights, capacity=3)
        state = algorithm.init(policies[-1], batches[0], KEY)
        state = dataclasses.replace(state, history=history)
        start = begin(algorithm, state, Rollout.of(batches[-1]))
        return algorithm.scaled(reweighed_gradient(algorithm, start))

    keys = jax.random.split(KEY, 2000)
    of = {
        name: computed(lambda rule=rule: jax.vmap(lambda key: estimate(rule, key))(keys))
        for name, rule in (("mixture", mixture), ("ratio", ratio))
    }
    exact = env.gradient(policies[-1])
    for found in of.values():
        error = found.std(0) / len(keys) ** 0.5
        assert (np.abs(found.mean(0) - exact) < 4 * error + 1e-5).all()
    assert of["mixture"].var(0).sum() < 0.9 * of["ratio"].var(0).sum()


def test_the_mixture_of_occupancies_weighs_states():
    θ, unflatten = flatten(tabular_softmax_policy(4, 3))
    policies = [unflatten(jax.random.normal(jax.random.key(i), θ.shape)) for i in range(3)]
    batches = [batch_of(KEY, policy, GARNET, Draws(30), 0.8) for policy in policies[:2]]
    rule = OccupancyMixture(oracle=GARNET)
    shares = jnp.array([0.7, 0.3])

    def look():
        window = recall(history_from(policies[:2], batches, rule), policies[2], rule).window(shares)
        return window.occupancy_ratio, window.weights

    joint = lambda policy: GARNET.occupancy(policy)[:, None] * GARNET.probabilities(policy)
    states = jnp.concatenate([batch.observations.argmax(-1)[:, 0] for batch in batches[::-1]])
    actions = jnp.concatenate([batch.actions[:, 0] for batch in batches[::-1]])
    mix = lambda of: of(policies[2]) / (0.7 * of(policies[1]) + 0.3 * of(policies[0]))
    of_states, of_both = computed(look)
    np.testing.assert_allclose(of_states, mix(GARNET.occupancy)[states], rtol=1e-4)
    np.testing.assert_allclose(of_both, mix(joint)[states, actions], rtol=1e-4)


def test_ages_that_do_not_count_stay_in_the_memory():
    """With one of three ages in use the step is vanilla; what is remembered is all there is."""
    full = RPG(window=3, weights=Mixture(), learning_rate=0.1)
    one = dataclasses.replace(full, shares=Uniform(1))
    alone = RPG(window=1, learning_rate=0.1)
    state = full.init(POLICIES[2], BATCHES[0], KEY)
    history = computed(lambda: history_from(POLICIES[:2], BATCHES[:2], Mixture(), capacity=3))
    state = dataclasses.replace(state, history=history)
    step = eqx.filter_jit(lambda a, s: narrow_update(a, s, Rollout.of(BATCHES[2]), KEY)[0])
    everything, narrow = step(full, state), step(one, state)
    for kept, expected in zip(
        jax.tree.leaves(narrow.history), jax.tree.leaves(everything.history), strict=True
    ):
        np.testing.assert_array_equal(kept, expected)
    vanilla = step(alone, alone.init(POLICIES[2], BATCHES[0], KEY))
    np.testing.assert_allclose(
        parameters(narrow.policy), parameters(vanilla.policy), rtol=1e-4, atol=1e-6
    )
    assert np.abs(parameters(narrow.policy) - parameters(everything.policy)).max() > 1e-3


def test_ppo_takes_the_weights_of_its_window():
    """Shares that name one age alone make that age's mixture the policy ratio."""
    critic = Critic(epochs=1, widths=(4,))
    settings = dict(window=2, epochs=2, learning_rate=0.01, critic=critic, shares=Newest())
    batch = BATCHES[1]

    def after(rule):
        algorithm = RPPO(weights=rule, **settings)
        state = algorithm.init(POLICIES[1], batch, KEY)
        history = history_from(POLICIES[:1], BATCHES[:1], rule, capacity=2)
        state = dataclasses.replace(state, history=history)
        return parameters(algorithm.update(state, Rollout.of(batch), KEY)[0].policy)

    mixture, ratio = computed(after, Mixture()), computed(after, PolicyRatio())
    assert np.abs(ratio - parameters(POLICIES[1])).max() > 1e-3
    np.testing.assert_allclose(mixture, ratio, atol=1e-5)


class Newest(Uniform):
    """All of the share to the newest age, which is not known before the others are weighed."""

    def __call__(self, evidence, memory):
        return ChosenShares(jnp.where(jnp.arange(len(evidence.rows)) == 0, 1.0, 0.0))
