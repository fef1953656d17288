"""Observations in standard units: statistics of the data, and steps that take them into account."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import batch_of, computed, parameters, random_policy, update
from plain import RNPG, RPG, RTRPO

from recollect.algorithms import REFUSALS, RPPO
from recollect.estimate.advantages import Returns
from recollect.policies.normaliser import FURTHEST, Normaliser
from recollect.step.project import Box

KEY = jax.random.key(0)
ALL = jnp.ones(300, bool)


def rows_of(key, mean, spread, count=300):
    return jnp.array(mean) + jnp.array(spread) * jax.random.normal(key, (count, len(mean)))


FIRST = rows_of(jax.random.key(1), [1.0, -2.0, 0.5, 0.0], [0.5, 3.0, 1.0, 2.0])
SECOND = rows_of(jax.random.key(2), [2.0, 1.0, 0.5, 1.0], [1.5, 1.0, 2.0, 2.0])


def normalised(policy, rows=None):
    """The policy with a normaliser, which has seen the rows if there are any."""
    normaliser = Normaliser.fresh(4)
    if rows is not None:
        normaliser = normaliser.seeing(rows, jnp.ones(len(rows), bool))
    return dataclasses.replace(policy, normaliser=normaliser)


def outputs(policy, rows):
    return np.asarray(jax.vmap(policy.outputs)(rows))


def test_statistics_are_those_of_everything_seen():
    both = Normaliser.fresh(4).seeing(FIRST, ALL).seeing(SECOND[:100], ALL[:100])
    seen = np.concatenate([FIRST, SECOND[:100]])
    np.testing.assert_allclose(both.units.mean, seen.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both.units.spread, seen.std(0), rtol=1e-4)
    assert float(both.seen) == 400


def test_padding_is_not_seen():
    mask = jnp.arange(300) < 120
    spoiled = jnp.where(mask[:, None], SECOND, jnp.nan)
    some = Normaliser.fresh(4).seeing(FIRST, ALL).seeing(spoiled, mask)
    expected = Normaliser.fresh(4).seeing(FIRST, ALL).seeing(SECOND[:120], mask[:120])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), some, expected)
    nothing = Normaliser.fresh(4).seeing(spoiled, jnp.zeros(300, bool))
    jax.tree.map(np.testing.assert_array_equal, nothing, Normaliser.fresh(4))


def test_nothing_is_cut_before_there_are_statistics():
    far = jnp.full((1, 4), 1e4)
    np.testing.assert_array_equal(Normaliser.fresh(4)(far), far)
    np.testing.assert_allclose(
        Normaliser.fresh(4).seeing(FIRST, ALL)(far), np.full((1, 4), FURTHEST)
    )


def test_the_first_statistics_are_adopted_as_they_are():
    old = normalised(random_policy(KEY))
    start, reference = computed(lambda: old.seeing(FIRST, ALL))
    np.testing.assert_array_equal(parameters(start), parameters(old))
    np.testing.assert_allclose(start.normaliser.units.mean, FIRST.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(outputs(reference, FIRST), outputs(start, FIRST))


def test_later_statistics_are_a_part_of_the_step():
    old = normalised(random_policy(KEY), FIRST)
    start, reference = computed(lambda: old.seeing(SECOND, ALL))
    np.testing.assert_array_equal(parameters(start), parameters(old))
    assert float(start.normaliser.seen) == 600
    jax.tree.map(
        np.testing.assert_array_equal,
        eqx.filter(reference, eqx.is_array),
        eqx.filter(old, eqx.is_array),
    )


def drifting(key, policy, scale):
    """A batch of ENV whose observations have other units than the batch before."""
    batch = batch_of(key, policy)
    change = lambda x: scale * x + 0.1 * scale
    batch = dataclasses.replace(batch, observations=change(batch.observations))
    log_probs = jax.vmap(jax.vmap(policy.log_prob))(batch.observations, batch.actions)
    return dataclasses.replace(
        batch, next_observations=change(batch.next_observations), log_probs=log_probs
    )


def mean_kl(old, new, batch):
    kls = jax.vmap(jax.vmap(lambda s: old.kl(new, s)))(batch.observations)
    return float(jnp.sum(kls, where=batch.mask) / batch.mask.sum())


def test_no_step_leaves_the_trust_region_while_the_statistics_move():
    """From the policy that acted to the one that acts next, and nothing moves it after the
    search."""
    algorithm = RTRPO(window=2, target_kl=0.05, advantages=Returns(), damping=0.1)
    policy = normalised(random_policy(KEY))
    state = algorithm.init(policy, batch_of(KEY, policy), KEY)
    accepted = 0
    for i in range(6):
        batch = drifting(jax.random.key(i), state.policy, 1.0 + 0.02 * i)
        old = state.policy
        state, info = update(algorithm, state, batch, KEY)
        if info.refused == 0:
            accepted += 1
            # The very first statistics are no step.
            reference = old if i else dataclasses.replace(old, normaliser=state.policy.normaliser)
            moved = mean_kl(reference, state.policy, batch)
            np.testing.assert_allclose(float(info.kl), moved, rtol=1e-2, atol=1e-6)
            assert moved <= 0.0505
    assert accepted >= 2
    assert float(state.policy.normaliser.seen) > 0


def test_a_step_that_is_not_found_moves_no_statistics():
    """Every candidate is pushed into a corner far outside the trust region."""
    algorithm = RTRPO(window=1, target_kl=1e-3, advantages=Returns(), damping=0.1)
    state = algorithm.init(normalised(random_policy(KEY)), batch_of(KEY, random_policy(KEY)), KEY)
    state, _ = update(algorithm, state, drifting(KEY, state.policy, 1.0), KEY)
    hopeless = dataclasses.replace(algorithm, project=Box(5.0, 6.0))
    after, info = update(hopeless, state, drifting(jax.random.key(1), state.policy, 1.5), KEY)
    assert REFUSALS[int(info.refused)].startswith("no step was found")
    jax.tree.map(np.testing.assert_array_equal, after.policy, state.policy)


@pytest.mark.parametrize("make", [RTRPO, RNPG])
def test_statistics_that_move_the_policy_take_a_part_of_the_radius(make):
    """All of them would take the policy further than the radius; the search sees what is taken."""
    radius = 1e-3
    algorithm = make(window=1, target_kl=radius, advantages=Returns(), damping=0.1)
    state = algorithm.init(normalised(random_policy(KEY)), batch_of(KEY, random_policy(KEY)), KEY)
    state, _ = update(algorithm, state, drifting(KEY, state.policy, 1.0), KEY)
    batch = drifting(jax.random.key(1), state.policy, 1.5)
    after, info = update(algorithm, state, batch, KEY)
    assert int(info.refused) == 0
    old, new = state.policy, after.policy
    rows = batch.observations.reshape(-1, batch.observations.shape[-1])
    full, _ = old.seeing(rows, batch.mask.ravel())
    assert mean_kl(old, full, batch) > radius
    taken = mean_kl(old, dataclasses.replace(old, normaliser=new.normaliser), batch)
    np.testing.assert_allclose(taken, 0.25 * radius, rtol=0.2)
    assert mean_kl(old, new, batch) <= radius
    way = lambda pick: (pick(new) - pick(old)) / (pick(full) - pick(old))
    part = way(lambda policy: policy.normaliser.seen)
    np.testing.assert_allclose(way(lambda p: p.normaliser.units.mean), part, rtol=1e-3)
    np.testing.assert_allclose(way(lambda p: p.normaliser.units.spread), part, rtol=1e-3)


@pytest.mark.parametrize(
    "algorithm",
    [RPG(), RNPG(), RTRPO(advantages=Returns()), RPPO(advantages=Returns())],
    ids=["pg", "npg", "trpo", "ppo"],
)
def test_a_refused_update_moves_no_statistics(algorithm):
    state = algorithm.init(
        normalised(random_policy(KEY), FIRST), batch_of(KEY, random_policy(KEY)), KEY
    )
    batch = batch_of(KEY, state.policy)
    bad = dataclasses.replace(batch, rewards=batch.rewards.at[0, 0].set(jnp.nan))
    after, info = update(algorithm, state, bad, KEY)
    assert info.refused > 0
    jax.tree.map(
        np.testing.assert_array_equal,
        eqx.filter(after.policy, eqx.is_array),
        eqx.filter(state.policy, eqx.is_array),
    )
    moved, info = update(algorithm, state, batch, KEY)
    assert info.refused == 0
    assert float(moved.policy.normaliser.seen) == 300 + int(batch.mask.sum())
