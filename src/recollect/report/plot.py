"""Pictures of learning curves."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import matplotlib.pyplot as plt
import numpy as np

from recollect.statistics import standard_error

COLOURS = ("#7f7f7f", "#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000")
"""Distinguishable with the common kinds of colour blindness."""


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
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.2), width_ratios=(3, 2), layout="constrained"
    )
    seeds = len(next(iter(curves.values())))
    own = [name for name in curves if name not in controls]
    colours = dict(zip(own, COLOURS * len(own), strict=False))
    for name, returns in curves.items():
        iterations = np.arange(1, returns.shape[1] + 1)
        with np.errstate(invalid="ignore"):
            mean, error = np.nanmean(returns, axis=0), standard_error(returns)
        colour = colours[controls.get(name, name)]
        style = "--" if name in controls else "-"
        left.plot(iterations, mean, style, color=colour, label=name)
        if name not in controls:
            shade = dict(color=colour, alpha=0.2, linewidth=0)
            left.fill_between(iterations, mean - error, mean + error, **shade)
        right.plot(iterations, error, style, color=colour)
    left.set_title(title, parse_math=False)  # the user's names may hold dollars
    left.set(xlabel="iteration", ylabel="mean return of the batch")
    right.set(title=f"standard error over {seeds} seeds", xlabel="iteration", ylim=(0, None))
    for name in left.legend(frameon=False).get_texts():
        name.set_parse_math(False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=150)
    plt.close(figure)
