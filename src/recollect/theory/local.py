"""Two problems seen from their optimum θ̄, and runs of RNPG on them.

LQC has one parameter, the corridor (`recollect.theory.corridor`) two. What is known of each at
θ̄ is exact: quadrature for LQC, sums over all batches for the corridor.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from recollect.algorithms import NPG
from recollect.checks import check_name
from recollect.envs import LQC, AbstractOracle, Tabular
from recollect.estimate.advantages import ExactAdvantages
from recollect.keys import numbered
from recollect.machines import map_kept
from recollect.memory.weights import WEIGHT_RULES, Ratio
from recollect.policies import AbstractPolicy, ShiftPolicy
from recollect.prng import fusing_key
from recollect.run.section5 import algorithm_1
from recollect.step.project import Box
from recollect.step.solve import Cholesky
from recollect.theory import covariance, lqc
from recollect.theory.corridor import corridor_policy, switched_corridor
from recollect.theory.covariance import Matrix, stationary_covariance
from recollect.theory.replicate import simulate
from recollect.tree import flatten, traced_numbers

Name = Literal["LQC", "corridor"]
NAMES: tuple[Name, ...] = get_args(Name)
SIGNS: dict[Ratio, str] = {"occupancy": "ω", "policy": "ω̂"}
"""How tables and pictures write the ratios."""
WORTH_PAIRS = 50_000
"""Iterations from which on a loop that takes longer to compile saves time."""
WORTH_A_PROCESS = 2_000_000
"""Updates of all runs from which on starting processes takes less time than it saves."""


@dataclasses.dataclass(frozen=True)
class Local:
    """A problem and what Theorem 2 needs to know of it at θ̄."""

    name: Name
    env: AbstractOracle
    optimum: AbstractPolicy
    """θ̄."""
    start: AbstractPolicy
    """Where runs begin."""
    batch: int
    """B."""
    damping: float
    """ε."""
    bound: float
    """Θ: every |θ_i| is at most this."""
    drift: Matrix
    """𝒢."""
    averaged: Matrix
    """S₁ = Σ₁/B: noise of F̄⁻¹ĝ from one batch, which reuse spreads over K steps."""
    white: Matrix
    """S₂ = Σ₂/B: noise of gradient and Fisher matrix together, which reuse divides by K."""
    delay: Matrix
    """𝒟: the part of 𝒢 that the policy ratio leaves to the θ that a sample was drawn with."""

    @property
    def slowest(self) -> float:
        """|λ|, the rate at which the most persistent error dies out: min |Re λ| of 𝒢."""
        return float(-np.linalg.eigvals(self.drift).real.max())

    @property
    def origin(self) -> Float[np.ndarray, " d"]:
        """θ̄ as numbers."""
        return np.asarray(flatten(self.optimum)[0], float)

    @property
    def first_error(self) -> Float[np.ndarray, " d"]:
        """θ_0 − θ̄."""
        return np.asarray(flatten(self.start)[0], float) - self.origin

    def stationary(self, window: int) -> Matrix:
        """Σ∞ for a window of K."""
        return stationary_covariance(self.drift, self.averaged + self.white / window)

    def algorithm(self, window: int, ratio: Ratio, step_decay: float) -> NPG:
        """RNPG as the theorems have it: exact advantages, a fresh batch for F̂, a box for Θ."""
        return algorithm_1(
            window=window,
            fisher_window=1,
            damping=self.damping,
            discount=self.env.discount,
            learning_rate=1.0,
            step_decay=step_decay,
            objective_scale=True,
            advantages=ExactAdvantages(),
            weights=WEIGHT_RULES[ratio](),
            independent_fisher=True,
            solver=Cholesky(),
            project=Box(-self.bound, self.bound),
        )


def local_problem(name: Name) -> Local:
    """LQC as in section 5.5 with B = 5 and ε = 0.01, or the corridor with B = 10 and ε = 0.03."""
    check_name("problem", name, NAMES)
    if name == "LQC":
        return _lqc(batch=5, damping=0.01)
    return _corridor(batch=10, damping=0.03)


def _lqc(batch: int, damping: float) -> Local:
    moments = lqc.moments(batch, window=1, damping=damping)
    matrix = lambda number: np.array([[number]])
    return Local(
        name="LQC",
        env=LQC(),
        optimum=ShiftPolicy(jnp.zeros(())),
        start=ShiftPolicy(jnp.ones(())),
        batch=batch,
        damping=damping,
        bound=5.0,
        drift=matrix(moments.drift),
        averaged=matrix(moments.sigma_1 / batch),
        white=matrix(moments.sigma_2 / batch),
        # G depends on s + a alone, whose law under ω̂ is that of the current policy.
        delay=matrix(0.0),
    )


def _corridor(batch: int, damping: float) -> Local:
    env = switched_corridor()
    start = corridor_policy()
    best = covariance.optimum(env, start)
    moments = covariance.moments(env, best, batch, damping)
    return Local(
        name="corridor",
        env=env,
        optimum=best,
        start=start,
        batch=batch,
        damping=damping,
        # The first steps of a decaying schedule are large; further out, where policies are almost
        # deterministic, gradients are too small to bring them back in time.
        bound=2.5,
        drift=moments.drift,
        averaged=moments.sigma_1 / batch,
        white=moments.sigma_2 / batch,
        delay=moments.inverse_fisher @ state_drift(env, best),
    )


def state_drift(env: Tabular, policy: AbstractPolicy) -> Matrix:
    """∂/∂θ′ of E[G(ξ, θ)] with s ~ d^{π_θ′} and a ~ π_θ, at θ′ = θ.

    It is what of ∇²η comes from where the states are, the rest being the derivative by θ. Samples
    weighed by ω̂ have actions as of the current policy and states as of an old one.
    """
    with jax.enable_x64(True):
        double = lambda x: jnp.asarray(x, jnp.float64) if eqx.is_inexact_array(x) else x
        exact = jax.tree.map(double, env)
        θ, unflatten = flatten(jax.tree.map(double, policy))
        mixed = lambda old: mixed_gradient(exact, unflatten, θ, old)
        return np.asarray(jax.jacobian(mixed)(θ))


def mixed_gradient(
    env: Tabular,
    unflatten: Callable,
    now: Float[Array, " d"],
    old: Float[Array, " d"],
) -> Float[Array, " d"]:
    """1/(1 − γ) Σ d^{π_old}(s) A(s, a) ∇π_now(a|s), with A of π_now; ∇η where old = now."""
    slopes = jax.jacobian(lambda θ: env.probabilities(unflatten(θ)))(now)
    weights = env.occupancy(unflatten(old))[:, None] * env.advantages(unflatten(now))
    return jnp.einsum("sa,sad->d", weights, slopes) / (1 - env.discount)


@dataclasses.dataclass(frozen=True)
class Task:
    """Runs of one problem with one window and one ratio."""

    problem: Local
    window: int
    ratio: Ratio
    step_decay: float
    rates: Float[np.ndarray, " replication"]
    """The learning rate of each run."""
    checkpoints: Int[np.ndarray, " checkpoint"]
    """After how many iterations θ is written down."""
    seeds: tuple[int, ...]

    @property
    def updates(self) -> int:
        """Of all runs together."""
        return len(self.rates) * int(self.checkpoints[-1])

    @property
    def work(self) -> int:
        """Rough time: 0.2 µs an update, 0.05 µs a batch in its window; tenfold in the corridor."""
        return self.updates * (4 + self.window) * (10 if self.problem.name == "corridor" else 1)


class Paths(NamedTuple):
    """What came of a task."""

    errors: Float[np.ndarray, "checkpoint replication d"]
    """θ_n − θ̄."""
    refused: int
    """Updates of all runs that were refused because a number in them was not finite."""
    seconds: float


def run_all(tasks: Sequence[Task]) -> list[Paths]:
    """The paths of every task; many updates go to processes, each held to one core.

    They are kept where `tasks_kept` says.
    """
    apart = sum(task.updates for task in tasks) >= WORTH_A_PROCESS
    found = map_kept(_run, tasks, apart, work=lambda task: task.work)
    return [Paths(one["errors"], int(one["refused"]), float(one["seconds"])) for one in found]


def _run(task: Task) -> dict[str, Any]:
    """The fields of `Paths`."""
    began = time.perf_counter()
    problem = task.problem
    key = functools.reduce(numbered, task.seeds[1:], fusing_key(task.seeds[0]))
    algorithm = problem.algorithm(task.window, task.ratio, task.step_decay)
    pair = traced_numbers((algorithm, problem.env))
    settings = (problem.batch, problem.start, task.rates, task.checkpoints)
    in_pairs = bool(task.checkpoints[-1] >= WORTH_PAIRS)
    paths, refused = simulate(pair, *settings, key, in_pairs)
    seconds = time.perf_counter() - began
    return dict(errors=paths.astype(float) - problem.origin, refused=refused.sum(), seconds=seconds)
