"""Settings and results as JSON."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np


def to_json(value) -> str:
    """Dataclasses, mappings, sequences, arrays and numbers as JSON on one line.

    A dataclass becomes an object with its class name under `kind`. NaN and −∞ become null, +∞ the
    string "infinity"; what has no form in JSON becomes its `repr`.

    Example:
        >>> from recollect.serial import to_json
        >>> to_json({"steps": 5, "score": float("nan"), "sizes": (2, 3)})
        '{"steps": 5, "score": null, "sizes": [2, 3]}'
    """
    return json.dumps(_plain(value), allow_nan=False)


def write_settings(path: Path, settings: Mapping) -> None:
    """Write settings to a file as indented JSON, so that a run can be repeated.

    Args:
        path: of the file, which is replaced.
        settings: what `to_json` takes.
    """
    text = json.dumps(_plain(settings), indent=2, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _plain(value):
    """`value` in terms of what `json` writes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        fields = {name: _plain(getattr(value, name)) for name in names}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "infinity" if value > 0 else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.ndarray | jax.Array):
        return _plain(np.asarray(value).tolist())
    return repr(value)
