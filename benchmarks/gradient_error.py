"""How far the gradients of windows are from the truth, while a policy learns.

    python benchmarks/gradient_error.py [--task CartPole-v1] [--algorithm rpg] [--windows 1 5]
        [--ages 8] [--steps 20480] [--seeds 6] [--first-seed 0] [--fresh 256]

In every iteration 8 + 256 copies of the environment are stepped with the same policy, and it learns
from the first eight alone, with the window named. The gradient of the others' newest batch, with
the same critic, stands for the truth; the gradients of their older batches for what those of the
eight would be without noise. So noise and bias of a window of k batches can be told apart: noise is
the squared distance of the eight's gradient from the others', window for window, bias that of the
others' window from the truth. (Noise holds what the eight's old batches owe to having shaped the
policy, too, and both hold the others' own noise, a small part of the eight's.) Both are over the
truth's square, means over seeds and iterations; `cosine` is between the eight's gradient and the
truth.
"""

import argparse
import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from variants import trained

from recollect import RPG, LeastError, Steps
from recollect.algorithms.base import AbstractAlgorithm, State
from recollect.algorithms.reuse import estimate_advantages
from recollect.algorithms.update import begin
from recollect.batch import Batch
from recollect.collect.rollout import Rollout
from recollect.estimate.gradient import gradient_by_age
from recollect.memory.weights import positive
from recollect.report.tables import markdown
from recollect.run.presets import preset

LEARNED = 8
"""Copies that are learned from."""
PARTS = 3
"""Of the run, over which figures are averaged; the window fills before the first."""


class ErrorInfo(eqx.Module):
    """Of windows of 1, 2, … batches."""

    cosine: Float[Array, " window"]
    noise: Float[Array, " window"]
    bias: Float[Array, " window"]


class Compared(AbstractAlgorithm):
    """An algorithm on the first copies of a batch, and what all copies say of its gradients."""

    algorithm: AbstractAlgorithm = RPG()
    looking: AbstractAlgorithm = RPG()
    """The same with as many batches as are compared."""

    @classmethod
    def of(cls, algorithm: AbstractAlgorithm, ages: int) -> "Compared":
        """The settings that `train` looks at are those of the algorithm."""
        looking = dataclasses.replace(algorithm, window=ages, shares=LeastError())
        names = [field.name for field in dataclasses.fields(AbstractAlgorithm)]
        settings = {name: getattr(algorithm, name) for name in names}
        return cls(algorithm=algorithm, looking=looking, **settings)

    def init(self, policy, batch, key):
        learned, others = _divided(batch)
        state = self.algorithm.init(policy, learned, key)
        both = [self.looking.init(policy, part, key) for part in (learned, others)]
        return dataclasses.replace(state, own=(state.own, both))

    def update(self, state, rollout, key):
        own, both = state.own
        state = dataclasses.replace(state, own=own)
        parts = _divided(rollout.batch)
        found = [self._look(one, state, part) for one, part in zip(both, parts, strict=True)]
        (noisy, exact), both = zip(*found, strict=True)
        truth = exact[0]
        square = jnp.sum(truth**2)
        length = jnp.linalg.norm(noisy, axis=-1) * jnp.sqrt(square)
        measured = ErrorInfo(
            cosine=noisy @ truth / positive(length),
            noise=jnp.sum((noisy - exact) ** 2, -1) / positive(square),
            bias=jnp.sum((exact - truth) ** 2, -1) / positive(square),
        )
        after, info = self.algorithm.update(state, Rollout.of(parts[0]), key)
        after = dataclasses.replace(after, own=(after.own, list(both)))
        return after, dataclasses.replace(info, own=measured)

    def _look(
        self, looking: State, state: State, batch: Batch
    ) -> tuple[Float[Array, "window d"], State]:
        """Gradients of windows of 1, 2, … batches, and the state with the newest in its history."""
        looking = dataclasses.replace(looking, policy=state.policy, critic=state.critic)
        start = begin(self.looking, looking, Rollout.of(batch))
        advantages, _ = estimate_advantages(self.looking, start)
        by_age = gradient_by_age(start.rows, advantages)
        counts = jnp.arange(1, len(by_age) + 1)[:, None]
        kept = dataclasses.replace(looking, history=start.stored)
        return jnp.cumsum(by_age, 0) / counts, kept


def _divided(batch: Batch) -> tuple[Batch, Batch]:
    """The copies that are learned from, and the others."""
    return jax.tree.map(lambda x: x[:LEARNED], batch), jax.tree.map(lambda x: x[LEARNED:], batch)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="CartPole-v1")
    parser.add_argument("--algorithm", default="rpg")
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--ages", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20_480)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--fresh", type=int, default=256)
    options = parser.parse_args()
    chosen = preset(options.algorithm, "default")
    copies = LEARNED + options.fresh
    rows = []
    for window in options.windows:
        algorithm = dataclasses.replace(chosen.algorithm, window=window, critic_window=4)
        compared = dataclasses.replace(
            chosen,
            algorithm=Compared.of(algorithm, options.ages),
            collector=Steps(copies, 64),
        )
        run = trained(
            options.task,
            compared,
            range(options.first_seed, options.first_seed + options.seeds),
            environment_steps=options.steps * copies // LEARNED,
        )
        full = run.curves["cosine"].shape[1] - options.ages
        for part in np.array_split(np.arange(full) + options.ages, PARTS):
            returns = np.nanmean(run.curves["return_mean"][:, part])
            shown = [
                " ".join(f"{x:.2f}" for x in run.curves[name][:, part].mean((0, 1)))
                for name in ("cosine", "noise", "bias")
            ]
            rows.append((window, f"{part[0] + 1}–{part[-1] + 1}", f"{returns:.1f}", *shown))
    columns = ("window in use", "iterations", "return", "cosine, k = 1, 2, …", "noise", "bias")
    print(*markdown(columns, rows, align="rlrlll"), sep="\n")


if __name__ == "__main__":
    main()
