"""Independent tasks, done where the program around them says: on this machine if it does not.

What maps a function over tasks need not be told where: `with tasks_on(Ray(...))` around it decides,
as `jax.default_device` does for arrays.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence

from recollect.machines.base import AbstractMachines, AbstractSession, Result, Task
from recollect.machines.local import LocalSession
from recollect.runtime import cores

_elsewhere: contextvars.ContextVar[AbstractSession | None] = contextvars.ContextVar(
    "elsewhere", default=None
)


@contextlib.contextmanager
def tasks_on(machines: AbstractMachines) -> Iterator[None]:
    """A context in which independent tasks, such as the experiments of the paper and of the theory
    laboratory, are done on other machines.

    Args:
        machines: where. `Local()` is what holds without this context: a process for each core. On
            `Ray` every task has one CPU. Only this process writes files.

    Example:
        >>> import recollect as rc
        >>> from recollect.machines import map_tasks
        >>> with rc.tasks_on(rc.Local()):
        ...     map_tasks(abs, [-1])
        [1]
    """
    session = machines.connect()
    token = _elsewhere.set(session)
    try:
        yield
    finally:
        _elsewhere.reset(token)
        session.close()


def map_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    watch: Callable[[], None] = lambda: None,
    at_once: int | None = None,
    arrived: Callable[[int, Result], None] = lambda place, result: None,
) -> list[Result]:
    """`AbstractSession.map` of the machines that `tasks_on` has chosen."""
    session = _elsewhere.get() or LocalSession(cores())
    return session.map(function, tasks, watch, at_once, arrived)


def tasks_at_once() -> int:
    """How many tasks there are CPUs for."""
    session = _elsewhere.get()
    return cores() if session is None else session.actors


def worth_sending() -> bool:
    """Whether tasks gain from other processes: one that is held to a core already needs no other,
    unless there are other machines."""
    return _elsewhere.get() is not None or cores() > 1
