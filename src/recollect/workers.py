"""Independent tasks in one process for each core.

Within one process, XLA splits even small operations over all cores that it sees, which costs more
than it gains, and compiles a program on a single core. One process for each core avoids both. What
the processes exchange is pickled and goes through pipes, to which nobody else can write, and never
through a file.
"""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from io import RawIOBase
from typing import BinaryIO, TypeVar

from recollect.runtime import core_numbers, cores, use_compilation_cache

LENGTH = 8
"""Bytes that say how long a message is."""
Task = TypeVar("Task")
Result = TypeVar("Result")


def on_every_core(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    watch: Callable[[], None] = lambda: None,
    at_once: int | None = None,
    arrived: Callable[[int, Result], None] = lambda place, result: None,
) -> list[Result]:
    """`[function(task) for task in tasks]`, computed by as many processes as there are cores.

    Args:
        function: importable by name, so that it can be pickled.
        tasks: arguments, begun in this order.
        watch: called at least every second meanwhile, for example to show progress.
        at_once: largest number of processes; by default only the cores limit it.
        arrived: is given every result when it is there, with the place of its task among all.

    Raises:
        ValueError, OSError: as raised by `function`.
        RuntimeError: with the traceback, for any other error of `function`.
        ChildProcessError: if a process died.
    """
    number = min(cores(), len(tasks), at_once or len(tasks))
    workers = [start_worker(core) for core in core_numbers()[:number]]
    free: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def run_on_free_worker(task: Task) -> Result:
        worker = free.get()
        try:
            send(worker, function, task)
            return receive(worker)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(max(1, len(workers)))
    try:
        futures = [pool.submit(run_on_free_worker, task) for task in tasks]
        places = {future: place for place, future in enumerate(futures)}
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
            # A task that failed ends all others; what has arrived beside it is not lost.
            for future in sorted(done, key=lambda one: one.exception() is not None):
                arrived(places[future], future.result())
            watch()
        return [future.result() for future in futures]
    finally:
        for worker in workers:
            worker.kill()
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.wait()


def start_worker(core: int) -> subprocess.Popen:
    """Start a process on one core that runs `serve`."""
    # Not by multiprocessing, which would run the caller's script again. The program below first
    # sets the core, as JAX looks at the cores once, when it is imported; systems that cannot
    # restrict a process to a core set the threads of XLA and of the BLAS instead. Accelerators are
    # the parent's. Then it keeps standard output for answers, and redirects what anything prints to
    # standard error.
    program = f"""
import os
os.environ["JAX_PLATFORMS"] = "cpu"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [{core}])
else:
    os.environ |= dict(PJRT_NPROC="1", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
from recollect.workers import serve
serve(answers)
"""
    # -P keeps the current directory, which may hold foreign modules, off the search path.
    command = [sys.executable, "-P", "-c", program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def send(worker: subprocess.Popen, function: Callable, task) -> None:
    """Let a worker begin to compute `function(task)`."""
    assert worker.stdin is not None
    try:
        asked = pickle.dumps((function, task))
        worker.stdin.write(len(asked).to_bytes(LENGTH) + asked)
        worker.stdin.flush()
    except OSError as error:
        raise _death(worker) from error


def receive(worker: subprocess.Popen):
    """What the worker has computed; waits for it, and raises what it raised."""
    assert worker.stdout is not None
    try:
        answer = pickle.load(worker.stdout)
    except (EOFError, OSError) as error:
        raise _death(worker) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _death(worker: subprocess.Popen) -> ChildProcessError:
    return ChildProcessError(
        f"A process of ours ended with status {worker.wait()}; the machine may be short of memory."
    )


def serve(answers: BinaryIO) -> None:
    """The loop of a worker process, until its standard input ends: the process that has started it
    has closed it, or has gone.

    It reads pickled pairs of a function and its argument, and writes pickled results. Errors are
    results too, which `receive` raises.

    Args:
        answers: where results are written.
    """
    # Unbuffered: no thread may hold a buffer's lock while the interpreter shuts down.
    with (
        open(0, "rb", buffering=0, closefd=False) as pipe,
        contextlib.suppress(KeyboardInterrupt, BrokenPipeError),
    ):
        inbox = _Inbox(pipe)
        use_compilation_cache()
        while message := inbox.take():
            function, task = pickle.loads(message)
            try:
                answer = function(task)
            except (ValueError, OSError) as error:
                answer = error
            except Exception:  # its kind may not be picklable
                answer = RuntimeError(traceback.format_exc())
            pickle.dump(answer, answers)
            answers.flush()


class _Inbox:
    """What the parent asks for, and the watch whether it is still there.

    The system closes the pipe of a process that has gone, however it went. While a task is under
    way, a thread reads on, lest that pass unnoticed. It begins to a second late: between short
    tasks nothing has to pass from thread to thread, which would take longer than they do.
    """

    def __init__(self, pipe: RawIOBase):
        self._pipe = pipe
        self._reading = threading.Lock()
        self._waiting: deque[bytes] = deque()
        threading.Thread(target=self._watch, daemon=True).start()

    def take(self) -> bytes:
        """The next message; nothing if the parent has closed the pipe, or gone."""
        with self._reading:
            return self._waiting.popleft() if self._waiting else self._read()

    def _watch(self) -> None:
        while True:
            time.sleep(1)
            if self._reading.acquire(blocking=False):  # else `take` is reading
                message = self._read()
                if not message:
                    os._exit(1)  # even in the middle of a task
                self._waiting.append(message)
                self._reading.release()

    def _read(self) -> bytes:
        return self._bytes(int.from_bytes(self._bytes(LENGTH)))

    def _bytes(self, count: int) -> bytes:
        """The next so many bytes; nothing if the pipe ends before."""
        found = bytearray()
        while len(found) < count and (part := self._pipe.read(count - len(found))):
            found += part
        return bytes(found) if len(found) == count else b""
