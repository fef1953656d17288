"""Figures of a run under the names that people's tools know, for loggers of any kind.

A logger is any object with the three methods of `Logger`. Tags are those of Stable-Baselines3 where
it has one (`rollout/ep_rew_mean`, `train/approx_kl`), and `reuse/…`, `solve/…` and `health/…` for
what it does not know.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from recollect.run.config import RunConfig
from recollect.run.session import Chunk, Session
from recollect.run.snapshot import Snapshot
from recollect.run.state import Curves

TAGS = {
    "recent_return": "rollout/ep_rew_mean",
    "length_mean": "rollout/ep_len_mean",
    "return_mean": "rollout/batch_rew_mean",
    "environment_steps": "time/total_timesteps",
    "kl": "train/approx_kl",
    "clip_fraction_by_age": "train/clip_fraction",
    "ess": "reuse/ess",
    "ess_by_age": "reuse/ess_age",
    "max_weight": "reuse/max_weight",
    "shares": "reuse/share_age",
    "old_share": "reuse/old_share",
    "gradient_noise": "reuse/gradient_noise",
    "disagreement": "reuse/disagreement",
    "signal_share": "reuse/signal_share",
    "ages_compared": "reuse/ages_compared",
    "ages_used": "reuse/ages_used",
    "error_left": "reuse/error_left",
    "gain": "reuse/gain",
    "gain_error": "reuse/gain_error",
    "solver_steps": "solve/steps",
    "solver_residual": "solve/residual",
    "damping": "solve/damping",
    "backtracks": "solve/backtracks",
    "refused": "health/refused",
}
"""Of curves; all others are `train/NAME`, unless they are tags themselves."""
FIRST = ("return_mean", "recent_return", "length_mean", "refused", "kl", "ess", "ess_by_age")
"""Columns of tables that come before the others."""


@runtime_checkable
class Logger(Protocol):
    """What is told about a run while it goes on. Steps are environment steps of the seed.

    Example:
        >>> import recollect as rc
        >>> class Printed:
        ...     def start(self, config, first_step):
        ...         print("seeds", config.seeds)
        ...
        ...     def log(self, seed, step, figures):
        ...         print(seed, step, figures["time/iterations"])
        ...
        ...     def close(self):
        ...         print("done")
        >>> batch = rc.Steps(copies=2, steps=8)
        >>> run = rc.train(
        ...     "CartPole-v1", rc.VPG(), collector=batch, iterations=2, loggers=[Printed()]
        ... )
        seeds (0,)
        0 16 1
        0 32 2
        done
    """

    def start(self, config: RunConfig, first_step: int) -> None:
        """Called before the first iteration.

        Args:
            config: the settings of the run.
            first_step: environment steps that the run has had already; what was logged beyond them
                belongs to a session that was cut short, and is logged again.
        """

    def log(self, seed: int, step: int, figures: Mapping[str, float]) -> None:
        """Called after every iteration of a seed.

        Args:
            seed: its number.
            step: environment steps that it has taken.
            figures: by tag; those that are not finite are left out.
        """

    def close(self) -> None:
        """Called at the end, however the run ends."""


class TensorBoard:
    """Writes event files for TensorBoard, a folder for each seed.

    Args:
        folder: where they go.

    Raises:
        ValueError: if tensorboardX is not installed.
    """

    def __init__(self, folder: str | Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ValueError(
                "TensorBoard needs a package that is not installed; pip install tensorboardX."
            ) from None
        self._make = SummaryWriter
        self.folder = Path(folder)
        self._writers: dict[int, Any] = {}

    def start(self, config: RunConfig, first_step: int) -> None:
        # Events of a session that was cut short are hidden by those that are logged again.
        purge = first_step + 1 if first_step else None
        # Names of files have seconds; another session in the same one has a file of its own.
        suffix = f".{first_step:015d}"
        for seed in config.seeds:
            folder = str(self.folder / f"seed_{seed}")
            self._writers[seed] = self._make(folder, purge_step=purge, filename_suffix=suffix)

    def log(self, seed: int, step: int, figures: Mapping[str, float]) -> None:
        for tag, value in figures.items():
            self._writers[seed].add_scalar(tag, value, step)
        self._writers[seed].flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


@contextlib.contextmanager
def logging_to(
    loggers: Sequence[Logger], config: RunConfig, snapshot: Snapshot | None, interval: int
) -> Iterator[Callable[[Session, Chunk], None]]:
    """A context with the watcher that tells loggers of every `interval`-th iteration."""
    first = 0
    if snapshot is not None and snapshot.iteration:
        first = int(np.nanmin(np.nanmax(snapshot.curves["environment_steps"], axis=1)))
    with contextlib.ExitStack() as stack:
        for logger in loggers:
            logger.start(config, first)
            stack.callback(logger.close)

        def log(session: Session, chunk: Chunk) -> None:
            if not loggers:
                return
            for column in range(len(chunk.clock)):
                if (chunk.first + column + 1) % interval == 0:
                    for row, seed in enumerate(session.seeds):
                        _tell(loggers, seed, figures_of(chunk, row, column))

        yield log


def _tell(loggers: Sequence[Logger], seed: int, figures: Mapping[str, float]) -> None:
    step = figures.get("time/total_timesteps")
    if step is not None:  # else the seed has stopped
        for logger in loggers:
            logger.log(seed, int(step), figures)


def figures_of(chunk: Chunk, row: int, column: int) -> dict[str, float]:
    """What loggers are told of one seed and iteration.

    Args:
        chunk: the iterations.
        row: of the seed.
        column: of the iteration.
    """
    figures: dict[str, float] = {}
    for name, curve in chunk.curves.items():
        tag = name if "/" in name else TAGS.get(name, f"train/{name}")
        value = curve[row, column]
        if curve.ndim == 2:
            figures[tag] = float(value)
        elif name == "clip_fraction_by_age":
            figures[tag] = float(np.mean(value))
        else:
            figures |= {f"{tag}_{age}": float(one) for age, one in enumerate(value)}
    figures = {tag: value for tag, value in figures.items() if math.isfinite(value)}
    seconds = float(chunk.clock[column])
    if "time/total_timesteps" in figures:
        figures["time/total_timesteps"] = int(figures["time/total_timesteps"])
        figures["time/fps"] = figures["time/total_timesteps"] / seconds if seconds else 0.0
        figures["time/iterations"] = chunk.first + column + 1
        figures["time/time_elapsed"] = seconds
    return figures


def flat_curves(curves: Curves) -> dict[str, np.ndarray]:
    """Curves with the axes seed, iteration: those by age become one for each age.

    What people look at first comes first, the others by name.
    """
    flat = {}
    order = lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name)
    for name in sorted(curves, key=order):
        curve = curves[name]
        if curve.ndim == 2:
            flat[name] = curve
        else:
            flat |= {f"{name}_{age}": curve[:, :, age] for age in range(curve.shape[2])}
    return flat
