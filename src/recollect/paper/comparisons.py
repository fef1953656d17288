"""Comparisons of two runs with the same seeds, with 95 % bootstrap intervals over paired seeds."""

import dataclasses

import numpy as np

from recollect.paper.cells import Outcome
from recollect.statistics import standard_error

DRAWS = 2_000


@dataclasses.dataclass(frozen=True)
class Measured:
    """One comparison; the claim says on which side of `border` it should be."""

    what: str
    value: float
    low: float
    high: float
    border: float
    above: bool

    @property
    def holds(self) -> bool:
        return self.low > self.border if self.above else self.high < self.border

    @property
    def fails(self) -> bool:
        return self.high < self.border if self.above else self.low > self.border

    def __str__(self) -> str:
        answer = "yes" if self.holds else "no" if self.fails else "undecided"
        return f"{self.what}: {self.value:.3g} [{self.low:.3g}, {self.high:.3g}], {answer}"


def area_gain(what: str, better: Outcome, worse: Outcome, part: float = 1.0) -> Measured:
    """Difference of the areas under the curves, or under the first part of them, seeds paired."""
    until = round(part * better.returns.shape[1])
    gains = better.returns[:, :until].mean(1) - worse.returns[:, :until].mean(1)
    return _bootstrapped(what, lambda chosen: gains[chosen].mean(), len(gains), 0.0, above=True)


def error_ratio(what: str, steadier: Outcome, other: Outcome) -> Measured:
    """Ratio of standard errors over seeds, averaged over iterations; both draw the same seeds."""
    error = lambda run, seeds: standard_error(run.returns[seeds]).mean()
    ratio = lambda seeds: error(steadier, seeds) / error(other, seeds)
    return _bootstrapped(what, ratio, len(steadier.returns), border=1.0, above=False)


def last_gain(what: str, better: Outcome, worse: Outcome) -> Measured:
    """Difference of the mean returns over the last third of the iterations, seeds paired."""
    last = last_third(better)
    gains = better.returns[:, -last:].mean(1) - worse.returns[:, -last:].mean(1)
    return _bootstrapped(what, lambda chosen: gains[chosen].mean(), len(gains), 0.0, above=True)


def last_third(run: Outcome) -> int:
    """How many iterations are the end of a run: 50 of the paper's 150."""
    return max(1, round(run.returns.shape[1] / 3))


def not_worse(what: str, cheaper: Outcome, dearer: Outcome, margin: float = 0.05) -> Measured:
    """Ratio of the areas under the curves; the claim is that at most a twentieth is lost."""
    ratio = lambda seeds: cheaper.returns[seeds].mean() / dearer.returns[seeds].mean()
    return _bootstrapped(what, ratio, len(cheaper.returns), border=1 - margin, above=True)


def _bootstrapped(what, statistic, seeds: int, border: float, above: bool) -> Measured:
    draws = np.random.default_rng(0).integers(seeds, size=(DRAWS, seeds))
    values = np.array([statistic(chosen) for chosen in draws])
    low, high = np.quantile(values, (0.025, 0.975))
    value = statistic(np.arange(seeds))
    return Measured(what, float(value), float(low), float(high), border, above)
