"""The folder that a run is kept in, from which it is repeated, watched and gone on with.

    config.json          settings, limits, versions, command: repeats the run
    progress.csv         a row for every seed and iteration, as they happen
    SEED.monitor.csv     a row for every episode, in the format of Stable-Baselines3's Monitor
    checkpoints/         the whole run, the last two times that it was written
    best/                the best agent, if one was looked for

Rows are written after every chunk of iterations, a checkpoint every minute and whenever and however
the run ends. What cannot be written is a warning, and the run goes on.
"""

import dataclasses
import json
import platform
import re
import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from recollect.algorithms import AbstractAlgorithm
from recollect.checks import check_number
from recollect.devices import described, learning_devices
from recollect.policies.architecture import InitialPolicy
from recollect.run.checkpoint import PART, CheckpointError, create
from recollect.run.config import RunConfig
from recollect.run.files import BEST, CHECKPOINTS, CONFIG, LEADING, MONITOR, PROGRESS, read_facts
from recollect.run.log import flat_curves
from recollect.run.session import Chunk, Session, Until
from recollect.run.snapshot import Snapshot
from recollect.run.state import Curves

KEPT = 2
"""Checkpoints that are kept: if the newest is damaged, the one before is there."""
SECONDS = 60.0
"""Between two checkpoints, at least, if nothing else is asked for."""


class RunFolder:
    """The folder of one run.

    Args:
        path: of the folder.
        until: the limits of the run.
        seconds: between two checkpoints, at least.
    """

    def __init__(self, path: Path, until: Until, seconds: float = SECONDS):
        remedy = "give the seconds between two checkpoints, 0 for one after every chunk"
        check_number("checkpoint_seconds", seconds, low=0, infinite=True, remedy=remedy)
        self.path = path
        self.until = until
        self.seconds = seconds
        self._written = time.monotonic()
        self._files: dict[str, Appended] = {}
        self._failed = False

    @classmethod
    def create(
        cls,
        path: Path,
        config: RunConfig,
        until: Until,
        *,
        seconds: float = SECONDS,
        overwrite: bool = False,
        command: Sequence[str] = (),
    ) -> "RunFolder":
        """The folder of a run that has not begun.

        Args:
            path: of the folder, which is made if it does not exist.
            config: the settings of the run.
            until: its limits.
            seconds: between two checkpoints, at least.
            overwrite: delete the run that is there.
            command: that started it, if it was one.

        Raises:
            ValueError: if it holds a run, or cannot be written to.
        """
        text = _config_text(config, until, command)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if overwrite:
                delete_run(path)
            # Whoever makes this file has the folder.
            create(path / CONFIG, text.encode())
        except FileExistsError:
            if not path.is_dir():
                raise ValueError(f"{path} is a file; choose another folder.") from None
            raise ValueError(
                f"{path} holds a run already; resume or overwrite it, or choose another folder."
            ) from None
        except OSError as error:
            raise _unwritable(path, error) from None
        return cls(path, until, seconds)

    @classmethod
    def open(cls, path: Path, seconds: float = SECONDS) -> "RunFolder":
        """The folder of a run that was begun.

        Args:
            path: of the folder.
            seconds: between two checkpoints, at least.

        Raises:
            ValueError: if it holds no run.
        """
        return cls(path, Until(**read_config(path)["until"]), seconds)

    def latest(
        self,
        env: Any = None,
        algorithm: AbstractAlgorithm | str | None = None,
        policy: InitialPolicy = None,
        use: Iterable[type] = (),
    ) -> Snapshot:
        """The run as it was last written, or before its first iteration if it never was.

        A damaged checkpoint is a warning, and the one before it is taken.

        Args:
            env, algorithm, policy, use: what no file can hold; see `Snapshot.read`.

        Raises:
            CheckpointError: if there are checkpoints and all are damaged.
            ValueError: if something has to be given.
        """
        given: dict[str, Any] = dict(env=env, algorithm=algorithm, policy=policy, use=use)
        damaged = []
        for path in reversed(self.checkpoints()):
            try:
                snapshot = Snapshot.read(path, **given)
            except CheckpointError as error:
                damaged.append(error)
                continue
            for error in damaged:
                warnings.warn(f"{error} The checkpoint before it is taken.", stacklevel=3)
            return snapshot
        if damaged:
            raise damaged[0]
        config = RunConfig.from_plain(read_config(self.path)["settings"], **given)
        return Snapshot(config, {}, 0, {}, np.zeros(0))

    def checkpoints(self) -> list[Path]:
        """The files of the run's state, oldest first."""
        found = (self.path / CHECKPOINTS).glob("*.zip")
        return sorted(path for path in found if re.fullmatch(r"\d+", path.stem))

    def begin(self, config: RunConfig, snapshot: Snapshot | None) -> None:
        """Get ready for iterations after those of a snapshot; episodes beyond it are forgotten.

        Checkpoints beyond it are those that could not be read. They get another name, lest they
        count among the latest.

        Raises:
            ValueError: if the folder cannot be written to.
        """
        try:
            self._tidy(0 if snapshot is None else snapshot.iteration)
            self._open_monitors(config, {} if snapshot is None else snapshot.facts)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        self._written = time.monotonic()

    def _tidy(self, iteration: int) -> None:
        (self.path / CHECKPOINTS).mkdir(exist_ok=True)
        for part in (*self.path.glob(f".*{PART}"), *self.path.glob(f"{CHECKPOINTS}/.*{PART}")):
            part.unlink(missing_ok=True)
        for path in self.checkpoints():
            if int(path.stem) > iteration:
                path.replace(path.with_name(f"{path.name}.damaged"))

    def _open_monitors(self, config: RunConfig, facts: Mapping[str, Any]) -> None:
        lengths = facts.get("episodes", {})
        self._files = {}
        about = {"t_start": time.time(), "env_id": config.env_name}
        for seed in config.seeds:
            name = f"{seed}{MONITOR}"
            self._files[name] = Appended(self.path / name, lengths.get(name, 0))
            if not self._files[name].length:
                self._files[name].append(f"#{json.dumps(about)}\nr,l,t\n")

    def record(self, session: Session, chunk: Chunk) -> None:
        """Write the rows of new iterations, and all of the run if it is time to."""
        if PROGRESS in self._files:
            rows = progress_rows(session.seeds, chunk.first, chunk.curves, chunk.clock)
            self._files[PROGRESS].append(rows)
        else:
            self._write_progress(session)
        for row, seed in enumerate(session.seeds):
            self._files[f"{seed}{MONITOR}"].append(_episodes(chunk, row))
        if time.monotonic() - self._written >= self.seconds:
            self.checkpoint(session)

    def _write_progress(self, session: Session) -> None:
        """Write all rows anew: a session that was cut short may have left others."""
        self._files[PROGRESS] = Appended(self.path / PROGRESS)
        rows = progress_rows(session.seeds, 0, session.curves, session.clock, header=True)
        self._files[PROGRESS].append(rows)

    def checkpoint(self, session: Session) -> None:
        """Write all of the run; what cannot be written is a warning."""
        path = self.path / CHECKPOINTS / f"{session.iteration:08d}.zip"
        lengths = {name: file.length for name, file in self._files.items() if name != PROGRESS}
        try:
            session.snapshot(episodes=lengths).write(path)
            for old in self.checkpoints()[:-KEPT]:
                old.unlink()
            self._failed = False
        except OSError as error:
            if not self._failed:  # said once, however often it is tried
                warnings.warn(f"{path} could not be written: {error}.", stacklevel=2)
            self._failed = True
        self._written = time.monotonic()

    def finish(self, session: Session) -> None:
        """Write all of the run at its end."""
        if session.iteration:
            if PROGRESS not in self._files:
                self._write_progress(session)
            self.checkpoint(session)
        for file in self._files.values():
            file.close()


class Appended:
    """A text file that grows, never by a part of what is appended.

    Args:
        path: of the file.
        length: in bytes; what the file holds beyond that is cut off.
    """

    def __init__(self, path: Path, length: int = 0):
        path.touch()
        self.path = path
        self.length = min(length, path.stat().st_size)
        self._waiting = b""
        self._file = path.open("r+b", buffering=0)
        self._file.truncate(self.length)
        self._file.seek(self.length)

    def append(self, text: str) -> None:
        """Write a text at the end; what cannot be written now waits for the next time."""
        first_failure = not self._waiting
        self._waiting += text.encode()
        try:
            done = 0
            while done < len(self._waiting):
                done += self._file.write(self._waiting[done:])
            self.length += done
            self._waiting = b""
        except OSError as error:
            self._file.truncate(self.length)
            self._file.seek(self.length)
            if first_failure:
                warnings.warn(f"{self.path} could not be written: {error}.", stacklevel=2)

    def close(self) -> None:
        self._file.close()


def progress_rows(
    seeds: Sequence[int], first: int, curves: Curves, clock: np.ndarray, header: bool = False
) -> str:
    """Rows of the progress as text, iteration by iteration, without seeds that have stopped.

    Args:
        seeds: of the rows of the curves.
        first: iterations before the first column.
        curves: the figures.
        clock: seconds at the end of every iteration.
        header: whether the names of the columns come first.
    """
    steps = curves["environment_steps"]
    figures = flat_curves({name: x for name, x in curves.items() if name != "environment_steps"})
    lines = [",".join((*LEADING, *figures, "seconds"))] if header else []
    for column, row in np.argwhere(np.isfinite(steps.T)):
        leading = f"{seeds[row]},{first + column + 1},{int(steps[row, column])}"
        values = [f"{curve[row, column]:.6g}" for curve in figures.values()]
        lines.append(",".join([leading, *values, f"{clock[column]:.4f}"]))
    return "".join(f"{line}\n" for line in lines)


def _episodes(chunk: Chunk, row: int) -> str:
    """Rows of a seed's episodes in a chunk: return, length, seconds since the start."""
    lines = []
    for column, ending in np.argwhere(np.isfinite(chunk.episode_lengths[row])):
        total = chunk.episode_returns[row, column, ending]
        length = chunk.episode_lengths[row, column, ending]
        lines.append(f"{total:.6f},{length:.0f},{chunk.clock[column]:.6f}\n")
    return "".join(lines)


def write_config(path: Path, config: RunConfig, until: Until) -> None:
    """Write what `recollect train --config` repeats, without the folder of a run.

    Args:
        path: of the file, which is replaced.
        config: the settings.
        until: the limits.
    """
    path.write_text(_config_text(config, until), encoding="utf-8")


def _config_text(config: RunConfig, until: Until, command: Sequence[str] = ()) -> str:
    """What config.json says of a run."""
    facts = {
        "command": list(command),
        "versions": versions(),
        "name": config.algorithm_name,
        "settings": config.plain(),
        "changed": [list(one) for one in config.changed()],
        "until": dataclasses.asdict(until),
    }
    return json.dumps(facts, indent=2, allow_nan=False) + "\n"


def _unwritable(path: Path, error: OSError) -> ValueError:
    return ValueError(f"{path} cannot be written to: {error.strerror}; choose another folder.")


def read_config(folder: Path) -> dict[str, Any]:
    """What the config.json of a run says.

    Args:
        folder: of the run, or the file itself.

    Raises:
        ValueError: if there is none, or it is not one.
    """
    facts = read_facts(folder)
    try:
        Until(**facts["until"])
    except (ValueError, TypeError) as error:
        path = folder if folder.suffix == ".json" else folder / CONFIG
        raise ValueError(f"{path} does not describe a run: {error}.") from None
    return facts


def holds_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / CONFIG).is_file()


def versions() -> dict[str, str]:
    """Of what a run's results depend on."""
    packages = ("recollect", "jax", "jaxlib", "equinox", "optax", "lineax", "numpy", "gymnasium")
    return {
        "python": platform.python_version(),
        "platform": sys.platform,
        "devices": described(learning_devices()),
        **{name: version(name) for name in packages},
    }


def delete_run(folder: Path) -> None:
    """Delete what `RunFolder` writes, and nothing else."""
    for name in (CHECKPOINTS, BEST):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in (folder / PROGRESS, *folder.glob(f"*{MONITOR}"), folder / CONFIG):
        path.unlink(missing_ok=True)
