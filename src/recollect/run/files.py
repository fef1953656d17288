"""The names of a run's files, and what config.json says; read without JAX."""

import json
from pathlib import Path
from typing import Any

CONFIG = "config.json"
PROGRESS = "progress.csv"
CHECKPOINTS = "checkpoints"
BEST = "best"
MONITOR = ".monitor.csv"
LEADING = ("seed", "iteration", "environment_steps")
"""First columns of the progress."""


def read_facts(folder: Path) -> dict[str, Any]:
    """What the config.json of a run says, unchecked but for its shape.

    Args:
        folder: of the run, or the file itself.

    Raises:
        ValueError: if there is none, or it is not one.
    """
    path = folder if folder.suffix == ".json" else folder / CONFIG
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        for part in (facts["settings"]["algorithm"], facts["settings"]["env"], facts["until"]):
            if not isinstance(part, dict):
                raise TypeError("an object was expected")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder} holds no run: it has no {CONFIG}.") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} does not describe a run: {error}.") from None
    return facts
