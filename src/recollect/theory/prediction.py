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

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax import lax
from jaxtyping import Array, Float, Int, Key

from recollect.algorithms import NPG
from recollect.algorithms.base import bind
from recollect.algorithms.reuse import reweighed_gradient
from recollect.algorithms.update import begin
from recollect.checks import check_count, check_number
from recollect.collect.compiled import Episodes
from recollect.collect.rollout import AbstractCollector
from recollect.envs import AbstractEnv, AbstractOracle
from recollect.keys import numbered_each, stream
from recollect.policies import AbstractPolicy
from recollect.run.fit import check_fit
from recollect.run.section5 import algorithm_1
from recollect.runtime import one_blas_thread
from recollect.statistics import jackknife_error, leave_out
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
    algorithm: NPG = algorithm_1(),
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
    check_batches(gradient_batches, fisher_batches)
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


def check_batches(gradient_batches: int, fisher_batches: int) -> None:
    """Raise on fewer batches than the error bars need."""
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
