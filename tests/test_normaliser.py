"""Observations in standard units: statistics of the data, and a policy that they do not move."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import batch_of, computed, parameters, random_policy, update

from recollect.advantages import Advantages
from recollect.algorithms import REFUSALS, RNPG, RPG, RPPO, RTRPO
from recollect.algorithms.base import begin
from recollect.normaliser import FURTHEST, Normaliser
from recollect.policies import Policy, Softmax
from recollect.project import Box

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
    np.testing.assert_allclose(Normaliser.fresh(4).seeing(FIRST, ALL)(far), np.full((1, 4), FURTHEST))


def test_new_statistics_rewrite_the_first_layer_and_leave_the_policy_as_it_was():
    old = normalised(random_policy(KEY), FIRST)
    start, reference = computed(lambda: old.seeing(SECOND, ALL))
    assert np.abs(np.asarray(start.network.layers[0].weight) - old.network.layers[0].weight).max() > 0.1
    near = FIRST[(jnp.abs(old.normalise(FIRST)) < FURTHEST).all(1)]
    np.testing.assert_allclose(outputs(start, near), outputs(old, near), rtol=1e-3, atol=1e-4)
    assert np.abs(outputs(old, near)).max() > 1
    jax.tree.map(np.testing.assert_array_equal, eqx.filter(reference, eqx.is_array), eqx.filter(old, eqx.is_array))


def test_the_first_statistics_are_adopted_as_they_are():
    old = normalised(random_policy(KEY))
    start, reference = computed(lambda: old.seeing(FIRST, ALL))
    np.testing.assert_array_equal(parameters(start), parameters(old))
    np.testing.assert_allclose(start.normaliser.units.mean, FIRST.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(outputs(reference, FIRST), outputs(start, FIRST))


def test_a_feature_that_starts_to_vary_does_not_blow_up_the_network():
    old = normalised(random_policy(KEY), FIRST.at[:, 2].set(7.0))
    start, _ = computed(lambda: old.seeing(SECOND, ALL))
    np.testing.assert_array_equal(start.network.layers[0].weight[:, 2], old.network.layers[0].weight[:, 2])
    assert np.abs(outputs(start, SECOND)).max() < 100


def drifting(key, policy, scale):
    """A batch of ENV whose observations have other units than the batch before."""
    batch = batch_of(key, policy)
    change = lambda x: scale * x + 0.1 * scale
    batch = dataclasses.replace(batch, observations=change(batch.observations))
    log_probs = jax.vmap(jax.vmap(policy.log_prob))(batch.observations, batch.actions)
    return dataclasses.replace(batch, next_observations=change(batch.next_observations), log_probs=log_probs)


def mean_kl(old, new, batch):
    kls = jax.vmap(jax.vmap(lambda s: old.kl(new, s)))(batch.observations)
    return float(jnp.sum(kls, where=batch.mask) / batch.mask.sum())


class Opaque(eqx.Module):
    """A network whose first layer nobody may rewrite."""

    inner: eqx.nn.MLP

    def __call__(self, x):
        return self.inner(x)


def opaque(key):
    return Policy(Opaque(eqx.nn.MLP(4, 2, 5, 1, key=key)), Softmax(), Normaliser.fresh(4))


@pytest.mark.parametrize("kind", ["rewritten", "opaque"])
def test_no_step_leaves_the_trust_region_while_the_statistics_move(kind):
    """From the policy that acted to the one that acts next, and nothing moves it after the search."""
    algorithm = RTRPO(window=2, target_kl=0.01, advantages=Advantages(), damping=0.1)
    policy = normalised(random_policy(KEY)) if kind == "rewritten" else opaque(KEY)
    drift = 1.0 if kind == "rewritten" else 0.03  # which the step has to make room for
    state = algorithm.init(policy, batch_of(KEY, policy), KEY)
    accepted = 0
    for i in range(6):
        batch = drifting(jax.random.key(i), state.policy, 1.0 + drift * i)
        old = state.policy
        state, info = update(algorithm, state, batch, KEY)
        if info.refused == 0:
            accepted += 1
            # The very first statistics are no step.
            reference = old if i else dataclasses.replace(old, normaliser=state.policy.normaliser)
            moved = mean_kl(reference, state.policy, batch)
            np.testing.assert_allclose(float(info.kl), moved, rtol=1e-2, atol=1e-6)
            assert moved <= 0.0101
    assert accepted >= 2
    assert float(state.policy.normaliser.seen) > 0


def test_the_search_sees_statistics_that_move_the_policy():
    """A network that cannot be rewritten is moved by its statistics alone, which counts against the radius."""
    algorithm = RTRPO(window=1, target_kl=1e-4, advantages=Advantages(), damping=0.1)
    state = algorithm.init(opaque(KEY), batch_of(KEY, opaque(KEY)), KEY)
    state, _ = update(algorithm, state, drifting(KEY, state.policy, 1.0), KEY)
    after, info = update(algorithm, state, drifting(jax.random.key(1), state.policy, 30.0), KEY)
    assert REFUSALS[int(info.refused)].startswith("the line search found no step")
    jax.tree.map(np.testing.assert_array_equal, after.policy.normaliser, state.policy.normaliser)


@pytest.mark.parametrize(
    "algorithm",
    [RPG(), RNPG(), RTRPO(advantages=Advantages()), RPPO(advantages=Advantages())],
    ids=["pg", "npg", "trpo", "ppo"],
)
def test_a_refused_update_moves_no_statistics(algorithm):
    state = algorithm.init(normalised(random_policy(KEY), FIRST), batch_of(KEY, random_policy(KEY)), KEY)
    batch = batch_of(KEY, state.policy)
    bad = dataclasses.replace(batch, rewards=batch.rewards.at[0, 0].set(jnp.nan))
    after, info = update(algorithm, state, bad, KEY)
    assert info.refused > 0
    jax.tree.map(np.testing.assert_array_equal, eqx.filter(after.policy, eqx.is_array), eqx.filter(state.policy, eqx.is_array))
    moved, info = update(algorithm, state, batch, KEY)
    assert info.refused == 0
    assert float(moved.policy.normaliser.seen) == 300 + int(batch.mask.sum())


def start_of(algorithm, state, batch):
    return eqx.filter_jit(lambda: begin(algorithm, state, batch, None))()


def test_moments_of_adam_scale_with_the_first_layer():
    """An update that Adam would make of the same gradients is the same change of the function."""
    algorithm = RPG(window=1, optimizer="adam")
    state = algorithm.init(normalised(random_policy(KEY)), batch_of(KEY, random_policy(KEY)), KEY)
    state, _ = update(algorithm, state, drifting(KEY, state.policy, 1.0), KEY)
    start = start_of(algorithm, state, drifting(KEY, state.policy, 5.0))
    old, new = state.optimizer[0], start.state.optimizer[0]
    ratio = np.asarray(state.policy.normaliser.units.spread / start.state.policy.normaliser.units.spread)
    weights = state.policy.network.layers[0].weight.size
    first = lambda moment: np.asarray(moment)[:weights].reshape(-1, 4)
    np.testing.assert_allclose(first(new.mu), first(old.mu) * ratio, rtol=1e-4)
    np.testing.assert_allclose(first(new.nu), first(old.nu) * ratio**2, rtol=1e-4)
    np.testing.assert_array_equal(new.mu[weights:], old.mu[weights:])
    assert ratio.max() < 0.8
    # Weights are measured in the inverse units of gradients by them.
    scaled = np.asarray(start.state.policy.network.layers[0].weight) / state.policy.network.layers[0].weight
    np.testing.assert_allclose(scaled, np.broadcast_to(1 / ratio, scaled.shape), rtol=1e-3)


def test_rewritten_parameters_are_put_back_into_the_feasible_set():
    algorithm = RPG(window=1, project=Box(-0.5, 0.5))
    inside = algorithm.project(random_policy(KEY))
    state = algorithm.init(normalised(inside, FIRST), batch_of(KEY, inside), KEY)
    start = start_of(algorithm, state, drifting(KEY, state.policy, 50.0))
    assert np.abs(parameters(start.state.policy)).max() <= 0.5
    free = start_of(RPG(window=1), state, drifting(KEY, state.policy, 50.0))
    assert np.abs(parameters(free.state.policy)).max() > 0.6
