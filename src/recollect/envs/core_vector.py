"""Copies of an environment in a process for each core.

A simulator in Python steps one copy at a time, however many cores there are: its threads wait for
Python's global lock. Here every core has a process with a share of the copies, which it steps one
after another. What they exchange goes through pipes, some ten microseconds a step.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from recollect.envs.checked import Checked, EnvironmentFailure
from recollect.envs.vectors import AbstractVector, LocalVector, Stepped
from recollect.runtime import core_numbers, cores
from recollect.workers import receive, send, start_worker


class CoreVector(AbstractVector):
    """Copies that are stepped on every core.

    Args:
        make: makes the copy of a number; it is pickled, so its environment is made by name.
        count: number of copies.
    """

    rests = True

    def __init__(self, make: Callable[[int], Checked], count: int):
        self.count = count
        number = min(cores(), count)
        # Dealt out in turn, so that every core has copies of all seeds, long and short.
        self._shares = [np.arange(i, count, number) for i in range(number)]
        self._workers = [start_worker(core) for core in core_numbers()[:number]]
        try:
            tasks = {i: (make, share.tolist()) for i, share in enumerate(self._shares)}
            sizes = self._ask(_open, tasks)
        except BaseException:
            self.close()
            raise
        self.observations = np.zeros((count, sizes[0]), np.float32)

    def _ask(self, function: Callable[[Any], Any], tasks: dict[int, Any]) -> dict[int, Any]:
        """Answers of some workers, which compute at the same time."""
        try:
            for i, task in tasks.items():
                send(self._workers[i], function, task)
            return {i: receive(self._workers[i]) for i in tasks}
        except ChildProcessError as error:
            raise EnvironmentFailure(f"a process that steps environments died: {error}") from error

    def reset(self, seeds):
        self._begin(np.ones(self.count, bool), np.asarray(seeds, np.uint32))

    def restart(self, which, seeds):
        numbers = np.zeros(self.count, np.uint32)
        for copy in np.flatnonzero(which).tolist():
            numbers[copy] = seeds(copy)
        self._begin(which, numbers)

    def _begin(self, which: np.ndarray, seeds: np.ndarray) -> None:
        tasks = {
            i: (which[share], seeds[share])
            for i, share in enumerate(self._shares)
            if which[share].any()
        }
        for i, observations in self._ask(_restart, tasks).items():
            self.observations[self._shares[i]] = observations

    def step(self, actions, moving):
        tasks = {i: (actions[share], moving[share]) for i, share in enumerate(self._shares)}
        answers = self._ask(_step, tasks)
        joined = []
        for parts in zip(*answers.values(), strict=True):
            whole = np.empty((self.count, *parts[0].shape[1:]), parts[0].dtype)
            for share, part in zip(self._shares, parts, strict=True):
                whole[share] = part
            joined.append(whole)
        stepped = Stepped(*joined)
        self.observations[:] = stepped.observations
        return stepped

    def close(self):
        for worker in self._workers:
            worker.kill()
            worker.wait()


# What runs in a worker. It answers with a failure instead of raising it, as `receive` raises that.

_vectors: list[LocalVector] = []
"""The copies of this process."""


def _open(task: tuple[Callable[[int], Checked], list[int]]) -> int | EnvironmentFailure:
    try:
        _vectors[:] = [LocalVector(*task)]
    except EnvironmentFailure as failure:
        return failure
    return _vectors[0].observations.shape[1]


def _restart(task: tuple[np.ndarray, np.ndarray]) -> np.ndarray | EnvironmentFailure:
    which, seeds = task
    try:
        _vectors[0].restart(which, lambda i: int(seeds[i]))
    except EnvironmentFailure as failure:
        return failure
    return _vectors[0].observations


def _step(task: tuple[np.ndarray, np.ndarray]) -> Stepped | EnvironmentFailure:
    try:
        return _vectors[0].step(*task)
    except EnvironmentFailure as failure:
        return failure
