"""Environment steps a second of 8 seeds of Hopper-v5: a process for each core beside one.

    python benchmarks/host_seeds.py

Whole training with the preset of RTRPO, without compilation. Two runs of the same seeds take turns,
one iteration (8,192 steps) each: one steps its 64 copies in a process for each core, the other all
of them in its own. Both update the seeds on every core. Their curves have to be the same bit for
bit. The ratio is the median over turns, with its 95 % bootstrap interval.
"""

import dataclasses
import time

import numpy as np

from recollect import make, preset
from recollect.keys import seed_keys
from recollect.report.tables import markdown
from recollect.run.hosted import HostRun
from recollect.run.state import CorePool, Limits
from recollect.runtime import cores, one_blas_thread, use_compilation_cache
from recollect.statistics import bootstrap

SEEDS = 8
TURNS = 10
ON_CORES = (False, True)


def turn(runs: list[HostRun], states: list) -> list[float]:
    """The seconds of an iteration of each run."""
    seconds = []
    curves = []
    for i, run in enumerate(runs):
        began = time.perf_counter()
        states[i], columns = run.advance(states[i], 1)
        seconds.append(time.perf_counter() - began)
        curves.append(columns)
    for name in curves[0]:
        np.testing.assert_array_equal(curves[0][name], curves[1][name], err_msg=name)
    return seconds


def main() -> None:
    env = make("Hopper-v5")
    chosen = preset("rtrpo", "Hopper-v5")
    shared = (chosen.algorithm, chosen.collector, Limits(np.inf, np.inf), chosen.policy)
    seeds = tuple(range(SEEDS))
    use_compilation_cache()
    with one_blas_thread(), CorePool(SEEDS) as pool:
        runs = [
            HostRun(
                dataclasses.replace(env, on_cores=on_cores), *shared, seeds, seed_keys(seeds), pool
            )
            for on_cores in ON_CORES
        ]
        states = [run.start() for run in runs]
        turn(runs, states)  # the first has to reset all copies
        one, several = np.transpose([turn(runs, states) for _ in range(TURNS)])
        for run in runs:
            run.close()
    ratio = bootstrap(lambda ratios: np.median(ratios, axis=-1), one / several)
    steps = SEEDS * 8 * 128
    rate = lambda seconds: f"{steps / np.median(seconds):,.0f}"
    interval = f"{ratio.value:.2f} ({ratio.low:.2f} – {ratio.high:.2f})"
    rows = [
        ("one process", rate(one), "1.00"),
        (f"a process for each of {cores()} cores", rate(several), interval),
    ]
    print(*markdown(("8 seeds of Hopper-v5", "steps/s", "/ one process"), rows), sep="\n")


if __name__ == "__main__":
    main()
