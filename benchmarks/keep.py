"""Measurements that take long are written down one by one.

A benchmark that was stopped goes on where it was.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kept(path: Path) -> dict[str, Any]:
    """What has been measured so far."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def remember(path: Path, label: str, measure: Callable[[], Any]) -> None:
    """Measure unless that has been done, and write the figures down at once."""
    if label not in kept(path):
        write(path, label, measure())


def extend(path: Path, label: str, seeds: int, measure: Callable[[range], list[Any]]) -> None:
    """Measure the seeds that are missing, and write all figures down at once."""
    known = kept(path).get(label, [])
    if len(known) < seeds:
        write(path, label, known + measure(range(len(known), seeds)))


def write(path: Path, label: str, figures: Any) -> None:
    """Write figures down, in a line of their own."""
    rows = {**kept(path), label: figures}
    lines = [f"{json.dumps(label)}: {json.dumps(figures)}" for label, figures in rows.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(label, figures, file=sys.stderr, flush=True)
