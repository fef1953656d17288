"""The style of all pictures, and learning curves in it.

Panels without a frame on a light grid, colours that are told apart with the common kinds of colour
blindness (`colours`), and letters that are read in a two-column paper. Whoever draws takes its axes
from `panels`, its colours from there, and ends with `save`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from recollect.report.colours import ALGORITHM_COLOURS, COLOURS, run_colours
from recollect.report.curves import Axis, Curve, over_seeds
from recollect.run.state import RECENT_EPISODES
from recollect.statistics import standard_error

DASHES = ("-", "--", "-.", ":")
LABELS = {
    "steps": "environment steps of a seed",
    "iterations": "iteration",
    "seconds": "seconds without compilation",
}
"""Of x axes."""
NOTHING = "no episode has ended"
DPI = 150
"""Pixels to an inch of a picture that is written."""
LETTERS = 11.0
"""Least size of a letter in points, in a picture whose axes are 5.2 inches wide."""


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
        one.set_axisbelow(True)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write a picture and close it; pyplot would keep an open figure in memory.

    One axes as wide as a column of a two-column paper, or two across it, have letters of 7 points.
    """
    for text in figure.findobj(Text):
        text.set_fontsize(max(text.get_fontsize(), LETTERS))
    with plt.rc_context({"pdf.fonttype": 42}):  # letters, which journals ask for, not drawings
        figure.savefig(path, dpi=DPI)
    plt.close(figure)


def draw_curves(path: Path, curves: Sequence[Curve], x: Axis = "steps") -> list[str]:
    """Draw learning curves of runs, those of each environment in axes of their own.

    Args:
        path: where the picture goes; its ending says the format.
        curves: of the runs.
        x: what they are drawn against.

    Returns:
        Names of the runs in which no episode has ended; the picture says so, too.
    """
    envs = list(dict.fromkeys(curve.env for curve in curves))
    figure, axes = panels(1, len(envs), width=6.5, height=4.2)
    for one, env in zip(axes, envs, strict=True):
        _draw_env(one, [curve for curve in curves if curve.env == env])
        one.set_title(env, parse_math=False)  # the user's names may hold dollars
        one.set(xlabel=LABELS[x], ylabel=f"mean return of the latest {RECENT_EPISODES} episodes")
    save(figure, path)
    return [curve.name for curve in curves if not curve.there]


def _draw_env(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve in curves:
        colour = ALGORITHM_COLOURS.get(curve.algorithm, COLOURS[-1])
        # Several runs of one algorithm have its colour, and differ in dashes and shade.
        same = [one for one in curves if one.algorithm == curve.algorithm]
        place = [one.name for one in same].index(curve.name)
        fade = 0.6 * (len(same) - 1 - place) / max(len(same) - 1, 1)
        shade = np.asarray(to_rgb(colour)) * (1 - fade) + fade
        style = DASHES[(len(same) - 1 - place) % len(DASHES)]
        if not curve.there:
            axes.plot([], [], style, color=shade, label=f"{curve.name}: {NOTHING}")
            continue
        along, mean, low, high = over_seeds(curve.there)
        seeds = len(curve.there)
        label = f"{curve.name} ({seeds} seed{'s' if seeds > 1 else ''})"
        alone = "o" if along[0] == along[-1] else None
        axes.plot(along, mean, style, marker=alone, color=shade, label=label)
        axes.fill_between(along, low, high, color=shade, alpha=0.2, linewidth=0)
    if not any(curve.there for curve in curves):
        axes.text(0.5, 0.5, NOTHING, ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
    for label in axes.legend(frameon=False).get_texts():
        label.set_parse_math(False)


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
    colours = dict(zip(own, run_colours(own), strict=True))
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
