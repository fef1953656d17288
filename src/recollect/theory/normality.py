"""Theorem 2 and section 5.5: is E_n = (θ_n − θ̄)/√α_n normal with variance Σ∞ when n is large?"""

import dataclasses

import numpy as np
from scipy import stats

from recollect.checks import check_count
from recollect.memory.weights import Ratio
from recollect.report.plot import COLOURS
from recollect.theory.findings import Findings, panels
from recollect.theory.replicate import Case, Replications, check_sizes, replicate


@dataclasses.dataclass(frozen=True)
class Normality:
    """Run RNPG on the linear quadratic control problem many times and compare the errors with the normal law of Theorem 2."""

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
    decay: float = 0.9
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
        return self.findings(self.replications_of_all())

    def replications_of_all(self) -> list[Replications]:
        """The runs of every case, which take the time."""
        checkpoints = 1 if self.plot_every is None else max(1, self.iterations // self.plot_every)
        return replicate(
            self.all_cases(), self.replications, self.iterations, checkpoints, self.seed
        )

    def findings(self, runs: list[Replications]) -> Findings:
        """What they say."""
        rows = [row(run) for run in runs]
        pictures = {"density": _density(runs), "quantiles": _quantiles(runs)}
        if len(runs[0].iterations) > 1:
            pictures["approach"] = _approach(runs)
        return Findings(rows, _verdict(rows), pictures)

    def all_cases(self) -> list[Case]:
        """The cases with the settings that they share."""
        shared = {
            field: getattr(self, field)
            for field in ("damping", "discount", "decay", "start", "bound", "ratio")
        }
        return [Case(batch, window, **shared) for batch, window in self.cases]


def row(run: Replications) -> dict:
    """The figures of a case. `holds` is at a level of 1 % for each of variance, mean and shape."""
    errors, theory = run.errors(), run.case.asymptotic_variance
    standard = errors / np.sqrt(theory)
    low, high = mean_interval(errors)
    wide = variance_interval(standard, 0.99)
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
        holds=bool(
            wide[0] <= 1 <= wide[1]
            and ks_p > 0.01
            and abs(errors.mean()) < (high - low) / 2 * 2.576 / 1.96
        ),
    )


def variance_interval(values: np.ndarray, level: float = 0.95) -> list[float]:
    """Interval of the variance of normal draws, from the χ² law of their sum of squares."""
    free = len(values) - 1
    low, high = stats.chi2.ppf([(1 + level) / 2, (1 - level) / 2], free)
    return [float(free * values.var(ddof=1) / low), float(free * values.var(ddof=1) / high)]


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean, from Student's law."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def anderson_darling(standard: np.ndarray, draws: int = 2_000) -> float:
    """p-value against N(0, 1), whose parameters are known: the rank of A² among those of normal samples."""

    def statistic(rows):
        rows, n = np.sort(rows, axis=-1), rows.shape[-1]
        tails = stats.norm.logcdf(rows) + stats.norm.logsf(rows[..., ::-1])
        return -n - ((2 * np.arange(n) + 1) * tails).mean(-1)

    reference = statistic(np.random.default_rng(0).standard_normal((draws, len(standard))))
    return float((1 + (reference >= statistic(standard)).sum()) / (1 + draws))


def _verdict(rows: list[dict]) -> str:
    good = [row for row in rows if row["holds"]]
    ratios = ", ".join(
        f"{row['variance_ratio']:.3f} (B={row['batch']}, K={row['window']})" for row in rows
    )
    says = f"Theorem 2 agrees with {len(good)} of {len(rows)} cases at the 1 % level. Empirical over theoretical variance: {ratios}."
    troubled = sum(row["refused_runs"] for row in rows)
    if troubled:
        says += f" {troubled} runs had updates refused as not finite ({sum(row['refused'] for row in rows)} updates); all runs are counted."
    return says


def _density(runs: list[Replications]):
    figure, axes = panels(1, len(runs), width=3.6, height=3.2)
    for run, one, colour in zip(runs, axes, COLOURS[1:] * len(runs), strict=False):
        spread = np.sqrt(run.case.asymptotic_variance)
        grid = np.linspace(-4 * spread, 4 * spread, 200)
        one.hist(
            run.errors(),
            bins=40,
            range=(grid[0], grid[-1]),
            density=True,
            color=colour,
            alpha=0.5,
            label="runs",
        )
        one.plot(
            grid,
            stats.norm.pdf(grid, scale=spread),
            color="black",
            linewidth=1.2,
            label="Theorem 2",
        )
        one.set(title=f"B = {run.case.batch}, K = {run.case.window}", xlabel="$E_n$")
    axes[0].legend(frameon=False)
    return figure


def _quantiles(runs: list[Replications]):
    figure, axes = panels(1, len(runs), width=3.6, height=3.2)
    for run, one, colour in zip(runs, axes, COLOURS[1:] * len(runs), strict=False):
        errors, spread = np.sort(run.errors()), np.sqrt(run.case.asymptotic_variance)
        one.plot(
            spread * stats.norm.ppf((np.arange(len(errors)) + 0.5) / len(errors)),
            errors,
            ".",
            color=colour,
            markersize=3,
        )
        one.axline((0, 0), slope=1, color="black", linewidth=0.8)
        one.set(
            title=f"B = {run.case.batch}, K = {run.case.window}",
            xlabel="quantiles of Theorem 2",
            ylabel="of the runs",
        )
    return figure


def _approach(runs: list[Replications]):
    figure, axes = panels(2, len(runs), width=3.6, height=3.2)
    for run, top, bottom, colour in zip(
        runs, axes, axes[len(runs) :], COLOURS[1:] * len(runs), strict=False
    ):
        spread = np.sqrt(run.case.asymptotic_variance)
        standard = np.stack([run.errors(i) for i in range(len(run.iterations))]) / spread
        bands = np.quantile(standard, [0.025, 0.25, 0.5, 0.75, 0.975], axis=1)
        for values, level in zip(bands, (0.025, 0.25, 0.5, 0.75, 0.975), strict=True):
            top.plot(run.iterations, values, color=colour)
            top.axhline(float(stats.norm.ppf(level)), color="black", linewidth=0.6, linestyle=":")
        top.set(
            title=f"B = {run.case.batch}, K = {run.case.window}",
            xlabel="n",
            ylabel="quantiles of $E_n/\\sqrt{\\Sigma_\\infty}$",
        )
        intervals = np.array([variance_interval(values) for values in standard])
        bottom.fill_between(
            run.iterations, intervals[:, 0], intervals[:, 1], color=colour, alpha=0.3, linewidth=0
        )
        bottom.axhline(1, color="black", linewidth=0.8)
        bottom.set(xlabel="n", ylabel="variance / $\\Sigma_\\infty$, 95 %")
    return figure
