"""Units of work on actors that may die: who does which, and what is done again.

A unit is what one group of copies does in one iteration. Where copies start anew in every
iteration, a unit goes to whichever actor is free. Where they go on, a group stays with its actor,
which has the environments; if that dies, the group moves to another, which is given what was
ongoing when the last unit that arrived had ended. A unit that was lost is done again with the same
arguments, so nobody can tell from its result. Units are handed out in the order in which they were
asked for, and read in that order: what finishes first is not preferred, as short episodes would be.
"""

import bisect
import dataclasses
import queue
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from recollect.collect.parts import Ongoing
from recollect.envs.checked import EnvironmentFailure
from recollect.machines import AbstractActor, AbstractSession, ActorDied

RETRIES = 3
"""Times that one unit is done again; then it is likely to be what ends processes."""
PATIENCE = 120.0
"""Seconds to wait for actors that do not start."""


@dataclasses.dataclass(eq=False)
class Unit:
    """What one group of copies is to do in one iteration."""

    iteration: int
    group: int
    arguments: tuple[Any, ...]
    name: str = ""
    """What errors call it; its iteration if not given."""
    done: Future = dataclasses.field(default_factory=Future)
    """Of what the actor answers, or of the failure of the environment."""
    lost: int = 0
    """Times that an actor died with it."""

    def __post_init__(self):
        self.name = self.name or f"iteration {self.iteration + 1}"

    @property
    def order(self) -> tuple[int, int]:
        """Units are handed out by it."""
        return self.iteration, self.group


@dataclasses.dataclass(eq=False)
class _Member:
    """An actor of the crew."""

    actor: AbstractActor
    ready: bool = False
    homes: int = 0
    """Groups whose environments it has."""
    under_way: list[Unit] = dataclasses.field(default_factory=list)
    """What it was asked to do, in that order."""


@dataclasses.dataclass(eq=False)
class _Group:
    """Copies that stay together."""

    home: _Member | None = None
    """The actor that has their environments."""
    ongoing: Ongoing | None = None
    """After the latest unit that has arrived."""
    under_way: int = 0


class Crew:
    """Actors, and the units that they have to do.

    All that is decided is decided by one thread, which takes one event after another: units that
    are asked for, answers, deaths. Nothing else touches members and groups.

    Args:
        session: where actors live.
        make: makes the object of an actor. Its method `begin` prepares it; its method `collect` is
            given the number of the group, the iteration, what is ongoing (None: what it has
            itself) and the arguments of the unit, and answers with something that has `ongoing`.
        groups: how many groups of copies there are.
        whole: whether they begin anew in every iteration, so that any actor can do any unit.
    """

    def __init__(self, session: AbstractSession, make: Callable[[], Any], groups: int, whole: bool):
        self.repeated = 0
        """Units that had to be done again."""
        self._session = session
        self._make = make
        self._whole = whole
        self._groups = [_Group() for _ in range(groups)]
        self._waiting: list[Unit] = []
        self._stillborn = 0
        self._failure: BaseException | None = None
        self._all_begun = threading.Event()
        self._asked = min(session.actors, groups)
        self._members = [_Member(session.actor(make)) for _ in range(self._asked)]
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        for member in self._members:
            self._prepare(member)
        self._thread = threading.Thread(target=self._run, name="crew", daemon=True)
        self._thread.start()

    @property
    def size(self) -> int:
        """Actors that are at work."""
        return sum(member.ready for member in list(self._members))

    def wait_until_ready(self) -> None:
        """Wait for all actors; for some only, and with a warning, if others do not start.

        Raises:
            EnvironmentFailure: if the environment cannot be made.
            RuntimeError: if no actor starts.
        """
        self._all_begun.wait(PATIENCE)
        if self._failure is not None:
            raise self._failure
        if not self.size:
            raise RuntimeError(f"No actor has started within {PATIENCE:.0f} seconds.")
        if self.size < self._asked:
            warnings.warn(
                f"{self.size} of {self._asked} actors have started within {PATIENCE:.0f} seconds; "
                "the others join when there is room for them.",
                stacklevel=2,
            )

    def ask(self, units: Sequence[Unit]) -> None:
        """Have units done; returns at once."""

        def add():
            for unit in units:
                bisect.insort(self._waiting, unit, key=lambda unit: unit.order)

        self._events.put(add)

    def go_on_from(self, group: int, ongoing: Ongoing) -> None:
        """Let the first unit of a group go on from where others were."""
        self._groups[group].ongoing = ongoing

    def result(self, unit: Unit) -> Any:
        """What a unit gives; waits for it.

        Raises:
            EnvironmentFailure: if the environment failed in it, or all actors that tried it died.
            RuntimeError: if there is no actor any more.
        """
        alone_since = None
        while True:
            try:
                return unit.done.result(timeout=1)
            except TimeoutError:
                if unit.done.done():  # it is the environment that raised it
                    raise
            if self.size:
                alone_since = None
                continue
            alone_since = alone_since or time.monotonic()
            if self._failure is not None:
                raise self._failure
            if time.monotonic() - alone_since > PATIENCE:
                raise RuntimeError(
                    f"All actors have died, and no other has started within {PATIENCE:.0f} seconds."
                )

    def close(self) -> None:
        """End all actors."""
        self._events.put(None)
        self._thread.join()
        for member in self._members:
            member.actor.end()

    def _run(self) -> None:
        """Take one event after another, until the end."""
        while (event := self._events.get()) is not None:
            event()
            if self._waiting:
                self._hand_out()

    def _prepare(self, member: _Member) -> None:
        begun = member.actor.ask("begin")
        begun.add_done_callback(
            lambda future: self._events.put(lambda: self._begun(member, future))
        )

    def _begun(self, member: _Member, future: Future) -> None:
        error = future.exception()
        if isinstance(error, ActorDied):
            self._stillborn += 1
            self._lose(member, str(error))
        elif error is not None:
            self._failure = error
            self._all_begun.set()
        else:
            member.ready = True
            self._stillborn = 0
            if all(member.ready for member in self._members):
                self._all_begun.set()

    def _hand_out(self) -> None:
        """Give actors all waiting units that they can take now."""
        kept: list[Unit] = []
        held: set[int] = set()
        for unit in self._waiting:
            member = None if unit.group in held else self._member_for(unit)
            if member is None:
                held.add(unit.group)  # its later units have to wait as well
                kept.append(unit)
            else:
                self._send(member, unit)
        self._waiting = kept

    def _member_for(self, unit: Unit) -> _Member | None:
        """The actor that a unit goes to now; None if it has to wait."""
        ready = [member for member in self._members if member.ready]
        if self._whole:
            return next((member for member in ready if not member.under_way), None)
        if not ready:
            return None
        group = self._groups[unit.group]
        emptiest = min(ready, key=lambda member: member.homes)
        # One group more than others have is no reason to move: the number may not be even.
        if group.home in ready and group.home.homes <= emptiest.homes + 1:
            return group.home
        # It moves, once it is known what is ongoing.
        return None if group.under_way else emptiest

    def _send(self, member: _Member, unit: Unit) -> None:
        group = self._groups[unit.group]
        ongoing = None
        if not self._whole and group.home is not member:
            if group.home is not None:
                group.home.homes -= 1
            member.homes += 1
            group.home = member
            ongoing = group.ongoing
        group.under_way += 1
        member.under_way.append(unit)
        asked = member.actor.ask("collect", unit.group, unit.iteration, ongoing, *unit.arguments)
        asked.add_done_callback(
            lambda future: self._events.put(lambda: self._answered(member, unit, future))
        )

    def _answered(self, member: _Member, unit: Unit, future: Future) -> None:
        if member not in self._members:  # it has died, and all its units are with others
            return
        error = future.exception()
        if isinstance(error, ActorDied):
            self._lose(member, str(error))
            return
        member.under_way.remove(unit)
        group = self._groups[unit.group]
        group.under_way -= 1
        if error is None:
            group.ongoing = future.result().ongoing
            unit.done.set_result(future.result())
        else:
            unit.done.set_exception(error)

    def _lose(self, member: _Member, reason: str) -> None:
        """Take an actor out that has died: others do its units, and another takes its place."""
        self._members.remove(member)
        member.actor.end()
        if member.under_way:  # the others had not yet begun
            member.under_way[0].lost += 1
            self.repeated += 1
        for unit in member.under_way:
            self._groups[unit.group].under_way -= 1
            if unit.lost > RETRIES:
                unit.done.set_exception(
                    EnvironmentFailure(
                        f"{unit.name}: the process of an actor died in the same unit {unit.lost} "
                        "times; the environment may end it, hang, or need more memory than there "
                        f"is. {reason}"
                    )
                )
            else:
                bisect.insort(self._waiting, unit, key=lambda unit: unit.order)
        for group in self._groups:
            if group.home is member:
                group.home = None
        if self._stillborn > RETRIES:
            self._failure = RuntimeError(f"Actors die when they start: {reason}")
            self._all_begun.set()
            return
        another = _Member(self._session.actor(self._make))
        self._members.append(another)
        self._prepare(another)
