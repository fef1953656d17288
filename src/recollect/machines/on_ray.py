"""A Ray cluster: Ray Core's tasks and actors, and nothing else of Ray.

Ray is imported when a session begins and not before. A cluster that is started here listens on the
loopback interface alone and ends with this process; its token, which others need to connect, is
written for this user alone.
"""

import contextlib
import dataclasses
import functools
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from recollect.machines import guard
from recollect.machines.base import (
    AbstractActor,
    AbstractMachines,
    AbstractSession,
    ActorDied,
    Holder,
    attempt,
    outcome,
)
from recollect.machines.packing import packed, packed_each, unpacked
from recollect.runtime import use_compilation_cache

SECONDS = 5.0
"""To wait for a cluster at most."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How HTTP/2, which Ray speaks, begins: a fixed line and a frame of type 4, which is answered by
another one."""
RETRIES = 3
"""Times that a task is done again if its process dies."""


@dataclasses.dataclass(frozen=True)
class Ray(AbstractMachines):
    """A Ray cluster; `pip install 'recollect[ray]'` on every machine of it.

    Example:
        >>> import recollect as rc
        >>> rc.Ray(actors=8, lag=1).lag
        1
        >>> rc.Ray(lag=-1)
        Traceback (most recent call last):
        ValueError: lag=-1 is negative; give 0 to collect with the newest policy, 1 to ...
    """

    cluster: str | None = None
    """`auto` for the cluster of this machine or of RAY_ADDRESS, or HOST:PORT of one. If not given,
    one that this process is connected to already, else a new one on this machine."""

    def connect(self):
        ray = _ray(loopback=self.cluster is None)
        ours = not ray.is_initialized()
        if ours:
            _connect(ray, self.cluster)
        return RaySession(ray, self.actors, ours)


class RaySession(AbstractSession):
    """Actors and tasks on a cluster.

    Args:
        ray: the module.
        actors: how many are asked for; None for one for each CPU.
        ours: whether to disconnect at the end.
    """

    def __init__(self, ray: Any, actors: int | None, ours: bool):
        self._ray = ray
        self._ours = ours
        self._asked = actors
        self._started: list[RayActor] = []
        self._environment = {"PJRT_NPROC": "1", "JAX_PLATFORMS": "cpu"}
        if "XLA_FLAGS" in os.environ:
            self._environment["XLA_FLAGS"] = os.environ["XLA_FLAGS"]
        there = int(ray.cluster_resources().get("CPU", 0))
        self.actors = min(actors or there, there)
        if not self.actors:
            self.close()
            raise ValueError("The Ray cluster has no CPU; add a node to it.")
        if actors is not None and self.actors < actors:
            warnings.warn(
                f"actors={actors}, but the Ray cluster has {there} CPUs: there will be "
                f"{self.actors}.",
                stacklevel=2,
            )
        # SPREAD puts actors on all nodes, so that one lost takes few with it.
        options = dict(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
        self._kind = ray.remote(**options)(_Actor)

    def map(
        self,
        function,
        tasks,
        watch=lambda: None,
        at_once=None,
        arrived=lambda place, result: None,
    ):
        ray = self._ray
        remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_run)
        calls = packed_each((function, task) for task in tasks)
        limit = min(at_once or len(calls), self._asked or len(calls))
        places: dict[Any, int] = {}
        results: list[Any] = [None] * len(calls)
        pending: list[Any] = []
        try:
            while len(places) < len(calls) or pending:
                while len(pending) < limit and len(places) < len(calls):
                    pending.append(remote.remote(calls[len(places)], self._environment))
                    places[pending[-1]] = len(places)
                done, pending = ray.wait(pending, timeout=1)
                for reference in done:  # one at most
                    place = places[reference]
                    results[place] = self._result(reference)
                    arrived(place, results[place])
                watch()
        finally:  # a task that failed ends all others
            for reference in pending:
                ray.cancel(reference, force=True)
        return results

    def _result(self, reference):
        try:
            return outcome(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            raise ChildProcessError(
                f"A process of ours on the Ray cluster ended: {_first_line(error)}"
            ) from error

    def actor(self, make):
        handle = self._kind.remote(packed(make), self._environment)
        actor = RayActor(self._ray, handle)
        self._started.append(actor)
        return actor

    def share(self, value):
        return self._ray.put(value)

    def close(self):
        with contextlib.suppress(Exception):
            for actor in self._started:
                actor.end()
            if self._ours:
                self._ray.shutdown()
                _dismiss_guards()


class RayActor(AbstractActor):
    """A handle of an actor on the cluster."""

    def __init__(self, ray: Any, handle: Any):
        self._ray = ray
        self._handle = handle

    def ask(self, method, *arguments) -> Future:
        told: Future = Future()
        told.set_running_or_notify_cancel()

        def tell(future):
            try:
                told.set_result(outcome(future.result()))
            except self._ray.exceptions.RayError as error:
                told.set_exception(ActorDied(_first_line(error)))
            except Exception as error:
                told.set_exception(error)

        self._handle.answer.remote(method, *arguments).future().add_done_callback(tell)
        return told

    def end(self):
        with contextlib.suppress(Exception):
            self._ray.kill(self._handle)


class _Actor:
    """What runs in the process of an actor.

    Args:
        make: as a `Holder` takes it.
        environment: variables, set before JAX computes anything.
    """

    def __init__(self, make: bytes, environment: Mapping[str, str]):
        os.environ.update(environment)
        _end_with_raylet()
        self._holder = Holder(make)

    def answer(self, method: str, *arguments: Any) -> tuple[bool, Any]:
        """Whether the method returned, and what it returned or raised."""
        return self._holder.answer(method, *arguments)


@functools.cache  # a process may do many tasks
def _end_with_raylet() -> None:
    """End this process soon after the one of Ray that has started it, even in the middle of a step.

    Ray itself waits for a minute whether its cluster comes back.
    """
    raylet = os.getppid()

    def watch():
        while os.getppid() == raylet:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(call: bytes, environment: Mapping[str, str]) -> tuple[bool, Any]:
    """A task, in a process of the cluster."""
    os.environ.update(environment)
    _end_with_raylet()
    use_compilation_cache()

    def compute():
        function, task = unpacked(call)
        return function(task)

    returned, value = attempt(compute)
    if not returned and not isinstance(value, ValueError | OSError | RuntimeError):
        value = RuntimeError(f"{type(value).__name__}: {value}")
    return returned, value


def _ray(loopback: bool) -> Any:
    """The module, imported with nothing reported to its makers.

    Args:
        loopback: whether the cluster is on this machine alone, so that nothing of it has to
            listen on other interfaces.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if loopback:
        # Ray's name for it speaks of systems where it is the default; it has this effect on all.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # The learner waits for its actors: they are not to give way to it, as is Ray's default.
        os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError:
        raise ValueError(
            "on=Ray needs a package that is not installed; pip install 'recollect[ray]'."
        ) from None
    return ray


def _connect(ray: Any, cluster: str | None) -> None:
    """Start a cluster on this machine, or connect with one; a sentence if there is none."""
    quietly = dict(logging_level="error", log_to_driver=False)
    # Without it Ray puts the current directory of this process first on the module search path of
    # all others, where a file could take the place of a module of the standard library.
    job = ray.job_config.JobConfig(_client_job=True)
    if cluster is None:
        with _private_files(), _no_fork_warning(), _guarded():
            # "local", as nothing would stand for a cluster that somebody has started here.
            ray.init("local", include_dashboard=False, job_config=job, **quietly)
        _check_token()
        return
    address = os.environ.get("RAY_ADDRESS", "auto") if cluster == "auto" else cluster
    if address != "auto":
        _check_reachable(address)
    try:
        ray.init(address=cluster, job_config=job, **quietly)
    except (ConnectionError, RuntimeError, ValueError) as error:
        ray.shutdown()  # of what it had begun
        words = " ".join(str(error).split())
        if "ersion mismatch" in words:
            raise ValueError(f"cluster={cluster!r} runs other versions. {words}") from None
        raise ValueError(f"cluster={cluster!r} cannot be used: {words}") from None


def _check_reachable(cluster: str) -> None:
    """Raise unless a server like Ray's answers at HOST:PORT.

    Ray itself waits for minutes, and then ends the process.
    """
    host, _, port = cluster.rpartition(":")
    if not port.isdigit() or "://" in cluster:
        raise ValueError(f"cluster={cluster!r} is neither auto nor HOST:PORT; give one of them.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(GREETING)
                if connection.recv(9)[3:4] != GREETING[-6:-5]:
                    raise OSError("something else than Ray answers there")
    except OSError as error:
        raise ValueError(
            f"cluster={cluster!r} cannot be reached: {error}; is Ray running there?"
        ) from None


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """A context in which new files are for this user alone, as Ray's token has to be."""
    if not hasattr(os, "umask"):
        yield
        return
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _check_token() -> None:
    """Warn if others can read the token by which this user's clusters know their own."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    with contextlib.suppress(OSError):
        if hasattr(os, "getuid") and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            warnings.warn(
                f"Others can read {path}, and with it run programs on your Ray clusters; "
                f"chmod 600 {path}.",
                stacklevel=4,
            )


_guards: list[subprocess.Popen] = []


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """A context in which a cluster is started that ends with this process, whatever ends that.

    If it is killed, some processes of Ray would wait for a minute whether the cluster comes back.
    A variable, by which `guard` knows them, is for all that are started in this context.
    """
    if sys.platform != "linux":
        yield
        return
    name = f"RECOLLECT_CLUSTER_{uuid.uuid4().hex}"
    program = [sys.executable, "-I", "-S", guard.__file__, name]
    # In a session of its own, so that no interrupt from the keyboard ends it first.
    _guards.append(subprocess.Popen(program, stdin=subprocess.PIPE, start_new_session=True))
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


def _dismiss_guards() -> None:
    """End the guards of clusters that have been shut down."""
    while _guards:
        with _guards.pop() as process:
            process.kill()


@contextlib.contextmanager
def _no_fork_warning() -> Iterator[None]:
    """A context without JAX's warning that this process has threads and is forked: Ray's children
    become other programs at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
