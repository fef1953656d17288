"""Errors of the paper (docs/errata.md): our form holds, and the printed one misses by far."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import history_from
from plain import NPG
from scipy.integrate import quad
from scipy.stats import norm

from recollect.collect.compiled import Draws, Episodes
from recollect.envs import LQC, InvertedPendulum, garnet
from recollect.estimate.gradient import policy_gradient
from recollect.memory.rows import recall
from recollect.memory.weights import PolicyRatio
from recollect.policies import ShiftPolicy, softmax_policy, tabular_softmax_policy
from recollect.policies.architecture import Architecture
from recollect.run.fit import check_fit
from recollect.theory.lqc import asymptotic_variance, inverse_fisher_moments, moments

KEY = jax.random.key(0)
ENV = LQC()


def mean_and_error(values) -> tuple[float, float]:
    values = np.asarray(values, float)
    return float(values.mean()), float(values.std() / np.sqrt(len(values)))


def test_1_score_of_lqc_has_the_sign_that_leads_to_the_optimum():
    @jax.jit
    def sample(policy):
        batch = Draws(40_000)(KEY, ENV, policy, None, ENV.discount)[1].batch
        states, actions = batch.observations[:, 0], batch.actions[:, 0]
        scores = jax.vmap(lambda s, a: jax.grad(lambda p: p.log_prob(s, a))(policy).shift)(
            states, actions
        )
        advantages = jax.vmap(lambda s, a: ENV.advantage(policy, s, a))(states, actions)
        return (
            (states + actions)[:, 0],
            scores,
            advantages / (1 - ENV.discount),
            jax.grad(ENV.expected_return)(policy).shift,
        )

    x, ours, advantages, exact = (
        np.asarray(value, float) for value in sample(ShiftPolicy(jnp.array(1.5)))
    )
    printed = 1.5 - x
    assert exact == pytest.approx(-2 * 1.5 / (1 - 0.5))
    mean, error = mean_and_error(advantages * ours)
    assert abs(mean - exact) < 4 * error
    mean, error = mean_and_error(advantages * printed)
    assert abs(mean - exact) > 50 * error
    assert mean > 0  # uphill by the printed sign is away from zero


def test_2_fisher_estimate_of_lqc_averages_squares():
    batch, damping = 10, 0.01
    draws = np.random.default_rng(0).standard_normal((100_000, batch))
    _, second = inverse_fisher_moments(batch, damping)
    mean, error = mean_and_error((damping + (draws**2).mean(1)) ** -2)
    assert abs(mean - second) < 4 * error
    assert moments(batch, 1, damping).sigma_2_prime == pytest.approx(40 * second)
    assert np.mean((damping + draws.mean(1)) ** -2) > 100 * second
    # The printed expectation is infinite: what is left of it outside ±cut around the pole grows as
    # 1/cut.
    density = norm(damping, batch**-0.5).pdf
    outside = lambda cut: sum(
        quad(lambda x: density(x) / x**2, *ends)[0] for ends in ((-3, -cut), (cut, 3))
    )
    assert outside(1e-4) == pytest.approx(10 * outside(1e-3), rel=0.02)


def test_3_return_is_the_mean_reward_over_one_minus_discount():
    env = garnet(seed=3, states=5, actions=3, discount=0.8)
    mean = lambda policy: jnp.sum(
        env.occupancy(policy)[:, None] * env.probabilities(policy) * env.rewards
    )
    answer, printed = map(
        float,
        jax.jit(lambda policy: (env.expected_return(policy), mean(policy)))(
            tabular_softmax_policy(5, 3)
        ),
    )
    assert answer == pytest.approx(printed / (1 - 0.8), rel=1e-5)
    assert answer > 4 * printed


@pytest.mark.parametrize(("window", "batch"), [(2, 7), (8, 3)])
def test_4_factors_of_the_noise_lemmas(window, batch):
    """In units of Σ₁.

    The estimate of one iteration is a moving average of fresh batch means, whose covariance is 1/B.
    """
    K, B = Fraction(window), Fraction(batch)
    weights = [1 / K] * window
    fresh = weights[0] ** 2 / B
    lagged = sum(
        weights[i] * weights[i + lag] / B for lag in range(1, window) for i in range(window - lag)
    )
    assert fresh == 1 / (K**2 * B)
    assert lagged == (K - 1) / (2 * K * B)
    assert lagged != (K - 1) / (K * B)
    reused = (K - 1) / (K**2 * B)
    assert fresh + reused + 2 * lagged == 1 / B  # Theorem 2
    assert abs(1 / (K * B**2) / fresh - 1) > 0.5
    assert 1 / (K * B**2) + reused + 2 * (K - 1) / (K * B) > Fraction(5, 4) / B


def test_6_inverted_pendulum_takes_a_density_or_a_grid():
    env = InvertedPendulum()
    with pytest.raises(ValueError, match="takes 1 real numbers"):
        check_fit(env, NPG(), softmax_policy(KEY, env.observation_size, 2))
    for head in ("gaussian", "squashed", "grid"):
        check_fit(env, NPG(), Architecture(head=head))


def test_7_old_samples_give_half_the_gradient_only_with_their_number_divided_out():
    """θ₁ is fixed in advance here, so that there is no bias and the mean of Z is known: ½∇η(θ₁)."""
    samples, old, new = 10, ShiftPolicy(jnp.array(0.5)), ShiftPolicy(jnp.array(1.0))

    def half(key):
        batch = Draws(samples)(key, ENV, old, None, ENV.discount)[1].batch
        recalled = recall(history_from([old], [batch]), new, PolicyRatio())
        advantages = jax.vmap(lambda s, a: ENV.advantage(new, s, a))(
            recalled.observations, recalled.actions
        )
        estimate = policy_gradient(recalled.uniform_window(1), advantages)
        return 0.5 * estimate[0] / (1 - ENV.discount)

    ours = jax.jit(jax.vmap(half))(jax.random.split(KEY, 4000))
    exact = -2 * 1.0 / (1 - ENV.discount) / 2
    mean, error = mean_and_error(ours)
    assert abs(mean - exact) < 4 * error
    mean, error = mean_and_error(samples * ours)  # the printed Z adds where it should average
    assert abs(mean - exact) > 20 * error
    assert abs(mean - 2 * exact) > 20 * error  # nor is it ∇η(θ₁)


def test_8_optimal_value_of_lqc_counts_the_first_step():
    policy = ShiftPolicy(jnp.array(0.0))
    rewards = jax.jit(
        lambda: Episodes(4000)(KEY, LQC(max_steps=20), policy, None, ENV.discount)[1].batch.rewards
    )()
    discounted, exact = (
        np.asarray(rewards, float) * 0.5 ** np.arange(20),
        float(ENV.expected_return(policy)),
    )
    assert exact == -1 / (1 - 0.5)
    mean, error = mean_and_error(discounted.sum(1))
    assert abs(mean - exact) < 4 * error
    mean, error = mean_and_error(discounted[:, 1:].sum(1))
    assert abs(mean - exact) > 20 * error
    # Without the noise in the cost, as the control problem is printed, the optimal control costs
    # nothing.
    assert float(jnp.sum((1.7 + policy.mode(jnp.array([1.7]))) ** 2)) == 0


def test_9_derivative_of_the_inverse_fisher_estimate():
    draws, damping = np.random.default_rng(1).normal(0.8, 1, 6), 0.01
    derivative = float(jax.grad(lambda shift: 1 / (damping + jnp.mean((draws - shift) ** 2)))(0.3))
    formula = 2 / 6 * np.sum(draws - 0.3) / (damping + np.mean((draws - 0.3) ** 2)) ** 2
    assert derivative == pytest.approx(formula, rel=1e-4)
    assert derivative != pytest.approx(-formula, rel=0.5)


def test_11_variance_has_a_floor():
    ratio = asymptotic_variance(5, 10**9) / asymptotic_variance(5, 1)
    assert ratio == pytest.approx(0.464, abs=1e-3)
