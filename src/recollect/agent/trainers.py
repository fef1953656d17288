"""Trials under way: one after another in this process, or several at once on other machines.

A trial on another machine is trained by an actor with one CPU, all seeds of it in one program, and
another actor trains it again if that one dies. Results are taken in the order in which trials have
begun, and a trial is judged by those that had ended when it began. So a search depends on how many
trials are under way at once, but neither on where they are trained nor on which ends first.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from recollect.agent.worth import Watch, failure, learning_curves
from recollect.collect.crew import Crew, Unit
from recollect.collect.elsewhere import check_env
from recollect.envs import AbstractEnv, EnvironmentFailure, HostEnv
from recollect.machines import AbstractMachines
from recollect.machines.packing import packed, unpacked
from recollect.run.config import RunConfig
from recollect.run.session import Until
from recollect.run.train import execute
from recollect.runtime import configuration, configure_actor

Moved = Callable[[float], Any]
"""Is told which share of a run is done, as far as that is known."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What is to be trained, and when it is stopped."""

    name: str
    config: RunConfig
    environment_steps: int
    bars: Float[np.ndarray, " place"] | None = None
    """A trial whose mean so far is below these is stopped; None for a run that is no trial."""


class Result(NamedTuple):
    """What came of a run."""

    curves: Float[np.ndarray, "seed place"]
    told: Float[np.ndarray, " place"]
    """The mean of the curves so far; NaN where it is not known."""
    stopped: bool
    """Because it did worse than others."""
    reason: str
    """Why nothing came of it; empty if something did."""
    seconds: float
    ongoing: None = None
    """Nothing stays in the actor that another would have to know."""


Begin = Callable[[Run], Callable[[Moved], Result]]
"""Begins a run, and gives what waits for its result."""


@contextlib.contextmanager
def trainers(
    on: AbstractMachines | None, env: AbstractEnv | HostEnv
) -> Iterator[tuple[int, Begin]]:
    """A context with how many runs are under way at once, and what begins one.

    Args:
        on: machines, whose number of actors says how many; None for this process, which trains a
            run when its result is waited for.
        env: that runs are to be in.

    Raises:
        ValueError: if other machines cannot make the environment, or cannot be had.
    """
    if on is None:
        yield 1, lambda run: functools.partial(trained, run)
        return
    if on.lag:
        raise ValueError(
            f"lag={on.lag} is for actors that collect, and a trial collects where it learns; leave "
            "it out."
        )
    if isinstance(env, HostEnv):
        check_env(env)
    session = on.connect()
    try:
        at_once = on.actors or session.actors
        make = Make(configuration())
        crew = Crew(session, make, at_once, whole=True)
        numbers = itertools.count()

        def begin(run: Run) -> Callable[[Moved], Result]:
            number = next(numbers)
            unit = Unit(number, number % at_once, (_sent(run),), run.name)
            crew.ask([unit])
            return lambda moved: crew.result(unit)

        try:
            crew.wait_until_ready()
            yield at_once, begin
        finally:
            crew.close()
    finally:
        session.close()


def _sent(run: Run) -> bytes:
    """A run for another process, with an environment that can be made there."""
    env = run.config.env
    if isinstance(env, HostEnv):
        run = dataclasses.replace(run, config=dataclasses.replace(run.config, env=env.by_value()))
    return packed(run)


def trained(run: Run, moved: Moved) -> Result:
    """Train, and say what came of it."""
    until = Until(environment_steps=run.environment_steps)
    watch = Watch(run.bars, until, moved)
    began = time.perf_counter()
    with warnings.catch_warnings():
        if run.bars is not None:  # the reason of a failure is kept with the trial
            warnings.simplefilter("ignore")
        curves = execute(run.config, until, watchers=[watch], progress=False).curves
    return Result(
        curves=learning_curves(curves, run.environment_steps),
        told=watch.told,
        stopped=watch.stopped,
        reason=failure(curves),
        seconds=time.perf_counter() - began,
    )


@dataclasses.dataclass(frozen=True)
class Make:
    """Makes what lives in an actor's process."""

    configuration: Mapping[str, Any]
    """Of JAX."""

    def __call__(self) -> "Trainer":
        return Trainer(self.configuration)


class Trainer:
    """Lives in an actor's process and trains."""

    def __init__(self, configuration: Mapping[str, Any]):
        configure_actor(configuration)

    def begin(self) -> None:
        """Nothing has to be prepared."""

    def collect(self, group: int, number: int, ongoing: None, run: bytes) -> Result:
        """What came of a run."""
        try:
            return trained(unpacked(run), lambda fraction: None)
        except EnvironmentFailure as error:
            # Without all that was learned until then, which nobody asks for.
            raise EnvironmentFailure(str(error)) from None
