"""The linear quadratic control problem, and Theorem 2 in small.

Closed forms against differentiation, quadrature and simulation.
"""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import computed
from jax.scipy.stats import norm
from scipy import integrate, stats

from recollect.cli import main
from recollect.collect.compiled import Draws, Occupancy
from recollect.envs import LQC, chain
from recollect.policies import ShiftPolicy, tabular_softmax_policy
from recollect.prng import fusing_key, normal
from recollect.theory import lqc
from recollect.theory import replicate as replications
from recollect.theory.normality import (
    Normality,
    anderson_darling,
    mean_interval,
    row,
    variance_interval,
)
from recollect.theory.replicate import Case, Replications, replicate
from recollect.theory.reuse import FisherReuse, Rate


@pytest.mark.parametrize(
    ("batch", "window", "expected"),
    [(5, 1, 3.453507), (5, 5, 1.973135), (5, 10, 1.788088), (10, 5, 0.653352)],
)
def test_asymptotic_variance_of_the_four_cases_of_the_paper(batch, window, expected):
    assert lqc.asymptotic_variance(batch, window) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("damping", [1e-4, 0.01, 1.0])
@pytest.mark.parametrize("batch", [1, 5, 200])
def test_moments_of_the_inverse_fisher_by_another_quadrature(batch, damping):
    # The Laplace transform of χ² turns both moments into smooth integrals: 1/F = ∫ exp(−tF) dt.
    transform = lambda t: np.exp(-damping * t - batch / 2 * np.log1p(2 * t / batch))
    points = [1.0, 100.0]
    first = sum(
        integrate.quad(transform, a, b, epsrel=1e-12, limit=400)[0]
        for a, b in zip([0, *points], [*points, np.inf], strict=True)
    )
    weighed = lambda t: t * transform(t)
    second = sum(
        integrate.quad(weighed, a, b, epsrel=1e-12, limit=400)[0]
        for a, b in zip([0, *points], [*points, np.inf], strict=True)
    )
    np.testing.assert_allclose(
        lqc.inverse_fisher_moments(batch, damping), (first, second), rtol=1e-8
    )


def test_moments_without_damping_are_those_of_the_inverse_chi_squared():
    np.testing.assert_allclose(lqc.inverse_fisher_moments(7, 0.0), (7 / 5, 49 / 15), rtol=1e-12)


def test_overlapping_fisher_windows_are_correlated_as_in_simulation():
    draws = (
        np.random.default_rng(2).standard_normal((400_000, 4, 3)) ** 2
    )  # four iterations of three samples
    estimates = 0.05 + np.stack([draws[:, i : i + 3].mean((1, 2)) for i in (0, 1)])
    simulated = 1 / estimates.prod(0)
    found = lqc.fisher_correlation(batch=3, fisher_window=3, lag=1, damping=0.05)
    assert abs(simulated.mean() - found) < 5 * simulated.std() / len(simulated) ** 0.5
    first, second = lqc.inverse_fisher_moments(9, 0.05)
    assert first**2 < lqc.fisher_correlation(3, 3, 2, 0.05) < found < second
    assert lqc.overlapping_variance(5, 5, 1) == pytest.approx(lqc.asymptotic_variance(5, 5))
    assert lqc.overlapping_variance(5, 5, 4) > lqc.asymptotic_variance(5, 5, fisher_window=4)


def test_closed_forms_agree_with_the_environment_and_with_differentiation():
    env, number, s, a = LQC(discount=0.7), 0.8, -0.4, 1.5
    θ = jnp.array(number)
    policy, observation, action = ShiftPolicy(θ), jnp.array([s]), jnp.array([a])
    value = lambda θ: env.expected_return(ShiftPolicy(θ))
    log_prob = lambda θ: ShiftPolicy(θ).log_prob(observation, action)
    assert lqc.expected_return(number, 0.7) == pytest.approx(float(value(θ)), rel=1e-6)
    assert lqc.return_gradient(number, 0.7) == pytest.approx(float(jax.grad(value)(θ)), rel=1e-6)
    assert lqc.score(number, s, a) == pytest.approx(float(jax.grad(log_prob)(θ)), rel=1e-5)
    assert lqc.advantage(number, s, a) == pytest.approx(
        float(env.advantage(policy, observation, action)), rel=1e-6
    )


def test_gradient_variance_and_drift_agree_with_simulation():
    θ, x = 0.8, 0.8 + np.random.default_rng(0).standard_normal(2_000_000)
    g = (1 + θ**2 - x**2) * (x - θ) / (1 - 0.5)
    assert g.mean() == pytest.approx(lqc.return_gradient(θ), abs=5 * g.std() / len(g) ** 0.5)
    assert g.var() == pytest.approx(lqc.gradient_variance(θ), rel=0.02)
    found = lqc.moments(5, 5)
    assert found.drift == pytest.approx(lqc.return_gradient(1.0) * found.inverse_fisher)
    assert found.noise == pytest.approx(found.sigma_1 / 5 + found.sigma_2 / 25)


def test_fusing_keys_give_normal_numbers_that_do_not_repeat():
    keys = jax.random.split(fusing_key(3), 40)
    # Under vmap and without it, from keys folded and split.
    draws = computed(
        jax.vmap(
            lambda key: jax.vmap(lambda i: normal(jax.random.fold_in(key, i), (25,)))(
                jnp.arange(50)
            )
        ),
        keys,
    )
    alone = computed(lambda key: normal(jax.random.fold_in(key, 3), (25,)), keys[7])
    np.testing.assert_array_equal(draws[7, 3], alone)
    flat = draws.astype(np.float64).ravel()
    assert len(np.unique(flat)) > 0.99 * len(flat)
    assert stats.kstest(flat, "norm").pvalue > 1e-3
    correlations = np.corrcoef(flat.reshape(40, -1)) - np.eye(40)
    assert np.abs(correlations).max() < 5 / np.sqrt(flat.size / 40)
    far = computed(lambda: normal(fusing_key(1), (1_000_000,))).astype(np.float64)
    for level in (1e-4, 1e-3, 0.1, 0.999, 0.9999):
        share = (far < stats.norm.ppf(level)).mean()
        assert abs(share - level) < 5 * np.sqrt(level * (1 - level) / len(far))
    bits = computed(lambda: jax.random.bits(fusing_key(5), (10_000,)))
    assert abs(np.unpackbits(bits.view(np.uint8)).mean() - 0.5) < 5 * 0.5 / np.sqrt(320_000)


@pytest.mark.parametrize("name", ["lqc", "chain"])
def test_draws_from_the_occupancy_measure_are_those_of_walks(name):
    # Not γ = ½, for which first and later states have equal shares.
    env = LQC(discount=0.8) if name == "lqc" else chain(length=3, discount=0.8)
    policy = ShiftPolicy(jnp.array(1.5)) if name == "lqc" else tabular_softmax_policy(3, 2)
    draw = lambda kind, seed: computed(kind(2_000), jax.random.key(seed), env, policy, None, 0.8)
    batches = [draw(kind, seed)[1].batch for seed, kind in enumerate((Occupancy, Draws))]
    if name == "lqc":
        drawn, walked = (
            np.asarray(batch.observations + batch.actions * 1j).ravel() for batch in batches
        )
        for part in (np.real, np.imag):
            assert stats.ks_2samp(part(drawn), part(walked)).pvalue > 1e-3
    else:
        table = np.array(
            [
                np.histogram2d(b.observations.argmax(-1).ravel(), b.actions.ravel(), (3, 2))[
                    0
                ].ravel()
                for b in batches
            ]
        )
        assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.fixture
def one_by_one(monkeypatch):
    """Runs with one iteration in their loop, not the pair and the odd one out.

    That is a third of the program. A checkpoint (see below) is where pairs are looked at.
    """
    alone = functools.partial(replications.simulate, in_pairs=False)
    monkeypatch.setattr(replications, "simulate", alone)


@pytest.mark.usefixtures("one_by_one")
def test_errors_of_small_runs_have_the_variance_of_theorem_2():
    cases = [Case(5, 1), Case(5, 3, ratio="occupancy")]
    for run in replicate(cases, replications=400, iterations=1_500):
        low, high = variance_interval(run.settled() / np.sqrt(run.case.asymptotic_variance), 0.999)
        assert low < 1 < high
        assert run.shifts.shape == (1, 400)


@pytest.mark.usefixtures("one_by_one")
def test_the_printed_sign_of_the_score_fails(monkeypatch):
    class Printed(ShiftPolicy):
        def log_prob(self, observation, action):
            return norm.logpdf(action[0] + observation[0] + self.shift)

    monkeypatch.setattr("recollect.theory.replicate.ShiftPolicy", Printed)
    (run,) = replicate([Case(5, 2)], replications=50, iterations=300)
    assert not row(run)["holds"]
    assert np.abs(run.shifts).mean() > 1


def test_an_anderson_darling_test_notices_a_wrong_spread_and_passes_normal_draws():
    draws = np.random.default_rng(1).standard_normal(500)
    assert anderson_darling(draws) > 0.01
    assert anderson_darling(1.4 * draws) < 0.01


@pytest.mark.usefixtures("one_by_one")
def test_theory_on_the_command_line(tmp_path, capsys):
    flags = [
        "--cases",
        "4",
        "2",
        "--replications",
        "60",
        "--iterations",
        "400",
        "--plot-every",
        "100",
        "--json",
        "--out",
    ]
    assert main(["theory", "normality", *flags, str(tmp_path)]) == 0
    cases = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main(["theory", "normality", *flags, str(tmp_path)]) == 0
    # What is finished is kept, with the time that it took.
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == cases
    assert [(case["batch"], case["window"]) for case in cases] == [(4, 2)]
    assert {"variance_ratio", "interval", "ks_p", "seconds"} <= set(cases[0])
    for name in (
        "density.png",
        "quantiles.png",
        "approach.png",
        "table.csv",
        "verdict.txt",
        "settings.json",
    ):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.usefixtures("one_by_one")
def test_rate_and_fisher_report_one_row_for_each_case():
    rate = Rate(windows=(2,), replications=50, iterations=200).run()
    assert [row["window"] for row in rate.rows] == [2]
    fisher = FisherReuse(fisher_windows=(2,), window=2, replications=50, iterations=200).run()
    assert [(row["fisher_window"], row["samples"]) for row in fisher.rows] == [
        (2, "independent"),
        (2, "the same"),
    ]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: lqc.asymptotic_variance(0, 1), "batch=0"),
        (lambda: lqc.asymptotic_variance(5, 0), "window=0"),
        (lambda: lqc.asymptotic_variance(4, 1, damping=0.0), "damping=0.0 with batch=4 leaves"),
        (lambda: lqc.asymptotic_variance(5, 1, damping=-0.1), "damping=-0.1"),
        (lambda: lqc.asymptotic_variance(5, 1, discount=1.0), "discount=1.0"),
        (lambda: Normality(cases=((0, 1),)), "batch=0"),
        (lambda: Normality(cases=()), "cases="),
        (lambda: Normality(step_decay=0.4), "step_decay=0.4"),
        (lambda: Normality(start=9.0), "start=9.0"),
        (lambda: Normality(replications=3), "replications=3"),
        (lambda: Normality(plot_every=0), "plot_every=0"),
        (lambda: Rate(windows=()), "windows="),
        (lambda: FisherReuse(fisher_windows=(0,)), "window 0=0"),
    ],
)
def test_impossible_settings_are_explained(make, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        make()


def test_intervals_of_variance_and_mean_cover_as_often_as_they_say():
    draws = 1 + 2 * np.random.default_rng(0).standard_normal((2000, 12))
    for interval, exact, level in (
        (variance_interval, 4, 0.95),
        (lambda values: variance_interval(values, 0.5), 4, 0.5),
        (mean_interval, 1, 0.95),
    ):
        low, high = np.array([interval(values) for values in draws]).T
        covered = ((low <= exact) & (exact <= high)).mean()
        assert abs(covered - level) < 4 * np.sqrt(level * (1 - level) / len(draws))


def test_intervals_of_variance_cover_with_heavy_tails_too():
    """Student's law with 6 degrees of freedom: variance 3/2, excess kurtosis 3."""
    draws = np.random.default_rng(0).standard_t(6, (1000, 500))
    low, high = np.array([variance_interval(values) for values in draws]).T
    covered = ((low <= 1.5) & (high >= 1.5)).mean()
    assert covered > 0.9


@pytest.mark.parametrize("decay", [0.7, 0.9, 1.0])
def test_the_variance_of_a_finite_n_is_that_of_the_linear_recursion(decay):
    """θ_{n+1} = (1 + α_n 𝒢)θ_n + α_n ξ, whose variance is computed step by step."""
    case = Case(10, 5, step_decay=decay)
    exact = lqc.moments(10, 5)
    variance, n = 0.0, 30_000
    for i in range(1, n + 1):
        step = i**-decay
        variance = (1 + step * exact.drift) ** 2 * variance + step**2 * exact.noise
    ratio = variance / n**-decay / exact.asymptotic_variance
    assert ratio == pytest.approx(case.inflation(n), abs=0.003)


def test_settled_errors_are_without_what_a_finite_n_adds():
    case = Case(5, 1)
    run = Replications(case, np.array([10, 100]), np.ones((2, 3)), np.zeros(3, int), 0.0)
    assert case.inflation(10) > case.inflation(100) > 1
    for checkpoint, n in enumerate(run.iterations.tolist()):
        expected = run.errors(checkpoint) ** 2 / case.inflation(n)
        np.testing.assert_allclose(run.settled(checkpoint) ** 2, expected)


def test_density_of_states_is_that_of_its_draws():
    env, policy = LQC(discount=0.8), ShiftPolicy(jnp.array(2.0))
    density = lambda s: 0.2 * stats.norm.pdf(s) + 0.8 * stats.norm.pdf(s, 2.0)
    grid = np.linspace(-3, 5, 50, dtype=np.float32)
    found = computed(jax.vmap(lambda s: env.log_occupancy(policy, s[None])), grid)
    np.testing.assert_allclose(np.exp(found), density(grid), rtol=1e-4)
    drawn = computed(lambda: env.draw_states(jax.random.key(0), policy, 4000).position)
    law = lambda s: 0.2 * stats.norm.cdf(s) + 0.8 * stats.norm.cdf(s, 2.0)
    assert stats.kstest(drawn, law).pvalue > 1e-3


def test_a_checkpoint_is_where_a_shorter_run_ends():
    run = lambda iterations: replicate([Case(5, 2)], 8, iterations, checkpoints=2)
    (short,), (long,) = run(5), run(11)
    np.testing.assert_array_equal(short.iterations, [2, 5])
    np.testing.assert_array_equal(long.iterations, [5, 11])
    np.testing.assert_allclose(long.shifts[0], short.shifts[1], rtol=1e-4)
    assert np.abs(long.shifts[1] - long.shifts[0]).min() > 1e-4
