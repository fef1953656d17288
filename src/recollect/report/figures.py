"""The figures of runs as charts: which there are, and means and intervals over seeds of each."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from recollect.report.reading import Run
from recollect.report.svg import Chart, Series
from recollect.statistics import mean_interval

POINTS = 300
"""Of all runs in a chart: more would not be seen, and make the page large."""
FEWEST = 24
"""Points of a run, however many runs there are."""
TIMES = 96
AGES = 48
"""Cells of a heat map, at most; several iterations, or ages, then share one."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that may be drawn."""

    key: str
    title: str
    meaning: str
    curve: Callable[[Run], np.ndarray | None]
    log: bool = False
    percent: bool = False


def _column(key: str, title: str, meaning: str, **how) -> Figure:
    return Figure(key, title, meaning, lambda run: run.curves.get(key), **how)


def _clipped(run: Run) -> np.ndarray | None:
    by_age = run.curves.get("clip_fraction_by_age")
    return None if by_age is None else np.nanmean(np.where(np.isfinite(by_age), by_age, 0), 2)


def _mean_age(run: Run) -> np.ndarray | None:
    shares = run.curves.get("shares")
    if shares is None or shares.shape[2] == 1:
        return None
    return shares @ np.arange(shares.shape[2])


RETURN = Figure(
    "return_mean", "Return", "Mean return of the episodes of the batch", lambda run: run.returns
)
REUSE = (
    Figure(
        "ess_share",
        "Effective sample size",
        "Share of the window's transitions that the weights leave effective",
        lambda run: run.ess_share,
        percent=True,
    ),
    _column("max_weight", "Largest weight", "1 is a fresh transition", log=True),
    _column("old_share", "Share of old batches", "β, chosen at every update", percent=True),
    _column("gradient_noise", "Noise of the gradient", "v₀ of the newest batch alone", log=True),
    _column("disagreement", "Disagreement", "D between old and newest gradient", log=True),
    _column("signal_share", "Signal", "Part of the gradient that is no error", percent=True),
    _column("ages_compared", "Ages compared", "Batches that the old gradient is taken from"),
    _column("ages_used", "Ages used", "Batches of the window in use"),
    _column("error_left", "Error left", "Estimated; 1 is the newest batch alone", percent=True),
    _column("gain", "Gain of reuse", "Of the best window over the newest batch alone"),
    Figure(
        "mean_age",
        "Mean age of what counts",
        "Iterations since a batch arrived, by the shares of the ages",
        _mean_age,
    ),
)
STEP = (
    _column("kl", "KL of the step", "Mean KL(old ‖ new); dashed is the radius target_kl"),
    _column("step_length", "Step length", "Multiple of the direction that was taken", log=True),
    _column("backtracks", "Backtracks", "How often the line search shortened the step"),
    Figure(
        "clip_fraction",
        "Clipped transitions",
        "Share that the clip takes out of the gradient, mean over ages",
        _clipped,
        percent=True,
    ),
    _column("gradient_steps", "Minibatch steps", "Fewer than planned if the update stopped early"),
    _column("gradient_norm", "Gradient norm", "Of the reweighed gradient", log=True),
    _column("direction_norm", "Direction norm", "Of what the step follows", log=True),
)
SOLVER = (
    _column("solver_steps", "Solver steps", "Fisher products that conjugate gradients took"),
    _column("solver_residual", "Solver residual", "Relative residual of the system", log=True),
    _column("damping", "Damping", "ε of F + εI in use", log=True),
)
CRITIC = (
    _column(
        "explained_variance",
        "Explained variance",
        "Of the critic's targets, before it saw the batch",
    ),
    _column("length_mean", "Episode length", "Mean over the episodes of the batch"),
)
NOT_DRAWN = {"seed", "iteration", "environment_steps", "seconds", "recent_return", "refused", "ess"}


def others(runs: Sequence[Run]) -> tuple[Figure, ...]:
    """Figures of algorithms of one's own."""
    known = {one.key for one in (RETURN, *REUSE, *STEP, *SOLVER, *CRITIC)} | NOT_DRAWN
    names = dict.fromkeys(name for run in runs for name, x in run.curves.items() if x.ndim == 2)
    return tuple(_column(name, name, "") for name in names if name not in known)


def points(runs: Sequence[Run]) -> int:
    """How many each run's curves have."""
    return max(FEWEST, POINTS // max(len(runs), 3))


def chart_of(figure: Figure, runs: Sequence[Run], colours: Sequence[str]) -> Chart | None:
    """A chart of all runs that have measured a figure; None if none has.

    Args:
        figure: which one.
        runs: in the order of the page.
        colours: of the runs.
    """
    series = []
    for number, (run, colour) in enumerate(zip(runs, colours, strict=True)):
        curve = figure.curve(run)
        if curve is not None and np.isfinite(curve).any():
            series.append(Series(number, colour, *_interval(binned(curve, points(runs)), figure)))
    if not series:
        return None
    radii = [(run.algorithm.get("target_kl"), number) for number, run in enumerate(runs)]
    levels = [
        (float(radius), colours[number], number)
        for radius, number in radii
        if figure.key == "kl" and isinstance(radius, int | float)
    ]
    return Chart(figure.key, figure.title, series, figure.log, figure.percent, levels)


def _interval(curve: np.ndarray, figure: Figure) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over seeds and its interval; geometric on a logarithmic axis, where it is symmetric."""
    if not figure.log:
        return mean_interval(curve)
    logarithms = np.log(np.where(curve > 0, curve, np.nan))
    mean, low, high = mean_interval(logarithms)
    return np.exp(mean), np.exp(low), np.exp(high)


def binned(curve: np.ndarray, most: int) -> np.ndarray:
    """Means over the second axis in at most so many parts, of what is finite.

    Example:
        >>> import numpy as np
        >>> from recollect.report.figures import binned
        >>> binned(np.array([[1.0, 3.0, 5.0, np.nan]]), 2).tolist()
        [[2.0, 5.0]]
    """
    length = curve.shape[1]
    if length <= most:
        return np.where(np.isfinite(curve), curve, np.nan)
    starts = np.arange(most) * length // most
    finite = np.isfinite(curve)
    sums = np.add.reduceat(np.where(finite, curve, 0.0), starts, axis=1)
    counts = np.add.reduceat(finite.astype(float), starts, axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def by_age(shares: np.ndarray) -> np.ndarray:
    """Means over seeds by time and age, in few enough cells.

    Args:
        shares: by seed, iteration, age.
    """
    cells = binned(shares, TIMES)
    cells = np.swapaxes(binned(np.swapaxes(cells, 1, 2), AGES), 1, 2)
    left = np.isfinite(cells).sum(0)
    return np.where(left > 0, np.nansum(cells, axis=0) / np.maximum(left, 1), np.nan)
