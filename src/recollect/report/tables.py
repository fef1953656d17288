"""Figures of a run in a table, and its curves as CSV."""

import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.table import Table

from recollect.run.train import Training
from recollect.statistics import standard_error

COLUMNS = ("algorithm", "seed", "iteration", "environment_steps", "return_mean", "ess", "seconds")


@dataclasses.dataclass(frozen=True)
class Summary:
    """One algorithm's run over all seeds in seven figures."""

    final_return: float
    """Mean return over seeds and the last tenth of the iterations."""
    area_under_curve: float
    """Mean return over seeds and all iterations."""
    standard_error: float
    """Standard error over seeds, averaged over iterations; NaN for one seed."""
    environment_steps: int
    """Of all seeds together."""
    seconds: float
    """Wall time without compilation."""
    compile_seconds: float
    transitions_per_second: float


def summarise(training: Training) -> Summary:
    """The figures of a run; iterations after a seed has stopped do not count."""
    returns = training.curves["return_mean"]
    tenth = max(1, returns.shape[1] // 10)
    last = [
        row[np.isfinite(row)][-tenth:].mean() if np.isfinite(row).any() else np.nan
        for row in returns
    ]
    steps = int(np.nanmax(training.curves["environment_steps"], axis=1).sum())
    seconds, errors = float(training.clock[-1]), standard_error(returns)
    return Summary(
        final_return=float(np.mean(last)),
        area_under_curve=float(np.nanmean(returns)),
        standard_error=float(np.nanmean(errors)) if np.isfinite(errors).any() else np.nan,
        environment_steps=steps,
        seconds=seconds,
        compile_seconds=training.compile_seconds,
        transitions_per_second=steps / seconds,
    )


def table(summaries: Mapping[str, Summary]) -> Table:
    """The summaries for people."""
    columns = (
        "algorithm",
        "final return",
        "area under curve",
        "standard error",
        "environment steps",
        "seconds",
        "transitions/s",
    )
    result = Table(*columns)
    for column in result.columns[1:]:
        column.justify = "right"
    for name, s in summaries.items():
        result.add_row(
            name,
            f"{s.final_return:.1f}",
            f"{s.area_under_curve:.1f}",
            f"{s.standard_error:.2f}",
            f"{s.environment_steps:,}",
            f"{s.seconds:.1f}",
            f"{s.transitions_per_second:,.0f}",
        )
    return result


def write_curves(path: Path, runs: Mapping[str, Training]) -> None:
    """One row for each algorithm, seed and iteration that took place."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for name, run in runs.items():
            curves = run.curves
            for index, seed in enumerate(run.seeds):
                for iteration in np.flatnonzero(np.isfinite(curves["environment_steps"][index])):
                    at = (index, iteration)
                    numbers = (curves["return_mean"][at], curves["ess"][at])
                    writer.writerow(
                        [
                            name,
                            seed,
                            iteration + 1,
                            int(curves["environment_steps"][at]),
                            *[f"{x:.6g}" for x in numbers],
                            f"{run.clock[iteration]:.4f}",
                        ]
                    )
