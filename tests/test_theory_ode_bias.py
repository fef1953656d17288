"""The experiments on the limit equation and on the bias of reuse, at small settings."""

import functools

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from recollect.cli import main
from recollect.envs import LQC, chain, garnet, make
from recollect.estimate.fisher import Fisher
from recollect.policies import ShiftPolicy, tabular_softmax_policy
from recollect.policies.scores import score_matrix
from recollect.statistics import jackknife
from recollect.theory.bias import Bias
from recollect.theory.deviations import Deviations, controlled
from recollect.theory.enumeration import mean_inverse_fisher, occupancy_of_cells, outcomes
from recollect.theory.flow import draw_lqc, draw_tabular, integrate, lqc_problem, tabular_problem
from recollect.theory.lqc import inverse_fisher_moments
from recollect.theory.ode import Ode

matplotlib.use("Agg")
ENV = chain(length=3, discount=0.8)
SMALL = Ode(samples=3, steps=16, halvings=2, replications=200)
TILTED = jax.tree.map(
    lambda θ: θ + jnp.array([[0.7, -0.2, 0.4], [0.0, 0.3, -0.6]]), tabular_softmax_policy(3, 2)
)
NORMAL = jax.random.normal(jax.random.key(3), (2000, 3, 3))


def test_solution_on_lqc_is_the_exponential():
    problem = lqc_problem(5, 0.1)
    inverse = inverse_fisher_moments(5, 0.1)[0]
    expected = np.exp(-2 * inverse * np.linspace(0, 1, 201) / (1 - 0.5))
    np.testing.assert_allclose(
        integrate(problem.drift, jnp.ones(1), 2.0, 1.0)[:, 0], expected, atol=1e-5
    )


def test_solution_stays_in_the_box():
    solution = integrate(lambda θ: jnp.array([1.0, -0.5]), jnp.zeros(2), 0.3, 1.0)
    assert solution[-1].tolist() == pytest.approx([0.3, -0.3])
    assert solution[40].tolist() == pytest.approx([0.2, -0.1], abs=1e-6)


def test_mean_inverse_fisher_by_enumeration_is_the_mean_over_draws_from_the_occupancy_measure():
    @jax.jit
    def drawn(normal):
        batch = draw_tabular(ENV, TILTED, normal)
        observations, actions = batch.observations[:, 0], batch.actions[:, 0]
        fisher = Fisher(
            score_matrix(TILTED, observations, actions)[1], jnp.full(3, 1 / 3), jnp.array(3)
        )
        return observations.argmax(-1) * 2 + actions, jnp.linalg.inv(
            fisher.matrix() + 0.2 * jnp.eye(6)
        )

    cells, samples = map(np.asarray, jax.vmap(drawn)(NORMAL))
    frequencies = np.bincount(cells.ravel(), minlength=6) / cells.size
    assert np.abs(frequencies - np.asarray(occupancy_of_cells(ENV, TILTED))).max() < 4 * np.sqrt(
        0.25 / cells.size
    )
    error = samples.std(0) / np.sqrt(len(samples))
    exact = np.asarray(jax.jit(lambda: mean_inverse_fisher(ENV, TILTED, 3, 0.2))())
    assert (np.abs(samples.mean(0) - exact) < 4 * error + 1e-4).all()
    naive = np.linalg.inv(ENV.fisher(TILTED) + 0.2 * np.eye(6))
    assert (np.abs(naive - exact) > 10 * error + 1e-4).any()


def test_probabilities_of_all_outcomes_sum_to_one():
    draws, probabilities = outcomes(ENV, TILTED, 4)
    assert draws.shape == (126, 4)
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-5)


def test_lqc_draws_have_the_moments_of_the_occupancy_measure():
    env, θ, γ = LQC(discount=0.7), 1.5, 0.7
    batch = draw_lqc(env, ShiftPolicy(jnp.array(θ)), NORMAL.reshape(-1, 3))
    state, after = (
        np.asarray(batch.observations[:, 0, 0]),
        np.asarray(batch.observations[:, 0, 0] + batch.actions[:, 0, 0]),
    )
    for values, mean in (
        (state, γ * θ),
        (state**2, 1 + γ * θ**2),
        (after, θ),
        (state * after, γ * θ**2),
    ):
        assert abs(values.mean() - mean) < 4 * values.std() / np.sqrt(len(values))


def test_jackknife_of_a_mean_is_its_standard_error():
    samples = np.random.default_rng(0).normal(size=2000)
    value, error = jackknife(np.mean, samples)
    assert value == pytest.approx(samples.mean())
    assert error == pytest.approx(samples.std() / np.sqrt(2000), rel=0.5)


@pytest.mark.parametrize("problem", [lqc_problem, functools.partial(tabular_problem, ENV)])
def test_paths_come_nearer_to_the_solution_with_smaller_steps(problem):
    made = problem(3, 0.1)
    right, wrong = SMALL.solutions(made)
    paths = SMALL.paths(made, "RNPG ω")
    distances = SMALL.distances(paths, right)
    power, error = SMALL.power(distances)
    assert power - 3 * error > 0
    assert [path.shape[1] for path in paths] == [16, 32, 64]
    assert SMALL.distances(paths, wrong)[:, -1].mean() > 1.1 * distances[:, -1].mean()


def test_remainder_is_what_a_small_step_leaves():
    noise = np.random.default_rng(0).normal(size=(400, 3))
    α = SMALL.step_sizes
    for left in (0.0, 0.3):
        value, error = SMALL.remainder(left + 2 * np.sqrt(α) + 3 * α + 0.01 * noise)
        assert abs(value - left) < 4 * error
        assert error < 0.05


def test_bias_is_the_enumerated_one_and_vanishes_with_the_step():
    bias = Bias(windows=(2,), samples=2, replications=3000)
    size = {}
    for α in (1e-6, 0.3):
        run = bias.simulate(bias.algorithm(2, "occupancy", α, 0.0, False), 2)
        samples, error = controlled(run, 2)[:, 0], lambda x: x.std(0) / np.sqrt(len(x))
        exact = bias.enumerate("occupancy", α)[0]
        assert (np.abs(samples.mean(0) - exact) < 4 * error(samples) + 1e-6).all()
        assert (np.abs(run.old[:, 1].mean(0)) < 4 * error(run.old[:, 1])).all() == (α < 0.1)
        assert (np.abs(run.fresh.mean(0)) < 4 * error(run.fresh)).all()
        size[α] = np.linalg.norm(samples.mean(0)) / np.linalg.norm(error(samples))
    assert size[0.3] > 10


def test_policy_ratio_adds_the_mismatch_of_states():
    """Far from θ_0 the two ratios estimate different things; the difference falls with the step."""
    bias = Bias(windows=(2,), samples=2)
    gap = [
        np.linalg.norm(bias.enumerate("policy", α)[0] - bias.enumerate("occupancy", α)[0])
        for α in (0.02, 0.2)
    ]
    assert 4 < gap[1] / gap[0] < 20


@pytest.mark.parametrize("offset", [0.0, 0.3])
def test_verdict_on_the_equation_follows_the_paths(monkeypatch, offset):
    """Made-up paths: the solution, noise of order √α, and an offset that no step takes away."""
    draw, solution = np.random.default_rng(0), np.linspace(0, 1, 11)[:, None]

    def paths(self, problem, series):
        made = [
            np.repeat(self._at(solution, self.steps * 2**j)[None], 40, 0)
            for j in range(self.halvings + 1)
        ]
        noise = [
            draw.uniform(0.9, 1.1, (40, 1, 1)) * np.sqrt(α) + offset * (series == "RNPG ω̂")
            for α in self.step_sizes
        ]
        return [path + some for path, some in zip(made, noise, strict=True)]

    monkeypatch.setattr(Ode, "paths", paths)
    monkeypatch.setattr(Ode, "solutions", lambda self, problem: (solution, solution - 1))
    findings = SMALL.run()
    assert len(findings.rows) == 24
    assert findings.verdict.count("the three share") - findings.verdict.count(
        "not shown that the three share"
    ) == (2 if offset == 0 else 0)
    plt.close("all")


def test_verdict_on_the_bias_follows_the_simulation(monkeypatch):
    """Made-up deviations: old samples keep the noise that they had when fresh, and a bias of 3 α is
    added."""
    draw = np.random.default_rng(0)

    def simulate(self, algorithm, iterations):
        fresh = draw.normal(size=(self.replications, iterations, 6))
        rates = float(algorithm.learning_rate) * np.arange(1, iterations + 1) ** -float(
            algorithm.step_decay
        )
        old = np.roll(fresh, 1, axis=1) + 3 * rates[:, None] * (
            1 + 0.01 * draw.normal(size=fresh.shape)
        )
        return Deviations(fresh, old)

    monkeypatch.setattr(Bias, "simulate", simulate)
    findings = Bias(
        windows=(2,), step_sizes=(0.01, 0.02, 0.1, 0.2), iterations=40, samples=2, replications=400
    ).run()
    assert len(findings.rows) == 18
    assert findings.rows[0]["bias_old"] == pytest.approx(0.03 * np.sqrt(6), rel=0.01)
    assert findings.verdict.count("K=2 ω [1.00, 1.00]") == 2
    assert "reuse lowers the variance" in findings.verdict
    assert "21 values for 21 outcomes" in findings.verdict
    plt.close("all")


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (Ode, dict(window=0), ["window=0", "at least 1"]),
        (Ode, dict(samples=30), ["samples=30", "give fewer samples"]),
        (Ode, dict(damping=0.0), ["damping=0.0", "above 0"]),
        (Ode, dict(bound=0.5), ["bound=0.5", "LQC starts"]),
        (Ode, dict(halvings=1), ["halvings=1", "three step sizes"]),
        (Ode, dict(replications=1), ["replications=1", "at least 2"]),
        (Bias, dict(windows=(1,)), ["windows=1", "at least 2"]),
        (Bias, dict(windows=()), ["windows=()", "give a window"]),
        (Bias, dict(step_sizes=(0.1, -0.1, 0.2, 0.3)), ["step_sizes=-0.1", "above 0"]),
        (Bias, dict(iterations=19), ["iterations=19", "20"]),
        (Bias, dict(step_decay=0.0), ["step_decay=0.0", "step sizes differ"]),
        (Bias, dict(samples=30), ["samples=30", "give fewer samples"]),
    ],
)
def test_mistakes(make, settings, words):
    with pytest.raises(ValueError) as caught:
        make(**settings)
    assert all(word in str(caught.value) for word in words)


def test_experiments_take_a_finite_mdp_from_a_file(tmp_path):
    env = garnet(states=2, actions=3, branching=2)
    arrays = dict(
        transitions=env.transitions, rewards=env.rewards, initial=env.initial, discount=0.7
    )
    np.savez(tmp_path / "mine.npz", **arrays)
    bias = Bias(env=tmp_path / "mine.npz", windows=(2,), iterations=8, samples=2, replications=40)
    assert bias.mdp.rewards.shape == (2, 3)
    deviations = bias.simulate(bias.algorithm(2, "policy", 0.01, 0.0, True), 3)
    assert np.isfinite(deviations.fresh).all()
    loaded = make(str(tmp_path / "mine.npz"), max_steps=7)
    assert (float(loaded.discount), loaded.max_steps) == (0.7, 7)
    np.testing.assert_allclose(loaded.gradient(bias.start), bias.mdp.gradient(bias.start))
    assert (
        main(
            [
                "train",
                "rnpg",
                str(tmp_path / "mine.npz"),
                "--iterations",
                "2",
                "--seeds",
                "1",
                "--out",
                str(tmp_path / "run"),
            ]
        )
        == 0
    )


@pytest.mark.parametrize(
    ("arrays", "says"),
    [(None, "is not a file"), (dict(rewards=np.ones((2, 2))), "no array 'transitions'")],
)
def test_files_that_are_no_mdp_are_explained(tmp_path, arrays, says):
    if arrays is not None:
        np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=says):
        Ode(env=tmp_path / "bad.npz")


def test_paths_are_compared_with_the_solution_at_their_own_times():
    solution = np.linspace(0, 1, 11)[:, None]
    np.testing.assert_allclose(SMALL._at(solution, 4)[:, 0], [0.25, 0.5, 0.75, 1.0])
    late = [np.array([[[0.35], [0.5], [0.75], [1.2]]])]
    np.testing.assert_allclose(SMALL.distances(late, solution), [[0.2]])
