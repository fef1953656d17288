"""Batches of environments on the host, as a run asks for them: gathered here, or by actors.

Batch n is asked for with the policies that act in it, and received in this order. A run that lags
asks for some batches more than it has received; whoever gathers them may work meanwhile.
"""

import abc
from collections import deque
from collections.abc import Sequence

from jaxtyping import Array, Key

from recollect.collect.host import HostCollector
from recollect.collect.parts import Ongoing
from recollect.collect.rollout import AbstractCollector, Rollout
from recollect.envs.hosted import HostEnv
from recollect.policies import AbstractPolicy

Hosted = tuple[Ongoing | None, ...]
"""What goes on between batches, of the batch and of the independent one of the Fisher matrix."""


class AbstractGathering(abc.ABC):
    """Gathers batches of all seeds, and with them independent ones if there are two streams."""

    @abc.abstractmethod
    def empty(self) -> Rollout:
        """What it gives for one seed, with nothing in it."""

    @abc.abstractmethod
    def begin(self, policies: AbstractPolicy, keys: Key[Array, " seed"]) -> None:
        """Prepare for policies and keys of these shapes."""

    @abc.abstractmethod
    def restore(self, hosted: tuple[Ongoing, ...]) -> tuple[Hosted, int]:
        """Go on from where other environments were.

        Returns:
            What the next batch goes on from, and how many episodes begin anew, as far as that is
            known already.
        """

    @abc.abstractmethod
    def ask(
        self,
        policies: AbstractPolicy,
        keys: Sequence[Key[Array, " seed"]],
        iteration: int,
        acted: int,
    ) -> None:
        """Have a batch gathered.

        Args:
            policies: of all seeds, stacked, that act.
            keys: of the iteration and of each stream, one for each seed.
            iteration: whose batch it is.
            acted: how many updates the policies have had.
        """

    @abc.abstractmethod
    def receive(self, hosted: Hosted) -> tuple[Hosted, list[Rollout], dict[str, float]]:
        """The earliest batch that was asked for and not yet received; waits for it.

        Args:
            hosted: what the batch before left.

        Returns:
            What goes on, a rollout of each stream, and figures of how it went.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of environments and processes; never raises."""


class Here(AbstractGathering):
    """The copies of all seeds are stepped by this process."""

    def __init__(
        self, env: HostEnv, collector: AbstractCollector, seeds: tuple[int, ...], streams: int
    ):
        self.collectors: list[HostCollector] = []
        self._asked: deque = deque()
        try:
            for stream in range(streams):
                self.collectors.append(HostCollector(env, collector, seeds, stream))
        except BaseException:
            self.close()
            raise

    def empty(self):
        return self.collectors[0].empty()

    def begin(self, policies, keys):
        self.collectors[0].warm_up(policies, keys)

    def restore(self, hosted):
        pairs = [
            collector.restore(ongoing)
            for collector, ongoing in zip(self.collectors, hosted, strict=True)
        ]
        return tuple(ongoing for ongoing, _ in pairs), sum(anew for _, anew in pairs)

    def ask(self, policies, keys, iteration, acted):
        del acted  # these policies are the newest
        self._asked.append((policies, keys, iteration))

    def receive(self, hosted):
        policies, keys, iteration = self._asked.popleft()
        pairs = [
            collector(policies, key, iteration, ongoing)
            for collector, key, ongoing in zip(self.collectors, keys, hosted, strict=True)
        ]
        return tuple(ongoing for ongoing, _ in pairs), [rollout for _, rollout in pairs], {}

    def close(self):
        for collector in self.collectors:
            collector.close()
