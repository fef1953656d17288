"""What lives in an actor: the environments of some groups of copies, which it steps.

The copies of a seed are divided into groups, whose size depends neither on the number of actors
nor on anything that happens. An actor gets the policy's settings once, then for every unit the
parameters of one seed, and gives back a `Part` and the seconds that it took.

It asks the policy for the whole vector of copies though it needs a few (`HostCollector` says why):
some 0.2 ms a step for 64 copies, 1 ms for 1,000, with two layers of 64 units.
"""

import dataclasses
import faulthandler
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from recollect.collect.host import HostCollector, acting, check_collector
from recollect.collect.parts import Ongoing, Part
from recollect.collect.rollout import AbstractCollector
from recollect.envs.hosted import HostEnv
from recollect.envs.vectors import LocalVector
from recollect.policies import AbstractPolicy
from recollect.runtime import configure_actor

GRACE = 10.0
"""Seconds beyond `step_timeout` after which a process in which nothing moves is ended."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an actor gives back for a unit."""

    part: Part
    anew: int
    """Episodes that could not be gone on with."""
    seconds: float
    """That the unit took."""

    @property
    def ongoing(self) -> Ongoing:
        return self.part.ongoing


@dataclasses.dataclass(frozen=True)
class Copies:
    """Makes, in an actor, what steps the copies that are given to it."""

    env: HostEnv
    collector: AbstractCollector
    seeds: tuple[int, ...]
    streams: int
    """1, or 2 with an independent batch for the Fisher matrix."""
    group: int
    """Copies in a group, the last of a seed perhaps with fewer."""
    policy: AbstractPolicy
    """Of one seed, with NumPy's arrays in place of its parameters: shapes and settings."""
    configuration: dict[str, Any]

    def __call__(self) -> "CopiesActor":
        return CopiesActor(self)

    def places(self, number: int) -> tuple[int, range]:
        """Stream of a group and the copies in it, counted over all seeds."""
        copies, _ = check_collector(self.env, self.collector)
        per_seed = -(-copies // self.group)
        stream, rest = divmod(number, per_seed * len(self.seeds))
        seed, place = divmod(rest, per_seed)
        first = place * self.group
        last = min(first + self.group, copies)
        return stream, range(seed * copies + first, seed * copies + last)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        copies, _ = check_collector(self.env, self.collector)
        return self.streams * len(self.seeds) * -(-copies // self.group)


class CopiesActor:
    """Lives in an actor's process and has the environments of some groups."""

    def __init__(self, copies: Copies):
        configure_actor(copies.configuration)
        self._copies = copies
        arrays, self._rest = eqx.partition(copies.policy, is_numpy)
        self._structure = jax.tree.structure(arrays)
        self._collectors: dict[int, HostCollector] = {}
        self._ongoing: dict[int, Ongoing | None] = {}
        self._stepping = ThreadPoolExecutor(1)

    def begin(self) -> None:
        """Compile how the policy acts, which takes as long as many steps."""
        copies = self._copies
        number, _ = check_collector(copies.env, copies.collector)
        parameters = jax.tree.leaves(eqx.filter(copies.policy, is_numpy))
        key = np.asarray(jax.random.key_data(jax.random.key(0)))
        shape = (len(copies.seeds), number, copies.env.observation_size + 1)
        acting(*self._acting(parameters, key), number)(np.zeros(shape, np.float32))

    def collect(self, *unit: Any) -> Answer:
        """What `_collect` answers, which steps in a thread of its own if steps have a limit."""
        limit = self._copies.env.step_timeout
        if limit is None:
            return self._collect(*unit)
        work = self._stepping.submit(self._collect, *unit)
        try:
            while True:
                # A step that hangs with Python's lock stops this thread, too. Then the process
                # ends, as one that dies, and says on standard error where it was.
                faulthandler.dump_traceback_later(limit + GRACE, exit=True, file=2)
                if wait([work], timeout=min(limit / 4, 1)).done:
                    return work.result()
                for collector in list(self._collectors.values()):
                    assert isinstance(collector.vector, LocalVector)
                    collector.vector.check_time(limit)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _collect(
        self,
        group: int,
        iteration: int,
        ongoing: Ongoing | None,
        leaves: list[np.ndarray],
        key: np.ndarray,
    ) -> Answer:
        """What the copies of a group do in an iteration.

        Args:
            group: its number.
            iteration: of the batch.
            ongoing: where to go on, if not where this actor was.
            leaves: parameters of the seed's policy.
            key: of the seed and the iteration, as numbers.
        """
        began = time.perf_counter()
        collector = self._collector(group)
        anew = 0
        if ongoing is not None:
            self._ongoing[group], anew = collector.restore(ongoing)
        policies, keys = self._acting(leaves, key)
        part = collector.gather(policies, keys, iteration, self._ongoing.get(group))
        self._ongoing[group] = part.ongoing
        return Answer(part, anew, time.perf_counter() - began)

    def _collector(self, group: int) -> HostCollector:
        if group not in self._collectors:
            copies = self._copies
            stream, places = copies.places(group)
            # Copies are stepped here; further processes would compete for this one's CPU.
            env = dataclasses.replace(copies.env, workers=False, on_cores=False)
            collector = HostCollector(env, copies.collector, copies.seeds, stream, places)
            self._collectors[group] = collector
        return self._collectors[group]

    def _acting(
        self, leaves: list[np.ndarray], key: np.ndarray
    ) -> tuple[AbstractPolicy, Key[Array, " seed"]]:
        """The seed's policy and key in the places of all seeds, of which only its own is used."""
        seeds = len(self._copies.seeds)
        of_all = lambda array: jnp.asarray(np.broadcast_to(array, (seeds, *array.shape)))
        arrays = jax.tree.unflatten(self._structure, [of_all(leaf) for leaf in leaves])
        return eqx.combine(arrays, self._rest), jax.random.wrap_key_data(of_all(key))


def is_numpy(leaf: Any) -> bool:
    """Whether a leaf of a policy is a parameter, as it travels."""
    return isinstance(leaf, np.ndarray)
