"""A study of Optuna: where its trials are kept, who takes the next one, and which there were.

A study is a journal, a file that only grows, so that it can be stopped at any moment, gone on with,
and shared by processes on one file system; or a database that SQLAlchemy knows. Trials do not know
of each other but through it. Each first says what it will try, so that no two try the same.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from recollect.agent.ranges import DISTANCE
from recollect.run.session import deferred_interrupts
from recollect.serial import differences

NAME = "recollect"
"""Of the study; a journal or database holds one."""
JOURNAL = "study.journal"
STARTUP = 10
"""Trials that are drawn at random before others follow what was learned from them."""
PLACES = 20
"""At which a learning curve is looked at, evenly spaced in environment steps."""
UNPRUNED = 5
"""Trials that are finished before one may be stopped for doing worse than the median."""
UNPRUNED_PLACES = PLACES // 2
"""That a trial reaches in any case: what differs early is luck, and all would be stopped."""
BEST_SHARE = 0.25
"""Of the trials, those whose settings importance is judged by."""
JUDGED = 8
"""Trials that have to be finished before importance is judged: two in the best quarter."""
SETTINGS = "settings"
VALUES = "values"
REASON = "reason"
SECONDS = "seconds"
"""Attributes of studies and trials."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Settings that were tried.

    Args:
        number: of the trial.
        outcome: `complete`, `pruned` (stopped early), `failed`, or `running`.
        value: mean of the learning curve; None unless it is complete.
        values: the settings.
        seconds: that it took.
        reason: why it failed.
    """

    number: int
    outcome: str
    value: float | None
    values: Mapping[str, Any]
    seconds: float
    reason: str = ""


class Study:
    """The trials of one search.

    Args:
        place: folder of the journal; in memory alone if None.
        url: of a database to use instead of a journal.
        facts: in terms of JSON, what all trials of a study have in common.
        first: what the first trial takes, by the names that Optuna knows.

    Raises:
        ValueError: if Optuna is missing, the study cannot be read, or it is one of other facts.
    """

    def __init__(
        self, place: Path | None, url: str | None, facts: dict[str, Any], first: dict[str, Any]
    ):
        self._optuna = import_optuna()
        self._entropy = facts["seeds"][0]
        where = url or ("memory" if place is None else str(place / JOURNAL))
        try:
            self._study = self._open(place, url)
        except (*_unreadable(), KeyError, ValueError, OSError) as error:
            said = str(error).splitlines()[0].rstrip(".")
            raise ValueError(f"{where} holds no study that can be read: {said}.") from None
        known = self._study.user_attrs.get(SETTINGS)
        plain = json.loads(json.dumps(facts))
        if known is None:
            self._study.set_user_attr(SETTINGS, plain)
            self._study.enqueue_trial(first)
            return
        for name, before, now in differences(known, plain):
            raise ValueError(
                f"{where} holds a study with {name}={before}, not {now}; give another --out."
            )

    def _open(self, place: Path | None, url: str | None) -> Any:
        optuna = self._optuna
        storage: Any = url
        if url is None and place is not None:
            backend = optuna.storages.journal.JournalFileBackend(str(place / JOURNAL))
            storage = optuna.storages.JournalStorage(backend)
        return optuna.create_study(
            storage=storage,
            study_name=NAME,
            direction="maximize",
            load_if_exists=True,
        )

    def ask(self, suggest: Callable[[Any], dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
        """The next trial, a trial of Optuna's that is given to nobody else, and its settings.

        Args:
            suggest: settings of a trial.
        """
        with deferred_interrupts():
            # Drawn anew for every trial: a study that goes on does not repeat itself.
            drawn = self._entropy + len(self._study.get_trials(deepcopy=False))
            self._study.sampler = self._optuna.samplers.TPESampler(
                n_startup_trials=STARTUP, multivariate=True, seed=drawn
            )
            trial = self._study.ask()
            values = suggest(trial)
            trial.set_user_attr(VALUES, values)
            return trial, values

    def bars(self) -> Float[np.ndarray, " place"]:
        """Below which a trial that begins now is to be stopped, at each place: the median of those
        that are finished. Minus infinity where it goes on in any case, NaN where nothing is known.
        """
        found = np.full(PLACES, -np.inf)
        complete = self._study.get_trials(
            deepcopy=False, states=(self._optuna.trial.TrialState.COMPLETE,)
        )
        if len(complete) >= UNPRUNED:
            for place in range(UNPRUNED_PLACES, PLACES + 1):
                known = [one.intermediate_values.get(place, np.nan) for one in complete]
                there = np.array(known)[np.isfinite(known)]
                found[place - 1] = np.median(there) if there.size else np.nan
        return found

    def record(self, trial: Any, told: Float[np.ndarray, " place"], seconds: float) -> None:
        """Write down how a trial did on its way, from which `bars` follow, and what it took."""
        with deferred_interrupts():
            for place in np.flatnonzero(np.isfinite(told)):
                trial.report(float(told[place]), int(place) + 1)
            trial.set_user_attr(SECONDS, seconds)

    def complete(self, trial: Any, value: float) -> None:
        """Say what came out of a trial."""
        with deferred_interrupts():
            self._study.tell(trial, value)

    def prune(self, trial: Any) -> None:
        """Say that a trial was stopped early, as it did worse than others."""
        with deferred_interrupts():
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)

    def fail(self, trial: Any, reason: str) -> None:
        """Say that nothing came out of a trial, and why."""
        with deferred_interrupts():
            trial.set_user_attr(REASON, reason)
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    def put_back(self, trial: Any) -> None:
        """Let a trial that was interrupted be taken again, from its beginning."""
        with deferred_interrupts():
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            self._study.enqueue_trial(trial.params)

    def trials(self) -> list[Trial]:
        """All trials that have ended, in their order; not those that were interrupted."""
        states = self._optuna.trial.TrialState
        outcomes = {states.COMPLETE: "complete", states.PRUNED: "pruned", states.FAIL: "failed"}
        found = []
        for one in self._study.get_trials(deepcopy=False, states=tuple(outcomes)):
            reason = one.user_attrs.get(REASON, "")
            if one.state == states.FAIL and not reason:
                continue
            seconds = one.user_attrs.get(SECONDS, 0.0)
            value = one.value if one.state == states.COMPLETE else None
            values = one.user_attrs.get(VALUES, {})
            found.append(Trial(one.number, outcomes[one.state], value, values, seconds, reason))
        return found

    def importances(self) -> dict[str, float]:
        """How much each setting decides whether a trial is among the best, most important first.

        PED-ANOVA (Watanabe, Bansal and Hutter 2023): the variance of the density of the best
        quarter. Empty while there are too few trials to tell.
        """
        if sum(one.outcome == "complete" for one in self.trials()) < JUDGED:
            return {}
        evaluator = self._optuna.importance.PedAnovaImportanceEvaluator
        with contextlib.suppress(ValueError, RuntimeError):
            judged = evaluator(target_quantile=BEST_SHARE)
            found = self._optuna.importance.get_param_importances(self._study, evaluator=judged)
            return {name.removeprefix(DISTANCE): share for name, share in found.items()}
        return {}


def import_optuna() -> Any:
    """Optuna, which does not write to the terminal.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ValueError(
            "tune needs a package that is not installed; pip install 'recollect[tune]'."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _unreadable() -> tuple[type[Exception], ...]:
    """What Optuna raises for a database or journal that it cannot read."""
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    return OptunaError, SQLAlchemyError
