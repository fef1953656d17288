"""How runs differ, seed by seed: two runs with the same seed share its draws, and so its luck."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from recollect.report.reading import Run
from recollect.statistics import Estimate, mean_interval


@dataclasses.dataclass(frozen=True)
class Difference:
    """A run less another, over the seeds that both have."""

    run: str
    reference: str
    seeds: int
    final: Estimate
    """Of the mean return over the last tenth of the iterations."""
    average: Estimate
    """Of the mean return over the environment steps that both have taken."""


def differences_of(runs: Sequence[Run]) -> list[Difference]:
    """Every run less the first one, where both have seeds in common and the same environment.

    Args:
        runs: labelled.
    """
    found = []
    for run in runs[1:]:
        first = runs[0]
        common = [seed for seed in run.seeds if seed in first.seeds]
        if not common or run.env != first.env:
            continue
        mine = [run.seeds.index(seed) for seed in common]
        theirs = [first.seeds.index(seed) for seed in common]
        final = run.final_returns()[mine] - first.final_returns()[theirs]
        average = np.array(
            [average_gain(run, i, first, j) for i, j in zip(mine, theirs, strict=True)]
        )
        found.append(
            Difference(run.label, first.label, len(common), _estimate(final), _estimate(average))
        )
    return found


def average_gain(run: Run, seed: int, other: Run, others: int) -> float:
    """Mean difference of two seeds' returns over the environment steps that both have taken.

    Args:
        run, seed: a run, and which of its rows.
        other, others: what is subtracted.
    """
    steps, returns = _finite(run, seed)
    steps_there, returns_there = _finite(other, others)
    if not steps.size or not steps_there.size:
        return np.nan
    low = max(steps[0], steps_there[0])
    high = min(steps[-1], steps_there[-1])
    if high < low:
        return np.nan
    # Between two batches the return is that of the straight line.
    places = np.linspace(low, high, 512)
    gains = np.interp(places, steps, returns) - np.interp(places, steps_there, returns_there)
    return float(gains.mean())


def _finite(run: Run, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps and returns of a seed, where both are there."""
    steps = run.curves["environment_steps"][seed]
    returns = run.curves["return_mean"][seed]
    there = np.isfinite(steps) & np.isfinite(returns)
    return steps[there], returns[there]


def _estimate(values: np.ndarray) -> Estimate:
    return Estimate(*(float(part) for part in mean_interval(values)))
