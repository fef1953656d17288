"""Figures of a run in a table, and tables in Markdown."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.table import Table

from recollect.run.train import Training
from recollect.statistics import standard_error

RECENT = "['seeds'].recent"
"""Where a snapshot has the returns of every seed's latest episodes."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """One algorithm's run over all seeds in seven figures."""

    final_return: float | None
    """Mean return over seeds and the last tenth of the iterations; None if no episode has ended."""
    area_under_curve: float | None
    """Mean return over seeds and all iterations; None if no episode has ended."""
    standard_error: float | None
    """Standard error over seeds, averaged over iterations; None for one seed."""
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
    last = [row[np.isfinite(row)][-tenth:].mean() for row in returns if np.isfinite(row).any()]
    errors = standard_error(returns)
    steps = int(np.nanmax(training.curves["environment_steps"], axis=1).sum())
    seconds = float(training.clock[-1])
    return Summary(
        final_return=float(np.mean(last)) if last else None,
        area_under_curve=float(np.nanmean(returns)) if last else None,
        standard_error=float(np.nanmean(errors)) if np.isfinite(errors).any() else None,
        environment_steps=steps,
        seconds=seconds,
        compile_seconds=training.compile_seconds,
        transitions_per_second=steps / seconds,
    )


def reached(training: Training, target: float) -> dict[int, int | None]:
    """Environment steps after which each seed reached a return; None for seeds that did not.

    Args:
        training: a run that was told to stop at this return.
        target: the mean over a seed's latest 20 episodes.
    """
    latest = np.mean(training.snapshot.arrays[RECENT], axis=1)
    steps = np.nanmax(training.curves["environment_steps"], axis=1)
    return {
        seed: int(steps[row]) if np.isfinite(latest[row]) and latest[row] >= target else None
        for row, seed in enumerate(training.seeds)
    }


def table(summaries: Mapping[str, Summary]) -> Table:
    """The summaries as a table for the terminal, an algorithm a row."""
    columns = (
        "algorithm",
        "final return",
        "area under curve",
        "standard error",
        "steps of all seeds",
        "seconds",
        "transitions/s",
    )
    result = Table(*columns)
    for column in result.columns:
        column.overflow = "fold"  # a narrow terminal must not lose digits
    for column in result.columns[1:]:
        column.justify = "right"
    shown = lambda value, digits, absent: absent if value is None else f"{value:.{digits}f}"
    for name, s in summaries.items():
        result.add_row(
            name,
            shown(s.final_return, 1, "no episode has ended"),
            shown(s.area_under_curve, 1, ""),
            shown(s.standard_error, 2, "one seed"),
            f"{s.environment_steps:,}",
            f"{s.seconds:.1f}",
            f"{s.transitions_per_second:,.0f}",
        )
    return result
