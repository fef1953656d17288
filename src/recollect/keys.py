"""Named streams of random numbers: each draw of a run has a key of its own.

A key is derived from (seed, what it is for, iteration, copy, step), so a repeated, resumed or moved
part of a run repeats its numbers, and no draw depends on how many others are made beside it.

Deriving is folding in a name (`stream`) or a number (`numbered`). `jax.random.split(key)[i]` is
`jax.random.fold_in(key, i)`, so a key that is split may not be folded as well. Names are folded in
as numbers from 2³¹ on, which no counter reaches: a name never meets a number.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PRNGKeyArray

Name = Literal[
    "policy",  # first parameters
    "critic",  # first parameters, and the order of its minibatches
    "environments",  # first states, where episodes go on between batches
    "batch",  # what a seed collects
    "fisher batch",  # the independent batch of the Fisher matrix
    "update",
    "minibatches",  # the order of PPO's
    "reset",
    "horizon",  # how far an independent draw walks
    "state",  # drawn from the occupancy measure
    "action",
    "step",  # of the environment
    "fresh",  # batches that only measure
    "evaluation",  # episodes that only measure
    "prediction",  # actions outside of training
]
_NUMBERS = {name: np.uint32(2**31 + i) for i, name in enumerate(get_args(Name))}


def seed_keys(seeds: Sequence[int]) -> Key[Array, " seed"]:
    """The key of every seed."""
    return jnp.stack([jax.random.key(seed) for seed in seeds])


def stream(key: PRNGKeyArray, name: Name) -> PRNGKeyArray:
    """The key of a purpose.

    Example:
        >>> import jax
        >>> from recollect.keys import numbered, stream
        >>> key = numbered(stream(jax.random.key(0), "batch"), 7)  # of iteration 7
        >>> key.shape
        ()
    """
    return jax.random.fold_in(key, _NUMBERS[name])


def numbered(key: PRNGKeyArray, number: Int[Array, ""] | int) -> PRNGKeyArray:
    """The key of a number below 2³¹: of an iteration, a copy, a step."""
    return jax.random.fold_in(key, number)


def numbered_each(key: PRNGKeyArray, count: int) -> Key[Array, " number"]:
    """The keys of 0, 1, …, whatever their number."""
    return jax.vmap(lambda number: numbered(key, number))(jnp.arange(count))
