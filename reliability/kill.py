"""Runs are killed by SIGKILL and gone on with: they end as if nothing had happened, bit for bit.

    python reliability/kill.py [KILLS]

Runs of a compiled environment and of one on the host are killed at random moments (a fifth of them
while the process starts, compiles or restores), and at every line of the code that writes files.
Compared are all arrays of the last checkpoint (policy, window, keys, counters, curves) and all rows
of progress.csv and of the monitor, without their times.
"""

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from common import count, folder, problem, processes, quiet, record, set_up

ITERATIONS = 25
STARTING = 8.0
"""Seconds in which a process that is killed early is."""


def work(root: str, engine: str, runs: int, connection, line: int | None = None) -> None:
    """Begin, or go on with, one run after another; a `line` kills this process in the last."""
    quiet()
    from recollect import resume, train
    from recollect.run.folder import holds_run

    told = []

    def tell(run, info):
        if not told:
            told.append(connection.send(run.iteration))

    settings = dict(callback=tell, checkpoint_seconds=0)
    for number in range(runs):
        out = Path(root) / f"{number:04d}"
        if (out / "done").exists():
            continue
        if line is not None and number == runs - 1:
            die_at_line(line)
        if holds_run(out):
            resume(out, **settings)
        else:
            train(**problem(engine), out=out, iterations=ITERATIONS, **settings)
        (out / "done").touch()


def die_at_line(number: int) -> None:
    """Kill this process at the `number`-th of the lines that write files, in their order.

    Lines of every iteration do so when they run for the third time: there is something to lose
    then, and old files are deleted.
    """
    from recollect.run import checkpoint
    from recollect.run.folder import Appended, RunFolder

    once = (checkpoint.create, RunFolder.create.__func__, RunFolder.begin, RunFolder._tidy)
    once += (RunFolder._open_monitors,)
    often = (checkpoint.write, checkpoint.replace, checkpoint._part.__wrapped__)
    often += (RunFolder.checkpoint, Appended.append)
    times = {function.__code__: 1 for function in once} | {one.__code__: 3 for one in often}
    seen: dict[tuple, int] = {}

    def trace(frame, event, argument):
        if frame.f_code not in times:
            return None
        if event == "line":
            place = (frame.f_code, frame.f_lineno)
            seen[place] = seen.get(place, 0) + 1
            if list(seen).index(place) + 1 == number and seen[place] == times[frame.f_code]:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def killed_at_random(root: Path, engine: str, kills: int, draw: random.Random, lasts: float) -> int:
    """Kill processes at random moments, and finish all runs; returns their number."""
    for number in range(kills):
        child, connection = start(root, engine, 10**6)
        if number % 5 == 4:
            time.sleep(draw.uniform(0, STARTING))
        else:
            assert connection.poll(600)
            time.sleep(draw.uniform(0, lasts))
        child.kill()
        child.join()
    return finish(root, engine)


def killed_at_lines(root: Path, engine: str, lines: Iterable[int]) -> tuple[int, int]:
    """Kill a process at each line that writes, and finish all runs; returns kills and runs."""
    kills = 0
    for number in lines:
        child, _ = start(root, engine, number, line=number)
        child.join()
        if child.exitcode == 0:  # it has no more lines
            break
        assert child.exitcode == -signal.SIGKILL, child.exitcode
        kills += 1
    return kills, finish(root, engine)


def start(root: Path, engine: str, runs: int, line: int | None = None):
    ours, theirs = processes().Pipe(duplex=False)
    child = processes().Process(target=work, args=(str(root), engine, runs, theirs, line))
    child.start()
    theirs.close()
    return child, ours


def finish(root: Path, engine: str) -> int:
    """Let one process go on with all runs that were begun."""
    runs = len(list(root.iterdir())) if root.exists() else 0
    child, _ = start(root, engine, runs)
    child.join()
    assert child.exitcode == 0
    return runs


def contents(out: Path) -> dict:
    """All that a run leaves behind, without times."""
    from recollect.run.checkpoint import read

    newest = sorted((out / "checkpoints").iterdir())[-1]
    arrays, facts = read(newest)
    found = {name: array.tobytes() for name, array in arrays.items() if name != "clock"}
    facts = {key: value for key, value in facts.items() if key != "episodes"}
    found |= {"facts": facts, "files": sorted(one.name for one in (out / "checkpoints").iterdir())}
    for name in ("progress.csv", "0.monitor.csv"):
        lines = (out / name).read_text(encoding="utf-8").splitlines()
        found[name] = [line.rpartition(",")[0] for line in lines[1:]]
    return found


def same(root: Path, runs: int, reference: Path) -> int:
    """How many of the runs ended as one that was left alone."""
    expected = contents(reference / "0000")
    return sum(contents(root / f"{number:04d}") == expected for number in range(runs))


def alone(root: Path, engine: str) -> float:
    """Run a problem undisturbed; returns the seconds that it takes after its first iteration."""
    child, connection = start(root, engine, 1)
    assert connection.poll(600)
    began = time.monotonic()
    child.join()
    assert child.exitcode == 0
    return time.monotonic() - began


def main() -> None:
    set_up()
    kills = count(100)
    with folder() as name:
        for engine in ("compiled", "gymnasium"):
            root = Path(name) / engine
            lasts = alone(root / "alone", engine)
            runs = killed_at_random(root / "random", engine, kills // 2, random.Random(0), lasts)
            good = same(root / "random", runs, root / "alone")
            what = f"kill −9 at random moments, then resume ({engine} environment)"
            result = f"{good} of the {runs} runs that they hit ended byte for byte as if left alone"
            record("kill.py", what, f"{kills // 2} kills", result)
        root = Path(name) / "compiled"
        kills, runs = killed_at_lines(root / "lines", "compiled", itertools.count(1))
        good = same(root / "lines", runs, root / "alone")
    result = f"{good} of {runs} runs ended byte for byte as if left alone"
    what = "kill −9 at every line of code that writes a run's files, then resume"
    record("kill.py", what, f"{kills} lines", result)


if __name__ == "__main__":
    main()
