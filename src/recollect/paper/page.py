"""What is left of the paper's experiments beside the pictures: README.md with the answers, and the returns of every seed as CSV."""

import csv
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.paper.attribution import controls
from recollect.paper.cells import Outcome
from recollect.paper.figures import CURVES, FIGURES
from recollect.paper.verdicts import Claim
from recollect.statistics import standard_error

TITLES = {
    "fig1": "the two tasks",
    "fig8": "LQC, density of the error beside that of Theorem 2",
    "fig9": "LQC, quantiles of the error against those of Theorem 2",
    "why": "gradients of the window beside gradients of 400 fresh episodes, cartpole",
}


def page(
    title: str,
    answers: Sequence[Claim],
    outcomes: Mapping[str, Mapping[str, Outcome]],
    normality: Sequence[Mapping[str, Any]] | None,
    fresh: Sequence[str],
    pictures: Collection[str],
    attribution: Sequence[str] = (),
) -> str:
    """The answers, the figures and what old data was worth, as Markdown."""
    lines = [
        f"# The paper's experiments: {title}",
        "",
        "Written by `recollect paper`; settings and where they come from: `src/recollect/paper/protocol.py`.",
        "Intervals are 95 % bootstrap intervals over paired seeds, for variances 95 % χ² intervals. A claim *holds* if every comparison",
        "has its interval on the claimed side (for a ratio that should be 1: around 1) and *depends* if some have. If none has, it",
        "*does not hold* where an interval lies on the other side, and is *undecided* where none does. The area under a curve is its",
        "mean over iterations, a standard error is averaged over iterations, the effective share of a batch is its effective sample size",
        "over its size (mean over the second half of the run).",
        "",
        "| claim | figure | measured | answer |",
        "|:--|:--|:--|:--|",
    ]
    lines += [
        f"| “{one.sentence}” | {one.figure} | {'<br>'.join(map(str, one.measured))} | **{one.verdict}** |"
        for one in answers
    ]
    for name in FIGURES:
        if name in pictures:
            title = f"{name}: {CURVES[name].title if name in CURVES else TITLES[name]}"
            lines += ["", f"## {title}", "", f"![{name}]({name}.png)"]
        if name in outcomes:
            lines += [
                "",
                *(_times(outcomes[name]) if CURVES[name].timed else _diagnostics(outcomes[name])),
            ]
        if name in outcomes and CURVES[name].note:
            lines += ["", CURVES[name].note]
        if name == "fig7" and attribution:
            lines += ["", "### What reuse does and what more steps do", "", *attribution]
        if name == "why":
            lines += ["", *fresh]
        if name == "fig8" and normality:
            lines += [
                "",
                f"{sum(row['seconds'] for row in normality) / 60:.1f} minutes of one core.",
            ]
    return "\n".join(lines) + "\n"


def write_seeds(path: Path, found: Outcome) -> None:
    """Returns of every seed, an iteration a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["iteration", *range(len(found.returns))])
        writer.writerows(
            [i + 1, *[f"{value:.6g}" for value in column]]
            for i, column in enumerate(found.returns.T)
        )


def _diagnostics(outcomes: Mapping[str, Outcome]) -> list[str]:
    """How well each curve did, what the oldest batch of the window still counted, and how long it took."""
    columns = [
        "curve",
        "area under the curve",
        "standard error",
        "effective share of the oldest batch",
    ]
    columns += [
        "largest weight: median",
        "99 %",
        "largest KL of a step: median over seeds",
        "clipped",
        "refused updates",
        "minutes of one core",
    ]
    lines = [f"| {' | '.join(columns)} |", "|:--|" + "--:|" * (len(columns) - 1)]
    repeated = controls(outcomes)
    for label, one in outcomes.items():
        curves = one.curves
        median, high = np.quantile(curves["max_weight"], (0.5, 0.99))
        figures = [f"{one.returns.mean():.1f}", f"{standard_error(one.returns).mean():.2f}"]
        # A window of copies has no older batch.
        figures += ["" if label in repeated else f"{_oldest(one):.0%}"]
        figures += [
            f"{median:.3g}",
            f"{high:.3g}",
            f"{np.median(curves['kl'].max(1)):.2g}",
            f"{curves['silenced_by_age'].mean():.0%}",
        ]
        figures += [str(int((curves["refused"] > 0).sum())), f"{_minutes(one):.1f}"]
        lines.append(f"| {label} | {' | '.join(figures)} |")
    return [
        *lines,
        "",
        f"All together {sum(map(_minutes, outcomes.values())):.1f} minutes of one core, compilation included.",
    ]


def _oldest(one: Outcome) -> float:
    """Effective over true sample size of the oldest batch in the window, mean over the second half of the run."""
    ess, ends = one.curves["ess_by_age"], one.curves["environment_steps"]
    window, iterations = ess.shape[2], ess.shape[1]
    sizes = np.diff(ends, axis=1, prepend=0)
    later = np.arange(max(window - 1, iterations // 2), iterations)
    if not len(later):
        return np.nan
    return float((ess[:, later, -1] / sizes[:, later - window + 1]).mean())


def _minutes(one: Outcome) -> float:
    return (one.seconds + one.compile_seconds) / 60


def _times(outcomes: Mapping[str, Outcome]) -> list[str]:
    lines = ["| K₁ | K₂ | ours, s | explicit matrix, s | ratio |", "|--:|--:|--:|--:|--:|"]
    for label, one in outcomes.items():
        other = outcomes.get(f"explicit {label}")
        if other is not None:
            first, second = label.split()
            ours, explicit = [run.seconds / len(run.returns) for run in (one, other)]
            lines.append(
                f"| {first} | {second} | {ours:.2f} | {explicit:.2f} | {explicit / ours:.2f} |"
            )
    return lines
