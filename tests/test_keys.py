"""Streams of random numbers never meet."""

from typing import get_args

import jax
import numpy as np

import recollect as rc
from recollect.keys import Name, numbered, numbered_each, seed_keys, stream
from recollect.policies.architecture import traced_spread
from recollect.run.compiled import _start

KEY = jax.random.key(3)


def words(keys) -> list[tuple[int, ...]]:
    """Keys as pairs of numbers."""
    return [tuple(pair) for pair in np.asarray(jax.random.key_data(keys)).reshape(-1, 2).tolist()]


def test_names_and_numbers_of_a_key_are_all_different():
    named = [word for name in get_args(Name) for word in words(stream(KEY, name))]
    counted = words(numbered_each(KEY, 1000)) + words(numbered(KEY, 2**31 - 1))
    assert len({*named, *counted}) == len(get_args(Name)) + 1001
    # Splitting is numbering: a key that is split must not be numbered, too.
    assert words(jax.random.split(KEY, 1000)) == counted[:1000]


def test_copies_do_not_depend_on_their_number():
    assert words(numbered_each(KEY, 3)) == words(numbered_each(KEY, 5))[:3]


def test_seeds_have_keys_of_their_own():
    assert len(set(words(seed_keys(range(50))))) == 50


def test_the_critic_does_not_start_like_the_policy():
    algorithm = rc.TRPO(critic=rc.Critic(widths=(6,), activation="relu"))
    problem = (algorithm, rc.CartPole(max_steps=5), rc.Steps(2, 3), None)
    start = traced_spread(rc.Architecture(widths=(6,)))
    seeds = _start(problem, *start, seed_keys((0,)))
    policy = seeds.state.policy.network.layers[0].weight
    critic = seeds.state.critic.network.layers[0].weight
    assert policy.shape == critic.shape
    assert np.abs(policy - critic).max() > 0.1
