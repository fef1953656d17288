"""Training: a run from its first iteration, or from where it was, until it meets a limit."""

import dataclasses
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.algorithms import AbstractAlgorithm
from recollect.checks import shown
from recollect.collect.elsewhere import check_env
from recollect.collect.rollout import AbstractCollector
from recollect.machines import AbstractMachines, Local
from recollect.policies import AbstractPolicy
from recollect.policies.architecture import InitialPolicy
from recollect.refusals import REFUSALS, SIGNAL
from recollect.run.config import RunConfig
from recollect.run.folder import SECONDS, RunFolder
from recollect.run.log import Logger, logging_to
from recollect.run.session import Callback, Ended, Until, Watcher, run_session
from recollect.run.show import bar, summary_of
from recollect.run.snapshot import Snapshot
from recollect.run.state import Curves
from recollect.runtime import one_blas_thread, use_compilation_cache
from recollect.settings import answering, check_type
from recollect.tree import at_index

if TYPE_CHECKING:
    from recollect.agent.agent import Agent


@dataclasses.dataclass(frozen=True)
class Training:
    """What training gives back.

    Arrays in `curves` have the axes seed, iteration and are NaN after a seed has stopped.

    Example:
        >>> import recollect as rc
        >>> env = rc.CartPole(max_steps=20)
        >>> run = rc.train(env, rc.VPG(), collector=rc.Episodes(2), seeds=[4, 7], iterations=3)
        >>> run.seeds, run.curves["return_mean"].shape, run.policy(1).network.layers[0].weight.shape
        ((4, 7), (2, 3), (64, 4))
    """

    policies: AbstractPolicy
    """The learned policies, stacked along a leading seed axis."""
    seeds: tuple[int, ...]
    curves: Curves
    """`return_mean` and `length_mean` of the episodes that ended in the batch that each update
    used, `recent_return` (mean over the latest 20 episodes, or as many as there are), cumulative
    `environment_steps`, and every figure of `Info`."""
    clock: np.ndarray
    """Seconds since the start, without compilation, at each iteration (even within a chunk)."""
    compile_seconds: float
    snapshot: Snapshot
    """The whole run, from which it can go on."""

    def policy(self, index: int = 0) -> AbstractPolicy:
        """The policy of the seed at `index`."""
        return at_index(self.policies, index, len(self.seeds))

    def agent(self, index: int = 0) -> "Agent":
        """The seed at `index` as an agent, which acts, is saved, and goes on learning."""
        from recollect.agent.agent import Agent

        return Agent.of(self.snapshot, index)

    def __str__(self) -> str:
        return summary_of(self.snapshot)


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
    callback: Callback | Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    out: str | Path | None = None,
    checkpoint_seconds: float = SECONDS,
    progress: bool | None = None,
    label: str = "training",
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
        callback: function of the run and of the figures of its latest iteration, or several of
            them, called after every iteration; one that returns False stops the run.
        loggers: are told the figures of every iteration; see `Logger`.
        out: folder to keep the run in: settings, curves, episodes and checkpoints. It is made if
            it does not exist, and must not hold a run; `resume` goes on with one.
        checkpoint_seconds: time between two checkpoints in that folder, at least.
        progress: show a progress bar; if not given, when standard error is a terminal.
        label: what the progress bar is called.
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
    check_told(callback, loggers)
    config = on_machines(RunConfig.of(env, algorithm, collector, policy, seeds), on)
    until = Until(iterations, environment_steps, target_return)
    folder = None
    if out is not None:
        folder = RunFolder.create(Path(out), config, until, seconds=checkpoint_seconds)
    return execute(
        config,
        until,
        callback=callback,
        loggers=loggers,
        folder=folder,
        progress=progress,
        label=label,
        on=on,
    )


def on_machines(config: RunConfig, on: AbstractMachines | None) -> RunConfig:
    """The settings of a run whose environments are stepped on some machines.

    Args:
        config: the settings otherwise.
        on: the machines; this process if None.

    Raises:
        ValueError: if they cannot step the environment.
    """
    check_type("on", on, AbstractMachines | None, Local(actors=4))
    if on is None:
        return config
    check_env(config.env)
    return dataclasses.replace(config, lag=on.lag)


def check_told(callback: Any, loggers: Any) -> list[Callback]:
    """The callbacks as a list.

    Raises:
        ValueError: if one is no function, or a logger lacks a method. No folder has been made yet.
    """
    several = isinstance(callback, list | tuple)
    callbacks = list(callback) if several else [] if callback is None else [callback]
    for one in callbacks:
        if not callable(one) or isinstance(one, type):
            raise ValueError(
                f"callback={shown(one)} is no function; give one of the run and its figures."
            )
    ours = lambda one: isinstance(one, Logger) and not isinstance(one, type)
    if not isinstance(loggers, list | tuple) or not all(map(ours, loggers)):
        raise ValueError(
            f"loggers={shown(loggers)} is no list of objects with the methods start, log and "
            "close; give for example [TensorBoard('board')]."
        )
    return callbacks


@answering
def resume(
    folder: str | Path,
    *,
    iterations: int | None = None,
    environment_steps: int | None = None,
    target_return: float | None = None,
    env: Any = None,
    algorithm: AbstractAlgorithm | None = None,
    policy: InitialPolicy = None,
    use: Iterable[type] = (),
    callback: Callback | Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    checkpoint_seconds: float = SECONDS,
    progress: bool | None = None,
    label: str = "training",
    on: AbstractMachines | None = None,
) -> Training:
    """Go on with the run in a folder, bit for bit as if it had never stopped.

    Args:
        folder: that `train(..., out=folder)` or `recollect train` has made.
        iterations, environment_steps, target_return: other limits; those of the run if none is
            given.
        env: the environment, if it was not made by name.
        algorithm: the same as before, if it holds something that a file cannot, such as an Optax
            transformation.
        policy: the same as before, if it was none that an `Architecture` describes.
        use: classes of one's own that the run uses, such as a weight rule.
        callback, loggers, checkpoint_seconds, progress, label, on: as in `train`.

    Returns:
        The run from its first iteration on.

    Raises:
        ValueError: if the folder holds no run, or something has to be given.

    Example:
        >>> import tempfile
        >>> import recollect as rc
        >>> folder = f"{tempfile.mkdtemp()}/run"
        >>> batch = rc.Steps(copies=2, steps=8)
        >>> first = rc.train("CartPole-v1", rc.VPG(), collector=batch, iterations=2, out=folder)
        >>> rc.resume(folder, iterations=3).curves["kl"].shape
        (1, 3)
    """
    check_told(callback, loggers)
    kept = RunFolder.open(Path(folder), checkpoint_seconds)
    snapshot = kept.latest(env=env, algorithm=algorithm, policy=policy, use=use)
    for name, old, new in snapshot.changed:
        raise ValueError(
            f"{name}={new} differs from the run in {folder}, which has {old}; a run goes on with "
            "the settings that it has, an Agent can be loaded with others."
        )
    given = (iterations, environment_steps, target_return)
    until = kept.until if given == (None, None, None) else Until(*given)
    return execute(
        snapshot.config,
        until,
        snapshot=snapshot,
        callback=callback,
        loggers=loggers,
        folder=kept,
        progress=progress,
        label=label,
        on=on,
    )


def execute(
    config: RunConfig,
    until: Until,
    *,
    snapshot: Snapshot | None = None,
    callback: Callback | Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    folder: RunFolder | None = None,
    watchers: Sequence[Watcher] = (),
    progress: bool | None = None,
    label: str = "training",
    log_interval: int = 1,
    on: AbstractMachines | None = None,
) -> Training:
    """Run what is configured until a limit; `train`, `resume` and `Agent.learn` come down to this.

    Args:
        config: the settings.
        until: the limits.
        snapshot: where to go on from; the beginning if not given.
        callback, loggers, progress, label: as in `train`.
        folder: where the run is kept.
        watchers: are told of every chunk, after everything else.
        log_interval: loggers are told of every so many iterations.
        on: machines that step environments on the host.
    """
    use_compilation_cache()
    callbacks = check_told(callback, loggers)
    called = [lambda session, chunk, f=f: f(session, chunk.latest) for f in callbacks]
    recording = [] if folder is None else [folder.record]
    visible = sys.stderr.isatty() if progress is None else progress
    with (
        one_blas_thread(),
        bar(visible, label, until) as show,
        logging_to(loggers, config, snapshot, log_interval) as log,
    ):
        if folder is not None:
            folder.begin(config, snapshot)
        ended = run_session(
            config,
            until,
            [*recording, log, *watchers, show, *called],
            snapshot=snapshot,
            stepwise=bool(called),
            finish=(lambda session: None) if folder is None else folder.finish,
            on=on,
        )
    return _result(ended)


def _result(ended: Ended) -> Training:
    """What training gives back, or raises with what it had learned."""
    session = ended.session
    training = None
    if session.iteration:
        _warn_of_refusals(
            session.curves["refused"],
            session.seeds,
            ended.hopeless,
            session.config.env_name,
            session.fault,
        )
        _warn_of_returns(session.curves["return_mean"], session.seeds)
        ended.warn()
        training = Training(
            policies=session.state.policies,
            seeds=session.seeds,
            curves=session.curves,
            clock=session.clock,
            compile_seconds=ended.compile_seconds,
            snapshot=session.snapshot(),
        )
    if ended.stopped is not None:
        ended.stopped.training = training  # pyright: ignore[reportAttributeAccessIssue]
        raise ended.stopped
    assert training is not None
    return training


def _warn_of_refusals(
    refused: np.ndarray, seeds: tuple[int, ...], hopeless: bool, name: str, fault: str
) -> None:
    # A solved task may give no signal any more; only a seed that never had any is worth a word.
    silent = (np.isnan(refused) | (refused == SIGNAL)).all(1)
    if silent.any():
        warnings.warn(
            f"No batch of seed {seeds[silent.argmax()]} held a signal, so its policy is as it was: "
            "all rewards were alike. More steps may find others.",
            stacklevel=5,
        )
    places = np.argwhere((refused > 0) & (refused != SIGNAL))
    if not len(places):
        return
    seed, iteration = places[0]
    more = f" What was not finite first was {fault}." if fault else ""
    if hopeless:
        more += " Training stopped, as every one of the latest updates was refused."
    warnings.warn(
        f"{len(places)} of {np.isfinite(refused).sum()} updates on {name} were refused and left "
        "the policy as it was, the first for seed "
        f"{seeds[seed]} in iteration {iteration + 1}: {REFUSALS[int(refused[seed, iteration])]}."
        f"{more}",
        stacklevel=5,
    )


def _warn_of_returns(returns: np.ndarray, seeds: tuple[int, ...]) -> None:
    places = np.argwhere(np.isinf(returns))
    if len(places):
        seed, iteration = places[0]
        warnings.warn(
            f"{len(places)} batches have returns that are not finite, the first for seed "
            f"{seeds[seed]} in iteration {iteration + 1}: "
            "rewards overflow single precision; scale them down.",
            stacklevel=5,
        )
