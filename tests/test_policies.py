"""Distributions against scipy, and against their own definitions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from helpers import computed

from recollect.policies import (
    Gaussian,
    GridSoftmax,
    MultiSoftmax,
    Policy,
    Probabilities,
    ShiftPolicy,
    Softmax,
    SquashedGaussian,
    gaussian_policy,
    grid_softmax_policy,
    mlp,
    softmax_policy,
    squashed_gaussian_policy,
    tabular_direct_policy,
    tabular_softmax_policy,
)
from recollect.policies.normaliser import Normaliser
from recollect.tree import flatten

OUTPUTS, OTHER = jnp.array([0.3, -1.2, 0.9]), jnp.array([-0.4, 0.1, 0.6])
BOUNDS = ((-1.0, 1.0), (0.1, 0.7), (-3.0, 100.0))
GRID = GridSoftmax(BOUNDS[:2], 3)
HEADS = {
    "softmax": (Softmax(), OUTPUTS, Softmax(), OTHER),
    "probabilities": (
        Probabilities(),
        jnp.array([0.2, 0.5, 0.3]),
        Probabilities(),
        jnp.array([0.6, 0.1, 0.3]),
    ),
    "gaussian": (
        Gaussian(jnp.array([0.2, -0.5, 0.0])),
        OUTPUTS,
        Gaussian(jnp.array([-0.1, 0.3, 0.4])),
        OTHER,
    ),
    "squashed gaussian": (
        SquashedGaussian(jnp.array([0.2, -0.5, 0.0]), BOUNDS),
        OUTPUTS,
        SquashedGaussian(jnp.array([-0.1, 0.3, 0.4]), BOUNDS),
        OTHER,
    ),
    "three choices": (
        MultiSoftmax((2, 3, 2)),
        jnp.concatenate([OUTPUTS, -OTHER, OTHER[:1]]),
        MultiSoftmax((2, 3, 2)),
        jnp.concatenate([OTHER, OUTPUTS, OTHER[1:2]]),
    ),
    "grid softmax": (
        GRID,
        jnp.concatenate([OUTPUTS, OTHER]),
        GRID,
        jnp.concatenate([OTHER, -OUTPUTS]),
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_entropy_kl_and_fisher_are_means_over_actions(name):
    count = 200_000

    def look(head, outputs, other, other_outputs):
        actions = jax.vmap(lambda key: head.sample(key, outputs))(
            jax.random.split(jax.random.key(0), count)
        )
        log_p = jax.vmap(lambda a: head.log_prob(outputs, a))(actions)
        log_q = jax.vmap(lambda a: other.log_prob(other_outputs, a))(actions)
        scores = jax.vmap(
            lambda a: jax.grad(lambda parts: parts[0].log_prob(parts[1], a))((head, outputs))
        )(actions)
        flat = jnp.concatenate(
            [leaf.reshape(count, -1) for leaf in jax.tree.leaves(scores)], axis=1
        )
        products = flat[:, :, None] * flat[:, None, :]
        root = jnp.concatenate(jax.tree.leaves(head.fisher_root(outputs)), axis=1)
        exact = head.entropy(outputs), head.kl(outputs, other, other_outputs), root.T @ root
        return exact, [
            (samples.mean(0), samples.std(0)) for samples in (-log_p, log_p - log_q, products)
        ]

    for exact, (mean, spread), (errors, slack) in zip(
        *computed(look, *HEADS[name]), ((4, 1e-6), (4, 1e-6), (5, 1e-5)), strict=True
    ):
        np.testing.assert_array_less(np.abs(exact - mean), errors * spread / count**0.5 + slack)


def test_gaussian_matches_scipy():
    head, action = Gaussian(jnp.array([0.2, -0.5, 0.0])), jnp.array([1.0, 0.5, -2.0])
    expected = scipy.stats.norm.logpdf(action, OUTPUTS, np.exp(head.log_std)).sum()
    np.testing.assert_allclose(head.log_prob(OUTPUTS, action), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("mean", "log_std", "bounds"),
    [
        (0.3, 0.0, (-1.0, 1.0)),
        (-1.5, -2.0, (0.1, 0.7)),
        (0.5, 1.1, (-3.0, 100.0)),
        (7.0, 0.0, (0.1, 0.7)),
    ],
)
def test_squashed_gaussian_is_a_density_and_matches_scipy(mean, log_std, bounds):
    head = SquashedGaussian(jnp.array([log_std]), (bounds,))
    low, high = np.float32(bounds).astype(float)
    fine = np.linspace(-10, 10, 40_000)
    actions = np.unique(np.float32(low + (high - low) * scipy.special.expit(2 * fine)))
    log_p = computed(jax.vmap(lambda a: head.log_prob(jnp.array([mean]), a[None])), actions)
    actions, log_p = actions.astype(float), np.asarray(log_p, float)
    np.testing.assert_allclose(np.trapezoid(np.exp(log_p), actions), 1, atol=1e-3)

    y = (2 * actions - low - high) / (high - low)
    inner = np.abs(y) < np.tanh(4)
    expected = scipy.stats.norm.logpdf(np.arctanh(y[inner]), mean, np.exp(log_std)) - np.log(
        (high - low) / 2 * (1 - y[inner] ** 2)
    )
    np.testing.assert_allclose(log_p[inner], expected, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("mean", [-7.0, 6.5, 50.0])
def test_squashed_gaussian_keeps_its_identities_where_floats_saturate(mean):
    both = jax.vmap(jax.value_and_grad(lambda parts, a: parts[0].log_prob(parts[1], a)), (None, 0))

    def look(log_std, outputs):
        head, other = SquashedGaussian(log_std, BOUNDS), SquashedGaussian(log_std + 0.1, BOUNDS)
        actions = jax.vmap(lambda key: head.sample(key, outputs))(
            jax.random.split(jax.random.key(1), 50_000)
        )
        log_p, (on_head, on_outputs) = both((head, outputs), actions)
        log_q = jax.vmap(lambda a: other.log_prob(outputs - 0.3, a))(actions)
        return (
            actions,
            (on_head.log_std, on_outputs, jnp.exp(log_q - log_p)),
            both((head, -outputs), actions),
        )

    actions, found, opposite = computed(look, jnp.array([0.2, -0.5, 0.0]), jnp.array([mean] * 3))
    low, high = np.float32(BOUNDS).T
    assert ((low <= actions) & (actions <= high)).all()
    for exact, samples in zip((0, 0, 1), found, strict=True):
        assert np.isfinite(samples).all()
        np.testing.assert_array_less(
            np.abs(samples.mean(0) - exact), 5 * samples.std(0) / len(actions) ** 0.5 + 2e-3
        )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(opposite))


@pytest.mark.parametrize(
    ("mean", "std"), [(0.0, 0.3), (-0.7, 1.0), (1.5, 3.0), (0.0, 3.0), (50.0, 1.0)]
)
def test_squashed_entropy_matches_integration(mean, std):
    log_slope = lambda u: np.log(103 / 2) + 2 * (np.log(2) - u - np.logaddexp(0, -2 * u))
    integrand = lambda u: scipy.stats.norm.pdf(u, mean, std) * log_slope(u)
    integral, _ = scipy.integrate.quad(
        integrand, mean - 10 * std, mean + 10 * std, epsabs=1e-10, limit=200
    )
    entropy = computed(
        lambda std, mean: SquashedGaussian(jnp.log(std), BOUNDS[2:]).entropy(mean),
        jnp.array([std]),
        jnp.array([mean]),
    )
    np.testing.assert_allclose(entropy, integral + scipy.stats.norm.entropy(mean, std), atol=1e-4)


@pytest.mark.parametrize("size", [1, 3])
def test_grid_softmax_is_a_softmax_for_each_number(size):
    head, outputs = (
        GridSoftmax(BOUNDS[:size], 4),
        np.random.default_rng(2).normal(size=4 * size).astype(np.float32),
    )
    grids = np.float32([np.linspace(*pair, 4) for pair in BOUNDS[:size]])
    actions = np.array(list(itertools.product(*grids)))

    def look(outputs, actions):
        draws = jax.vmap(lambda key: head.sample(key, outputs))(
            jax.random.split(jax.random.key(3), 30_000)
        )
        return jax.vmap(lambda a: head.log_prob(outputs, a))(actions), head.mode(outputs), draws

    log_probs, mode, draws = computed(look, outputs, actions)
    expected = [
        sum(rows)
        for rows in itertools.product(*scipy.special.log_softmax(outputs.reshape(size, 4), axis=1))
    ]
    np.testing.assert_allclose(log_probs, expected, rtol=1e-5)
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1, rtol=1e-5)
    np.testing.assert_array_equal(mode, actions[np.argmax(log_probs)])
    counts = (draws[:, None] == actions).all(2).sum(0)
    assert (
        scipy.stats.chisquare(
            counts, np.exp(np.float64(log_probs)) / np.exp(np.float64(log_probs)).sum() * 30_000
        ).pvalue
        > 1e-3
    )


@pytest.mark.parametrize(
    ("bounds", "points"),
    [
        ((-0.1, 0.7), 7),
        ((-1 / 3, 1e6), 1001),
        ((1000.0, 1000.1), 100),
        ((-1e-20, 3e-20), 50),
        ((0.0, 1e30), 11),
    ],
)
def test_grid_softmax_finds_every_value_again(bounds, points):
    head, peaked = GridSoftmax((bounds,), points), 100 * np.eye(points, dtype=np.float32)
    values = computed(jax.vmap(head.mode), peaked)
    np.testing.assert_array_equal(values[:, 0], np.float32(np.linspace(*bounds, points)))
    np.testing.assert_allclose(computed(jax.vmap(head.log_prob), peaked, values), 0, atol=1e-6)


def test_softmax_matches_scipy_and_samples_by_it():
    expected = scipy.special.softmax(np.asarray(OUTPUTS, np.float64))
    log_probs = [Softmax().log_prob(OUTPUTS, jnp.array(a)) for a in range(3)]
    np.testing.assert_allclose(np.exp(log_probs), expected, rtol=1e-5)
    draws = jax.vmap(lambda key: Softmax().sample(key, OUTPUTS))(
        jax.random.split(jax.random.key(3), 30_000)
    )
    assert scipy.stats.chisquare(np.bincount(draws, minlength=3), expected * 30_000).pvalue > 1e-3


def test_policies_start_where_their_documentation_says():
    seen = jnp.array([0.3, -0.2, 0.5, 1.0])
    assert softmax_policy(jax.random.key(0), 4, 3).entropy(seen) > 0.999 * np.log(3)
    assert jnp.abs(gaussian_policy(jax.random.key(0), 4, 2, log_std=-1.0).mode(seen)).max() < 0.1
    middle = jnp.array([0.0, 0.4, 48.5])
    np.testing.assert_allclose(
        squashed_gaussian_policy(jax.random.key(0), 4, BOUNDS).mode(seen), middle, atol=2, rtol=0.1
    )
    assert grid_softmax_policy(jax.random.key(0), 4, BOUNDS).entropy(seen) > 0.999 * 3 * np.log(11)
    for policy in (tabular_softmax_policy(3, 4), tabular_direct_policy(3, 4)):
        np.testing.assert_allclose(
            policy.log_prob(jnp.eye(3)[1], jnp.array(2)), np.log(1 / 4), rtol=1e-6
        )
    assert sum(x.size for x in jax.tree.leaves(softmax_policy(jax.random.key(0), 4, 2))) == 226
    assert (
        sum(x.size for x in jax.tree.leaves(softmax_policy(jax.random.key(0), 4, 2, (32, 32))))
        == 1282
    )


def test_shift_policy_has_the_corrected_score():
    policy, s, a = ShiftPolicy(jnp.array(0.4)), jnp.array([1.1]), jnp.array([0.7])
    score = jax.grad(lambda shift: ShiftPolicy(shift).log_prob(s, a))(policy.shift)
    np.testing.assert_allclose(score, 0.7 + 1.1 - 0.4, rtol=1e-6)
    np.testing.assert_allclose(policy.kl(ShiftPolicy(jnp.array(1.0)), s), 0.5 * 0.6**2, rtol=1e-5)


def test_statistics_are_no_parameters():
    network = mlp(jax.random.key(0), 3, 2, (5,))
    with_statistics = flatten(Policy(network, Softmax(), Normaliser.fresh(3)))[0]
    np.testing.assert_array_equal(with_statistics, flatten(Policy(network, Softmax()))[0])
