"""Settings and results as JSON and CSV, and settings back from JSON."""

import csv
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

KIND = "kind"
"""Key of the name of a dataclass."""
OBJECT = "object"
"""Key of the name of something that has no form in JSON."""
INFINITIES = {math.inf: "infinity", -math.inf: "-infinity"}


def to_json(value) -> str:
    """Dataclasses, mappings, sequences, arrays and numbers as JSON on one line.

    A dataclass becomes an object with its class name under `kind`. NaN becomes null, infinities
    the strings "infinity" and "-infinity". What has no form in JSON, such as a function, becomes an
    object with its name under `object`.

    Example:
        >>> from recollect.serial import to_json
        >>> to_json({"steps": 5, "score": float("nan"), "sizes": (2, 3)})
        '{"steps": 5, "score": null, "sizes": [2, 3]}'
    """
    return json.dumps(to_plain(value), allow_nan=False)


def write_settings(path: Path, settings: Mapping) -> None:
    """Write settings to a file as indented JSON, so that a run can be repeated.

    Args:
        path: of the file, which is replaced.
        settings: what `to_json` takes.
    """
    text = json.dumps(to_plain(settings), indent=2, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def write_csv(path: Path, columns: Iterable[object], rows: Iterable[Iterable[object]]) -> None:
    """Write a table as CSV in UTF-8.

    Args:
        path: of the file.
        columns: their names, the first row of the file.
        rows: the others.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def to_plain(value) -> Any:
    """`value` in terms of what `json` writes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        fields = {name: to_plain(getattr(value, name)) for name in names}
        return {KIND: type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else INFINITIES.get(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.ndarray | jax.Array):
        return to_plain(np.asarray(value).tolist())
    return {OBJECT: object_name(value)}


def to_code(value: Any) -> str:
    """Settings as an expression of Python, with `import recollect as rc`; defaults are left out.

    Example:
        >>> import recollect as rc
        >>> from recollect.serial import to_code
        >>> to_code(rc.TRPO(window=5, advantages=rc.VTrace(gae_lambda=0.9)))
        'rc.TRPO(window=5, advantages=rc.VTrace(gae_lambda=0.9))'
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value.item() if isinstance(value, np.generic) else value)
    name = type(value).__name__
    ours = type(value).__module__.startswith("recollect.")
    given = []
    for field in dataclasses.fields(value):
        setting = getattr(value, field.name)
        made = field.default_factory
        usual = field.default if made is dataclasses.MISSING else made()
        if field.init and to_plain(setting) != to_plain(usual):
            given.append(f"{field.name}={to_code(setting)}")
    return f"{'rc.' * ours}{name}({', '.join(given)})"


def object_name(value: Any) -> str:
    """What a file calls something that it cannot hold: a name without addresses."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def from_plain(plain: Any, kinds: Mapping[str, type], name: str = "settings") -> Any:
    """What `to_plain` was given, as far as `kinds` and JSON can tell.

    Lists become tuples. Nothing is imported: a class that is not among `kinds` is refused.

    Args:
        plain: what `json` has read.
        kinds: the classes that may be made, by name.
        name: what error messages call it.

    Raises:
        ValueError: if it names a class that is not known, an object that no file can hold, or
            settings that the class refuses.

    Example:
        >>> import recollect as rc
        >>> from recollect.serial import from_plain, to_plain
        >>> from_plain(to_plain(rc.Steps(copies=2)), {"Steps": rc.Steps}) == rc.Steps(copies=2)
        True
    """
    if isinstance(plain, list):
        return tuple(from_plain(one, kinds, f"{name}[{i}]") for i, one in enumerate(plain))
    if isinstance(plain, str):
        return {text: number for number, text in INFINITIES.items()}.get(plain, plain)
    if not isinstance(plain, dict):
        return plain
    if OBJECT in plain:
        raise ValueError(f"{name} was {plain[OBJECT]}, which no file can hold; give it again.")
    if KIND not in plain:
        return {key: from_plain(one, kinds, f"{name}.{key}") for key, one in plain.items()}
    kind = plain[KIND]
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(
            f"{name} is a {kind!r:.80}, which is not part of recollect; give its class."
        )
    fields = {
        key: from_plain(one, kinds, f"{name}.{key}") for key, one in plain.items() if key != KIND
    }
    try:
        return kinds[kind](**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None


def differences(one: Any, other: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two values in terms of JSON differ: a name such as `algorithm.damping`, and both.

    Example:
        >>> from recollect.serial import differences
        >>> list(differences({"a": {"b": 1, "c": [2]}}, {"a": {"b": 1, "c": [3]}}))
        [('a.c', [2], [3])]
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            inner = f"{name}.{key}" if name else key
            yield from differences(one.get(key), other.get(key), inner)
    elif one != other:
        yield name or "the whole", one, other
