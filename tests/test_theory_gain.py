"""Moments of Theorem 2 on a finite MDP, and the prediction of what reuse gains."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import NPG

from recollect.collect.compiled import Draws, Episodes
from recollect.envs import LQC, CartPole, chain
from recollect.estimate.advantages import GAE, ExactAdvantages
from recollect.policies import AbstractPolicy, ShiftPolicy, softmax_policy, tabular_softmax_policy
from recollect.theory.corridor import switched_corridor
from recollect.theory.covariance import BLOCKS, Moments, moments, optimum, stationary_covariance
from recollect.theory.gain import Gain
from recollect.theory.lqc import asymptotic_variance, gradient_variance, inverse_fisher_moments
from recollect.theory.prediction import _components, near_floor, noise_ratio, predict_gain
from recollect.tree import flatten

BATCH, DAMPING = 4, 0.01
DRAW = np.random.default_rng(0)
EXACT = ExactAdvantages()


class Linear(AbstractPolicy):
    """Goes right with probability σ(θ₀ + θ₁ x) at position x.

    Two parameters for all states, so the best of them is a compromise.
    """

    weights: jax.Array

    def _logit(self, observation):
        return self.weights[0] + self.weights[1] * (
            observation @ jnp.linspace(1, -1, len(observation))
        )

    def sample(self, key, observation):
        return jax.random.bernoulli(key, jax.nn.sigmoid(self._logit(observation))).astype(jnp.int32)

    def log_prob(self, observation, action):
        return jax.nn.log_sigmoid(jnp.where(action == 1, 1, -1) * self._logit(observation))

    def mode(self, observation):
        return (self._logit(observation) > 0).astype(jnp.int32)

    def entropy(self, observation):
        return -sum(
            jnp.exp(self.log_prob(observation, a)) * self.log_prob(observation, a) for a in (0, 1)
        )

    def kl(self, other, observation):
        return sum(
            jnp.exp(self.log_prob(observation, a))
            * (self.log_prob(observation, a) - other.log_prob(observation, a))
            for a in (0, 1)
        )


ENV = switched_corridor()


@functools.cache
def best() -> Linear:
    return optimum(ENV, Linear(jnp.zeros(2)))


@functools.cache
def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return table_of(best())


def table_of(policy) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """d(s, a), ∇log π and G of every pair under a policy."""

    @jax.jit
    def answers(policy):
        score = jax.grad(lambda policy, state, action: policy.log_prob(state, action))
        scores = jax.vmap(jax.vmap(score, (None, None, 0)), (None, 0, None))(
            policy, jnp.eye(4), jnp.arange(2)
        ).weights
        return (
            ENV.occupancy(policy)[:, None] * ENV.probabilities(policy),
            scores,
            ENV.advantages(policy),
        )

    found = (np.asarray(answer, float).reshape(8, -1) for answer in answers(policy))
    probability, scores, advantages = found
    return probability[:, 0] / probability.sum(), scores, advantages * scores / (1 - ENV.discount)


@functools.cache
def exact() -> Moments:
    return moments(ENV, best(), BATCH, DAMPING)


def test_lyapunov_solution_is_the_kronecker_formula():
    spread = DRAW.normal(size=(4, 4))
    noise, drift = spread @ spread.T, DRAW.normal(size=(4, 4)) - 4 * np.eye(4)
    kronecker_sum = np.kron(drift, np.eye(4)) + np.kron(np.eye(4), drift)
    stacked = -np.linalg.solve(kronecker_sum, noise.ravel(order="F"))
    solution = stationary_covariance(drift, noise)
    np.testing.assert_allclose(solution, stacked.reshape(4, 4, order="F"), rtol=1e-9)
    np.testing.assert_allclose(drift @ solution + solution @ drift.T + noise, 0, atol=1e-12)


@pytest.mark.parametrize("worst", [0.25, 0.0])
def test_a_drift_that_is_not_hurwitz_is_refused(worst):
    turn = DRAW.normal(size=(3, 3))
    drift = turn @ np.diag([-1, worst, -3]) @ np.linalg.inv(turn)
    with pytest.raises(ValueError, match=r"drift has the eigenvalue .*strict maximum"):
        stationary_covariance(drift, np.eye(3))


def test_moments_of_single_draws_by_hand():
    one, (probability, scores, gradients) = moments(ENV, best(), 1, DAMPING), table()
    covariance = sum(
        p * np.outer(g, g) for p, g in zip(probability, gradients, strict=True)
    )  # the mean is zero here
    inverses = [np.linalg.inv(DAMPING * np.eye(2) + np.outer(score, score)) for score in scores]
    mean = sum(p * inverse for p, inverse in zip(probability, inverses, strict=True))
    solved = sum(
        p * inverse @ covariance @ inverse for p, inverse in zip(probability, inverses, strict=True)
    )
    np.testing.assert_allclose(one.gradient_covariance, covariance, rtol=1e-4)
    np.testing.assert_allclose(one.inverse_fisher, mean, rtol=1e-4)
    np.testing.assert_allclose(one.sigma_1, mean @ covariance @ mean, rtol=1e-3)
    np.testing.assert_allclose(one.sigma_2, solved - mean @ covariance @ mean, rtol=1e-3)


@pytest.mark.parametrize(
    "quantity",
    [
        lambda m: m.inverse_fisher,
        lambda m: m.sigma_1,
        lambda m: m.sigma_2,
        lambda m: m.noise(3),
        lambda m: m.stationary(3),
    ],
    ids=["inverse_fisher", "sigma_1", "sigma_2", "noise", "stationary"],
)
def test_drawn_moments_agree_with_exact_ones(quantity):
    drawn = moments(ENV, best(), BATCH, DAMPING, replications=10_000, seed=1)
    error = drawn.error(quantity)
    assert (error < 0.2 * np.abs(quantity(exact())).max()).all()
    assert (np.abs(quantity(drawn) - quantity(exact())) < 4 * error).all()
    assert (exact().error(quantity) == 0).all()


def test_drift_is_the_derivative_of_the_mean_step():
    θ, unflatten = flatten(best())
    assert np.abs(θ).max() < 2
    step = 0.02

    def mean_step(θ):
        there = moments(ENV, unflatten(θ), BATCH, DAMPING)
        return there.inverse_fisher @ there.gradient

    columns = [
        (mean_step(θ + step * unit) - mean_step(θ - step * unit)) / (2 * step)
        for unit in jnp.eye(2)
    ]
    np.testing.assert_allclose(exact().drift, np.transpose(columns), rtol=0.01)
    assert (np.linalg.eigvals(exact().drift).real < 0).all()
    assert np.abs(exact().drift - exact().drift.T).max() > 0.05
    with pytest.raises(ValueError, match=r"gradient has length .*optimum first"):
        moments(ENV, unflatten(θ + 0.5), BATCH, DAMPING).stationary(1)


CHAINS, LENGTH = 4000, 150


def spread_of_sums(
    gradients: np.ndarray, inverses: np.ndarray, window: int
) -> tuple[np.ndarray, np.ndarray]:
    """Covariance of Σ_n F̂_n⁻¹ĝ_n by its number of terms, where ĝ_n averages `window` batches, and
    its standard error."""
    averages = np.stack([gradients[:, n : n + window].mean(1) for n in range(LENGTH)], 1)
    sums = np.einsum("cnde,cne->cd", inverses, averages) / np.sqrt(LENGTH)
    deviations = sums - sums.mean(0)
    products = deviations[:, :, None] * deviations[:, None]
    return products.mean(0), products.std(0) / np.sqrt(CHAINS)


def test_noise_that_adds_up_is_that_of_theorem_2():
    draw, (probability, scores, each) = np.random.default_rng(2), table()
    gradients = draw.multinomial(BATCH, probability, (CHAINS, LENGTH + 3)) / BATCH @ each
    products = np.einsum("kd,ke->kde", scores, scores).reshape(8, 4)
    fishers = (draw.multinomial(BATCH, probability, (CHAINS, LENGTH)) / BATCH @ products).reshape(
        CHAINS, LENGTH, 2, 2
    )
    inverses = np.linalg.inv(fishers + DAMPING * np.eye(2))
    for window, other in ((1, 4), (4, 1)):
        found, error = spread_of_sums(gradients, inverses, window)
        assert (np.abs(found - exact().noise(window)) < 4 * error).all()
        assert (np.abs(found - exact().noise(other)) > 6 * error).any()


def test_noise_that_adds_up_away_from_the_optimum_has_a_third_part():
    batch, slope, draw = 10, -2 * 2.0 / (1 - 0.5), np.random.default_rng(3)
    z = draw.normal(size=(CHAINS, LENGTH + 3, batch))
    gradients = np.mean((z - 4 * z**2 - z**3) / (1 - 0.5), -1, keepdims=True)  # θ = 2
    inverses = (
        1 / (0.01 + np.mean(draw.normal(size=(CHAINS, LENGTH, batch)) ** 2, -1))[:, :, None, None]
    )
    first, second = inverse_fisher_moments(batch, 0.01)
    one = gradient_variance(2.0) / batch
    for window in (1, 4):
        found, error = spread_of_sums(gradients, inverses, window)
        theorem = first**2 * one + (second - first**2) * one / window
        assert (np.abs(found - theorem - (second - first**2) * slope**2) < 4 * error).all()
        assert (np.abs(found - theorem) > 4 * error).all()


def assert_near(value: float, interval: tuple[float, float]) -> None:
    """Within twice the reach of a 95 % interval: with other random numbers a test must not fail one
    time in twenty."""
    low, high = interval
    assert abs(value - (low + high) / 2) < high - low


def test_prediction_covers_the_exact_share_of_a_table():
    gain = predict_gain(
        ENV, best(), NPG(damping=DAMPING, discount=0.9, advantages=EXACT), Draws(BATCH), 32, 512
    )
    probability, scores, _ = table()
    metric = (probability[:, None] * scores).T @ scores
    measure = lambda sigma: np.trace(metric @ sigma)
    share = measure(exact().sigma_2) / measure(exact().sigma_1 + exact().sigma_2)
    assert_near(share, gain.limit.interval)
    assert gain.limit.interval[1] - gain.limit.interval[0] < 0.3
    for window in (2, 10):
        assert_near(
            measure(exact().noise(window)) / measure(exact().noise(1)),
            gain.limit.ratio_interval(window),
        )


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_prediction_covers_the_closed_form_of_lqc(shift):
    batch, policy = 10, ShiftPolicy(jnp.array(shift))
    gain = predict_gain(
        LQC(), policy, NPG(damping=0.01, discount=0.5, advantages=EXACT), Draws(batch), 64, 1024
    )
    first, second = inverse_fisher_moments(batch, 0.01)
    assert_near(
        asymptotic_variance(batch, 10) / asymptotic_variance(batch, 1),
        gain.limit.ratio_interval(10),
    )
    assert gain.limit.interval[1] - gain.limit.interval[0] < 0.3
    noise, slope = (
        gradient_variance(shift, 0.0) / batch,
        2 * shift,
    )  # of (1 − γ)∇η, which the algorithm estimates
    joint, fisher = (second - first**2) * noise, (second - first**2) * slope**2
    total = second * noise + fisher
    assert_near(joint / total, gain.here.interval)
    assert_near(fisher / total, gain.fisher_share)
    assert shift == 0 or gain.fisher_share[0] > 0.1


def test_parts_of_a_table_made_of_known_parts():
    rows, columns = DRAW.normal(0, 1, (200, 1, 3)), DRAW.normal(0, 2, (1, 300, 3))
    table = rows + columns + DRAW.normal(0, 0.5, (200, 300, 3))
    metric = np.diag([1.0, 2.0, 3.0])
    np.testing.assert_allclose(
        _components(table, table @ metric), np.array([1, 0.25, 4]) * 6, rtol=0.25
    )
    assert _components(rows + columns, (rows + columns) @ metric)[1] == pytest.approx(0, abs=1e-9)


def test_ten_iterations_have_nine_tenths_of_any_gain_and_the_floor_is_problem_dependent():
    for share in (0.02, 0.3, 0.9):
        assert 1 - noise_ratio(share, 10) == pytest.approx(0.9 * share)
        enough = near_floor(share)
        assert noise_ratio(share, enough) <= 1.1 * (1 - share) + 1e-12
        assert enough == 1 or noise_ratio(share, enough - 1) > 1.1 * (1 - share)
    assert near_floor(1.0) == np.inf


def test_prediction_for_a_network_on_episodes():
    env = CartPole(max_steps=15)
    gain = predict_gain(
        env, softmax_policy(jax.random.key(0), 4, 2, (5,)), NPG(damping=0.01), Episodes(2), 32, 32
    )
    assert 0 < gain.limit.interval[0] < gain.limit.share < 1
    assert gain.gradient > 0
    assert 64 * 2 * 5 < gain.environment_steps <= 64 * 2 * 15


def test_experiment_reports_what_it_found(tmp_path):
    findings = Gain(iterations=0, windows=(1, 10), fisher_batches=1024).run()
    assert [row["window"] for row in findings.rows] == [1, 10]
    assert findings.rows[0]["noise if ∇η = 0"] == 1
    low, high = findings.rows[1]["95 % interval"]
    covered = low <= findings.rows[1]["exact"] <= high
    assert f"the interval {'covers' if covered else 'misses'} it" in findings.verdict
    assert {path.name for path in findings.write(tmp_path)} == {
        "gain.png",
        "table.csv",
        "verdict.txt",
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(env="LCQ"), "did you mean 'LQC'"),
        (dict(samples=5, episodes=2), "exclude each other"),
        (dict(samples=0), "samples=0"),
        (dict(damping=0.0), "damping=0.0"),
        (dict(iterations=-1), "iterations=-1"),
        (dict(windows=()), "windows=\\(\\) is empty"),
        (dict(windows=(1, 0)), "windows=0"),
        (dict(fisher_batches=8), "fisher_batches=8"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Gain(**settings)


def test_questions_without_an_answer_are_refused():
    with pytest.raises(
        ValueError, match="samples=5 needs exact advantages, which CartPole-v1 does not know"
    ):
        Gain(env="CartPole-v1", samples=5).run()
    with pytest.raises(ValueError, match="fisher_batches=8 is out of range"):
        predict_gain(LQC(), ShiftPolicy(jnp.array(0.0)), NPG(discount=0.5), fisher_batches=8)
    with pytest.raises(ValueError, match="baseline='critic'"):
        predict_gain(
            LQC(),
            ShiftPolicy(jnp.array(0.0)),
            NPG(discount=0.5, advantages=GAE()),
        )
    with pytest.raises(ValueError, match="policy leads to no strict maximum"):
        optimum(chain(3), tabular_softmax_policy(3, 2))
    with pytest.raises(ValueError, match="too many to sum over; give replications"):
        moments(ENV, best(), 20, DAMPING)
    with pytest.raises(ValueError, match=f"give at least {BLOCKS} batches"):
        moments(ENV, best(), BATCH, DAMPING, replications=2)
    with pytest.raises(ValueError, match=r"damping=0\.0"):
        moments(ENV, best(), BATCH, 0.0)


def test_covariance_away_from_the_optimum_is_about_the_mean():
    θ, unflatten = flatten(best())
    policy = unflatten(θ + 1.0)
    probability, _, each = table_of(policy)
    found = moments(ENV, policy, 1, DAMPING)
    expected = np.cov(each.T, aweights=probability, ddof=0)
    np.testing.assert_allclose(found.gradient_covariance, expected, rtol=1e-3)
    np.testing.assert_allclose(found.gradient, probability @ each, rtol=1e-3)
    assert np.linalg.norm(found.gradient) ** 2 > 0.005 * np.trace(expected)
