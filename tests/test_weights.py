"""Importance weights: identities, and that logs keep everything finite."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ENV, batch_of, history_from, random_policy

from recollect.collect.compiled import Draws
from recollect.envs import LQC, garnet
from recollect.memory.mixture import Mixture
from recollect.memory.rows import recall as _recall
from recollect.memory.weights import (
    OccupancyRatio,
    PolicyRatio,
    PowerMean,
    View,
    effective_sample_size,
)
from recollect.policies import ShiftPolicy, tabular_softmax_policy
from recollect.tree import flatten

KEY = jax.random.key(0)
recall = eqx.filter_jit(_recall)


remembered = eqx.filter_jit(history_from)


def view_of(log_ratio):
    """What a rule sees that looks at nothing but ratios of action probabilities."""
    real = jnp.ones_like(log_ratio, bool)
    age = jnp.zeros_like(log_ratio, int)
    return View(
        policy=ShiftPolicy(jnp.zeros(())),
        observations=log_ratio[:, None],
        actions=log_ratio[:, None],
        log_ratio=log_ratio,
        age=age,
        mask=real,
        shares=jnp.ones(1),
        memory=None,
    )


@pytest.mark.parametrize(
    "rule",
    [
        PolicyRatio(),
        PolicyRatio(truncate=2.0),
        PolicyRatio(self_normalise=True),
        PowerMean(0.3),
        Mixture(),
    ],
    ids=["plain", "truncated", "normalised", "power", "mixture"],
)
def test_an_unchanged_policy_has_weights_of_one(rule):
    policy = random_policy(KEY)
    history = remembered(
        [policy] * 2, [batch_of(jax.random.fold_in(KEY, i), policy) for i in range(2)], rule
    )
    recalled = recall(history, policy, rule)
    mask = history.batches.mask.ravel()
    np.testing.assert_allclose(recalled.weights, mask, atol=1e-5)
    ess, by_age = recalled.effective_sample_size()
    np.testing.assert_allclose(ess, mask.sum(), rtol=1e-5)
    np.testing.assert_allclose(by_age, history.batches.mask.sum((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(recalled.uniform_window(2).coefficients().sum(), 1, rtol=1e-5)


def test_weights_are_ratios_of_probabilities_newest_first():
    old, new = random_policy(KEY), random_policy(jax.random.key(1))
    first, second = batch_of(jax.random.key(2), old), batch_of(jax.random.key(3), new)
    recalled = recall(remembered([old, new], [first, second], PolicyRatio()), new, PolicyRatio())
    by_age = recalled.packing.unpack(recalled.weights)
    np.testing.assert_allclose(by_age[0], second.mask, atol=1e-5)
    log_prob = lambda policy: jax.vmap(jax.vmap(policy.log_prob))(first.observations, first.actions)
    expected = jnp.where(first.mask, jnp.exp(log_prob(new) - log_prob(old)), 0)
    np.testing.assert_allclose(by_age[1], expected, rtol=1e-4)
    assert expected.std() > 0.1
    _, ess = recalled.effective_sample_size()
    worth = expected.sum() ** 2 / (expected**2).sum()
    np.testing.assert_allclose(ess, [second.mask.sum(), worth], rtol=1e-4)


def test_occupancy_ratio_of_a_table():
    env = garnet(0, states=4, actions=2)
    rule = OccupancyRatio(oracle=env)
    θ, unflatten = flatten(tabular_softmax_policy(4, 2))
    new, *older = (unflatten(i * jax.random.normal(jax.random.key(i), θ.shape)) for i in range(3))
    batches = [batch_of(KEY, policy, env, Draws(200), env.discount) for policy in older]
    recalled = recall(remembered(older, batches, rule), new, rule)
    joint = lambda policy: env.occupancy(policy)[:, None] * env.probabilities(policy)
    by_age = recalled.packing.unpack(recalled.weights)[..., 0]
    for found, policy, batch in zip(by_age, older[::-1], batches[::-1], strict=True):
        ratio = joint(new) / joint(policy)
        expected = ratio[batch.observations[:, 0].argmax(-1), batch.actions[:, 0]]
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_occupancy_ratio_of_lqc_has_mean_one_and_the_policy_ratio_less_variance():
    """The policy ratio is the conditional mean of the exact one given s + a, so it varies less."""
    env, old, new = LQC(), ShiftPolicy(jnp.array(0.3)), ShiftPolicy(jnp.array(0.0))
    batch = batch_of(KEY, old, env, Draws(50_000), 0.5)
    weights = {}
    for ratio in ("occupancy", "policy"):
        rule = {"occupancy": OccupancyRatio(oracle=env), "policy": PolicyRatio()}[ratio]
        weights[ratio] = recall(remembered([old], [batch], rule), new, rule).weights
        assert abs(weights[ratio].mean() - 1) < 4 * weights[ratio].std() / 50_000**0.5
    assert weights["occupancy"].var() > weights["policy"].var()


def test_truncation_and_self_normalisation():
    log_ratio = jnp.array([jnp.log(4.0), 0.0, -1.0])
    weights = PolicyRatio(truncate=3.0).weights(view_of(log_ratio))
    np.testing.assert_allclose(weights, [3, 1, np.exp(-1)], rtol=1e-6)
    weights = PolicyRatio().weights(view_of(log_ratio))
    half = jnp.array([1.0, 1.0, 0.5])
    np.testing.assert_allclose(PolicyRatio().denominator(weights, half), 2.5)
    np.testing.assert_allclose(
        PolicyRatio(self_normalise=True).denominator(weights, half),
        5 + np.exp(-1) / 2,
        rtol=1e-6,
    )


def test_the_power_mean_lies_between_the_ratio_and_one():
    log_ratio = jnp.array([jnp.log(4.0), 0.0, -1.0, 500.0, -500.0])
    weigh = lambda mix: np.asarray(PowerMean(mix).weights(view_of(log_ratio)))
    ω = np.array([4.0, 1.0, np.exp(-1)])
    np.testing.assert_allclose(weigh(0.2)[:3], ω / (0.2 * ω + 0.8), rtol=1e-5)
    np.testing.assert_allclose(weigh(0.2)[3:], [5, 0], atol=1e-5)
    np.testing.assert_allclose(weigh(0.0)[:3], ω, rtol=1e-5)
    np.testing.assert_allclose(weigh(1.0), 1, rtol=1e-5)
    with pytest.raises(ValueError, match=r"mix=1.5 is out of range; give the share"):
        PowerMean(1.5)


def test_extreme_ratios_stay_finite_under_truncation_and_padding():
    log_ratio = jnp.array([500.0, -500.0])
    weight = lambda log_ratio: PolicyRatio(truncate=10.0).weights(view_of(log_ratio)).sum()
    np.testing.assert_allclose(weight(log_ratio), 10, rtol=1e-6)
    assert np.isfinite(jax.grad(weight)(log_ratio)).all()
    assert np.isfinite(effective_sample_size(jnp.array([1e30, 1e30, 0.0])))
    np.testing.assert_allclose(effective_sample_size(jnp.array([[1e30, 1e30], [0.0, 0.0]])), [2, 0])


def test_discounted_states():
    policy = random_policy(KEY)
    batch = batch_of(KEY, policy)
    recalled = recall(
        remembered([policy], [batch], PolicyRatio()), policy, PolicyRatio(), discount=0.9
    )
    expected = jnp.where(batch.mask, 0.9 ** jnp.arange(ENV.max_steps), 0).ravel()
    np.testing.assert_allclose(recalled.state_weights, expected, rtol=1e-5)
    # Every episode ended, and the time after that counts: Σ γ^t over all times, for each of three.
    np.testing.assert_allclose(
        recalled.uniform_window(1).coefficients(), expected / (3 / (1 - 0.9)), rtol=1e-4, atol=1e-7
    )
    np.testing.assert_allclose(
        recalled.uniform_window(1).coverage(), expected.sum() / 30, rtol=1e-4
    )


@pytest.mark.parametrize("self_normalise", [False, True])
def test_a_shorter_window_is_averaged_over_itself_alone(self_normalise):
    """A history that is longer than the window changes no coefficient of the newest batches."""
    rule = PolicyRatio(self_normalise=self_normalise)
    old, new = random_policy(KEY), random_policy(jax.random.key(1))
    policies = [old, old, new]
    batches = [batch_of(jax.random.fold_in(KEY, i), policy) for i, policy in enumerate(policies)]
    recalled = recall(remembered(policies, batches, rule), new, rule)
    for window in (1, 2):
        short = recall(remembered(policies[-window:], batches[-window:], rule), new, rule)
        found = recalled.uniform_window(window).coefficients()
        np.testing.assert_allclose(found, short.uniform_window(window).coefficients(), rtol=1e-5)
    # The newest batch has weights of one, so that each transition has its share of one.
    mask = batches[-1].mask.ravel()
    np.testing.assert_allclose(
        recalled.uniform_window(1).coefficients(), mask / mask.sum(), rtol=1e-4
    )


def test_packed_rows_of_older_batches_stay_outside_the_window(monkeypatch):
    monkeypatch.setattr("recollect.memory.rows.chunk_size", lambda: 30)
    policy = random_policy(KEY)
    batches = [batch_of(jax.random.fold_in(KEY, i), policy) for i in range(3)]
    history = remembered([policy] * 3, batches, PolicyRatio())
    recalled = eqx.filter_jit(lambda history: _recall(history, policy, PolicyRatio()))(history)
    assert recalled.packing.source is not None
    counts = np.array([int(batch.mask.sum()) for batch in reversed(batches)])
    assert counts[0] < batches[0].mask.size
    for window in (1, 2):
        count = counts[:window].sum()
        expected = np.where(np.arange(window * batches[0].mask.size) < count, 1 / count, 0)
        np.testing.assert_allclose(
            recalled.uniform_window(window).coefficients(), expected, rtol=1e-4
        )
