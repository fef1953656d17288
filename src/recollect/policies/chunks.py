"""Sums over the states of a score matrix, chunk by chunk.

A product with all scores at once has intermediate results as long as the data. Taken a chunk at a
time, it needs memory for one chunk, whatever the number of states, and no more operations. Whole
chunks behind the last state that matters are skipped.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from recollect.devices import chunk_size
from recollect.policies.scores import AbstractScores


def fold(
    term: Callable[[AbstractScores, Float[Array, " row"]], Float[Array, "..."]],
    scores: AbstractScores,
    coefficients: Float[Array, " row"],
    count: Int[Array, ""],
    size: int | None = None,
) -> Float[Array, "..."]:
    """Σ of `term` over chunks of states, which bounds the memory that one term takes.

    Args:
        term: a function of the scores and the coefficients of a chunk, to be summed.
        scores: of all states.
        coefficients: one for each state.
        count: number of states that matter, at the front; whole chunks behind them are skipped.
        size: states in a chunk, as many as suit the device if not given. If there are no more than
            this, `term` is called once.

    Returns:
        The sum, in the shape of `term`'s result.
    """
    size = size or chunk_size()
    states = len(coefficients)
    if states <= size:
        return term(scores, coefficients)

    def chunk(start, size):
        return term(scores.states(start, size), lax.dynamic_slice_in_dim(coefficients, start, size))

    whole, rest = divmod(states, size)
    shape = jax.eval_shape(lambda: chunk(0, size))
    needed = jnp.minimum(whole, -(-count // size))
    zero = jnp.zeros(shape.shape, shape.dtype)
    total = lax.fori_loop(0, needed, lambda i, total: total + chunk(i * size, size), zero)
    return total + chunk(whole * size, rest) if rest else total
