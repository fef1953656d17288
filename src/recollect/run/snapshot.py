"""A run between two iterations as plain arrays: what a file holds, and what goes on from it.

The arrays are those of `RunState.tree` by path, so that rules, policies and algorithms of one's own
need no code here. Reading a file compiles nothing; a run that goes on fills its own state from the
arrays (`AbstractRun.restore`).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from recollect.algorithms import AbstractAlgorithm
from recollect.policies import AbstractPolicy
from recollect.policies.architecture import InitialPolicy, make_policy
from recollect.run.checkpoint import CheckpointError, filled, named_arrays, read, write
from recollect.run.config import RunConfig
from recollect.run.hosted import ongoing_of
from recollect.run.state import Curves, RunState
from recollect.serial import differences

POLICY = "['seeds'].state.policy"
"""Where the arrays of the policies are."""
CURVES = "curves/"
"""Before the names of curves in a file."""
CLOCK = "clock"
COMPARED = ("algorithm", "policy", "max_steps")
"""Settings that may be given anew, and have to be the same for a run to go on as it was."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A run as it was after some iterations."""

    config: RunConfig
    arrays: Mapping[str, np.ndarray]
    """Of the run's state, by path; none before the first iteration of a run that has not begun."""
    iteration: int
    curves: Curves
    """Of all iterations so far."""
    clock: np.ndarray
    """Seconds at the end of every iteration."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What else the file says."""
    changed: tuple[tuple[str, Any, Any], ...] = ()
    """Settings of `config` that are not those that the arrays come from: name, old, new."""

    @classmethod
    def of(
        cls, config: RunConfig, state: RunState, curves: Curves, clock: np.ndarray, **facts: Any
    ) -> "Snapshot":
        """A run as it is."""
        return cls(config, named_arrays(state.tree()), state.iteration, curves, clock, facts)

    def write(self, path: Path) -> None:
        """Write the run into a file, all of it or nothing.

        Raises:
            OSError: if it cannot be written; what was there before is still there then.
        """
        curves = {CURVES + name: np.ascontiguousarray(curve) for name, curve in self.curves.items()}
        arrays = {**self.arrays, **curves, CLOCK: np.asarray(self.clock)}
        facts = {"settings": self.config.plain(), "iteration": self.iteration, **self.facts}
        write(path, arrays, facts)

    @classmethod
    def read(
        cls,
        path: Path,
        *,
        env: Any = None,
        algorithm: AbstractAlgorithm | str | None = None,
        policy: InitialPolicy = None,
        use: Iterable[type] = (),
    ) -> "Snapshot":
        """The run that a file holds.

        Args:
            path: of the file.
            env: the environment, if the file cannot say how to make it, or another one.
            algorithm: instead of the file's.
            policy: the policy that the run started from, if it was one of one's own.
            use: classes of one's own that the file names.

        Raises:
            CheckpointError: if the file is damaged or does not fit.
            ValueError: if something has to be given.
            OSError: if it cannot be read.
        """
        arrays, facts = read(path)
        curves = {
            name.removeprefix(CURVES): arrays.pop(name)
            for name in list(arrays)
            if name.startswith(CURVES)
        }
        clock = arrays.pop(CLOCK, None)
        iteration = facts.pop("iteration", None)
        settings = facts.pop("settings", None)
        known = settings.get("seeds") if isinstance(settings, dict) else None
        seeds = len(known) if isinstance(known, list) else 0
        shapes = {curve.shape[:2] for curve in curves.values()}
        if clock is None or clock.shape != (iteration,) or shapes != {(seeds, iteration)}:
            raise CheckpointError(f"{path} is no checkpoint of a run.")
        config = RunConfig.from_plain(settings, env, algorithm, policy, use)
        # An environment that is given again may be another object for the same thing.
        compared = lambda plain: {
            key: plain.get(key) for key in ("algorithm", "policy", "max_steps")
        }
        changed = tuple(differences(compared(settings), compared(config.plain())))
        return cls(config, arrays, iteration, curves, clock, facts, changed)

    def policies(self) -> AbstractPolicy:
        """Of all seeds, stacked.

        Raises:
            CheckpointError: if the arrays do not fit the policy that the configuration describes.
        """
        config = self.config
        make = lambda key: make_policy(key, config.env, config.policy)
        one = eqx.filter_eval_shape(make, jax.random.key(0))
        stacked = lambda x: jax.ShapeDtypeStruct((len(config.seeds), *x.shape), x.dtype)
        is_shape = lambda x: isinstance(x, jax.ShapeDtypeStruct)
        shapes = jax.tree.map(lambda x: stacked(x) if is_shape(x) else x, one)
        return filled(shapes, self.arrays, POLICY)

    def of_seed(self, index: int) -> "Snapshot":
        """The run of one of the seeds alone.

        Args:
            index: its place among the seeds.
        """
        alone = slice(index, index + 1)
        arrays = {
            name: array[alone]
            for name, array in self.arrays.items()
            if not name.startswith("['hosted']")
        }
        hosted = []
        for ongoing in ongoing_of(self.arrays):
            copies = ongoing.times.size // len(self.config.seeds)
            hosted.append(ongoing.of(np.arange(index * copies, (index + 1) * copies)))
        config = dataclasses.replace(self.config, seeds=self.config.seeds[alone])
        curves = {name: curve[alone] for name, curve in self.curves.items()}
        # A seed that stopped before the others has nothing in the last columns.
        lived = int(np.isfinite(curves["environment_steps"][0]).sum())
        return Snapshot(
            config=config,
            arrays=arrays | named_arrays({"hosted": tuple(hosted)}),
            iteration=lived,
            curves={name: curve[:, :lived] for name, curve in curves.items()},
            clock=self.clock[:lived],
            changed=self.changed,
        )
