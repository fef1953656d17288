"""Returns, GAE and V-trace against hand calculation and double loops; baselines against their
definitions."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import batch_of, computed, history_from, random_policy

from recollect.batch import Batch
from recollect.collect.compiled import Draws, Steps
from recollect.envs import CartPole, garnet
from recollect.estimate.advantages import (
    GAE,
    ExactAdvantages,
    Returns,
    VTrace,
    _standardised,
    all_is_well,
    linear_values,
    returns_to_go,
    vtrace,
)
from recollect.estimate.critic import Critic
from recollect.policies import tabular_softmax_policy

KEY = jax.random.key(0)


def batch_from(rewards, terminated, truncated, mask):
    rewards = np.float32(rewards)
    nothing = np.zeros((*rewards.shape, 1), np.float32)
    flags = [np.asarray(x, bool) for x in (terminated, truncated, mask)]
    rows = (
        nothing,
        nothing,
        0 * rewards,
        rewards,
        nothing,
        flags[0],
        flags[1],
        np.zeros(rewards.shape, np.int32),
        flags[2],
    )
    return Batch(*map(jnp.asarray, rows))


def test_returns_to_go_equal_a_double_loop():
    draw = np.random.default_rng(0)
    rewards, ended, mask = (
        draw.normal(size=(3, 9)),
        draw.random((3, 9)) < 0.25,
        np.arange(9) < np.array([[9], [5], [0]]),
    )
    expected = np.zeros((3, 9))
    for row in range(3):
        for start in range(9):
            weight = 1.0
            for t in range(start, 9):
                if not mask[row, t]:
                    break
                expected[row, start] += weight * rewards[row, t]
                weight *= 0.9
                if ended[row, t]:
                    break
    dirty = np.where(mask, rewards, np.nan)
    found = computed(returns_to_go, *map(jnp.asarray, (dirty, ended, mask)), 0.9)
    np.testing.assert_allclose(found, expected, atol=1e-6)


# Two steps of reward 1 and 2, V = 10 and 20 at their observations, 20 and 40 at their successors;
# γ = ½, λ = ½ (1 for returns).
ENDINGS = {
    # ending of the first step, of the second: δ = (1 + ½·20 − 10, 2 + ½·40 − 20) unless
    # terminated
    ("goes on", "cut by the batch"): {"gae": [1 + 0.25 * 2, 2], "return": [1 + 0.5 * 2, 2]},
    ("goes on", "truncated"): {"gae": [1 + 0.25 * 2, 2], "return": [1 + 0.5 * 2, 2]},
    ("goes on", "terminated"): {"gae": [1 + 0.25 * -18, -18], "return": [1 + 0.5 * -18, -18]},
    ("truncated", "terminated"): {"gae": [1, -18], "return": [1, -18]},
    ("terminated", "truncated"): {"gae": [-9, 2], "return": [-9, 2]},
    ("terminated", "terminated"): {"gae": [-9, -18], "return": [-9, -18]},
    ("truncated", "truncated"): {"gae": [1, 2], "return": [1, 2]},
    ("truncated", "padding"): {"gae": [1, 0], "return": [1, 0]},
}


@pytest.mark.parametrize(("first", "second"), ENDINGS)
def test_termination_and_truncation_by_hand(first, second):
    says = lambda word: [[first == word, second == word]]
    batch = batch_from(
        [[1.0, 2.0]], says("terminated"), says("truncated"), [[True, second != "padding"]]
    )
    values, following, one = jnp.array([[10.0, 20.0]]), jnp.array([[20.0, 40.0]]), jnp.ones((1, 2))
    for name, decay in dict(gae=0.25, **{"return": 0.5}).items():
        found, correction = computed(
            vtrace, batch, values, following, 0.5, jnp.array(decay), one, one
        )
        np.testing.assert_allclose(found[0], ENDINGS[first, second][name], atol=1e-6)
        np.testing.assert_allclose(correction, found, atol=1e-6)


def test_vtrace_equals_a_direct_double_loop():
    draw = np.random.default_rng(1)
    shape, γ, λ, ρ_most, c_most = (4, 12), 0.9, 0.8, 1.3, 0.7
    rewards, values, following = draw.normal(size=(3, *shape))
    terminated, truncated = draw.random((2, *shape)) < 0.12
    mask = np.arange(12) < np.array([[12], [7], [12], [0]])
    ratio = np.exp(draw.normal(size=shape))
    v, advantages = np.zeros(shape), np.zeros(shape)
    for row, start in np.argwhere(mask):
        δ = lambda t, row=row: (
            rewards[row, t] + γ * (not terminated[row, t]) * following[row, t] - values[row, t]
        )
        # v_s = V(s) + Σ_{t≥s} γ^{t−s} (Π_{i<t} λ c_i) ρ_t δ_t, summed term by term until the
        # episode or the batch ends.
        product, total = 1.0, 0.0
        for t in range(start, 12):
            if not mask[row, t]:
                break
            total += γ ** (t - start) * product * min(ρ_most, ratio[row, t]) * δ(t)
            product *= λ * min(c_most, ratio[row, t])
            if terminated[row, t] or truncated[row, t]:
                break
        v[row, start] = values[row, start] + total
    for row, t in np.argwhere(mask):
        last = terminated[row, t] or truncated[row, t] or t == 11 or not mask[row, t + 1]
        after = 0 if last else v[row, t + 1] - values[row, t + 1]
        bootstrap = 0 if terminated[row, t] else following[row, t] + λ * after
        advantages[row, t] = rewards[row, t] + γ * bootstrap - values[row, t]
    batch = batch_from(np.where(mask, rewards, np.nan), terminated, truncated, mask)
    rho, c = jnp.minimum(ratio, ρ_most), jnp.minimum(ratio, c_most)
    found, corrections = computed(
        vtrace, batch, jnp.asarray(values), jnp.asarray(following), γ, γ * λ, rho, c
    )
    np.testing.assert_allclose(found, advantages, atol=1e-5)
    np.testing.assert_allclose(np.where(mask, values + corrections, 0), v, atol=1e-5)


def history_of(env, collector, count=2):
    policy = random_policy(KEY, env)
    batches = [batch_of(jax.random.fold_in(KEY, i), policy, env, collector) for i in range(count)]
    store = eqx.filter_jit(
        lambda *batches: history_from([policy] * count, batches, capacity=count + 1)
    )
    return store(*batches).batches, policy


def estimate(advantages, batches, policy, discount=0.99, log_ratio=0.0, **more):
    ratios = jnp.asarray(np.broadcast_to(np.float32(log_ratio), batches.rewards.shape))
    return computed(advantages, batches, policy, discount, ratios, **more)


def test_vtrace_is_gae_when_the_policies_agree_and_only_then():
    batches, policy = history_of(CartPole(max_steps=40), Steps(4, 30))
    critic = Critic(widths=(8,)).init(KEY, 4)
    critic = dataclasses.replace(
        critic, value_units=jax.tree.map(lambda x: x + 3.0, critic.value_units)
    )
    gae, corrected = (GAE(gae_lambda=0.9), VTrace(gae_lambda=0.9))
    same = [estimate(a, batches, policy, critic=critic) for a in (gae, corrected)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *same)
    ratio = np.random.default_rng(0).normal(0, 0.5, batches.rewards.shape)
    moved = [
        estimate(a, batches, policy, log_ratio=ratio, critic=critic).advantages
        for a in (gae, corrected)
    ]
    np.testing.assert_array_equal(moved[0], same[0].advantages)
    assert np.abs(moved[1] - moved[0]).max() > 0.1
    # Returns are GAE with λ = 1, and the targets are what advantages and values add up to.
    returns, one = (
        estimate(advantages, batches, policy, critic=critic)
        for advantages in (Returns(baseline="critic"), GAE(gae_lambda=1.0))
    )
    np.testing.assert_allclose(returns.advantages, one.advantages, atol=1e-5)
    np.testing.assert_allclose(one.targets, one.advantages + one.values, atol=1e-4)


@pytest.mark.parametrize("ratio", [0.5, 3.0])
def test_vtrace_takes_the_ratio_as_it_is_and_corrects_the_targets(ratio):
    """By the recursion of the module's docstring, with ρ = min(ω, 2) and c = min(ω, 1.5)."""
    batches, policy = history_of(CartPole(max_steps=40), Steps(4, 30))
    critic = Critic(widths=(8,)).init(KEY, 4)
    units = jax.tree.map(lambda x: x + 3.0, critic.value_units)
    critic = dataclasses.replace(critic, value_units=units)
    rule = VTrace(gae_lambda=0.9, truncate_rho=2.0, truncate_c=1.5)
    found = estimate(rule, batches, policy, log_ratio=np.log(ratio), critic=critic)
    shape = batches.rewards.shape
    ρ, c = (np.full(shape, min(ratio, most), np.float32) for most in (2.0, 1.5))
    values = computed(critic, batches.observations)
    following = computed(critic, batches.next_observations)
    traced = computed(vtrace, batches, values, following, 0.99, 0.99 * 0.9, ρ, c)
    advantages, corrections = traced
    mask = np.asarray(batches.mask)
    targets = values + corrections
    np.testing.assert_allclose(found.advantages[mask], advantages[mask], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.targets[mask], targets[mask], rtol=1e-4, atol=1e-4)
    # Advantages leave out the ratio of their own action and targets do not, so that they differ.
    assert np.abs(advantages - corrections)[mask].max() > 0.1


@pytest.mark.parametrize("baseline", ["none", "linear"])
def test_standardised_advantages_have_mean_zero_and_deviation_one(baseline):
    """Also where the baseline leaves a mean other than zero."""
    batches, policy = history_of(CartPole(max_steps=40), Steps(4, 30))
    mask = np.asarray(batches.mask)
    rules = (Returns(baseline=baseline, standardise=scale) for scale in (False, True))
    plain, scaled = (estimate(rule, batches, policy).advantages[mask] for rule in rules)
    assert baseline != "none" or plain.mean() > plain.std()
    np.testing.assert_allclose([scaled.mean(), scaled.std()], [0, 1], atol=1e-3)


def test_an_overflowing_ratio_stays_finite():
    batches, policy = history_of(CartPole(max_steps=40), Steps(4, 30))
    huge = VTrace(truncate_rho=float("inf"), truncate_c=1.0)
    for log_ratio in (1e4, -1e4):
        found = estimate(
            huge, batches, policy, log_ratio=log_ratio, critic=Critic(widths=(8,)).init(KEY, 4)
        )
        assert np.isfinite(found.advantages).all()


def test_baselines():
    batches, policy = history_of(CartPole(max_steps=40), Steps(4, 30))
    mask = np.asarray(batches.mask)
    found = [
        estimate(Returns(baseline=b), batches, policy).advantages
        for b in ("none", "mean", "linear")
    ]
    plain, centred, fitted = found
    np.testing.assert_allclose(centred[mask], plain[mask] - plain[mask].mean(), atol=1e-4)
    assert fitted[mask].var() < centred[mask].var()
    scaled = estimate(Returns(standardise=True), batches, policy).advantages
    np.testing.assert_allclose([scaled[mask].mean(), scaled[mask].std()], [0, 1], atol=1e-3)
    for estimates in (plain, centred, fitted, scaled):
        assert (estimates[~mask] == 0).all()


def test_the_linear_baseline_finds_a_quadratic_value():
    draw = lambda *shape: np.random.default_rng(0).normal(size=shape).astype(np.float32)
    observations, others = np.split(draw(4, 3, 50, 3), 2)
    quadratic = lambda observations: (
        2 + observations[..., 0] - 3 * observations[..., 1] * observations[..., 2]
    )
    mask = np.broadcast_to(np.arange(50) < 45, (2, 3, 50))
    fit = lambda observations, targets, mask, at: linear_values(observations, targets, mask)(at)
    fitted = computed(
        fit, observations, np.where(mask, quadratic(observations), np.float32(1e6)), mask, others
    )
    np.testing.assert_allclose(fitted, quadratic(others), atol=0.03)
    wide = draw(1, 1, 200, 20)
    np.testing.assert_allclose(
        computed(fit, wide, wide[..., 0] ** 2, np.ones((1, 1, 200), bool), wide),
        wide[..., 0] ** 2,
        atol=0.02,
    )


def test_exact_advantages_are_those_of_the_current_policy():
    env = garnet(0, states=4, actions=2)
    batches, _ = history_of(env, Draws(6))
    policy = tabular_softmax_policy(4, 2)
    found = estimate(ExactAdvantages(oracle=env), batches, policy, env.discount).advantages
    batches = jax.device_get(batches)
    expected = computed(env.advantages, policy)[batches.observations.argmax(-1), batches.actions]
    np.testing.assert_allclose(found[batches.mask], expected[batches.mask], atol=1e-5)


@pytest.mark.parametrize("scale", [1e30, 1e18, 1e-12, 1e-30])
def test_standardised_advantages_have_no_scale_of_their_own(scale):
    """Not even where squares overflow or a fixed floor would drown them."""
    rewards = jax.random.normal(KEY, (1, 2, 5))
    mask = jnp.ones((1, 2, 5), bool).at[0, 1, 3:].set(False)
    plain, scaled = _standardised(rewards, mask), _standardised(scale * rewards, mask)
    np.testing.assert_allclose(scaled, plain, rtol=1e-4, atol=1e-6)
    values = np.asarray(plain)[np.asarray(mask)]
    np.testing.assert_allclose([values.mean(), values.std()], [0, 1], atol=1e-5)


def test_advantages_that_are_all_the_same_hold_no_signal():
    mask = jnp.ones((1, 3, 7), bool)
    same = jnp.full((1, 3, 7), 0.1)
    np.testing.assert_array_equal(_standardised(same, mask), 0)
    rounded = same.at[0, 0].multiply(1 + 2e-7)  # the next float or two
    assert (rounded != same).any()
    np.testing.assert_array_equal(_standardised(rounded, mask), 0)


def test_nothing_is_learned_where_all_is_well():
    """What a critic says there is noise, which is not scaled up; padding says nothing."""
    never = np.zeros((2, 3), bool)
    once = np.array([[False, False, True], [False, False, False]])
    inside = np.array([[True, True, True], [True, True, False]])
    spoiled = lambda rewards: np.where(inside, rewards, 7.0)
    cases = [
        (np.full((2, 3), 2.0), never, True),
        (np.full((2, 3), 2.0), once, False),
        (np.array([[2.0, 2.0, 2.0], [2.0, 1.0, 2.0]]), never, False),
        (np.zeros((2, 3)), never, False),
        (np.full((2, 3), -1.0), never, False),
        (np.full((2, 3), -1.0), once, False),
    ]
    policy = random_policy(KEY)
    critic = Critic(widths=(3,)).init(KEY, 1)
    # What it says differs from state to state, though nothing is known.
    places = jnp.arange(6.0).reshape(2, 3, 1)
    for rewards, terminated, expected in cases:
        batch = batch_from(spoiled(rewards), terminated, never, inside)
        # An ending in padding is none.
        batch = eqx.tree_at(lambda b: b.terminated, batch, batch.terminated | ~inside)
        assert bool(all_is_well(batch)) == expected
        batch = eqx.tree_at(lambda b: b.observations, batch, places)
        batches = jax.tree.map(lambda x: x[None], batch)
        rule = GAE(standardise=True)
        advantages = rule(batches, policy, 0.9, jnp.zeros((1, 2, 3)), critic).advantages
        assert bool(jnp.any(advantages != 0)) != expected
