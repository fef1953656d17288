"""Environment steps a second of 8 seeds of Hopper-v5: a thread for each core beside one thread.

    python benchmarks/host_seeds.py [--turns 10] [--patience 30]

Whole training with the preset of RTRPO, without compilation. Two runs of the same seeds take turns,
one iteration (8,192 steps) each: one steps its 64 copies in a thread for each core, the other all
of them in one thread. Both update the seeds on every core. Their curves have to be the same bit for
bit. The ratio is the median over turns, with its 95 % bootstrap interval.

On Linux a turn begins when other processes leave the machine alone, and counts if they took less
than a tenth of it meanwhile. Those of low priority count, too: Linux gives every session the same
time, and a thread that holds Python's lock while it waits for a core holds up the other. After
`--patience` minutes the least disturbed turns fill up, and the share of others in them is printed.
"""

import argparse
import dataclasses
import os
import time
from pathlib import Path

import numpy as np

from recollect import make, preset
from recollect.report.tables import markdown
from recollect.run.hosted import HostRun
from recollect.run.state import CorePool, Limits, seed_keys
from recollect.runtime import cores, one_blas_thread, use_compilation_cache
from recollect.statistics import bootstrap

SEEDS = 8
WAYS = {"one thread": False, "a thread for each core": True}
QUIET = 0.1
"""Of the machine, for others."""


def busy() -> float:
    """Seconds that all cores together have worked so far; 0 where the system does not say."""
    if not Path("/proc/stat").exists():
        return 0.0
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, low_priority, system, _, _, *rest = (int(field) for field in fields)
    ticks = user + low_priority + system + sum(rest)
    return ticks / os.sysconf("SC_CLK_TCK")


def foreign_share(action) -> tuple[float, float]:
    """Seconds that `action` takes, and the share of the machine that others took meanwhile."""
    began = time.perf_counter()
    before = busy() - time.process_time()
    action()
    seconds = time.perf_counter() - began
    foreign = busy() - time.process_time() - before
    return seconds, foreign / seconds / (os.cpu_count() or 1)


def turn(runs: dict, states: dict) -> tuple[dict[str, float], float]:
    """An iteration of each run: its seconds, and the largest share of others in the machine."""
    seconds = {}
    others = []
    curves = {}
    for way, run in runs.items():

        def advance(way=way, run=run):
            states[way], curves[way] = run.advance(states[way], 1)

        seconds[way], share = foreign_share(advance)
        others.append(share)
    one, several = curves.values()
    for name in one:
        np.testing.assert_array_equal(one[name], several[name], err_msg=name)
    return seconds, max(others)


def measure(turns: int, patience: float) -> list[tuple[dict[str, float], float]]:
    """Seconds of each way and share of others, in the turns that were least disturbed."""
    env = make("Hopper-v5")
    chosen = preset("rtrpo", "Hopper-v5")
    shared = (chosen.algorithm, chosen.collector, Limits(np.inf, np.inf), chosen.policy)
    seeds = tuple(range(SEEDS))
    use_compilation_cache()
    with one_blas_thread(), CorePool(SEEDS) as pool:
        runs = {
            way: HostRun(
                dataclasses.replace(env, threads=threads), *shared, seeds, seed_keys(seeds), pool
            )
            for way, threads in WAYS.items()
        }
        states = {way: run.start() for way, run in runs.items()}
        turn(runs, states)  # the first has to reset all copies
        end = time.monotonic() + 60 * patience
        found = []
        while sum(others < QUIET for _, others in found) < turns:
            late = time.monotonic() > end
            if late and len(found) >= turns:
                break
            if late or foreign_share(lambda: time.sleep(0.5))[1] < QUIET:
                found.append(turn(runs, states))
        for run in runs.values():
            run.close()
    return sorted(found, key=lambda one: one[1])[:turns]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--patience", type=float, default=30)
    chosen = parser.parse_args()
    found = measure(chosen.turns, chosen.patience)
    one, several = (np.array([seconds[way] for seconds, _ in found]) for way in WAYS)
    steps = SEEDS * 8 * 128
    ratio = bootstrap(lambda ratios: np.median(ratios, axis=-1), one / several)
    rate = lambda seconds: f"{steps / np.median(seconds):,.0f}"
    interval = f"{ratio.value:.2f} ({ratio.low:.2f} – {ratio.high:.2f})"
    rows = [
        ("one thread", rate(one), "1.00"),
        (f"a thread for each of {cores()} cores", rate(several), interval),
    ]
    print(*markdown(("8 seeds of Hopper-v5", "steps/s", "/ one thread"), rows), sep="\n")
    print(f"\nShare of others in the machine: at most {max(others for _, others in found):.0%}.")


if __name__ == "__main__":
    main()
