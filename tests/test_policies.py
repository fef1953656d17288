"""Distributions against scipy, and against their own definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from recollect.policies import (
    Gaussian,
    Probabilities,
    ShiftPolicy,
    Softmax,
    gaussian_policy,
    softmax_policy,
    tabular_direct_policy,
    tabular_softmax_policy,
)

OUTPUTS, OTHER = jnp.array([0.3, -1.2, 0.9]), jnp.array([-0.4, 0.1, 0.6])
HEADS = {
    "softmax": (Softmax(), OUTPUTS, Softmax(), OTHER),
    "probabilities": (Probabilities(), jnp.array([0.2, 0.5, 0.3]), Probabilities(), jnp.array([0.6, 0.1, 0.3])),
    "gaussian": (Gaussian(jnp.array([0.2, -0.5, 0.0])), OUTPUTS, Gaussian(jnp.array([-0.1, 0.3, 0.4])), OTHER),
}


@pytest.mark.parametrize("name", HEADS)
def test_entropy_kl_and_fisher_are_means_over_actions(name):
    head, outputs, other, other_outputs = HEADS[name]
    actions = jax.vmap(lambda key: head.sample(key, outputs))(jax.random.split(jax.random.key(0), 200_000))
    log_p = jax.vmap(lambda a: head.log_prob(outputs, a))(actions)
    log_q = jax.vmap(lambda a: other.log_prob(other_outputs, a))(actions)
    for exact, samples in ((head.entropy(outputs), -log_p), (head.kl(outputs, other, other_outputs), log_p - log_q)):
        assert abs(exact - samples.mean()) < 4 * samples.std() / len(samples) ** 0.5 + 1e-6

    scores = jax.vmap(lambda a: jax.grad(lambda parts: parts[0].log_prob(parts[1], a))((head, outputs)))(actions)
    flat = jnp.concatenate([leaf.reshape(len(actions), -1) for leaf in jax.tree.leaves(scores)], axis=1)
    on_head, on_outputs = head.fisher_root(outputs)
    root = jnp.concatenate([*jax.tree.leaves(on_head), on_outputs], axis=1)
    products = flat[:, :, None] * flat[:, None, :]
    error = products.std(0) / len(actions) ** 0.5
    np.testing.assert_array_less(jnp.abs(root.T @ root - products.mean(0)), 5 * error + 1e-5)


def test_gaussian_matches_scipy():
    head, action = Gaussian(jnp.array([0.2, -0.5, 0.0])), jnp.array([1.0, 0.5, -2.0])
    expected = scipy.stats.norm.logpdf(action, OUTPUTS, np.exp(head.log_std)).sum()
    np.testing.assert_allclose(head.log_prob(OUTPUTS, action), expected, rtol=1e-5)


def test_softmax_matches_scipy_and_samples_by_it():
    expected = scipy.special.softmax(np.asarray(OUTPUTS, np.float64))
    log_probs = [Softmax().log_prob(OUTPUTS, jnp.array(a)) for a in range(3)]
    np.testing.assert_allclose(np.exp(log_probs), expected, rtol=1e-5)
    draws = jax.vmap(lambda key: Softmax().sample(key, OUTPUTS))(jax.random.split(jax.random.key(3), 30_000))
    assert scipy.stats.chisquare(np.bincount(draws, minlength=3), expected * 30_000).pvalue > 1e-3


def test_policies_start_where_their_documentation_says():
    seen = jnp.array([0.3, -0.2, 0.5, 1.0])
    assert softmax_policy(jax.random.key(0), 4, 3).entropy(seen) > 0.999 * np.log(3)
    assert jnp.abs(gaussian_policy(jax.random.key(0), 4, 2, log_std=-1.0).mode(seen)).max() < 0.1
    for policy in (tabular_softmax_policy(3, 4), tabular_direct_policy(3, 4)):
        np.testing.assert_allclose(policy.log_prob(jnp.eye(3)[1], jnp.array(2)), np.log(1 / 4), rtol=1e-6)
    assert sum(x.size for x in jax.tree.leaves(softmax_policy(jax.random.key(0), 4, 2))) == 226
    assert sum(x.size for x in jax.tree.leaves(softmax_policy(jax.random.key(0), 4, 2, (32, 32)))) == 1282


def test_shift_policy_has_the_corrected_score():
    policy, s, a = ShiftPolicy(jnp.array(0.4)), jnp.array([1.1]), jnp.array([0.7])
    score = jax.grad(lambda shift: ShiftPolicy(shift).log_prob(s, a))(policy.shift)
    np.testing.assert_allclose(score, 0.7 + 1.1 - 0.4, rtol=1e-6)
    np.testing.assert_allclose(policy.kl(ShiftPolicy(jnp.array(1.0)), s), 0.5 * 0.6**2, rtol=1e-5)
