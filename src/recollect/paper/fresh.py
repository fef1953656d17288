"""Why reuse helps or does not: gradients from the window beside a gradient from fresh episodes.

Every few iterations of a run the gradient is estimated from the newest K batches, for several K,
and from hundreds of fresh episodes of the same policy. The cosine between the two says how well an
estimate points uphill: with a small K noise lowers it, with a large K the trajectories of other
policies. The ratio of their lengths along the fresh one says how much of the slope is left.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from recollect.algorithms import PG, VPG
from recollect.algorithms.reuse import reweighed_gradient
from recollect.algorithms.update import UpdateStart
from recollect.batch import Batch
from recollect.collect.compiled import Episodes
from recollect.collect.rollout import Rollout
from recollect.envs import make
from recollect.keys import numbered, stream
from recollect.machines import File
from recollect.memory.history import History
from recollect.memory.rows import recall
from recollect.paper.cells import AbstractCell, Cell
from recollect.policies.architecture import make_policy
from recollect.report.plot import COLOURS, panels, save
from recollect.report.tables import markdown
from recollect.runtime import jit
from recollect.serial import to_json, write_csv
from recollect.statistics import standard_error


@dataclasses.dataclass(frozen=True)
class FreshCell(AbstractCell):
    """A short run of a cell's algorithm with looks at its gradients."""

    cell: Cell
    windows: tuple[int, ...] = (1, 10, 50, 100)
    """K of the estimates that are compared."""
    looks: tuple[int, ...] = (10, 20, 30, 50, 75, 100, 150)
    """After how many iterations."""
    fresh_episodes: int = 400
    """From which the gradient is estimated that counts as the true one."""

    @property
    def name(self) -> str:
        """Of its file."""
        return f"fresh-{self.cell.name}"

    @property
    def work(self):
        return self.cell.work

    def files(self, folder):
        return [File(folder / f"{self.name}.npz", to_json(self), range(self.cell.seeds))]

    def compute(self, seeds):
        looks = np.stack([self._look_along(jax.random.key(seed)) for seed in seeds])
        return dict(cosines=looks[..., 0], slopes=looks[..., 1])

    def read(self, folder: Path) -> dict[str, np.ndarray]:
        """Cosines and slopes with axes seed, look, window, when it is finished."""
        return self.files(folder)[0].read()

    def _look_along(self, key: PRNGKeyArray) -> np.ndarray:
        """Cosines and slopes along one run, with axes look, window, (cosine, slope)."""
        cell = self.cell
        algorithm = cell.algorithm
        env = make(cell.env, max_steps=cell.max_steps, engine="compiled")
        draw = lambda key, policy, episodes: _draw(Episodes(episodes), key, env, policy)
        policy = make_policy(stream(key, "policy"), env, cell.policy)
        first = draw(key, policy, cell.episodes)
        state = algorithm.init(policy, first, stream(key, "critic"))
        estimators = [
            PG(window=window, discount=algorithm.discount, advantages=algorithm.advantages)
            for window in self.windows
        ]
        # The run's own history may be shorter than the longest window that is looked at.
        rule = algorithm.weights
        history = History.empty(first, max(self.windows), rule, policy)
        looks = []
        for n in range(1, max(self.looks) + 1):
            batch = draw(numbered(stream(key, "batch"), n), state.policy, cell.episodes)
            history, _ = history.push(batch, state.policy, rule)
            if n in self.looks:
                key_fresh = numbered(stream(key, "fresh"), n)
                fresh = draw(key_fresh, state.policy, self.fresh_episodes)
                true = _gradient(
                    VPG(discount=algorithm.discount, advantages=algorithm.advantages),
                    state,
                    _only(fresh),
                )
                estimates = [
                    _gradient(one, state, _newest(history, one.window)) for one in estimators
                ]
                looks.append([_cosine_and_slope(one, true) for one in estimates])
            state, _ = _update(algorithm, state, batch, numbered(stream(key, "update"), n))
        return np.array(looks)


def _cosine_and_slope(
    estimate: Float[Array, " d"], true: Float[Array, " d"]
) -> tuple[float, float]:
    """The cosine between two gradients, and the length of one along the other, over the other's."""
    length = float(jnp.linalg.norm(true))
    along = float(estimate @ true / jnp.linalg.norm(true))
    return along / float(jnp.linalg.norm(estimate)), along / length


def draw_fresh(path: Path, cells: Mapping[str, FreshCell], folder: Path) -> None:
    """Cosines and slopes against the iteration, a row of axes for each algorithm.

    Args:
        path: of the picture; the numbers go beside it as CSV.
        cells: finished ones, by the name of their algorithm.
        folder: where they are kept.
    """
    figure, axes = panels(len(cells), 2, height=3.2)
    pairs = zip(axes[::2], axes[1::2], strict=True)
    rows = []
    for (label, cell), (left, right) in zip(cells.items(), pairs, strict=True):
        looks = cell.read(folder)
        for k, (window, colour) in enumerate(zip(cell.windows, COLOURS, strict=False)):
            columns = []
            for one, name in ((left, "cosines"), (right, "slopes")):
                values = looks[name][:, :, k]
                mean = values.mean(0)
                error = standard_error(values)
                one.errorbar(
                    cell.looks, mean, error, color=colour, label=f"K = {window}", capsize=2
                )
                columns += [mean, error]
            for look, *numbers in zip(cell.looks, *columns, strict=True):
                rows.append((label, look, window, *[f"{number:.4g}" for number in numbers]))
        left.set(title=f"{label}: cosine with the fresh gradient", ylim=(None, 1))
        right.set(title=f"{label}: length along it, relative")
        for one in (left, right):
            one.set(xlabel="iteration")
    axes[0].legend(frameon=False)
    save(figure, path)
    error = "its standard error"
    names = ("algorithm", "iteration", "K", "cosine", error, "slope", error)
    write_csv(path.with_suffix(".csv"), names, rows)


def fresh_table(cells: Mapping[str, FreshCell], folder: Path) -> list[str]:
    """Means over looks and seeds, with standard errors over seeds, as Markdown.

    Args:
        cells: finished ones, by the name of their algorithm.
        folder: where they are kept.
    """
    rows = []
    for label, cell in cells.items():
        looks = cell.read(folder)
        for k, window in enumerate(cell.windows):
            by_seed = [looks[name][:, :, k].mean(1) for name in ("cosines", "slopes")]
            figures = [f"{one.mean():.2f} ± {standard_error(one):.2f}" for one in by_seed]
            rows.append((label, window, *figures))
    columns = (
        "along a run of",
        "K",
        "cosine with the fresh gradient",
        "length along it, relative",
    )
    return markdown(columns, rows)


def _newest(history: History, window: int) -> History:
    """The history cut to its newest batches."""
    return jax.tree.map(lambda x: x[:window], history)


def _only(batch: Batch) -> History:
    """A history of one batch."""
    return History(batches=jax.tree.map(lambda x: x[None], batch), memory=None)


@jit
def _draw(collector, key, env, policy):
    return collector(key, env, policy, None, 0.0)[1].batch


@jit
def _update(algorithm, state, batch, key):
    return algorithm.update(state, Rollout.of(batch), key)


@jit
def _gradient(algorithm, state, history):
    """The policy gradient at a state's policy from another history than its own."""
    state = dataclasses.replace(state, history=history)
    rows = recall(history, state.policy, algorithm.weights)
    start = UpdateStart(
        state=state,
        stored=history,
        reference=state.policy,
        usable=jnp.array(True),
        rows=rows,
    )
    return reweighed_gradient(algorithm, start)
