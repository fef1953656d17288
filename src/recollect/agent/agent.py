"""An agent: one seed of a run, which learns, acts, is saved and loaded, and goes on learning.

It is used as those of Stable-Baselines3 are. What it holds is always the whole run: policy,
optimizer, critic, statistics of observations and the window of old batches. A policy alone would
have to fill its window and fit its critic again.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.agent.acting import Actor
from recollect.agent.evaluate import Evaluation, evaluate
from recollect.agent.export import export
from recollect.agent.play import Film, check_film_path, film
from recollect.algorithms import AbstractAlgorithm
from recollect.checks import check_count
from recollect.collect.rollout import AbstractCollector
from recollect.keys import seed_keys, stream
from recollect.policies import AbstractPolicy
from recollect.policies.architecture import InitialPolicy, make_policy
from recollect.run.config import RunConfig
from recollect.run.folder import RunFolder
from recollect.run.log import Logger, TensorBoard
from recollect.run.session import Callback, Until
from recollect.run.show import summary_of
from recollect.run.snapshot import Snapshot
from recollect.run.state import Curves
from recollect.run.train import check_told, execute
from recollect.settings import answering
from recollect.tree import at_index


class Agent:
    """One seed of a run: it learns, acts, and is kept.

    Args:
        env: a name, an environment of `make` or `host`, a function that makes a Gymnasium
            environment, or a vector of them.
        algorithm: for example `RNPG(window=10)`; or a name, `"rnpg"`, for the settings of the
            preset.
        seed: of everything that is drawn.
        collector: what a batch is; see `train`.
        policy: where to start; see `train`.
        tensorboard_log: folder for TensorBoard's files; none if not given.

    Example:
        >>> import numpy as np
        >>> import recollect as rc
        >>> agent = rc.Agent("CartPole-v1", rc.RNPG(window=2), collector=rc.Steps(2, 16))
        >>> _ = agent.learn(total_timesteps=64)
        >>> action, _ = agent.predict(np.zeros(4), deterministic=True)
        >>> int(action) in (0, 1), agent.num_timesteps
        (True, 64)
    """

    @answering
    def __init__(
        self,
        env: Any,
        algorithm: AbstractAlgorithm | str = "rnpg",
        *,
        seed: int = 0,
        collector: AbstractCollector | None = None,
        policy: InitialPolicy = None,
        tensorboard_log: str | Path | None = None,
    ):
        config = RunConfig.of(env, algorithm, collector, policy, [seed])
        self._set(Snapshot(config, {}, 0, {}, np.zeros(0)), tensorboard_log)

    def _set(self, snapshot: Snapshot, tensorboard_log: str | Path | None = None) -> None:
        self.tensorboard_log = tensorboard_log
        self._snapshot = snapshot
        self._actor: Actor | None = None
        self._first_step = 0

    @classmethod
    def of(cls, snapshot: Snapshot, index: int = 0) -> "Agent":
        """One seed of a run that may have several.

        Args:
            snapshot: the run.
            index: place of the seed.

        Raises:
            IndexError: if there is no such seed.
        """
        at_index((), index, len(snapshot.config.seeds))  # checks the index
        agent = cls.__new__(cls)
        agent._set(snapshot.of_seed(index % len(snapshot.config.seeds)))
        return agent

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: Any = None,
        *,
        algorithm: AbstractAlgorithm | str | None = None,
        policy: InitialPolicy = None,
        use: Iterable[type] = (),
        index: int = 0,
        tensorboard_log: str | Path | None = None,
    ) -> "Agent":
        """The agent that `save` has written, or a seed of a run folder. Runs no code of the file.

        Args:
            path: of the file, or of a run folder, of which the latest checkpoint is taken.
            env: the environment, if the file cannot say how to make it, or another one.
            algorithm: other settings to go on with. What fits of the old run is kept; what does
                not is named by a warning when learning goes on.
            policy: the policy that the run started from, if it was one of one's own.
            use: classes of one's own that the file names.
            index: place of the seed, if there are several.
            tensorboard_log: folder for TensorBoard's files.

        Raises:
            ValueError: if the file is damaged or does not fit, or if something has to be given.
            OSError: if it cannot be read.
        """
        path = Path(path)
        given: dict[str, Any] = dict(env=env, algorithm=algorithm, policy=policy, use=use)
        if path.is_dir():
            snapshot = RunFolder.open(path).latest(**given)
            if not snapshot.arrays:
                raise ValueError(f"{path} has learned nothing yet; resume it first.")
        else:
            snapshot = Snapshot.read(path if path.exists() else path.with_suffix(".zip"), **given)
        snapshot.policies()  # whether it fits is said now
        agent = cls.of(snapshot, index)
        agent.tensorboard_log = tensorboard_log
        return agent

    def save(self, path: str | Path) -> None:
        """Write the whole agent into a file, all of it or nothing.

        Args:
            path: of the file; `.zip` is added where it has no ending.
        """
        path = Path(path)
        self._snapshot.write(path if path.suffix else path.with_suffix(".zip"))

    def learn(
        self,
        total_timesteps: int | None = None,
        callback: Callback | Sequence[Callback] | None = None,
        log_interval: int = 1,
        tb_log_name: str = "run",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        *,
        iterations: int | None = None,
        target_return: float | None = None,
        loggers: Sequence[Logger] = (),
        out: str | Path | None = None,
    ) -> "Agent":
        """Learn for some more environment steps or iterations.

        Args:
            total_timesteps: how many environment steps more, at least.
            callback: function of the run and of the figures of its latest iteration, or several;
                one that returns False ends learning.
            log_interval: loggers are told of every so many iterations.
            tb_log_name: name of the folder below `tensorboard_log`; a number is added.
            reset_num_timesteps: count steps from 0 again, in logs and `num_timesteps`.
            progress_bar: show one.
            iterations: how many iterations more.
            target_return: stop once the mean over the latest 20 episodes is at least this.
            loggers: are told of the figures; see `Logger`.
            out: folder to keep the run in; see `train`.

        Returns:
            The agent itself.
        """
        check_count("log_interval", log_interval)
        callbacks = check_told(callback, loggers)
        snapshot = self._snapshot
        if reset_num_timesteps:
            self._first_step = self._steps
        until = Until(
            None if iterations is None else _more(snapshot.iteration, "iterations", iterations),
            None
            if total_timesteps is None
            else _more(self._steps, "total_timesteps", total_timesteps),
            target_return,
        )
        told = list(loggers)
        if self.tensorboard_log is not None:
            told.append(TensorBoard(_tensorboard_folder(self, tb_log_name, reset_num_timesteps)))
        folder = None if out is None else RunFolder.create(Path(out), snapshot.config, until)
        try:
            training = execute(
                snapshot.config,
                until,
                snapshot=snapshot if snapshot.arrays else None,
                callback=callbacks,
                loggers=[_Shifted(logger, self._first_step) for logger in told],
                folder=folder,
                progress=progress_bar,
                label=snapshot.config.algorithm_name,
                log_interval=log_interval,
            )
        except BaseException as stop:
            learned = getattr(stop, "training", None)
            if learned is not None:
                self._learned(learned.snapshot)
            raise
        self._learned(training.snapshot)
        return self

    def _learned(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._actor = None

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """The action for an observation as the environment gives it, or for a vector of them.

        Args:
            observation: one, or several stacked along a first axis.
            state: passed through; policies here have no memory.
            episode_start: not used, for the same reason.
            deterministic: take the policy's mode instead of drawing.

        Returns:
            The action as the environment takes it, in NumPy, and `state`.

        Raises:
            ValueError: if the observation does not fit the environment's space.
        """
        del episode_start
        if self._actor is None:
            self._actor = Actor(self.config.env, self.policy, self.config.seeds[0])
        return self._actor(observation, deterministic), state

    def evaluate(
        self,
        *,
        episodes: int = 100,
        seed: int = 0,
        deterministic: bool = True,
        env: Any = None,
    ) -> Evaluation:
        """Returns in whole episodes from fixed seeds; see `evaluate`."""
        where = self.config.env if env is None else env
        return evaluate(
            self.policy, where, episodes=episodes, seed=seed, deterministic=deterministic
        )

    def play(
        self,
        path: str | Path | None = None,
        *,
        seeds: Sequence[int] | None = None,
        best_of: int = 1,
        deterministic: bool = True,
    ) -> Film:
        """The best of some episodes as a film, drawn offscreen.

        Args:
            path: where to write it, as `.gif` or `.mp4`; nowhere if not given.
            seeds: of the episodes.
            best_of: if no seeds are given, how many episodes to run.
            deterministic: take the policy's mode instead of drawing actions.

        Raises:
            ValueError: if the environment cannot be drawn.
        """
        if path is not None:
            check_film_path(Path(path))
        predict = lambda observation: self.predict(observation, deterministic=deterministic)[0]
        seen = film(self.config, predict, seeds=seeds, best_of=best_of)
        if path is not None:
            seen.write(path)
        return seen

    def export(self, path: str | Path, to: str | None = None) -> list[Path]:
        """Write the policy as a file that acts without this library; see `export`."""
        return export(self.policy, self.config.env, path, to)

    @property
    def config(self) -> RunConfig:
        """The settings of the run."""
        return self._snapshot.config

    @property
    def env(self) -> Any:
        """The environment that it learns in."""
        return self.config.env

    @property
    def policy(self) -> AbstractPolicy:
        """The policy as it is now, an Equinox module."""
        if self._snapshot.arrays:
            return at_index(self._snapshot.policies(), 0, 1)
        key = stream(seed_keys(self.config.seeds)[0], "policy")
        return make_policy(key, self.config.env, self.config.policy)

    @property
    def curves(self) -> Curves:
        """Figures of every iteration so far, of this seed alone."""
        return {name: curve[0] for name, curve in self._snapshot.curves.items()}

    @property
    def num_timesteps(self) -> int:
        """Environment steps since they were last counted from 0."""
        return self._steps - self._first_step

    @property
    def _steps(self) -> int:
        steps = self._snapshot.curves.get("environment_steps")
        return 0 if steps is None else int(np.nanmax(steps))

    def __str__(self) -> str:
        return f"Agent: {summary_of(self._snapshot)}"

    __repr__ = __str__


def _more(before: int, field: str, count: int) -> int:
    """A limit that lies `count` beyond what was done."""
    check_count(field, count)
    return before + count


def _tensorboard_folder(agent: Agent, name: str, anew: bool) -> Path:
    """Where events go: a new folder NAME_1, NAME_2, …, or the latest one."""
    assert agent.tensorboard_log is not None
    parent = Path(agent.tensorboard_log)
    there = sorted(parent.glob(f"{name}_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    if there and not anew:
        return there[-1]
    return parent / f"{name}_{len(there) + 1}"


@dataclasses.dataclass(frozen=True)
class _Shifted:
    """A logger whose steps are counted from another beginning."""

    logger: Logger
    first_step: int

    def start(self, config: RunConfig, first_step: int) -> None:
        self.logger.start(config, max(first_step - self.first_step, 0))

    def log(self, seed: int, step: int, figures: Mapping[str, float]) -> None:
        since = step - self.first_step
        self.logger.log(seed, since, {**figures, "time/total_timesteps": since})

    def close(self) -> None:
        self.logger.close()
