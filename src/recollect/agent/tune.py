"""Tuning: settings found by trial, and how they do on seeds that no trial has seen.

A trial trains several seeds in one program and is worth the mean of their learning curves: settings
count as good that learn early and stay. A trial that does worse than the median of those before it,
in the second half of its environment steps, is stopped. What wins was chosen for its luck, too. So
in the end the best settings and those that the search started from are both trained on other seeds,
the same for both, and the difference is told with its interval.

A trial costs a training; all share one compiled program (`ranges`). The verdict costs two.
`trainers` says where trials are trained, and how many at once.
"""

import dataclasses
import functools
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from recollect.agent.ranges import (
    AbstractRange,
    for_trial,
    search_space,
    start_of,
    with_values,
)
from recollect.agent.study import Study, Trial
from recollect.agent.trainers import Begin, Moved, Result, Run, trainers
from recollect.agent.worth import places_of
from recollect.algorithms import AbstractAlgorithm
from recollect.checks import check_count
from recollect.collect.rollout import AbstractCollector
from recollect.envs import EnvironmentFailure, EnvSettings
from recollect.machines import AbstractMachines
from recollect.policies.architecture import Architecture, InitialPolicy
from recollect.run.config import RunConfig
from recollect.run.folder import write_config
from recollect.run.session import Until
from recollect.runtime import progress_bar
from recollect.serial import to_code, write_csv
from recollect.settings import answering
from recollect.statistics import Estimate, bootstrap

FIRST_SEED = 1000
"""Of those that trials are trained on."""
BEST_SETTINGS = "best.json"
TRIALS = "trials.csv"
Show = Callable[[float, str], Any]
"""Is told which share is done, and a note."""


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What a search has found.

    Example:
        >>> import recollect as rc
        >>> settings = dict(collector=rc.Steps(copies=2, steps=16), environment_steps=64)
        >>> found = rc.tune("CartPole-v1", rc.VPG(), trials=1, **settings, seeds=2, held_back=2)
        >>> found.flags[:2], found.config.seeds
        (['--learning-rate', '0.003'], (0, 1))
    """

    config: RunConfig
    """The best settings, on the held-back seeds: a run that `recollect train --config` repeats."""
    start: RunConfig
    """What the search started from, on the same seeds."""
    values: Mapping[str, Any]
    """The best value of each setting that was searched."""
    environment_steps: int
    """Of every seed of a trial."""
    trials: tuple[Trial, ...]
    importances: Mapping[str, float]
    """How much each setting decides whether a trial is among the best; they sum to one."""
    curves: Mapping[str, Float[np.ndarray, "seed place"]]
    """Learning curves on the held-back seeds, of the `start` and of the `tuned` settings."""

    @property
    def best(self) -> Trial:
        """The best trial."""
        return best_of(self.trials)

    @property
    def places(self) -> Float[np.ndarray, " place"]:
        """Environment steps of the points of the curves."""
        return places_of(self.environment_steps)

    def mean(self, which: str) -> Estimate:
        """Mean of the held-back learning curves of the `start` or the `tuned` settings."""
        return bootstrap(lambda means: means.mean(1), self.curves[which].mean(1))

    @property
    def gain(self) -> Estimate:
        """Tuned less start, seed by seed, with a 95 % bootstrap interval."""
        gains = self.curves["tuned"].mean(1) - self.curves["start"].mean(1)
        return bootstrap(lambda gains: gains.mean(1), gains)

    @property
    def flags(self) -> list[str]:
        """The best values as flags of `recollect train`."""
        return [
            word
            for name, value in self.values.items()
            for word in (f"--{name.replace('_', '-')}", f"{value:g}")
        ]

    @property
    def python(self) -> str:
        """The best settings as a call of `train`."""
        config = self.config
        made = config.made
        env = "env" if made is None else repr(made.name)
        if made is not None and made != EnvSettings(made.name):
            env = to_code(made).replace("rc.EnvSettings(name=", "rc.make(")
        parts = [env, to_code(config.algorithm), f"collector={to_code(config.collector)}"]
        parts += [] if config.policy is None else [f"policy={to_code(config.policy)}"]
        parts += [f"environment_steps={self.environment_steps}", "seeds=5"]
        return "rc.train(\n    " + ",\n    ".join(parts) + ",\n)"

    def write(self, folder: Path) -> None:
        """Write the best settings, and a row for every trial.

        Args:
            folder: that exists.
        """
        until = Until(environment_steps=self.environment_steps)
        write_config(folder / BEST_SETTINGS, self.config, until)
        columns = ("trial", "outcome", "mean_return", *self.values, "seconds", "reason")
        rows = [
            [one.number, one.outcome, "" if one.value is None else one.value]
            + [one.values.get(name, "") for name in self.values]
            + [f"{one.seconds:.1f}", one.reason]
            for one in self.trials
        ]
        write_csv(folder / TRIALS, columns, rows)

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value:g}" for name, value in self.values.items())
        gain = self.gain
        return (
            f"best of {len(self.trials)} trials: {settings}\n"
            f"on {len(self.config.seeds)} held-back seeds: {gain.value:+.4g} "
            f"({gain.low:+.4g} to {gain.high:+.4g}) against the settings at the start"
        )


@answering
def tune(
    env: Any,
    algorithm: AbstractAlgorithm | str,
    *,
    trials: int,
    environment_steps: int,
    seeds: int = 5,
    held_back: int = 10,
    collector: AbstractCollector | None = None,
    policy: InitialPolicy = None,
    out: str | Path | None = None,
    storage: str | None = None,
    progress: bool | None = None,
    on: AbstractMachines | None = None,
) -> Tuned:
    """Look for better settings by trial, and try the best on seeds that the search never saw.

    Args:
        env: in any form that `train` takes.
        algorithm: whose settings the search starts from, or a name for those of the preset.
        trials: how many there shall be, with those that the study has already.
        environment_steps: that every seed of a trial takes.
        seeds: how many a trial trains: 1000, 1001, …
        held_back: how many the best settings are tried on in the end: 0, 1, …
        collector: what a batch is; see `train`.
        policy: where to start; see `train`.
        out: folder of the study's journal, from which a search goes on, and which several processes
            may use at once; in memory alone if not given.
        storage: URL of a database to use instead of the journal, such as `sqlite:///study.db`.
        progress: show a progress bar; if not given, when standard error is a terminal.
        on: machines, `Local(actors=8)` or `Ray(actors=8, cluster=...)`, on which so many trials are
            trained at once, each with one CPU; one after another in this process if not given.

    Returns:
        The best settings, what became of all trials, and learning curves on the held-back seeds.

    Raises:
        ValueError: if Optuna is missing, the study is of something else, or every trial failed.

    Example:
        >>> import recollect as rc
        >>> settings = dict(collector=rc.Steps(copies=2, steps=16), environment_steps=64)
        >>> found = rc.tune("CartPole-v1", rc.VPG(), trials=2, **settings, seeds=2, held_back=2)
        >>> [trial.number for trial in found.trials], found.gain.low <= found.gain.high
        ([0, 1], True)
    """
    check_count("seeds", seeds)
    config = RunConfig.of(env, algorithm, collector, policy, tuning_seeds(seeds))
    search = Search(config, environment_steps, trials, held_back)
    visible = sys.stderr.isatty() if progress is None else progress
    with progress_bar(visible, "tuning") as show:
        place = None if out is None else Path(out)
        return search.run(out=place, storage=storage, show=show, on=on)


def tuning_seeds(count: int) -> range:
    """The seeds that trials are trained on."""
    return range(FIRST_SEED, FIRST_SEED + count)


@dataclasses.dataclass(frozen=True)
class Search:
    """What is to be searched, checked before anything is run."""

    config: RunConfig
    """What the search starts from, on the seeds of the trials."""
    environment_steps: int
    """Of every seed of a trial."""
    trials: int
    held_back: int
    """How many seeds the best settings are tried on."""
    fixed: tuple[str, ...] = ()
    """Names of settings that stay as they are."""

    def __post_init__(self):
        for field in ("trials", "environment_steps", "held_back"):
            check_count(field, getattr(self, field))
        if self.held_back > FIRST_SEED:
            raise ValueError(
                f"held_back={self.held_back} seeds would be some of those that trials are trained "
                f"on; give at most {FIRST_SEED}."
            )
        if not self.space:
            name = self.config.algorithm_name
            raise ValueError(f"{name} has no number left to tune; give fewer of them.")

    @functools.cached_property
    def space(self) -> dict[str, AbstractRange]:
        """The ranges, by the names of the settings."""
        return search_space(self.config, self.fixed)

    def run(
        self,
        out: Path | None = None,
        storage: str | None = None,
        show: Show = lambda fraction, note: None,
        ended: Callable[[Trial, Trial | None], Any] = lambda trial, best: None,
        on: AbstractMachines | None = None,
    ) -> Tuned:
        """Search until there are as many trials as asked for, and try the best.

        Args:
            out: folder of the study, made if it does not exist; in memory alone if None.
            storage: URL of a database instead of a journal.
            show: is told how far the search is.
            ended: is told of every trial that has ended, and of the best so far.
            on: machines on which several trials are trained at once; this process if None.
        """
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        policy = self.config.policy
        known = policy if isinstance(policy, Architecture) else Architecture()
        start = {name: start_of(self.config.algorithm, known, name) for name in self.space}
        first: dict[str, Any] = {}
        for name, one in self.space.items():
            first |= one.first(name, start[name])
        study = Study(out, storage, self._facts(start), first)
        with trainers(on, self.config.env) as (at_once, begin):
            self._try(study, start, at_once, begin, show, ended)
            found = self._conclude(study, start, begin, show)
        if out is not None:
            found.write(out)
        return found

    def _facts(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """What all trials of a study have in common."""
        ranges = {name: one.described(start[name]) for name, one in self.space.items()}
        steps = {"environment_steps": self.environment_steps}
        return self.config.plain() | steps | {"ranges": ranges}

    def _try(
        self,
        study: Study,
        start: Mapping[str, Any],
        at_once: int,
        begin: Begin,
        show: Show,
        ended: Callable[[Trial, Trial | None], Any],
    ) -> None:
        """Train what the study wants to know of, until there are enough trials."""
        suggest = lambda trial: {
            name: one.suggest(trial, name, start[name]) for name, one in self.space.items()
        }
        under_way: deque[tuple[Any, Callable[[Moved], Result]]] = deque()
        try:
            while len(done := study.trials()) < self.trials:
                while len(under_way) < min(at_once, self.trials - len(done)):
                    trial, values = study.ask(suggest)
                    config = for_trial(self.config, values)
                    name = f"trial {trial.number}"
                    run = Run(name, config, self.environment_steps, study.bars())
                    under_way.append((trial, begin(run)))
                # The first that has begun, whichever ends first: see `trainers`.
                trial, result = under_way[0]
                found = _result_or_failure(result, self._told(show, trial, done))
                under_way.popleft()
                self._record(study, trial, found)
                ended(*_latest_and_best(study.trials(), trial.number))
        except BaseException:
            for trial, _ in under_way:
                study.put_back(trial)
            raise

    def _told(self, show: Show, trial: Any, done: list[Trial]) -> Moved:
        """Says how far the search is while it waits for a trial."""
        best = _best_or_none(done)
        note = f"trial {trial.number}" + (f"  best {best.value:.4g}" if best else "")
        moved = lambda fraction: show((len(done) + fraction) / (self.trials + 2), note)
        moved(0)
        return moved

    def _record(self, study: Study, trial: Any, found: Result | EnvironmentFailure) -> None:
        """Say what came out of a trial."""
        if isinstance(found, EnvironmentFailure):
            study.fail(trial, str(found))
            return
        study.record(trial, found.told, found.seconds)
        if found.stopped:
            study.prune(trial)
        elif found.reason:
            study.fail(trial, found.reason)
        else:
            study.complete(trial, float(found.curves.mean()))

    def _conclude(self, study: Study, start: Mapping[str, Any], begin: Begin, show: Show) -> Tuned:
        """Train the best settings and those of the start on seeds that no trial has seen."""
        done = study.trials()
        values = best_of(done).values
        before = dataclasses.replace(self.config, seeds=tuple(range(self.held_back)))
        tuned = with_values(before, values) if values != start else before
        configs = [before] if tuned is before else [before, tuned]
        runs = [begin(Run("held-back seeds", one, self.environment_steps)) for one in configs]
        share = lambda place, fraction: (self.trials + place + fraction) / (self.trials + 2)
        told = lambda place: lambda fraction: show(share(place, fraction), "held-back seeds")
        curves = [result(told(place)).curves for place, result in enumerate(runs)]
        return Tuned(
            config=tuned,
            start=before,
            values=values,
            environment_steps=self.environment_steps,
            trials=tuple(done),
            importances=study.importances(),
            curves={"start": curves[0], "tuned": curves[-1]},
        )


def best_of(trials: Sequence[Trial]) -> Trial:
    """The best of the trials that have come to their end.

    Raises:
        ValueError: if none has.
    """
    best = _best_or_none(trials)
    if best is None:
        reason = trials[-1].reason if trials else "there was none"
        raise ValueError(
            f"none of {len(trials)} trials came to its end; the last one: {reason.rstrip('.')}."
        )
    return best


def _result_or_failure(
    result: Callable[[Moved], Result], moved: Moved
) -> Result | EnvironmentFailure:
    """What came of a run, or how its environment failed; waits for it."""
    try:
        return result(moved)
    except EnvironmentFailure as failure:
        return failure


def _latest_and_best(trials: Sequence[Trial], number: int) -> tuple[Trial, Trial | None]:
    """The trial of a number, and the best so far."""
    (latest,) = [one for one in trials if one.number == number]
    return latest, _best_or_none(trials)


def _best_or_none(trials: Sequence[Trial]) -> Trial | None:
    complete = [one for one in trials if one.value is not None]
    return max(complete, key=lambda one: one.value or 0.0, default=None)
