"""Runs whose environments are compiled: collecting and updating are one program.

An iteration collects for all seeds at once (one wide vector of environments). On CPUs it then
updates them one after another: the arrays of one seed's update stay in cache, those of all seeds
together would not. Each core runs the program on its own share of the seeds, which beats sharing
every small operation between cores. Accelerators update all seeds of their share side by side. The
program runs in chunks of iterations, so that progress can be shown and runs can stop early.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from recollect.algorithms import AbstractAlgorithm
from recollect.collect.rollout import AbstractCollector
from recollect.devices import side_by_side
from recollect.envs import AbstractEnv
from recollect.keys import numbered, stream
from recollect.policies.architecture import InitialPolicy, make_policy, traced_spread, with_spread
from recollect.run.layout import laid_out
from recollect.run.state import (
    AbstractRun,
    CorePool,
    Limits,
    RunState,
    SeedState,
    fresh_seeds,
    in_shares,
    learn,
)
from recollect.runtime import jit
from recollect.tree import one_by_one, traced_numbers

CHUNK_ITERATIONS = 10


class CompiledRun(AbstractRun):
    """A chunk of iterations at a time, all in one program."""

    chunk = CHUNK_ITERATIONS

    def __init__(
        self,
        env: AbstractEnv,
        algorithm: AbstractAlgorithm,
        collector: AbstractCollector,
        limits: Limits,
        policy: InitialPolicy,
        keys: Key[Array, " seed"],
        pool: CorePool,
    ):
        self.problem = traced_numbers((algorithm, env, collector, limits))
        self.policy = policy
        self.keys = keys
        self.pool = pool

    def start(self):
        seeds = fresh_seeds(_start, self.problem, *traced_spread(self.policy), self.keys)
        state = RunState(seeds=seeds, iteration=0)
        self.advance(state, 0)  # compiles, and does nothing else
        return state

    def advance(self, state, count):
        first = jnp.array(state.iteration)

        def advance(keys, seeds):
            return jax.block_until_ready(
                _advance(self.problem, keys, seeds, first, jnp.array(count))
            )

        seeds, curves = in_shares(self.pool, advance, self.keys, state.seeds)
        curves = {name: np.asarray(values)[:, :count] for name, values in curves.items()}
        return RunState(seeds=seeds, iteration=state.iteration + count), curves

    def warn(self, state): ...

    def close(self): ...


def _start_seeds(
    problem,
    policy: InitialPolicy,
    log_std: Float[Array, ""] | None,
    keys: Key[Array, " seed"],
) -> SeedState:
    algorithm, env, collector, _ = problem

    def one(key):
        start = with_spread(make_policy(stream(key, "policy"), env, policy), log_std)
        key_batch = stream(key, "batch")
        key_fisher = stream(key, "fisher batch")
        collecting = collector.init(stream(key_batch, "environments"), env)
        fisher_collecting = collector.init(stream(key_fisher, "environments"), env)
        rollout = jax.eval_shape(
            lambda: collector(key_batch, env, start, collecting, algorithm.discount)[1]
        )
        batch = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), rollout.batch)
        key_critic = stream(key, "critic")
        return SeedState.fresh(algorithm, start, batch, key_critic, collecting, fisher_collecting)

    return one_by_one(one, keys)


def _run(problem, keys: Key[Array, " seed"], seeds: SeedState, first, count):
    """`count` iterations from iteration `first` on: the seeds after them, and their curves."""
    arrays, rest = eqx.partition(seeds, eqx.is_array)

    def iterate(arrays, index):
        after, column = _iteration(problem, keys, eqx.combine(arrays, rest), index)
        return eqx.filter(after, eqx.is_array), column

    def body(index, loop):
        arrays, curves = loop
        arrays, column = iterate(arrays, first + index)
        write = lambda curve, new: curve.at[:, index].set(new)
        return arrays, jax.tree.map(write, curves, column)

    shapes = jax.eval_shape(lambda: iterate(arrays, jnp.array(0))[1])
    empty = lambda x: jnp.zeros((x.shape[0], CHUNK_ITERATIONS, *x.shape[1:]), x.dtype)
    arrays, curves = lax.fori_loop(0, count, body, (arrays, jax.tree.map(empty, shapes)))
    return laid_out(eqx.combine(arrays, rest)), curves


def _iteration(problem, keys, seeds: SeedState, index: Int[Array, ""]):
    """Collect with all seeds side by side, then update them."""
    algorithm, env, collector, limits = problem
    arrays, rest = eqx.partition(seeds, eqx.is_array)

    def collect(key, arrays):
        seed = eqx.combine(arrays, rest)
        policy = seed.state.policy
        key_batch = numbered(stream(key, "batch"), index)
        collecting, rollout = collector(key_batch, env, policy, seed.collecting, algorithm.discount)
        fisher_collecting = seed.fisher_collecting
        if getattr(algorithm, "independent_fisher", False):
            key_fisher = numbered(stream(key, "fisher batch"), index)
            fisher_collecting, fisher = collector(
                key_fisher, env, policy, fisher_collecting, algorithm.discount
            )
            rollout = rollout.with_fisher(fisher)
        rollout = dataclasses.replace(rollout, iteration=seed.state.iteration)
        seed = dataclasses.replace(seed, collecting=collecting, fisher_collecting=fisher_collecting)
        return eqx.filter(seed, eqx.is_array), rollout

    collected, rollouts = jax.vmap(collect)(keys, arrays)
    return learn_each(algorithm, limits, keys, seeds, collected, rollouts, index)


def learn_each(algorithm, limits, keys, seeds: SeedState, collected, rollouts, index):
    """Update every seed; those that have stopped stay as they were.

    Args:
        algorithm: what updates.
        limits: when a seed stops.
        keys: of the seeds.
        seeds: before the iteration.
        collected: arrays of the seeds after collecting.
        rollouts: what they collected.
        index: of the iteration.
    """
    arrays, rest = eqx.partition(seeds, eqx.is_array)

    def update(one):
        key, before, after_collecting, rollout = one

        def go():
            seed = eqx.combine(after_collecting, rest)
            key_update = numbered(stream(key, "update"), index)
            after, column = learn(algorithm, limits, key_update, seed, rollout)
            return eqx.filter(after, eqx.is_array), column

        def stay():
            column = jax.eval_shape(go)[1]
            return before, jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), column)

        return lax.cond(before.active, go, stay)

    each = jax.vmap(update) if side_by_side() else lambda all_: lax.map(update, all_)
    arrays, columns = each((keys, arrays, collected, rollouts))
    return eqx.combine(arrays, rest), columns


_start = jit(_start_seeds)
_advance = jit(_run)
