"""Sweeping over data in random minibatches: several epochs, each in a new order, until told to stop."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, PRNGKeyArray

Indices = Int[Array, " sample"] | slice
"""Which rows a minibatch holds, as an index; all of them in their order where one minibatch holds everything."""


def sweep(
    key: PRNGKeyArray,
    mask: Bool[Array, " row"],
    epochs: int,
    size: int,
    step: Callable[[Any, Indices, Bool[Array, " sample"]], tuple[Any, Bool[Array, ""]]],
    carry: Any,
) -> Any:
    """The carry after `step(carry, rows, real)` for each minibatch, until a step says that it was the last.

    Only rows inside `mask` are visited, each once an epoch. They are dealt out evenly to as few
    minibatches of at most `size` rows as will hold them; `real` is false where a minibatch has a row less.
    """
    size = min(size, len(mask))
    count = mask.sum()
    batches = -(-count // size)

    def shuffled(epoch) -> Int[Array, " row"]:
        draws = jax.random.uniform(jax.random.fold_in(key, epoch), mask.shape)
        return jnp.argsort(jnp.where(mask, draws, 2.0))

    def minibatch(loop):
        epoch, i, order, carry, _ = loop
        order = lax.cond(i == 0, lambda: shuffled(epoch), lambda: order)
        start, end = i * count // batches, (i + 1) * count // batches
        rows = lax.dynamic_slice_in_dim(order, start, size)
        # A slice that would leave the array starts earlier; what belongs to this minibatch is inside in any case.
        at = jnp.minimum(start, len(mask) - size) + jnp.arange(size)
        carry, go_on = step(carry, rows, (at >= start) & (at < end))
        last = i + 1 == batches
        return epoch + last, jnp.where(last, 0, i + 1), order, carry, go_on

    def whole(loop):
        epoch, i, order, carry, _ = loop
        # The order does not matter here, and to gather the rows would take a fifth of the time of a step.
        carry, go_on = step(carry, slice(None), mask)
        return epoch + 1, i, order, carry, go_on

    zero = jnp.zeros((), count.dtype)
    loop = (zero, zero, jnp.arange(len(mask)), carry, count > 0)
    return lax.while_loop(
        lambda loop: (loop[0] < epochs) & loop[4], whole if size == len(mask) else minibatch, loop
    )[3]
