"""Comparisons of two runs with the same seeds, with 95 % bootstrap intervals over paired seeds."""

import dataclasses

from recollect.paper.cells import Outcome
from recollect.statistics import Estimate, bootstrap, standard_error


@dataclasses.dataclass(frozen=True)
class Measured:
    """One comparison; the claim says on which side of `border` it should be.

    Example:
        >>> gain = Measured("gain", 2.0, low=1.0, high=3.0, border=0.0, above=True)
        >>> gain.holds, gain.fails
        (True, False)
        >>> print(gain)
        gain: 2 [1, 3], yes
    """

    what: str
    """What is compared, in words."""
    value: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Its upper end."""
    border: float
    """What the value would be if there were no difference."""
    above: bool
    """Whether the claim is that the value lies above the border."""

    @property
    def holds(self) -> bool:
        """Whether the whole interval is on the claimed side."""
        return self.low > self.border if self.above else self.high < self.border

    @property
    def fails(self) -> bool:
        """Whether the whole interval is on the other side."""
        return self.high < self.border if self.above else self.low > self.border

    def __str__(self) -> str:
        answer = "yes" if self.holds else "no" if self.fails else "undecided"
        return f"{self.what}: {self.value:.3g} [{self.low:.3g}, {self.high:.3g}], {answer}"


def area_gain(what: str, better: Outcome, worse: Outcome, part: float = 1.0) -> Measured:
    """Difference of the areas under the curves, seeds paired.

    Args:
        what: is compared, in words.
        better: the run whose area should be larger.
        worse: the other.
        part: share of the iterations, from the first on, under which the area is taken.
    """
    until = round(part * better.returns.shape[1])
    gains = better.returns[:, :until].mean(1) - worse.returns[:, :until].mean(1)
    return _measured(what, bootstrap(lambda gains: gains.mean(1), gains), 0.0, above=True)


def error_ratio(what: str, steadier: Outcome, other: Outcome) -> Measured:
    """Ratio of standard errors over seeds, averaged over iterations; both draw the same seeds.

    Args:
        what: is compared, in words.
        steadier: the run whose standard error should be smaller.
        other: the run it is divided by.
    """
    error = lambda returns: standard_error(returns, axis=1).mean(1)
    ratio = lambda steadier, other: error(steadier) / error(other)
    estimate = bootstrap(ratio, steadier.returns, other.returns)
    return _measured(what, estimate, border=1.0, above=False)


def last_gain(what: str, better: Outcome, worse: Outcome) -> Measured:
    """Difference of the mean returns over the last third of the iterations, seeds paired.

    Args:
        what: is compared, in words.
        better: the run whose mean should be larger.
        worse: the other.
    """
    last = last_third(better)
    gains = better.returns[:, -last:].mean(1) - worse.returns[:, -last:].mean(1)
    return _measured(what, bootstrap(lambda gains: gains.mean(1), gains), 0.0, above=True)


def last_third(run: Outcome) -> int:
    """How many iterations are the end of a run: 50 of the paper's 150."""
    return max(1, round(run.returns.shape[1] / 3))


def not_worse(what: str, cheaper: Outcome, dearer: Outcome, margin: float = 0.05) -> Measured:
    """Ratio of the areas under the curves; the claim is that at most a twentieth is lost.

    Args:
        what: is compared, in words.
        cheaper: the run that should lose little.
        dearer: the run it is divided by.
        margin: the share that may be lost.
    """
    ratio = lambda cheaper, dearer: cheaper.mean((1, 2)) / dearer.mean((1, 2))
    estimate = bootstrap(ratio, cheaper.returns, dearer.returns)
    return _measured(what, estimate, border=1 - margin, above=True)


def _measured(what: str, estimate: Estimate, border: float, above: bool) -> Measured:
    return Measured(what, *estimate, border=border, above=above)
