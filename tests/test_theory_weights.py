"""The experiment on weight rules, at small settings."""

import itertools

import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from recollect.theory.weighing import Estimate, to_radius
from recollect.theory.weights import EXACT, RULES, WeightRules, _figures

matplotlib.use("Agg")


def test_without_steps_a_window_is_as_many_fresh_samples():
    experiment = WeightRules(
        tasks=("chain", "LQC"),
        rules=("policy", "occupancy-mixture"),
        windows=(2, 4),
        radii=(1e-12,),
        samples=10,
        damping=0.3,
        replications=800,
    )
    rows = experiment.table()
    assert len(rows) == 2 * 2 * 2
    for row in rows:
        assert all(np.isfinite(value) for value in row.values() if isinstance(value, float)), row
        error = 4 * row["gradient_error"]
        assert row["gradient_mse"] == pytest.approx(1 / row["window"], abs=error)
        # A squared bias of zero is found within a few times the variance over the replications.
        assert row["gradient_bias"] < 10 * row["gradient_variance"] / 800
        # The more samples, the nearer is the Fisher matrix, too.
        assert row["direction_mse"] < 0.8
    by_rule = [[row["direction_mse"] for row in rows if row["rule"] == r] for r in experiment.rules]
    np.testing.assert_allclose(*by_rule, rtol=1e-3)


def test_a_step_is_as_long_as_its_radius():
    fisher = jnp.array([[2.0, 0.3], [0.3, 0.5]])
    step = to_radius(jnp.array([3.0, -1.0]), fisher, 0.01)
    np.testing.assert_allclose(step @ fisher @ step / 2, 0.01, rtol=1e-5)
    assert step[0] > 0


def test_figures_are_relative_to_the_newest_batch():
    draw = np.random.default_rng(0).normal(size=(4000, 3))
    fresh = Estimate(2 * draw, 4 * draw)
    reused = Estimate(draw + 1, draw)
    figures = _figures(fresh, reused)
    assert figures["gradient_bias"] == pytest.approx(1 / 4, rel=0.1)
    assert figures["gradient_variance"] == pytest.approx(1 / 4, rel=0.05)
    assert figures["gradient_mse"] == pytest.approx(1 / 2, rel=0.05)
    assert figures["direction_mse"] == pytest.approx(1 / 16, rel=0.01)
    assert figures["direction_error"] < 1e-6  # the same noise in both
    assert figures["gradient_error"] == pytest.approx(
        np.std(((draw + 1) ** 2).sum(-1) - 2 * (draw**2).sum(-1)) / 12 / 4000**0.5, rel=0.05
    )


def test_verdict_and_picture_follow_the_table(monkeypatch):
    """Made-up errors: truncation is best but fails once, the mixture is close behind always."""
    errors = dict.fromkeys(RULES, 0.8) | {"truncated": 0.4, "mixture": 0.48}
    others = {("LQC", 0.1, 8, "truncated"): 2.5, ("LQC", 0.1, 8, "policy"): 1.6}

    def made_up(self):
        rows = []
        cases = itertools.product(self.tasks, self.radii, self.windows, RULES)
        for task, radius, window, rule in cases:
            error = others.get((task, radius, window, rule), errors[rule])
            found = dict(gradient_mse=error, direction_mse=error)
            rows.append(dict(task=task, radius=radius, window=window, rule=rule, **found))
        return rows

    monkeypatch.setattr(WeightRules, "table", made_up)
    findings = WeightRules(windows=(2, 8), radii=(0.01, 0.1)).run()
    assert len(findings.rows) == 4 * 2 * 2 * len(RULES)
    for words in (
        "truncated is nearest to the best; the smallest worst case has mixture",
        "truncated 1.11 (5.21; 1)",
        "mixture 1.19 (1.2; 0)",
        "KL 0.1: K = 2 truncated 0.4 (self-normalised 0.8), K = 8 mixture 0.48 (policy 0.951)",
    ):
        assert findings.verdict.count(words) == 2  # for the gradient and for the direction
    lines = {line.get_label() for line in findings.pictures["weights"].axes[0].get_lines()}
    assert set(RULES) | {"1/K"} <= lines
    assert set(EXACT) < set(RULES)
    plt.close("all")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(windows=(1,)), ["windows=1", "at least 2"]),
        (dict(windows=()), ["windows=()", "at least one"]),
        (dict(tasks=("chian",)), ["tasks='chian'", "did you mean 'chain'"]),
        (dict(rules=("mixtur",)), ["rules='mixtur'", "did you mean 'mixture'"]),
        (dict(rules=("occupancy",)), ["need occupancy measures", "policy"]),
        (dict(radii=(0.1, 0.0)), ["radii=0.0", "above 0"]),
        (dict(damping=0.0), ["damping=0.0", "above 0"]),
        (dict(samples=0), ["samples=0", "at least 1"]),
    ],
)
def test_mistakes(settings, words):
    with pytest.raises(ValueError) as caught:
        WeightRules(**settings)
    assert all(word in str(caught.value) for word in words)
