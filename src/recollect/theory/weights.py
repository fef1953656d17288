"""Which weight rule, when? Bias, variance and mean squared error of each beside exact answers.

Everything is relative to the mean squared error of the newest batch alone: 1 is what one has
without reuse, 1/K what K fresh batches would have, and above 1 reuse hurts. `weighing` tells how
the estimates are made.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from recollect.checks import check_count, check_name, check_number
from recollect.envs import LQC, chain, garnet, gridworld
from recollect.keys import numbered
from recollect.machines import map_kept
from recollect.memory.mixture import Mixture, OccupancyMixture
from recollect.memory.weights import AbstractWeightRule, OccupancyRatio, PolicyRatio, PowerMean
from recollect.report.plot import COLOURS
from recollect.runtime import one_blas_thread
from recollect.theory.findings import Findings, panels
from recollect.theory.ode import check_replications
from recollect.theory.weighing import (
    Estimate,
    Task,
    bound_rules,
    compare,
    lqc_task,
    tabular_task,
)

TASKS: Mapping[str, Callable[[], Task]] = {
    "chain": lambda: tabular_task(chain()),
    "gridworld": lambda: tabular_task(gridworld(3, 3, discount=0.9)),
    "garnet": lambda: tabular_task(garnet()),
    "LQC": lambda: lqc_task(LQC()),
}
"""By name."""
RULES: Mapping[str, AbstractWeightRule] = {
    "policy": PolicyRatio(),
    "truncated": PolicyRatio(truncate=2.0),
    "self-normalised": PolicyRatio(self_normalise=True),
    "power": PowerMean(0.5),
    "mixture": Mixture(),
    "none": PowerMean(1.0),
    "occupancy": OccupancyRatio(),
    "occupancy-mixture": OccupancyMixture(),
}
"""By name; `none` counts old samples as if they were new."""
EXACT = ("occupancy", "occupancy-mixture")
"""Rules that need to know occupancy measures, which practice does not."""
TARGETS = ("gradient", "direction")
"""What is estimated."""


@dataclasses.dataclass(frozen=True)
class WeightRules:
    """Which weight rule, when? Bias and variance of gradient and natural direction for each.

    On a chain, a gridworld, a random MDP (Garnet) and LQC, with exact advantages. A policy takes
    steps of a given KL along directions that it estimates without reuse; at its end, each rule
    estimates ∇η and (F + εI)⁻¹∇η from the newest K batches. All figures are relative to the mean
    squared error of the newest batch alone.
    """

    tasks: tuple[str, ...] = ("chain", "gridworld", "garnet", "LQC")
    """Problems, by name."""
    rules: tuple[str, ...] = tuple(RULES)
    """Weight rules, by name; `none` counts old samples as if they were new."""
    windows: tuple[int, ...] = (2, 4, 8, 16)
    """K."""
    radii: tuple[float, ...] = (0.0005, 0.005, 0.05)
    """KL of a step, to second order."""
    samples: int = 20
    """B: independent draws from the occupancy measure in a batch."""
    damping: float = 0.1
    """ε, added to the diagonal of the Fisher matrix."""
    replications: int = 500
    """Over which means are taken."""
    seed: int = 0
    """Of the samples."""

    def __post_init__(self):
        for field in ("tasks", "rules", "windows", "radii"):
            if not getattr(self, field):
                raise ValueError(f"{field}=() is empty; give at least one.")
        for task in self.tasks:
            check_name("tasks", task, TASKS)
        for rule in self.rules:
            check_name("rules", rule, RULES)
        if not self._practical:
            raise ValueError(
                f"rules={self.rules!r} all need occupancy measures; give one that does not, "
                "for example policy."
            )
        for window in self.windows:
            check_count("windows", window)
            remedy = "give at least 2, as nothing old is reused with less"
            check_number("windows", window, low=2, remedy=remedy)
        for field in ("radii", "damping"):
            values = getattr(self, field)
            for value in values if isinstance(values, tuple) else (values,):
                check_number(field, value, low=0, open_low=True, remedy="give a number above 0")
        check_count("samples", self.samples)
        check_replications(self.replications)

    def run(self) -> Findings:
        """Compare all rules on all problems, and say which to take."""
        rows = self.table()
        return Findings(rows, self._verdict(rows), {"weights": self._picture(rows)})

    @property
    def _practical(self) -> list[str]:
        """The rules that need no occupancy measure."""
        return [rule for rule in self.rules if rule not in EXACT]

    def table(self) -> list[dict]:
        """All figures, a row for each problem, step size, rule and window."""
        # In processes that have one core each. Several factorisations at once, each of which XLA
        # splits over the cores, can wait for each other forever.
        tables = map_kept(_table_of_task, [(self, name) for name in self.tasks])
        rows = lambda table: zip(*[column.tolist() for column in table.values()], strict=True)
        return [dict(zip(table, row, strict=True)) for table in tables for row in rows(table)]

    def compare(self, name: str, radius: float) -> list[dict]:
        """The rows of one problem and step size."""
        task = TASKS[name]()
        shape = (self.replications, max(self.windows), self.samples, 3)
        normal = jax.random.normal(numbered(jax.random.key(self.seed), 0), shape)
        rules = bound_rules({rule: RULES[rule] for rule in self.rules}, task.env)
        # Numbers as arrays: one program serves all step sizes of a problem.
        numbers = (jnp.asarray(radius), jnp.asarray(self.damping))
        found = jax.tree.map(np.asarray, compare(task, rules, self.windows, *numbers, normal))
        return [
            dict(
                task=name,
                radius=radius,
                window=window,
                rule=rule,
                **_figures(found.fresh, Estimate(*[part[:, k] for part in reused])),
            )
            for rule, reused in found.reused.items()
            for k, window in enumerate(self.windows)
        ]

    def _verdict(self, rows) -> str:
        """Which rule to take, by how far each is from the best practical one in every case."""
        practical = self._practical
        cases = list(itertools.product(self.tasks, self.radii, self.windows))
        words = []
        for target in TARGETS:
            errors = {
                rule: np.array([_cell(rows, target, rule, *case) for case in cases])
                for rule in self.rules
            }
            best = np.min([errors[rule] for rule in practical], axis=0)
            behind = {rule: errors[rule] / best for rule in self.rules}
            mean = {rule: np.exp(np.log(behind[rule]).mean()) for rule in self.rules}
            first = min(practical, key=lambda rule: mean[rule])
            safest = min(practical, key=lambda rule: behind[rule].max())
            hurts = {rule: int((errors[rule] > 1).sum()) for rule in self.rules}
            told = ", ".join(
                f"{rule} {mean[rule]:.2f} ({behind[rule].max():.3g}; {hurts[rule]})"
                for rule in sorted(self.rules, key=lambda rule: mean[rule])
            )
            words += [
                f"{target.capitalize()}: mean squared error over that of the best practical rule, "
                f"geometric mean over {len(cases)} cases (the worst case; cases in which reuse is "
                f"worse than the newest batch alone): {told}.",
                f"Over all, {first} is nearest to the best; the smallest worst case has {safest}. "
                f"By step size: {self._by_radius(rows, target)}.",
            ]
        return "\n".join(words)

    def _by_radius(self, rows, target: str) -> str:
        """For each step size, the best rule (and the worst) for the shortest and the longest
        window."""
        told = []
        for radius in self.radii:
            parts = []
            for window in (min(self.windows), max(self.windows)):
                errors = [
                    (self._over_tasks(rows, target, rule, radius, window), rule)
                    for rule in self._practical
                ]
                least, best = min(errors)
                most, worst = max(errors)
                parts.append(f"K = {window} {best} {least:.3g} ({worst} {most:.3g})")
            told.append(f"KL {radius:g}: {', '.join(parts)}")
        return "; ".join(told)

    def _over_tasks(self, rows, target: str, rule: str, radius: float, window: int) -> float:
        """Geometric mean of the mean squared error over the problems."""
        errors = [_cell(rows, target, rule, task, radius, window) for task in self.tasks]
        return float(np.exp(np.mean(np.log(errors))))

    def _picture(self, rows):
        """Mean squared error against the window, a row of panels for each target, a column for
        each step size."""
        figure, axes = panels(2, len(self.radii), width=4.2)
        cells = itertools.product(TARGETS, self.radii)
        for one, (target, radius) in zip(axes, cells, strict=True):
            self._draw(one, rows, target, radius)
        axes[0].legend(frameon=False, fontsize=7, loc="lower left")
        return figure

    def _draw(self, axes: Axes, rows, target: str, radius: float) -> None:
        windows = np.array(self.windows)
        colours = dict(zip(RULES, COLOURS[1:] + COLOURS[:1], strict=True))
        for rule in self.rules:
            errors = [self._over_tasks(rows, target, rule, radius, K) for K in self.windows]
            line = "--" if rule in EXACT else "-"
            axes.plot(
                windows, errors, line, color=colours[rule], marker="o", markersize=3, label=rule
            )
        axes.axhline(1, color="black", linewidth=1)
        axes.plot(windows, 1 / windows, ":", color="black", label="1/K")
        axes.set(xscale="log", yscale="log", xlabel="window K")
        axes.set(title=f"{target}, KL {radius:g} a step", ylabel="MSE / that of the newest batch")
        axes.set_xticks(self.windows, [str(window) for window in self.windows])
        axes.minorticks_off()


def _table_of_task(task: tuple[WeightRules, str]) -> dict[str, np.ndarray]:
    """The columns of one problem."""
    experiment, name = task
    with one_blas_thread():
        rows = [row for radius in experiment.radii for row in experiment.compare(name, radius)]
    return {column: np.array([row[column] for row in rows]) for column in rows[0]}


def _figures(fresh: Estimate, reused: Estimate) -> dict[str, float]:
    """Squared bias, variance and mean squared error, over the last of the newest batch alone."""
    figures = {}
    for target in TARGETS:
        alone = _squares(getattr(fresh, target))
        deviations = getattr(reused, target)
        squares = _squares(deviations)
        unit = alone.mean()
        variance = deviations.var(0, ddof=1).sum()
        # The square of the mean has a part of the variance in it.
        bias = max(np.sum(deviations.mean(0) ** 2) - variance / len(deviations), 0.0)
        ratio = squares.mean() / unit
        error = np.std(squares - ratio * alone, ddof=1) / np.sqrt(len(alone)) / unit
        figures |= {
            f"{target}_bias": float(bias / unit),
            f"{target}_variance": float(variance / unit),
            f"{target}_mse": float(ratio),
            f"{target}_error": float(error),
        }
    return figures


def _squares(deviations: Float[np.ndarray, "replication d"]) -> Float[np.ndarray, " replication"]:
    return np.sum(np.asarray(deviations, float) ** 2, axis=-1)


def _cell(rows, target: str, rule: str, task: str, radius: float, window: int) -> float:
    """A mean squared error of the table."""
    chosen = dict(rule=rule, task=task, radius=radius, window=window)
    (row,) = [row for row in rows if all(row[name] == chosen[name] for name in chosen)]
    return row[f"{target}_mse"]
