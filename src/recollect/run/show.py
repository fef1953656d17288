"""What a person sees of a run: a bar or lines while it goes on, and a summary of what it is."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from recollect.algorithms import ALGORITHMS
from recollect.policies.architecture import Architecture
from recollect.run.config import RunConfig
from recollect.run.session import Chunk, Session, Until, Watcher
from recollect.run.snapshot import Snapshot
from recollect.runtime import progress_bar
from recollect.serial import differences, to_plain

LINE_SECONDS = 10.0
"""Between two lines of a run that no terminal shows."""


@contextlib.contextmanager
def bar(visible: bool, label: str, until: Until) -> Iterator[Watcher]:
    """A context with the watcher that moves a progress bar on standard error."""
    with progress_bar(visible, label) as show:
        yield lambda session, chunk: show(fraction_done(session, until), note(session, chunk))


class Lines:
    """A watcher that prints a line now and then, for logs and pipes.

    Args:
        until: the limits of the run.
        label: what the lines begin with.
        write: prints a line.
        seconds: between two lines, at least.
    """

    def __init__(
        self,
        until: Until,
        label: str,
        write: Callable[[str], Any],
        seconds: float = LINE_SECONDS,
    ):
        self.until = until
        self.label = label
        self.write = write
        self.seconds = seconds
        self._last = time.monotonic()

    def __call__(self, session: Session, chunk: Chunk) -> None:
        now = time.monotonic()
        if now - self._last >= self.seconds:
            self._last = now
            done = fraction_done(session, self.until)
            self.write(f"{self.label} {done:4.0%}  {note(session, chunk)}")


def fraction_done(session: Session, until: Until) -> float:
    """How much of the way to the nearest limit is done."""
    furthest = float(session.environment_steps.max())
    by_iterations = session.iteration / (until.iterations or np.inf)
    return min(1.0, max(by_iterations, furthest / (until.environment_steps or np.inf)))


def note(session: Session, chunk: Chunk) -> str:
    """Where a run is: iteration, steps of a seed, their speed, return, effective sample size."""
    latest = chunk.latest
    steps = session.environment_steps
    taken = np.nansum(latest["environment_steps"] - _before(session, chunk))
    speed = taken / chunk.seconds if chunk.seconds else 0.0
    parts = [f"iteration {session.iteration}", f"{steps.mean():,.0f} steps", f"{speed:,.0f}/s"]
    returns = latest["recent_return"]
    there = returns[np.isfinite(returns)]
    parts.append(f"return {there.mean():.1f}" if there.size else "no episode has ended")
    ess = latest["ess"][np.isfinite(latest["ess"])]
    if ess.size:
        parts.append(f"ESS {ess.mean():,.0f}")
    return "  ".join(parts)


def _before(session: Session, chunk: Chunk) -> np.ndarray:
    """Environment steps of every seed before a chunk, which is the latest."""
    if chunk.first == 0:
        return np.zeros(len(session.seeds))
    return session.curves["environment_steps"][:, chunk.first - 1]


def summary_of(snapshot: Snapshot) -> str:
    """What a run is and how far it has come, in some ten lines."""
    config = snapshot.config
    lines = [f"{config.algorithm_name} on {config.env_name}"]
    lines.append(f"  settings     {described(config)}")
    lines.append(f"  collects     {config.collector}")
    lines.append(f"  policy       {config.policy or Architecture()!r:.80}")
    seeds = ", ".join(map(str, config.seeds[:10])) + (", …" if len(config.seeds) > 10 else "")
    lines.append(f"  seeds        {seeds}")
    if not snapshot.iteration:
        return "\n".join([*lines, "  has not learned yet"])
    curves = snapshot.curves
    last = lambda name: np.array([row[np.isfinite(row)][-1:] for row in curves[name]]).ravel()
    steps = last("environment_steps")
    lines.append(f"  iterations   {snapshot.iteration:,}")
    lines.append(f"  steps        {steps.mean():,.0f} of every seed")
    returns = last("recent_return")
    if returns.size:
        spread = f" ± {returns.std(ddof=1) / returns.size**0.5:.1f}" if returns.size > 1 else ""
        lines.append(f"  return       {returns.mean():.1f}{spread}, mean of the latest episodes")
    else:
        lines.append("  return       no episode has ended")
    refused = int((curves["refused"] > 0).sum())
    lines.append(
        f"  refused      {refused} of {int(np.isfinite(curves['refused']).sum()):,} updates"
    )
    lines.append(f"  seconds      {snapshot.clock[-1]:,.1f}")
    return "\n".join(lines)


def described(config: RunConfig) -> str:
    """The settings of a run's algorithm that differ from the defaults."""
    name = config.algorithm_name
    if name not in ALGORITHMS:
        return str(config.algorithm)
    apart = differences(to_plain(ALGORITHMS[name]()), to_plain(config.algorithm))
    changed = [f"{field}={ours}" for field, _, ours in apart]
    return ", ".join(changed) if changed else "defaults"
