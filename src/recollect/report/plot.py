"""Pictures in one style: panels without a frame on a light grid, and learning curves in them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recollect.report.colours import COLOURS as COLOURS
from recollect.report.colours import colours_of
from recollect.statistics import standard_error

DPI = 150
"""Pixels to an inch of a picture that is written."""


def panels(
    rows: int,
    columns: int,
    width: float = 5.2,
    height: float = 3.6,
    width_ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """A picture of several axes in the common style.

    Args:
        rows: of axes.
        columns: of axes.
        width: of one axes, in inches.
        height: of one axes, in inches.
        width_ratios: widths of the columns relative to each other; equal if not given.

    Returns:
        The figure, which `save` writes and closes, and its axes row by row.
    """
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(width * columns, height * rows),
        width_ratios=width_ratios,
        layout="constrained",
        squeeze=False,
    )
    axes = list(grid.ravel())
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.25)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write a picture and close it; pyplot would keep an open figure in memory."""
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def learning_curves(
    path: Path,
    curves: Mapping[str, np.ndarray],
    title: str,
    controls: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Mean return with its standard error shaded, and the standard error, against the iteration.

    Args:
        path: where the picture goes.
        curves: returns by name, seeds first.
        title: of the picture.
        controls: names of curves that are drawn dashed, without shade, in the colour of another.
    """
    figure, (left, right) = panels(1, 2, width=5.5, height=4.2, width_ratios=(3.0, 2.0))
    seeds = len(next(iter(curves.values())))
    own = [name for name in curves if name not in controls]
    colours = dict(zip(own, colours_of(own), strict=True))
    for name, returns in curves.items():
        iterations = np.arange(1, returns.shape[1] + 1)
        with np.errstate(invalid="ignore"):
            mean = np.nanmean(returns, axis=0)
            error = standard_error(returns)
        colour = colours[controls.get(name, name)]
        style = "--" if name in controls else "-"
        left.plot(iterations, mean, style, color=colour, label=name)
        if name not in controls:
            low = mean - error
            left.fill_between(iterations, low, mean + error, color=colour, alpha=0.2, linewidth=0)
        right.plot(iterations, error, style, color=colour)
    left.set_title(title, parse_math=False)  # the user's names may hold dollars
    left.set(xlabel="iteration", ylabel="mean return of the batch")
    right.set(title=f"standard error over {seeds} seeds", xlabel="iteration", ylim=(0, None))
    for label in left.legend(frameon=False).get_texts():
        label.set_parse_math(False)
    save(figure, path)
