"""The control of reuse takes as many gradient steps, and reuses nothing."""

import dataclasses
import doctest

import jax
import numpy as np
import pytest
from helpers import ENV, batch_of, parameters, random_policy, update
from plain import RNPG, RTRPO, TRPO

from recollect.algorithms import PPO, RPPO, control
from recollect.algorithms.control import (
    NewestRepeated,
    equal_steps_control,
    planned_steps,
    without_reuse,
)
from recollect.batch import Batch
from recollect.collect.compiled import Episodes, Steps
from recollect.estimate.advantages import Returns
from recollect.estimate.critic import Critic
from recollect.memory.mixture import Mixture

KEY = jax.random.key(0)
POLICY = random_policy(KEY)
CRITIC = Critic(widths=(4,), epochs=2, minibatch=8)
RPPO_3 = RPPO(window=3, epochs=2, minibatch=10, critic=CRITIC, learning_rate=0.01)


def updates(algorithm, collector, count: int):
    """States, infos and batches of some updates."""
    state = algorithm.init(POLICY, batch_of(KEY, POLICY, ENV, collector), KEY)
    found = []
    for i in range(count):
        key_batch, key_update = jax.random.split(jax.random.fold_in(KEY, i))
        batch = batch_of(key_batch, state.policy, ENV, collector)
        state, info = update(algorithm, state, batch, key_update)
        found.append((state, info, batch))
    return found


def critic_steps(found) -> list[int]:
    """Steps that the critic's Adam took in each update."""
    counts = [int(state.critic.optimizer[0].count) for state, _, _ in found]
    return list(np.diff(counts, prepend=0))


def test_the_control_of_rppo_takes_as_many_steps_also_while_the_window_fills():
    """A batch of 12 does not fill minibatches of 10 and 8: K times the epochs would be more."""
    with_reuse = updates(RPPO_3, Steps(2, 6), 5)
    without = updates(equal_steps_control(RPPO_3), Steps(2, 6), 5)
    steps = [int(info.gradient_steps) for _, info, _ in with_reuse]
    assert steps == [4, 6, 8, 8, 8]
    assert [int(info.gradient_steps) for _, info, _ in without] == steps
    assert critic_steps(with_reuse) == critic_steps(without) == [4, 6, 10, 10, 10]


@pytest.mark.parametrize("how", [lambda reuse: reuse, without_reuse, equal_steps_control])
def test_steps_follow_from_the_sizes_of_the_batches(how):
    algorithm = how(dataclasses.replace(RPPO_3, advantages=Returns()))
    found = updates(algorithm, Episodes(3), 5)
    sizes = np.array([int(batch.mask.sum()) for _, _, batch in found])
    assert len(set(sizes)) > 1
    counted = [int(info.gradient_steps) for _, info, _ in found]
    np.testing.assert_array_equal(planned_steps(algorithm, sizes), counted)


def test_the_control_of_rppo_forgets_what_came_before():
    """Whatever the history holds, the update is the same; and all its weights are 1."""
    copies = equal_steps_control(RPPO_3)
    state, info, batch = updates(copies, Steps(2, 6), 4)[-1]
    np.testing.assert_allclose(info.max_weight, 1, rtol=1e-6)
    np.testing.assert_allclose(info.ess_by_age, [12, 12, 12], rtol=1e-6)

    def spoiled(batches: Batch) -> Batch:
        return dataclasses.replace(batches, rewards=batches.rewards + 7)

    history = dataclasses.replace(state.history, batches=spoiled(state.history.batches))
    other = dataclasses.replace(state, history=history)
    after = [parameters(update(copies, one, batch, KEY)[0].policy) for one in (state, other)]
    np.testing.assert_array_equal(*after)
    reused = [parameters(update(RPPO_3, one, batch, KEY)[0].policy) for one in (state, other)]
    assert np.abs(reused[0] - reused[1]).max() > 1e-4


def test_in_one_minibatch_copies_change_nothing():
    """Sweeps over all rows at once see the same mean, however often each row is there."""
    settings = dict(epochs=3, minibatch=10**6, advantages=Returns(), learning_rate=0.01)
    vanilla = updates(PPO(**settings), Episodes(3), 4)[-1][0]
    copies = updates(equal_steps_control(RPPO(window=3, **settings)), Episodes(3), 4)[-1][0]
    np.testing.assert_allclose(parameters(copies.policy), parameters(vanilla.policy), atol=1e-5)
    assert np.abs(parameters(vanilla.policy) - parameters(POLICY)).max() > 1e-2


def test_the_control_of_rtrpo_fits_its_critic_as_often():
    reuse = RTRPO(window=3, critic=CRITIC)
    found = updates(reuse, Steps(2, 6), 4)
    control_of_it = equal_steps_control(reuse, transitions=12)
    assert control_of_it.window == 1
    without = updates(control_of_it, Steps(2, 6), 4)
    assert critic_steps(found) == [4, 6, 10, 10]
    assert critic_steps(without) == [10, 10, 10, 10]


def test_where_no_steps_grow_the_control_is_a_window_of_1():
    newest = RTRPO(window=3, critic=dataclasses.replace(CRITIC, fit="batch"))
    for algorithm in (newest, RNPG(window=3), RTRPO(window=3, advantages=Returns())):
        assert equal_steps_control(algorithm) == without_reuse(algorithm)
    assert without_reuse(newest) == TRPO(fisher_window=1, critic=newest.critic)
    assert equal_steps_control(RTRPO(window=3, critic=CRITIC)).critic.epochs == 6


def test_the_control_has_the_settings_of_what_it_controls():
    copies = equal_steps_control(RPPO(window=3, discount=0.9, advantages=Returns()))
    assert isinstance(copies, NewestRepeated)
    for field in ("window", "discount", "advantages", "critic", "weights", "project"):
        assert getattr(copies, field) == getattr(copies.algorithm, field)
    with pytest.raises(ValueError, match="transitions=0"):
        equal_steps_control(RTRPO(), transitions=0)


def test_examples():
    assert doctest.testmod(control).failed == 0
    assert doctest.testmod(control).attempted > 3


def test_copies_of_the_newest_batch_are_a_mixture_of_one_policy():
    copies = equal_steps_control(dataclasses.replace(RPPO_3, weights=Mixture()))
    *_, (_, before, _), (_, info, batch) = updates(copies, Episodes(3), 4)
    assert before.kl > 1e-5
    np.testing.assert_allclose(info.max_weight, 1, rtol=1e-5)
    np.testing.assert_allclose(info.ess_by_age, np.full(3, batch.mask.sum()), rtol=1e-5)
