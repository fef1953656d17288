"""Results of tasks that are kept in files, so that work that was stopped goes on where it was.

`with tasks_kept(folder)` around what maps functions over tasks is enough, as `with tasks_on(...)`
is for where they are done. What a task gives is kept when it arrives, in the process that was
started, with all that it depends on: other settings are other tasks.
"""

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.machines.base import Task
from recollect.machines.tasks import map_tasks
from recollect.serial import object_name, to_json

_folder: contextvars.ContextVar[Path | None] = contextvars.ContextVar("folder", default=None)


@dataclasses.dataclass(frozen=True)
class File:
    """Arrays, with what they depend on."""

    path: Path
    about: str
    """The settings, as JSON."""
    seeds: Sequence[int] = ()

    def fits(self) -> bool:
        """Whether what is kept there is whole, and was made with the same settings."""
        try:
            with np.load(self.path) as kept:
                whole = kept.zip.testzip() is None
                return whole and json.loads(str(kept["about"])) == json.loads(self.about)
        except Exception:  # of a dozen kinds; what cannot be read is computed again
            return False

    def keep(self, arrays: Mapping[str, Any]) -> None:
        """Under another name first, and on the disk: a file that has its own is a whole one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(f".{os.getpid()}.part.npz")
        with unfinished.open("wb") as file:
            np.savez_compressed(file, about=self.about, **arrays)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path)

    def read(self) -> dict[str, np.ndarray]:
        """The arrays by name."""
        with np.load(self.path) as kept:
            return {name: kept[name] for name in kept.files if name != "about"}


@contextlib.contextmanager
def tasks_kept(folder: Path) -> Iterator[None]:
    """A context in which `map_kept` keeps results in a folder, and takes those that are there."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def map_kept(
    function: Callable[[Task], Mapping[str, Any]],
    tasks: Sequence[Task],
    apart: bool = True,
    work: Callable[[Task], float] | None = None,
) -> list[dict[str, np.ndarray]]:
    """`map_tasks` of a function that gives arrays, without the tasks whose arrays are kept.

    Args:
        function: as for `map_tasks`; its name is part of what is kept.
        tasks: dataclasses, sequences, arrays and numbers, which `to_json` can tell apart.
        apart: whether other processes are worth starting; else they are computed in this one.
        work: of a task; the longest are begun first, so that no core waits for another at the end.

    Returns:
        What every task gave, in the order of the tasks.
    """
    folder = _folder.get()
    files = [None if folder is None else _file(folder, function, task) for task in tasks]
    missing = [place for place, file in enumerate(files) if file is None or not file.fits()]
    if work is not None:
        missing.sort(key=lambda place: -work(tasks[place]))
    found: dict[int, dict[str, np.ndarray]] = {}

    def arrived(number: int, arrays: Mapping[str, Any]) -> None:
        place = missing[number]
        found[place] = {name: np.asarray(values) for name, values in arrays.items()}
        file = files[place]
        if file is not None:
            file.keep(found[place])

    asked = [tasks[place] for place in missing]
    if apart:
        map_tasks(function, asked, arrived=arrived)
    else:
        for number, task in enumerate(asked):
            arrived(number, function(task))
    return [
        file.read() if file is not None and place not in found else found[place]
        for place, file in enumerate(files)
    ]


def _file(folder: Path, function: Callable, task: Any) -> File:
    """Where the arrays of a task are kept."""
    about = to_json([object_name(function), task])
    return File(folder / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.npz", about)
