"""All there is between two iterations, for all seeds.

After n iterations it depends on settings, seeds and n alone: not on the number of cores, nor on how
many iterations were asked for at a time (to rounding, where XLA adds in another order on another
number of threads). Training is `advance` applied until a limit.
"""

import abc
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from recollect.algorithms import AbstractAlgorithm, State
from recollect.algorithms.narrow import narrow_update
from recollect.batch import Batch
from recollect.collect.parts import Ongoing
from recollect.collect.rollout import Rollout
from recollect.devices import learning_devices, side_by_side
from recollect.policies import AbstractPolicy
from recollect.run.checkpoint import filled, named_arrays
from recollect.run.layout import laid_out, over_devices
from recollect.runtime import cores, memory

RECENT_EPISODES = 20
"""A target return counts as reached when the mean over this many latest episodes reaches it."""
WORD = 2**30
"""What the first of two words counts."""
Curves = dict[str, np.ndarray]
"""Figures of every iteration; arrays have the axes seed, iteration and are NaN after a seed's
end."""


FIELDS = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next observation",
    "log_probs": "log-probability",
}
"""Of a batch that may hold numbers that are not finite, causes before effects; and their names."""


def two_words(number: Any) -> Int[Array, "2"]:
    """A whole number below 2⁶¹ as two of 32 bits: ⌊number / 2³⁰⌋ and the rest.

    JAX has no more bits in single precision, and a long run takes more than 2³¹ steps. Infinity is
    the largest of these numbers; an array is taken to be two words already.

    Example:
        >>> from recollect.run.state import two_words
        >>> two_words(2**31 + 5).tolist()
        [2, 5]
    """
    if isinstance(number, jax.Array):
        return number
    number = min(number, 2**61 - 1)
    return jnp.array([int(number) // WORD, int(number) % WORD], jnp.int32)


def added(total: Int[Array, "2"], steps: Int[Array, ""]) -> Int[Array, "2"]:
    """The sum of two words and of a number below 2³⁰, in two words."""
    low = total[1] + steps.astype(jnp.int32)
    return jnp.stack([total[0] + low // WORD, low % WORD])


def whole(words: Int[np.ndarray, "*seed 2"]) -> Int[np.ndarray, "*seed"]:
    """The numbers that `two_words` stand for."""
    return words[..., 0].astype(np.int64) * WORD + words[..., 1]


class SeedState(eqx.Module):
    """One seed between iterations."""

    state: State
    """Of the algorithm."""
    collecting: Any
    """What the collector carries on, for environments inside the program."""
    fisher_collecting: Any
    """The same for the independent batch of the Fisher matrix."""
    environment_steps: Int[Array, "2"]
    """As `two_words`."""
    recent: Float[Array, " recent"]
    """Returns of the latest episodes, −∞ before there are enough."""
    active: Bool[Array, ""]
    """False once a limit has been met."""

    @classmethod
    def fresh(
        cls,
        algorithm: AbstractAlgorithm,
        policy: AbstractPolicy,
        batch: Batch,
        key: PRNGKeyArray,
        collecting: Any = None,
        fisher_collecting: Any = None,
    ) -> "SeedState":
        """A seed before its first iteration; `batch` shows the shapes of those to come."""
        return cls(
            state=algorithm.init(policy, batch, key),
            collecting=collecting,
            fisher_collecting=fisher_collecting,
            environment_steps=two_words(0),
            # A weak type would not survive a file, and the program be compiled again.
            recent=jnp.full(RECENT_EPISODES, -jnp.inf, float),
            active=jnp.array(True),
        )


@dataclasses.dataclass(frozen=True)
class RunState:
    """All seeds between iterations."""

    seeds: SeedState
    """Every array begins with the axis of seeds."""
    iteration: int
    """Iterations so far."""
    hosted: tuple[Ongoing | None, ...] = ()
    """For environments on the host, what each of their collectors carries on: the batch's, and that
    of the independent Fisher batch. None before the first iteration."""
    ahead: tuple[AbstractPolicy, ...] = ()
    """With a lag, the policies that gather the batches to come, the next one first. Only the
    newest policy is not among them."""

    @property
    def policies(self) -> AbstractPolicy:
        """Of all seeds, stacked."""
        return self.seeds.state.policy

    def tree(self) -> dict[str, Any]:
        """What `checkpoint.write` has to write, beside the number of iterations."""
        return {"seeds": self.seeds, "hosted": self.hosted, "ahead": self.ahead}


class Limits(eqx.Module):
    """When a seed stops; infinite where nothing is asked."""

    environment_steps: Int[Array, "2"] = eqx.field(converter=two_words)
    """A number, which becomes `two_words`."""
    target_return: float


class AbstractRun(abc.ABC):
    """What is fixed while a run goes on: settings, compiled programs, open environments."""

    chunk: int
    """Iterations that `advance` takes at most at a time."""

    @abc.abstractmethod
    def start(self) -> RunState:
        """The state before the first iteration."""

    def restore(
        self, arrays: Mapping[str, np.ndarray], iteration: int, changed: bool = False
    ) -> RunState:
        """A state that another run of the same settings and seeds has had.

        Args:
            arrays: of its `RunState.tree`, by path.
            iteration: how many iterations it had had.
            changed: whether its settings were others. What fits is kept then; the rest begins anew,
                and a warning names it.

        Raises:
            CheckpointError: if the arrays do not fit.
        """
        start = self.start()
        known = {"ahead": start.ahead} if changed else filled({"ahead": start.ahead}, arrays)
        seeds = start.seeds
        if changed:
            seeds = _with_what_fits(seeds, arrays)
        else:
            seeds = filled({"seeds": seeds}, arrays)["seeds"]
        hosted = self.restore_hosted(arrays, iteration)
        return RunState(seeds=seeds, iteration=iteration, hosted=hosted, **known)

    def restore_hosted(
        self, arrays: Mapping[str, np.ndarray], iteration: int
    ) -> tuple[Ongoing | None, ...]:
        """What environments on the host carry on, brought to where they were."""
        del arrays, iteration
        return ()

    @abc.abstractmethod
    def advance(self, state: RunState, count: int) -> tuple[RunState, Curves]:
        """The state after `count` more iterations, and the curves of these."""

    @abc.abstractmethod
    def warn(self, state: RunState) -> None:
        """Warn of what went wrong until `state` without stopping the run."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of processes and files; never raises."""


PARTS = {
    "the critic": "['seeds'].state.critic",
    "the window of old batches": "['seeds'].state.history",
    "what the algorithm keeps for itself": "['seeds'].state.own",
    "what the rule of shares remembers": "['seeds'].state.share_memory",
    "unfinished episodes": "['seeds'].collecting",
}
"""What a run with other settings may have to begin anew, and where it is."""


def _with_what_fits(seeds: SeedState, arrays: Mapping[str, np.ndarray]) -> SeedState:
    """The seeds with the policy and the counters of another run, and what else of it fits."""
    fresh = named_arrays({"seeds": seeds})
    known = dict(arrays)
    form = lambda array: None if array is None else (array.shape, array.dtype)
    anew = []
    for part, prefix in PARTS.items():
        own = {path: array for path, array in fresh.items() if path.startswith(prefix)}
        if any(form(arrays.get(path)) != form(array) for path, array in own.items()):
            anew.append(part)
            known |= own
    if anew:
        warnings.warn(
            f"The settings are others than before: {', '.join(anew)} did not fit and begin anew.",
            stacklevel=6,
        )
    return filled({"seeds": seeds}, known)["seeds"]


def fresh_seeds(start: Callable[..., SeedState], *given: Any) -> SeedState:
    """What `start` makes of what it is given, if the machine's memory can hold it.

    Raises:
        ValueError: if it cannot.
    """
    # Options of the compiler, which `start` may have, are not for a part of another program.
    shapes = jax.tree.leaves(eqx.filter_eval_shape(inspect.unwrap(start), *given))
    needed = sum(x.size * x.dtype.itemsize for x in shapes if isinstance(x, jax.ShapeDtypeStruct))
    # An update needs the state before it and the one after it.
    if 2 * needed > memory():
        raise ValueError(
            f"the run has to remember {needed / 2**30:,.1f} GiB, twice while it updates, and this "
            f"machine has {memory() / 2**30:,.1f} GiB; give a smaller window, batch or number of "
            "seeds."
        )
    return start(*given)


def learn(
    algorithm: AbstractAlgorithm,
    limits: Limits,
    key: PRNGKeyArray,
    seed: SeedState,
    rollout: Rollout,
) -> tuple[SeedState, dict[str, Array]]:
    """One seed after an update with what it has collected, and a column of its curves."""
    rollout = laid_out(rollout, seeds=False)
    state, info = narrow_update(algorithm, seed.state, rollout, key)
    total = added(seed.environment_steps, rollout.environment_steps)
    recent = _latest(jnp.concatenate([seed.recent, rollout.returns.astype(seed.recent.dtype)]))
    after = dataclasses.replace(
        seed,
        state=state,
        environment_steps=total,
        recent=recent,
        active=active(limits, total, recent),
    )
    parts = (info, info.own, info.share_report)
    measured = {name: x for part in parts if part is not None for name, x in vars(part).items()}
    measured |= {f"rollout/{name}": jnp.nanmean(x) for name, x in rollout.figures.items()}
    column = dict(
        return_mean=jnp.nanmean(rollout.returns),
        length_mean=jnp.nanmean(rollout.lengths),
        recent_return=jnp.mean(recent, where=recent > -jnp.inf),
        steps=rollout.environment_steps,
        episode_returns=rollout.returns,
        episode_lengths=rollout.lengths,
        fault=first_fault(rollout.batch),
        **{name: value for name, value in measured.items() if eqx.is_array(value)},
    )
    return after, jax.tree.map(lambda x: x.astype(jnp.float32), column)


def first_fault(batch: Batch) -> Float[Array, " 2"]:
    """Which of `FIELDS` holds a number that is not finite, and in which step of an episode.

    Fields are counted from 1 on; both are 0 if all is finite.
    """
    found = jnp.zeros(2)
    for number, field in reversed(list(enumerate(FIELDS, 1))):
        values = getattr(batch, field)
        finite = jnp.isfinite(values).reshape(*batch.mask.shape, -1).all(-1)
        wrong = (batch.mask & ~finite).ravel()
        step = batch.times.ravel()[jnp.argmax(wrong)]
        place = jnp.stack([jnp.full((), number, found.dtype), step.astype(found.dtype)])
        found = jnp.where(wrong.any(), place, found)
    return found


def active(
    limits: Limits, environment_steps: Int[Array, "2"], recent: Float[Array, " recent"]
) -> Bool[Array, ""]:
    """Whether a seed goes on: it has met no limit.

    Args:
        limits: when it stops.
        environment_steps: that it has taken, in two words.
        recent: returns of its latest episodes.
    """
    high, low = environment_steps
    most_high, most_low = limits.environment_steps
    room = (high < most_high) | ((high == most_high) & (low < most_low))
    # A return that is not finite has reached nothing.
    reached = jnp.isfinite(recent.mean()) & (recent.mean() >= limits.target_return)
    return room & ~reached


def _latest(returns: Float[Array, " ending"]) -> Float[Array, " recent"]:
    """The last of the returns that are there, in order."""
    order = jnp.argsort(jnp.where(jnp.isnan(returns), -1, jnp.arange(len(returns))))
    return returns[order][-RECENT_EPISODES:]


class CorePool(ThreadPoolExecutor):
    """A thread for each core, or for each of several devices, that has seeds to work on."""

    def __init__(self, seeds: int):
        self.devices = learning_devices()
        self.shares = min(len(self.devices) if side_by_side() else cores(), seeds)
        super().__init__(self.shares)


def in_shares(pool: CorePool, function: Callable, *trees: Any) -> Any:
    """`function` of equal shares of the seeds, each on a core of its own; the results joined.

    The last seed is repeated to fill up the last share, so that one compiled program serves all,
    and dropped at the end. On several devices see `over_devices`.

    Args:
        pool: a thread for each share.
        function: of pytrees whose arrays begin with the axis of seeds; so does its result.
        trees: what it is given.
    """
    seeds = next(len(x) for x in jax.tree.leaves(trees) if eqx.is_array(x))
    if len(pool.devices) > 1:
        return over_devices(pool, pool.devices, seeds, function, *trees)
    if pool.shares == 1:
        return function(*trees)
    size = -(-seeds // pool.shares)
    rows = np.minimum(np.arange(size * pool.shares), seeds - 1).reshape(-1, size)
    take = lambda row: jax.tree.map(lambda x: x[row] if eqx.is_array(x) else x, trees)
    parts = list(pool.map(lambda row: function(*take(row)), rows))
    join = lambda *xs: jnp.concatenate(xs)[:seeds] if eqx.is_array(xs[0]) else xs[0]
    return jax.tree.map(join, *parts)
