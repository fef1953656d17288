"""What a trial of a search is worth: the mean of its learning curve, looked at as it goes on."""

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
    """A watcher that keeps how a trial does, and stops it if that is not enough.

    What is found at a place does not depend on how long chunks are.

    Args:
        bars: at each place, what the best mean so far must not be below; NaN or minus infinity
            where anything will do; None everywhere.
        until: when the trial ends.
        moved: is told which share is done.
    """

    def __init__(
        self,
        bars: Float[np.ndarray, " place"] | None,
        until: Until,
        moved: Callable[[float], Any],
    ):
        self.bars = np.full(PLACES, -np.inf) if bars is None else bars
        self.until = until
        self.moved = moved
        self.told = np.full(PLACES, np.nan)
        """The mean of the learning curves so far, at each place that was reached."""
        self.stopped = False
        self._reached = 0

    def __call__(self, session: Session, chunk: Chunk) -> bool:
        self.moved(fraction_done(session, self.until))
        budget = self.until.environment_steps or 1
        reached = min(PLACES, int(PLACES * session.environment_steps.min() / budget))
        if reached == self._reached:
            return True
        means = learning_curves(session.curves, budget).mean(0)
        so_far = np.cumsum(means) / np.arange(1, PLACES + 1)
        for place in range(self._reached, reached):
            if np.isfinite(so_far[place]):
                self.told[place] = so_far[place]
                # At the last place there is nothing left to save.
                worse = place + 1 < PLACES and np.nanmax(self.told) < self.bars[place]
                self.stopped = self.stopped or bool(worse)
        self._reached = reached
        return not self.stopped


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
