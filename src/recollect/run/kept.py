"""A run that is kept in a file while it goes on, and gone on with where the file is there.

The file holds the state of the run, its curves and its settings. Settings have to be the same when
it is gone on with; limits may be others.
"""

import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.run.checkpoint import CheckpointError, read, write
from recollect.run.state import AbstractRun, Curves, RunState
from recollect.serial import to_json

SECONDS = 60.0
"""Between two times that the file is written, at least."""


class Kept:
    """The file of a run.

    Args:
        path: of the file, whose folder has to exist.
        settings: what the run depends on, beside its limits; anything that `to_json` takes.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        if not path.parent.is_dir():
            raise ValueError(f"checkpoint={str(path)!r} is in a folder that does not exist.")
        self.path = path
        self.settings = json.loads(to_json(settings))
        self._written = time.monotonic()

    def restore(self, run: AbstractRun) -> tuple[RunState, Curves, np.ndarray]:
        """The state that the run had, its curves until then, and its clock.

        Raises:
            CheckpointError: if the file is damaged or is of a run with other settings.
        """
        arrays, facts = read(self.path)
        for name, there, here in differences(facts.get("settings"), self.settings):
            raise CheckpointError(
                f"checkpoint={str(self.path)!r} is of a run with other settings: {name} is {there} "
                f"there, and {here} here; give the same, or another file."
            )
        state = run.restore(arrays, facts["iteration"])
        prefix = "['curves']['"
        curves = {
            name[len(prefix) : -2]: array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        return state, curves, arrays["['clock']"]

    def write(self, state: RunState, curves: Sequence[Curves], clock: np.ndarray) -> None:
        """Write the run as it is; what cannot be written is a warning, and the run goes on.

        Args:
            state: after an iteration.
            curves: chunks from the first iteration on.
            clock: seconds at the end of every iteration.
        """
        tree = {**state.tree(), "curves": joined(curves), "clock": np.asarray(clock)}
        facts = {"settings": self.settings, "iteration": state.iteration}
        try:
            write(self.path, tree, facts)
        except OSError as error:
            warnings.warn(
                f"checkpoint={str(self.path)!r} could not be written: {error}.", stacklevel=2
            )
        self._written = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._written >= SECONDS


def joined(chunks: Sequence[Curves]) -> Curves:
    """Curves of consecutive iterations as one, NaN where a figure was not measured."""
    names = {name: chunk[name] for chunk in chunks for name in chunk}
    nothing = lambda chunk, like: np.full(
        (*chunk["steps"].shape, *like.shape[2:]), np.nan, like.dtype
    )
    parts = lambda name, like: [chunk.get(name, nothing(chunk, like)) for chunk in chunks]
    return {name: np.concatenate(parts(name, like), axis=1) for name, like in names.items()}


def differences(one: Any, other: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two values in terms of JSON differ: a name such as `algorithm.damping`, and both.

    Example:
        >>> list(differences({"a": {"b": 1, "c": [2]}}, {"a": {"b": 1, "c": [3]}}))
        [('a.c', [2], [3])]
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            inner = f"{name}.{key}" if name else key
            yield from differences(one.get(key), other.get(key), inner)
    elif one != other:
        yield name or "the whole", one, other
