"""What reuse will gain, predicted before a run from batches of one policy.

A step x = F̂⁻¹ĝ with a window of K averages its gradient over K batches and takes its Fisher matrix
from a fresh one (Theorem 2: K₁ = K, K₂ = 1). Its own variance falls as 1/K, but K steps share each
batch and err alike, and what adds up along a run is only

    Σ̂(K) = Σ₁/B + Σ₂/(KB) + Σ_F
    Σ₁/B = Var(F̄⁻¹ĝ),    Σ₂/B = Var((F̂⁻¹ − F̄⁻¹)(ĝ − ∇η)),    Σ_F = Var(F̂⁻¹∇η)

Theorem 2 has no Σ_F because ∇η = 0 at its θ̄; on the way there no K lowers it (reuse in the Fisher
matrix would).

P gradients and Q Fisher matrices from independent batches make a table x_pq = F̂_q⁻¹ĝ_p, whose
two-way analysis of variance gives the three: Σ₁/B belongs to the rows, Σ_F to the columns, Σ₂/B to
neither alone. That takes PQ solves and memory for PQd numbers.

Variances are measured by tr(F Σ), twice the KL divergence by which the noise moves the policy. In
the parameters' own units the noise of a network would be that of directions which hardly change
what it does. F is the mean of all Q matrices, one d×d matrix, O(Nd²) a batch.

Not predicted: the weights of old samples, which the theorem takes as 1. While the policy moves
fast, a long window gains less than this.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax import lax
from jaxtyping import Array, Float, Int, Key
from matplotlib.axes import Axes

from recollect.algorithms import NPG
from recollect.algorithms.base import begin, bind, reweighed_gradient
from recollect.checks import check_count, check_name, check_number
from recollect.collect.compiled import Draws, Episodes
from recollect.collect.rollout import AbstractCollector
from recollect.envs import ENVIRONMENTS, LQC, AbstractEnv, AbstractOracle, make
from recollect.estimate.advantages import ExactAdvantages, Returns
from recollect.keys import numbered_each, stream
from recollect.policies import AbstractPolicy
from recollect.policies.architecture import make_policy
from recollect.report.plot import COLOURS
from recollect.run.fit import check_fit
from recollect.run.train import train
from recollect.runtime import one_blas_thread
from recollect.statistics import jackknife_error, leave_out
from recollect.theory.findings import Findings, panels
from recollect.theory.lqc import inverse_fisher_moments
from recollect.tree import flatten, traced_numbers

BLOCKS = 16
"""Parts of the rows, and of the columns, that are left out in turn for the error bars."""


@dataclasses.dataclass(frozen=True)
class Reusable:
    """The share of the noise that reuse divides by K, with a 95 % interval."""

    share: float
    interval: tuple[float, float]

    def ratio(self, window: int | float) -> float:
        """tr(F Σ̂(K)) / tr(F Σ̂(1))."""
        return noise_ratio(self.share, window)

    def ratio_interval(self, window: int | float) -> tuple[float, float]:
        """95 % interval of `ratio`: a larger share leaves less noise."""
        low, high = self.interval
        return noise_ratio(high, window), noise_ratio(low, window)

    @property
    def floor(self) -> float:
        """What no window goes below."""
        return 1 - self.share


def noise_ratio(share: float, window: int | float) -> float:
    """1 − s(1 − 1/K): the noise with a window of K over that without reuse.

    A window of K has 1 − 1/K of the gain there is, whatever the share s.

    Example:
        >>> round(noise_ratio(0.5, 10), 3)
        0.55
    """
    return 1 - share * (1 - 1 / window)


def near_floor(share: float, excess: float = 0.1) -> int | float:
    """The least K whose noise is within `excess` of its floor, s/K ≤ excess·(1 − s).

    Args:
        share: s, the share of the noise that reuse divides by K.
        excess: relative to the floor 1 − s.

    Returns:
        K; infinite if the floor is zero.

    Example:
        >>> near_floor(0.5)
        10
    """
    if share >= 1:
        return math.inf
    # Rounding must not raise a quotient that is a whole number to the next one.
    return max(1, math.ceil(share / (excess * (1 - share)) - 1e-9))


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The noise of the natural gradient of one policy in its parts, tr(F Σ) of each."""

    gradient: float
    """Σ₁/B, which no window lowers."""
    joint: float
    """Σ₂/B, which a window of K divides by K."""
    fisher: float
    """Σ_F, which no window lowers; its estimate has no bias and may fall below zero where it
    vanishes."""
    limit: Reusable
    """Σ₂/(Σ₁ + Σ₂): the gain of Theorem 2, as if ∇η = 0."""
    here: Reusable
    """Σ₂/B of all three parts: the gain at this policy."""
    fisher_share: tuple[float, float]
    """95 % interval of the share of Σ_F in all three parts."""
    tail: float
    """Index of the generalised Pareto tail of the noise that single Fisher batches let through.

    Above ½ that noise has an infinite variance, and intervals may be too short: what matters are
    rare batches with a tiny F̂, which may not have been met yet. On LQC with 1,024 Fisher batches
    the intervals covered the exact share in 31, 36, 40 and 38 of 40 trials for B = 5, 10, 20 and
    50; the index was above ½ in 40, 13, 0 and 0 of them."""
    environment_steps: int
    """Spent on the prediction."""


def predict_gain(
    env: AbstractEnv,
    policy: AbstractPolicy,
    algorithm: NPG = NPG(),
    collector: AbstractCollector = Episodes(4),
    gradient_batches: int = 64,
    fisher_batches: int = 256,
    seed: int = 0,
) -> Prediction:
    """How much a window will lower the noise of `algorithm` at `policy`, from fresh batches alone.

    Args:
        env: a compiled environment.
        policy: where in training to ask; the answer holds for policies like it.
        algorithm: its damping, advantages, kind of Fisher matrix and solver count, its windows do
            not. A critic is not supported.
        collector: the batch of one iteration; every batch here begins with fresh episodes.
        gradient_batches: P, rows of the table.
        fisher_batches: Q, its columns. Small batches make F̂⁻¹ heavy-tailed and need more of them.
        seed: of the batches.

    Returns:
        The parts of the noise, and the share that reuse averages away, with intervals.
    """
    _check_batches(gradient_batches, fisher_batches)
    if algorithm.advantages.needs_critic:
        raise ValueError(
            "baseline='critic' needs a trained critic, which a prediction has not; "
            "use 'mean' or 'linear'."
        )
    check_fit(env, algorithm, policy)
    fresh = dataclasses.replace(algorithm, window=1, fisher_window=1, independent_fisher=False)
    key = jax.random.key(seed)
    rows = numbered_each(stream(key, "batch"), gradient_batches)
    columns = numbered_each(stream(key, "fisher batch"), fisher_batches)
    with one_blas_thread():
        problem = traced_numbers((env, fresh, collector))
        steps, metric, environment_steps = jax.block_until_ready(
            _table(problem, policy, rows, columns)
        )
    table = np.asarray(steps, float).swapaxes(0, 1)
    if not np.isfinite(table).all():
        raise ValueError(
            f"damping={float(algorithm.damping):g} gives steps that are not finite; "
            "give more, or check the rewards."
        )
    return _analyse(table, np.asarray(metric, float), int(environment_steps))


def _check_batches(gradient_batches: int, fisher_batches: int) -> None:
    least = f"give a whole number of at least {2 * BLOCKS}"
    remedy = f"{least}, as error bars leave out blocks of batches"
    counts = dict(gradient_batches=gradient_batches, fisher_batches=fisher_batches)
    for field, value in counts.items():
        check_count(field, value, remedy)
        check_number(field, value, low=2 * BLOCKS, remedy=remedy)


@eqx.filter_jit
def _table(
    problem: tuple[AbstractEnv, NPG, AbstractCollector],
    policy: AbstractPolicy,
    rows: Key[Array, " row"],
    columns: Key[Array, " column"],
) -> tuple[Float[Array, "column row d"], Float[Array, "d d"], Int[Array, ""]]:
    """All steps x_pq = F̂_q⁻¹ĝ_p.

    Returns:
        x_pq, the mean Fisher matrix, and the environment steps that the batches took.
    """
    env, algorithm, collector = problem
    if isinstance(env, AbstractOracle):
        algorithm = bind(algorithm, env)
    size = flatten(policy)[0].size

    def started(key):
        rollout = collector(key, env, policy, collector.init(key, env), algorithm.discount)[1]
        state = algorithm.init(policy, rollout.batch, key)
        return begin(algorithm, state, rollout), rollout.environment_steps

    def gradient(total, key):
        start, spent = started(key)
        return total + spent, reweighed_gradient(algorithm, start)

    def directions(carry, key):
        matrix, total = carry
        start, spent = started(key)
        fisher = algorithm.fisher(start.rows.window(jnp.ones(1)))
        guess = start.state.own.direction
        solve = lambda g: algorithm.solver(fisher, g, algorithm.damping, guess)
        solved = jax.vmap(solve)(gradients).direction
        return (matrix + fisher.matrix(), total + spent), solved

    spent, gradients = lax.scan(gradient, jnp.zeros((), jnp.int32), rows)
    (matrix, spent), steps = lax.scan(directions, (jnp.zeros((size, size)), spent), columns)
    return steps, matrix / len(columns), spent


def _analyse(
    table: Float[np.ndarray, "row column d"],
    metric: Float[np.ndarray, "d d"],
    environment_steps: int,
) -> Prediction:
    """The parts of the noise, and shares of them with intervals.

    Batches of gradients and of Fisher matrices are independent of each other, so that the variances
    of the jackknife along both axes add.
    """
    measured = table @ metric
    parts = _components(table, measured)
    shares = _shares(parts)
    variance = np.zeros(3)
    for axis in (0, 1):
        blocks = zip(leave_out(table, BLOCKS, axis), leave_out(measured, BLOCKS, axis), strict=True)
        without = [_shares(_components(*pair)) for pair in blocks]
        variance += jackknife_error(without) ** 2
    reach = scipy.stats.t.ppf(0.975, BLOCKS - 1) * np.sqrt(variance)
    ends = np.clip([shares - reach, shares + reach], 0, 1)
    limit, here, of_fisher = [(low, high) for low, high in ends.T.tolist()]
    gradient, joint, fisher = parts.tolist()
    return Prediction(
        gradient=gradient,
        joint=joint,
        fisher=fisher,
        limit=Reusable(float(shares[0]), limit),
        here=Reusable(float(shares[1]), here),
        fisher_share=of_fisher,
        tail=_tail_index(table, measured),
        environment_steps=environment_steps,
    )


def _tail_index(
    table: Float[np.ndarray, "row column d"], measured: Float[np.ndarray, "row column d"]
) -> float:
    """Index of a generalised Pareto law of the largest of the columns' sums of squares.

    A fifth of the columns, or 3√Q if that is less, is what Pareto-smoothed importance sampling
    takes (Vehtari et al., 2024).
    """
    centred = lambda x: x - x.mean(0)
    spread = np.sort(np.sum(centred(table) * centred(measured), (0, 2)))
    largest = min(len(spread) // 5, 3 * math.isqrt(len(spread)))
    excess = spread[-largest:] - spread[-largest - 1]
    return float(scipy.stats.genpareto.fit(excess, floc=0)[0])


def _components(
    x: Float[np.ndarray, "row column d"], measured: Float[np.ndarray, "row column d"]
) -> Float[np.ndarray, "3"]:
    """Unbiased estimates of tr(FΣ₁)/B, tr(FΣ₂)/B and tr(FΣ_F).

    The random-effects analysis of variance of a two-way table.

    Args:
        x: the table.
        measured: its entries times F.
    """
    rows, columns, _ = x.shape
    squares = lambda centre: float(np.sum(centre(x) * centre(measured)))
    joint = squares(_joint) / ((rows - 1) * (columns - 1))
    by_row = squares(lambda x: x.mean(1) - x.mean((0, 1))) / (rows - 1)
    by_column = squares(lambda x: x.mean(0) - x.mean((0, 1))) / (columns - 1)
    return np.array([by_row - joint / columns, joint, by_column - joint / rows])


def _joint(x: Float[np.ndarray, "row column d"]) -> Float[np.ndarray, "row column d"]:
    """What neither the row nor the column of an entry explains."""
    return x - x.mean(1, keepdims=True) - x.mean(0) + x.mean((0, 1))


def _shares(parts: Float[np.ndarray, "3"]) -> Float[np.ndarray, "3"]:
    """Of Σ₂ in the theorem's noise, of Σ₂ in the noise of this policy, and of Σ_F in that."""
    gradient, joint, fisher = parts
    return np.array([joint / (gradient + joint), joint / parts.sum(), fisher / parts.sum()])


@dataclasses.dataclass(frozen=True)
class Gain:
    """Predict, before a run, how much each window lowers the noise of the natural policy gradient.

    A policy is trained without reuse for some iterations; then fresh batches of it separate the
    noise that reuse averages away from the rest.
    """

    env: str = "LQC"
    """Name of the environment."""
    samples: int | None = None
    """Independent draws from the occupancy measure in a batch; 10 where the environment knows
    exact advantages, which draws need."""
    episodes: int | None = None
    """Whole episodes in a batch, with returns minus their mean as advantages; 4 where the
    environment knows no exact ones."""
    max_steps: int | None = None
    """Cut episodes after this many steps; the environment's own limit if not given."""
    damping: float = 0.01
    """ε, added to the diagonal of the Fisher matrix."""
    iterations: int = 100
    """Iterations of natural gradients, α = 0.01, before the policy is looked at; 0 for the policy
    that training starts from."""
    windows: tuple[int, ...] = (1, 2, 5, 10, 20, 50)
    """Windows to predict for."""
    gradient_batches: int = 64
    """Batches for gradients."""
    fisher_batches: int = 1024
    """Batches for Fisher matrices; fewer do where a batch is long."""
    seed: int = 0
    """Of training and of the batches."""

    def __post_init__(self):
        if not self.env.endswith(".npz"):
            check_name("env", self.env, ENVIRONMENTS)
        if self.samples is not None and self.episodes is not None:
            raise ValueError(
                f"samples={self.samples} and episodes={self.episodes} exclude each other; "
                "choose one way to collect."
            )
        _check_batches(self.gradient_batches, self.fisher_batches)
        for field in ("samples", "episodes", "max_steps"):
            if getattr(self, field) is not None:
                check_count(field, getattr(self, field))
        remedy = "give a number above 0, for example 0.01"
        check_number("damping", self.damping, low=0, open_low=True, remedy=remedy)
        remedy = "give a number of iterations, 0 for the first policy"
        check_number("iterations", self.iterations, low=0, remedy=remedy)
        if not self.windows:
            raise ValueError("windows=() is empty; give windows to predict for, for example 1 10.")
        for window in self.windows:
            check_count("windows", window, "give numbers of iterations to reuse")

    def run(self) -> Findings:
        """Train, predict from fresh batches, and compare with the exact share where it is known."""
        settings: dict[str, Any] = {} if self.max_steps is None else {"max_steps": self.max_steps}
        env = make(self.env, engine="compiled", **settings)
        assert isinstance(env, AbstractEnv)
        knows = isinstance(env, AbstractOracle)
        if self.samples is not None and not knows:
            raise ValueError(
                f"samples={self.samples} needs exact advantages, which {self.env} does not know; "
                "give episodes."
            )
        draws = knows and self.episodes is None
        collector = Draws(self.samples or 10) if draws else Episodes(self.episodes or 4)
        advantages = ExactAdvantages() if draws else Returns()
        discount = float(env.discount) if knows else NPG.discount
        algorithm = NPG(damping=self.damping, advantages=advantages, discount=discount)
        policy = make_policy(stream(jax.random.key(self.seed), "policy"), env, None)
        if self.iterations:
            policy = train(
                env,
                algorithm,
                collector=collector,
                policy=policy,
                seeds=(self.seed,),
                iterations=self.iterations,
            ).policy()
        gain = predict_gain(
            env, policy, algorithm, collector, self.gradient_batches, self.fisher_batches, self.seed
        )
        exact = None
        # On LQC Σ₁ and Σ₂ are Σ_η times numbers (section 5.5), so the share is known.
        if isinstance(env, LQC) and isinstance(collector, Draws):
            first, second = inverse_fisher_moments(collector.samples, self.damping)
            exact = 1 - first**2 / second
        return Findings(
            self._rows(gain, exact),
            self._verdict(gain, exact),
            {"gain": self._picture(gain, exact)},
        )

    def _rows(self, gain: Prediction, exact: float | None):
        return [
            {
                "window": window,
                "noise if ∇η = 0": gain.limit.ratio(window),
                "95 % interval": gain.limit.ratio_interval(window),
                "exact": None if exact is None else noise_ratio(exact, window),
                "noise here": gain.here.ratio(window),
                "95 % interval here": gain.here.ratio_interval(window),
                "of what is to be had": 1 - 1 / window,
            }
            for window in self.windows
        ]

    def _verdict(self, gain: Prediction, exact: float | None) -> str:
        """The prediction in words."""
        limit = gain.limit
        here = gain.here
        last = max(self.windows)
        least, most = (near_floor(share) for share in limit.interval)
        low, high = limit.ratio_interval(last)
        stray = [f"{100 * share:.1f}" for share in gain.fisher_share]
        words = [
            f"{self.env}: where ∇η = 0, reuse averages away "
            f"{_percent(limit.share, limit.interval)} of the noise: with K = {last} it is "
            f"{limit.ratio(last):.3f} [{low:.3f}, {high:.3f}] of that without reuse, "
            f"and never below {limit.floor:.3f}.",
            "The law is floor + share/K, so K = 10 has 90 % of what is to be had in every problem; "
            "the noise is within 10 % of its floor "
            f"from K = {near_floor(limit.share)} on [{least}, {most}].",
            f"At this policy {stray[0]} to {stray[1]} % of the noise is Var(F̂⁻¹∇η), "
            f"which no window lowers, and reuse averages away "
            f"{_percent(here.share, here.interval)}.",
        ]
        if exact is not None:
            low, high = limit.interval
            covers = "covers" if low <= exact <= high else "misses"
            words.append(
                f"The exact share where ∇η = 0 is {_percent(exact)}: the interval {covers} it."
            )
        if gain.tail > 0.5:
            words.append(
                f"Single batches weigh heavily (tail index {gain.tail:.2f}, above 0.5), "
                "so the intervals may be too short; take more."
            )
        words.append(f"The prediction took {gain.environment_steps:,} environment steps.")
        return " ".join(words)

    def _picture(self, gain: Prediction, exact: float | None):
        """Noise against the window, and its parts at this policy."""
        figure, (left, right) = panels(1, 2)
        self._draw_ratios(left, gain, exact)
        _draw_parts(right, gain)
        return figure

    def _draw_ratios(self, axes: Axes, gain: Prediction, exact: float | None) -> None:
        windows = np.unique(np.geomspace(1, max(*self.windows, 10), 60))
        curves = (
            (gain.limit, "if ∇η = 0 (Theorem 2)", COLOURS[1], "-"),
            (gain.here, "at this policy", COLOURS[3], "--"),
        )
        for reusable, label, colour, line in curves:
            low, high = np.transpose([reusable.ratio_interval(window) for window in windows])
            ratios = [reusable.ratio(window) for window in windows]
            axes.plot(windows, ratios, color=colour, linestyle=line, label=label)
            axes.fill_between(windows, low, high, color=colour, alpha=0.18, linewidth=0)
            axes.axhline(reusable.floor, color=colour, linestyle=":", linewidth=1)
        if exact is not None:
            ratios = [noise_ratio(exact, window) for window in self.windows]
            label = "exact if ∇η = 0"
            axes.plot(self.windows, ratios, "o", color=COLOURS[7], markersize=4, label=label)
        # The name is the user's and may hold dollars.
        axes.set_title(f"{self.env}: noise that adds up", parse_math=False)
        axes.set(xlabel="window K", ylabel="relative to K = 1", xscale="log", ylim=(0, 1.05))
        axes.set_xticks(self.windows, [str(window) for window in self.windows])
        axes.minorticks_off()
        axes.legend(frameon=False, loc="lower left")


def _draw_parts(axes: Axes, gain: Prediction) -> None:
    # Estimates of parts that vanish may be negative.
    parts = np.maximum([gain.gradient, gain.joint, gain.fisher], 0)
    shares = parts / parts.sum()
    names = ("gradient\nΣ₁/B", "both\nΣ₂/(KB)", "Fisher matrix\nVar(F̂⁻¹∇η)")
    colours = [COLOURS[0], COLOURS[4], COLOURS[0]]
    bars = axes.bar(names, shares, color=colours, width=0.6)
    axes.bar_label(bars, [_percent(share) for share in shares], padding=2)
    title = "parts at this policy, K = 1; reuse lowers the green one"
    axes.set(title=title, ylabel="share of the noise", ylim=(0, 1.05))
    axes.grid(visible=False, axis="x")


def _percent(share: float, interval: tuple[float, float] | None = None) -> str:
    ends = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    return f"{100 * share:.1f} %{ends}"
