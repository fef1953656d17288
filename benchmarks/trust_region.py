"""KL of accepted TRPO steps on fresh states, against the radius.

    python benchmarks/trust_region.py [--tasks ENV ...] [--algorithms trpo rtrpo]
        [--steps 50000] [--seeds 4] [--first-seed 0] [--fresh 32]

TRPO and RTRPO train with their defaults. In every iteration 8 + 32 copies of the environment are
stepped with the same policy, and it learns from the first eight alone: after each accepted step,
KL(old ‖ new) is averaged over the states of the others. The promise is at most 1.5 × the radius
after 99 % of the steps; the median tells how much of the radius is used. The KL that the search
saw, on the states of the newest batch, stands beside it.

The mean of 32 copies is itself off by a seventh on CartPole-v1, which counts against the promise;
`--fresh 120` halves that where environments are compiled and copies cost little.
"""

import argparse
import dataclasses
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from recollect import RTRPO, TRPO, Steps, train
from recollect.algorithms.base import AbstractAlgorithm
from recollect.collect.rollout import Rollout
from recollect.refusals import SIGNAL
from recollect.report.tables import markdown

TASKS = (
    "CartPole-v1",
    "Pendulum-v1",
    "Hopper-v5",
    "HalfCheetah-v5",
    "Acrobot-v1",
    "MountainCarContinuous-v0",
    "InvertedPendulum-v5",
)
LEARNED = 8
"""Copies that are learned from."""
ALGORITHMS = {"trpo": TRPO(), "rtrpo": RTRPO()}
RADIUS = TRPO().target_kl
COLUMNS = (
    "environment",
    "algorithm",
    "accepted of updates with a signal",
    "median KL / radius, in the search",
    "median KL / radius, fresh states",
    "99 % quantile",
    "share within 1.5",
    "shortenings a step",
)


class WatchedInfo(eqx.Module):
    """What the search saw and what fresh states say."""

    fresh_kl: Float[Array, ""]
    backtracks: Float[Array, ""]


class Watched(AbstractAlgorithm):
    """TRPO on the first copies of a batch, and the KL of its steps on the others."""

    algorithm: TRPO = TRPO()

    @classmethod
    def of(cls, algorithm: TRPO) -> "Watched":
        """The settings that `train` looks at are those of the algorithm."""
        names = [field.name for field in dataclasses.fields(AbstractAlgorithm)]
        return cls(algorithm=algorithm, **{name: getattr(algorithm, name) for name in names})

    def init(self, policy, batch, key):
        return self.algorithm.init(policy, jax.tree.map(lambda x: x[:LEARNED], batch), key)

    def update(self, state, rollout, key):
        learned = jax.tree.map(lambda x: x[:LEARNED], rollout.batch)
        fresh = jax.tree.map(lambda x: x[LEARNED:], rollout.batch)
        after, info = self.algorithm.update(state, Rollout.of(learned), key)
        divergence = lambda observation: state.policy.kl(after.policy, observation)
        kls = jax.vmap(jax.vmap(divergence))(fresh.observations)
        own = WatchedInfo(
            fresh_kl=jnp.mean(kls, where=fresh.mask),
            backtracks=info.own.backtracks.astype(jnp.float32),
        )
        return after, dataclasses.replace(info, own=own)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--fresh", type=int, default=32)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    options = parser.parse_args()
    copies = LEARNED + options.fresh
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows = []
    for task in options.tasks:
        for name in options.algorithms:
            algorithm = ALGORITHMS[name]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run = train(
                    task,
                    Watched.of(algorithm),
                    collector=Steps(copies, 64),
                    seeds=seeds,
                    environment_steps=options.steps * copies // LEARNED,
                    progress=False,
                )
            accepted = run.curves["refused"] == 0
            seen = run.curves["kl"][accepted] / RADIUS
            fresh = run.curves["fresh_kl"][accepted] / RADIUS
            rows.append(
                (
                    task,
                    f"{name}, window {algorithm.window}",
                    f"{accepted.sum()} of {(run.curves['refused'] != SIGNAL).sum()}",
                    f"{np.median(seen):.2f}",
                    f"{np.median(fresh):.2f}",
                    f"{np.quantile(fresh, 0.99):.2f}",
                    f"{np.mean(fresh <= 1.5):.1%}",
                    f"{run.curves['backtracks'][accepted].mean():.2f}",
                )
            )
            print(*rows[-1], flush=True)
    print(*markdown(COLUMNS, rows, align="llrrrrrr"), sep="\n")


if __name__ == "__main__":
    main()
