"""What machines have in common: settings, a session while work is done, and actors in it."""

import abc
import dataclasses
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from recollect.checks import check_count
from recollect.machines.packing import packed, unpacked
from recollect.settings import Settings

Task = TypeVar("Task")
Result = TypeVar("Result")


class ActorDied(RuntimeError):
    """The process of an actor has ended, or the machine that it ran on."""


@dataclasses.dataclass(frozen=True)
class AbstractMachines(Settings, abc.ABC):
    """Settings of where work is done, and how collecting is spread there."""

    actors: int | None = None
    """Processes that step environments; one for each CPU there is if not given."""
    lag: int = 0
    """Iterations that collecting may run ahead of learning. The policy that acts is then as many
    updates old when its batch arrives, and importance weights account for that."""
    group: int | None = None
    """Copies of one seed that an actor steps together; a sixteenth of them if not given. No result
    depends on it."""

    def __post_init__(self):
        if self.actors is not None:
            check_count("actors", self.actors, "give the number of processes")
        if self.lag < 0:
            raise ValueError(
                f"lag={self.lag} is negative; give 0 to collect with the newest policy, 1 to "
                "collect while it learns."
            )
        if self.group is not None:
            check_count("group", self.group, "give the number of copies")

    @abc.abstractmethod
    def connect(self) -> "AbstractSession":
        """Begin a session, which the caller has to close."""


class AbstractSession(abc.ABC):
    """Machines at work."""

    actors: int
    """How many actors there is room for, at most as many as were asked for."""

    @abc.abstractmethod
    def map(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        watch: Callable[[], None] = lambda: None,
        at_once: int | None = None,
        arrived: Callable[[int, Result], None] = lambda place, result: None,
    ) -> list[Result]:
        """`[function(task) for task in tasks]`, computed by as many processes as there are CPUs.

        Args:
            function: it may be one of a script, which travels by value; what it gives back has to
                be something that any process can import.
            tasks: arguments, begun in this order.
            watch: called at least every second meanwhile, for example to show progress.
            at_once: largest number of processes; by default only the CPUs limit it.
            arrived: is given every result when it is there, with the place of its task among all;
                called in this process, which alone writes files.

        Raises:
            ValueError, OSError: as raised by `function`.
            RuntimeError: with the traceback, for any other error of `function`.
            ChildProcessError: if a process died, again and again where it can be repeated.
        """

    @abc.abstractmethod
    def actor(self, make: Callable[[], Any]) -> "AbstractActor":
        """Start an actor; returns at once.

        Args:
            make: makes the object that lives in the actor. It is called there, before the first
                method of the object is.
        """

    def share(self, value: Any) -> Any:
        """Something to give to `ask` in place of `value` if many actors are given the same."""
        return value

    @abc.abstractmethod
    def close(self) -> None:
        """End all actors; never raises."""


class AbstractActor(abc.ABC):
    """An object in a process of its own."""

    @abc.abstractmethod
    def ask(self, method: str, *arguments: Any) -> Future:
        """Let the object call one of its methods, after those that were asked for before.

        Args:
            method: its name.
            arguments: anything that can be pickled.

        Returns:
            A future of what the method returns or raises; `ActorDied` if the process ends before.
        """

    @abc.abstractmethod
    def end(self) -> None:
        """End the process, whatever it is doing."""


class Holder:
    """What runs in the process of an actor: makes its object, and lets it answer.

    Args:
        make: packed, as it may be a function of a script that this process cannot import.
    """

    def __init__(self, make: bytes):
        self._make = make
        self._held: Any = None

    def answer(self, method: str, *arguments: Any) -> tuple[bool, Any]:
        """Whether the method returned, and what it returned or raised."""
        return attempt(lambda: getattr(self._object(), method)(*arguments))

    def _object(self) -> Any:
        if self._held is None:
            self._held = unpacked(self._make)()
        return self._held


def attempt(function: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether a function returned, and what it returned or raised.

    An error that cannot be sent to another process becomes a RuntimeError with its traceback.
    """
    try:
        return True, function()
    except Exception as error:
        try:
            # The frames would take along all that they refer to.
            error.__cause__ = error.__context__ = error.__traceback__ = None
            unpacked(packed(error))
        except Exception:
            return False, RuntimeError(traceback.format_exc())
        return False, error


def outcome(answer: tuple[bool, Any]) -> Any:
    """What the function of `attempt` returned; raises what it raised."""
    returned, value = answer
    if returned:
        return value
    raise value
