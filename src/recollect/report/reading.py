"""A run as its files tell it, finished or not: settings and the figures of every iteration.

Nothing but NumPy is needed. Reading costs one pass over progress.csv; a last line that is still
being written, and lines that make no sense, are left out.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from recollect.run.files import CONFIG, LEADING, PROGRESS, read_facts

VANILLA = {"PG": "vpg", "NPG": "vnpg", "TRPO": "trpo", "PPO": "ppo"}
REUSING = {"PG": "rpg", "NPG": "rnpg", "TRPO": "rtrpo", "PPO": "rppo"}
BY_AGE = re.compile(r"(.+_by_age|shares)_(\d+)")


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run's folder holds."""

    folder: Path
    facts: Mapping[str, Any]
    """What config.json says."""
    seeds: tuple[int, ...]
    curves: Mapping[str, np.ndarray]
    """By name, as in progress.csv; arrays begin with seed, iteration, those by age have a third
    axis. NaN where a seed has no row."""
    label: str = ""
    """Tells the run from others in the same report."""
    length: int = 0
    """Bytes of progress.csv that were read."""

    @property
    def algorithm(self) -> Mapping[str, Any]:
        """The algorithm's settings in terms of JSON."""
        return self.facts["settings"]["algorithm"]

    @property
    def name(self) -> str:
        """Of the algorithm."""
        kind = str(self.algorithm.get("kind", "algorithm"))
        names = VANILLA if self.window == 1 else REUSING
        return str(self.facts.get("name") or names.get(kind, kind))

    @property
    def window(self) -> int:
        window = self.algorithm.get("window", 1)
        return window if isinstance(window, int) and window > 0 else 1

    @property
    def env(self) -> str:
        """Name of the environment."""
        env = self.facts["settings"]["env"]
        return str(env.get("name") or env.get("object") or "an environment")

    @property
    def iterations(self) -> int:
        """That are in the files."""
        return self.curves["environment_steps"].shape[1]

    @property
    def planned(self) -> int | None:
        """Iterations at which the run was to end, if that is a limit."""
        planned = self.facts["until"].get("iterations")
        return planned if isinstance(planned, int) else None

    @cached_property
    def axes(self) -> dict[str, np.ndarray]:
        """What a curve may be drawn against: iteration, environment steps of a seed, seconds."""
        return {
            "iteration": np.arange(1.0, self.iterations + 1),
            "steps": _mean(self.curves["environment_steps"]),
            "seconds": _mean(self.curves["seconds"]),
        }

    @cached_property
    def batch(self) -> np.ndarray:
        """Transitions that every seed collected in every iteration."""
        return np.diff(self.curves["environment_steps"], axis=1, prepend=0.0)

    @cached_property
    def ess_share(self) -> np.ndarray | None:
        """Effective sample size over the transitions of the window, for seed and iteration."""
        if "ess" not in self.curves:
            return None
        total = sum(_delayed(self.batch, age, 0.0) for age in range(self.window))
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.curves["ess"] / total

    @cached_property
    def ess_share_by_age(self) -> np.ndarray | None:
        """The same for each age: NaN where the run was too young to have a batch of that age."""
        ess = self.curves.get("ess_by_age")
        if ess is None:
            return None
        batches = np.stack(
            [_delayed(self.batch, age, np.nan) for age in range(ess.shape[2])], axis=2
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            return ess / batches

    @cached_property
    def returns(self) -> np.ndarray:
        """Mean returns of the batches; where no episode ended, that of the batch before.

        Means over changing subsets of the seeds would jump.
        """
        returns = self.curves["return_mean"].copy()
        running = np.isfinite(self.curves["environment_steps"])
        for column in range(1, returns.shape[1]):
            kept = np.isnan(returns[:, column]) & running[:, column]
            returns[kept, column] = returns[kept, column - 1]
        return returns

    def final_returns(self) -> np.ndarray:
        """Every seed's mean return over its last tenth of the iterations."""
        tenth = max(1, self.iterations // 10)
        rows = [row[np.isfinite(row)] for row in self.curves["return_mean"]]
        return np.array([row[-tenth:].mean() if row.size else np.nan for row in rows])


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of folders, each with a label of its own.

    Args:
        paths: folders of runs, or of several runs below.

    Raises:
        ValueError: if one of them holds no run, or one that cannot be read.
    """
    folders = [folder for path in paths for folder in folders_of(Path(path))]
    runs = [read_run(folder) for folder in dict.fromkeys(folders)]
    return [
        dataclasses.replace(run, label=label)
        for run, label in zip(runs, _labels(runs), strict=True)
    ]


def folders_of(path: Path) -> list[Path]:
    """The folder itself if it holds a run, else those below that do."""
    if (path / CONFIG).is_file() or not path.is_dir():
        return [path]
    return sorted(file.parent for file in path.glob(f"**/{CONFIG}")) or [path]


def read_run(folder: Path) -> Run:
    """A run from its files.

    Args:
        folder: of the run.

    Raises:
        ValueError: if there is none, or its files are not those of a run.
    """
    facts = read_facts(folder)
    path = folder / PROGRESS
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    # What follows the last line end is a line that is still being written.
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.decode("utf-8", errors="replace").splitlines()
    names = lines[0].split(",") if lines else [*LEADING, "return_mean", "refused", "seconds"]
    if not {*LEADING, "return_mean", "seconds"} <= set(names):
        raise ValueError(f"{path} is not the progress of a run: its first line names no columns.")
    seeds, curves = _curves(names, _table(lines[1:], len(names)))
    return Run(folder=folder, facts=facts, seeds=seeds, curves=curves, length=len(whole))


def _table(lines: Sequence[str], columns: int) -> np.ndarray:
    """Rows of numbers; lines that are none are left out."""
    rows = [line.split(",") for line in lines]
    try:
        return np.array(rows, dtype=np.float64).reshape(-1, columns)
    except ValueError:
        return np.array([row for row in map(_numbers, rows) if len(row) == columns]).reshape(
            -1, columns
        )


def _numbers(cells: Sequence[str]) -> list[float]:
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return []


def _curves(
    names: Sequence[str], table: np.ndarray
) -> tuple[tuple[int, ...], dict[str, np.ndarray]]:
    """Seeds, and curves by seed and iteration, of the rows of a progress."""
    leading = table[:, [names.index("seed"), names.index("iteration")]]
    table = table[(np.isfinite(leading) & (leading >= [0, 1])).all(1)]
    seeds, rows = np.unique(table[:, names.index("seed")].astype(int), return_inverse=True)
    columns = table[:, names.index("iteration")].astype(int) - 1
    shape = (len(seeds), int(columns.max(initial=-1)) + 1)
    curves: dict[str, np.ndarray] = {}
    by_age: dict[str, list[tuple[int, np.ndarray]]] = {}
    for name, values in zip(names, table.T, strict=True):
        curve = np.full(shape, np.nan)
        curve[rows, columns] = values
        if aged := BY_AGE.fullmatch(name):
            by_age.setdefault(aged[1], []).append((int(aged[2]), curve))
        else:
            curves[name] = curve
    for name, ages in by_age.items():
        curves[name] = np.stack([curve for _, curve in sorted(ages, key=lambda one: one[0])], 2)
    return tuple(int(seed) for seed in seeds), curves


def _labels(runs: Sequence[Run]) -> list[str]:
    """The algorithm, then whatever tells runs of the same apart: window, environment, folder."""
    parts = [
        lambda run: f"window {run.window}",
        lambda run: run.env,
        lambda run: run.folder.name,
        lambda run: str(run.folder),
    ]
    labels = [run.name for run in runs]
    for part in parts:
        labels = [
            f"{label}, {part(run)}" if _differs(part, run, label, runs, labels) else label
            for run, label in zip(runs, labels, strict=True)
        ]
    return labels


def _differs(part, run: Run, label: str, runs: Sequence[Run], labels: Sequence[str]) -> bool:
    """Whether a part of the label tells a run from another that has the same label so far."""
    return any(
        part(other) != part(run) for other, its in zip(runs, labels, strict=True) if its == label
    )


def _mean(curve: np.ndarray) -> np.ndarray:
    """Over the seeds that are left."""
    left = np.isfinite(curve).sum(0)
    return np.where(left > 0, np.nansum(curve, axis=0) / np.maximum(left, 1), np.nan)


def _delayed(batch: np.ndarray, age: int, before: float) -> np.ndarray:
    """The batch sizes of `age` iterations earlier, `before` where there were none."""
    delayed = np.full_like(batch, before)
    if age < batch.shape[1]:
        delayed[:, age:] = batch[:, : batch.shape[1] - age]
    return delayed
