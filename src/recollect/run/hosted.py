"""Runs whose environments live on the host: stepped outside the program, then one compiled update.

The copies of all seeds are one vector; a chunk is one iteration.
"""

import dataclasses
import warnings
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from recollect.algorithms import AbstractAlgorithm
from recollect.collect.host import HostCollector, Ongoing
from recollect.collect.rollout import AbstractCollector, Rollout
from recollect.envs import HostEnv
from recollect.keys import Name, numbered, stream
from recollect.policies import AbstractPolicy
from recollect.policies.architecture import InitialPolicy, make_policy
from recollect.run.checkpoint import CheckpointError
from recollect.run.compiled import learn_one_by_one
from recollect.run.state import (
    AbstractRun,
    CorePool,
    Limits,
    RunState,
    SeedState,
    fresh_seeds,
    in_shares,
)
from recollect.runtime import jit
from recollect.tree import one_by_one, traced_numbers

STREAMS: tuple[Name, ...] = ("batch", "fisher batch")
"""Keys of the collectors."""


class HostRun(AbstractRun):
    """One iteration at a time: collect on the host, then update every seed."""

    chunk = 1

    def __init__(
        self,
        env: HostEnv,
        algorithm: AbstractAlgorithm,
        collector: AbstractCollector,
        limits: Limits,
        policy: InitialPolicy,
        seeds: tuple[int, ...],
        keys: Key[Array, " seed"],
        pool: CorePool,
    ):
        self.env = env
        self.algorithm = algorithm
        self.problem = traced_numbers((algorithm, limits))
        self.policy = policy
        self.keys = keys
        self.pool = pool
        self.collectors: list[HostCollector] = []
        streams = (0, 1) if getattr(algorithm, "independent_fisher", False) else (0,)
        if env.vector is not None and len(streams) > 1:
            raise ValueError(
                f"independent_fisher=True needs copies of its own, but {env.name} is one vector "
                "that exists already; give a function that makes one copy, or leave "
                "independent_fisher out."
            )
        try:
            for stream in streams:
                self.collectors.append(HostCollector(env, collector, seeds, stream))
        except BaseException:
            self.close()
            raise

    def start(self):
        shown = self.collectors[0].empty()
        policies = [make_policy(stream(key, "policy"), self.env, self.policy) for key in self.keys]
        stack = lambda *parts: jnp.stack(parts) if eqx.is_array(parts[0]) else parts[0]
        stacked = jax.tree.map(stack, *policies)
        seeds = fresh_seeds(_start, self.algorithm, stacked, shown, self.keys)
        # Compiles; what it gives is not used.
        empty = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(self.keys), *x.shape)), shown)
        if len(self.collectors) > 1:
            empty = empty.with_fisher(empty)
        self._learn(seeds, empty, 0)
        self.collectors[0].warm_up(stacked, self.keys)
        return RunState(seeds=seeds, iteration=0, hosted=(None,) * len(self.collectors))

    def advance(self, state, count):
        del count  # always one
        index = state.iteration
        pairs = [
            collector(state.policies, _keys(self.keys, name, jnp.array(index)), index, ongoing)
            for name, collector, ongoing in zip(
                STREAMS, self.collectors, state.hosted, strict=False
            )
        ]
        hosted, (first, *independent) = zip(*pairs, strict=True)
        rollouts = first.with_fisher(independent[0]) if independent else first
        seeds, columns = self._learn(state.seeds, rollouts, index)
        curves = {name: np.asarray(values)[:, None] for name, values in columns.items()}
        return RunState(seeds=seeds, iteration=index + 1, hosted=hosted), curves

    def _learn(self, seeds: SeedState, rollouts: Rollout, index: int):
        def learn(keys, seeds, rollouts):
            return jax.block_until_ready(
                _learn(self.problem, keys, seeds, rollouts, jnp.array(index))
            )

        return in_shares(self.pool, learn, self.keys, seeds, rollouts)

    def restore_hosted(self, arrays):
        found = ongoing_of(arrays)
        if not found:  # before the first iteration
            return (None,) * len(self.collectors)
        hosted = []
        for collector, before in zip(self.collectors, found, strict=True):
            ongoing, anew = collector.restore(before)
            hosted.append(ongoing)
            if anew:
                warnings.warn(
                    f"{anew} of {collector.vector.count} unfinished episodes of {self.env.name} "
                    "could not be repeated and begin anew: it does not do the same after the same "
                    "seed and actions, or resets itself.",
                    stacklevel=5,
                )
        return tuple(hosted)

    def warn(self, state):
        dropped = sum(ongoing.dropped.sum() for ongoing in state.hosted if ongoing is not None)
        if dropped:
            warnings.warn(
                f"{dropped} episodes of {self.env.name} were left out because the simulated world "
                "had diverged and MuJoCo had put it back to its start without saying so; a smaller "
                "time step of the model or smaller actions may prevent it.",
                stacklevel=4,
            )

    def close(self):
        for collector in self.collectors:
            collector.close()


def ongoing_of(arrays: Mapping[str, np.ndarray]) -> list[Ongoing]:
    """What each collector carried on, from the arrays of a run's state by path.

    Raises:
        CheckpointError: if some are missing.
    """
    fields = [field.name for field in dataclasses.fields(Ongoing)]
    found = []
    while (prefix := f"['hosted'][{len(found)}].") + fields[0] in arrays:
        try:
            found.append(Ongoing(**{field: arrays[prefix + field] for field in fields}))
        except KeyError as error:
            raise CheckpointError(f"the checkpoint does not fit: it has no {error}.") from None
    return found


@eqx.filter_jit
def _keys(keys: Key[Array, " seed"], name: Name, index: Int[Array, ""]) -> Key[Array, " seed"]:
    return jax.vmap(lambda key: numbered(stream(key, name), index))(keys)


def _start_seeds(
    algorithm: AbstractAlgorithm,
    policies: AbstractPolicy,
    shown: Rollout,
    keys: Key[Array, " seed"],
) -> SeedState:
    fresh = lambda policy, key: SeedState.fresh(
        algorithm, policy, shown.batch, stream(key, "critic")
    )
    return one_by_one(fresh, policies, keys)


def _learn_from_host(problem, keys, seeds: SeedState, rollouts: Rollout, index):
    """One iteration of every seed from batches collected elsewhere."""
    algorithm, limits = problem
    arrays = eqx.filter(seeds, eqx.is_array)
    return learn_one_by_one(algorithm, limits, keys, seeds, arrays, rollouts, index)


_start = jit(_start_seeds)
_learn = jit(_learn_from_host)
