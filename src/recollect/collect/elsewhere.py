"""Gathering batches with actors, in other processes or on other machines.

The batch of an iteration is the same bit for bit as one gathered here, whatever the number of
actors and whichever of them die: draws and seeds of resets come from (seed, iteration, copy, step),
and policies act in programs of one shape. What the environments are while an episode goes on lives
in the actors, and is made again elsewhere by repeating the actions since its beginning.
"""

import dataclasses
import time
import warnings
from collections import deque
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from recollect.collect.actors import Answer, Copies
from recollect.collect.compiled import Episodes
from recollect.collect.crew import Crew, Unit
from recollect.collect.gathering import AbstractGathering
from recollect.collect.host import check_collector, shapes_of
from recollect.collect.parts import Part, empty_rollout, fill_log_probs
from recollect.collect.rollout import AbstractCollector
from recollect.envs.hosted import HostEnv
from recollect.machines import AbstractMachines
from recollect.policies import AbstractPolicy
from recollect.runtime import configuration

GROUPS = 16
"""Of the copies of a seed, where the user does not say how many copies make a group."""


class _Asked(NamedTuple):
    """A batch that is under way."""

    policies: AbstractPolicy
    acted: int
    iteration: int
    units: list[Unit]


class Elsewhere(AbstractGathering):
    """The copies of all seeds are stepped by actors.

    Args:
        env: what is copied; one that can be made anew in other processes.
        collector: `Episodes` or `Steps`.
        seeds: of the run.
        streams: 1, or 2 with an independent batch for the Fisher matrix.
        machines: where the actors live.
    """

    def __init__(
        self,
        env: HostEnv,
        collector: AbstractCollector,
        seeds: tuple[int, ...],
        streams: int,
        machines: AbstractMachines,
    ):
        check_env(env)
        self._copies, self._horizon = check_collector(env, collector)
        self._env = env
        self._collector = collector
        self._seeds = seeds
        self._streams = streams
        self._whole = isinstance(collector, Episodes)
        self._group = machines.group or -(-self._copies // GROUPS)
        self._asked: deque[_Asked] = deque()
        self._session = machines.connect()
        self._crew: Crew | None = None
        self._made: Copies | None = None
        self._repeated = 0
        self._clock = time.perf_counter()

    def empty(self):
        shapes = shapes_of(self._env)
        return empty_rollout(shapes, self._copies, self._horizon, self._env.info_keywords)

    def begin(self, policies, keys):
        del keys
        if self._crew is not None:
            return
        one = jax.tree.map(lambda x: np.zeros_like(x[0]) if eqx.is_array(x) else x, policies)
        made = Copies(
            env=self._env.by_value(),
            collector=self._collector,
            seeds=self._seeds,
            streams=self._streams,
            group=self._group,
            policy=one,
            configuration=configuration(),
        )
        self._made = made
        self._crew = Crew(self._session, made, made.groups, self._whole)
        self._crew.wait_until_ready()
        stacked = lambda x: np.zeros((len(self._seeds), *x.shape), x.dtype)
        fill_log_probs(policies, jax.tree.map(stacked, self.empty().batch))
        self._clock = time.perf_counter()

    def restore(self, hosted):
        assert self._crew is not None
        assert self._made is not None
        if not self._whole:
            for group in range(self._made.groups):
                stream, places = self._made.places(group)
                self._crew.go_on_from(group, hosted[stream].of(np.asarray(places)))
        return hosted, 0  # actors will know

    def ask(self, policies, keys, iteration, acted):
        assert self._crew is not None
        assert self._made is not None
        arrays, _ = eqx.partition(policies, eqx.is_array)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(arrays)]
        of_seed = [
            self._session.share([leaf[seed] for leaf in leaves]) for seed in range(len(self._seeds))
        ]
        numbers = [np.asarray(jax.random.key_data(key)) for key in keys]
        units = []
        for group in range(self._made.groups):
            stream, places = self._made.places(group)
            seed = places.start // self._copies
            units.append(Unit(iteration, group, (of_seed[seed], numbers[stream][seed])))
        self._crew.ask(units)
        self._asked.append(_Asked(policies, acted, iteration, units))

    def receive(self, hosted):
        assert self._crew is not None
        asked = self._asked.popleft()
        began = time.perf_counter()
        answers: list[Answer] = [self._crew.result(unit) for unit in asked.units]
        now = time.perf_counter()
        size = len(answers) // self._streams
        after = []
        rollouts = []
        for stream, before in enumerate(hosted):
            mine = answers[stream * size : (stream + 1) * size]
            part = Part.joined([answer.part for answer in mine])
            ongoing = part.ongoing
            if self._whole and before is not None:
                # Actors count those of an iteration alone, as any of them may have the next one.
                ongoing = dataclasses.replace(ongoing, dropped=ongoing.dropped + before.dropped)
            after.append(ongoing)
            rollouts.append(part.rollout(asked.policies, len(self._seeds), asked.acted))
        busy = sum(answer.seconds for answer in answers) / max(1, self._crew.size)
        figures = dict(
            lag=float(asked.iteration - asked.acted),
            units_repeated=float(self._crew.repeated - self._repeated),
            episodes_restarted=float(self._told(sum(answer.anew for answer in answers))),
            learner_waited=now - began,
            actors_waited=max(0.0, now - self._clock - busy),
        )
        self._repeated = self._crew.repeated
        self._clock = now
        return tuple(after), rollouts, figures

    def _told(self, anew: int) -> int:
        """The number of episodes that begin anew, with a warning if there are any."""
        if anew:
            warnings.warn(
                f"{anew} unfinished episodes of {self._env.name} could not be repeated by another "
                "actor and begin anew: it does not do the same after the same seed and actions.",
                stacklevel=6,
            )
        return anew

    def close(self):
        if self._crew is not None:
            self._crew.close()
        self._session.close()


def check_env(env: Any) -> None:
    """Raise unless actors can make copies of an environment."""
    if not isinstance(env, HostEnv):
        raise ValueError(
            f"on= is for environments on the host, and {type(env).__name__} is compiled; leave it "
            "out, or make the environment with engine='gymnasium'."
        )
    if env.factory is None:
        kind = "a vector that exists already" if env.vector is not None else "EnvPool's"
        raise ValueError(
            f"{env.name} is {kind}, and actors make copies of their own; give a function that "
            "makes one copy, or engine='gymnasium'."
        )
