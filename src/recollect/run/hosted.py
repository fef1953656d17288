"""Runs whose environments live on the host: stepped outside the program, then one compiled update.

A chunk is one iteration. With a lag of L, batch n is gathered by the policies that had had n − L
updates: while they learn from batch n − L, the L batches after it are under way.
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
from recollect.collect.elsewhere import Elsewhere
from recollect.collect.gathering import AbstractGathering, Here
from recollect.collect.parts import Ongoing
from recollect.collect.rollout import AbstractCollector, Rollout
from recollect.envs import HostEnv
from recollect.keys import Name, numbered, stream
from recollect.machines import AbstractMachines
from recollect.memory.weights import AbstractWeightRule
from recollect.policies import AbstractPolicy
from recollect.policies.architecture import InitialPolicy, make_policy
from recollect.run.checkpoint import CheckpointError
from recollect.run.compiled import learn_each
from recollect.run.layout import laid_out
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
        machines: AbstractMachines | None = None,
    ):
        self.env = env
        self.algorithm = algorithm
        self.problem = traced_numbers((algorithm, limits))
        self.policy = policy
        self.keys = keys
        self.pool = pool
        self.lag = 0 if machines is None else machines.lag
        streams = 2 if getattr(algorithm, "independent_fisher", False) else 1
        self.names = STREAMS[:streams]
        if env.vector is not None and streams > 1:
            raise ValueError(
                f"independent_fisher=True needs copies of its own, but {env.name} is one vector "
                "that exists already; give a function that makes one copy, or leave "
                "independent_fisher out."
            )
        if self.lag:
            _check_lag(algorithm, self.lag)
        self.asked = 0
        """Batches that were asked for."""
        self.gathering: AbstractGathering
        if machines is None:
            self.gathering = Here(env, collector, seeds, streams)
        else:
            self.gathering = Elsewhere(env, collector, seeds, streams, machines)

    def start(self):
        shown = self.gathering.empty()
        policies = [make_policy(stream(key, "policy"), self.env, self.policy) for key in self.keys]
        stack = lambda *parts: jnp.stack(parts) if eqx.is_array(parts[0]) else parts[0]
        stacked = jax.tree.map(stack, *policies)
        algorithm, _ = self.problem  # traced: another number compiles nothing anew
        seeds = fresh_seeds(_start, algorithm, stacked, shown, self.keys)
        # Compiles; what it gives is not used.
        empty = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(self.keys), *x.shape)), shown)
        if len(self.names) > 1:
            empty = empty.with_fisher(empty)
        self._learn(seeds, empty, 0)
        self.gathering.begin(stacked, self.keys)
        self.asked = 0
        hosted = (None,) * len(self.names)
        return RunState(seeds=seeds, iteration=0, hosted=hosted, ahead=(stacked,) * self.lag)

    def advance(self, state, count):
        del count  # always one
        index = state.iteration
        ahead = (*state.ahead, state.policies)
        for offset, policies in enumerate(ahead):
            iteration = index + offset
            if iteration < self.asked:  # under way since an earlier call
                continue
            number = jnp.array(iteration)
            keys = [_keys(self.keys, name, number) for name in self.names]
            self.gathering.ask(policies, keys, iteration, max(iteration - self.lag, 0))
            self.asked = iteration + 1
        hosted, (first, *independent), figures = self.gathering.receive(state.hosted)
        rollouts = first.with_fisher(independent[0]) if independent else first
        seeds, columns = self._learn(state.seeds, rollouts, index)
        curves = {name: np.asarray(values)[:, None] for name, values in columns.items()}
        ended = np.isnan(curves["steps"])
        curves |= {name: np.where(ended, np.nan, value) for name, value in figures.items()}
        after = RunState(seeds=seeds, iteration=index + 1, hosted=hosted, ahead=ahead[1:])
        return after, curves

    def _learn(self, seeds: SeedState, rollouts: Rollout, index: int):
        def learn(keys, seeds, rollouts):
            return jax.block_until_ready(
                _learn(self.problem, keys, seeds, rollouts, jnp.array(index))
            )

        return in_shares(self.pool, learn, self.keys, seeds, rollouts)

    def restore_hosted(self, arrays, iteration):
        self.asked = iteration
        found = tuple(ongoing_of(arrays))
        if not found:  # before the first iteration
            return (None,) * len(self.names)
        count = sum(ongoing.times.size for ongoing in found)
        restored, anew = self.gathering.restore(found)
        if anew:
            warnings.warn(
                f"{anew} of {count} unfinished episodes of {self.env.name} could not be repeated "
                "and begin anew: it does not do the same after the same seed and actions, or "
                "resets itself.",
                stacklevel=5,
            )
        return restored

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
        self.gathering.close()


def _check_lag(algorithm: AbstractAlgorithm, lag: int) -> None:
    """Raise if a weight rule has to know more of the policy that acted than its probabilities."""
    rule = type(algorithm.weights)
    if rule.remember is not AbstractWeightRule.remember:
        raise ValueError(
            f"lag={lag}: weights={rule.__name__}() remembers the policy that acted, and that is "
            "not the newest one then; give lag=0."
        )


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
    after, columns = learn_each(algorithm, limits, keys, seeds, arrays, rollouts, index)
    return laid_out(after), columns


_start = jit(_start_seeds)
_learn = jit(_learn_from_host)
