"""Theorem 2 and section 5.5: is E_n = (θ_n − θ̄)/√α_n normal with variance Σ∞ when n is large?"""

import dataclasses
from typing import Any

import numpy as np
from scipy import stats

from recollect.checks import check_count
from recollect.memory.weights import Ratio
from recollect.report.plot import COLOURS
from recollect.theory.findings import Findings, panels
from recollect.theory.replicate import Case, Replications, check_sizes, replicate


@dataclasses.dataclass(frozen=True)
class Normality:
    """Are the errors of RNPG on the linear quadratic control problem normal, as in Theorem 2?

    Many runs of each case; mean, variance and shape of their last errors beside N(0, Σ∞).
    """

    cases: tuple[tuple[int, int], ...] = ((5, 1), (5, 5), (5, 10), (10, 5))
    """Pairs of samples in an iteration (B) and iterations reused (K): B K B K ..."""
    replications: int = 500
    """Independent runs of each case."""
    iterations: int = 500_000
    """n: iterations of each run."""
    damping: float = 0.01
    """ε in F̂ = ε + ΣZ²/B."""
    discount: float = 0.5
    """γ."""
    step_decay: float = 0.9
    """β: step sizes are n^−β."""
    start: float = 2.0
    """θ₀."""
    bound: float = 5.0
    """Θ = [−bound, bound]."""
    ratio: Ratio = "policy"
    """Importance weights: the paper's ω̂ (`policy`) or its ω (`occupancy`)."""
    plot_every: int | None = None
    """Also show how the law of E_n develops, at every so many iterations."""
    seed: int = 0
    """Of all cases; each draws from a key of its own."""

    def __post_init__(self):
        check_sizes(self.replications, self.iterations)
        if self.plot_every is not None:
            check_count("plot_every", self.plot_every)
        if not self.cases:
            raise ValueError(
                "cases=() is empty; give at least one pair of batch and window, for example 5 10."
            )
        self.all_cases()

    def run(self) -> Findings:
        """Simulate all cases and compare them with Theorem 2."""
        return self.findings(self.replications_of_all())

    def replications_of_all(self) -> list[Replications]:
        """The runs of every case, which take the time."""
        checkpoints = 1 if self.plot_every is None else max(1, self.iterations // self.plot_every)
        return replicate(
            self.all_cases(), self.replications, self.iterations, checkpoints, self.seed
        )

    def findings(self, runs: list[Replications]) -> Findings:
        """What the runs say.

        Args:
            runs: of all cases, as `replications_of_all` gives them.
        """
        rows = [row(run) for run in runs]
        pictures = {"density": _density(runs), "quantiles": _quantiles(runs)}
        if len(runs[0].iterations) > 1:
            pictures["approach"] = _approach(runs)
        return Findings(rows, _verdict(rows), pictures)

    def all_cases(self) -> list[Case]:
        """The cases with the settings that they share."""
        shared = {
            field: getattr(self, field)
            for field in ("damping", "discount", "step_decay", "start", "bound", "ratio")
        }
        return [Case(batch, window, **shared) for batch, window in self.cases]


def row(run: Replications) -> dict:
    """The figures of a case. `holds` is at a level of 1 % for each of variance, mean and shape."""
    errors = run.settled()
    theory = run.case.asymptotic_variance
    standard = errors / np.sqrt(theory)
    low, high = mean_interval(errors)
    wide_low, wide_high = variance_interval(standard, 0.99)
    variance_holds = wide_low <= 1 <= wide_high
    # The 95 % interval stretched to 99 % by quantiles of the normal law.
    mean_holds = abs(errors.mean()) < (high - low) / 2 * 2.576 / 1.96
    ks_p = float(stats.kstest(standard, "norm").pvalue)
    return dict(
        batch=run.case.batch,
        window=run.case.window,
        theory=theory,
        variance=float(errors.var(ddof=1)),
        variance_ratio=float(standard.var(ddof=1)),
        interval=variance_interval(standard),
        mean=float(errors.mean()),
        mean_interval=[low, high],
        ks_p=ks_p,
        ad_p=anderson_darling(standard),
        refused=int(run.refused.sum()),
        refused_runs=int((run.refused > 0).sum()),
        seconds=run.seconds,
        holds=bool(variance_holds and mean_holds and ks_p > 0.01),
    )


def variance_interval(values: np.ndarray, level: float = 0.95) -> list[float]:
    """Interval of the variance, from the χ² law of normal draws with fewer degrees of freedom.

    The sample variance has the variance (2 + κ)σ⁴/n, where κ is the excess kurtosis. Errors have
    heavy tails while n is finite: a Fisher matrix of few samples is now and then close to zero, and
    its step as much too long.

    Args:
        values: the draws.
        level: probability that the interval covers the variance.

    Returns:
        [f s²/q_high, f s²/q_low] with quantiles q of χ² with f = (n − 1)/(1 + max(κ, 0)/2) degrees
        of freedom.

    Example:
        >>> [round(end, 3) for end in variance_interval(np.array([1.0, 2.0, 3.0, 4.0]))]
        [0.535, 23.17]
    """
    free = (len(values) - 1) / (1 + max(stats.kurtosis(values), 0) / 2)
    low, high = stats.chi2.ppf([(1 + level) / 2, (1 - level) / 2], free)
    return [float(free * values.var(ddof=1) / low), float(free * values.var(ddof=1) / high)]


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean, from Student's law.

    Example:
        >>> [round(end, 3) for end in mean_interval(np.array([1.0, 2.0, 3.0]))]
        [-0.484, 4.484]
    """
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def anderson_darling(standard: np.ndarray, draws: int = 2_000) -> float:
    """p-value against N(0, 1), whose parameters are known.

    The rank of the Anderson-Darling statistic A² among those of normal samples, as SciPy's
    `anderson` has critical values for unknown parameters only.

    Args:
        standard: the values to be tested.
        draws: normal samples of as many values each.
    """
    return float(
        stats.goodness_of_fit(
            stats.norm,
            standard,
            known_params=dict(loc=0, scale=1),
            statistic="ad",
            n_mc_samples=draws,
            rng=np.random.default_rng(0),
        ).pvalue
    )


def _verdict(rows: list[dict]) -> str:
    good = [row for row in rows if row["holds"]]
    ratios = ", ".join(
        f"{row['variance_ratio']:.3f} (B={row['batch']}, K={row['window']})" for row in rows
    )
    says = (
        f"Theorem 2 agrees with {len(good)} of {len(rows)} cases at the 1 % level. "
        f"Empirical over theoretical variance: {ratios}."
    )
    troubled = sum(row["refused_runs"] for row in rows)
    if troubled:
        updates = sum(row["refused"] for row in rows)
        says += (
            f" {troubled} runs had updates refused as not finite ({updates} updates); "
            "all runs are counted."
        )
    return says


def _density(runs: list[Replications]):
    """Figure 8: a histogram of the errors beside the density of Theorem 2."""
    figure, axes = panels(1, len(runs), width=3.6, height=3.2)
    for run, one, colour in zip(runs, axes, COLOURS[1:] * len(runs), strict=False):
        spread = np.sqrt(run.case.asymptotic_variance)
        grid = np.linspace(-4 * spread, 4 * spread, 200)
        style: dict[str, Any] = dict(bins=40, range=(grid[0], grid[-1]), density=True, alpha=0.5)
        one.hist(run.settled(), **style, color=colour, label="runs")
        density = stats.norm.pdf(grid, scale=spread)
        one.plot(grid, density, color="black", linewidth=1.2, label="Theorem 2")
        one.set(title=f"B = {run.case.batch}, K = {run.case.window}", xlabel="$E_n$")
    axes[0].legend(frameon=False)
    return figure


def _quantiles(runs: list[Replications]):
    """Figure 9: quantiles of the errors against those of Theorem 2."""
    figure, axes = panels(1, len(runs), width=3.6, height=3.2)
    for run, one, colour in zip(runs, axes, COLOURS[1:] * len(runs), strict=False):
        errors = np.sort(run.settled())
        spread = np.sqrt(run.case.asymptotic_variance)
        theory = spread * stats.norm.ppf((np.arange(len(errors)) + 0.5) / len(errors))
        one.plot(theory, errors, ".", color=colour, markersize=3)
        one.axline((0, 0), slope=1, color="black", linewidth=0.8)
        one.set(title=f"B = {run.case.batch}, K = {run.case.window}")
        one.set(xlabel="quantiles of Theorem 2", ylabel="of the runs")
    return figure


def _approach(runs: list[Replications]):
    """Quantiles and variance of the errors against the iteration."""
    figure, axes = panels(2, len(runs), width=3.6, height=3.2)
    upper = axes[: len(runs)]
    lower = axes[len(runs) :]
    levels = (0.025, 0.25, 0.5, 0.75, 0.975)
    for run, top, bottom, colour in zip(runs, upper, lower, COLOURS[1:] * len(runs), strict=False):
        spread = np.sqrt(run.case.asymptotic_variance)
        standard = np.stack([run.settled(i) for i in range(len(run.iterations))]) / spread
        bands = np.quantile(standard, levels, axis=1)
        for values, level in zip(bands, levels, strict=True):
            top.plot(run.iterations, values, color=colour)
            top.axhline(float(stats.norm.ppf(level)), color="black", linewidth=0.6, linestyle=":")
        top.set(title=f"B = {run.case.batch}, K = {run.case.window}")
        top.set(xlabel="n", ylabel="quantiles of $E_n/\\sqrt{\\Sigma_\\infty}$")
        low, high = np.transpose([variance_interval(values) for values in standard])
        bottom.fill_between(run.iterations, low, high, color=colour, alpha=0.3, linewidth=0)
        bottom.axhline(1, color="black", linewidth=0.8)
        bottom.set(xlabel="n", ylabel="variance / $\\Sigma_\\infty$, 95 %")
    return figure
