"""Theorem 2 speaks of a process, not only of its end: E_n(t) tends to a stationary solution.

E_n(t) runs through E_m = (θ_m − θ̄)/√α_m, m ≥ n, in interpolated time, in which iteration m takes
α_m. The stationary solution of dE = 𝒢E dt + dW has the autocovariance

    Cov(E(t + τ), E(t)) = e^{𝒢τ} Σ∞

at every lag τ ≥ 0. It is measured over independent runs and, within each, over all moments of
the last third of its iterations. Intervals are made from the runs, whose averages are
independent of each other whatever the correlation in time.

The intervals hold for all lags and entries at once (a sup-t band, by the bootstrap over runs).
The same band is put to four wrong theories, in which 𝒢 or Σ∞ is off by a tenth: an experiment
that lets these pass has no power.

Why α_n = (c/|λ|) n^−0.7: at finite n, E_n is off by a share of order α_nK|λ′|, where λ′ is the
eigenvalue of 𝒢 furthest from zero, as with a constant step: a window lasts α_nK in interpolated
time, and noise that it shares between steps is smooth at shorter lags. And it is off by
(β/2n)/(α_n|λ|), from the change of √α_n. With β = 0.9, as in section 5.5, the latter is 2–3 % at
n = 10⁵; with 0.7 both are of the order of 1 % or less.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes

from recollect.checks import check_count, check_name, check_number
from recollect.memory.weights import Ratio
from recollect.report.plot import COLOURS
from recollect.theory.findings import Findings, panels
from recollect.theory.linear import autocovariance
from recollect.theory.local import NAMES, Local, Name, Paths, Task, local_problem, run_all

SPEED = 3.0
"""c: the first step is c/|λ|, so that both problems forget at the same pace."""
SETTLED = 2 / 3
"""Share of the iterations that is left out."""
BOOTSTRAPS = 4_000
"""Resamples of the runs for the band."""
WRONG: Mapping[str, tuple[float, float]] = {
    "0.9 𝒢": (0.9, 1.0),
    "1.1 𝒢": (1.1, 1.0),
    "0.9 Σ∞": (1.0, 0.9),
    "1.1 Σ∞": (1.0, 1.1),
}
"""Factors of 𝒢 and Σ∞ in theories that are wrong by a tenth."""
SHOWN = 2
"""Rows of the table in a relaxation time."""


@dataclasses.dataclass(frozen=True)
class Process:
    """Has E_n(t) the autocovariance e^{𝒢τ}Σ∞ of the process in Theorem 2?

    Runs of RNPG on LQC and on a corridor with two parameters, with step sizes n^−β; intervals that
    hold for all lags at once; and the lag at which theories that are off by a tenth leave them.
    """

    cases: tuple[tuple[Name, int], ...] = (("LQC", 1), ("LQC", 10), ("corridor", 4))
    """Pairs of problem and window K: LQC 1 LQC 10 ..."""
    replications: int = 500
    """Independent runs of each case."""
    iterations: int = 150_000
    """Of each run on LQC."""
    tabular_iterations: int = 20_000
    """Of each run on the corridor."""
    step_decay: float = 0.7
    """β: step sizes are proportional to n^−β."""
    longest: float = 3.0
    """The longest lag, in relaxation times 1/|λ|; λ is the eigenvalue of 𝒢 nearest to zero."""
    points: int = 10
    """Lags in a relaxation time."""
    level: float = 0.95
    """Of the band, for all lags together."""
    ratio: Ratio = "policy"
    """Importance weights: the paper's ω̂ (`policy`) or its ω (`occupancy`)."""
    seed: int = 0
    """Of all cases; each draws from a key of its own."""

    def __post_init__(self):
        if not self.cases:
            raise ValueError("cases=() is empty; give at least one problem and window: LQC 10.")
        for name, window in self.cases:
            check_name("cases", name, NAMES)
            check_count("cases", window, "give a window of at least 1 after each problem")
        for field in ("replications", "iterations", "tabular_iterations", "points"):
            check_count(field, getattr(self, field))
        remedy = "give at least 8, as fewer cannot tell an interval"
        check_number("replications", self.replications, low=8, remedy=remedy)
        inside: dict[str, Any] = dict(open_low=True, open_high=True)
        remedy = "give an exponent above 1/2 and below 1 (A.2.5)"
        check_number("step_decay", self.step_decay, low=0.5, high=1, **inside, remedy=remedy)
        remedy = "give the longest lag in relaxation times, above 0"
        check_number("longest", self.longest, low=0, high=float("inf"), **inside, remedy=remedy)
        remedy = "give a level between 0 and 1, such as 0.95"
        check_number("level", self.level, low=0, high=1, **inside, remedy=remedy)
        check_name("ratio", self.ratio, get_args(Ratio))
        for name, _ in self.cases:
            self._check_time(name)

    def _check_time(self, name: Name) -> None:
        """Raise if the last third is too short for the longest lag, or too coarse for a lag."""
        field = "iterations" if name == "LQC" else "tabular_iterations"
        iterations = self._iterations(name)
        check_number(field, iterations, low=100, remedy="give at least 100 iterations")
        checkpoints = even_in_time(iterations, self.step_decay, SPEED * self.points)
        if len(checkpoints) < 2 * self._lags or (np.diff(checkpoints) < 1).any():
            raise ValueError(
                f"{field}={iterations} leaves {len(np.unique(checkpoints))} moments to measure "
                f"at, and {self._lags} lags need {2 * self._lags} different ones; give more "
                "iterations, or a smaller longest or points."
            )

    def run(self) -> Findings:
        """Simulate all cases and compare their autocovariance with that of Theorem 2."""
        tasks = []
        for i, (name, window) in enumerate(self.cases):
            tasks.append(self.task(i, local_problem(name), window))
        pairs = zip(tasks, run_all(tasks), strict=True)
        measured = [self.measure(task, paths) for task, paths in pairs]
        rows = [row for one in measured for row in one.rows(self.points)]
        figure, axes = panels(1, len(measured), width=4.6)
        for one, axis in zip(measured, axes, strict=True):
            one.draw(axis)
        verdict = "\n".join(one.words(self.level) for one in measured)
        return Findings(rows, verdict, {"process": figure})

    def task(self, case: int, problem: Local, window: int) -> Task:
        """Runs of one case, with θ written down at even distances in time over the last third."""
        rates = np.full(self.replications, SPEED / problem.slowest)
        iterations = self._iterations(problem.name)
        checkpoints = even_in_time(iterations, self.step_decay, SPEED * self.points)
        seeds = (self.seed, case)
        return Task(problem, window, self.ratio, self.step_decay, rates, checkpoints, seeds)

    def measure(self, task: Task, paths: Paths) -> "Measured":
        """Autocovariances of E at all lags, with a band."""
        step_sizes = task.rates[0] * task.checkpoints ** -float(self.step_decay)
        errors = paths.errors / np.sqrt(step_sizes)[:, None, None]
        products = lagged_products(errors, self._lags)
        return Measured(
            problem=task.problem,
            window=task.window,
            lags=np.arange(self._lags) / self.points,
            last_step=float(step_sizes[-1]),
            band=sup_t(in_units(task.problem, task.window, products), self.level, self.seed),
            refused=paths.refused,
            seconds=paths.seconds,
        )

    @property
    def _lags(self) -> int:
        return round(self.longest * self.points) + 1

    def _iterations(self, name: Name) -> int:
        return self.iterations if name == "LQC" else self.tabular_iterations


def even_in_time(iterations: int, step_decay: float, rate: float) -> Int[np.ndarray, " checkpoint"]:
    """Iterations in the last third at even distances in interpolated time t_n = Σ_{i ≤ n} i^−β.

    Args:
        iterations: of the run; the last is always among them.
        step_decay: β.
        rate: how many there are in a unit of time.

    Example:
        >>> even_in_time(iterations=900, step_decay=0.5, rate=0.5).tolist()
        [625, 676, 729, 784, 841, 900]
    """
    times = np.cumsum(np.arange(1, iterations + 1) ** -float(step_decay))
    first = times[int(SETTLED * iterations)]
    # Counted back from the end, which is then among them.
    wanted = times[-1] - np.arange(int((times[-1] - first) * rate) + 1)[::-1] / rate
    # The nearest iteration, by bisection: n stands at place n − 1.
    after = np.searchsorted(times, wanted).clip(1, iterations - 1)
    earlier = wanted - times[after - 1] < times[after] - wanted
    return 1 + after - earlier


def lagged_products(
    errors: Float[np.ndarray, "moment replication d"],
    lags: int,
) -> Float[np.ndarray, "replication lag d d"]:
    """The mean over moments t of E(t + τ) E(t)ᵀ, for each run and τ = 0, …, `lags` − 1 moments.

    The mean of E is zero by the theorem, and not subtracted.

    Args:
        errors: E at moments of even distance.
        lags: how many.

    Example:
        >>> errors = np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1)
        >>> lagged_products(errors, lags=2).ravel().tolist()
        [4.666666666666667, 4.0]
    """
    products = []
    for lag in range(lags):
        later = errors[lag:]
        sooner = errors[: len(errors) - lag]
        products.append(np.einsum("kri,krj->rij", later, sooner) / len(later))
    return np.stack(products, axis=1)


def in_units(
    problem: Local,
    window: int,
    values: Float[np.ndarray, "*n lag d d"],
) -> Float[np.ndarray, "*n lag entry"]:
    """Entries C_ij over √(Σ_ii Σ_jj) of Σ∞, and behind them the trace of C over that of Σ∞.

    Args:
        problem: LQC or the corridor.
        window: K, on which Σ∞ depends.
        values: autocovariances C.
    """
    stationary = problem.stationary(window)
    spread = np.sqrt(np.diag(stationary))
    entries = (values / np.outer(spread, spread)).reshape(*values.shape[:-2], -1)
    trace = np.trace(values, axis1=-2, axis2=-1) / np.trace(stationary)
    return np.concatenate([entries, trace[..., None]], axis=-1)


@dataclasses.dataclass(frozen=True)
class Band:
    """Means with intervals that hold together."""

    mean: Float[np.ndarray, "lag entry"]
    reach: Float[np.ndarray, "lag entry"]
    """Half the width of each interval."""

    def misses(self, theory: Float[np.ndarray, "lag entry"]) -> Float[np.ndarray, "lag entry"]:
        """The distance of a theory from the mean over the reach: above 1 it is outside."""
        return np.abs(self.mean - theory) / self.reach


def sup_t(
    samples: Float[np.ndarray, "replication lag entry"],
    level: float,
    seed: int = 0,
) -> Band:
    """Means ± c standard errors, with c such that all of them cover together at `level`.

    c is a quantile of the largest |mean* − mean|/s.e. over resamples of the replications.

    Args:
        samples: of independent replications.
        level: probability with which all intervals cover.
        seed: of the resamples.
    """
    count = len(samples)
    centred = samples - samples.mean(0)
    error = samples.std(0, ddof=1) / np.sqrt(count)
    error = np.maximum(error, np.finfo(float).tiny)
    draw = np.random.default_rng(seed)
    # A resample is given by how often it takes each replication, which makes all of them together
    # one matrix product.
    shares = draw.multinomial(count, np.full(count, 1 / count), BOOTSTRAPS) / count
    largest = np.abs(shares @ (centred / error).reshape(count, -1)).max(1)
    return Band(samples.mean(0), float(np.quantile(largest, level)) * error)


@dataclasses.dataclass(frozen=True)
class Measured:
    """The autocovariance of one case beside that of the theorem."""

    problem: Local
    window: int
    lags: Float[np.ndarray, " lag"]
    """In relaxation times 1/|λ|."""
    last_step: float
    """α_n at the end."""
    band: Band
    refused: int
    seconds: float

    def theory(self, drift: float = 1.0, spread: float = 1.0) -> Float[np.ndarray, "lag entry"]:
        """e^{𝒢τ}Σ∞ in the units of the band, with 𝒢 and Σ∞ multiplied by factors."""
        stationary = spread * self.problem.stationary(self.window)
        times = self.lags / self.problem.slowest
        values = autocovariance(drift * self.problem.drift, stationary, times)
        return in_units(self.problem, self.window, values)

    @property
    def holds(self) -> bool:
        """Whether the theorem is inside the band at all lags."""
        return bool((self.band.misses(self.theory()) <= 1).all())

    def fails_at(self, drift: float, spread: float) -> float | None:
        """The first lag at which a wrong theory is outside the band; None if it stays inside."""
        outside = (self.band.misses(self.theory(drift, spread)) > 1).any(1)
        return float(self.lags[outside.argmax()]) if outside.any() else None

    def rows(self, points: int) -> list[dict[str, Any]]:
        """The trace over that of Σ∞ at some lags; `worst` is the largest miss of all entries."""
        theory = self.theory()
        misses = self.band.misses(theory).max(1)
        ends = [self.band.mean - self.band.reach, self.band.mean + self.band.reach]
        return [
            dict(
                problem=self.problem.name,
                window=self.window,
                lag=float(self.lags[i]),
                time=float(self.lags[i] / self.problem.slowest),
                theory=float(theory[i, -1]),
                measured=float(self.band.mean[i, -1]),
                interval=[float(end[i, -1]) for end in ends],
                worst=float(misses[i]),
                holds=bool(misses[i] <= 1),
                last_step=self.last_step,
                refused=self.refused,
                seconds=self.seconds,
            )
            for i in range(0, len(self.lags), max(1, points // SHOWN))
        ]

    def words(self, level: float) -> str:
        """What the band says of the theorem and of wrong theories."""
        misses = self.band.misses(self.theory()).max(1)
        worst = int(misses.argmax())
        fails = {name: self.fails_at(*factors) for name, factors in WRONG.items()}
        noticed = [f"{name} at {lag:.2g}" for name, lag in fails.items() if lag is not None]
        unnoticed = [name for name, lag in fails.items() if lag is None]
        passed = f"; not noticed: {', '.join(unnoticed)}" if unnoticed else ""
        return (
            f"{self.problem.name}, K = {self.window}: e^(𝒢τ)Σ∞ "
            f"{'stays inside' if self.holds else 'leaves'} the simultaneous {level:.0%} band over "
            f"{len(self.lags)} lags up to {self.lags[-1]:.2g}/|λ|; the largest deviation is "
            f"{misses[worst]:.2f} of the band's half width, at {self.lags[worst]:.2g}/|λ|. "
            f"The variance is {self.band.mean[0, -1]:.3f} ± {self.band.reach[0, -1]:.3f} of Σ∞. "
            "Theories off by a tenth fail first at a lag (in 1/|λ|) of: "
            f"{', '.join(noticed) or 'none'}{passed}."
        )

    def draw(self, axes: Axes) -> None:
        """The band of every entry, the theorem, and theories that are off by a tenth."""
        size = len(self.problem.drift)
        # Entries 12 and 21 differ, as the process does not look the same backwards.
        for entry, colour in zip(range(size**2), COLOURS[1:], strict=False):
            mean = self.band.mean[:, entry]
            reach = self.band.reach[:, entry]
            place = "" if size == 1 else f" {entry // size + 1}{entry % size + 1}"
            band: dict[str, Any] = dict(color=colour, alpha=0.35, linewidth=0)
            band["label"] = f"runs{place}, all lags"
            axes.fill_between(self.lags, mean - reach, mean + reach, **band)
        # Fonts of pictures lack the letter 𝒢, mathematical text has it.
        right = r"$e^{\mathcal{G}\tau}\,\Sigma_\infty$"
        wrong = r"$\mathcal{G}$ off by a tenth"
        drawn = ((1.0, "-", right), (0.9, ":", wrong), (1.1, ":", None))
        for factor, style, label in drawn:
            lines = self.theory(factor)[:, : size**2]
            for line in lines.T:
                axes.plot(self.lags, line, style, color="black", linewidth=0.9, label=label)
                label = None
        axes.set(title=f"{self.problem.name}, K = {self.window}")
        axes.set(xlabel="lag τ in 1/|λ|", ylabel="autocovariance over Σ∞")
        axes.legend(frameon=False, fontsize=8)
