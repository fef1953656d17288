"""Standard errors and intervals over seeds and replications, by formula, bootstrap and jackknife.

The bootstrap costs `resamples` evaluations of a statistic, the jackknife one for each group.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

BATCH = 50
"""Resamples that are evaluated in one call: few enough for the processor's cache."""
GROUPS = 20
"""Groups of replications that the jackknife leaves out in turn."""


class Estimate(NamedTuple):
    """A statistic of a sample and its 95 % interval."""

    value: float
    low: float
    high: float


def standard_error(curves: np.ndarray, axis: int = 0) -> np.ndarray:
    """Standard error of the mean, s/√n, over the finite values along an axis.

    Args:
        curves: values by seed; those after a seed has stopped are NaN.
        axis: the seeds.

    Returns:
        The standard error for every other index; NaN where fewer than two seeds are left.

    Example:
        >>> standard_error(np.array([[1.0, 5.0], [3.0, np.nan]])).tolist()
        [1.0, nan]
    """
    left = np.isfinite(curves).sum(axis)
    # Where no seed is left, zeros stand in: the mean of nothing would warn.
    present = np.where(np.expand_dims(left > 0, axis), curves, 0)
    centred = curves - np.nanmean(present, axis=axis, keepdims=True)
    squares = np.nansum(centred**2, axis=axis)
    errors = np.sqrt(squares / np.maximum(left - 1, 1) / np.maximum(left, 1))
    return np.where(left > 1, errors, np.nan)


def mean_interval(curves: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over the finite values along an axis and its 95 % interval, x̄ ± t s/√n (Student's t).

    Args:
        curves: values by seed; those after a seed has stopped are NaN.
        axis: the seeds.

    Returns:
        Mean, lower and upper end for every other index; all NaN where no seed is left, the ends
        alone where only one is.

    Example:
        >>> mean, low, high = mean_interval(np.array([1.0, 2.0, 3.0]))
        >>> f"{mean:.2f} {low:.2f} {high:.2f}"
        '2.00 -0.48 4.48'
    """
    import scipy.special  # here, as it takes a while and few commands need it

    finite = np.where(np.isfinite(curves), curves, np.nan)
    if not finite.shape[axis]:
        # Without seeds there is as little as with seeds that have all stopped.
        finite = np.full((*finite.shape[:axis], 1, *finite.shape[axis + 1 :]), np.nan)
    left = np.isfinite(finite).sum(axis)
    mean = np.where(left > 0, np.nansum(finite, axis=axis) / np.maximum(left, 1), np.nan)
    half = scipy.special.stdtrit(np.maximum(left - 1, 1), 0.975) * standard_error(finite, axis)
    return mean, np.asarray(mean - half), np.asarray(mean + half)


def bootstrap(
    statistic: Callable[..., np.ndarray],
    *samples: np.ndarray,
    resamples: int = 2_000,
    paired: bool = True,
) -> Estimate:
    """A statistic over seeds with its 95 % percentile bootstrap interval.

    Seeds are drawn with replacement, always by the same generator, so that results repeat.

    Args:
        statistic: a function of as many arrays as there are samples. It gets each with an axis of
            resamples in front of that of the seeds, and reduces all axes but the first.
        *samples: arrays with the seeds on the first axis.
        resamples: how many there are.
        paired: whether all samples belong to the same seeds, which are then drawn together.

    Returns:
        The statistic of the samples themselves, and the 2.5 % and 97.5 % quantiles of those of
        the resamples. A single seed has an interval of no length.

    Example:
        >>> gains = np.array([1.0, 2.0, 3.0, 6.0])
        >>> bootstrap(lambda gains: gains.mean(1), gains)
        Estimate(value=3.0, low=1.5, high=5.0)
    """
    value = float(statistic(*[sample[None] for sample in samples])[0])
    counts = [len(sample) for sample in (samples[:1] if paired else samples)]
    if min(counts) < 2:
        return Estimate(value, value, value)

    def of_seeds(*chosen: np.ndarray, axis: int) -> np.ndarray:
        """The statistic of the chosen seeds, given as whole numbers."""
        each = chosen * len(samples) if paired else chosen
        return statistic(*[x[seeds] for x, seeds in zip(samples, each, strict=True)])

    # SciPy resamples vectors. It gets the numbers of the seeds, so that a seed may have a curve.
    import scipy.stats  # takes longer to load than all of recollect

    interval = scipy.stats.bootstrap(
        [np.arange(count) for count in counts],
        of_seeds,
        n_resamples=resamples,
        batch=BATCH,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))


def leave_out(samples: np.ndarray, groups: int = GROUPS, axis: int = 0) -> Iterator[np.ndarray]:
    """The samples without one of `groups` groups, for each group in turn.

    Args:
        samples: an array.
        groups: how many groups; with fewer samples than that, each sample is one.
        axis: of the samples.

    Example:
        >>> [part.tolist() for part in leave_out(np.arange(4), groups=2)]
        [[1, 3], [0, 2]]
    """
    count = samples.shape[axis]
    group = np.arange(count) % min(groups, count)
    for left_out in np.unique(group):
        yield np.compress(group != left_out, samples, axis)


def jackknife_error(without: Any) -> Any:
    """Standard error √((g − 1)/g Σ(x_i − x̄)²) of a statistic whose value without group i is x_i.

    Args:
        without: x_1, …, x_g, numbers or arrays of one shape.
    """
    values = np.asarray(without)
    return np.sqrt((len(values) - 1) * values.var(0))


def jackknife(
    statistic: Callable[[np.ndarray], Any], samples: Float[np.ndarray, "replication ..."]
) -> tuple[float, float]:
    """A statistic of all replications and its standard error, by leaving out groups of them.

    Args:
        statistic: a number for an array of replications.
        samples: with the replications on the first axis.

    Example:
        >>> jackknife(np.mean, np.array([1.0, 2.0, 3.0]))
        (2.0, 0.5773502691896257)
    """
    without = [statistic(part) for part in leave_out(samples)]
    return float(statistic(samples)), float(jackknife_error(without))
