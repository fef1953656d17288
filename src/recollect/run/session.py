"""A run under way: chunks of iterations until a limit, each told to whoever watches.

Watchers write files and logs, show progress, and may stop the run. What was learned until something
stops it, whatever that is, is kept.
"""

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from recollect.algorithms.base import bind
from recollect.checks import check_count, check_number
from recollect.collect.elsewhere import check_env
from recollect.envs import AbstractOracle, HostEnv
from recollect.keys import seed_keys
from recollect.machines import AbstractMachines
from recollect.policies import AbstractPolicy
from recollect.refusals import SIGNAL
from recollect.run.compiled import CHUNK_ITERATIONS, CompiledRun
from recollect.run.config import RunConfig
from recollect.run.hosted import HostRun
from recollect.run.snapshot import Snapshot
from recollect.run.state import (
    FIELDS,
    AbstractRun,
    CorePool,
    Curves,
    Limits,
    RunState,
    active,
    whole,
)
from recollect.tree import at_index

CHUNK_SECONDS = 1.0
"""A chunk is made so short that it takes about this long: a run can be stopped between chunks."""


@dataclasses.dataclass(frozen=True)
class Until:
    """When a run ends: at the first of these limits."""

    iterations: int | None = None
    environment_steps: int | None = None
    target_return: float | None = None
    """Of the mean over a seed's latest 20 episodes."""

    def __post_init__(self):
        if self.iterations is None and self.environment_steps is None:
            raise ValueError(
                "iterations=None and environment_steps=None leave training without an end; give at "
                "least one of them."
            )
        for field in ("iterations", "environment_steps"):
            if getattr(self, field) is not None:
                check_count(field, getattr(self, field))
        if self.target_return is not None:
            remedy = "give a finite return"
            check_number("target_return", self.target_return, low=-np.inf, remedy=remedy)

    @property
    def of_seed(self) -> Limits:
        """The limits that each seed meets by itself."""
        return Limits(
            float(self.environment_steps or np.inf),
            np.inf if self.target_return is None else float(self.target_return),
        )


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive iterations that have just taken place; arrays begin with seed, iteration."""

    first: int
    """Iterations before these."""
    curves: Curves
    episode_returns: np.ndarray
    """Of the episodes that ended in each iteration, in that order, among NaN."""
    episode_lengths: np.ndarray
    clock: np.ndarray
    """Seconds since the start at the end of every iteration."""
    seconds: float
    """That these iterations took."""

    @property
    def latest(self) -> dict[str, np.ndarray]:
        """Figures of the last iteration, for every seed; NaN for seeds that have stopped."""
        return {name: curve[:, -1] for name, curve in self.curves.items()}


Watcher = Callable[["Session", Chunk], Any]
"""Is told of every chunk; False stops the run."""
Callback = Callable[["Session", Mapping[str, np.ndarray]], Any]
"""Of the run and the figures of its latest iteration, for every seed; False stops the run."""


class Session:
    """A run between its first iteration and its last, as callbacks see it.

    Example:
        >>> import recollect as rc
        >>> def stop_early(run, info):
        ...     return run.iteration < 3 and info["return_mean"].mean() < 100
        >>> env = rc.CartPole(max_steps=20)
        >>> batch = rc.Episodes(2)
        >>> run = rc.train(env, rc.VPG(), collector=batch, iterations=9, callback=stop_early)
        >>> run.curves["return_mean"].shape
        (1, 3)
    """

    def __init__(self, config: RunConfig, state: RunState, snapshot: Snapshot | None):
        self.config = config
        """The settings of the run."""
        self.state = state
        """All there is between two iterations."""
        self.first = state.iteration
        """The iterations that earlier sessions of the run have had."""
        self._clocks = [np.zeros(0) if snapshot is None else snapshot.clock]
        self.fault = ""
        """What was not finite first, in words; empty if all was."""
        self._chunks = [] if snapshot is None or not snapshot.iteration else [snapshot.curves]

    @property
    def iteration(self) -> int:
        """Iterations so far."""
        return self.state.iteration

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.config.seeds

    @property
    def environment_steps(self) -> np.ndarray:
        """Of every seed."""
        return whole(np.asarray(self.state.seeds.environment_steps))

    @property
    def clock(self) -> np.ndarray:
        """Seconds since the start, without compilation, at the end of every iteration."""
        self._clocks = [np.concatenate(self._clocks)]
        return self._clocks[0]

    @property
    def curves(self) -> Curves:
        """Figures of every iteration so far; arrays begin with seed, iteration."""
        if len(self._chunks) > 1:
            self._chunks = [joined(self._chunks)]
        return self._chunks[0] if self._chunks else {}

    def policy(self, index: int = 0) -> AbstractPolicy:
        """The policy of the seed at `index`, as it is now."""
        return at_index(self.state.policies, index, len(self.seeds))

    def snapshot(self, **facts: Any) -> Snapshot:
        """The run as it is, to be written down or gone on with."""
        return Snapshot.of(self.config, self.state, self.curves, self.clock, **facts)

    def advance(self, run: AbstractRun, count: int) -> Chunk:
        """Go on by at most so many iterations."""
        first = self.iteration
        before = self.environment_steps.astype(np.float64)
        began = time.perf_counter()
        state, curves = run.advance(self.state, count)
        # After all seeds have met a limit, nothing happens in the rest of a chunk.
        lived = int(np.isfinite(curves["steps"]).any(0).sum())
        curves = {name: values[:, :lived] for name, values in curves.items()}
        steps = curves.pop("steps")
        self.fault = self.fault or _described(curves.pop("fault"), config=self.config)
        total = before[:, None] + np.nancumsum(steps, axis=1, dtype=np.float64)
        curves["environment_steps"] = np.where(np.isnan(steps), np.nan, total)
        start = self._clocks[-1][-1] if len(self._clocks[-1]) else 0.0
        seconds = time.perf_counter() - began
        chunk = Chunk(
            first=first,
            episode_returns=curves.pop("episode_returns"),
            episode_lengths=curves.pop("episode_lengths"),
            curves=curves,
            clock=start + seconds * np.arange(1, lived + 1) / max(lived, 1),
            seconds=seconds,
        )
        self.state = dataclasses.replace(state, iteration=first + lived)
        self._append(chunk)
        return chunk

    def _append(self, chunk: Chunk) -> None:
        """Keep the curves of a chunk: log₂ n pieces of n iterations, each copied log₂ n times."""
        self._chunks.append(chunk.curves)
        self._clocks.append(chunk.clock)
        length = lambda curves: curves["refused"].shape[1]
        while len(self._chunks) > 1 and length(self._chunks[-2]) <= length(self._chunks[-1]):
            self._chunks[-2:] = [joined(self._chunks[-2:])]
        while len(self._clocks) > 1 and len(self._clocks[-2]) <= len(self._clocks[-1]):
            self._clocks[-2:] = [np.concatenate(self._clocks[-2:])]

    @property
    def hopeless(self) -> bool:
        """Whether every update of the latest ten iterations failed, looked at every ten.

        One that found no signal did not: a later batch may hold some.
        """
        if self.iteration == self.first or self.iteration % CHUNK_ITERATIONS:
            return False
        latest = [chunk["refused"][:, -CHUNK_ITERATIONS:] for chunk in self._chunks[-3:]]
        refused = np.concatenate(latest, axis=1)[:, -CHUNK_ITERATIONS:]
        refused = refused[np.isfinite(refused)]
        return bool(((refused > 0) & (refused != SIGNAL)).all())


def _is_false(answer: Any) -> bool:
    """Whether a watcher said False, which is another object where NumPy or JAX compared."""
    return np.asarray(answer).dtype == bool and not np.all(answer)


def _described(faults: np.ndarray, config: RunConfig) -> str:
    """The earliest fault of a chunk in words; see `first_fault`."""
    for column, row in np.argwhere(faults[..., 0].T > 0):
        field, step = faults[row, column]
        name = list(FIELDS.values())[int(field) - 1]
        return f"the {name} of seed {config.seeds[row]} in step {step:.0f} of an episode"
    return ""


def joined(chunks: Sequence[Curves]) -> Curves:
    """Curves of consecutive iterations as one; NaN for figures and ages that some do not have.

    Where a run goes on with other settings, the curves after that may be others.
    """
    names = dict.fromkeys(name for chunk in chunks for name in chunk)
    result = {}
    for name in names:
        there = [chunk[name] for chunk in chunks if name in chunk]
        ages = max(curve.shape[2:] for curve in there)
        parts = []
        for chunk in chunks:
            part = np.full((*chunk["refused"].shape, *ages), np.nan, there[-1].dtype)
            if name in chunk:
                part[(..., *[slice(size) for size in chunk[name].shape[2:]])] = chunk[name]
            parts.append(part)
        result[name] = np.concatenate(parts, axis=1)
    return result


@dataclasses.dataclass(frozen=True)
class Ended:
    """A session at its end."""

    session: Session
    compile_seconds: float
    stopped: BaseException | None
    """What stopped it, if it was neither a limit nor a watcher."""
    hopeless: bool
    """Whether it stopped before its limits because updates kept failing."""
    warn: Callable[[], None]
    """Warns of what went wrong with the environment without stopping the run."""


def run_session(
    config: RunConfig,
    until: Until,
    watchers: Sequence[Watcher],
    snapshot: Snapshot | None = None,
    stepwise: bool = False,
    finish: Callable[[Session], None] = lambda session: None,
    on: AbstractMachines | None = None,
) -> Ended:
    """Begin a run, or go on with one, until a limit is met, a watcher says so, or it breaks.

    Args:
        config: its settings.
        until: its limits.
        watchers: are told of every chunk, in this order.
        snapshot: where to go on from.
        stepwise: whether a chunk is a single iteration.
        finish: is called with the session at its end, however it ends.
        on: machines that step environments on the host; this process if not given.

    Raises:
        CheckpointError: if the snapshot does not fit the settings.
    """
    limits = until.of_seed
    most = until.iterations or np.inf
    began = time.perf_counter()
    with (
        CorePool(len(config.seeds)) as pool,
        contextlib.closing(_open(config, limits, pool, on)) as run,
    ):
        state = _begin(run, limits, snapshot)
        session = Session(config, state, snapshot)
        compile_seconds = time.perf_counter() - began
        count = 1
        stopped = None
        hopeless = False
        any_active = lambda: bool(np.asarray(session.state.seeds.active).any())
        goes_on = lambda: session.iteration < most and any_active()
        try:
            while goes_on():
                # No further than the next multiple of ten, where a run may be found hopeless:
                # what is computed may not depend on how long chunks are.
                room = CHUNK_ITERATIONS - session.iteration % CHUNK_ITERATIONS
                chunk = session.advance(run, int(min(count, room, most - session.iteration)))
                with deferred_interrupts():
                    answers = [watcher(session, chunk) for watcher in watchers]
                if any(_is_false(answer) for answer in answers):
                    break
                hopeless = session.hopeless and goes_on()
                if hopeless:
                    break
                if not stepwise:
                    count = _chunk_length(run, chunk)
        except BaseException as stop:
            stopped = stop
        # Before the context is left, which waits for threads that are still at work.
        with deferred_interrupts():
            finish(session)
    return Ended(session, compile_seconds, stopped, hopeless, lambda: run.warn(session.state))


def _open(
    config: RunConfig, limits: Limits, pool: CorePool, on: AbstractMachines | None
) -> AbstractRun:
    lag = 0 if on is None else on.lag
    if lag != config.lag:
        raise ValueError(f"lag={lag} differs from the run, which has {config.lag}; give the same.")
    if on is not None:
        check_env(config.env)
    algorithm = config.algorithm
    if isinstance(config.env, AbstractOracle):
        algorithm = bind(algorithm, config.env)
    shared = (algorithm, config.collector, limits, config.policy)
    keys = seed_keys(config.seeds)
    if isinstance(config.env, HostEnv):
        return HostRun(config.env, *shared, config.seeds, keys, pool, on)
    return CompiledRun(config.env, *shared, keys, pool)


def _begin(run: AbstractRun, limits: Limits, snapshot: Snapshot | None) -> RunState:
    """The state before the first iteration, or where a run was; other limits may let it go on."""
    if snapshot is None or not snapshot.arrays:
        return run.start()
    state = run.restore(snapshot.arrays, snapshot.iteration, bool(snapshot.changed))
    goes_on = jax.vmap(lambda *seed: active(limits, *seed))
    after = goes_on(state.seeds.environment_steps, state.seeds.recent)
    seeds = eqx.tree_at(lambda seeds: seeds.active, state.seeds, after)
    return dataclasses.replace(state, seeds=seeds)


def _chunk_length(run: AbstractRun, chunk: Chunk) -> int:
    """How many iterations take about `CHUNK_SECONDS`, judged by those of a chunk."""
    each = chunk.seconds / max(len(chunk.clock), 1)
    return int(np.clip(CHUNK_SECONDS / each, 1, run.chunk))


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """A context in which interrupts and requests to end wait until it is left.

    Files that are being written are then whole. Only the main thread gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting = []
    found = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
    before = {kind: handler for kind, handler in found.items() if callable(handler)}
    for kind in before:
        signal.signal(kind, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        for number, frame in waiting[:1]:
            before[signal.Signals(number)](number, frame)
