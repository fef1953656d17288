"""Every sentence of section 5 that claims something, with the measured quantity, its interval, and an answer."""

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


def claims(
    outcomes: Mapping[str, Mapping[str, Outcome]], normality: Sequence[Mapping] | None
) -> list[Claim]:
    """The claims that the figures at hand can answer."""
    found = []
    for figure, where in (
        ("fig2", "cartpole"),
        ("fig3", "inverted pendulum"),
        ("step", "cartpole, larger step"),
    ):
        if figure in outcomes:
            runs = outcomes[figure]
            for reuse, vanilla in [
                pair for pair in (("RPG", "VPG"), ("RNPG", "VNPG")) if pair[0] in runs
            ]:
                gain = area_gain(
                    f"area of {reuse} minus {vanilla}, {where}", runs[reuse], runs[vanilla]
                )
                ratio = error_ratio(
                    f"standard error of {reuse} over {vanilla}, {where}", runs[reuse], runs[vanilla]
                )
                whose = "ours: " if figure == "step" else ""
                found.append(
                    Claim(
                        f"{whose}the convergence of {reuse} is faster than that of {vanilla}",
                        figure,
                        (gain,),
                    )
                )
                found.append(
                    Claim(
                        f"{whose}the smaller standard errors of {reuse} …, compared to {vanilla} …",
                        figure,
                        (ratio,),
                    )
                )
    if "fig4" in outcomes:
        found += _monotone(
            outcomes["fig4"],
            "fig4",
            "when we reuse more historical trajectories from previous iterations (larger K), the faster the algorithm converges",
            "… and the smoother the trajectory is",
        )
    if "fig6" in outcomes and "fig4" in outcomes:
        pairs = [
            (label, outcomes["fig6"][label], outcomes["fig4"][label.replace("K₁", "K")])
            for label in list(outcomes["fig6"])[1:]
        ]
        if pairs:
            lost = tuple(
                not_worse(f"area with K₂ = 10 over K₂ = K₁, {label}", small, large)
                for label, small, large in pairs
            )
            found.append(
                Claim(
                    "we could use a reasonably small reuse size for the FIM estimator", "fig6", lost
                )
            )
            least = next(iter(outcomes["fig6"]))
            kept = tuple(
                area_gain(
                    f"area, {label} minus {least}, both with K₂ = 10", run, outcomes["fig6"][least]
                )
                for label, run, _ in pairs
            )
            found.append(Claim("such that we enjoy the benefit of reusing", "fig6", kept))
    if "fig7" in outcomes:
        found += _clipped(outcomes["fig7"])
    for figure, where in (("trpo", "cartpole"), ("trpo-pendulum", "inverted pendulum")):
        if figure in outcomes:
            runs = outcomes[figure]
            gain = area_gain(f"area of RTRPO minus TRPO, {where}", runs["RTRPO"], runs["TRPO"])
            ratio = error_ratio(
                f"standard error of RTRPO over TRPO, {where}", runs["RTRPO"], runs["TRPO"]
            )
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
    gains, ratios, ends, alone = [], [], [], []
    for control, label in stands_for.items():
        window, without = runs[label], runs[control]
        last = f"mean of the last {last_third(window)} iterations"
        gains.append(area_gain(f"area, {label} minus {control}", window, without))
        ratios.append(error_ratio(f"standard error, {label} over {control}", window, without))
        ends.append(last_gain(f"{last}, {label} minus {control}", window, without))
        alone.append(area_gain(f"area, {control} minus {VANILLA}", without, runs[VANILLA]))
    found = [
        dataclasses.replace(faster, measured=(*faster.measured, *gains)),
        dataclasses.replace(steadier, measured=(*steadier.measured, *ratios)),
    ]
    if stands_for:
        ends_higher = "ours: with as many gradient steps, RPPO ends higher than PPO"
        steps_alone = "ours: more gradient steps are faster without reuse, too"
        found.append(Claim(ends_higher, "fig7", tuple(ends)))
        found.append(Claim(steps_alone, "fig7", tuple(alone)))
    return found


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
    gains = tuple(
        gain for gain in gains if gain.low < gain.high
    )  # curves are the same until the smaller window is full
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
