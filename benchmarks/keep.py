"""Measurements that take long are written down one by one, so that a benchmark that was stopped goes on where it was."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kept(path: Path) -> dict[str, Any]:
    """What has been measured so far."""
    return json.loads(path.read_text()) if path.exists() else {}


def remember(path: Path, label: str, measure: Callable[[], Any]) -> None:
    """Measure unless that has been done, and write the figures down at once."""
    if label in kept(path):
        return
    found = measure()
    path.write_text(json.dumps({**kept(path), label: found}, indent=1) + "\n")
    print(label, found, file=sys.stderr, flush=True)
