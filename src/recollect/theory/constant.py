"""Introduction of the paper: with a constant step size reuse makes the error around θ̄ smaller.

By how much is known for every step size α: near θ̄ the error is an ARMA(1, K − 1) process
(`recollect.theory.linear`). A window is short or long by αK|λ|, the share of a relaxation time
1/(α|λ|) that it covers, where λ is the eigenvalue of 𝒢 nearest to zero. A short one gives
Theorem 2, with a floor that no window goes below. A long one averages noise before θ can follow
it, and the error falls below that floor.

What a long window costs shows on the way to θ̄: old samples weigh little for a policy that has
moved far, and with the policy ratio ω̂ a part of the drift is that of old policies.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from recollect.checks import check_count, check_name, check_number
from recollect.memory.weights import Ratio
from recollect.report.plot import COLOURS
from recollect.theory.findings import Findings, panels
from recollect.theory.linear import arma_covariance, delayed_covariance, mean_error
from recollect.theory.local import NAMES, SIGNS, Local, Name, Paths, Task, local_problem, run_all
from recollect.theory.lqc import constant_step_variance
from recollect.theory.normality import mean_interval

BURN_IN = 6
"""Relaxation times before errors are measured, after which e^−12 of ‖θ_0 − θ̄‖² is left."""
WAY = 2
"""Relaxation times after which the way back to θ̄ is looked at."""
MEASUREMENTS = 50
"""In a relaxation time of the smallest step."""
FEWEST = 50
"""Runs at any step size, if there are as many at the smallest."""
TOLERANCE = 0.1
"""How far theory may be off and still be called near."""
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Constant:
    """How large is the error around θ̄ with a constant step size, and what does a window do to it?

    Runs of RNPG on LQC and on a corridor with two parameters, with the exact ratio ω and the
    policy ratio ω̂, beside the covariance of an ARMA(1, K − 1) process. Steps are given as α|λ|,
    where 1/|λ| is the slowest time scale of 𝒢.
    """

    problems: tuple[Name, ...] = NAMES
    """LQC has one parameter, the corridor two."""
    steps: tuple[float, ...] = (0.004, 0.016, 0.064)
    """α|λ|: the share of the most persistent error that a step removes."""
    windows: tuple[int, ...] = (1, 4, 16, 64)
    """K; 1 is VNPG and is always among them."""
    ratios: tuple[Ratio, ...] = ("occupancy", "policy")
    """Importance weights: the paper's ω (`occupancy`), its ω̂ (`policy`), or both."""
    replications: int = 300
    """Runs on LQC at the smallest step; a larger one, which forgets sooner, has fewer."""
    tabular_replications: int = 100
    """The same on the corridor."""
    relaxations: int = 8
    """Relaxation times of the smallest step over which errors are measured; 6 more come before."""
    seed: int = 0
    """Of all runs."""

    def __post_init__(self):
        for field in ("problems", "steps", "windows", "ratios"):
            if not getattr(self, field):
                raise ValueError(f"{field}=() is empty; give at least one.")
        for name in self.problems:
            check_name("problems", name, NAMES)
        for ratio in self.ratios:
            check_name("ratios", ratio, SIGNS)
        remedy = "give the share of an error that a step removes, above 0 and below 0.2"
        inside: Row = dict(low=0, high=0.2, open_low=True, open_high=True)
        for step in self.steps:
            check_number("steps", step, **inside, remedy=remedy)
        for window in self.windows:
            check_count("windows", window)
        check_count("relaxations", self.relaxations)
        remedy = "give at least 8, as fewer cannot tell an interval"
        for field in ("replications", "tabular_replications"):
            check_count(field, getattr(self, field))
            check_number(field, getattr(self, field), low=8, remedy=remedy)

    def run(self) -> Findings:
        """Simulate every problem, window, ratio and step size, and compare with theory."""
        problems = [local_problem(name) for name in self.problems]
        tasks = [task for problem in problems for task in self.tasks(problem)]
        rows = []
        for task, paths in zip(tasks, run_all(tasks), strict=True):
            rows += self.rows(task, paths)
        of = lambda problem: [row for row in rows if row["problem"] == problem.name]
        verdict = "\n".join(words(problem, of(problem)) for problem in problems)
        figure, axes = panels(len(problems), 2)
        for problem, left, right in zip(problems, axes[::2], axes[1::2], strict=True):
            self._draw(problem, of(problem), left, right)
        return Findings(rows, verdict, {"constant": figure})

    @property
    def burn_in(self) -> int:
        """Iterations before errors are measured; every window has long been full by then."""
        return max(int(np.ceil(BURN_IN / min(self.steps))), 2 * max(self.windows))

    def way(self, step: float) -> int:
        """Iterations after which the way back to θ̄ is looked at."""
        return max(1, round(WAY / step))

    def tasks(self, problem: Local) -> list[Task]:
        """One for each window and ratio, with all step sizes side by side; K = 1 has no ratio."""
        rates = np.repeat(np.array(self.steps) / problem.slowest, self._runs(problem))
        longest = 1 / min(self.steps)
        stride = int(np.ceil(longest / MEASUREMENTS))
        settled = self.burn_in + np.arange(0, self.relaxations * longest, stride, dtype=int)
        checkpoints = np.union1d(settled, [self.way(step) for step in self.steps])
        cases: list[tuple[int, Ratio]] = [(1, "policy")]
        cases += itertools.product(sorted({*self.windows} - {1}), self.ratios)
        tasks = []
        for i, (window, ratio) in enumerate(cases):
            seeds = (self.seed, NAMES.index(problem.name), i)
            tasks.append(Task(problem, window, ratio, 0.0, rates, checkpoints, seeds))
        return tasks

    def _runs(self, problem: Local) -> list[int]:
        """How many of each step size."""
        most = self.replications if problem.name == "LQC" else self.tabular_replications
        fewest = min(FEWEST, most)
        return [max(fewest, round(most * min(self.steps) / step)) for step in self.steps]

    def rows(self, task: Task, paths: Paths) -> list[Row]:
        """The figures of a task, a row for each step size."""
        ends = np.cumsum(self._runs(task.problem))
        parts = np.split(paths.errors, ends[:-1], axis=1)
        pairs = zip(self.steps, parts, strict=True)
        return [self._row(task, paths, step, errors) for step, errors in pairs]

    def _row(
        self,
        task: Task,
        paths: Paths,
        step: float,
        errors: Float[np.ndarray, "checkpoint replication d"],
    ) -> Row:
        problem = task.problem
        α = step / problem.slowest
        settled = errors[task.checkpoints >= self.burn_in]
        squares = (settled**2).sum(-1).mean(0)
        low, high = mean_interval(squares)
        theory = predicted_errors(problem, task.window, task.ratio, α)
        start = problem.first_error
        along = lambda error: error @ start / (start @ start)
        left = along(errors[np.searchsorted(task.checkpoints, self.way(step))])
        delay = problem.delay * (task.ratio == "policy")
        expected = mean_error(problem.drift, delay, task.window, α, start, self.way(step))
        return dict(
            problem=problem.name,
            ratio=SIGNS[task.ratio] if task.window > 1 else "none",
            step=step,
            step_size=α,
            window=task.window,
            memory=step * task.window,
            limit=α * float(np.trace(problem.stationary(task.window))),
            arma=theory.arma,
            delayed=theory.delayed,
            exact=exact_error(problem, task.window, α),
            error=float(squares.mean()),
            interval=[low, high],
            over_arma=float(squares.mean() / theory.arma),
            over_arma_interval=[low / theory.arma, high / theory.arma],
            over_delayed=float(squares.mean() / theory.delayed),
            left=float(left.mean()),
            left_interval=list(mean_interval(left)),
            left_theory=float(along(expected)),
            refused=paths.refused,
            seconds=paths.seconds,
        )

    def _draw(self, problem: Local, rows: Sequence[Row], left: Axes, right: Axes) -> None:
        unit = float(np.trace(problem.stationary(1)))
        windows = np.unique(np.geomspace(1, max(*self.windows, 2), 25).round()).astype(int)
        for step, colour in zip(self.steps, itertools.cycle(COLOURS[1:])):
            chosen = [row for row in rows if row["step"] == step]
            α = step / problem.slowest
            for ratio, style in (("occupancy", "-"), ("policy", "--")):
                if ratio in self.ratios and (ratio == "occupancy" or problem.delay.any()):
                    errors = [predicted_errors(problem, int(k), ratio, α).delayed for k in windows]
                    line = np.array(errors) / (α * unit)
                    left.plot(windows, line, style, color=colour, linewidth=1)
            _points(left, chosen, "error", "interval", α * unit, colour, f"α = {α:.2g}")
            _points(right, chosen, "left", "left_interval", 1.0, colour, f"α = {α:.2g}")
        limit = [float(np.trace(problem.stationary(int(k)))) / unit for k in windows]
        left.plot(windows, limit, ":", color="black", linewidth=1.2, label="Theorem 2, α → 0")
        left.set(title=f"{problem.name}: E‖θ − θ̄‖² / (α tr Σ∞(1))", yscale="log")
        expected = min(rows, key=lambda row: (row["step"], row["window"]))["left_theory"]
        right.axhline(expected, color="black", linewidth=0.8, linestyle=":")
        right.set(title=f"{problem.name}: left of θ₀ − θ̄ after {WAY}/(α|λ|) iterations")
        for axes in (left, right):
            axes.set(xscale="log", xlabel="window K")
            ticks = sorted({1, *self.windows})
            axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
            axes.set_xticks([], minor=True)
        legend: Row = dict(title="● ratio ω, solid   ○ ratio ω̂, dashed", title_fontsize=8)
        left.legend(frameon=False, fontsize=8, **legend)


@dataclasses.dataclass(frozen=True)
class Predicted:
    """E‖θ − θ̄‖² in the long run."""

    arma: float
    """As if the drift were not delayed, which is so with the exact ratio."""
    delayed: float
    """With the delay that the ratio brings."""


def predicted_errors(problem: Local, window: int, ratio: Ratio, step_size: float) -> Predicted:
    """The traces of `arma_covariance` and, for the policy ratio, of `delayed_covariance`.

    Args:
        problem: LQC or the corridor.
        window: K.
        ratio: of the importance weights.
        step_size: α.
    """
    noises = (problem.averaged, problem.white, window, step_size)
    arma = float(np.trace(arma_covariance(problem.drift, *noises)))
    if ratio == "occupancy" or not problem.delay.any():
        return Predicted(arma, arma)
    delayed = delayed_covariance(problem.drift, problem.delay, *noises)
    return Predicted(arma, float(np.trace(delayed)))


def exact_error(problem: Local, window: int, step_size: float) -> float | None:
    """E‖θ − θ̄‖² where it is known exactly: on LQC without reuse, if it is finite."""
    if problem.name != "LQC" or window > 1:
        return None
    try:
        return constant_step_variance(problem.batch, step_size, problem.damping)
    except ValueError:
        return None


@dataclasses.dataclass(frozen=True)
class Fall:
    """The error with a window over that with the next smaller one, and its 95 % interval."""

    name: str
    ratio: float
    interval: tuple[float, float]

    @property
    def is_certain(self) -> bool:
        """Whether the error falls beyond its interval."""
        return self.interval[1] < 1


def falls(rows: Sequence[Row]) -> list[Fall]:
    """Neighbouring windows compared, for each step size.

    Both errors come from runs of their own, so the squared half widths of their logs add.

    Args:
        rows: of one problem and one ratio, with those of K = 1.
    """
    comparisons = []
    for step in sorted({row["step"] for row in rows}):
        chosen = [row for row in rows if row["step"] == step]
        chosen.sort(key=lambda row: row["window"])
        for small, large in itertools.pairwise(chosen):
            half = [np.ptp(row["interval"]) / 2 / row["error"] for row in (small, large)]
            reach = float(np.exp(np.hypot(*half)))
            ratio = large["error"] / small["error"]
            name = f"α = {large['step_size']:.3g}, K = {small['window']} → {large['window']}"
            comparisons.append(Fall(name, ratio, (ratio / reach, ratio * reach)))
    return comparisons


def near(row: Row) -> bool:
    """Whether the interval of measured over ARMA error reaches into 1 ± `TOLERANCE`."""
    low, high = row["over_arma_interval"]
    return low <= 1 + TOLERANCE and high >= 1 - TOLERANCE


def words(problem: Local, rows: Sequence[Row]) -> str:
    """What the rows of one problem say.

    Args:
        problem: LQC or the corridor.
        rows: of all its cells.
    """
    vanilla = [row for row in rows if row["ratio"] == "none"]
    known = [dict(over=row["error"] / row["exact"]) for row in vanilla if row["exact"]]
    exactly = f" and {_span(known, 'over')} of the exact one" if known else ""
    near_arma = f"without reuse {_span(vanilla, 'over_arma')} of the ARMA error{exactly}."
    says = [f"{problem.name}: {near_arma}"]
    for sign in SIGNS.values():
        chosen = [row for row in rows if row["ratio"] == sign]
        if chosen:
            says += [
                f"Reuse with {sign}: {_agreement(problem, chosen)}",
                _gain(vanilla, chosen),
                _cost(vanilla, chosen),
            ]
    return " ".join(says)


def _agreement(problem: Local, rows: Sequence[Row]) -> str:
    limits = [dict(over=row["error"] / row["limit"]) for row in rows]
    late = problem.delay.any() and rows[0]["ratio"] == SIGNS["policy"]
    delayed = f", {_span(rows, 'over_delayed')} of that with delay" if late else ""
    return (
        f"{_span(rows, 'over_arma')} of the ARMA error ({sum(map(near, rows))} of {len(rows)} "
        f"cells within {TOLERANCE:.0%}){delayed}, and {_span(limits, 'over')} of αΣ∞."
    )


def _gain(vanilla: Sequence[Row], rows: Sequence[Row]) -> str:
    compared = falls([*vanilla, *rows])
    uncertain = [fall.name for fall in compared if not fall.is_certain]
    without = {row["step"]: row["error"] for row in vanilla}
    best = min(rows, key=lambda row: row["error"] / without[row["step"]])
    except_at = f" (not at {'; '.join(uncertain)})" if uncertain else ""
    return (
        f"From one window to the next the error falls in {len(compared) - len(uncertain)} of "
        f"{len(compared)} comparisons{except_at}, at best to "
        f"{best['error'] / without[best['step']]:.2g} of that without reuse "
        f"(α = {best['step_size']:.3g}, K = {best['window']})."
    )


def _cost(vanilla: Sequence[Row], rows: Sequence[Row]) -> str:
    highest = {row["step"]: row["left_interval"][1] for row in vanilla}
    held_up = [row for row in rows if row["left_interval"][0] > highest[row["step"]]]
    where = "nowhere more, beyond both intervals"
    if held_up:
        first = min(row["memory"] for row in held_up)
        where = f"more, beyond both intervals, in {len(held_up)} of {len(rows)} cells"
        where += f", from αK|λ| = {first:.2g} on"
    return (
        f"After {WAY} relaxation times {_span(rows, 'left')} of the first error is left, against "
        f"{_span(vanilla, 'left')} without reuse: {where}."
    )


def _span(rows: Sequence[Row], field: str) -> str:
    values = [row[field] for row in rows]
    return f"{min(values):.2f}–{max(values):.2f}"


def _points(
    axes: Axes,
    rows: Sequence[Row],
    field: str,
    interval: str,
    unit: float,
    colour: str,
    label: str,
) -> None:
    """Measured values with intervals: full for ω, hollow for ω̂, a little apart."""
    looks = ((SIGNS["occupancy"], colour, 0.96), (SIGNS["policy"], "white", 1.04))
    for sign, face, shift in looks:
        chosen = [row for row in rows if row["ratio"] in (sign, "none")]
        values = np.array([row[field] for row in chosen]) / unit
        ends = np.array([row[interval] for row in chosen]).T / unit
        places = [row["window"] * shift for row in chosen]
        style: Row = dict(fmt="o", markersize=4, color=colour, markerfacecolor=face, linewidth=1)
        name = label if face == colour else None
        axes.errorbar(places, values, [values - ends[0], ends[1] - values], label=name, **style)
