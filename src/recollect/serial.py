"""Settings and results as JSON."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np


def to_json(value) -> str:
    """Dataclasses and mappings as JSON, with null for numbers that are not finite."""
    return json.dumps(_plain(value), allow_nan=False)


def write_settings(path: Path, settings: Mapping) -> None:
    """Everything needed to repeat the run."""
    text = json.dumps(_plain(settings), indent=2, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _plain(value):
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else ("infinity" if value > 0 else None)
    if value is None or isinstance(value, bool | int | str):
        return value
    return (
        _plain(np.asarray(value).tolist())
        if isinstance(value, np.ndarray | jax.Array)
        else repr(value)
    )
