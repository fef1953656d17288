"""What an update costs that uses 1 of 32 stored batches, against one with a window of 1.

    python benchmarks/ages_in_use.py

Updates of CartPole-v1 on one core, in turns, so that what slows the machine slows all of them. The
ratio is the median over turns of times in the same turn, with its quartiles. The last column uses
all 32 batches.
"""

import time

import equinox as eqx
import jax
import numpy as np

from recollect import (
    NPG,
    PG,
    PPO,
    TRPO,
    Architecture,
    Episodes,
    ExpectedFisher,
    Steps,
    Uniform,
    VTrace,
    make,
)
from recollect.algorithms.narrow import narrow_update
from recollect.report.tables import markdown
from recollect.tree import traced_numbers

CAPACITY = 32
TURNS = 40
CRITIC = dict(advantages=VTrace(standardise=True))
CASES = {
    "pg, episodes": (PG, {}, Episodes(4)),
    "npg, episodes": (NPG, {}, Episodes(4)),
    "npg, critic": (NPG, CRITIC | dict(fisher=ExpectedFisher()), Steps(8, 64)),
    "trpo": (TRPO, dict(fisher=ExpectedFisher()), Steps(8, 64)),
    "ppo": (PPO, {}, Steps(8, 64)),
}


def updater(algorithm, collector):
    """A function that updates once, from a full history, and gives the seconds it took."""
    env = make("CartPole-v1")
    key = jax.random.key(0)
    policy = Architecture().build(key, env)
    algorithm = traced_numbers(algorithm)
    rollout = eqx.filter_jit(collector)(key, env, policy, collector.init(key, env), 0.99)[1]
    update = eqx.filter_jit(lambda algorithm, state: narrow_update(algorithm, state, rollout, key))
    state = algorithm.init(policy, rollout.batch, key)
    for _ in range(algorithm.window):
        state, _ = update(algorithm, state)

    def seconds() -> float:
        began = time.perf_counter()
        jax.block_until_ready(update(algorithm, state))
        return time.perf_counter() - began

    return seconds


def main() -> None:
    rows = []
    for label, (kind, settings, collector) in CASES.items():
        arms = [
            updater(algorithm, collector)
            for algorithm in (
                kind(window=1, **settings),
                kind(window=CAPACITY, shares=Uniform(newest=1), **settings),
                kind(window=CAPACITY, **settings),
            )
        ]
        times = np.array([[arm() for arm in arms] for _ in range(TURNS)])
        one, few, all_of_them = np.median(times, axis=0)
        low, middle, high = np.quantile(times[:, 1] / times[:, 0], [0.25, 0.5, 0.75])
        rows.append(
            (
                label,
                f"{1e3 * one:.1f}",
                f"{1e3 * few:.1f}",
                f"{middle:.2f} ({low:.2f} – {high:.2f})",
                f"{1e3 * all_of_them:.1f}",
            )
        )
    columns = ("update", "window 1, ms", "1 of 32, ms", "ratio", "32, ms")
    print(*markdown(columns, rows, align="lrrrr"), sep="\n")


if __name__ == "__main__":
    main()
