"""Processes of this machine."""

import dataclasses
import itertools
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor

from recollect.machines.base import (
    AbstractActor,
    AbstractMachines,
    AbstractSession,
    ActorDied,
    Holder,
    outcome,
)
from recollect.machines.packing import packed, packed_each, unpacked
from recollect.runtime import core_numbers, cores
from recollect.workers import on_every_core, receive, send, start_worker


@dataclasses.dataclass(frozen=True)
class Local(AbstractMachines):
    """Processes of this machine, each on one core.

    More actors than cores pay where environments wait, for example for a simulator elsewhere.

    Example:
        >>> import recollect as rc
        >>> session = rc.Local(actors=1).connect()
        >>> actor = session.actor(lambda: [3, 1, 2])
        >>> actor.ask("index", 2).result()
        2
        >>> session.close()
    """

    def connect(self):
        return LocalSession(self.actors or cores())


class LocalSession(AbstractSession):
    """Actors in processes that this one has started."""

    def __init__(self, actors: int):
        self.actors = actors
        self._started: list[LocalActor] = []
        self._cores = itertools.cycle(core_numbers())

    def map(
        self,
        function,
        tasks,
        watch=lambda: None,
        at_once=None,
        arrived=lambda place, result: None,
    ):
        calls = packed_each((function, task) for task in tasks)
        return on_every_core(_call, calls, watch, min(at_once or self.actors, self.actors), arrived)

    def actor(self, make):
        sent = packed(make)
        actor = LocalActor(start_worker(next(self._cores)), sent)
        self._started.append(actor)
        return actor

    def close(self):
        for actor in self._started:
            actor.end()


class LocalActor(AbstractActor):
    """An object in a process of this machine, and the thread that waits for its answers."""

    def __init__(self, process: subprocess.Popen, make: bytes):
        self.process = process
        self._thread = ThreadPoolExecutor(1)
        self._held = self._thread.submit(self._exchange, _hold, make)

    def ask(self, method, *arguments) -> Future:
        return self._thread.submit(self._asked, method, arguments)

    def _asked(self, method, arguments):
        self._held.result()
        return outcome(self._exchange(_answer, (method, *arguments)))

    def _exchange(self, function, task):
        try:
            send(self.process, function, task)
            return receive(self.process)
        except ChildProcessError as error:
            raise ActorDied(str(error)) from error

    def end(self):
        self.process.kill()
        self.process.wait()
        self._thread.shutdown(wait=False, cancel_futures=True)


# What runs in the process.


def _call(call: bytes):
    function, task = unpacked(call)
    return function(task)


_holders: list[Holder] = []


def _hold(make: bytes) -> None:
    _holders[:] = [Holder(make)]


def _answer(task):
    return _holders[0].answer(*task)
