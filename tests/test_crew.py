"""Who does which unit when actors die: on actors that are threads of this process."""

import dataclasses
import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from recollect import EnvironmentFailure
from recollect.collect import crew as crew_module
from recollect.collect.crew import RETRIES, Crew, Unit
from recollect.machines import AbstractActor, AbstractSession, ActorDied


@dataclasses.dataclass
class Answer:
    ongoing: int
    """Units of this group so far."""
    actor: int
    given: int | None
    """What was ongoing, where the actor was told."""


class Counter:
    """Counts the units of every group, as an actor that has their environments."""

    def __init__(self, number, rule):
        self.number = number
        self.rule = rule
        self.counts = {}

    def begin(self):
        self.rule(self.number, None, None)

    def collect(self, group, iteration, ongoing, word):
        assert word == f"{group} in {iteration}"
        self.rule(self.number, group, iteration)
        if ongoing is not None:
            self.counts[group] = ongoing
        self.counts[group] = self.counts.get(group, 0) + 1
        return Answer(self.counts[group], self.number, ongoing)


class Threads(AbstractSession):
    """A session whose actors are threads. `rule` is called before every unit, and may raise."""

    def __init__(self, actors, rule=lambda actor, group, iteration: None):
        self.actors = actors
        self.rule = rule
        self.started = []

    def actor(self, make):
        number = len(self.started)
        one = ThreadActor(make(number, self.rule))
        self.started.append(one)
        return one

    def map(self, function, tasks, watch=None, at_once=None): ...

    def close(self): ...


class ThreadActor(AbstractActor):
    def __init__(self, held):
        self.held = held
        self.dead = False
        self.ended = False
        self.thread = ThreadPoolExecutor(1)

    def ask(self, method, *arguments) -> Future:
        return self.thread.submit(self._answer, method, arguments)

    def _answer(self, method, arguments):
        if self.dead:
            raise ActorDied("gone")
        try:
            return getattr(self.held, method)(*arguments)
        except ActorDied:
            self.dead = True
            raise

    def end(self):
        self.ended = True
        self.thread.shutdown(wait=False, cancel_futures=True)


def units_of(groups, iteration):
    return [Unit(iteration, group, (f"{group} in {iteration}",)) for group in range(groups)]


STALLED = 60
"""Seconds to wait for another thread, as long as a machine that is busy may need."""


def run(session, groups, iterations, whole=False, ahead=0, between=lambda crew, iteration: None):
    """Answers by iteration and group, where so many iterations are asked for ahead."""
    crew = Crew(session, Counter, groups, whole)
    crew.wait_until_ready()
    answers = []
    asked = []
    try:
        for iteration in range(iterations + ahead):
            between(crew, iteration)
            asked.append(units_of(groups, iteration))
            crew.ask(asked[-1])
            if iteration >= ahead:
                answers.append([crew.result(unit) for unit in asked[iteration - ahead]])
        return answers, crew
    finally:
        crew.close()


def once(actor, group, iteration):
    """A rule: an actor dies the first time that it comes to a unit."""
    left = [(actor, group, iteration)]

    def rule(*now):
        if now in left:
            left.remove(now)
            raise ActorDied("killed")

    return rule


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_group_that_loses_its_actor_goes_on_where_it_was(ahead):
    answers, crew = run(Threads(2, once(1, 1, 2)), groups=4, iterations=6, ahead=ahead)
    counts = [[answer.ongoing for answer in of_all] for of_all in answers]
    assert counts == [[n] * 4 for n in range(1, 7)]
    assert crew.repeated == 1
    # The groups of the dead actor were told once what was ongoing, and then kept by the living.
    told = [answer.given for of_all in answers for answer in of_all if answer.given is not None]
    assert told
    assert all(answer.actor != 1 for answer in answers[-1])


@pytest.mark.parametrize("ahead", [0, 1])
def test_groups_are_shared_out_evenly_again_after_a_death(ahead):
    replaced, joined = threading.Event(), threading.Event()

    def rule(actor, group, iteration):
        if (actor, group, iteration) == (0, 0, 1):
            raise ActorDied("killed")
        if actor == 2 and group is None:
            replaced.wait(STALLED)  # it starts only after the survivor has done all units once
        if (group, iteration) == (0, 9):
            replaced.set()
            if ahead:  # it is still under way when the units after it are handed out
                joined.wait(STALLED)
                time.sleep(0.2)

    def wait_for_the_other(crew, iteration):
        end = time.monotonic() + STALLED
        while iteration == 10 and crew.size < 2 and time.monotonic() < end:
            time.sleep(0.01)
        if iteration == 10:
            joined.set()

    answers, _ = run(Threads(2, rule), 4, 40, ahead=ahead, between=wait_for_the_other)
    assert {answer.actor for answer in answers[0]} == {0, 1}
    assert {answer.actor for answer in answers[2]} == {1}
    assert sorted(answer.actor for answer in answers[-1]) in ([1, 1, 2, 2], [1, 1, 1, 2])
    assert [answer.ongoing for answer in answers[-1]] == [40] * 4


def test_any_actor_does_a_unit_of_whole_episodes():
    busy = threading.Event()

    def rule(actor, group, iteration):
        if (actor, group) == (0, 0):
            assert busy.wait(STALLED)  # until all other units are done
        if group == 5:
            busy.set()

    answers, _ = run(Threads(2, rule), groups=6, iterations=1, whole=True)
    assert [answer.actor for answer in answers[0]] == [0, 1, 1, 1, 1, 1]
    assert all(answer.given is None for answer in answers[0])


def test_units_are_handed_out_in_order_also_when_they_were_lost():
    seen = []

    def rule(actor, group, iteration):
        seen.append((iteration, group))
        if (actor, group, iteration) == (0, 1, 0):
            raise ActorDied("killed")

    run(Threads(1, rule), groups=3, iterations=2, whole=True, ahead=1)
    begun = [one for one in seen if one[0] is not None]
    assert begun[:7] == [(0, 0), (0, 1), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_unit_that_ends_every_process_is_given_up():
    tries = itertools.count()

    def rule(actor, group, iteration):
        if group == 1:
            next(tries)
            raise ActorDied("out of memory")

    with pytest.raises(EnvironmentFailure, match=r"iteration 1: .* 4 times.*out of memory"):
        run(Threads(2, rule), groups=2, iterations=1)
    assert next(tries) == RETRIES + 1


def test_a_failure_of_the_environment_is_not_tried_again():
    tries = itertools.count()

    def rule(actor, group, iteration):
        if (group, iteration) == (0, 1):
            next(tries)
            raise EnvironmentFailure("copy 0 of it, step 5: the reward is nan.")

    session = Threads(2, rule)
    with pytest.raises(EnvironmentFailure, match="the reward is nan"):
        run(session, groups=2, iterations=3)
    assert next(tries) == 1
    assert all(actor.ended for actor in session.started)


def test_actors_that_do_not_start_are_named():
    def stillborn(actor, group, iteration):
        raise ActorDied("no such library")

    with pytest.raises(RuntimeError, match="die when they start: no such library"):
        run(Threads(1, stillborn), groups=1, iterations=1)

    def cannot(actor, group, iteration):
        raise EnvironmentFailure("it cannot be made.")

    with pytest.raises(EnvironmentFailure, match="cannot be made"):
        run(Threads(1, cannot), groups=1, iterations=1)


def test_it_goes_on_with_the_actors_that_start(monkeypatch):
    monkeypatch.setattr(crew_module, "PATIENCE", 2.0)
    never = threading.Event()
    rule = lambda actor, group, iteration: actor == 1 and never.wait(STALLED)
    with pytest.warns(UserWarning, match="1 of 2 actors have started"):
        answers, _ = run(Threads(2, rule), groups=3, iterations=2)
    assert {answer.actor for of_all in answers for answer in of_all} == {0}
    never.set()


def test_it_does_not_wait_for_ever_for_another_actor(monkeypatch):
    monkeypatch.setattr(crew_module, "PATIENCE", 2.0)
    never = threading.Event()

    def rule(actor, group, iteration):
        if group is not None:
            raise ActorDied("killed")
        if actor > 0:
            never.wait(STALLED)

    with pytest.raises(RuntimeError, match="All actors have died"):
        run(Threads(1, rule), groups=1, iterations=1)
    never.set()
