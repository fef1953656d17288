"""Section 5 of the paper with one command: every figure at full scale, and an answer to every claim.

`protocol` has the settings, `cells` runs them and keeps what is finished, `figures` draws, `verdicts` answers.
"""

import csv
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled

from recollect.checks import check_count, check_name
from recollect.paper.cells import Outcome, chunks, outcome
from recollect.paper.figures import CURVES, FIGURES, FULL, QUICK, densities, frames
from recollect.paper.protocol import PROTOCOLS
from recollect.paper.verdicts import Claim, claims
from recollect.report import standard_error
from recollect.runtime import progress_bar

MINUTES = "minutes.json"


@dataclasses.dataclass(frozen=True)
class Paper:
    """Reproduce the experiments of the paper. Finished parts are kept in the folder: a run that was stopped goes on where it was."""

    figures: tuple[str, ...] = FIGURES
    """Which: fig1 to fig9, trpo, trpo-pendulum; all if not given."""
    protocol: str = "sgd"
    """How the text is read: sgd (the main one), adam, sgd-gaussian, adam-gaussian."""
    quick: bool = False
    """A version of all in two minutes, to see that it works."""
    seeds: int | None = None
    """Replications of each curve; 50 if not given, as in the paper."""
    engine: str = "auto"
    """What runs the environments: auto, compiled, gymnasium or envpool."""

    def __post_init__(self):
        for name in self.figures:
            check_name("figures", name, FIGURES)
        check_name("protocol", self.protocol, PROTOCOLS)
        if self.seeds is not None:
            check_count("seeds", self.seeds)

    def run(self, folder: Path) -> list[Claim]:
        """Pictures, tables and README.md with the answers in `folder`."""
        protocol = PROTOCOLS[self.protocol]
        scale = dataclasses.replace(QUICK if self.quick else FULL, **({} if self.seeds is None else dict(seeds=self.seeds)))
        place = folder if self.protocol == next(iter(PROTOCOLS)) else folder / self.protocol
        place.mkdir(parents=True, exist_ok=True)
        minutes = json.loads((place / MINUTES).read_text()) if (place / MINUTES).exists() else {}
        plan = {name: CURVES[name].cells(protocol, scale) for name in self.figures if name in CURVES}
        total = sum(len(chunks(CURVES[name].seeds(protocol, scale))) for name, cells in plan.items() for _ in cells)
        theory = [name for name in ("fig8", "fig9") if name in self.figures]
        outcomes: dict[str, dict[str, Outcome]] = {}
        rows: Sequence[Mapping[str, Any]] | None = None
        finished = 0
        with progress_bar(sys.stderr.isatty(), "paper") as show:

            def done(name: str) -> None:
                nonlocal finished
                finished += 1
                show(finished / (total + bool(theory)), name)

            if "fig1" in self.figures:
                self._frames(place / "fig1.png")
            for name, cells in plan.items():
                began, figure = time.perf_counter(), CURVES[name]
                seeds = figure.seeds(protocol, scale)
                outcomes[name] = {label: outcome(cell, seeds, place / "cells", self.engine, done) for label, cell in cells.items()}
                figure.draw(place / f"{name}.png", outcomes[name])
                for label, cell in cells.items():
                    _write_seeds(place / "curves" / f"{cell.name}.csv", outcomes[name][label])
                # What was kept took its time in an earlier run.
                took = sum(one.seconds + one.compile_seconds for one in outcomes[name].values())
                minutes[name] = round(max(took, time.perf_counter() - began) / 60, 2)
            if theory:
                began = time.perf_counter()
                findings = scale.normality.run()
                densities(place, findings)
                rows = findings.rows
                minutes["fig8"] = round((time.perf_counter() - began) / 60, 2)
                done("fig8")
        (place / MINUTES).write_text(json.dumps(minutes, indent=1) + "\n")
        answers = claims(outcomes, rows)
        (place / "README.md").write_text(page(self, answers, outcomes, minutes))
        return answers

    @staticmethod
    def _frames(path: Path) -> None:
        try:
            frames(path)
        except (DependencyNotInstalled, ImportError) as error:
            raise ValueError(f"fig1 renders both tasks and needs packages for it; pip install 'recollect[paper]' ({error}).") from error


def _write_seeds(path: Path, found: Outcome) -> None:
    """Returns of every seed, an iteration a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["iteration", *range(len(found.returns))])
        writer.writerows([i + 1, *[f"{value:.6g}" for value in column]] for i, column in enumerate(found.returns.T))


def page(paper: Paper, answers: Sequence[Claim], outcomes: Mapping[str, Mapping[str, Outcome]], minutes: Mapping[str, float]) -> str:
    """The answers, the figures and what old data was worth, as Markdown."""
    lines = [
        "# The paper's experiments",
        f"Written by `recollect paper`, protocol `{paper.protocol}`. Intervals: 95 %, paired-seed bootstrap (χ² for variances).",
        "A claim *holds* if every comparison has its interval on the claimed side, *does not hold* if none has, else it *depends*.",
        "",
        "| claim | figure | measured | answer |",
        "|:--|:--|:--|:--|",
    ]
    lines += [f"| “{one.sentence}” | {one.figure} | {'<br>'.join(map(str, one.measured))} | **{one.verdict}** |" for one in answers]
    for name in FIGURES:
        if name in outcomes:
            lines += ["", f"## {name}: {CURVES[name].title}", "", f"![{name}]({name}.png)", "", f"{minutes[name]:.1f} minutes."]
            if name != "fig5":
                lines += ["", *_diagnostics(outcomes[name])]
        elif name in paper.figures:
            lines += ["", f"## {name}", "", f"![{name}]({name}.png)"]
    return "\n".join(lines) + "\n"


def _diagnostics(outcomes: Mapping[str, Outcome]) -> list[str]:
    """What the weights looked like."""
    lines = ["| curve | area under the curve | standard error | sample size worth, newest | oldest | largest weight (median) | refused |"]
    lines += ["|:--|--:|--:|--:|--:|--:|--:|"]
    for label, one in outcomes.items():
        by_age = one.curves["ess_by_age"][:, one.returns.shape[1] // 2 :].mean((0, 1))
        spread = standard_error(one.returns).mean()
        weight, refused = np.median(one.curves["max_weight"]), int((one.curves["refused"] > 0).sum())
        lines.append(
            f"| {label} | {one.returns.mean():.1f} | {spread:.2f} | {by_age[0]:.0f} | {by_age[-1]:.0f} | {weight:.3g} | {refused} |"
        )
    return lines
