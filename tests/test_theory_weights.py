"""The experiment on weight rules, at small settings."""

import itertools

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from recollect.envs import LQC, chain
from recollect.memory.mixture import OccupancyMixture
from recollect.memory.weights import PolicyRatio
from recollect.theory.weighing import (
    Estimate,
    bound_rules,
    compare,
    lqc_task,
    tabular_task,
    to_radius,
)
from recollect.theory.weights import EXACT, RULES, WeightRules, _figures

matplotlib.use("Agg")


@pytest.mark.parametrize("task", [tabular_task(chain(3)), lqc_task(LQC())], ids=["chain", "LQC"])
def test_without_steps_a_window_is_as_many_fresh_samples(task):
    rules = bound_rules({"policy": PolicyRatio(), "mixture": OccupancyMixture()}, task.env)
    normal = jax.random.normal(jax.random.key(0), (800, 4, 10, 3))
    small = jnp.array(1e-12)
    found = jax.tree.map(np.asarray, compare(task, rules, (2, 4), small, jnp.array(0.3), normal))
    square = lambda deviations: (deviations**2).sum(-1).mean(0)
    fresh = found.fresh.gradient
    error = fresh.std(0) / np.sqrt(len(fresh))
    assert (np.abs(fresh.mean(0)) < 4 * error).all()
    for estimates in found.reused.values():
        ratio = square(estimates.gradient) / square(fresh)
        np.testing.assert_allclose(ratio, [1 / 2, 1 / 4], rtol=0.2)
    np.testing.assert_allclose(
        found.reused["policy"].direction, found.reused["mixture"].direction, atol=2e-3
    )
    # The more samples, the nearer is the Fisher matrix, too.
    assert square(found.reused["policy"].direction)[1] < 0.5 * square(found.fresh.direction)


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
        "KL 0.1: K = 2 truncated 0.4 (policy 0.8), K = 8 mixture 0.48 (policy 0.951)",
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
        (dict(radii=(0.1, 0.0)), ["radii=0.0", "above 0"]),
        (dict(damping=0.0), ["damping=0.0", "above 0"]),
        (dict(samples=0), ["samples=0", "at least 1"]),
    ],
)
def test_mistakes(settings, words):
    with pytest.raises(ValueError) as caught:
        WeightRules(**settings)
    assert all(word in str(caught.value) for word in words)
