"""An update that costs as much as the ages in use, not as all that are stored.

How many batches are stored is a shape; how many of them count may change from one iteration to
the next without a new compilation. Where that number is known before anything is weighed, the
update is compiled for histories of 1, 2, 4, … batches, and the shortest that holds the ages in use
runs: at most twice the rows of a window of just that length, for log₂ K programs instead of one.
(A weight rule whose memory of old batches changes with every new one needs them all, and so does a
rule of shares that remembers what it saw of them: they take the longest program.)
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import PRNGKeyArray

from recollect.algorithms.base import AbstractAlgorithm, Info, State
from recollect.collect.rollout import Rollout
from recollect.devices import side_by_side
from recollect.memory.history import History


def narrow_update(
    algorithm: AbstractAlgorithm, state: State, rollout: Rollout, key: PRNGKeyArray
) -> tuple[State, Info]:
    """`algorithm.update`, computed on no more than twice the batches that are in use."""
    used = algorithm.shares.ages_in_use()
    capacity = len(state.history.batches.mask)
    if used is None or capacity == 1 or _needs_all(algorithm, state):
        return algorithm.update(state, rollout, key)
    if side_by_side():  # where all programs would run, as each seed may need another one
        return algorithm.update(state, rollout, key)
    like = eqx.filter_eval_shape(algorithm.update, state, rollout, key)[1]
    rest = eqx.filter(state, eqx.is_array, inverse=True)

    def branch(size: int):
        def go():
            narrow = jax.tree.map(lambda x: _newest(x, size), state, is_leaf=_is_history)
            after, info = algorithm.update(narrow, rollout, key)
            wide = jax.tree.map(_with_older, after, state, is_leaf=_is_history)
            return eqx.filter(wide, eqx.is_array), jax.tree.map(_filled_up, info, like)

        return go

    sizes = [2**i for i in range((capacity - 1).bit_length())] + [capacity]
    # A critic with a window of its own looks at batches that the step does without.
    held = jnp.maximum(used, algorithm.critic_window or 1)
    number = jnp.searchsorted(jnp.array(sizes), jnp.minimum(held, capacity))
    after, info = lax.switch(number, [branch(size) for size in sizes])
    return eqx.combine(after, rest), info


def _needs_all(algorithm: AbstractAlgorithm, state: State) -> bool:
    """Whether a rule remembers something that all batches have a part in."""
    return algorithm.weights.remembers_across_batches or bool(jax.tree.leaves(state.share_memory))


def _is_history(node: Any) -> bool:
    return isinstance(node, History)


def _newest(node: Any, size: int) -> Any:
    """The newest batches of a history; anything else as it is."""
    return jax.tree.map(lambda x: x[:size], node) if _is_history(node) else node


def _with_older(after: Any, before: Any) -> Any:
    """A shortened history after an update, with the older batches of the one before it."""
    if not _is_history(after):
        return after
    # The newest batch has moved all others by one place.
    join = lambda new, old: jnp.concatenate([new, old[len(new) - 1 : -1]])
    return jax.tree.map(join, after, before)


def _filled_up(measured: Any, like: Any) -> Any:
    """A figure by age, zero for the ages that were left alone."""
    if measured.shape == like.shape:
        return measured
    return jnp.zeros(like.shape, like.dtype).at[: len(measured)].set(measured)
