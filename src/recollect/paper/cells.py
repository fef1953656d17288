"""Cells: what is run, in chunks that are kept, so that a run can stop and go on."""

import abc
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.algorithms import AbstractAlgorithm
from recollect.collect.compiled import Episodes
from recollect.envs import make
from recollect.machines import File, map_tasks
from recollect.policies.architecture import Architecture
from recollect.run.train import train
from recollect.serial import to_json
from recollect.theory import Normality
from recollect.theory.findings import Findings
from recollect.theory.replicate import Replications

CHUNK_SEEDS = 10
"""Seeds of a cell that run together and share a file."""
CURVES = (
    "return_mean",
    "environment_steps",
    "ess",
    "ess_by_age",
    "max_weight",
    "gradient_norm",
    "direction_norm",
    "kl",
    "clip_fraction_by_age",
    "refused",
)
"""What is kept of every iteration, as far as the algorithm measures it."""
REPLICATIONS = ("iterations", "shifts", "refused", "seconds")
"""What is kept of every case of the theory laboratory: fields of `Replications`."""


class AbstractCell(abc.ABC):
    """A piece of work that leaves files."""

    @property
    @abc.abstractmethod
    def work(self) -> int:
        """About how much it is, in units of a microsecond."""

    @abc.abstractmethod
    def files(self, folder: Path) -> list[File]:
        """The files that it leaves in a folder."""

    @abc.abstractmethod
    def compute(self, seeds: Sequence[int]) -> Mapping[str, Any]:
        """The arrays of one file."""

    def finished(self, folder: Path) -> bool:
        """Whether nothing is missing."""
        return all(file.fits() for file in self.files(folder))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The curves of a cell, seeds first, and what they took."""

    curves: Mapping[str, np.ndarray]
    seconds: float
    """Of all seeds, without compilation."""
    compile_seconds: float

    @property
    def returns(self) -> np.ndarray:
        """Mean return of every batch, with axes seed, iteration."""
        return self.curves["return_mean"]


@dataclasses.dataclass(frozen=True)
class Cell(AbstractCell):
    """One algorithm with one setting on one problem."""

    name: str
    env: str
    max_steps: int
    iterations: int
    episodes: int
    policy: Architecture
    algorithm: AbstractAlgorithm
    engine: str
    seeds: int

    @property
    def work(self):
        fixed = 10  # batches: what an update costs apart from its window
        transitions = self.iterations * self.episodes * self.max_steps
        return transitions * (fixed + self.algorithm.window) * self.seeds

    def files(self, folder):
        chunks = [
            range(first, min(first + CHUNK_SEEDS, self.seeds))
            for first in range(0, self.seeds, CHUNK_SEEDS)
        ]
        name = lambda chunk: folder / f"{self.name}-{chunk.start}-{chunk.stop}.npz"
        return [
            File(name(chunk), to_json(dataclasses.replace(self, seeds=len(chunk))), chunk)
            for chunk in chunks
        ]

    def compute(self, seeds):
        began = time.perf_counter()
        run = train(
            make(self.env, max_steps=self.max_steps, engine=self.engine),
            self.algorithm,
            collector=Episodes(self.episodes),
            policy=self.policy,
            seeds=seeds,
            iterations=self.iterations,
            progress=False,
        )
        seconds = time.perf_counter() - began - run.compile_seconds
        measured = [name for name in CURVES if name in run.curves]
        curves = {name: np.asarray(run.curves[name], np.float32) for name in measured}
        return dict(curves, seconds=seconds, compile_seconds=run.compile_seconds)

    def outcome(self, folder: Path) -> Outcome:
        """The curves, when it is finished."""
        parts = [file.read() for file in self.files(folder)]
        total = lambda name: float(sum(part[name] for part in parts))
        measured = [name for name in CURVES if name in parts[0]]
        return Outcome(
            curves={name: np.concatenate([part[name] for part in parts]) for name in measured},
            seconds=total("seconds"),
            compile_seconds=total("compile_seconds"),
        )


@dataclasses.dataclass(frozen=True)
class TheoryCell(AbstractCell):
    """The experiment of the theory laboratory behind figures 8 and 9."""

    normality: Normality

    @property
    def work(self):
        return self.normality.iterations * self.normality.replications * len(self.normality.cases)

    def files(self, folder):
        return [File(folder / "normality.npz", to_json(self.normality))]

    def compute(self, seeds):
        runs = self.normality.replications_of_all()
        return {field: np.stack([getattr(run, field) for run in runs]) for field in REPLICATIONS}

    def findings(self, folder: Path) -> Findings:
        """What the runs say, when it is finished."""
        (file,) = self.files(folder)
        arrays = file.read()
        columns = [arrays[field] for field in REPLICATIONS]
        cases = zip(self.normality.all_cases(), *columns, strict=True)
        return self.normality.findings([Replications(*one) for one in cases])


def finish(
    together: Sequence[AbstractCell],
    alone: Sequence[AbstractCell],
    folder: Path,
    done: Callable[[float, float], None],
) -> None:
    """Compute what is missing, a process for each core; then what is about time, one by one.

    A process that sees one core adds numbers in one order, so that the same seeds give the same
    numbers to the last digit.

    Args:
        together: cells that may run side by side.
        alone: cells whose time is measured.
        folder: where files are kept.
        done: is told the share of all that is there, and about how many seconds are left.
    """
    pieces = [
        (file, cell.work / len(files))
        for cell in (*together, *alone)
        for files in [cell.files(folder)]
        for file in files
    ]
    missing = {file.path: size for file, size in pieces if not file.fits()}
    # Progress is told from the files that exist: those of other settings must not count.
    for path in missing:
        path.unlink(missing_ok=True)
    total = sum(size for _, size in pieces)
    to_do = sum(missing.values())
    began = time.perf_counter()

    def tell() -> None:
        finished = sum(size for path, size in missing.items() if path.exists())
        left = (time.perf_counter() - began) * (to_do / finished - 1) if finished else np.nan
        done(1 - (to_do - finished) / total, left)

    for cells, at_once in ((together, None), (alone, 1)):
        # The longest first, so that no core waits for another at the end.
        waiting = [
            (cell, file)
            for cell in sorted(cells, key=lambda cell: -cell.work)
            for file in cell.files(folder)
            if file.path in missing
        ]
        tasks = [(cell, file.seeds) for cell, file in waiting]
        files = [file for _, file in waiting]
        keep = lambda place, arrays, files=files: files[place].keep(arrays)
        map_tasks(_compute, tasks, tell, at_once, keep)


def _compute(task: tuple[AbstractCell, Sequence[int]]) -> Mapping[str, Any]:
    cell, seeds = task
    return cell.compute(seeds)
