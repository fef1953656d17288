"""Learning curves of runs, read from their folders.

Seeds take their steps at different places, so curves are interpolated between a seed's iterations
before their mean is taken. What is drawn is `recent_return`, the mean of a seed's latest episodes:
unlike the mean of a batch it is there from the first episode's end on, however long episodes are.
"""

import csv
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.stats

from recollect.algorithms import ALGORITHMS
from recollect.run.config import name_of
from recollect.run.folder import LEADING, PROGRESS, holds_run, read_config
from recollect.serial import OBJECT, write_csv
from recollect.statistics import standard_error

Axis = Literal["steps", "iterations", "seconds"]
COLUMN = {"steps": "environment_steps", "iterations": "iteration", "seconds": "seconds"}
"""Columns of the progress by what is drawn along the x axis."""
POINTS = 400
"""At which the mean over seeds is taken."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """Returns of one run against steps, iterations or seconds."""

    name: str
    algorithm: str
    env: str
    seeds: Mapping[int, tuple[np.ndarray, np.ndarray]]
    """For each seed x and the mean return of its latest episodes, where one has ended."""

    @property
    def there(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of the seeds that have finished an episode."""
        return [points for points in self.seeds.values() if len(points[0])]


def runs_in(path: Path) -> dict[str, Path]:
    """The folders of runs that a folder stands for, by name: itself, or those of a comparison.

    Raises:
        ValueError: if it holds neither.
    """
    if holds_run(path):
        return {algorithm_of(read_config(path)["settings"]): path}
    inside = [one for one in path.iterdir() if holds_run(one)] if path.is_dir() else []
    if not inside:
        raise ValueError(f"{path} holds neither a run nor a comparison of runs.")
    return {one.name: one for one in sorted(inside, key=lambda one: natural_order(one.name))}


def natural_order(name: str) -> tuple[Any, ...]:
    """A key that sorts algorithms as the library lists them, and numbers by their size."""
    first = name.partition("-")[0]
    place = list(ALGORITHMS).index(first) if first in ALGORITHMS else len(ALGORITHMS)
    return place, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def algorithm_of(settings: Mapping[str, Any]) -> str:
    """The name of the algorithm in the settings of a run, as config.json holds them."""
    algorithm = settings["algorithm"]
    return name_of(str(algorithm.get("kind")), algorithm.get("window"))


def env_of(settings: Mapping[str, Any]) -> str:
    """The name of the environment in the settings of a run, as config.json holds them."""
    env = settings["env"]
    name = Path(env["name"]).name if str(env.get("name")).endswith(".npz") else env.get("name")
    limit = env.get("max_steps")
    return str(name or env.get(OBJECT)) + (f", at most {limit} steps" if limit else "")


def read_curve(name: str, folder: Path, x: Axis = "steps") -> Curve:
    """The learning curve of a run from its folder.

    Args:
        name: what it is called.
        folder: of the run.
        x: what returns are drawn against.

    Raises:
        ValueError: if there is no run, or its progress cannot be read.
    """
    settings = read_config(folder)["settings"]
    points: dict[int, list[tuple[float, float]]] = {seed: [] for seed in settings["seeds"]}
    try:
        for row in read_progress(folder):
            value = float(row["recent_return"])
            if np.isfinite(value):
                points[int(row["seed"])].append((float(row[COLUMN[x]]), value))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / PROGRESS} is not the progress of a run: {error}.") from None
    arrays = {seed: np.array(pairs).reshape(-1, 2).T for seed, pairs in points.items()}
    first = name.partition("-")[0]
    return Curve(
        name=name,
        algorithm=first if first in ALGORITHMS else algorithm_of(settings),
        env=env_of(settings),
        seeds={seed: (pairs[0], pairs[1]) for seed, pairs in arrays.items()},
    )


def read_progress(folder: Path) -> Iterable[dict[str, str]]:
    """The rows of a run's progress; none before its first iteration."""
    if not (folder / PROGRESS).is_file():
        return []
    with (folder / PROGRESS).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def over_seeds(
    seeds: Sequence[tuple[np.ndarray, np.ndarray]], points: int = POINTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The mean of curves over seeds with its 95 % interval (Student's t), where half of them are.

    Args:
        seeds: x and y of every seed; x increases.
        points: how many are computed.

    Returns:
        x, the mean, and the ends of the interval, NaN where there is one seed alone.

    Example:
        >>> import numpy as np
        >>> from recollect.report.curves import over_seeds
        >>> long = np.array([0.0, 4.0])
        >>> short = np.array([2.0])
        >>> x, mean, *_ = over_seeds([(long, long), (short, 2 * short)], points=3)
        >>> x, mean
        (array([0., 2., 4.]), array([0., 3., 4.]))
    """
    grid = np.linspace(min(x[0] for x, _ in seeds), max(x[-1] for x, _ in seeds), points)
    rows = np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in seeds])
    present = np.isfinite(rows).sum(0)
    kept = 2 * present >= len(seeds)
    rows = rows[:, kept]
    present = present[kept]
    mean = np.nanmean(rows, axis=0)
    half = standard_error(rows) * scipy.stats.t.ppf(0.975, np.maximum(present - 1, 1))
    return grid[kept], mean, mean - half, mean + half


def write_curves(path: Path, runs: Mapping[str, Path]) -> None:
    """Write curves of several runs as one CSV: a row for each algorithm, seed and iteration.

    Columns are all figures that one of the runs measures; one that a run does not measure is left
    empty.

    Args:
        path: of the file.
        runs: their folders, by name.
    """
    tables = {name: list(read_progress(folder)) for name, folder in runs.items()}
    measured = [column for rows in tables.values() if rows for column in rows[0]]
    last = (*LEADING, "seconds")
    figures = [column for column in dict.fromkeys(measured) if column not in last]
    columns = [*LEADING, *figures, "seconds"]
    order = lambda row: (int(row["seed"]), int(row["iteration"]))
    rows = (
        [name, *[row.get(column, "") for column in columns]]
        for name, table in tables.items()
        for row in sorted(table, key=order)
    )
    write_csv(path, ["algorithm", *columns], rows)
