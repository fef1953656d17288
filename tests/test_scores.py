"""The score operator: layers = differentiation = the matrix written out, in one piece or in
chunks."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import computed, dense

from recollect.estimate.fisher import Fisher
from recollect.memory.rows import Packing
from recollect.policies import (
    Policy,
    gaussian_policy,
    grid_softmax_policy,
    softmax_policy,
    squashed_gaussian_policy,
    tabular_direct_policy,
    tabular_softmax_policy,
)
from recollect.policies.chunks import fold
from recollect.policies.scores import TracedScores, expected_score_matrix, score_matrix
from recollect.tree import flatten

KEY = jax.random.key(0)
ROWS = 11
POLICIES = {
    "softmax": softmax_policy(KEY, 3, 4, (5,)),
    "deep tanh": softmax_policy(KEY, 3, 2, (4, 6), "tanh"),
    "gaussian": gaussian_policy(KEY, 3, 2, (5,), "silu", log_std=-0.3),
    "squashed": squashed_gaussian_policy(KEY, 3, ((-1.0, 3.0), (0.1, 0.7)), (5,), log_std=-0.3),
    "grid": grid_softmax_policy(KEY, 3, ((-1.0, 3.0), (0.1, 0.7)), 4, (5,)),
    "table": tabular_softmax_policy(3, 2),
    "direct table": tabular_direct_policy(3, 3),
}


@functools.cache
def problem(name) -> tuple[Policy, jnp.ndarray, jnp.ndarray]:
    θ, unflatten = flatten(POLICIES[name])
    draw, noise = np.random.default_rng(0), 0.05 if name == "direct table" else 0.5
    policy = unflatten(θ + noise * np.float32(draw.normal(size=θ.shape)))
    observations = (
        np.eye(3)[draw.integers(0, 3, ROWS)] if "table" in name else draw.normal(size=(ROWS, 3))
    )
    observations = jnp.asarray(observations, jnp.float32)
    return (
        policy,
        observations,
        jax.jit(jax.vmap(policy.sample))(jax.random.split(KEY, ROWS), observations),
    )


@eqx.filter_jit
def _everything(scores):
    pushed, pulled = dense(scores.push, scores.shape[0]), dense(scores.pull, scores.shape[1])
    return (
        scores.columns(),
        pushed,
        pulled,
        scores.gram(),
        scores.states(2, 4).columns(),
        scores.take(jnp.array([7, 1])).columns(),
    )


def _agrees(scores, jacobian):
    assert scores.shape == jacobian.shape
    columns, pushed, pulled, gram, rows, taken = _everything(scores)
    np.testing.assert_allclose(columns, jacobian, atol=2e-5)
    np.testing.assert_allclose(pushed.T, jacobian, atol=2e-5)
    np.testing.assert_allclose(pulled, jacobian, atol=2e-5)
    np.testing.assert_allclose(gram, jacobian.T @ jacobian, atol=1e-4)
    np.testing.assert_allclose(rows, jacobian[:, 2 * scores.rank : 6 * scores.rank], atol=2e-5)
    np.testing.assert_allclose(taken, jacobian[:, [7, 1]], atol=2e-5)


@pytest.mark.parametrize("name", POLICIES)
def test_layers_equal_differentiation_and_the_matrix(name):
    policy, observations, actions = problem(name)
    θ, unflatten = flatten(policy)
    expected = lambda θ: jax.vmap(unflatten(θ).log_prob)(observations, actions)
    expected, jacobian = computed(lambda θ: (expected(θ), jax.jacobian(expected)(θ).T), θ)
    log_probs, layers = eqx.filter_jit(score_matrix)(policy, observations, actions)
    np.testing.assert_allclose(log_probs, expected, rtol=1e-5)
    for scores in (layers, TracedScores(policy, observations, actions)):
        _agrees(scores, jacobian)


@pytest.mark.parametrize("name", POLICIES)
def test_scores_that_share_a_state_equal_differentiation(name):
    """The scores of an expected Fisher matrix are the network's Jacobian times the root of the
    head's."""
    policy, observations, _ = problem(name)
    θ, unflatten = flatten(policy)

    def each(s):
        parts = lambda θ: (unflatten(θ).head, unflatten(θ).outputs(s))
        (head, outputs), back = jax.vjp(parts, θ)
        on_head, on_outputs = head.fisher_root(outputs)
        return jax.vmap(lambda *root: back(root)[0])(on_head, on_outputs)

    jacobian = computed(jax.vmap(each), observations)
    scores = eqx.filter_jit(expected_score_matrix)(policy, observations)
    _agrees(scores, jacobian.reshape(-1, len(θ)).T)
    np.testing.assert_allclose(scores.squared_norms(), (jacobian**2).sum(-1).ravel(), rtol=1e-4)


@pytest.mark.parametrize("name", ["softmax", "deep tanh", "table", "direct table"])
def test_expected_fisher_is_the_mean_over_actions(name):
    policy, observations, _ = problem(name)
    θ, unflatten = flatten(policy)
    actions = jnp.arange(policy.network.layers[-1].weight.shape[0])
    score = jax.value_and_grad(lambda θ, s, a: unflatten(θ).log_prob(s, a))
    log_probs, each = computed(
        jax.vmap(lambda s: jax.vmap(lambda a: score(θ, s, a))(actions)), observations
    )
    expected = np.einsum("na,nad,nae->de", np.exp(log_probs), each, each)
    columns = computed(lambda: expected_score_matrix(policy, observations).columns())
    np.testing.assert_allclose(columns @ columns.T, expected, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["gaussian", "squashed", "grid"])
def test_expected_fisher_for_continuous_actions_is_the_curvature_of_kl(name):
    policy, observations, _ = problem(name)
    θ, unflatten = flatten(policy)
    curvature = computed(
        jax.hessian(lambda θ: jax.vmap(lambda s: policy.kl(unflatten(θ), s))(observations).sum()), θ
    )
    columns = computed(lambda: expected_score_matrix(policy, observations).columns())
    np.testing.assert_allclose(columns @ columns.T, curvature, atol=1e-4)


@pytest.mark.parametrize("size", [3, 4, 11])
def test_chunks_change_nothing(size):
    _, scores = eqx.filter_jit(score_matrix)(*problem("softmax"))
    coefficients = jnp.linspace(0.1, 1, ROWS)
    whole = scores.pull(coefficients)
    pull = eqx.filter_jit(lambda count, c: fold(lambda s, c: s.pull(c), scores, c, count, size))
    np.testing.assert_allclose(pull(jnp.array(ROWS), coefficients), whole, atol=1e-5)
    real = jnp.where(jnp.arange(ROWS) < 5, coefficients, 0)
    np.testing.assert_allclose(pull(jnp.array(5), real), scores.pull(real), atol=1e-5)


@pytest.mark.parametrize("kind", ["score", "expected"])
def test_fisher_on_unit_vectors_is_its_matrix(kind, monkeypatch):
    monkeypatch.setattr("recollect.estimate.fisher.matrix_chunk_size", lambda: 8)
    policy, observations, actions = problem("softmax")
    scores = (
        score_matrix(policy, observations, actions)[1]
        if kind == "score"
        else expected_score_matrix(policy, observations)
    )
    c = np.linspace(0.1, 1, ROWS, dtype=np.float32)
    look = lambda fisher: (
        fisher.scores.columns(),
        fisher.matrix(),
        dense(fisher.mv, fisher.shape[0]),
        fisher.gram(),
    )
    columns, written, multiplied, gram = computed(
        look, Fisher(scores, jnp.asarray(c), jnp.array(ROWS))
    )
    matrix = (columns * np.repeat(c, scores.rank)) @ columns.T
    np.testing.assert_allclose(written, matrix, atol=1e-5)
    np.testing.assert_allclose(multiplied, matrix, atol=1e-5)
    np.testing.assert_allclose(
        np.linalg.eigvalsh(gram)[-5:], np.linalg.eigvalsh(matrix)[-5:], rtol=1e-3
    )


def test_gradient_is_the_weighed_sum_of_scores():
    _, scores = eqx.filter_jit(score_matrix)(*problem("softmax"))
    c, advantages = np.linspace(0.1, 1, ROWS, dtype=np.float32), np.arange(ROWS, dtype=np.float32)
    terms = jnp.asarray(c * advantages)
    look = lambda scores: (
        scores.columns(),
        fold(lambda part, u: part.pull(u), scores, terms, jnp.array(ROWS)),
    )
    columns, gradient = computed(look, scores)
    np.testing.assert_allclose(gradient, columns @ (c * advantages), atol=1e-4)


def test_packing_keeps_every_transition_newest_first(monkeypatch):
    mask = jnp.array([[[1, 1, 0], [1, 0, 0]], [[0, 0, 0], [1, 1, 1]]], bool)
    values = 1 + jnp.arange(12.0).reshape(2, 2, 3)
    plain = Packing.of(mask)
    np.testing.assert_array_equal(plain.rows(values), values.ravel())
    monkeypatch.setattr("recollect.memory.rows.chunk_size", lambda: 4)
    packed = Packing.of(mask)
    np.testing.assert_array_equal(packed.rows(values), [1, 2, 4, 10, 11, 12, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(packed.unpack(packed.rows(values)), jnp.where(mask, values, 0))
    assert [int(packed.prefix(k)[1]) for k in (1, 2)] == [3, 6]


def test_a_sample_of_rows_estimates_the_fisher_matrix_and_misses_no_large_score():
    policy, observations, actions = problem("softmax")
    repeated = lambda x: np.concatenate([x] * 40)
    _, scores = eqx.filter_jit(score_matrix)(policy, repeated(observations), repeated(actions))
    # One heavy row among hundreds of light ones: evenly spaced rows would most likely leave it out.
    weights = jnp.where(jnp.arange(40 * ROWS) == 217, 5.0, 0.01)
    fisher = Fisher(scores, weights, jnp.array(weights.size))
    exact, sampled = computed(lambda fisher: (fisher.matrix(), fisher.sample(60).matrix()), fisher)
    assert np.linalg.norm(sampled - exact) < 0.2 * np.linalg.norm(exact)
    np.testing.assert_allclose(np.trace(sampled), np.trace(exact), rtol=0.1)
