"""What the experiments leave beside the pictures: README.md with the answers, returns as CSV."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.paper.attribution import controls
from recollect.paper.cells import Outcome
from recollect.paper.figures import CURVES, FIGURES
from recollect.paper.verdicts import Claim
from recollect.report.tables import markdown
from recollect.serial import write_csv
from recollect.statistics import standard_error

TITLES = {
    "fig1": "the two tasks",
    "fig8": "LQC, density of the error beside that of Theorem 2",
    "fig9": "LQC, quantiles of the error against those of Theorem 2",
    "why": "gradients of the window beside gradients of 400 fresh episodes, cartpole",
}
"""Of the pictures that are not in `CURVES`."""
LEGEND = (
    "The table has every claim with what was measured, and the figures follow. Written by "
    "`recollect paper`, with the settings of `src/recollect/paper/protocol.py`.",
    "Intervals are 95 % bootstrap intervals over paired seeds, for variances 95 % χ² intervals. A "
    "claim *holds* if every comparison has its interval on the claimed side (for a ratio that "
    "should be 1: around 1) and *depends* if some have. If none has, it *does not hold* where an "
    "interval lies on the other side, and is *undecided* where none does. The area under a curve "
    "is its mean over iterations, a standard error is averaged over iterations, the effective "
    "share of a batch is its effective sample size over its size (mean over the second half of "
    "the run).",
)
"""How the page is to be read: what goes on after the answer, and a paragraph of its own."""
VERDICTS = ("holds", "depends", "undecided", "does not hold")
DIAGNOSTICS = (
    "curve",
    "area under the curve",
    "standard error",
    "effective share of the oldest batch",
    "largest weight: median",
    "99 %",
    "largest KL of a step: median over seeds",
    "clipped",
    "refused updates",
    "minutes of one core",
)
"""Columns of the table under a figure of learning curves."""


def page(
    title: str,
    answers: Sequence[Claim],
    outcomes: Mapping[str, Mapping[str, Outcome]],
    normality: Sequence[Mapping[str, Any]] | None,
    fresh: Sequence[str],
    pictures: Collection[str],
    attribution: Sequence[str] = (),
) -> str:
    """The answers, the figures and what old data was worth, as Markdown.

    Args:
        title: what was run.
        answers: of all claims.
        outcomes: by figure, and in it by the label of the curve.
        normality: rows of the theory laboratory, if it has run.
        fresh: lines about gradients beside fresh ones.
        pictures: names of the figures that were drawn.
        attribution: lines about reuse beside more steps.
    """
    claims = [
        (f"“{one.sentence}”", one.figure, "<br>".join(map(str, one.measured)), f"**{one.verdict}**")
        for one in answers
    ]
    lines = [
        f"# The paper's experiments: {title}",
        "",
        *opening([one.verdict for one in answers]),
        *markdown(("claim", "figure", "measured", "answer"), claims, align="llll"),
    ]
    for name in FIGURES:
        if name in pictures:
            title = f"{name}: {CURVES[name].title if name in CURVES else TITLES[name]}"
            lines += ["", f"## {title}", "", f"![{name}]({name}.png)"]
        if name in outcomes:
            table = _times if CURVES[name].timed else _diagnostics
            lines += ["", *table(outcomes[name])]
        if name in outcomes and CURVES[name].note:
            lines += ["", CURVES[name].note]
        if name == "fig7" and attribution:
            lines += ["", "### What reuse does and what more steps do", "", *attribution]
        if name == "why":
            lines += ["", *fresh]
        if name == "fig8" and normality:
            minutes = sum(row["seconds"] for row in normality) / 60
            lines += ["", f"{minutes:.1f} minutes of one core."]
    return "\n".join(lines) + "\n"


def opening(verdicts: Sequence[str]) -> list[str]:
    """How many claims have which answer, and how to read the page, line by line."""
    counts = ", ".join(f"*{verdict}* {verdicts.count(verdict)}" for verdict in VERDICTS)
    goes_on, terms = LEGEND
    answer = f"Of {len(verdicts)} claims: {counts}. {goes_on}"
    return [*textwrap.wrap(answer, 120), "", *textwrap.wrap(terms, 120), ""]


def write_seeds(path: Path, outcome: Outcome) -> None:
    """Write the returns of every seed as CSV, an iteration a row, a seed a column."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        (i + 1, *[f"{value:.6g}" for value in column]) for i, column in enumerate(outcome.returns.T)
    ]
    write_csv(path, ["iteration", *range(len(outcome.returns))], rows)


def _diagnostics(outcomes: Mapping[str, Outcome]) -> list[str]:
    """How well each curve did, what the oldest batch of its window counted, how long it took."""
    repeated = controls(outcomes)
    rows = []
    for label, one in outcomes.items():
        curves = one.curves
        median, high = np.quantile(curves["max_weight"], (0.5, 0.99))
        clipped = curves.get("clip_fraction_by_age")
        row = [
            label,
            f"{one.returns.mean():.1f}",
            f"{standard_error(one.returns).mean():.2f}",
            # A window of copies has no older batch.
            "" if label in repeated else f"{_oldest(one):.0%}",
            f"{median:.3g}",
            f"{high:.3g}",
            f"{np.median(curves['kl'].max(1)):.2g}",
            f"{clipped.mean():.0%}" if clipped is not None else "",
            str(int((curves["refused"] > 0).sum())),
            f"{_minutes(one):.1f}",
        ]
        rows.append(row)
    minutes = sum(map(_minutes, outcomes.values()))
    together = f"All together {minutes:.1f} minutes of one core, compilation included."
    return [*markdown(DIAGNOSTICS, rows), "", together]


def _oldest(one: Outcome) -> float:
    """Effective over true size of the window's oldest batch, mean over the run's second half."""
    ess = one.curves["ess_by_age"]
    _, iterations, window = ess.shape
    sizes = np.diff(one.curves["environment_steps"], axis=1, prepend=0)
    later = np.arange(max(window - 1, iterations // 2), iterations)
    if not len(later):
        return np.nan
    return float((ess[:, later, -1] / sizes[:, later - window + 1]).mean())


def _minutes(one: Outcome) -> float:
    return (one.seconds + one.compile_seconds) / 60


def _times(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Seconds of a run beside those of a run with the explicit matrix."""
    rows = []
    for label, one in outcomes.items():
        other = outcomes.get(f"explicit {label}")
        if other is not None:
            ours, explicit = [run.seconds / len(run.returns) for run in (one, other)]
            seconds = (f"{ours:.2f}", f"{explicit:.2f}", f"{explicit / ours:.2f}")
            rows.append((*label.split(), *seconds))
    return markdown(("K₁", "K₂", "ours, s", "explicit matrix, s", "ratio"), rows, align="rrrrr")
