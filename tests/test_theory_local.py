"""Errors near the optimum: ARMA covariance, delay by the policy ratio, process of Theorem 2."""

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.linalg

from recollect.cli import main
from recollect.theory import constant, lqc, process
from recollect.theory.constant import Constant, falls, near, predicted_errors
from recollect.theory.covariance import moments, optimum, stationary_covariance
from recollect.theory.linear import (
    arma_covariance,
    autocovariance,
    delayed_covariance,
    mean_error,
)
from recollect.theory.local import Paths, Task, local_problem, mixed_gradient, run_all
from recollect.theory.process import Band, Measured, Process, even_in_time, lagged_products, sup_t
from recollect.tree import flatten

matplotlib.use("Agg")
# Not symmetric, and noises of different shapes: a transpose or a swap must change the answer.
DRIFT = np.array([[-2.0, 1.5], [-0.4, -0.7]])
DELAY = np.array([[-0.9, 0.2], [0.3, -0.2]])
AVERAGED = np.array([[1.0, 0.3], [0.3, 0.5]])
WHITE = np.array([[0.4, -0.5], [-0.5, 2.0]])
problem = functools.cache(local_problem)


def by_impulses(window, step, delay):
    """P as a sum over responses to single noises, gone through step by step."""
    size = len(DRIFT)
    total = np.zeros((size, size))
    for covariance, times in ((AVERAGED, window), (WHITE / window, 1)):
        weight = 1 / window if covariance is AVERAGED else 1.0
        errors = [np.zeros((size, size))] * window
        for n in range(1500):
            now = errors[-1]
            old = sum(errors[-window:]) / window
            noise = step * weight * np.eye(size) * (n < times)
            errors.append(now + step * ((DRIFT - delay) @ now + delay @ old) + noise)
            total += errors[-1] @ covariance @ errors[-1].T
    return total


@pytest.mark.parametrize("step", [0.05, 0.4])
@pytest.mark.parametrize("window", [1, 2, 3, 8])
def test_arma_covariance_is_the_sum_over_responses_to_single_noises(window, step):
    expected = by_impulses(window, step, 0 * DELAY)
    found = arma_covariance(DRIFT, AVERAGED, WHITE, window, step)
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    found = delayed_covariance(DRIFT, 0 * DELAY, AVERAGED, WHITE, window, step)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("window", [1, 2, 3, 8])
def test_delayed_covariance_is_the_sum_over_responses_to_single_noises(window):
    found = delayed_covariance(DRIFT, DELAY, AVERAGED, WHITE, window, 0.2)
    np.testing.assert_allclose(found, by_impulses(window, 0.2, DELAY), rtol=1e-8)
    same = np.allclose(found, by_impulses(window, 0.2, 0 * DELAY), rtol=0.01)
    assert same == (window == 1)


def test_without_reuse_it_is_the_discrete_lyapunov_equation():
    found = arma_covariance(DRIFT, AVERAGED, WHITE, 1, 0.3)
    step = np.eye(2) + 0.3 * DRIFT
    residual = step @ found @ step.T + 0.09 * (AVERAGED + WHITE) - found
    np.testing.assert_allclose(residual, 0, atol=1e-12)


@pytest.mark.parametrize("window", [1, 7])
def test_small_steps_give_theorem_2_and_long_windows_the_best_of_all_their_samples(window):
    limit = stationary_covariance(DRIFT, AVERAGED + WHITE / window)
    found = arma_covariance(DRIFT, AVERAGED, WHITE, window, 1e-5) / 1e-5
    np.testing.assert_allclose(found, limit, rtol=1e-3)
    inverse = np.linalg.inv(DRIFT)
    found = 100_000 * arma_covariance(DRIFT, AVERAGED, WHITE, 100_000, 1e-2)
    white = stationary_covariance(DRIFT, WHITE) * 1e-2
    np.testing.assert_allclose(found, inverse @ AVERAGED @ inverse.T + white, rtol=0.02)


def test_formula_for_one_parameter():
    drift, s1, s2, window, step = -3.0, 0.7, 1.9, 6, 0.11
    a = 1 + step * drift
    carried = (window - 1) / (1 - a) - (a - a**window) / (1 - a) ** 2
    noise = (s1 + s2) / window + 2 * a * s1 / window**2 * carried
    matrices = [np.array([[number]]) for number in (drift, s1, s2)]
    expected = step**2 / (1 - a**2) * noise
    assert arma_covariance(*matrices, window, step)[0, 0] == pytest.approx(expected)


def test_steps_with_a_random_fisher_matrix_have_a_moving_average_and_a_white_part():
    """e ← (I + α𝒢)e + αF̂⁻¹ε̄ with F̂⁻¹ drawn afresh: Σ₁ and Σ₂ from their definitions."""
    window, step, chains, draw = 4, 0.15, 20_000, np.random.default_rng(0)
    inverses = np.array([[[0.5, 0.2], [0.2, 1.0]], [[2.5, -0.4], [-0.4, 0.6]]])
    mean = inverses.mean(0)
    gradient = np.array([[2.0, 0.6], [0.6, 1.0]])
    sigma_1 = mean @ gradient @ mean.T
    sigma_2 = np.mean([one @ gradient @ one.T for one in inverses], axis=0) - sigma_1
    root = np.linalg.cholesky(gradient)
    errors = np.zeros((chains, 2))
    noises = [draw.normal(size=(chains, 2)) @ root.T for _ in range(window)]
    for _ in range(120):
        noises = [*noises[1:], draw.normal(size=(chains, 2)) @ root.T]
        picked = inverses[draw.integers(2, size=chains)]
        kick = np.einsum("cij,cj->ci", picked, sum(noises) / window)
        errors = errors + step * (errors @ DRIFT.T + kick)
    products = errors[:, :, None] * errors[:, None]
    found, error = products.mean(0), products.std(0) / np.sqrt(chains)
    expected = arma_covariance(DRIFT, sigma_1, sigma_2, window, step)
    assert (np.abs(found - expected) < 4 * error).all()
    swapped = arma_covariance(DRIFT, sigma_2, sigma_1, window, step)
    assert (np.abs(found - swapped) > 6 * error).any()


def test_mean_error_is_delayed_by_the_delay_alone():
    start = np.array([1.0, -2.0])
    plain = np.linalg.matrix_power(np.eye(2) + 0.1 * DRIFT, 9) @ start
    for window in (1, 5):
        found = mean_error(DRIFT, 0 * DELAY, window, 0.1, start, 9)
        np.testing.assert_allclose(found, plain, rtol=1e-12)
    np.testing.assert_allclose(mean_error(DRIFT, DELAY, 1, 0.1, start, 9), plain, rtol=1e-12)
    one = start + 0.1 * DRIFT @ start
    two = one + 0.1 * ((DRIFT - DELAY) @ one + DELAY @ (start + one) / 2)
    np.testing.assert_allclose(mean_error(DRIFT, DELAY, 2, 0.1, start, 2), two, rtol=1e-12)


def test_exact_variance_on_lqc_joins_theorem_2_and_ends_where_it_becomes_infinite():
    limit = lqc.asymptotic_variance(5, 1)
    assert lqc.constant_step_variance(5, 1e-6) / 1e-6 == pytest.approx(limit, rel=1e-4)
    with pytest.raises(ValueError, match=r"below 0\.103"):
        lqc.constant_step_variance(5, 0.11)
    # One step from a large sample of the stationary second moment leaves it as it is.
    draw, step, batch = np.random.default_rng(1), 0.2, 20
    variance = lqc.constant_step_variance(batch, step)
    θ = draw.choice([-1.0, 1.0], 400_000) * np.sqrt(variance)
    z = draw.normal(size=(2, len(θ), batch))
    gradient = np.mean((1 + θ[:, None] ** 2 - (θ[:, None] + z[0]) ** 2) * z[0], 1) / 0.5
    after = (θ + step * gradient / (0.01 + (z[1] ** 2).mean(1))) ** 2
    assert abs(after.mean() - variance) < 4 * after.std() / np.sqrt(len(θ))


def test_drift_of_states_is_what_the_policy_ratio_leaves_behind():
    corridor = problem("corridor")
    with jax.enable_x64(True):
        double = lambda x: jnp.asarray(x, jnp.float64) if hasattr(x, "dtype") else x
        env = jax.tree.map(double, corridor.env)
        θ, unflatten = flatten(jax.tree.map(double, corridor.optimum))
        moved = θ + jnp.array([0.3, -0.2])
        at_one = mixed_gradient(env, unflatten, moved, moved)
        np.testing.assert_allclose(at_one, env.gradient(unflatten(moved)), rtol=1e-9)
        mixed = functools.partial(mixed_gradient, env, unflatten)
        h = 1e-5
        central = lambda f, e: (f(θ + h * e) - f(θ - h * e)) / (2 * h)
        slopes = [central(lambda old: mixed(θ, old), e) for e in jnp.eye(2)]
        both = [central(lambda at: mixed(at, at), e) for e in jnp.eye(2)]
    # 𝒟 is to its derivative what 𝒢 is to ∇²η.
    expected = corridor.drift @ np.linalg.solve(np.transpose(both), np.transpose(slopes))
    np.testing.assert_allclose(corridor.delay, expected, rtol=1e-4)
    assert np.abs(corridor.delay).max() > 0.3 * np.abs(corridor.drift).max()


def test_best_policy_in_the_corridor_lies_inside():
    corridor = problem("corridor")
    assert corridor.origin == pytest.approx([-0.163, 0.953], abs=1e-3)
    assert np.abs(corridor.origin).max() < corridor.bound
    from_elsewhere = jax.tree.map(lambda x: x + 0.5, corridor.start)
    found = flatten(optimum(corridor.env, from_elsewhere))[0]
    np.testing.assert_allclose(found, corridor.origin, atol=1e-4)
    assert np.linalg.eigvals(corridor.drift).real.max() == pytest.approx(-corridor.slowest)
    exact = moments(corridor.env, corridor.optimum, corridor.batch, corridor.damping)
    np.testing.assert_allclose(corridor.stationary(7), exact.stationary(7), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "ratio", "runs"),
    [("LQC", "occupancy", 300), ("corridor", "policy", 150)],
)
def test_runs_of_the_library_have_the_predicted_error(name, ratio, runs):
    window = 8
    place = problem(name)
    step = 0.008 / place.slowest
    checkpoints = np.arange(400, 1_001, 5)
    # The last two do not move: every run has a learning rate of its own.
    rates = np.append(np.full(runs, step), [0.0, 0.0])
    task = Task(place, window, ratio, 0.0, rates, checkpoints, (1,))
    (paths,) = run_all([task])
    still = paths.errors[:, -2:]
    np.testing.assert_array_equal(still, np.broadcast_to(place.first_error, still.shape))
    squares = (paths.errors[:, :-2] ** 2).sum(-1).mean(0)
    theory = predicted_errors(place, window, ratio, step).delayed
    ratio_error = squares.std(ddof=1) / np.sqrt(len(squares)) / theory
    # Of order α: half the share that the largest step of the experiment has.
    assert abs(squares.mean() / theory - 1) < 4 * ratio_error + 0.06
    assert ratio_error < 0.05
    assert paths.refused == 0


def settled_paths(experiment: Constant, task: Task, factor: float) -> Paths:
    """Made-up errors with the covariance of theory times a factor, and a mean on the way."""
    draw = np.random.default_rng(task.window)
    place = task.problem
    noises = (place.averaged, place.white, task.window)
    parts = []
    for rate in task.rates:
        (variance,) = factor * arma_covariance(place.drift, *noises, rate)[0]
        parts.append(np.sqrt(variance) * draw.normal(size=(len(task.checkpoints), 1)))
    errors = np.stack(parts, axis=1)
    on_the_way = task.checkpoints < experiment.burn_in
    errors[on_the_way] += 0.25 * task.problem.first_error * (3 if task.window > 1 else 1)
    return Paths(errors, 0, 0.0)


@pytest.mark.parametrize("factor", [1.0, 1.4])
def test_verdict_on_the_constant_step_follows_the_runs(monkeypatch, factor):
    lqc_only = dict(problems=("LQC",), ratios=("occupancy",), replications=60)
    experiment = Constant(steps=(0.02, 0.1), windows=(4, 16), **lqc_only)
    made = lambda tasks: [settled_paths(experiment, task, factor) for task in tasks]
    monkeypatch.setattr(constant, "run_all", made)
    findings = experiment.run()
    assert [(row["step"], row["window"]) for row in findings.rows] == [
        (0.02, 1), (0.1, 1), (0.02, 4), (0.1, 4), (0.02, 16), (0.1, 16),
    ]  # fmt: skip
    for row in findings.rows:
        assert row["over_arma"] == pytest.approx(factor, abs=0.05)
        assert row["arma"] == pytest.approx(row["error"] / row["over_arma"])
        expected = row["step_size"] * lqc.asymptotic_variance(5, row["window"])
        assert row["limit"] == pytest.approx(expected)
        assert near(row) == (factor == 1)
    assert f"({4 if factor == 1 else 0} of 4 cells within 10%)" in findings.verdict
    assert "the error falls in 4 of 4 comparisons" in findings.verdict
    assert "more, beyond both intervals, in 4 of 4 cells, from αK|λ| = 0.08 on" in findings.verdict
    plt.close("all")


def test_errors_that_do_not_fall_are_named():
    def row(window, error):
        interval = [0.9 * error, 1.1 * error]
        return dict(step=0.1, step_size=0.2, window=window, error=error, interval=interval)

    first, second = falls([row(16, 0.49), row(1, 1.0), row(4, 0.5)])
    assert (first.name, first.is_certain) == ("α = 0.2, K = 1 → 4", True)
    assert (second.name, second.is_certain) == ("α = 0.2, K = 4 → 16", False)
    assert second.interval[0] < 0.98 < second.interval[1]


def ornstein_uhlenbeck(drift, noise, distance, count, runs, seed=0):
    """Exact draws of the stationary solution at even distances in time."""
    stationary = stationary_covariance(drift, noise)
    step = scipy.linalg.expm(drift * distance)
    fresh = stationary - step @ stationary @ step.T
    draw = np.random.default_rng(seed)
    zero = np.zeros(len(drift))
    path = [draw.multivariate_normal(zero, stationary, runs)]
    for _ in range(count - 1):
        path.append(path[-1] @ step.T + draw.multivariate_normal(zero, fresh, runs))
    return np.stack(path)


def test_products_at_a_lag_have_the_autocovariance_of_the_process():
    path = ornstein_uhlenbeck(DRIFT, AVERAGED, 0.1, 200, 300)
    products = lagged_products(path, 8)
    found, error = products.mean(0), products.std(0) / np.sqrt(300)
    stationary = stationary_covariance(DRIFT, AVERAGED)
    theory = autocovariance(DRIFT, stationary, np.arange(8) * 0.1)
    assert (np.abs(found - theory) < 4 * error).all()
    # Backwards in time it is another process.
    assert (np.abs(found - theory.swapaxes(1, 2)) > 6 * error).any()


def test_products_are_averaged_over_the_moments_that_have_a_later_one():
    np.testing.assert_allclose(lagged_products(np.full((5, 2, 1), 3.0), 4), 9.0)


def test_moments_are_even_in_interpolated_time():
    checkpoints = even_in_time(20_000, 0.7, 50.0)
    times = np.cumsum(np.arange(1, 20_001) ** -0.7)[checkpoints - 1]
    assert checkpoints[-1] == 20_000
    assert 13_300 < checkpoints[0] < 13_500
    np.testing.assert_allclose(np.diff(times), 0.02, atol=13_000**-0.7)
    assert np.diff(times).mean() == pytest.approx(0.02, rel=1e-3)


def test_band_covers_all_lags_together(monkeypatch):
    monkeypatch.setattr(process, "BOOTSTRAPS", 400)
    draw = np.random.default_rng(0)
    together, alone = 0, 0
    for seed in range(300):
        samples = 1 + draw.exponential(size=(80, 6, 2)) + 0.5 * draw.normal(size=(80, 1, 2))
        band = sup_t(samples, 0.9, seed)
        misses = band.misses(np.full((6, 2), 2.0))
        together += (misses <= 1).all()
        alone += (misses <= 1).mean()
    assert 0.84 < together / 300 < 0.95
    assert alone / 300 > 0.97


@pytest.mark.parametrize("name", ["LQC", "corridor"])
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_verdict_on_the_process_follows_the_runs(monkeypatch, name, factor):
    """Made-up runs: the stationary solution for 𝒢, or for a faster one with the same Σ∞."""
    sizes = dict(replications=400, iterations=6_000, tabular_iterations=6_000)
    experiment = Process(cases=((name, 3),), **sizes)

    def made(tasks):
        (task,) = tasks
        place = task.problem
        noise = factor * (place.averaged + place.white / 3)
        distance = 1 / (place.slowest * experiment.points)
        count = len(task.checkpoints)
        path = ornstein_uhlenbeck(factor * place.drift, noise, distance, count, 400)
        scale = np.sqrt(task.rates[0] * task.checkpoints**-0.7)
        return [Paths(path * scale[:, None, None], 0, 0.0)]

    monkeypatch.setattr(process, "run_all", made)
    findings = experiment.run()
    assert [row["lag"] for row in findings.rows] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert findings.rows[0]["theory"] == pytest.approx(1)
    assert findings.rows[0]["holds"]
    right = factor == 1
    assert all(row["holds"] for row in findings.rows) == right
    assert ("stays inside" if right else "leaves") in findings.verdict
    assert "1.1 Σ∞ at 0" in findings.verdict
    assert "0.9 Σ∞ at 0" in findings.verdict
    plt.close("all")


def test_power_is_the_first_lag_outside_the_band():
    place = problem("LQC")
    lags = np.arange(31) / 10
    exact = Measured(place, 1, lags, 0.0, Band(np.zeros((31, 2)), np.ones((31, 2))), 0, 0.0)
    band = Band(exact.theory(), np.full((31, 2), 0.03))
    measured = dataclasses.replace(exact, band=band)
    assert measured.holds
    assert measured.fails_at(1.0, 1.1) == 0
    # e^−x − e^−1.1x is 0.0296 at x = 0.5 and 0.0319 at 0.6; e^−0.9x − e^−x is 0.0311 at 0.5.
    assert measured.fails_at(1.1, 1.0) == pytest.approx(0.6)
    assert measured.fails_at(0.9, 1.0) == pytest.approx(0.5)
    assert measured.fails_at(1.05, 1.0) is None
    aside = dataclasses.replace(band, mean=band.mean + 1.5 * band.reach * (lags == 2.0)[:, None])
    assert not dataclasses.replace(measured, band=aside).holds


def test_both_on_the_command_line(tmp_path, capsys):
    small = ["--replications", "16", "--json", "--out"]
    lqc_only = ["--problems", "LQC", "--steps", "0.1", "--windows", "2", "--ratios", "policy"]
    assert main(["theory", "constant", *lqc_only, *small, str(tmp_path / "constant")]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["ratio"], row["window"]) for row in rows] == [("none", 1), ("ω̂", 2)]
    assert all(0.3 < row["over_arma"] < 3 for row in rows)
    flags = ["--cases", "LQC", "2", "--iterations", "1500", "--longest", "1", "--points", "4"]
    assert main(["theory", "process", *flags, *small, str(tmp_path / "process")]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["lag"] for row in rows] == [0, 0.5, 1.0]
    assert 0.3 < rows[0]["measured"] < 3
    for name in ("constant", "process"):
        for file in (f"{name}.png", "table.csv", "verdict.txt", "settings.json"):
            assert (tmp_path / name / file).stat().st_size > 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Constant(problems=()), "problems=() is empty"),
        (lambda: Constant(steps=(0.1, 0.3)), "steps=0.3 is out of range"),
        (lambda: Constant(windows=(0,)), "windows=0"),
        (lambda: Constant(replications=3), "replications=3"),
        (lambda: Constant(relaxations=0), "relaxations=0"),
        (lambda: Process(cases=()), "cases=() is empty"),
        (lambda: Process(cases=(("LQC", 0),)), "cases=0"),
        (lambda: Process(replications=7), "replications=7"),
        (lambda: Process(step_decay=1.0), "step_decay=1.0"),
        (lambda: Process(longest=0.0), "longest=0.0"),
        (lambda: Process(level=1.0), "level=1.0"),
        (lambda: Process(iterations=50), "iterations=50"),
        (lambda: Process(iterations=200), "iterations=200 leaves"),
        (lambda: Process(tabular_iterations=200), "tabular_iterations=200 leaves"),
        (lambda: arma_covariance(DRIFT, AVERAGED, WHITE, 0, 0.1), "window=0"),
        (lambda: arma_covariance(DRIFT, AVERAGED, WHITE, 2, -0.1), "step=-0.1"),
        (lambda: arma_covariance(DRIFT, AVERAGED, WHITE, 2, 2.0), "step=2.0 makes errors grow"),
        (lambda: arma_covariance(-DRIFT, AVERAGED, WHITE, 2, 0.1), "makes errors grow"),
        (
            lambda: delayed_covariance(DRIFT, 4 * DRIFT, AVERAGED, WHITE, 40, 0.2),
            "window=40 makes delayed errors grow",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(make, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        make()
