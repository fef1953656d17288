"""Cells: one algorithm with one setting on one problem, run in chunks of seeds that are kept, so that a run can stop and go on."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.algorithms import AbstractAlgorithm
from recollect.collect import Episodes
from recollect.defaults import Architecture
from recollect.envs import make
from recollect.report import to_json
from recollect.train import train

CHUNK_SEEDS = 10
KEPT = ("return_mean", "environment_steps", "ess", "ess_by_age", "max_weight", "refused")
"""Curves that figures and verdicts look at."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is run, and under which name it is kept."""

    name: str
    env: str
    max_steps: int
    iterations: int
    episodes: int
    policy: Architecture
    algorithm: AbstractAlgorithm


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The curves of a cell, seeds first, and what they took."""

    curves: dict[str, np.ndarray]
    seconds: float
    """Of all seeds, without compilation."""
    compile_seconds: float

    @property
    def returns(self) -> np.ndarray:
        return self.curves["return_mean"]


def chunks(seeds: int) -> list[range]:
    return [range(first, min(first + CHUNK_SEEDS, seeds)) for first in range(0, seeds, CHUNK_SEEDS)]


def outcome(cell: Cell, seeds: int, folder: Path, engine: str, done: Callable[[str], None]) -> Outcome:
    """The cell's curves, from the folder where they are kept or by running what is missing; `done` is told of every chunk."""
    parts = []
    for chunk in chunks(seeds):
        path = folder / f"{cell.name}-{chunk.start}-{chunk.stop}.npz"
        asked = to_json(dict(cell=cell, engine=engine, seeds=list(chunk)))
        if not _fits(path, asked):
            _run(cell, chunk, engine, path, asked)
        with np.load(path) as kept:
            parts.append({name: kept[name] for name in kept.files if name != "asked"})
        done(cell.name)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in KEPT}
    return Outcome(joined, *[float(sum(part[name] for part in parts)) for name in ("seconds", "compile_seconds")])


def _fits(path: Path, asked: str) -> bool:
    """Whether a finished chunk was made with the same settings."""
    if not path.exists():
        return False
    with np.load(path) as kept:
        return json.loads(str(kept["asked"])) == json.loads(asked)


def _run(cell: Cell, seeds: Sequence[int], engine: str, path: Path, asked: str) -> None:
    began = time.perf_counter()
    run = train(
        make(cell.env, max_steps=cell.max_steps, engine=engine),
        cell.algorithm,
        collector=Episodes(cell.episodes),
        policy=cell.policy,
        seeds=seeds,
        iterations=cell.iterations,
        progress=False,
    )
    found: dict[str, Any] = {name: np.asarray(run.curves[name], np.float32) for name in KEPT}
    seconds = time.perf_counter() - began - run.compile_seconds
    path.parent.mkdir(parents=True, exist_ok=True)
    # Under another name first: a chunk that is there is a whole one.
    unfinished = path.with_suffix(".part.npz")
    np.savez_compressed(unfinished, asked=asked, seconds=seconds, compile_seconds=run.compile_seconds, **found)
    unfinished.rename(path)
