"""Measurements that take long are written down one by one.

A benchmark that was stopped goes on where it was.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def kept(path: Path) -> dict[str, Any]:
    """What has been measured so far."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def remember(path: Path, label: str, measure: Callable[[], Any]) -> None:
    """Measure unless that has been done, and write the figures down at once."""
    if label not in kept(path):
        write(path, label, measure())


def missing(path: Path, wanted: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Where seeds have not been measured: label, the first such seed, and how many there shall be.

    Args:
        path: where figures are kept.
        wanted: how many seeds there shall be, by label.
    """
    begun = {label: len(kept(path).get(label, [])) for label in wanted}
    return [(label, begun[label], end) for label, end in wanted.items() if begun[label] < end]


def append(path: Path, seeds: tuple[str, int, int], figures: list[Any]) -> None:
    """Write the figures of seeds that were `missing` down beside those of others."""
    label, _, _ = seeds
    write(path, label, kept(path).get(label, []) + figures)


def write(path: Path, label: str, figures: Any) -> None:
    """Write figures down, in a line of their own."""
    rows = {**kept(path), label: figures}
    lines = [f"{json.dumps(label)}: {json.dumps(figures)}" for label, figures in rows.items()]
    # A run that is ended here must not leave half a file.
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    unfinished.replace(path)
    print(f"Kept: {label}", file=sys.stderr, flush=True)
