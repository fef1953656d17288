"""Flags that say where environments are stepped, and where independent tasks are done."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from recollect.machines import AbstractMachines


@dataclasses.dataclass(frozen=True)
class Machines:
    """Where environments on the host are stepped."""

    on: Literal["local", "ray"] | None = None
    """Step environments in processes of this machine, or on a Ray cluster; in this process if not
    given."""
    actors: int | None = None
    """Processes that step environments; one for each CPU if not given."""
    lag: int = 0
    """Iterations that collecting may run ahead of learning."""
    cluster: str | None = None
    """For --on ray: `auto` for the cluster of this machine, or HOST:PORT; a new one on this machine
    if not given."""

    def chosen(self) -> "AbstractMachines | None":
        """What `train` is to be given."""
        from recollect.machines import Local, Ray  # here, as they bring JAX

        if self.on == "ray":
            return Ray(actors=self.actors, lag=self.lag, cluster=self.cluster)
        if self.cluster is not None:
            raise ValueError(f"--cluster {self.cluster} goes with --on ray; give --on ray too.")
        if self.on == "local":
            return Local(actors=self.actors, lag=self.lag)
        for flag, given in (("actors", self.actors), ("lag", self.lag)):
            if given:
                raise ValueError(
                    f"--{flag} {given} says how other processes are used; give --on local or "
                    "--on ray too."
                )
        return None


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Where independent parts of the work are done."""

    on: Literal["local", "ray"] = "local"
    """Compute in processes of this machine, one for each core, or on a Ray cluster."""
    cluster: str | None = None
    """For --on ray: `auto` for the cluster of this machine, or HOST:PORT; a new one on this machine
    if not given."""

    def chosen(self) -> "AbstractMachines":
        """What `tasks_on` is to be given."""
        machines = Machines(on=self.on, cluster=self.cluster).chosen()
        assert machines is not None  # as --on is given
        return machines


@dataclasses.dataclass(frozen=True)
class Trials:
    """Where trials are trained."""

    on: Literal["local", "ray"] | None = None
    """Train several trials at once, each with one CPU, in processes of this machine or on a Ray
    cluster; one after another in this process if not given."""
    actors: int | None = None
    """For --on: trials at once, on which the search depends; one for each CPU if not given."""
    cluster: str | None = None
    """For --on ray: `auto` for the cluster of this machine, or HOST:PORT; a new one on this machine
    if not given."""

    def chosen(self) -> "AbstractMachines | None":
        """What `tune` is to be given."""
        return Machines(on=self.on, actors=self.actors, cluster=self.cluster).chosen()


@contextlib.contextmanager
def answers(apart: bool) -> Iterator[TextIO]:
    """Where the answer to a program is written: standard output.

    Args:
        apart: whether nothing else may be written there. Ray reports dead machines on standard
            output; they then go to standard error.
    """
    if not apart:
        yield sys.stdout
        return
    sys.stdout.flush()
    before = sys.stdout
    descriptor = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        with open(os.dup(descriptor), "w", encoding="utf-8") as file:
            yield file
    finally:
        os.dup2(descriptor, 1)
        os.close(descriptor)
        sys.stdout = before
