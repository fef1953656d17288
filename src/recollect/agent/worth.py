"""What a trial of a search is worth: the mean of its learning curve, told as it goes on."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from recollect.agent.study import PLACES
from recollect.refusals import REFUSALS, SIGNAL
from recollect.run.session import Chunk, Session, Until
from recollect.run.show import fraction_done
from recollect.run.state import Curves


class Watch:
    """A watcher that tells Optuna how a trial does, and stops it if that is not enough.

    What is told at a place does not depend on how long chunks are.
    """

    def __init__(self, trial: Any, until: Until, moved: Callable[[float], Any]):
        self.trial = trial
        self.until = until
        self.moved = moved
        self.pruned = False
        self._told = 0

    def __call__(self, session: Session, chunk: Chunk) -> bool:
        self.moved(fraction_done(session, self.until))
        budget = self.until.environment_steps or 1
        reached = min(PLACES, int(PLACES * session.environment_steps.min() / budget))
        if reached == self._told:
            return True
        means = learning_curves(session.curves, budget).mean(0)
        so_far = np.cumsum(means) / np.arange(1, PLACES + 1)
        for place in range(self._told, reached):
            if np.isfinite(so_far[place]):
                self.trial.report(float(so_far[place]), place + 1)
                # At the last place there is nothing left to save.
                worse = place + 1 < PLACES and self.trial.should_prune()
                self.pruned = self.pruned or bool(worse)
        self._told = reached
        return not self.pruned


def places_of(environment_steps: int) -> Float[np.ndarray, " place"]:
    """Where learning curves are looked at."""
    return environment_steps * np.arange(1, PLACES + 1) / PLACES


def learning_curves(curves: Curves, environment_steps: int) -> Float[np.ndarray, "seed place"]:
    """Mean return of the latest episodes of every seed at evenly spaced environment steps.

    Before a seed's first episode has ended, its return stands in for what is not known; after the
    seed has stopped, the last one does. NaN for seeds without an episode.

    Args:
        curves: of a run.
        environment_steps: the last place.
    """
    places = places_of(environment_steps)
    rows = []
    for steps, returns in zip(curves["environment_steps"], curves["recent_return"], strict=True):
        known = np.isfinite(steps) & ~np.isnan(returns)
        there = np.interp(places, steps[known], returns[known]) if known.any() else np.nan
        rows.append(np.broadcast_to(there, places.shape))
    return np.stack(rows)


def failure(curves: Curves) -> str:
    """Why nothing came out of a run; empty if something did."""
    refused = curves["refused"]
    codes = refused[np.isfinite(refused)].astype(int)
    if ((codes > 0) & (codes != SIGNAL)).all():
        return f"every update was refused: {REFUSALS[codes[0]]}"
    returns = curves["recent_return"]
    if np.isnan(returns).all(1).any():
        return "no episode of some seed has ended"
    return "returns are not finite" if np.isinf(returns).any() else ""
