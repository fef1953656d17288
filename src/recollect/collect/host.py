"""Gathering batches from environments on the host: `Episodes` and `Steps` as in `collect`, for all seeds as one vector of copies.

Draws come from the same keys as in compiled collection, seeds of resets from (seed, iteration, copy, step), so a repeated iteration
repeats itself. The policies of all seeds are asked once a step.
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from recollect.batch import Batch
from recollect.collect.compiled import Episodes, Steps
from recollect.collect.rollout import AbstractCollector, Collected, copy_keys
from recollect.envs.hosted import HostEnv
from recollect.envs.vectors import close_all
from recollect.policies import AbstractPolicy
from recollect.prng import unrolled


class HostCollector:
    """The copies of all seeds, and arrays for what one iteration finds."""

    def __init__(
        self, env: HostEnv, collector: AbstractCollector, seeds: tuple[int, ...], stream: int = 0
    ):
        copies, self.horizon = check_collector(env, collector)
        self.whole = isinstance(collector, Episodes)
        self.seeds, self.copies, self.stream, self.limit = seeds, copies, stream, np.inf
        count = len(seeds) * copies
        self.vector = env.open(count, _number(seeds[0], stream))
        if self.whole or env.limited:
            self.limit = env.max_steps or np.inf
        if env.limited and not self.whole and self.vector.resets_itself:
            self.close()
            raise ValueError(
                f"max_steps={env.max_steps} cannot be kept by {env.name}, which resets itself; set the limit where it is made."
            )
        axes, actions = (self.horizon, count), env.actions
        rows = lambda *shape: np.zeros((*axes, *shape), np.float32)
        self.found = dict(
            observations=rows(env.observation_size),
            actions=np.zeros((*axes, *actions.shape), np.int32 if actions.whole else np.float32),
            log_probs=rows(),
            rewards=rows(),
            next_observations=rows(env.observation_size),
            terminated=np.zeros(axes, bool),
            truncated=np.zeros(axes, bool),
            times=np.zeros(axes, np.int32),
            mask=np.zeros(axes, bool),
        )
        self.times, self.totals, self.started = np.zeros(count, np.int32), np.zeros(count), False
        self.dropped = 0

    def close(self) -> None:
        close_all([self.vector])

    def empty(self) -> Collected:
        """What a call gives for one seed, with nothing in it."""
        zeros = lambda x: jnp.zeros((self.copies, self.horizon, *x.shape[2:]), x.dtype)
        batch = Batch(**{field: zeros(values) for field, values in self.found.items()})
        return Collected(
            batch,
            jnp.full(self.copies * self.horizon, jnp.nan, jnp.float32),
            jnp.zeros((), jnp.int32),
        )

    def warm_up(self, policies: AbstractPolicy, keys: Key[Array, " seed"]) -> None:
        """Compile what a call needs."""
        self._actor(policies, keys)(0)

    def __call__(
        self, policies: AbstractPolicy, keys: Key[Array, " seed"], iteration: int
    ) -> Collected:
        """A batch of every seed; all arrays begin with the seed. Keys beyond the seeds get copies of the last seed's batch."""
        vector, found, count = self.vector, self.found, len(self.times)
        seed = lambda copy, step: _number(
            self.seeds[copy // self.copies], self.stream, iteration, copy % self.copies, step
        )
        if self.whole or not self.started:
            vector.reset([seed(copy, 0) for copy in range(count)])
            self.times[:], self.totals[:], self.started = 0, 0.0, True
        found["mask"][:] = False
        act = self._actor(policies, keys)
        moving, began = np.ones(count, bool), np.zeros(count, int)
        returns = np.full((self.horizon, count), np.nan, np.float32)
        taken = np.zeros(count, int)
        for t in range(self.horizon):
            actions = act(t)
            found["observations"][t], found["actions"][t], found["times"][t] = (
                vector.observations,
                actions,
                self.times,
            )
            stepped = vector.step(actions, moving)
            real, truncated = (
                stepped.real,
                stepped.truncated | stepped.diverged | (self.times + 1 >= self.limit),
            )
            found["rewards"][t], found["next_observations"][t] = (
                stepped.rewards,
                stepped.observations,
            )
            found["terminated"][t], found["truncated"][t], found["mask"][t] = (
                stepped.terminated,
                truncated,
                real,
            )
            taken += real
            self.times += 1
            self.totals += np.where(real, stepped.rewards, 0)
            ended = real & (stepped.terminated | truncated)
            over = ended | ~real
            if not over.any():
                continue
            with np.errstate(over="ignore"):  # an infinite return is told at the end of training
                returns[t, ended] = self.totals[ended]
            for copy in np.flatnonzero(real & stepped.diverged):
                found["mask"][began[copy] : t + 1, copy] = False
                returns[t, copy] = np.nan
                self.dropped += 1
            self.times[over], self.totals[over], began[over] = 0, 0.0, t + 1
            if self.whole:
                moving &= ~ended
                if not moving.any():
                    break
            # Copies that cannot rest go on after their episode, unseen, and end again.
            again = (
                np.zeros(count, bool)
                if self.whole and vector.rests
                else ended | stepped.terminated | stepped.truncated
            )
            if again.any():
                vector.restart(again, lambda copy, step=t + 1: seed(copy, step))
        seeds = np.minimum(np.arange(len(keys)), len(self.seeds) - 1)
        by_seed = lambda x: np.moveaxis(
            x.reshape(self.horizon, len(self.seeds), self.copies, *x.shape[2:]), 0, 2
        )[seeds]
        ends = np.moveaxis(returns.reshape(self.horizon, len(self.seeds), self.copies), 1, 0)[seeds]
        return Collected(
            batch=Batch(**{field: jnp.asarray(by_seed(values)) for field, values in found.items()}),
            returns=jnp.asarray(ends.reshape(len(seeds), -1)),
            environment_steps=jnp.asarray(
                taken.reshape(len(self.seeds), -1).sum(1)[seeds], jnp.int32
            ),
        )

    def _actor(
        self, policies: AbstractPolicy, keys: Key[Array, " seed"]
    ) -> Callable[[int], np.ndarray]:
        """The function that gives the actions of all copies in a step of this iteration."""
        arrays, rest = eqx.partition(policies, eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        sample = _sampler(rest, structure, self.whole)
        keys = _seed_copy_keys(keys[: len(self.seeds)], self.copies)
        # One array in and one out: each transfer takes as long as the policy itself.
        inputs = np.zeros(
            (len(self.seeds), self.copies, self.vector.observations.shape[1] + 2), np.float32
        )
        rows = inputs.reshape(len(self.times), -1)

        def act(step: int) -> np.ndarray:
            rows[:, :-2], rows[:, -2], rows[:, -1] = self.vector.observations, self.times, step
            actions = np.asarray(sample(leaves, keys, inputs))
            return actions.reshape(len(self.times), *actions.shape[2:])

        return act


def check_collector(env: HostEnv, collector: AbstractCollector) -> tuple[int, int]:
    """Copies of each seed and steps of each copy; raise if `collector` cannot work with `env`."""
    if isinstance(collector, Steps):
        return collector.copies, collector.steps
    if not isinstance(collector, Episodes):
        raise ValueError(
            f"{type(collector).__name__} needs a compiled environment, which {env.name} is not; collect Episodes or Steps."
        )
    if env.max_steps is None:
        raise ValueError(
            f"{env.name} has no time limit, and whole episodes need one; give max_steps, or collect Steps."
        )
    return collector.episodes, env.max_steps


@eqx.filter_jit
def _seed_copy_keys(keys: Key[Array, " seed"], copies: int) -> Key[Array, "seed copy"]:
    return unrolled(jax.vmap(lambda key: copy_keys(key, copies))(keys))


@functools.lru_cache(maxsize=16)
def _sampler(rest: AbstractPolicy, structure, whole: bool):
    """The compiled function that draws an action for every copy of every seed, with the keys that compiled collection would use."""

    def copy(policy, key, inputs):
        observation, time, step = (
            inputs[:-2],
            inputs[-2].astype(jnp.int32),
            inputs[-1].astype(jnp.int32),
        )
        key = (
            jax.random.split(key)[1]
            if whole
            else jax.random.split(jax.random.fold_in(key, step))[0]
        )
        return policy.sample(jax.random.fold_in(key, 2 * time), observation)

    def seed(leaves, keys, inputs):
        policy = eqx.combine(jax.tree.unflatten(structure, leaves), rest)
        return jax.vmap(lambda key, row: copy(policy, key, row))(keys, inputs)

    return jax.jit(jax.vmap(seed))


def _number(*parts: int) -> int:
    """A seed for an environment from the numbers that it should depend on."""
    return int(np.random.SeedSequence([abs(part) for part in parts]).generate_state(1)[0])
