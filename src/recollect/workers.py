"""Independent tasks in processes of their own, each held to one core.

XLA shares operations with all cores that it sees, which small ones pay for, and compiles a program on one core alone. A process for
each core does neither harm. What goes between the processes is pickled, through pipes that no one else can write to, and never to a file.
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import BinaryIO, TypeVar

from recollect.runtime import core_numbers, cores, use_compilation_cache

Task = TypeVar("Task")
Result = TypeVar("Result")


def on_every_core(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    watch: Callable[[], None] = lambda: None,
    at_once: int | None = None,
) -> list[Result]:
    """What `function` gives for each task, begun in order, as many at once as there are cores. `watch` is called every second."""
    most = min(cores(), len(tasks), at_once or len(tasks))
    workers = [_start(core) for core in core_numbers()[:most]]
    free: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def give_away(task: Task) -> Result:
        worker = free.get()
        try:
            return _ask(worker, function, task)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(max(1, len(workers)))
    try:
        pending = results = [pool.submit(give_away, task) for task in tasks]
        while pending:
            done, pending = wait(pending, timeout=1)
            for one in done:
                one.result()  # the first failure ends it all
            watch()
        return [one.result() for one in results]
    finally:
        for worker in workers:
            worker.kill()
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.wait()


def _start(core: int) -> subprocess.Popen:
    # The core before JAX is imported, which looks at the cores once; and before that a channel of our own, as others may print.
    # Where a process cannot be held to a core, XLA's number of threads can be set.
    # Not multiprocessing, which would run the caller's script again.
    program = f"""
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [{core}])
else:
    os.environ["NPROC"] = "1"
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
from recollect.workers import serve
serve(answers, {os.getpid()})
"""
    # -P: what lies in the current directory is not ours to run.
    command = [sys.executable, "-P", "-c", program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _ask(worker: subprocess.Popen, function: Callable, task):
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        pickle.dump((function, task), worker.stdin)
        worker.stdin.flush()
        answer = pickle.load(worker.stdout)
    except (EOFError, OSError) as error:
        raise ChildProcessError(
            f"A process of ours ended with status {worker.wait()}; the machine may be short of memory."
        ) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def serve(answers: BinaryIO, parent: int) -> None:
    """What such a process does until its input ends: a function and its argument come in, what it gives goes out."""
    if hasattr(os, "getppid"):  # else it ends after its task, when its input is closed
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    use_compilation_cache()
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            function, task = pickle.load(sys.stdin.buffer)
            try:
                answer = function(task)
            except (ValueError, OSError) as error:
                answer = error
            except Exception:  # perhaps of a kind that cannot be sent
                answer = RuntimeError(traceback.format_exc())
            pickle.dump(answer, answers)
            answers.flush()


def _end_with(parent: int) -> None:
    """A parent that was killed must not leave us at work for minutes."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
