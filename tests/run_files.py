"""Folders of runs as training writes them, with curves that a test chooses."""

import json
from pathlib import Path
from typing import Any

import numpy as np


def write_run(
    folder: Path,
    *,
    iterations: int = 20,
    seeds: tuple[int, ...] = (0, 1, 2),
    window: int = 1,
    env: str = "CartPole-v1",
    batch: int = 100,
    kind: str = "NPG",
    planned: int | None = None,
    settings: dict[str, Any] | None = None,
    **columns: Any,
) -> Path:
    """A run each of whose columns is a number, or an array that fits (seed, iteration).

    A column `ess_by_age` takes shares of the batch by age, a third axis.
    """
    shape = (len(seeds), iterations)
    fill = lambda value: np.broadcast_to(np.asarray(value, dtype=float), shape)
    rising = np.linspace(10, 100, iterations) + np.arange(len(seeds))[:, None]
    table = {"return_mean": fill(columns.pop("return_mean", rising)), "refused": fill(0)}
    by_age = np.asarray(columns.pop("ess_by_age", np.ones(window)), dtype=float)
    by_age = batch * np.broadcast_to(by_age, (*shape, window)).copy()
    for age in range(window):
        by_age[:, :age, age] = 0
        table[f"ess_by_age_{age}"] = by_age[:, :, age]
    table["ess"] = by_age.sum(2)
    table |= {name: fill(value) for name, value in columns.items()}
    lines = [",".join(["seed,iteration,environment_steps", *table, "seconds"])]
    for n in range(iterations):
        for row, seed in enumerate(seeds):
            figures = [f"{curve[row, n]:.6g}" for curve in table.values()]
            leading = [str(seed), str(n + 1), str(batch * (n + 1))]
            lines.append(",".join([*leading, *figures, f"{0.5 * (n + 1):.4f}"]))
    facts = {
        "command": [],
        "versions": {},
        "settings": {
            "env": {"kind": "EnvSettings", "name": env},
            "algorithm": {"kind": kind, "window": window, **(settings or {})},
            "seeds": list(seeds),
        },
        "changed": [["algorithm.window", 10, window]],
        "until": {"iterations": planned or iterations},
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "progress.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
