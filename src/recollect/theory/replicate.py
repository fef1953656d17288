"""Many independent runs of RNPG on a small problem, as one vector in one compiled loop.

It is the library's own algorithm, from the collector to the projection. What makes half a million
iterations cheap is that nothing leaves the loop, that the replications lie side by side in every
operation, and that of the history only what the estimators read survives compilation.
"""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Float, Int, PRNGKeyArray

from recollect.algorithms import NPG
from recollect.algorithms.base import bind
from recollect.checks import check_count, check_number
from recollect.collect.compiled import Occupancy
from recollect.collect.rollout import Rollout
from recollect.envs import AbstractOracle
from recollect.envs.lqc import LQC
from recollect.estimate.advantages import ExactAdvantages
from recollect.keys import numbered, numbered_each, stream
from recollect.machines import map_kept, tasks_at_once, worth_sending
from recollect.memory.weights import WEIGHT_RULES, Ratio
from recollect.policies import AbstractPolicy, ShiftPolicy
from recollect.prng import fusing_key
from recollect.run.section5 import algorithm_1
from recollect.runtime import jit
from recollect.step.project import Box
from recollect.step.solve import Cholesky
from recollect.theory.lqc import moments
from recollect.tree import flatten, traced_numbers

WORTH_A_PROCESS = 20_000
"""Iterations from which on starting processes takes less time than it saves."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One setting of RNPG on LQC."""

    batch: int
    """B: samples in an iteration."""
    window: int
    """K: iterations reused in the gradient."""
    damping: float = 0.01
    """ε."""
    discount: float = 0.5
    """γ."""
    step_decay: float = 0.9
    """β: the step size in iteration n is n^−β."""
    start: float = 2.0
    """θ₀."""
    bound: float = 5.0
    """Θ = [−bound, bound]; the theorems ask for a compact set with the optimum inside."""
    fisher_window: int = 1
    """K₂: iterations reused in the Fisher matrix; the theorems are about 1."""
    independent_fisher: bool = True
    """A batch of its own for the Fisher matrix (assumption A.1.7)."""
    ratio: Ratio = "policy"
    """Importance weights: the paper's ω̂ (`policy`) or its ω (`occupancy`)."""

    def __post_init__(self):
        # Raises on numbers for which the variance does not exist.
        moments(self.batch, self.window, self.damping, self.discount, self.fisher_window)
        remedy = "give an exponent above 1/2 and at most 1 (A.2.5)"
        check_number("step_decay", self.step_decay, low=0.5, high=1, open_low=True, remedy=remedy)
        remedy = "give the largest |θ| allowed"
        check_number("bound", self.bound, low=0, open_low=True, remedy=remedy)
        remedy = f"start inside [-{self.bound}, {self.bound}]"
        check_number("start", self.start, low=-self.bound, high=self.bound, remedy=remedy)

    @property
    def asymptotic_variance(self) -> float:
        """Σ∞; beyond a Fisher window of 1 what the natural conjecture says it is."""
        return moments(
            self.batch, self.window, self.damping, self.discount, self.fisher_window
        ).asymptotic_variance

    def inflation(self, iteration: int) -> float:
        """By what the variance of E_n exceeds Σ∞ while n is finite: 1/(1 − β n^(β−1)/(2|𝒢|)).

        E_n = θ_n/√α_n grows as α_n falls, at a rate of β/(2n) beside the drift 𝒢α_n. The share of
        both falls as slowly as n^(β−1): with β = 0.9 it is 2 % at n = 500,000. With β = 1 it stays,
        and is the ½ that the theorem then adds to 𝒢.
        """
        drift = moments(
            self.batch, self.window, self.damping, self.discount, self.fisher_window
        ).drift
        return 1 / (1 + self.step_decay * iteration ** (self.step_decay - 1) / (2 * drift))

    @property
    def work(self) -> int:
        """Samples that an iteration looks at."""
        return self.batch * (self.window + self.fisher_window)

    def algorithm(self) -> NPG:
        """RNPG as section 5.5 has it: exact advantages, a scalar Fisher matrix, a box for Θ."""
        return algorithm_1(
            window=self.window,
            fisher_window=self.fisher_window,
            damping=self.damping,
            discount=self.discount,
            learning_rate=1.0,
            step_decay=self.step_decay,
            objective_scale=True,
            advantages=ExactAdvantages(),
            weights=WEIGHT_RULES[self.ratio](),
            independent_fisher=self.independent_fisher,
            solver=Cholesky(),
            project=Box(-self.bound, self.bound),
        )


@dataclasses.dataclass(frozen=True)
class Replications:
    """Where the runs of a case were at some iterations."""

    case: Case
    iterations: np.ndarray
    """n at each checkpoint; the last is the end."""
    shifts: np.ndarray
    """θ_n, with axes checkpoint, replication."""
    refused: np.ndarray
    """How many updates of each replication were refused because a number in them was not finite."""
    seconds: float
    """Wall time, compilation included."""

    def errors(self, checkpoint: int = -1) -> np.ndarray:
        """E_n = θ_n / √α_n, as θ̄ = 0."""
        root = self.iterations[checkpoint] ** (-self.case.step_decay / 2)
        return self.shifts[checkpoint].astype(np.float64) / root

    def settled(self, checkpoint: int = -1) -> np.ndarray:
        """E_n without the inflation of a finite n: its variance is to be Σ∞."""
        inflation = self.case.inflation(int(self.iterations[checkpoint]))
        return self.errors(checkpoint) / np.sqrt(inflation)


def check_sizes(replications: int, iterations: int) -> None:
    """Raise on runs too few to tell a distribution."""
    check_count("replications", replications)
    check_count("iterations", iterations)
    remedy = "give at least 8, as fewer cannot tell a distribution"
    check_number("replications", replications, low=8, remedy=remedy)


def replicate(
    cases: Sequence[Case], replications: int, iterations: int, checkpoints: int = 1, seed: int = 0
) -> list[Replications]:
    """Every case with all its replications.

    Long runs go to processes of their own, each held to one core, here or where `tasks_on` says,
    and are kept where `tasks_kept` says.
    Operations on a few hundred numbers are too small to be shared between cores, and XLA shares
    them with all cores that it sees. Where there are more cores than cases the replications of a
    case are divided, and every part draws from a key of its own.

    Args:
        cases: the settings.
        replications: independent runs of each.
        iterations: of each run.
        checkpoints: how often θ is written down, at even distances; the last is the end.
        seed: of all cases; each draws from a key of its own.
    """
    counts = dict(replications=replications, iterations=iterations, checkpoints=checkpoints)
    for field, value in counts.items():
        check_count(field, value)
    last = np.arange(1, checkpoints + 1) * iterations // checkpoints
    if iterations < WORTH_A_PROCESS:
        whole = [(case, replications, last, (seed, i)) for i, case in enumerate(cases)]
        found = map_kept(_run, whole, apart=False)
        return [_joined(case, last, [arrays]) for case, arrays in zip(cases, found, strict=True)]
    parts = max(1, tasks_at_once() // len(cases))
    sizes = [len(part) for part in np.array_split(np.arange(replications), parts) if len(part)]
    tasks = [
        (case, size, last, (seed, i, j))
        for i, case in enumerate(cases)
        for j, size in enumerate(sizes)
    ]
    work = lambda task: task[0].work * task[1]
    done = map_kept(_run, tasks, apart=worth_sending(), work=work)
    places = np.arange(len(tasks)).reshape(len(cases), len(sizes)).tolist()
    return [
        _joined(case, last, [done[k] for k in of_case])
        for case, of_case in zip(cases, places, strict=True)
    ]


def _joined(
    case: Case, last: np.ndarray, parts: Sequence[Mapping[str, np.ndarray]]
) -> Replications:
    """What the parts of a case gave as one."""
    return Replications(
        case=case,
        iterations=last,
        shifts=np.concatenate([part["shifts"] for part in parts], axis=1),
        refused=np.concatenate([part["refused"] for part in parts]),
        seconds=max(float(part["seconds"]) for part in parts),
    )


def _run(task: tuple[Case, int, np.ndarray, Sequence[int]]) -> dict[str, Any]:
    """Some replications of a case: θ_n, refused updates, and the time."""
    case, replications, last, seeds = task
    began = time.perf_counter()
    problem = traced_numbers((case.algorithm(), LQC(discount=case.discount)))
    key = functools.reduce(numbered, seeds[1:], fusing_key(seeds[0]))
    start = ShiftPolicy(jnp.array(case.start))
    paths, refused = simulate(problem, case.batch, start, np.ones(replications), last, key)
    seconds = time.perf_counter() - began
    return dict(shifts=paths[..., 0], refused=refused, seconds=seconds)


def simulate(
    problem: tuple[NPG, AbstractOracle],
    batch: int,
    start: AbstractPolicy,
    rates: Float[np.ndarray, " replication"],
    checkpoints: Int[np.ndarray, " checkpoint"],
    key: PRNGKeyArray,
    in_pairs: bool = True,
) -> tuple[Float[np.ndarray, "checkpoint replication d"], Int[np.ndarray, " replication"]]:
    """θ of many runs side by side, each with a learning rate of its own.

    Args:
        problem: the algorithm, with a batch of its own for the Fisher matrix or without, and the
            environment.
        batch: B, independent draws from the occupancy measure in an iteration.
        start: θ₀ of every run.
        rates: the learning rate of each run, which takes the place of the algorithm's.
        checkpoints: after how many iterations θ is written down, in increasing order; the last is
            the end.
        key: of all draws.
        in_pairs: two iterations at a time, which saves a copy of the history but takes twice as
            long to compile: worth it in long runs.

    Returns:
        θ at the checkpoints, and how many updates of each run were refused.
    """
    keys = numbered_each(key, len(rates))
    numbers = (
        jnp.array(checkpoints[-1]),
        jnp.array(checkpoints),
        jnp.asarray(rates, jnp.result_type(float)),
    )
    paths, refused = _loop(problem, Occupancy(batch), start, *numbers, keys, in_pairs)
    return np.asarray(paths), np.asarray(refused)


def _side_by_side(tree):
    """The same arrays with the replications next to each other in memory.

    The axes of one small problem are too short for vector units.
    """
    return jax.tree.map(lambda x: with_layout_constraint(x, Layout((*range(1, x.ndim), 0))), tree)


def _loop(problem, collector, policy, iterations, last, rates, keys, in_pairs):
    """`simulate` as one compiled program."""
    algorithm, env = problem
    algorithm = bind(algorithm, env)
    replications = len(keys)
    draw = lambda key, policy: collector(key, env, policy, None, algorithm.discount)[1].batch
    first, rest = eqx.partition(
        algorithm.init(policy, draw(keys[0], policy), keys[0]), eqx.is_array
    )
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (replications, *x.shape)), first)

    def collect(key, arrays):
        policy = eqx.combine(arrays, rest).policy
        fisher_batch = None
        if algorithm.independent_fisher:
            fisher_batch = draw(stream(key, "fisher batch"), policy)
        return draw(stream(key, "batch"), policy), fisher_batch

    def step(key, arrays, rate, batch, fisher_batch):
        own = eqx.tree_at(lambda one: one.learning_rate, algorithm, rate)
        rollout = Rollout.of(batch, fisher_batch)
        state, info = own.update(eqx.combine(arrays, rest), rollout, key)
        return eqx.filter(state, eqx.is_array), info.refused > 0

    def body(n, carry):
        states, refused, paths = carry
        now = jax.vmap(numbered, (0, None))(keys, n)
        batches = _side_by_side(jax.vmap(collect)(now, states))
        states, failed = jax.vmap(step)(now, _side_by_side(states), rates, *batches)
        parameters = jax.vmap(lambda policy: flatten(policy)[0])(states.policy)
        # Each checkpoint is overwritten until its iteration has passed.
        return states, refused + failed, paths.at[jnp.searchsorted(last, n + 1)].set(parameters)

    paths = jnp.zeros((len(last), replications, flatten(policy)[0].size))
    carry = (states, jnp.zeros(replications, jnp.int32), paths)
    if not in_pairs:
        _, refused, paths = lax.fori_loop(0, iterations, body, carry)
        return paths, refused
    # Two iterations at a time: the history moves from one buffer to another and back, which saves
    # a copy.
    both = lambda i, carry: body(2 * i + 1, body(2 * i, carry))
    carry = lax.fori_loop(0, iterations // 2, both, carry)
    odd = iterations % 2 == 1
    _, refused, paths = lax.cond(odd, lambda: body(iterations - 1, carry), lambda: carry)
    return paths, refused


# Arrays of this size are too small to call a library for their sums, or to share between threads;
# each core has a case of its own.
_loop = jit(
    _loop,
    on_cpu={"xla_cpu_experimental_ynn_fusion_type": "", "xla_cpu_multi_thread_eigen": False},
)
