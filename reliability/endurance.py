"""A long run needs no more memory than a short one, and compiles nothing after its beginning.

    python reliability/endurance.py [ITERATIONS]

Memory is what the process holds (resident set), after a tenth of the iterations and at the end.
Every compilation is counted that JAX reports after the second iteration.
"""

import os
from pathlib import Path

import jax
from common import count, folder, problem, quiet, record, set_up

COMPILED = "/jax/core/compile/backend_compile_duration"


class Watch:
    """Notes memory and compilations."""

    def __init__(self, early: int):
        self.early = early
        self.memory = 0
        self.compilations = 0
        self.counted = -1
        jax.monitoring.register_event_duration_secs_listener(self._compiled)

    def _compiled(self, event: str, seconds: float, **facts) -> None:
        self.compilations += event == COMPILED

    def __call__(self, run, info) -> None:
        if run.iteration == 2:
            self.counted = self.compilations
        if run.iteration == self.early:
            self.memory = resident()


def resident() -> int:
    """Bytes that this process holds in memory."""
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    set_up()
    quiet()
    from recollect import train

    iterations = count(5000)
    watch = Watch(iterations // 10)
    with folder() as name:
        out = Path(name) / "run"
        train(**problem(), iterations=iterations, out=out, callback=watch, checkpoint_seconds=5)
        growth = resident() / watch.memory - 1
        again = watch.compilations - watch.counted
    result = (
        f"memory {growth:+.1%} after the first {watch.early}, {again} compilations after the second"
    )
    record("endurance.py", "a long run, kept in a folder", f"{iterations:,} iterations", result)


if __name__ == "__main__":
    main()
