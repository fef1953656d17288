"""Training: `advance` until every seed has met a limit."""

import dataclasses
import operator
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from recollect.algorithms import ALGORITHMS, REFUSALS, AbstractAlgorithm
from recollect.algorithms.base import SIGNAL, bind
from recollect.checks import check_count, check_number
from recollect.collect.compiled import Episodes
from recollect.collect.elsewhere import check_env
from recollect.collect.rollout import AbstractCollector
from recollect.envs import AbstractEnv, AbstractOracle, HostEnv, host, make
from recollect.keys import seed_keys
from recollect.machines import AbstractMachines, Local
from recollect.policies import AbstractPolicy
from recollect.policies.architecture import Architecture, InitialPolicy, env_name
from recollect.run.compiled import CHUNK_ITERATIONS, CompiledRun
from recollect.run.fit import check_draws, check_fit
from recollect.run.hosted import HostRun
from recollect.run.kept import Kept, joined
from recollect.run.presets import default_collector, preset
from recollect.run.state import AbstractRun, CorePool, Curves, Limits, RunState, active
from recollect.runtime import one_blas_thread, progress_bar, use_compilation_cache
from recollect.settings import answering, check_type


@dataclasses.dataclass(frozen=True)
class Training:
    """What training gives back.

    Arrays in `curves` have the axes seed, iteration and are NaN after a seed has stopped.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> import recollect as rc
        >>> run = rc.Training(
        ...     policies=jax.vmap(rc.ShiftPolicy)(jnp.array([0.5, 0.25])),
        ...     seeds=(0, 1),
        ...     curves={"return_mean": np.array([[-9.0, -4.0], [-8.0, -3.0]])},
        ...     clock=np.array([0.1, 0.2]),
        ...     compile_seconds=1.0,
        ... )
        >>> float(run.policy(1).shift), run.curves["return_mean"][:, -1].tolist()
        (0.25, [-4.0, -3.0])
    """

    policies: AbstractPolicy
    """The learned policies, stacked along a leading seed axis."""
    seeds: tuple[int, ...]
    curves: Curves
    """`return_mean` and `length_mean` of the episodes that ended in the batch that each update
    used, `recent_return` (mean over the latest 20 episodes), cumulative `environment_steps`, and
    every figure of `Info`."""
    clock: np.ndarray
    """Seconds since the start, without compilation, at each iteration (even within a chunk)."""
    compile_seconds: float

    def policy(self, index: int = 0) -> AbstractPolicy:
        """The policy of the seed at `index`."""
        return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, self.policies)


@answering
def train(
    env: Any,
    algorithm: AbstractAlgorithm | str,
    *,
    collector: AbstractCollector | None = None,
    policy: InitialPolicy = None,
    seeds: int | Sequence[int] = 1,
    iterations: int | None = None,
    environment_steps: int | None = None,
    target_return: float | None = None,
    progress: bool | None = None,
    label: str = "training",
    checkpoint: str | Path | None = None,
    on: AbstractMachines | None = None,
) -> Training:
    """Train `algorithm` on `env`, all seeds at once, each until it meets one of the limits given.

    An environment that fails raises `EnvironmentFailure`, and an interrupt `KeyboardInterrupt`.
    These and all other exceptions carry what had been learned until then as `training`, if at least
    one iteration was finished.

    Args:
        env: an environment of `make` or `host`, a name, a function that makes a Gymnasium
            environment, or a vector of them.
        algorithm: for example `RNPG(window=10)`; or a name, `"rnpg"`, for the settings of the
            preset.
        collector: what a batch is: `Episodes`, `Steps` or `Draws`. If not given, the preset's with
            an algorithm by name, else whole episodes, or fixed steps where a critic bootstraps.
        policy: where to start, an `Architecture`, or a function that makes the policy from a key; a
            fitting default if not given.
        seeds: how many seeds (0, 1, 2, …), or which.
        iterations, environment_steps: limits, at least one of them.
        target_return: stop once the mean over the latest 20 episodes is at least this.
        progress: show a progress bar; if not given, when standard error is a terminal.
        label: what the progress bar is called.
        checkpoint: file to keep the run in. It is written every minute, and whenever and however
            the run ends. Where it exists already, the run goes on from there, bit for bit as if it
            had never stopped; limits may be others then, settings and seeds have to be the same.
        on: `Ray(actors=8)` to step environments on a cluster, `Local(actors=8)` in processes of
            this machine; in this process if not given. Without a lag, results are the same.

    Returns:
        The learned policies and the learning curves of every seed.

    Example:
        >>> import recollect as rc
        >>> env = rc.CartPole(max_steps=20)
        >>> run = rc.train(env, rc.RPG(window=2), collector=rc.Episodes(2), iterations=3)
        >>> run.curves["return_mean"].shape
        (1, 3)
    """
    named_env = env if isinstance(env, str) else ""
    if isinstance(env, str):
        env = make(env)
    elif not isinstance(env, AbstractEnv | HostEnv):
        env = host(env)
    if isinstance(algorithm, str):
        chosen = preset(algorithm, "paper" if isinstance(env, AbstractOracle) else named_env)
        algorithm = chosen.algorithm
        collector = chosen.collector if collector is None else collector
        policy = chosen.policy if policy is None else policy
    algorithm = check_algorithm(algorithm)
    if collector is None:
        collector = default_collector(algorithm)
    check_type("collector", collector, AbstractCollector, Episodes(4))
    check_type("policy", policy, InitialPolicy)
    seeds = _seeds(seeds)
    limits = _limits(iterations, environment_steps, target_return)
    check_fit(env, algorithm, policy)
    check_draws(algorithm, collector)
    check_type("on", on, AbstractMachines | None, Local(actors=4))
    if on is not None:
        check_env(env)
    kept = None
    if checkpoint is not None:
        described = policy if isinstance(policy, Architecture | None) else type(policy).__name__
        settings = dict(env=env_name(env), max_steps=env.max_steps, algorithm=algorithm)
        settings |= dict(collector=collector, policy=described, seeds=seeds)
        settings |= dict(lag=(on.lag if on is not None else 0) or None)
        kept = Kept(Path(checkpoint), settings)
    use_compilation_cache()
    if isinstance(env, AbstractOracle):
        algorithm = bind(algorithm, env)
    with (
        one_blas_thread(),
        progress_bar(sys.stderr.isatty() if progress is None else progress, label) as show,
        CorePool(len(seeds)) as pool,
    ):
        began = time.perf_counter()
        shared = (algorithm, collector, limits, policy)
        keys = seed_keys(seeds)
        if isinstance(env, HostEnv):
            run = HostRun(env, *shared, seeds, keys, pool, on)
        else:
            run = CompiledRun(env, *shared, keys, pool)
        try:
            recorded = _Recorded.begin(run, limits, kept)
            compile_seconds = time.perf_counter() - began
            recorded = _run_to_limits(run, recorded, iterations, environment_steps, show, kept)
        finally:
            run.close()
    training = _training(run, recorded, seeds, compile_seconds) if recorded.chunks else None
    if recorded.stopped is not None:
        recorded.stopped.training = training  # pyright: ignore[reportAttributeAccessIssue]
        raise recorded.stopped
    assert training is not None
    return training


def check_algorithm(algorithm: Any) -> AbstractAlgorithm:
    """The algorithm; raises if it is none."""
    if isinstance(algorithm, AbstractAlgorithm):
        return algorithm
    if algorithm in ALGORITHMS.values() or (
        isinstance(algorithm, type) and issubclass(algorithm, AbstractAlgorithm)
    ):
        name = algorithm.__name__
        raise ValueError(f"algorithm={name} is not yet made; call it, for example {name}().")
    raise ValueError(
        f"algorithm={algorithm!r} is no algorithm; give for example RNPG(window=10), or 'rnpg'."
    )


@dataclasses.dataclass(frozen=True)
class _Recorded:
    """A run until its end, or until something stopped it."""

    state: RunState
    chunks: list[Curves]
    clock: np.ndarray
    """Seconds at the end of every iteration."""
    stopped: BaseException | None = None
    """What stopped it, if it was not a limit."""

    @classmethod
    def begin(cls, run: AbstractRun, limits: Limits, kept: Kept | None) -> "_Recorded":
        """A run before its first iteration, or where it was when it was kept."""
        if kept is None or not kept.path.exists():
            return cls(state=run.start(), chunks=[], clock=np.zeros(0))
        state, curves, clock = kept.restore(run)
        seeds = state.seeds
        goes_on = jax.vmap(lambda *seed: active(limits, *seed))
        after = goes_on(seeds.environment_steps, seeds.recent)
        seeds = eqx.tree_at(lambda seeds: seeds.active, seeds, after)
        return cls(state=dataclasses.replace(state, seeds=seeds), chunks=[curves], clock=clock)


def _run_to_limits(
    run: AbstractRun,
    recorded: _Recorded,
    iterations: int | None,
    environment_steps: int | None,
    show,
    kept: Kept | None,
) -> _Recorded:
    """Chunk after chunk until all seeds have stopped, nothing is learned any more, or it breaks.

    Whatever that is, what was learned before it is kept.
    """
    state = recorded.state
    chunks = recorded.chunks
    times = [0.0, *recorded.clock]
    ends = list(range(state.iteration + 1))
    clock = lambda: np.interp(np.arange(1, state.iteration + 1), ends, times)
    stopped = None
    began = time.perf_counter() - times[-1]
    most = iterations or np.inf
    while state.iteration < most and np.asarray(state.seeds.active).any():
        try:
            first = state.iteration
            state, chunk = run.advance(state, int(min(run.chunk, most - first)))
        except BaseException as stop:
            stopped = stop
            break
        # After all seeds have met a limit, nothing happens in the rest of a chunk.
        lived = int(np.isfinite(chunk["steps"]).any(0).sum())
        chunk = {name: values[:, :lived] for name, values in chunk.items()}
        state = dataclasses.replace(state, iteration=first + lived)
        chunks.append(chunk)
        times.append(time.perf_counter() - began)
        ends.append(state.iteration)
        furthest = int(np.asarray(state.seeds.environment_steps).max())
        fraction = max(state.iteration / most, furthest / (environment_steps or np.inf))
        returns = chunk["return_mean"][np.isfinite(chunk["return_mean"])]
        show(fraction, f"return {returns.mean():.1f}" if returns.size else "")
        if _hopeless(chunks):
            break
        if kept is not None and kept.due:
            kept.write(state, chunks, clock())
    if kept is not None and chunks:
        kept.write(state, chunks, clock())
    return _Recorded(state=state, chunks=chunks, clock=clock(), stopped=stopped)


def _hopeless(chunks: Sequence[Curves]) -> bool:
    """Whether every update of the latest iterations failed.

    One that found no signal did not: a later batch may hold some.
    """
    latest = [chunk["refused"] for chunk in chunks[-CHUNK_ITERATIONS:]]
    if sum(refused.shape[1] for refused in latest) < CHUNK_ITERATIONS:
        return False
    refused = np.concatenate(latest, axis=1)[:, -CHUNK_ITERATIONS:]
    refused = refused[np.isfinite(refused)]
    return bool(((refused > 0) & (refused != SIGNAL)).all())


def _training(
    run: AbstractRun, recorded: _Recorded, seeds: tuple[int, ...], compile_seconds: float
) -> Training:
    chunks = recorded.chunks
    curves = joined(chunks)
    steps = curves.pop("steps")
    total = np.nancumsum(steps, axis=1, dtype=np.float64)
    curves["environment_steps"] = np.where(np.isnan(steps), np.nan, total)
    hopeless = recorded.stopped is None and _hopeless(chunks)
    _warn_of_refusals(curves["refused"], seeds, hopeless)
    _warn_of_returns(curves["return_mean"], seeds)
    run.warn(recorded.state)
    return Training(
        policies=recorded.state.policies,
        seeds=seeds,
        curves=curves,
        clock=recorded.clock,
        compile_seconds=compile_seconds,
    )


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
            "iterations=None and environment_steps=None leave training without an end; give at "
            "least one of them."
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
    # A solved task may give no signal any more; only a seed that never had any is worth a word.
    silent = (np.isnan(refused) | (refused == SIGNAL)).all(1)
    if silent.any():
        warnings.warn(
            f"No batch of seed {seeds[silent.argmax()]} held a signal, so its policy is as it was: "
            "all rewards were alike. More steps may find others.",
            stacklevel=3,
        )
    places = np.argwhere((refused > 0) & (refused != SIGNAL))
    if not len(places):
        return
    seed, iteration = places[0]
    stopped = (
        " Training stopped, as every one of the latest updates was refused." if hopeless else ""
    )
    warnings.warn(
        f"{len(places)} of {np.isfinite(refused).sum()} updates were refused and left the policy "
        "as it was, the first for seed "
        f"{seeds[seed]} in iteration {iteration + 1}: {REFUSALS[int(refused[seed, iteration])]}."
        f"{stopped}",
        stacklevel=3,
    )


def _warn_of_returns(returns: np.ndarray, seeds: tuple[int, ...]) -> None:
    places = np.argwhere(np.isinf(returns))
    if len(places):
        seed, iteration = places[0]
        warnings.warn(
            f"{len(places)} batches have returns that are not finite, the first for seed "
            f"{seeds[seed]} in iteration {iteration + 1}: "
            "rewards overflow single precision; scale them down.",
            stacklevel=3,
        )
