"""Objects as bytes for another process, with the code of scripts that it cannot import.

A class of a script, of a notebook or of a file beside them travels by value. So actors need no
module search path of this process: none of them looks for modules in the current directory, where
a file could take the place of a module of the standard library.
"""

import contextlib
import pickle
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle


def packed(value: Any) -> bytes:
    """An object as bytes.

    Raises:
        ValueError: if it refers to something that cannot be sent, such as an open file.

    Example:
        >>> from recollect.machines.packing import packed, unpacked
        >>> unpacked(packed(lambda x: x + 1))(2)
        3
    """
    (one,) = packed_each([value])
    return one


def packed_each(values: Iterable[Any]) -> list[bytes]:
    """`packed` of each; looking for modules that have to travel takes longer than the rest."""
    with _by_value(_own_modules()):
        return [_dumped(value) for value in values]


def _dumped(value: Any) -> bytes:
    try:
        return cloudpickle.dumps(value)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ValueError(
            f"{value!r:.60} cannot be sent to another process: {error}; make what cannot be "
            "sent, such as an open file or a lock, inside the function that makes the copy."
        ) from error


unpacked = pickle.loads
"""The object of `packed`."""


def _own_modules() -> list[ModuleType]:
    """Modules from the folder of the script or from the current one, which only this process
    finds."""
    homes = {Path(sys.path[0] or ".").resolve(), Path.cwd()}
    paths = sysconfig.get_paths()
    installed = [Path(paths[name]).resolve() for name in ("stdlib", "purelib", "platlib")]
    installed.append(Path(__file__).resolve().parents[1])

    below = lambda path, folders: any(path.is_relative_to(folder) for folder in folders)
    own = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # Names may stand for anything there; the main module always travels by value.
        if not file or not isinstance(module, ModuleType) or name != module.__name__:
            continue
        path = Path(file).resolve()
        if name != "__main__" and below(path, homes) and not below(path, installed):
            own.append(module)
    return own


@contextlib.contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    registered = cloudpickle.list_registry_pickle_by_value()
    new = [module for module in modules if module.__name__ not in registered]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)
