"""Ready-made callbacks: checkpoints, evaluations with the best agent kept, an end on success.

A callback is any function of the run and of the figures of its latest iteration; one that returns
False stops the run.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recollect.agent.evaluate import evaluate
from recollect.checks import check_count, check_number
from recollect.run.session import Session
from recollect.serial import write_csv

EVALUATIONS = "evaluations.csv"
COLUMNS = ("seed", "iteration", "environment_steps", "mean", "low", "high")
"""Of that file."""


class Checkpoint:
    """Saves the whole run every so many iterations, each time into a file of its own.

    Args:
        every: how many iterations.
        folder: where files go, `ITERATION.zip`; `Agent.load` reads them.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import recollect as rc
        >>> folder = tempfile.mkdtemp()
        >>> agent = rc.Agent("CartPole-v1", rc.VPG(), collector=rc.Steps(2, 8))
        >>> _ = agent.learn(iterations=4, callback=rc.Checkpoint(2, folder))
        >>> sorted(path.name for path in Path(folder).iterdir())
        ['00000002.zip', '00000004.zip']
    """

    def __init__(self, every: int, folder: str | Path):
        check_count("every", every)
        self.every = every
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, run: Session, info: Mapping[str, np.ndarray]) -> None:
        del info
        if run.iteration % self.every == 0:
            run.snapshot().write(self.folder / f"{run.iteration:08d}.zip")


class Evaluate:
    """Evaluates every so many iterations, and keeps the best agent of every seed.

    Args:
        every: how many iterations.
        env: to evaluate in, in any form that `train` takes; the run's own if not given.
        episodes: of each evaluation.
        seed: of the episodes; always the same ones, which training never sees.
        deterministic: take the policy's mode instead of drawing actions.
        folder: where the best agents go, `SEED.zip`, with `evaluations.csv`; none if not given.
        target_return: stop the run once every seed has reached this mean.

    Example:
        >>> import recollect as rc
        >>> agent = rc.Agent("CartPole-v1", rc.VPG(), collector=rc.Steps(2, 8))
        >>> watch = rc.Evaluate(every=2, episodes=3)
        >>> _ = agent.learn(iterations=4, callback=watch)
        >>> [row[1] for row in watch.rows]
        [2, 4]
    """

    def __init__(
        self,
        every: int,
        env: Any = None,
        *,
        episodes: int = 20,
        seed: int = 0,
        deterministic: bool = True,
        folder: str | Path | None = None,
        target_return: float | None = None,
    ):
        check_count("every", every)
        check_count("episodes", episodes)
        self.every = every
        self.env = env
        self.settings: dict[str, Any] = dict(
            episodes=episodes, seed=seed, deterministic=deterministic
        )
        self.folder = None if folder is None else Path(folder)
        self.target_return = np.inf if target_return is None else target_return
        self.best: dict[int, float] = {}
        """Best mean return of every seed so far."""
        self.rows: list[tuple[int, int, int, float, float, float]] = []
        """Seed, iteration, environment steps, mean return and its interval."""

    def __call__(self, run: Session, info: Mapping[str, np.ndarray]) -> bool | None:
        if run.iteration % self.every:
            return None
        env = run.config.env if self.env is None else self.env
        latest = []
        for index, seed in enumerate(run.seeds):
            mean = evaluate(run.policy(index), env, **self.settings).mean
            latest.append(mean.value)
            steps = int(run.environment_steps[index])
            self.rows.append((seed, run.iteration, steps, mean.value, mean.low, mean.high))
            if mean.value > self.best.get(seed, -np.inf):
                self.best[seed] = mean.value
                self._keep(run, index)
        if self.folder is not None:
            write_csv(self.folder / EVALUATIONS, COLUMNS, self.rows)
        return min(latest) < self.target_return

    def remember(self, iteration: int) -> None:
        """Go on with the evaluations that its folder holds of a run that is resumed.

        Args:
            iteration: where the run goes on from; what came after it is forgotten.
        """
        if self.folder is None or not (self.folder / EVALUATIONS).is_file():
            return
        with (self.folder / EVALUATIONS).open(newline="", encoding="utf-8") as file:
            _, *rows = csv.reader(file)
        for seed, at, steps, mean, low, high in rows:
            if int(at) <= iteration:
                row = (int(seed), int(at), int(steps), float(mean), float(low), float(high))
                self.rows.append(row)
                self.best[int(seed)] = max(float(mean), self.best.get(int(seed), -np.inf))

    def _keep(self, run: Session, index: int) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            run.snapshot().of_seed(index).write(self.folder / f"{run.seeds[index]}.zip")


class StopOnReturn:
    """Stops the run once every seed's mean over its latest episodes has reached a return.

    Args:
        target: that return.

    Example:
        >>> import recollect as rc
        >>> agent = rc.Agent("CartPole-v1", rc.VPG(), collector=rc.Steps(8, 64))
        >>> _ = agent.learn(iterations=9, callback=rc.StopOnReturn(5.0))
        >>> len(agent.curves["kl"])
        1
    """

    def __init__(self, target: float):
        remedy = "give a finite return"
        check_number("target", target, low=-np.inf, remedy=remedy)
        self.target = target

    def __call__(self, run: Session, info: Mapping[str, np.ndarray]) -> bool:
        del info
        return not (run.curves["recent_return"] >= self.target).any(1).all()
