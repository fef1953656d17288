"""The bars of `never_hurts.py`: what its cells say about each, as tables in Markdown."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recollect.report.tables import markdown
from recollect.statistics import Estimate, bootstrap

RESAMPLES = 10_000
NEVER_BELOW = np.log(0.90)
"""No interval may lie wholly below this."""
MOSTLY_ABOVE = np.log(0.95)
MOST = 0.9
"""Part of the cells whose point has to lie above `MOSTLY_ABOVE`."""
POOLED_ABOVE = np.log(0.97)
HINDSIGHT = 0.95
KEPT_GAIN = 0.8


@dataclasses.dataclass(frozen=True)
class Case:
    """A task and an algorithm: the curves of every arm that has been run."""

    name: str
    curves: Mapping[str, np.ndarray]
    """By arm: seed, part of the steps."""
    by_regret: bool

    def worth(self, curves: np.ndarray, last: bool = False) -> np.ndarray:
        """Area (or final return) of every seed, or what it stays below the best."""
        part = curves[:, -curves.shape[1] // 4 :] if last else curves
        if not self.by_regret:
            return part.mean(1)
        best = max(one.mean(0).max() for one in self.curves.values())
        return best - part.mean(1)

    def log_ratio(self, arm: str, base: str, last: bool = False) -> Estimate | None:
        """log of the ratio of an arm to another; above 0 the arm is better."""
        if arm not in self.curves or base not in self.curves:
            return None
        samples = [self.worth(self.curves[one], last) for one in (arm, base)]
        return bootstrap(self._log, *samples, resamples=RESAMPLES)

    def _log(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        tiny = 1e-9
        ratio = np.maximum(ours.mean(1), tiny) / np.maximum(theirs.mean(1), tiny)
        return -np.log(ratio) if self.by_regret else np.log(ratio)

    def best(self, arms: Sequence[str]) -> str | None:
        """The arm with the largest mean area."""
        there = [arm for arm in arms if arm in self.curves]
        return max(there, key=lambda arm: self.curves[arm].mean(), default=None)

    def difference(self, arm: str, base: str) -> Estimate | None:
        """Difference of the mean areas, in units of the return."""
        if arm not in self.curves or base not in self.curves:
            return None
        samples = [self.curves[one].mean(1) for one in (arm, base)]
        apart = lambda ours, theirs: ours.mean(1) - theirs.mean(1)
        return bootstrap(apart, *samples, resamples=RESAMPLES)


def cases_of(data: Mapping[str, Any], by_regret: Sequence[str]) -> list[Case]:
    """The cases of the kept cells, which are called "CASE | ARM".

    Args:
        data: by name.
        by_regret: tasks whose areas are compared as regrets.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, cell in data.items():
        case, arm = name.split(" | ")
        found.setdefault(case, {})[arm] = np.array(cell["curves"], float)
    task = lambda case: case.partition(":")[0]
    return [Case(case, curves, task(case) in by_regret) for case, curves in found.items()]


def shown(one: Estimate | None, as_ratio: bool = True) -> str:
    """An estimate with its interval; of a logarithm as the ratio."""
    if one is None:
        return ""
    value, low, high = np.exp(one) if as_ratio else one
    return f"{value:,.3g} ({low:,.3g} – {high:,.3g})"


def table(cases: Sequence[Case], arms: Sequence[str], base: str) -> list[str]:
    """Ratios of areas of all cells to `base`, and that of the final return for the first arm."""
    rows = [
        [
            case.name,
            *(shown(case.log_ratio(arm, base)) for arm in arms),
            shown(case.log_ratio(arms[0], base, last=True)),
        ]
        for case in cases
        if base in case.curves
    ]
    return markdown(("cell", *arms, f"{arms[0]}, final return"), rows)


def grid(cases: Sequence[Case], arm: str, base: str) -> list[str]:
    """Ratios of areas of an arm to another: a row for each task, a column for each algorithm."""
    ratios: dict[str, dict[str, str]] = {}
    for case in cases:
        found = case.log_ratio(arm, base)
        if found is not None:
            task, _, algorithm = case.name.partition(": ")
            ratios.setdefault(task, {})[algorithm] = shown(found)
    algorithms = list(dict.fromkeys(name for row in ratios.values() for name in row))
    rows = [[task, *(row.get(name, "") for name in algorithms)] for task, row in ratios.items()]
    return markdown(("task", *algorithms), rows) if rows else []


def pooled(cases: Sequence[Case], arm: str, base: str) -> tuple[float, float] | None:
    """Mean log ratio over cells and its one-sided 95 % bound; seeds drawn anew in every cell."""
    some = [case for case in cases if arm in case.curves and base in case.curves]
    if not some:
        return None
    draw = np.random.default_rng(0)
    total = np.zeros(RESAMPLES)
    point = 0.0
    for case in some:
        ours, theirs = (case.worth(case.curves[one]) for one in (arm, base))
        chosen = draw.integers(len(ours), size=(RESAMPLES, len(ours)))
        total += case._log(ours[chosen], theirs[chosen]) / len(some)
        point += case._log(ours[None], theirs[None])[0] / len(some)
    return point, float(np.quantile(total, 0.05))


def verdict(holds: bool) -> str:
    return "holds" if holds else "**missed**"


def non_inferiority(cases: Sequence[Case], arm: str, base: str) -> list[str]:
    """The three bars against no reuse."""
    named = [(case.name, case.log_ratio(arm, base)) for case in cases]
    found = [(name, one) for name, one in named if one is not None]
    both = pooled(cases, arm, base)
    if both is None:
        return []
    worse = [name for name, one in found if one.high < NEVER_BELOW]
    above = sum(one.value > MOSTLY_ABOVE for _, one in found)
    enough = above >= MOST * len(found)
    point, bound = both
    return [
        f"- No interval below 0.90: {verdict(not worse)} ({', '.join(worse) or 'none'}).",
        f"- Points above 0.95: {above} of {len(found)} cells; {verdict(enough)}.",
        f"- Pooled ratio {np.exp(point):.3f}, one-sided bound {np.exp(bound):.3f}: "
        f"{verdict(bound > POOLED_ABOVE)}.",
    ]


def hindsight(cases: Sequence[Case], arm: str, windows: Sequence[str]) -> list[str]:
    """The geometric mean of the ratio to the best fixed window of every cell that has them all."""
    whole = [case for case in cases if set(windows) <= set(case.curves)]
    bests = [(case, case.best(windows)) for case in whole]
    found = [case.log_ratio(arm, best) for case, best in bests if best is not None]
    ratios = [one.value for one in found if one is not None]
    if not ratios:
        return []
    mean = float(np.exp(np.mean(ratios)))
    return [
        f"- Against the best of {', '.join(windows)} in each of {len(ratios)} cells: geometric "
        f"mean {mean:.3f}; {verdict(mean >= HINDSIGHT)}."
    ]


def negative(cases: Sequence[Case], windows: Mapping[str, str], arm: str, base: str) -> list[str]:
    """Where a fixed window loses: differences to no reuse, of that window and of the rule."""
    rows = []
    for case in cases:
        found = case.difference(arm, base)
        if case.name in windows and found is not None:
            fixed = shown(case.difference(windows[case.name], base), as_ratio=False)
            holds = verdict(found.high >= 0)
            rows.append((case.name, windows[case.name], fixed, shown(found, False), holds))
    columns = ("case", "window", "window − (K = 1)", "rule − (K = 1)", "bar")
    return markdown(columns, rows) if rows else []


def positive(cases: Sequence[Case], names: Sequence[str], arm: str, base: str) -> list[str]:
    """Where a fixed window gains: the part of the gain that the rule keeps."""
    rows = []
    for case in cases:
        if case.name not in names or not {arm, base, "K = 10"} <= set(case.curves):
            continue
        samples = [case.curves[one].mean(1) for one in (arm, base, "K = 10")]
        part = lambda rule, one, fixed: (rule.mean(1) - one.mean(1)) / (fixed.mean(1) - one.mean(1))
        kept = bootstrap(part, *samples, resamples=RESAMPLES)
        rows.append((case.name, shown(kept, as_ratio=False), verdict(kept.value >= KEPT_GAIN)))
    return markdown(("case", "part of the gain of K = 10", "bar"), rows) if rows else []


def section(title: str, lines: list[str]) -> list[str]:
    """A part of the page; nothing if there is nothing to say."""
    return [f"### {title}", "", *lines, ""] if lines else []
