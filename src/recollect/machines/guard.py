"""What ends the rest of a cluster once the process that has started it has gone, on Linux.

A program of its own, without any other module of the library: `python guard.py NAME`. It waits for
the end of its standard input, which the system closes with the process at the other end, however
that ends. The processes of the cluster are those with a variable NAME in their environment, and
all that these have started: Ray's agents write their titles over their environment.
"""

import contextlib
import os
import select
import signal
import sys
import time

SECONDS = 1.0
"""Between two looks at the cluster, the last of which still sees who has started whom."""
ROUNDS = 20
"""Of ending what is left, a tenth of a second apart."""


def family(name: str) -> set[int]:
    """Processes with a variable in their environment, and all that they have started."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for word in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has gone
            with open(f"/proc/{word}/stat", encoding="utf-8", errors="replace") as file:
                # After the name, which may hold anything: state and parent.
                parents[int(word)] = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{word}/environ", "rb") as file:
                if name.encode() in file.read():
                    found.add(int(word))
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def main(name: str) -> None:
    """Wait, then end what is left."""
    known = family(name)
    while not select.select([sys.stdin], [], [], SECONDS)[0]:
        known = family(name)
    for _ in range(ROUNDS):
        for process in known | family(name):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        known = set()  # a number may be another process's soon
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])
