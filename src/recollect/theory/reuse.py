"""What reuse gains on the linear quadratic control problem: Σ∞ against the window.

And what happens beyond the theorem's assumptions, with reuse in the Fisher matrix.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from recollect.checks import check_count
from recollect.report.plot import COLOURS
from recollect.theory.findings import Findings, panels
from recollect.theory.lqc import asymptotic_variance, moments, overlapping_variance
from recollect.theory.normality import variance_interval
from recollect.theory.replicate import Case, Replications, check_sizes, replicate


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What both experiments let choose."""

    batch: int = 5
    """B: samples in an iteration."""
    replications: int = 500
    """Independent runs of each case."""
    iterations: int = 20_000
    """n: iterations of each run."""
    damping: float = 0.01
    """ε."""
    discount: float = 0.5
    """γ."""
    step_decay: float = 0.9
    """β: step sizes are n^−β."""
    seed: int = 0
    """Of all cases; each draws from a key of its own."""


@dataclasses.dataclass(frozen=True)
class Rate(Simulation):
    """How does Σ∞ fall with the window K?

    The part that falls as 1/K, the floor from Σ₁/B that no reuse removes, and simulated runs beside
    Theorem 2. K = 1 is VNPG.
    """

    windows: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100)
    """Windows to simulate."""

    def __post_init__(self):
        _check_windows(self.windows)
        check_sizes(self.replications, self.iterations)
        self._cases()

    def _cases(self) -> list[Case]:
        return [
            Case(self.batch, window, self.damping, self.discount, self.step_decay)
            for window in self.windows
        ]

    def run(self) -> Findings:
        """Simulate every window and compare its variance with Theorem 2."""
        runs = replicate(self._cases(), self.replications, self.iterations, seed=self.seed)
        rows = [dict(window=run.case.window, **compared(run)) for run in runs]
        good = sum(row["holds"] for row in rows)
        exact = moments(self.batch, 1, self.damping, self.discount)
        # As K → ∞.
        floor = asymptotic_variance(self.batch, 10**9, self.damping, self.discount)
        verdict = (
            "Theory and simulation agree within 99 % intervals "
            f"for {good} of {len(rows)} windows. Σ∞ falls from "
            f"{exact.asymptotic_variance:.4g} at K = 1 (VNPG) to a floor of {floor:.4g}: "
            f"reuse removes at most {1 - floor / exact.asymptotic_variance:.0%} of the variance, "
            "and a window of K 1 − 1/K of that."
        )
        return Findings(rows, verdict, {"rate": self._picture(runs, floor)})

    def _picture(self, runs: Sequence[Replications], floor: float):
        figure, (left, right) = panels(1, 2)
        windows = np.arange(1, max(self.windows) + 1)
        variance = lambda K: asymptotic_variance(self.batch, K, self.damping, self.discount)
        theory = np.array([variance(window) for window in windows.tolist()])
        for axes, shift in ((left, 0.0), (right, floor)):
            axes.plot(windows, theory - shift, color="black", linewidth=1.2, label="Theorem 2")
            _points(axes, [run.case.window for run in runs], runs, shift)
            axes.set(xlabel="window K", xscale="log")
        left.axhline(floor, color=COLOURS[2], linestyle="--", label="floor, from Σ₁/B")
        left.set(title=f"Σ∞, B = {self.batch}", ylim=(0, None))
        lowest = (theory[-1] - floor) / 3
        right.set(title="Σ∞ minus its floor, of order 1/K", yscale="log", ylim=lowest)
        left.legend(frameon=False)
        return figure


@dataclasses.dataclass(frozen=True)
class FisherReuse(Simulation):
    """Beyond the theorems: what does reuse in the Fisher matrix (K₂ > 1) do?

    And what if gradient and Fisher matrix come from the same samples? The conjecture is Theorem 2
    with the moments of F̂⁻¹ taken from K₂·B samples instead of B. It leaves out that the Fisher
    matrices of successive steps then share samples; `overlap` is Σ∞ with that
    (`lqc.overlapping_variance`).
    """

    fisher_windows: tuple[int, ...] = (1, 2, 5, 10)
    """K₂."""
    window: int = 5
    """K₁, of the gradient."""
    replications: int = 2_000
    """Independent runs of each case."""

    def __post_init__(self):
        _check_windows(self.fisher_windows)
        check_sizes(self.replications, self.iterations)
        self._cases()

    def _cases(self) -> list[Case]:
        shared = (self.damping, self.discount, self.step_decay)
        return [
            Case(
                self.batch,
                self.window,
                *shared,
                fisher_window=window,
                independent_fisher=independent,
            )
            for independent in (True, False)
            for window in self.fisher_windows
        ]

    def run(self) -> Findings:
        """Simulate every K₂, with fresh and with the same samples, and compare the variances."""
        runs = replicate(self._cases(), self.replications, self.iterations, seed=self.seed)
        rows = [self._row(run) for run in runs]
        sources = {"independent": "an independent batch", "the same": "the same samples"}
        says = []
        for samples, source in sources.items():
            part = [row for row in rows if row["samples"] == samples]
            says.append(_words(source, part))
        return Findings(rows, " ".join(says), {"fisher": self._picture(runs)})

    def _row(self, run: Replications) -> dict[str, Any]:
        """The variance of a case beside the conjecture, and beside Σ∞ with overlaps."""
        figures = compared(run)
        figures = {"conjecture": figures.pop("theory"), **figures}
        overlap = self._overlap(run.case.fisher_window)
        low, high = variance_interval(run.settled() / np.sqrt(overlap))
        return dict(
            fisher_window=run.case.fisher_window,
            samples="independent" if run.case.independent_fisher else "the same",
            **figures,
            overlap=overlap,
            overlap_interval=[low, high],
            overlap_holds=low <= 1 <= high,
        )

    def _overlap(self, fisher_window: int) -> float:
        return overlapping_variance(
            self.batch, self.window, fisher_window, self.damping, self.discount
        )

    def _picture(self, runs: Sequence[Replications]):
        figure, (axes,) = panels(1, 1)
        windows = np.arange(1, max(self.fisher_windows) + 1)
        conjecture = [
            asymptotic_variance(self.batch, self.window, self.damping, self.discount, window)
            for window in windows.tolist()
        ]
        overlaps = [self._overlap(window) for window in windows.tolist()]
        line: dict[str, Any] = dict(color="black", linewidth=1.2)
        axes.plot(windows, conjecture, ":", **line, label="conjecture")
        axes.plot(windows, overlaps, "-", **line, label="with overlaps")
        for independent, colour, label in (
            (True, COLOURS[1], "independent batch"),
            (False, COLOURS[3], "the same samples"),
        ):
            chosen = [run for run in runs if run.case.independent_fisher == independent]
            _points(axes, [run.case.fisher_window for run in chosen], chosen, 0.0, colour, label)
        title = f"B = {self.batch}, K₁ = {self.window}"
        axes.set(title=title, xlabel="Fisher window K₂", ylabel="Σ∞", ylim=(0, None))
        axes.legend(frameon=False)
        return figure


def _words(source: str, rows: Sequence[dict[str, Any]]) -> str:
    """What the rows say in which the Fisher matrix has samples from one source."""
    good = sum(row["holds"] for row in rows)
    places = [f"(K₂={row['fisher_window']})" for row in rows]
    ratios = [f"{row['variance_ratio']:.3f} {_bracket(row['interval'])}" for row in rows]
    overlaps = [_bracket(row["overlap_interval"]) for row in rows]
    listed = lambda values: ", ".join(map(" ".join, zip(values, places, strict=True)))
    return (
        f"With {source} for the Fisher matrix the conjecture agrees within 99 % intervals "
        f"for {good} of {len(rows)} K₂; "
        f"empirical over conjectured variance: {listed(ratios)}. "
        f"With overlaps, 95 % intervals of the ratio: {listed(overlaps)}."
    )


def compared(run: Replications) -> dict[str, Any]:
    """Empirical variance of E_n beside what theory says it is.

    `holds` is at a level of 1 %, `interval` of the ratio of both at 95 %.
    """
    standard = run.settled() / np.sqrt(run.case.asymptotic_variance)
    low, high = variance_interval(standard, 0.99)
    return dict(
        theory=run.case.asymptotic_variance,
        variance=float(run.settled().var(ddof=1)),
        variance_ratio=float(standard.var(ddof=1)),
        interval=variance_interval(standard),
        refused=int(run.refused.sum()),
        seconds=run.seconds,
        holds=bool(low <= 1 <= high),
    )


def _points(
    axes,
    places: Sequence[int],
    runs: Sequence[Replications],
    shift: float,
    colour: str = COLOURS[1],
    label: str = "runs, 95 %",
):
    variances = np.array([run.settled().var(ddof=1) for run in runs])
    low, high = np.array([variance_interval(run.settled()) for run in runs]).T
    axes.errorbar(
        places,
        variances - shift,
        yerr=[variances - low, high - variances],
        fmt="o",
        markersize=4,
        color=colour,
        label=label,
    )


def _bracket(interval: Sequence[float]) -> str:
    return f"[{interval[0]:.3f}, {interval[1]:.3f}]"


def _check_windows(windows: Sequence[int]) -> None:
    if not windows:
        raise ValueError("windows=() is empty; give at least one window.")
    for window in windows:
        check_count(f"window {window}", window)
