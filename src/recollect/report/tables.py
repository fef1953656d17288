"""Figures of a run in a table, its curves as CSV, and tables in Markdown."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from recollect.run.log import flat_curves
from recollect.run.train import Training
from recollect.serial import write_csv
from recollect.statistics import standard_error

COLUMNS = ("algorithm", "seed", "iteration", "environment_steps")
"""Of the curves as CSV, before their figures."""


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
    """Wall time of the compilation."""
    transitions_per_second: float
    """Environment steps of all seeds over `seconds`."""


def markdown(
    columns: Sequence[str], rows: Iterable[Sequence[object]], align: str | None = None
) -> list[str]:
    """A table in Markdown, line by line.

    Args:
        columns: their names.
        rows: a cell for each column.
        align: a letter for each column, `l` for left and `r` for right; if not given, the first
            column is on the left and all others, being numbers, on the right.

    Returns:
        The lines, without line ends.

    Example:
        >>> print(*markdown(("window", "area"), [("K = 1", 95.2)]), sep="\\n")
        | window | area |
        |:--|--:|
        | K = 1 | 95.2 |
    """
    sides = align or "l" + "r" * (len(columns) - 1)
    rule = "".join(f"{':--' if side == 'l' else '--:'}|" for side in sides)
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (columns, *rows)]
    return [lines[0], f"|{rule}", *lines[1:]]


def summarise(training: Training) -> Summary:
    """The figures of a run; iterations after a seed has stopped do not count.

    Args:
        training: what `train` gave back.
    """
    returns = training.curves["return_mean"]
    tenth = max(1, returns.shape[1] // 10)
    last = [
        row[np.isfinite(row)][-tenth:].mean() if np.isfinite(row).any() else np.nan
        for row in returns
    ]
    steps = int(np.nanmax(training.curves["environment_steps"], axis=1).sum())
    seconds = float(training.clock[-1])
    errors = standard_error(returns)
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
    """The summaries as a table for the terminal, an algorithm a row."""
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
    """Write curves as CSV: a row for each algorithm, seed and iteration that took place.

    Columns are all figures that one of the algorithms measures, with one column for each age where
    there is a figure for each: `ess_by_age_0` is that of the newest batch. A figure that an
    algorithm does not measure is left empty.

    Args:
        path: of the file.
        runs: by the name of their algorithm.
    """
    columns = {
        name: flat_curves({k: x for k, x in run.curves.items() if k != "environment_steps"})
        for name, run in runs.items()
    }
    figures = list(dict.fromkeys(figure for run in columns.values() for figure in run))
    rows = []
    for name, run in runs.items():
        steps = run.curves["environment_steps"]
        # Curves are NaN after a seed has stopped.
        for seed, iteration in np.argwhere(np.isfinite(steps)):
            values = [columns[name].get(figure) for figure in figures]
            row = (
                name,
                run.seeds[seed],
                iteration + 1,
                int(steps[seed, iteration]),
                *["" if value is None else f"{value[seed, iteration]:.6g}" for value in values],
                f"{run.clock[iteration]:.4f}",
            )
            rows.append(row)
    write_csv(path, [*COLUMNS, *figures, "seconds"], rows)
