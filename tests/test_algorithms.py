"""The updates: identities between algorithms, refusal of bad numbers, bias and its absence."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import ENV, batch_of, parameters, random_policy, update, updated

from recollect.advantages import Advantages
from recollect.algorithms import NPG, PG, REFUSALS, RNPG, RPG, VNPG, VPG
from recollect.algorithms.base import reweighed_gradient
from recollect.collect import Draws, Episodes
from recollect.envs import LQC, garnet
from recollect.history import History
from recollect.policies import AbstractPolicy, ShiftPolicy, tabular_softmax_policy
from recollect.project import Ball, Box
from recollect.recall import recall, remember_occupancy
from recollect.solve import Solver
from recollect.types import flatten
from recollect.weights import Weights

KEY = jax.random.key(0)
POLICY = random_policy(KEY)


BASE = RNPG(window=3, learning_rate=0.05)


@functools.cache
def after_base():
    return after(BASE)


def after(algorithm, **more):
    return np.asarray(parameters(updated(algorithm, POLICY, KEY, **more)[0].policy))


def test_a_window_of_one_is_the_vanilla_algorithm():
    np.testing.assert_array_equal(after(RPG(window=1)), after(VPG()))
    np.testing.assert_array_equal(after(RNPG(window=1)), after(VNPG()))
    assert np.abs(after(RNPG(window=3)) - after(VNPG())).max() > 1e-4


def test_vanilla_updates_equal_their_formula():
    """One step of VPG and VNPG, written out with dense arrays and no machinery."""
    batch = batch_of(jax.random.split(jax.random.fold_in(KEY, 0), 3)[0], POLICY)
    mask = np.asarray(batch.mask).ravel()
    rewards = np.asarray(batch.rewards)
    returns = np.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        future = returns[:, t + 1] if t + 1 < rewards.shape[1] else 0
        returns[:, t] = np.where(
            batch.mask[:, t], rewards[:, t] + 0.99 * np.where(batch.terminated[:, t] | batch.truncated[:, t], 0, future), 0
        )
    advantages = (returns.ravel()[mask] - returns.ravel()[mask].mean()).astype(np.float64)
    θ, unflatten = flatten(POLICY)
    observations, actions = batch.observations.reshape(-1, 4)[mask], batch.actions.ravel()[mask]
    scores = np.asarray(jax.jacobian(lambda θ: jax.vmap(unflatten(θ).log_prob)(observations, actions))(θ), np.float64)
    gradient = scores.T @ advantages / mask.sum()
    fisher = scores.T @ scores / mask.sum() + 1e-3 * np.eye(θ.size)
    np.testing.assert_allclose(after(VPG(), updates=1), θ + 0.01 * gradient, atol=1e-5)
    np.testing.assert_allclose(after(VNPG(), updates=1), θ + 0.01 * np.linalg.solve(fisher, gradient), atol=2e-4)


def test_damping_that_drowns_the_fisher_matrix_gives_the_plain_gradient():
    huge = 1e4
    np.testing.assert_allclose(after(RNPG(window=3, damping=huge, learning_rate=0.01 * huge)), after(RPG(window=3)), atol=1e-4)


def test_the_solvers_take_the_same_step():
    steps = [after(RNPG(window=3, damping=0.01, solver=Solver(method, tolerance=1e-6))) for method in ("cholesky", "cg")]
    np.testing.assert_allclose(steps[1], steps[0], atol=1e-3)


@pytest.mark.parametrize("algorithm", [RPG(window=2), RNPG(window=2), RNPG(window=2, fisher="expected")], ids=["pg", "npg", "expected"])
def test_padding_filled_with_nan_changes_nothing(algorithm):
    def spoil(batch):
        fill = lambda x: jnp.where(batch.mask.reshape(batch.mask.shape + (1,) * (x.ndim - 2)), x, jnp.array(jnp.nan).astype(x.dtype))
        return dataclasses.replace(jax.tree.map(fill, batch), mask=batch.mask)

    clean = batch_of(KEY, POLICY, collector=Episodes(3))
    assert not clean.mask.all()
    np.testing.assert_array_equal(after(algorithm, spoil=spoil), after(algorithm))


@pytest.mark.parametrize(
    ("algorithm", "field", "value"),
    [
        (RPG(window=2), "rewards", jnp.nan),
        (RNPG(window=2), "rewards", jnp.inf),
        (RNPG(window=2), "log_probs", jnp.nan),
        (RNPG(window=2), "observations", jnp.inf),
        (RNPG(window=2, optimizer="adam"), "rewards", jnp.nan),
    ],
    ids=["pg", "npg", "npg log_probs", "npg observations", "adam"],
)
def test_a_batch_that_is_not_finite_is_refused_bit_for_bit(algorithm, field, value):
    state, _ = updated(algorithm, POLICY, KEY, updates=2)
    batch = batch_of(jax.random.key(5), state.policy)
    bad = eqx.tree_at(lambda b: getattr(b, field), batch, getattr(batch, field).at[1, 0].set(value))
    refused, info = update(algorithm, state, bad, KEY)
    assert REFUSALS[int(info.refused)] == "the batch holds a number that is not finite"
    np.testing.assert_array_equal(parameters(refused.policy), parameters(state.policy))
    jax.tree.map(np.testing.assert_array_equal, refused.optimizer, state.optimizer)
    # The bad batch poisons no later update.
    later, info = update(algorithm, refused, batch, KEY)
    assert info.refused == 0
    assert np.isfinite(parameters(later.policy)).all()


def test_weights_that_overflow_are_refused():
    state, _ = updated(RPG(window=2), POLICY, KEY, updates=1)
    batch = batch_of(jax.random.key(5), state.policy)
    absurd = eqx.tree_at(lambda b: b.log_probs, batch, batch.log_probs - 300)
    after_update, info = update(RPG(window=2), state, absurd, KEY)
    assert REFUSALS[int(info.refused)] == "the gradient is not finite"
    np.testing.assert_array_equal(parameters(after_update.policy), parameters(state.policy))
    _, info = update(RPG(window=2, weights=Weights(truncate=5.0)), state, absurd, KEY)
    assert info.refused == 0
    assert info.max_weight == 5


def test_a_step_to_infinity_is_refused():
    state, info = updated(VPG(learning_rate=1e38, advantages=Advantages(baseline="none")), random_policy(KEY), KEY, updates=2)
    assert np.isfinite(parameters(state.policy)).all()
    assert int(info.refused) > 0


CHANGES = {
    "window": 2,
    "fisher_window": 1,
    "damping": 0.1,
    "learning_rate": 0.02,
    "decay": 0.5,
    "optimizer": "adam",
    "discount": 0.8,
    "discount_states": True,
    "objective_scale": True,
    "advantages": [Advantages(baseline="none"), Advantages(baseline="linear"), Advantages(standardise=True)],
    "weights": [Weights(truncate=0.9), Weights(self_normalise=True)],
    "project": [Box(-0.3, 0.3), Ball(0.5)],
    "fisher": "expected",
    "independent_fisher": True,
    "solver": [Solver("cg", tolerance=0.5, preconditioner_rows=0), Solver("cg", max_steps=1, preconditioner_rows=0)],
}


def test_every_field_is_listed():
    assert set(CHANGES) == {field.name for field in dataclasses.fields(NPG)}
    assert {field.name for field in dataclasses.fields(PG)} <= set(CHANGES)


@pytest.mark.parametrize(
    ("field", "index"), [(field, i) for field, v in CHANGES.items() for i in range(len(v) if isinstance(v, list) else 1)]
)
def test_every_field_changes_the_update(field, index):
    values = CHANGES[field] if isinstance(CHANGES[field], list) else [CHANGES[field]]
    changed = dataclasses.replace(BASE, **{field: values[index]})
    assert np.abs(after(changed) - after_base()).max() > 1e-6


def test_solver_choices_that_must_not_matter_do_not():
    """A preconditioner and a warm start change the road, not the end."""
    base = after(RNPG(window=3, damping=0.01, solver=Solver("cg", tolerance=1e-6)))
    for solver in (Solver("cg", tolerance=1e-6, warm_start=True), Solver("cg", tolerance=1e-6, preconditioner_rows=8)):
        np.testing.assert_allclose(after(RNPG(window=3, damping=0.01, solver=solver)), base, atol=1e-3)


def test_schedules_and_optax_optimizers():
    schedule = lambda iteration: 0.05 / (1 + iteration)
    np.testing.assert_allclose(after(RPG(learning_rate=schedule)), after(RPG(learning_rate=0.05, decay=1.0)), atol=1e-6)
    np.testing.assert_allclose(after(RPG(optimizer=optax.sgd(0.05), learning_rate=1.0)), after(RPG(learning_rate=0.05)), atol=1e-6)
    np.testing.assert_allclose(
        after(RPG(optimizer=optax.adam(0.05), learning_rate=1.0)), after(RPG(optimizer="adam", learning_rate=0.05)), atol=1e-6
    )


def test_fewer_batches_than_the_window_average_over_those_that_exist():
    """Before the window is full its length cannot matter."""
    np.testing.assert_allclose(after(RNPG(window=3), updates=3), after(RNPG(window=7), updates=3), atol=1e-5)
    np.testing.assert_allclose(after(RNPG(window=3, fisher_window=7), updates=3), after(RNPG(window=7), updates=3), atol=1e-5)


def test_a_longer_fisher_window_leaves_the_gradient_alone():
    _, short = updated(RNPG(window=2, fisher_window=2), POLICY, KEY, updates=1)
    _, long = updated(RNPG(window=2, fisher_window=5), POLICY, KEY, updates=1)
    np.testing.assert_allclose(short.gradient_norm, long.gradient_norm, rtol=1e-5)
    assert len(long.ess_by_age) == 5


def test_packed_windows_take_the_same_step(monkeypatch):
    algorithm = RNPG(window=3, fisher_window=2, learning_rate=0.02)
    plain = after(algorithm, updates=4)
    eqx.clear_caches()
    monkeypatch.setattr("recollect.packing.CHUNK", 30)
    monkeypatch.setattr("recollect.scores.fold.__defaults__", (30,))
    packed = after(algorithm, updates=4)
    eqx.clear_caches()
    np.testing.assert_allclose(packed, plain, atol=1e-4)


def test_vmap_over_seeds_equals_a_loop():
    algorithm = RNPG(window=2, damping=0.01)
    state, _ = updated(algorithm, POLICY, KEY, updates=1)
    batches = [batch_of(jax.random.key(seed), state.policy) for seed in range(3)]
    together = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    mapped = jax.jit(jax.vmap(lambda batch: parameters(algorithm.update(state, batch, KEY)[0].policy)))(together)
    np.testing.assert_allclose(mapped, jnp.stack([parameters(update(algorithm, state, b, KEY)[0].policy) for b in batches]), atol=1e-3)


class Plain(AbstractPolicy):
    """A policy of the user's own: logistic in the observation, nothing of recollect's inside."""

    weights: jnp.ndarray

    def _logit(self, observation):
        return self.weights @ observation

    def sample(self, key, observation):
        return jax.random.bernoulli(key, jax.nn.sigmoid(self._logit(observation))).astype(jnp.int32)

    def log_prob(self, observation, action):
        return jax.nn.log_sigmoid(jnp.where(action == 1, 1, -1) * self._logit(observation))

    def mode(self, observation):
        return (self._logit(observation) > 0).astype(jnp.int32)

    def entropy(self, observation):
        p = jax.nn.sigmoid(self._logit(observation))
        return -(p * jnp.log(p) + (1 - p) * jnp.log1p(-p))

    def kl(self, other, observation):
        terms = [jnp.exp(self.log_prob(observation, a)) * (self.log_prob(observation, a) - other.log_prob(observation, a)) for a in (0, 1)]
        return sum(terms)


@pytest.mark.parametrize("method", ["cholesky", "sample", "cg"])
def test_a_custom_policy_needs_five_methods(method):
    state, info = updated(RNPG(window=2, solver=Solver(method), learning_rate=0.1), Plain(jnp.zeros(4)), KEY)
    assert info.refused == 0
    assert np.abs(state.policy.weights).max() > 0
    assert info.kl > 0


def reuse_estimates(env, behaviours, target, rules, replications=4000, samples=10):
    """Estimates of ∇η(target) from one batch of each behaviour policy, whose parameters are fixed in advance."""

    def estimate(key):
        batches = [
            Draws(samples)(jax.random.fold_in(key, i), env, behaviour, None, env.discount)[1].batch
            for i, behaviour in enumerate(behaviours)
        ]
        return [weigh(batches, rule) for rule in rules]

    def weigh(batches, rule):
        batches = [remember_occupancy(batch, behaviour, rule, env) for batch, behaviour in zip(batches, behaviours, strict=True)]
        history = History.empty(batches[0], len(batches))
        for batch in batches:
            history, _ = history.push(batch)
        exact = Advantages(estimator="exact")
        algorithm = PG(window=len(batches), discount=env.discount, objective_scale=True, weights=rule, advantages=exact)
        return reweighed_gradient(algorithm, history, recall(history, target, rule, oracle=env), target, env)

    return jax.jit(jax.vmap(estimate))(jax.random.split(KEY, replications))


def test_exact_ratios_make_the_reuse_estimator_unbiased():
    env = garnet(4, states=3, actions=2, branching=2, discount=0.8)
    θ, unflatten = flatten(tabular_softmax_policy(3, 2))
    behaviours = [unflatten(0.8 * jax.random.normal(jax.random.key(i), θ.shape)) for i in range(3)]
    target = unflatten(jnp.linspace(-0.5, 1.0, θ.size))
    exact = env.gradient(target)
    unbiased, biased = reuse_estimates(env, behaviours, target, (Weights(ratio="occupancy"), Weights(ratio="policy")))
    error = lambda estimates: estimates.std(0) / len(estimates) ** 0.5
    assert (jnp.abs(unbiased.mean(0) - exact) < 4 * error(unbiased)).all()
    # The policy ratio ignores how states are visited, and this test can see its bias.
    assert (jnp.abs(biased.mean(0) - exact) > 4 * error(biased)).any()


def test_two_iterations_show_the_bias_of_section_2_4():
    """θ₁ depends on the samples of θ₀, so reweighing those samples does not estimate ∇η(θ₁) without bias."""
    env, rule = LQC(), Weights()
    algorithm = VPG(discount=0.5, learning_rate=0.05, objective_scale=True, advantages=Advantages(estimator="exact"))
    start = ShiftPolicy(jnp.array(0.5))

    def errors(key):
        key_old, key_new = jax.random.split(key)
        draw = lambda key, policy: Draws(5)(key, env, policy, None, 0.5)[1].batch
        old = draw(key_old, start)
        state, _ = algorithm.update(algorithm.init(start, old), old, key, env)
        policy = state.policy
        exact = -2 * policy.shift / (1 - 0.5)

        def estimate(batch):
            history, _ = History.empty(batch, 1).push(batch)
            return reweighed_gradient(algorithm, history, recall(history, policy, rule), policy, env)[0] - exact

        return estimate(old), estimate(draw(key_new, policy))

    reused, fresh = jax.jit(jax.vmap(errors))(jax.random.split(KEY, 40_000))
    error = lambda x: x.std() / x.size**0.5
    assert abs(fresh.mean()) < 4 * error(fresh)
    assert abs(reused.mean()) > 10 * error(reused)


def test_info_tells_the_truth():
    state, info = updated(RNPG(window=3, learning_rate=0.05), POLICY, KEY, updates=4)
    assert info.refused == 0
    counts = state.history.batches.mask.sum((1, 2))
    assert (info.ess_by_age <= counts + 1e-3).all()
    np.testing.assert_allclose(info.ess_by_age[0], counts[0], rtol=1e-4)
    assert info.ess <= counts.sum() + 1e-3
    assert info.max_weight > 1
    before, _ = updated(RNPG(window=3, learning_rate=0.05), POLICY, KEY, updates=3)
    newest = jax.tree.map(lambda x: x[0], state.history.batches)
    kls = jax.vmap(jax.vmap(lambda s: before.policy.kl(state.policy, s)))(newest.observations)
    np.testing.assert_allclose(info.kl, kls[newest.mask].mean(), rtol=1e-3)
    assert ENV.max_steps == newest.mask.shape[1]
