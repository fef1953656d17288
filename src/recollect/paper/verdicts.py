"""Every sentence of section 5 that claims something, with what was measured and an answer."""

import dataclasses
from collections.abc import Mapping, Sequence

from recollect.paper.attribution import VANILLA, controls
from recollect.paper.cells import Outcome
from recollect.paper.comparisons import (
    Measured,
    area_gain,
    error_ratio,
    last_gain,
    last_third,
    not_worse,
)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence and the comparisons that answer it.

    Example:
        >>> gain = Measured("gain", 2.0, low=1.0, high=3.0, border=0.0, above=True)
        >>> loss = Measured("loss", -1.0, low=-2.0, high=1.0, border=0.0, above=True)
        >>> Claim("RPG is faster", "fig2", (gain, loss)).verdict
        'depends'
    """

    sentence: str
    """As printed, or in our words, which begin with `ours:`."""
    figure: str
    """The figure that shows it."""
    measured: tuple[Measured, ...]

    @property
    def verdict(self) -> str:
        """*holds* if every comparison does, *depends* if some do.

        If none does, *does not hold* where one fails, and *undecided* without evidence.
        """
        if any(one.holds for one in self.measured):
            return "holds" if all(one.holds for one in self.measured) else "depends"
        return "does not hold" if any(one.fails for one in self.measured) else "undecided"


def claims(
    outcomes: Mapping[str, Mapping[str, Outcome]], normality: Sequence[Mapping] | None
) -> list[Claim]:
    """The claims that the figures at hand can answer.

    Args:
        outcomes: of finished figures, by figure and by label.
        normality: rows of the theory laboratory, if it has run.
    """
    answered = []
    places = {"fig2": "cartpole", "fig3": "inverted pendulum", "step": "cartpole, larger step"}
    for figure, place in places.items():
        if figure in outcomes:
            answered += _four(outcomes[figure], figure, place)
    if "fig4" in outcomes:
        answered += _monotone(
            outcomes["fig4"],
            "fig4",
            "when we reuse more historical trajectories from previous iterations (larger K), "
            "the faster the algorithm converges",
            "… and the smoother the trajectory is",
        )
    if "fig6" in outcomes and "fig4" in outcomes:
        answered += _small_fisher_window(outcomes["fig6"], outcomes["fig4"])
    if "fig7" in outcomes:
        answered += _clipped(outcomes["fig7"])
    for figure, place in {"trpo": "cartpole", "trpo-pendulum": "inverted pendulum"}.items():
        if figure in outcomes:
            faster = "ours: RTRPO is faster than TRPO"
            steadier = "ours: RTRPO is steadier than TRPO"
            pair = ("RTRPO", "TRPO")
            answered += _faster_and_steadier(
                outcomes[figure], pair, figure, place, faster, steadier
            )
    if normality:
        sentence = (
            "The high degree of overlap between the empirical density (quantile) function "
            "and theoretical density (quantile) function"
        )
        answered.append(Claim(sentence, "fig8", tuple(_agrees(row) for row in normality)))
    return answered


def _four(runs: Mapping[str, Outcome], figure: str, place: str) -> list[Claim]:
    """Figures 2 and 3, and the larger step: reuse against none, for both kinds of gradient."""
    whose = "ours: " if figure == "step" else ""
    answered = []
    for reuse, vanilla in (("RPG", "VPG"), ("RNPG", "VNPG")):
        if reuse in runs:
            faster = f"{whose}the convergence of {reuse} is faster than that of {vanilla}"
            steadier = f"{whose}the smaller standard errors of {reuse} …, compared to {vanilla} …"
            pair = (reuse, vanilla)
            answered += _faster_and_steadier(runs, pair, figure, place, faster, steadier)
    return answered


def _faster_and_steadier(
    runs: Mapping[str, Outcome],
    labels: tuple[str, str],
    figure: str,
    place: str,
    faster: str,
    steadier: str,
) -> list[Claim]:
    """Two claims about a run with reuse and one without: by their areas and standard errors."""
    reuse, vanilla = labels
    pair = (runs[reuse], runs[vanilla])
    gain = area_gain(f"area of {reuse} minus {vanilla}, {place}", *pair)
    ratio = error_ratio(f"standard error of {reuse} over {vanilla}, {place}", *pair)
    return [Claim(faster, figure, (gain,)), Claim(steadier, figure, (ratio,))]


def _small_fisher_window(small: Mapping[str, Outcome], equal: Mapping[str, Outcome]) -> list[Claim]:
    """Figure 6 (K₂ = 10) against figure 4 (K₂ = K₁), and against its own smallest K₁."""
    least, *larger = small
    if not larger:
        return []
    lost = [
        not_worse(
            f"area with K₂ = 10 over K₂ = K₁, {label}",
            small[label],
            equal[label.replace("K₁", "K")],
        )
        for label in larger
    ]
    gains = [
        area_gain(f"area, {label} minus {least}, both with K₂ = 10", small[label], small[least])
        for label in larger
    ]
    enough = "we could use a reasonably small reuse size for the FIM estimator"
    benefit = "such that we enjoy the benefit of reusing"
    return [Claim(enough, "fig6", tuple(lost)), Claim(benefit, "fig6", tuple(gains))]


def _clipped(runs: Mapping[str, Outcome]) -> list[Claim]:
    """Figure 7: each reuse size against the one before, and against as many steps without it."""
    stands_for = controls(runs)
    windows = {label: run for label, run in runs.items() if label not in stands_for}
    faster, steadier = _monotone(
        windows,
        "fig7",
        "RPPO achieves higher average rewards … with larger reuse sizes",
        "… and lower standard errors with larger reuse sizes",
    )
    gains = []
    ratios = []
    ends = []
    alone = []
    for control, label in stands_for.items():
        window = runs[label]
        without = runs[control]
        last = f"mean of the last {last_third(window)} iterations"
        gains.append(area_gain(f"area, {label} minus {control}", window, without))
        ratios.append(error_ratio(f"standard error, {label} over {control}", window, without))
        ends.append(last_gain(f"{last}, {label} minus {control}", window, without))
        alone.append(area_gain(f"area, {control} minus {VANILLA}", without, runs[VANILLA]))
    answered = [
        dataclasses.replace(faster, measured=(*faster.measured, *gains)),
        dataclasses.replace(steadier, measured=(*steadier.measured, *ratios)),
    ]
    if stands_for:
        ends_higher = "ours: with as many gradient steps, RPPO ends higher than PPO"
        steps_alone = "ours: more gradient steps are faster without reuse, too"
        answered.append(Claim(ends_higher, "fig7", tuple(ends)))
        answered.append(Claim(steps_alone, "fig7", tuple(alone)))
    return answered


def _monotone(runs: Mapping[str, Outcome], figure: str, faster: str, steadier: str) -> list[Claim]:
    """Each reuse size against the one before it."""
    labels = list(runs)
    pairs = list(zip(labels[1:], labels[:-1], strict=True))
    areas = {"area": 1.0, "area of the first third": 1 / 3}
    gains = [
        area_gain(f"{what}, {a} minus {b}", runs[a], runs[b], part)
        for a, b in pairs
        for what, part in areas.items()
    ]
    # Curves are the same until the smaller window is full, and say nothing if that is all there is.
    gains = tuple(gain for gain in gains if gain.low < gain.high)
    ratios = tuple(
        error_ratio(f"standard error, {more} over {less}", runs[more], runs[less])
        for more, less in pairs
    )
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
