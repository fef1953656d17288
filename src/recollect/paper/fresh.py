"""Why reuse helps or does not: gradients from the window beside the gradient from many fresh episodes of the same policy.

Every few iterations of a run the gradient is estimated from the newest K batches, for several K, and from fresh episodes by the hundred.
The cosine between the two says how well an estimate points uphill: with a small K noise lowers it, with a large K the trajectories of
other policies. The ratio of their lengths along the fresh one says how much of the slope is left.
"""

import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import PRNGKeyArray

from recollect.algorithms import PG, VPG
from recollect.algorithms.base import Start, reweighed_gradient
from recollect.batch import Batch
from recollect.collect.compiled import Episodes
from recollect.collect.rollout import Rollout
from recollect.envs import make
from recollect.memory.history import History
from recollect.memory.rows import recall
from recollect.paper.cells import AbstractCell, Cell, File
from recollect.policies.architecture import make_policy
from recollect.report.plot import COLOURS
from recollect.runtime import jit
from recollect.serial import to_json
from recollect.statistics import standard_error
from recollect.theory.findings import panels


@dataclasses.dataclass(frozen=True)
class FreshCell(AbstractCell):
    """A short run of a cell's algorithm with looks at its gradients."""

    cell: Cell
    windows: tuple[int, ...] = (1, 10, 50, 100)
    looks: tuple[int, ...] = (10, 20, 30, 50, 75, 100, 150)
    """After how many iterations."""
    fresh_episodes: int = 400

    @property
    def name(self) -> str:
        return f"fresh-{self.cell.name}"

    @property
    def work(self):
        return self.cell.work

    def files(self, folder):
        return [File(folder / f"{self.name}.npz", to_json(self), range(self.cell.seeds))]

    def compute(self, seeds):
        found = np.stack([self._look_along(jax.random.key(seed)) for seed in seeds])
        return dict(cosines=found[..., 0], slopes=found[..., 1])

    def read(self, folder: Path) -> dict[str, np.ndarray]:
        """Cosines and slopes with axes seed, look, window, when it is finished."""
        return self.files(folder)[0].read()

    def _look_along(self, key: PRNGKeyArray) -> np.ndarray:
        """Axes: look, window, (cosine, slope)."""
        cell, algorithm = self.cell, self.cell.algorithm
        env = make(cell.env, max_steps=cell.max_steps, engine="compiled")
        draw = lambda key, policy, episodes: _draw(Episodes(episodes), key, env, policy)
        policy = make_policy(jax.random.fold_in(key, 0), env, cell.policy)
        first = draw(key, policy, cell.episodes)
        state = algorithm.init(policy, first, key)
        estimators = [
            PG(window=window, discount=algorithm.discount, advantages=algorithm.advantages)
            for window in self.windows
        ]
        rule = algorithm.weights
        history, found = History.empty(first, max(self.windows), rule), []
        for n in range(1, max(self.looks) + 1):
            key_batch, key_update, key_fresh = jax.random.split(jax.random.fold_in(key, n), 3)
            batch = draw(key_batch, state.policy, cell.episodes)
            history, _ = history.push(batch, state.policy, rule)
            if n in self.looks:
                fresh = draw(key_fresh, state.policy, self.fresh_episodes)
                true = _gradient(
                    VPG(discount=algorithm.discount, advantages=algorithm.advantages),
                    state,
                    _only(fresh),
                )
                estimates = [
                    _gradient(one, state, _newest(history, one.window)) for one in estimators
                ]
                along = [float(one @ true / jnp.linalg.norm(true)) for one in estimates]
                length = float(jnp.linalg.norm(true))
                found.append(
                    [
                        (a / float(jnp.linalg.norm(one)), a / length)
                        for a, one in zip(along, estimates, strict=True)
                    ]
                )
            state, _ = _update(algorithm, state, batch, key_update)
        return np.array(found)


def draw_fresh(path: Path, cells: Mapping[str, FreshCell], folder: Path) -> None:
    """Cosines and slopes against the iteration, a row for each algorithm; the numbers beside it as CSV."""
    figure, axes = panels(len(cells), 2, height=3.2)
    with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "algorithm",
                "iteration",
                "K",
                "cosine",
                "its standard error",
                "slope",
                "its standard error",
            ]
        )
        for row, (label, cell) in enumerate(cells.items()):
            found = cell.read(folder)
            for k, (window, colour) in enumerate(zip(cell.windows, COLOURS, strict=False)):
                numbers = []
                for one, name in zip(axes[2 * row :], ("cosines", "slopes"), strict=False):
                    mean, error = found[name][:, :, k].mean(0), standard_error(found[name][:, :, k])
                    one.errorbar(
                        cell.looks, mean, error, color=colour, label=f"K = {window}", capsize=2
                    )
                    numbers += [mean, error]
                for look, *values in zip(cell.looks, *numbers, strict=True):
                    writer.writerow([label, look, window, *[f"{value:.4g}" for value in values]])
            axes[2 * row].set(
                title=f"{label}: cosine with the fresh gradient", xlabel="iteration", ylim=(None, 1)
            )
            axes[2 * row + 1].set(title=f"{label}: length along it, relative", xlabel="iteration")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def fresh_table(cells: Mapping[str, FreshCell], folder: Path) -> list[str]:
    """Means over looks and seeds, as Markdown."""
    lines = [
        "| along a run of | K | cosine with the fresh gradient | length along it, relative |",
        "|:--|--:|--:|--:|",
    ]
    for label, cell in cells.items():
        found = cell.read(folder)
        for k, window in enumerate(cell.windows):
            cosine, slope = [found[name][:, :, k].mean(1) for name in ("cosines", "slopes")]
            with_error = [
                f"{one.mean():.2f} ± {one.std(ddof=1) / np.sqrt(len(one)):.2f}"
                for one in (cosine, slope)
            ]
            lines.append(f"| {label} | {window} | {' | '.join(with_error)} |")
    return lines


def _newest(history: History, window: int) -> History:
    return jax.tree.map(lambda x: x[:window], history)


def _only(batch: Batch) -> History:
    return History(batches=jax.tree.map(lambda x: x[None], batch), memory=None)


@jit
def _draw(collector, key, env, policy):
    return collector(key, env, policy, None, 0.0)[1].batch


@jit
def _update(algorithm, state, batch, key):
    return algorithm.update(state, Rollout.of(batch), key)


@jit
def _gradient(algorithm, state, history):
    state = dataclasses.replace(state, history=history)
    rows = recall(history, state.policy, algorithm.weights)
    start = Start(state=state, reference=state.policy, usable=jnp.array(True), rows=rows)
    return reweighed_gradient(algorithm, start)
