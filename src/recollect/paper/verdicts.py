"""Every sentence of section 5 that claims something, with the measured quantity, its interval, and an answer."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from recollect.paper.cells import Outcome
from recollect.report import standard_error

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


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence and the comparisons that answer it."""

    sentence: str
    figure: str
    measured: tuple[Measured, ...]

    @property
    def verdict(self) -> str:
        """*holds* if every comparison does, *depends* if some do; if none does, *does not hold* or, without evidence, *undecided*."""
        if any(one.holds for one in self.measured):
            return "holds" if all(one.holds for one in self.measured) else "depends"
        return "does not hold" if any(one.fails for one in self.measured) else "undecided"


def area_gain(what: str, better: Outcome, worse: Outcome, part: float = 1.0) -> Measured:
    """Difference of the areas under the curves, or under the first part of them, seeds paired."""
    until = round(part * better.returns.shape[1])
    gains = better.returns[:, :until].mean(1) - worse.returns[:, :until].mean(1)
    return _bootstrapped(what, lambda seeds: gains[seeds].mean(), len(gains), border=0.0, above=True)


def error_ratio(what: str, steadier: Outcome, other: Outcome) -> Measured:
    """Ratio of standard errors over seeds, averaged over iterations; the same seeds are drawn for both."""
    ratio = lambda seeds: standard_error(steadier.returns[seeds]).mean() / standard_error(other.returns[seeds]).mean()
    return _bootstrapped(what, ratio, len(steadier.returns), border=1.0, above=False)


def not_worse(what: str, cheaper: Outcome, dearer: Outcome, margin: float = 0.05) -> Measured:
    """Ratio of the areas under the curves; the claim is that at most a twentieth is lost."""
    ratio = lambda seeds: cheaper.returns[seeds].mean() / dearer.returns[seeds].mean()
    return _bootstrapped(what, ratio, len(cheaper.returns), border=1 - margin, above=True)


def _bootstrapped(what, statistic, seeds: int, border: float, above: bool) -> Measured:
    draws = np.random.default_rng(0).integers(seeds, size=(DRAWS, seeds))
    values = np.array([statistic(chosen) for chosen in draws])
    low, high = np.quantile(values, (0.025, 0.975))
    return Measured(what, float(statistic(np.arange(seeds))), float(low), float(high), border, above)


def claims(outcomes: Mapping[str, Mapping[str, Outcome]], normality: Sequence[Mapping] | None) -> list[Claim]:
    """The claims that the figures at hand can answer."""
    found = []
    for figure, where in (("fig2", "cartpole"), ("fig3", "inverted pendulum"), ("step", "cartpole, larger step")):
        if figure in outcomes:
            runs = outcomes[figure]
            for reuse, vanilla in [pair for pair in (("RPG", "VPG"), ("RNPG", "VNPG")) if pair[0] in runs]:
                gain = area_gain(f"area of {reuse} minus {vanilla}, {where}", runs[reuse], runs[vanilla])
                ratio = error_ratio(f"standard error of {reuse} over {vanilla}, {where}", runs[reuse], runs[vanilla])
                whose = "ours: " if figure == "step" else ""
                found.append(Claim(f"{whose}the convergence of {reuse} is faster than that of {vanilla}", figure, (gain,)))
                found.append(Claim(f"{whose}the smaller standard errors of {reuse} …, compared to {vanilla} …", figure, (ratio,)))
    if "fig4" in outcomes:
        found += _monotone(
            outcomes["fig4"],
            "fig4",
            "when we reuse more historical trajectories from previous iterations (larger K), the faster the algorithm converges",
            "… and the smoother the trajectory is",
        )
    if "fig6" in outcomes and "fig4" in outcomes:
        pairs = [(label, outcomes["fig6"][label], outcomes["fig4"][label.replace("K₁", "K")]) for label in list(outcomes["fig6"])[1:]]
        if pairs:
            lost = tuple(not_worse(f"area with K₂ = 10 over K₂ = K₁, {label}", small, large) for label, small, large in pairs)
            found.append(Claim("we could use a reasonably small reuse size for the FIM estimator", "fig6", lost))
            least = next(iter(outcomes["fig6"]))
            kept = tuple(
                area_gain(f"area, {label} minus {least}, both with K₂ = 10", run, outcomes["fig6"][least]) for label, run, _ in pairs
            )
            found.append(Claim("such that we enjoy the benefit of reusing", "fig6", kept))
    if "fig7" in outcomes:
        found += _monotone(
            outcomes["fig7"],
            "fig7",
            "RPPO achieves higher average rewards … with larger reuse sizes",
            "… and lower standard errors with larger reuse sizes",
        )
    for figure, where in (("trpo", "cartpole"), ("trpo-pendulum", "inverted pendulum")):
        if figure in outcomes:
            runs = outcomes[figure]
            gain = area_gain(f"area of RTRPO minus TRPO, {where}", runs["RTRPO"], runs["TRPO"])
            ratio = error_ratio(f"standard error of RTRPO over TRPO, {where}", runs["RTRPO"], runs["TRPO"])
            found += [
                Claim("ours: RTRPO is faster than TRPO", figure, (gain,)),
                Claim("ours: RTRPO is steadier than TRPO", figure, (ratio,)),
            ]
    if normality:
        ratios = tuple(_agrees(row) for row in normality)
        found.append(
            Claim(
                "The high degree of overlap between the empirical density (quantile) function and theoretical density (quantile) function",
                "fig8",
                ratios,
            )
        )
    return found


def _monotone(runs: Mapping[str, Outcome], figure: str, faster: str, steadier: str) -> list[Claim]:
    """Each reuse size against the one before it."""
    labels = list(runs)
    pairs = list(zip(labels[1:], labels[:-1], strict=True))
    areas = {"area": 1.0, "area of the first third": 1 / 3}
    gains = [area_gain(f"{what}, {a} minus {b}", runs[a], runs[b], part) for a, b in pairs for what, part in areas.items()]
    gains = tuple(gain for gain in gains if gain.low < gain.high)  # curves are the same until the smaller window is full
    ratios = tuple(error_ratio(f"standard error, {more} over {less}", runs[more], runs[less]) for more, less in pairs)
    return [Claim(faster, figure, gains), Claim(steadier, figure, ratios)]


@dataclasses.dataclass(frozen=True)
class Agreement(Measured):
    """A ratio that should be one: the interval has to contain it."""

    @property
    def holds(self) -> bool:
        return self.low <= 1 <= self.high

    @property
    def fails(self) -> bool:
        return not self.holds


def _agrees(row: Mapping) -> Agreement:
    what = f"variance over Σ∞, B = {row['batch']}, K = {row['window']}"
    low, high = row["interval"]
    return Agreement(what, row["variance_ratio"], low, high, 1.0, True)
