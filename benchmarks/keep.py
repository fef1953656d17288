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
        _write(path, label, measure())


def extend(path: Path, label: str, seeds: int, measure: Callable[[range], list[Any]]) -> None:
    """Measure the seeds that are missing, and write all figures down at once."""
    known = kept(path).get(label, [])
    if len(known) < seeds:
        _write(path, label, known + measure(range(len(known), seeds)))


def _write(path: Path, label: str, figures: Any) -> None:
    path.write_text(json.dumps({**kept(path), label: figures}, indent=1) + "\n", encoding="utf-8")
    print(label, figures, file=sys.stderr, flush=True)
