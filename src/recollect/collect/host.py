"""Gathering batches from environments on the host, for all seeds as one vector of copies.

`Episodes` and `Steps` mean what they do for compiled environments. Draws come from the same keys as
there, seeds of resets from (seed, iteration, copy, step), so a repeated iteration repeats itself.
The policies of all seeds are asked once a step. Between iterations a collector keeps only the
environments; the rest is `Ongoing`, from which other copies can be brought to the same point.
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Shaped

from recollect.batch import Batch
from recollect.collect.compiled import Episodes, Steps
from recollect.collect.rollout import AbstractCollector, Rollout, with_log_probs
from recollect.envs.hosted import HostEnv
from recollect.envs.vectors import close_all
from recollect.keys import numbered, numbered_each, stream
from recollect.policies import AbstractPolicy
from recollect.prng import unrolled


class Ongoing(eqx.Module):
    """What goes on from one iteration to the next, beside the environments themselves.

    In NumPy's arrays, since JAX's have single precision.
    """

    times: Int[np.ndarray, "seed copy"]
    """Steps since each copy's episode began."""
    totals: Float[np.ndarray, "seed copy"]
    """Sums of the rewards of these steps."""
    dropped: Int[np.ndarray, "seed copy"]
    """Episodes that were left out because the simulation diverged, since the start of the run."""
    seeds: Int[np.ndarray, "seed copy"]
    """From which each copy's episode began."""
    observations: Float[np.ndarray, "seed copy feature"]
    """What the policy acts on next."""
    actions: Shaped[np.ndarray, "taken *action"]
    """Those since each copy's episode began, one copy after another. Nothing for whole episodes,
    which begin anew in every iteration, and for copies that reset themselves."""

    def of_seed(self, index: int) -> "Ongoing":
        """That of one of the seeds alone."""
        copies = self.times.shape[1]
        actions = _by_copy(self)[index * copies : (index + 1) * copies]
        alone = lambda values: values[index : index + 1]
        return Ongoing(
            times=alone(self.times),
            totals=alone(self.totals),
            dropped=alone(self.dropped),
            seeds=alone(self.seeds),
            observations=alone(self.observations),
            actions=np.concatenate(actions),
        )


class HostCollector:
    """The copies of all seeds, and arrays for what one iteration finds."""

    def __init__(
        self, env: HostEnv, collector: AbstractCollector, seeds: tuple[int, ...], stream: int = 0
    ):
        self.copies, self.horizon = check_collector(env, collector)
        self.whole = isinstance(collector, Episodes)
        self.seeds = seeds
        self.stream = stream
        self.keywords = env.info_keywords
        self._owned = env.vector is None
        self.limit = np.inf
        count = len(seeds) * self.copies
        self.vector = env.open(count, _number(seeds[0], stream))
        if self.whole or env.limited:
            self.limit = env.max_steps or np.inf
        if env.limited and not self.whole and self.vector.resets_itself:
            self.close()
            raise ValueError(
                f"max_steps={env.max_steps} cannot be kept by {env.name}, which resets itself; set "
                "the limit where it is made."
            )
        axes = (self.horizon, count)
        actions = env.actions
        rows = lambda *shape: np.zeros((*axes, *shape), np.float32)
        self.arrays = dict(
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

    def close(self) -> None:
        """Close the copies, unless the user has made them, who may go on with them."""
        if self._owned:
            close_all([self.vector])

    def empty(self) -> Rollout:
        """What a call gives for one seed, with nothing in it."""
        zeros = lambda x: jnp.zeros((self.copies, self.horizon, *x.shape[2:]), x.dtype)
        nothing = jnp.full(self.copies * self.horizon, jnp.nan, jnp.float32)
        return Rollout(
            batch=Batch(**{field: zeros(values) for field, values in self.arrays.items()}),
            returns=nothing,
            lengths=nothing,
            environment_steps=jnp.zeros((), jnp.int32),
            iteration=jnp.zeros((), jnp.int32),
            figures=dict.fromkeys(self.keywords, nothing),
        )

    def warm_up(self, policies: AbstractPolicy, keys: Key[Array, " seed"]) -> None:
        """Compile what a call needs."""
        self._actor(policies, keys)(0)
        empty = self.empty().batch
        stacked = lambda x: jnp.broadcast_to(x, (len(self.seeds), *x.shape))
        _with_log_probs(policies, jax.tree.map(stacked, empty))

    def __call__(
        self,
        policies: AbstractPolicy,
        keys: Key[Array, " seed"],
        iteration: int,
        ongoing: Ongoing | None = None,
    ) -> tuple[Ongoing, Rollout]:
        """A batch of every seed; all arrays begin with the axis of seeds.

        Args:
            policies: of all seeds, stacked.
            keys: of the iteration, one for each seed.
            iteration: from which, with seed, copy and step, environments are seeded anew.
            ongoing: what the call before returned; None to begin an episode in every copy.
        """
        vector = self.vector
        arrays = self.arrays
        count = vector.count
        seed = lambda copy, step: _number(
            self.seeds[copy // self.copies], self.stream, iteration, copy % self.copies, step
        )
        times = np.zeros(count, np.int32)
        totals = np.zeros(count)
        dropped = np.zeros(count, np.int32)
        numbers = np.zeros(count, np.int64)
        before = [arrays["actions"][:0, 0]] * count
        if ongoing is not None:
            dropped[:] = ongoing.dropped.ravel()
        if self.whole or ongoing is None:
            numbers[:] = [seed(copy, 0) for copy in range(count)]
            vector.reset(numbers.tolist())
        else:
            times[:] = ongoing.times.ravel()
            totals[:] = ongoing.totals.ravel()
            numbers[:] = ongoing.seeds.ravel()
            before = _by_copy(ongoing)
        arrays["mask"][:] = False
        act = self._actor(policies, keys)
        moving = np.ones(count, bool)
        began = np.zeros(count, int)  # in which step of the batch each copy's episode began
        returns = np.full((self.horizon, count), np.nan, np.float32)
        lengths = np.full((self.horizon, count), np.nan, np.float32)
        figures = np.full((len(self.keywords), self.horizon, count), np.nan, np.float32)
        taken = np.zeros(count, int)
        for t in range(self.horizon):
            actions = act(t)
            arrays["observations"][t] = vector.observations
            arrays["actions"][t] = actions
            arrays["times"][t] = times
            stepped = vector.step(actions, moving)
            real = stepped.real
            out_of_time = times + 1 >= self.limit
            truncated = stepped.truncated | stepped.diverged | out_of_time
            arrays["rewards"][t] = stepped.rewards
            arrays["next_observations"][t] = stepped.observations
            arrays["terminated"][t] = stepped.terminated
            arrays["truncated"][t] = truncated
            arrays["mask"][t] = real
            taken += real
            times += 1
            totals += np.where(real, stepped.rewards, 0)
            ended = real & (stepped.terminated | truncated)
            over = ended | ~real
            if not over.any():
                continue
            with np.errstate(over="ignore"):  # an infinite return is told at the end of training
                returns[t, ended] = totals[ended]
            lengths[t, ended] = times[ended]
            figures[:, t, ended] = stepped.figures[ended].T
            for copy in np.flatnonzero(real & stepped.diverged):
                arrays["mask"][began[copy] : t + 1, copy] = False
                returns[t, copy] = np.nan
                lengths[t, copy] = np.nan
                figures[:, t, copy] = np.nan
                dropped[copy] += 1
            times[over] = 0
            totals[over] = 0.0
            began[over] = t + 1
            if self.whole:
                moving &= ~ended
                if not moving.any():
                    break
            # Copies that cannot rest go on after their episode, unseen, and end again.
            again = ended | stepped.terminated | stepped.truncated
            if self.whole and vector.rests:
                again = np.zeros(count, bool)
            if again.any():
                numbers[again] = [seed(copy, t + 1) for copy in np.flatnonzero(again).tolist()]
                vector.restart(again, lambda copy: int(numbers[copy]))
        batch = Batch(**{field: self._by_seed(values) for field, values in arrays.items()})
        rollout = Rollout(
            batch=_with_log_probs(policies, batch),
            returns=self._endings(returns),
            lengths=self._endings(lengths),
            environment_steps=jnp.asarray(taken.reshape(len(self.seeds), -1).sum(1), jnp.int32),
            iteration=jnp.full(len(self.seeds), iteration, jnp.int32),
            figures=dict(zip(self.keywords, map(self._endings, figures), strict=True)),
        )
        taken_since = arrays["actions"][:0, 0]
        if not self.whole and not vector.resets_itself:
            latest = [arrays["actions"][began[copy] :, copy] for copy in range(count)]
            past = [before[copy] if began[copy] == 0 else before[copy][:0] for copy in range(count)]
            taken_since = np.concatenate(
                [part for pair in zip(past, latest, strict=True) for part in pair]
            )
        ongoing = Ongoing(
            times=self._of_copies(times),
            totals=self._of_copies(totals),
            dropped=self._of_copies(dropped),
            seeds=self._of_copies(numbers),
            observations=self._of_copies(vector.observations.copy()),
            actions=taken_since,
        )
        return ongoing, rollout

    def restore(self, ongoing: Ongoing) -> tuple[Ongoing, int]:
        """Bring newly opened copies to where others were, by repeating the actions since then.

        An episode that does not repeat itself, observation by observation, begins anew.

        Args:
            ongoing: what the last call with the other copies returned.

        Returns:
            What the next call is to be given, and how many episodes begin anew.
        """
        if self.whole:
            return ongoing, 0
        vector = self.vector
        if vector.resets_itself:
            return self._anew(ongoing, np.ones(vector.count, bool))
        seeds = ongoing.seeds.ravel().tolist()
        times = ongoing.times.ravel()
        actions = _by_copy(ongoing)
        idle = np.zeros(self.arrays["actions"].shape[2:], self.arrays["actions"].dtype)
        begin = lambda which: vector.restart(which, lambda copy: seeds[copy])
        same = np.ones(vector.count, bool)
        vector.reset(seeds)
        longest = int(times.max())
        # Those with the longest way begin first, so that all arrive together.
        for step in range(longest):
            places = step - longest + times
            moving = (places >= 0) & same
            if not vector.rests and (places == 0).any():
                begin(places == 0)  # until now it was stepped along
            now = [
                some[place] if moves else idle
                for some, place, moves in zip(actions, places, moving, strict=True)
            ]
            stepped = vector.step(np.stack(now), moving)
            ended = stepped.terminated | stepped.truncated | stepped.diverged
            same &= ~(moving & ended)
            if not vector.rests and ended.any():
                begin(ended)
        if not vector.rests and (times == 0).any():
            begin(times == 0)
        same &= (vector.observations == ongoing.observations.reshape(vector.count, -1)).all(1)
        return self._anew(ongoing, ~same)

    def _anew(self, ongoing: Ongoing, which: np.ndarray) -> tuple[Ongoing, int]:
        """Some copies with a new episode, whose seed continues that of the one that was lost."""
        if not which.any():
            return ongoing, 0
        flat = lambda values: values.reshape(self.vector.count, *values.shape[2:]).copy()
        seeds = flat(ongoing.seeds)
        times = flat(ongoing.times)
        totals = flat(ongoing.totals)
        seeds[which] = [_number(int(seed), 1) for seed in seeds[which]]
        times[which] = 0
        totals[which] = 0.0
        if self.vector.resets_itself:
            self.vector.reset(seeds.tolist())
        else:
            self.vector.restart(which, lambda copy: int(seeds[copy]))
        kept = [
            some[:0] if new else some for some, new in zip(_by_copy(ongoing), which, strict=True)
        ]
        after = Ongoing(
            times=self._of_copies(times),
            totals=self._of_copies(totals),
            dropped=ongoing.dropped,
            seeds=self._of_copies(seeds),
            observations=self._of_copies(self.vector.observations.copy()),
            actions=np.concatenate(kept),
        )
        return after, int(which.sum())

    def _by_seed(self, values: np.ndarray) -> Array:
        """From the axes time, copy of all seeds to seed, copy, time."""
        shape = (self.horizon, len(self.seeds), self.copies, *values.shape[2:])
        return jnp.asarray(np.moveaxis(values.reshape(shape), 0, 2))

    def _of_copies(self, values: np.ndarray) -> np.ndarray:
        """From the axis copy of all seeds to seed, copy."""
        return values.reshape(len(self.seeds), self.copies, *values.shape[1:])

    def _endings(self, values: np.ndarray) -> Array:
        """Figures of episodes, by seed and in the order in which episodes ended."""
        by_copy = values.reshape(self.horizon, len(self.seeds), self.copies)
        return jnp.asarray(np.moveaxis(by_copy, 1, 0).reshape(len(self.seeds), -1))

    def _actor(
        self, policies: AbstractPolicy, keys: Key[Array, " seed"]
    ) -> Callable[[int], np.ndarray]:
        """The function that gives the actions of all copies in a step of this iteration."""
        arrays, rest = eqx.partition(policies, eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        sample = _sampler(rest, structure)
        keys = _action_keys(keys, self.copies)
        # One array in and one out: each transfer takes as long as the policy itself.
        inputs = np.zeros(
            (len(self.seeds), self.copies, self.vector.observations.shape[1] + 1), np.float32
        )
        rows = inputs.reshape(self.vector.count, -1)

        def act(step: int) -> np.ndarray:
            rows[:, :-1] = self.vector.observations
            rows[:, -1] = step
            actions = np.asarray(sample(leaves, keys, inputs))
            return actions.reshape(len(rows), *actions.shape[2:])

        return act


def _by_copy(ongoing: Ongoing) -> list[np.ndarray]:
    """The actions since each copy's episode began."""
    times = ongoing.times.ravel() if len(ongoing.actions) else np.zeros(ongoing.times.size, int)
    return np.split(ongoing.actions, np.cumsum(times)[:-1])


def check_collector(env: HostEnv, collector: AbstractCollector) -> tuple[int, int]:
    """Copies of each seed and steps of each copy; raise if `collector` cannot work with `env`."""
    if isinstance(collector, Steps):
        return collector.copies, collector.steps
    if not isinstance(collector, Episodes):
        raise ValueError(
            f"{type(collector).__name__} needs a compiled environment, which {env.name} is not; "
            "collect Episodes or Steps."
        )
    if env.max_steps is None:
        raise ValueError(
            f"{env.name} has no time limit, and whole episodes need one; give max_steps, or "
            "collect Steps."
        )
    return collector.episodes, env.max_steps


@eqx.filter_jit
def _with_log_probs(policies: AbstractPolicy, batches: Batch) -> Batch:
    """The batches of all seeds with the log-probabilities of the policies that acted in them."""
    return eqx.filter_vmap(with_log_probs, in_axes=(eqx.if_array(0), 0))(policies, batches)


@eqx.filter_jit
def _action_keys(keys: Key[Array, " seed"], copies: int) -> Key[Array, "seed copy"]:
    of_copies = jax.vmap(lambda key: stream(key, "action"))
    return unrolled(jax.vmap(lambda key: of_copies(numbered_each(key, copies)))(keys))


@functools.lru_cache(maxsize=16)
def _sampler(rest: AbstractPolicy, structure):
    """The compiled function that draws an action for every copy of every seed, with the keys that
    compiled collection would use."""

    def copy(policy, key, inputs):
        step = inputs[-1].astype(jnp.int32)
        return policy.sample(numbered(key, step), inputs[:-1])

    def seed(leaves, keys, inputs):
        policy = eqx.combine(jax.tree.unflatten(structure, leaves), rest)
        return jax.vmap(lambda key, row: copy(policy, key, row))(keys, inputs)

    return jax.jit(jax.vmap(seed))


def _number(*parts: int) -> int:
    """A seed for an environment from the numbers that it should depend on."""
    return int(np.random.SeedSequence([abs(part) for part in parts]).generate_state(1)[0])
