"""What reuse does and what more gradient steps do.

RPPO with a window of K takes more gradient steps than PPO. Between the two stands a control that
takes as many steps on the newest batch alone. The whole gain then has two parts, for differences a
sum, for ratios a product:

    K against 1  =  (control against 1: more steps alone)  and  (K against control: reuse)
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from recollect.algorithms import PPO
from recollect.algorithms.control import NewestRepeated, planned_steps
from recollect.paper.cells import Cell, Outcome
from recollect.paper.comparisons import Measured, area_gain, error_ratio, last_gain, last_third
from recollect.report.tables import markdown

VANILLA = "K = 1"
"""The label of PPO without reuse in figure 7."""
NEGLIGIBLE = 0.1
"""Reuse adds nothing worth mentioning if its interval ends below this share of the whole gain."""

BEYOND = "reuse helps beyond the steps"
STEPS = "the steps explain the gain"
WORSE = "reuse makes it worse"
UNDECIDED = "undecided"


def control_label(window: int) -> str:
    """The label of the control of a window in figure 7.

    Example:
        >>> control_label(5)
        'K = 1, as many steps as K = 5'
    """
    return f"{VANILLA}, as many steps as K = {window}"


def controls(labels: Iterable[str]) -> dict[str, str]:
    """The controls among the labels of a figure, and for which window each stands.

    Example:
        >>> controls(["K = 1", "K = 5", "K = 1, as many steps as K = 5"])
        {'K = 1, as many steps as K = 5': 'K = 5'}
    """
    given = list(labels)
    windows = {label.removeprefix("K = "): label for label in given}
    possible = {control_label(int(K)): label for K, label in windows.items() if K.isdecimal()}
    return {control: label for control, label in possible.items() if control in given}


@dataclasses.dataclass(frozen=True)
class Attribution:
    """One quantity of one window, and which part of its gain comes from what."""

    what: str
    """The quantity, in words."""
    label: str
    """Of the window."""
    steps: Measured
    """More steps alone: the control against a window of 1."""
    reuse: Measured
    """Reuse at as many steps: the window against the control."""
    both: Measured
    """The window against a window of 1."""

    @property
    def answer(self) -> str:
        """Which part brings the gain. An interval around zero says nothing unless it is short."""
        if self.reuse.holds:
            return BEYOND
        if self.reuse.fails:
            return STEPS if self.steps.holds else WORSE
        negligible = self.both.holds and _most(self.reuse) < NEGLIGIBLE * _gain(self.both)
        return STEPS if self.steps.holds and negligible else UNDECIDED

    @property
    def share(self) -> float:
        """How much of the whole gain more steps alone bring; of ratios by their logarithms."""
        if not self.both.holds:
            return np.nan
        if self.both.above:
            return self.steps.value / self.both.value
        return float(np.log(self.steps.value) / np.log(self.both.value))

    @property
    def sentence(self) -> str:
        """Both parts and the answer in words."""
        more = _verb(self.steps, "raise it", "lower it", "make no difference that can be told")
        reuse = _verb(self.reuse, "raises it", "lowers it", "makes no difference that can be told")
        return (
            f"{self.what[0].upper()}{self.what[1:]}, {self.label}: "
            f"more steps alone {more} ({_interval(self.steps)}); "
            f"reuse at as many steps {reuse} ({_interval(self.reuse)}): {self.answer}."
        )


def attributions(runs: Mapping[str, Outcome]) -> list[Attribution]:
    """Area, mean of the last third, and standard error of every window that has a control.

    Args:
        runs: the curves of figure 7 by their labels.
    """
    last = last_third(runs[VANILLA])
    quantities: dict[str, Callable[[str, Outcome, Outcome], Measured]] = {
        "area": area_gain,
        f"mean of the last {last} iterations": last_gain,
        "standard error": error_ratio,
    }
    parts = []
    for control, label in controls(runs).items():
        for what, compare in quantities.items():
            against = lambda a, b, what=what, compare=compare: compare(
                f"{what}, {a} against {b}", runs[a], runs[b]
            )
            parts.append(
                Attribution(
                    what=what,
                    label=label,
                    steps=against(control, VANILLA),
                    reuse=against(label, control),
                    both=against(label, VANILLA),
                )
            )
    return parts


def attribution_table(cells: Mapping[str, Cell], runs: Mapping[str, Outcome]) -> list[str]:
    """The parts of every gain, a sentence for each, and how many steps were taken, as Markdown.

    Args:
        cells: the settings of figure 7 by their labels.
        runs: the curves of figure 7 by their labels.

    Returns:
        The lines.
    """
    parts = attributions(runs)
    explanation = [
        "A window of K takes up to K times the gradient steps of a window of 1. The control",
        "(dashed) sweeps as often, but over copies of the newest batch. Differences for the area",
        "and the mean of the last iterations, ratios for the standard error. *The steps explain",
        "the gain* if the control gains and reuse adds nothing to it: its interval lies on the",
        f"other side, or ends within {100 * NEGLIGIBLE:.0f} % of the gain of both together.",
    ]
    columns = (
        "quantity",
        "window",
        "more steps alone",
        "reuse at as many steps",
        "both",
        "share of the steps",
        "answer",
    )
    rows = []
    for one in parts:
        intervals = map(_interval, (one.steps, one.reuse, one.both))
        share = "" if np.isnan(one.share) else f"{100 * one.share:.0f} %"
        rows.append((one.what, one.label, *intervals, share, f"**{one.answer}**"))
    sentences = [f"- {one.sentence}" for one in parts]
    table = markdown(columns, rows, align="llrrrrl")
    return [*explanation, "", *table, "", *sentences, "", *_counts(cells, runs)]


def _counts(cells: Mapping[str, Cell], runs: Mapping[str, Outcome]) -> list[str]:
    """The end of every curve, and its gradient steps: how well the control matches them."""
    last = last_third(runs[VANILLA])
    stands_for = controls(runs)
    steps = {label: _steps(cells[label], run) for label, run in runs.items()}
    columns = (
        "curve",
        f"mean of the last {last} iterations",
        "gradient steps of a run",
        "of its first third",
        "over those of its window",
        "in the first third",
    )
    rows = []
    for label, count in steps.items():
        first = slice(round(len(count) / 3))
        figures = [f"{runs[label].returns[:, -last:].mean():.1f}"]
        figures += [f"{count.sum():,.0f}", f"{count[first].sum():,.0f}"]
        other = steps.get(stands_for.get(label, ""))
        if other is None:
            figures += ["", ""]
        else:
            of_run = count.sum() / other.sum()
            of_first = count[first].sum() / other[first].sum()
            figures += [f"{of_run:.2f}", f"{of_first:.2f}"]
        rows.append((label, *figures))
    return markdown(columns, rows)


def _steps(cell: Cell, run: Outcome) -> np.ndarray:
    """Gradient steps of every iteration, mean over seeds.

    Cells do not keep them, but they follow from the sizes of the batches.
    """
    assert isinstance(cell.algorithm, PPO | NewestRepeated)
    sizes = np.diff(run.curves["environment_steps"], axis=1, prepend=0)
    return planned_steps(cell.algorithm, sizes).mean(0)


def _gain(measured: Measured) -> float:
    """How far a comparison is on the claimed side."""
    return measured.value - measured.border if measured.above else measured.border - measured.value


def _most(measured: Measured) -> float:
    """How far its interval reaches on the claimed side."""
    return measured.high - measured.border if measured.above else measured.border - measured.low


def _verb(measured: Measured, up: str, down: str, neither: str) -> str:
    if measured.holds or measured.fails:
        return up if measured.low > measured.border else down
    return neither


def _interval(measured: Measured) -> str:
    return f"{measured.value:.3g} [{measured.low:.3g}, {measured.high:.3g}]"
