"""Gathering batches from environments on the host, for all seeds as one vector of copies.

`Episodes` and `Steps` mean what they do for compiled environments. Draws come from the same keys as
there, seeds of resets from (seed, iteration, copy, step), so a repeated iteration repeats itself.
The policies of all seeds are asked once a step. Between iterations a collector keeps only the
environments; the rest is `Ongoing`, from which other copies can be brought to the same point.

A collector may have some of the copies only. It asks the policy in the same program as one that has
all, with zeros in place of the other observations: the shape of a program decides in which order
its sums are taken, and so the last bits of every action.
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from recollect.collect.compiled import Episodes, Steps
from recollect.collect.parts import Ongoing, Part, empty_rollout, fill_log_probs
from recollect.collect.rollout import AbstractCollector, Rollout
from recollect.devices import acting_device
from recollect.envs.hosted import HostEnv
from recollect.envs.vectors import close_all
from recollect.keys import numbered, numbered_each, stream
from recollect.policies import AbstractPolicy
from recollect.prng import unrolled


class HostCollector:
    """The copies of all seeds, and arrays for what one iteration finds.

    Args:
        env: what is copied.
        collector: `Episodes` or `Steps`.
        seeds: of the run.
        stream: 0 for the batch, 1 for the independent one of the Fisher matrix.
        places: which copies it has, counting those of the first seed, of the second, and so on; all
            if not given.
    """

    def __init__(
        self,
        env: HostEnv,
        collector: AbstractCollector,
        seeds: tuple[int, ...],
        stream: int = 0,
        places: range | None = None,
    ):
        self.copies, self.horizon = check_collector(env, collector)
        self.whole = isinstance(collector, Episodes)
        self.seeds = seeds
        self.stream = stream
        self.keywords = env.info_keywords
        self._owned = env.vector is None
        self.limit = np.inf
        self.places = range(len(seeds) * self.copies) if places is None else places
        count = len(self.places)
        self.vector = env.open(count, _number(seeds[0], stream), self.places.start)
        if self.whole or env.limited:
            self.limit = env.max_steps or np.inf
        if env.limited and not self.whole and self.vector.resets_itself:
            self.close()
            raise ValueError(
                f"max_steps={env.max_steps} cannot be kept by {env.name}, which resets itself; set "
                "the limit where it is made."
            )
        axes = (self.horizon, count)
        self.shapes = shapes_of(env)
        self.arrays = {
            name: np.zeros((*axes, *entry.shape), entry.dtype)
            for name, entry in self.shapes.items()
            if name != "log_probs"
        }

    def close(self) -> None:
        """Close the copies, unless the user has made them, who may go on with them."""
        if self._owned:
            close_all([self.vector])

    def empty(self) -> Rollout:
        """What a call gives for one seed, with nothing in it."""
        return empty_rollout(self.shapes, self.copies, self.horizon, self.keywords)

    def warm_up(self, policies: AbstractPolicy, keys: Key[Array, " seed"]) -> None:
        """Compile what a call needs."""
        self._actor(policies, keys)(0)
        empty = self.empty().batch
        stacked = lambda x: jnp.broadcast_to(x, (len(self.seeds), *x.shape))
        fill_log_probs(policies, jax.tree.map(stacked, empty))

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
        part = self.gather(policies, keys, iteration, ongoing)
        return part.ongoing, part.rollout(policies, len(self.seeds), iteration)

    def gather(
        self,
        policies: AbstractPolicy,
        keys: Key[Array, " seed"],
        iteration: int,
        ongoing: Ongoing | None = None,
    ) -> Part:
        """What the copies do in an iteration; arguments are those of a call."""
        vector = self.vector
        arrays = self.arrays
        count = vector.count
        seed = lambda copy, step: self._reset_seed(iteration, copy, step)
        times = np.zeros(count, np.int32)
        totals = np.zeros(count)
        dropped = np.zeros(count, np.int32)
        numbers = np.zeros(count, np.int64)
        before = [arrays["actions"][:0, 0]] * count
        if ongoing is not None:
            dropped[:] = ongoing.dropped
        if self.whole or ongoing is None:
            numbers[:] = [seed(copy, 0) for copy in range(count)]
            vector.reset(numbers.tolist())
        else:
            times[:] = ongoing.times
            totals[:] = ongoing.totals
            numbers[:] = ongoing.seeds
            before = ongoing.by_copy()
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
        taken_since = arrays["actions"][:0, 0]
        if not self.whole and not vector.resets_itself:
            latest = [arrays["actions"][began[copy] :, copy] for copy in range(count)]
            past = [before[copy] if began[copy] == 0 else before[copy][:0] for copy in range(count)]
            taken_since = np.concatenate(
                [part for pair in zip(past, latest, strict=True) for part in pair]
            )
        by_copy = lambda values: np.ascontiguousarray(np.moveaxis(values, 0, 1))
        return Part(
            arrays={name: by_copy(values) for name, values in arrays.items()},
            returns=by_copy(returns),
            lengths=by_copy(lengths),
            figures={name: by_copy(x) for name, x in zip(self.keywords, figures, strict=True)},
            steps=taken,
            ongoing=Ongoing(
                times=times,
                totals=totals,
                dropped=dropped,
                seeds=numbers,
                observations=vector.observations.copy(),
                actions=taken_since,
            ),
        )

    def _reset_seed(self, iteration: int, copy: int, step: int) -> int:
        """From which a copy's episode begins, if it begins in this step of this iteration."""
        place = self.places[copy]
        number = self.seeds[place // self.copies]
        return _number(number, self.stream, iteration, place % self.copies, step)

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
        seeds = ongoing.seeds.tolist()
        times = ongoing.times
        actions = ongoing.by_copy()
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
        same &= (vector.observations == ongoing.observations).all(1)
        return self._anew(ongoing, ~same)

    def _anew(self, ongoing: Ongoing, which: np.ndarray) -> tuple[Ongoing, int]:
        """Some copies with a new episode, whose seed continues that of the one that was lost."""
        if not which.any():
            return ongoing, 0
        seeds = ongoing.seeds.copy()
        times = ongoing.times.copy()
        totals = ongoing.totals.copy()
        seeds[which] = [_number(int(seed), 1) for seed in seeds[which]]
        times[which] = 0
        totals[which] = 0.0
        if self.vector.resets_itself:
            self.vector.reset(seeds.tolist())
        else:
            self.vector.restart(which, lambda copy: int(seeds[copy]))
        kept = [
            some[:0] if new else some for some, new in zip(ongoing.by_copy(), which, strict=True)
        ]
        after = Ongoing(
            times=times,
            totals=totals,
            dropped=ongoing.dropped,
            seeds=seeds,
            observations=self.vector.observations.copy(),
            actions=np.concatenate(kept),
        )
        return after, int(which.sum())

    def _actor(
        self, policies: AbstractPolicy, keys: Key[Array, " seed"]
    ) -> Callable[[int], np.ndarray]:
        """The function that gives the actions of all copies in a step of this iteration."""
        sample = acting(policies, keys, self.copies)
        # One array in and one out: each transfer takes as long as the policy itself.
        features = self.vector.observations.shape[1]
        inputs = np.zeros((len(self.seeds), self.copies, features + 1), np.float32)
        rows = inputs.reshape(-1, features + 1)
        ours = slice(self.places.start, self.places.stop)

        def act(step: int) -> np.ndarray:
            rows[ours, :-1] = self.vector.observations
            rows[:, -1] = step
            actions = sample(inputs)
            return actions.reshape(len(rows), *actions.shape[2:])[ours]

        return act


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


def shapes_of(env: HostEnv) -> dict[str, jax.ShapeDtypeStruct]:
    """What one entry of each field of a batch is."""
    entry = lambda kind, *shape: jax.ShapeDtypeStruct(shape, kind)
    actions = env.actions
    return dict(
        observations=entry(np.float32, env.observation_size),
        actions=entry(np.int32 if actions.whole else np.float32, *actions.shape),
        log_probs=entry(np.float32),
        rewards=entry(np.float32),
        next_observations=entry(np.float32, env.observation_size),
        terminated=entry(bool),
        truncated=entry(bool),
        times=entry(np.int32),
        mask=entry(bool),
    )


def acting(
    policies: AbstractPolicy, keys: Key[Array, " seed"], copies: int
) -> Callable[[np.ndarray], np.ndarray]:
    """The function from observations and step of all copies to their actions.

    Args:
        policies: of all seeds, stacked.
        keys: of the iteration, one for each seed.
        copies: of each seed.

    Returns:
        The function of an array with the axes seed, copy, feature, the last of which is the number
        of the step.
    """
    arrays, rest = eqx.partition(policies, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    sample = _sampler(rest, structure)
    leaves, of_copies = jax.device_put((leaves, _action_keys(keys, copies)), acting_device())
    return lambda inputs: np.asarray(sample(leaves, of_copies, inputs))


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

    # On one thread: several may add in another order, and actors have another number of them.
    return jax.jit(jax.vmap(seed), compiler_options={"xla_cpu_multi_thread_eigen": False})


def _number(*parts: int) -> int:
    """A seed for an environment from the numbers that it should depend on."""
    return int(np.random.SeedSequence([abs(part) for part in parts]).generate_state(1)[0])
