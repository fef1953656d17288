"""Names of a run's folder and files, and what config.json says; read without JAX."""

import json
import re
from pathlib import Path
from typing import Any

CONFIG = "config.json"
PROGRESS = "progress.csv"
CHECKPOINTS = "checkpoints"
BEST = "best"
MONITOR = ".monitor.csv"
LEADING = ("seed", "iteration", "environment_steps")
"""First columns of the progress."""
LONGEST_NAME = 120
"""Characters of a folder's name: systems allow 255 bytes, and Windows 260 for a whole path."""


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


def numbered_folder(parent: Path) -> Path:
    """A new folder below another, with the next free number as its name: 0001, 0002, …

    Several processes that ask at once get folders of their own.
    """
    parent.mkdir(parents=True, exist_ok=True)
    taken = [int(one.name) for one in parent.iterdir() if re.fullmatch(r"\d+", one.name)]
    number = max(taken, default=0)
    while True:
        number += 1
        try:
            (parent / f"{number:04d}").mkdir()
        except FileExistsError:
            continue
        return parent / f"{number:04d}"


def legal(name: str) -> str:
    """A name that a folder can have on any system.

    Example:
        >>> from recollect.run.files import legal
        >>> legal("ALE/Pong-v5"), legal("mine:Env-v0"), legal("aux.v0")
        ('ALE-Pong-v5', 'mine-Env-v0', '_aux.v0')
    """
    name = re.sub(r'[<>:"/\\|?*\x00-\x1f]', "-", name).strip(". ")[:LONGEST_NAME].rstrip(". ")
    # Windows keeps these for devices, whatever follows a dot.
    device = re.match(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\.|$)", name, re.I)
    return f"_{name}" if device else name or "unnamed"
