"""Training many seeds at once.

An iteration collects for all seeds at once (one wide vector of environments) and then updates them
one after another: the arrays of one seed's update stay in cache, those of all seeds together would
not. On CPUs each core runs the program on its own share of the seeds, which beats sharing every
small operation between cores. The program runs in chunks of iterations, so that progress can be
shown and runs can stop early.

Environments on the host are stepped outside the program, the copies of all seeds as one vector; a chunk is then one iteration.
"""

import dataclasses
import operator
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from recollect.algorithms import REFUSALS, AbstractAlgorithm, State
from recollect.algorithms.base import SIGNAL
from recollect.batch import Batch
from recollect.checks import check_count, check_number
from recollect.collect.compiled import Episodes
from recollect.collect.host import HostCollector
from recollect.collect.rollout import AbstractCollector, Collected, with_log_probs
from recollect.envs import AbstractEnv, AbstractOracle, HostEnv, host, make
from recollect.policies import AbstractPolicy
from recollect.policies.architecture import Start, make_policy
from recollect.run.fit import check_draws, check_fit
from recollect.runtime import cores, jit, one_blas_thread, progress_bar, use_compilation_cache
from recollect.tree import traced_floats

CHUNK_ITERATIONS = 10
RECENT_EPISODES = 20
"""A target return counts as reached when the mean over this many latest episodes reaches it."""


@dataclasses.dataclass(frozen=True)
class Training:
    """What training gives back. Arrays in `curves` have the axes seed, iteration and are NaN after a seed has stopped."""

    policies: AbstractPolicy
    """The learned policies, stacked along a leading seed axis."""
    seeds: tuple[int, ...]
    curves: dict[str, np.ndarray]
    """`return_mean` of the batch that each update used, `recent_return` (mean over the latest 20 episodes), cumulative
    `environment_steps`, and every field of `Info`."""
    clock: np.ndarray
    """Seconds since the start, without compilation, at each iteration (even within a chunk)."""
    compile_seconds: float

    def policy(self, index: int = 0) -> AbstractPolicy:
        """The policy of the seed at `index`."""
        return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, self.policies)


class Carry(eqx.Module):
    """One seed between iterations."""

    state: State
    collecting: Any
    fisher_collecting: Any
    environment_steps: Int[Array, ""]
    recent: Float[Array, " recent"]
    """Returns of the latest episodes, −∞ before there are enough."""
    active: Bool[Array, ""]


class Limits(eqx.Module):
    """When a seed stops; infinite where nothing is asked."""

    environment_steps: float
    target_return: float


def train(
    env: Any,
    algorithm: AbstractAlgorithm,
    *,
    collector: AbstractCollector = Episodes(4),
    policy: Start = None,
    seeds: int | Sequence[int] = 1,
    iterations: int | None = None,
    environment_steps: int | None = None,
    target_return: float | None = None,
    progress: bool | None = None,
    label: str = "training",
) -> Training:
    """Train `algorithm` on `env`, all seeds at once, each until it meets one of the limits given.

    An environment that fails raises `EnvironmentFailure`, and an interrupt `KeyboardInterrupt`. These and all other exceptions
    carry what had been learned until then as `training`, if at least one iteration was finished.

    Args:
        env: an environment of `make` or `host`, a name, a function that makes a Gymnasium environment, or a vector of them.
        algorithm: for example `RNPG(window=10)`.
        collector: what a batch is: `Episodes`, `Steps` or `Draws`.
        policy: where to start, an `Architecture`, or a function that makes the policy from a key; a fitting default if not given.
        seeds: how many seeds (0, 1, 2, …), or which.
        iterations, environment_steps: limits, at least one of them.
        target_return: stop once the mean over the latest 20 episodes is at least this.
        progress: show a progress bar; if not given, when standard error is a terminal.
        label: what the progress bar is called.

    Returns:
        The learned policies and the learning curves of every seed.
    """
    env = (
        make(env)
        if isinstance(env, str)
        else env
        if isinstance(env, AbstractEnv | HostEnv)
        else host(env)
    )
    seeds = _seeds(seeds)
    limits = _limits(iterations, environment_steps, target_return)
    check_fit(env, algorithm, policy)
    check_draws(algorithm, collector)
    use_compilation_cache()
    shares = _shares(seeds)
    run = _HostRun if isinstance(env, HostEnv) else _CompiledRun
    with (
        one_blas_thread(),
        progress_bar(sys.stderr.isatty() if progress is None else progress, label) as show,
        ThreadPoolExecutor(len(shares)) as cores,
    ):
        began = time.perf_counter()
        running = run(env, algorithm, collector, limits, policy, seeds, shares, cores)
        compile_seconds = time.perf_counter() - began
        try:
            chunks, clock, stopped = _run_to_limits(running, iterations, environment_steps, show)
        finally:
            running.close()
    hopeless = stopped is None and _hopeless(chunks)
    training = (
        _training(running, chunks, clock, seeds, compile_seconds, hopeless) if chunks else None
    )
    if stopped is not None:
        stopped.training = training  # pyright: ignore[reportAttributeAccessIssue]
        raise stopped
    assert training is not None
    return training


def _training(
    running,
    chunks: list[dict[str, np.ndarray]],
    clock: np.ndarray,
    seeds: tuple[int, ...],
    compile_seconds: float,
    hopeless: bool,
) -> Training:
    curves = {
        name: np.concatenate([chunk[name] for chunk in chunks], axis=1)[: len(seeds)]
        for name in chunks[0]
    }
    steps = curves.pop("steps")
    curves["environment_steps"] = np.where(
        np.isnan(steps), np.nan, np.nancumsum(steps, axis=1, dtype=np.float64)
    )
    _warn_of_refusals(curves["refused"], seeds, hopeless)
    _warn_of_returns(curves["return_mean"], seeds)
    running.warn()
    return Training(_policies(running.carries, len(seeds)), seeds, curves, clock, compile_seconds)


def _policies(carries: Sequence[Carry], seeds: int) -> AbstractPolicy:
    """The policies of all seeds, stacked, without those that fill up the last share."""
    join = lambda *parts: jnp.concatenate(parts)[:seeds] if eqx.is_array(parts[0]) else parts[0]
    return jax.tree.map(join, *[carry.state.policy for carry in carries])


def _run_to_limits(
    running, iterations, environment_steps, show
) -> tuple[list[dict[str, np.ndarray]], np.ndarray, BaseException | None]:
    """Chunk after chunk until all seeds have stopped, nothing is learned any more, or something stops the run.

    Whatever that is, what was learned before it is kept.
    """
    chunks, times, ends, done, stopped, began = [], [0.0], [0], 0, None, time.perf_counter()
    while done < (iterations or np.inf) and any(carry.active.any() for carry in running.carries):
        count = running.chunk if iterations is None else min(running.chunk, iterations - done)
        try:
            rows = running.advance(done, count)
        except BaseException as stop:
            stopped = stop
            break
        chunk = {name: np.concatenate([row[name] for row in rows])[:, :count] for name in rows[0]}
        chunks.append(chunk)
        done += count
        times.append(time.perf_counter() - began)
        ends.append(done)
        furthest = max(int(carry.environment_steps.max()) for carry in running.carries)
        returns = chunk["return_mean"][np.isfinite(chunk["return_mean"])]
        fraction = max(done / (iterations or np.inf), furthest / (environment_steps or np.inf))
        show(fraction, f"return {returns.mean():.1f}" if returns.size else "")
        if _hopeless(chunks):
            break
    return chunks, np.interp(np.arange(1, done + 1), ends, times), stopped


def _hopeless(chunks: list[dict[str, np.ndarray]]) -> bool:
    """Whether every update of the latest iterations failed. One that found no signal did not: a later batch may hold some."""
    latest = [chunk["refused"] for chunk in chunks[-CHUNK_ITERATIONS:]]
    if sum(refused.shape[1] for refused in latest) < CHUNK_ITERATIONS:
        return False
    refused = np.concatenate(latest, axis=1)[:, -CHUNK_ITERATIONS:]
    refused = refused[np.isfinite(refused)]
    return bool(((refused > 0) & (refused != SIGNAL)).all())


class _CompiledRun:
    """Collecting and updating in one program, a chunk of iterations at a time."""

    chunk = CHUNK_ITERATIONS

    def __init__(self, env, algorithm, collector, limits, policy, seeds, shares, cores):
        self.problem, self.shares, self.cores = (
            traced_floats((algorithm, env, collector, limits)),
            shares,
            cores,
        )
        self.carries = [_start(self.problem, policy, keys) for keys in shares]
        self._advance(shares[0], self.carries[0], 0, 0)  # compiles, and does nothing else

    def advance(self, first: int, count: int) -> list[dict[str, np.ndarray]]:
        done = self.cores.map(
            lambda keys, carry: self._advance(keys, carry, first, count), self.shares, self.carries
        )
        self.carries, rows = zip(*done, strict=True)
        return [{name: np.asarray(values) for name, values in row.items()} for row in rows]

    def _advance(self, keys, carry, first, count):
        return jax.block_until_ready(
            _advance(self.problem, keys, carry, jnp.array(first), jnp.array(count))
        )

    def warn(self) -> None: ...

    def close(self) -> None: ...


class _HostRun:
    """Collecting on the host, then one compiled update of every seed."""

    chunk = 1

    def __init__(self, env, algorithm, collector, limits, policy, seeds, shares, cores):
        self.env, self.shares, self.cores, self.carries = env, shares, cores, []
        self.problem, self.keys = traced_floats((algorithm, limits)), jnp.concatenate(shares)
        streams = (0, 1) if getattr(algorithm, "independent_fisher", False) else (0,)
        if env.vector is not None and len(streams) > 1:
            raise ValueError(
                f"independent_fisher=True needs copies of its own, but {env.name} is one vector that exists already; give a "
                "function that makes one copy, or leave independent_fisher out."
            )
        self.collectors = []
        try:
            for stream in streams:
                self.collectors.append(HostCollector(env, collector, seeds, stream))
            shown = self.collectors[0].empty()
            self.carries = [self._start(algorithm, policy, shown, keys) for keys in shares]
            collected = [
                jax.tree.map(lambda x: jnp.broadcast_to(x, (len(self.keys), *x.shape)), shown)
            ] * len(streams)
            self._learn(
                shares[0], self.carries[0], self._share(collected, 0), 0
            )  # compiles; what it gives is not used
            self.collectors[0].warm_up(_policies(self.carries, len(seeds)), self.keys)
        except BaseException:
            self.close()
            raise

    def _start(self, algorithm, policy, shown: Collected, keys: Key[Array, " seed"]) -> Carry:
        key_policies = [_starting_keys(key)[0] for key in keys]
        policies = [make_policy(key, self.env, policy) for key in key_policies]
        stacked = jax.tree.map(
            lambda *parts: jnp.stack(parts) if eqx.is_array(parts[0]) else parts[0], *policies
        )
        return _start_host(algorithm, stacked, shown, jnp.stack(key_policies))

    def advance(self, first: int, count: int) -> list[dict[str, np.ndarray]]:
        del count
        policies = _policies(self.carries, len(self.collectors[0].seeds))
        keys = [
            _iteration_keys(self.keys, jnp.array(first), stream)
            for stream in range(len(self.collectors))
        ]
        collected = [
            collector(policies, key, first)
            for collector, key in zip(self.collectors, keys, strict=True)
        ]
        shares = [self._share(collected, i) for i in range(len(self.shares))]
        done = self.cores.map(
            lambda keys, carry, share: self._learn(keys, carry, share, first),
            self.shares,
            self.carries,
            shares,
        )
        self.carries, rows = zip(*done, strict=True)
        return [{name: np.asarray(values)[:, None] for name, values in row.items()} for row in rows]

    def _learn(self, keys, carry, collected, index):
        return jax.block_until_ready(
            _learn_host(self.problem, keys, carry, collected, jnp.array(index))
        )

    def _share(self, collected, index):
        size = len(self.shares[0])
        return jax.tree.map(lambda x: x[index * size : (index + 1) * size], collected)

    def warn(self) -> None:
        dropped = sum(collector.dropped for collector in self.collectors)
        if dropped:
            warnings.warn(
                f"{dropped} episodes of {self.env.name} were left out because the simulated world had diverged and MuJoCo had put it "
                "back to its start without saying so; a smaller time step of the model or smaller actions may prevent it.",
                stacklevel=4,
            )

    def close(self) -> None:
        for collector in self.collectors:
            collector.close()


def _start_seeds(problem, policy, keys: Key[Array, " seed"]) -> Carry:
    algorithm, env, collector, _ = problem

    def one(key):
        key_policy, key_collect, key_fisher = _starting_keys(key)
        start = make_policy(key_policy, env, policy)
        collecting, fisher_collecting = (
            collector.init(key_collect, env),
            collector.init(key_fisher, env),
        )
        collected = jax.eval_shape(
            lambda: collector(key_collect, env, start, collecting, algorithm.discount)[1]
        )
        batch = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), collected.batch)
        return _fresh(algorithm, start, batch, key_policy, collecting, fisher_collecting)

    return eqx.filter_vmap(one)(keys)


def _start_seeds_host(
    algorithm, policies: AbstractPolicy, shown: Collected, keys: Key[Array, " seed"]
) -> Carry:
    fresh = lambda policy, key: _fresh(algorithm, policy, shown.batch, key)
    return eqx.filter_vmap(fresh, in_axes=(eqx.if_array(0), 0))(policies, keys)


def _starting_keys(key: PRNGKeyArray) -> Key[Array, "3"]:
    """For the first policy of a seed, its environments, and those of the independent batch of the Fisher matrix."""
    return jax.random.split(jax.random.fold_in(key, 0), 3)


def _fresh(
    algorithm,
    start: AbstractPolicy,
    batch: Batch,
    key_policy,
    collecting=None,
    fisher_collecting=None,
) -> Carry:
    """A seed before its first iteration."""
    return Carry(
        state=algorithm.init(start, batch, jax.random.fold_in(key_policy, 0)),
        collecting=collecting,
        fisher_collecting=fisher_collecting,
        environment_steps=jnp.zeros((), jnp.int32),
        recent=jnp.full(RECENT_EPISODES, -jnp.inf),
        active=jnp.array(True),
    )


def _run(
    problem,
    keys: Key[Array, " seed"],
    carry: Carry,
    first: Int[Array, ""] | int,
    count: Int[Array, ""] | int,
):
    """`count` iterations from iteration `first` on: the carry after them, and one column of curves for each."""
    algorithm, env, collector, limits = problem
    iterate = lambda carry, index: _iteration(algorithm, env, collector, limits, keys, carry, index)
    arrays, rest = eqx.partition(carry, eqx.is_array)

    def body(index, loop):
        arrays, curves = loop
        carry, column = iterate(eqx.combine(arrays, rest), first + index)
        curves = jax.tree.map(lambda curve, new: curve.at[:, index].set(new), curves, column)
        return eqx.filter(carry, eqx.is_array), curves

    shapes = jax.eval_shape(lambda: iterate(carry, jnp.array(0))[1])
    curves = jax.tree.map(
        lambda x: jnp.zeros((x.shape[0], CHUNK_ITERATIONS, *x.shape[1:]), x.dtype), shapes
    )
    arrays, curves = lax.fori_loop(0, count, body, (arrays, curves))
    return eqx.combine(arrays, rest), curves


_start = jit(_start_seeds)
_advance = jit(_run)
_start_host = jit(_start_seeds_host)


def _iteration(
    algorithm, env, collector, limits, keys, carry: Carry, index: Int[Array, ""]
) -> tuple[Carry, dict[str, Array]]:
    """Collect with all seeds side by side, then update them one by one."""

    def collect(key, carry):
        key_collect, key_fisher = _collecting_keys(key, index)
        collecting, collected = collector(
            key_collect, env, carry.state.policy, carry.collecting, algorithm.discount
        )
        fisher_collecting, fisher = carry.fisher_collecting, None
        if getattr(algorithm, "independent_fisher", False):
            fisher_collecting, fisher = collector(
                key_fisher, env, carry.state.policy, carry.fisher_collecting, algorithm.discount
            )
        carry = dataclasses.replace(
            carry, collecting=collecting, fisher_collecting=fisher_collecting
        )
        return eqx.filter(carry, eqx.is_array), collected, fisher

    carry_arrays, rest = eqx.partition(carry, eqx.is_array)
    moved, collected, fisher = jax.vmap(
        lambda key, arrays: collect(key, eqx.combine(arrays, rest))
    )(keys, carry_arrays)
    oracle = env if isinstance(env, AbstractOracle) else None
    return _learn(algorithm, oracle, limits, keys, carry, moved, collected, fisher, index)


def _collecting_keys(key: PRNGKeyArray, index: Int[Array, ""] | int) -> Key[Array, "2"]:
    """For the batch of iteration `index`, and for the independent batch of the Fisher matrix."""
    return jax.random.split(jax.random.fold_in(key, index + 1))


def _learn(
    algorithm,
    oracle,
    limits,
    keys,
    carry: Carry,
    moved,
    collected: Collected,
    fisher: Collected | None,
    index: Int[Array, ""],
):
    """Update the seeds one by one; `moved` are the arrays of `carry` after collecting."""
    carry_arrays, rest = eqx.partition(carry, eqx.is_array)

    def update(arguments):
        key, before, moved, collected, fisher = arguments
        key_update = jax.random.fold_in(jax.random.fold_in(key, index + 1), 1)
        moved = eqx.combine(moved, rest)

        def go():
            state, info = algorithm.update(
                moved.state,
                collected.batch,
                key_update,
                oracle,
                None if fisher is None else fisher.batch,
            )
            steps = (
                collected.environment_steps
                if fisher is None
                else collected.environment_steps + fisher.environment_steps
            )
            total = moved.environment_steps + steps.astype(jnp.int32)
            recent = _latest(jnp.concatenate([moved.recent, collected.returns]))
            # A return that is not finite has reached nothing.
            reached = jnp.isfinite(recent.mean()) & (recent.mean() >= limits.target_return)
            active = (total < limits.environment_steps) & ~reached
            after = dataclasses.replace(
                moved, state=state, environment_steps=total, recent=recent, active=active
            )
            row = dict(
                return_mean=jnp.nanmean(collected.returns),
                recent_return=recent.mean(),
                steps=steps,
                **vars(info),
            )
            return eqx.filter(after, eqx.is_array), jax.tree.map(
                lambda x: x.astype(jnp.float32), row
            )

        def stay():
            shapes = jax.eval_shape(go)[1]
            return eqx.filter(before, eqx.is_array), jax.tree.map(
                lambda x: jnp.full(x.shape, jnp.nan, x.dtype), shapes
            )

        return lax.cond(before.active, go, stay)

    arrays, rows = lax.map(update, (keys, carry_arrays, moved, collected, fisher))
    return eqx.combine(arrays, rest), rows


@eqx.filter_jit
def _iteration_keys(
    keys: Key[Array, " seed"], index: Int[Array, ""], stream: int
) -> Key[Array, " seed"]:
    return jax.vmap(lambda key: _collecting_keys(key, index)[stream])(keys)


def _learn_from_host(
    problem,
    keys: Key[Array, " seed"],
    carry: Carry,
    collected: Sequence[Collected],
    index: Int[Array, ""],
):
    """One iteration of every seed from batches (and independent ones, if there are any) collected elsewhere."""
    algorithm, limits = problem
    policies = carry.state.policy
    filled = lambda policy, found: dataclasses.replace(
        found, batch=with_log_probs(policy, found.batch)
    )
    found = [
        eqx.filter_vmap(filled, in_axes=(eqx.if_array(0), 0))(policies, one) for one in collected
    ]
    arrays = eqx.filter(carry, eqx.is_array)
    return _learn(
        algorithm,
        None,
        limits,
        keys,
        carry,
        arrays,
        found[0],
        found[1] if len(found) > 1 else None,
        index,
    )


_learn_host = jit(_learn_from_host)


def _latest(returns: Float[Array, " ending"]) -> Float[Array, " recent"]:
    """The last of the returns that are there, in order."""
    return returns[jnp.argsort(jnp.where(jnp.isnan(returns), -1, jnp.arange(len(returns))))][
        -RECENT_EPISODES:
    ]


def _shares(seeds: tuple[int, ...]) -> list[Key[Array, " seed"]]:
    """The seeds' keys in equal shares, one for each core; the last seed is repeated to fill up, and dropped at the end."""
    count = min(cores() if jax.default_backend() == "cpu" else 1, len(seeds))
    padded = [*seeds, *[seeds[-1]] * (-len(seeds) % count)]
    return jnp.split(jnp.stack([jax.random.key(seed) for seed in padded]), count)


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds themselves; their number and they may be NumPy's."""
    remedy = "give how many seeds to run, or which"
    if isinstance(seeds, int | np.integer):
        check_count("seeds", seeds, remedy)
        return tuple(range(int(seeds)))
    try:
        chosen = tuple(operator.index(seed) for seed in seeds)
    except TypeError:
        raise ValueError(
            f"seeds={seeds!r} is neither a whole number nor several; {remedy}."
        ) from None
    if not chosen or min(chosen) < 0:
        raise ValueError(f"seeds={seeds!r} is empty or has a negative number; {remedy}.")
    return chosen


def _limits(iterations, environment_steps, target_return) -> Limits:
    if iterations is None and environment_steps is None:
        raise ValueError(
            "iterations=None and environment_steps=None leave training without an end; give at least one of them."
        )
    for field, value in dict(iterations=iterations, environment_steps=environment_steps).items():
        if value is not None:
            check_count(field, value)
    if target_return is not None:
        check_number("target_return", target_return, low=-np.inf, remedy="give a finite return")
    return Limits(
        float(environment_steps or np.inf),
        np.inf if target_return is None else float(target_return),
    )


def _warn_of_refusals(refused: np.ndarray, seeds: tuple[int, ...], hopeless: bool) -> None:
    places = np.argwhere(refused > 0)
    if not len(places):
        return
    seed, iteration = places[0]
    stopped = (
        " Training stopped, as every one of the latest updates was refused." if hopeless else ""
    )
    warnings.warn(
        f"{len(places)} of {np.isfinite(refused).sum()} updates were refused and left the policy as it was, the first for seed "
        f"{seeds[seed]} in iteration {iteration + 1}: {REFUSALS[int(refused[seed, iteration])]}.{stopped}",
        stacklevel=3,
    )


def _warn_of_returns(returns: np.ndarray, seeds: tuple[int, ...]) -> None:
    places = np.argwhere(np.isinf(returns))
    if len(places):
        seed, iteration = places[0]
        warnings.warn(
            f"{len(places)} batches have returns that are not finite, the first for seed {seeds[seed]} in iteration {iteration + 1}: "
            "rewards overflow single precision; scale them down.",
            stacklevel=3,
        )
