"""Sweeps over data in random minibatches: several epochs, each in a new order, or until a stop."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from recollect.keys import numbered

Indices = Int[Array, " sample"] | slice
"""The rows of a minibatch, as an index; a slice where one minibatch holds all rows."""


def sweep(
    key: PRNGKeyArray,
    mask: Bool[Array, " row"],
    epochs: int,
    size: int,
    step: Callable[[Any, Indices, Bool[Array, " sample"]], tuple[Any, Bool[Array, ""]]],
    carry: Any,
) -> Any:
    """Call `step` for one minibatch after another.

    Only rows inside `mask` are visited, each once an epoch, in an order drawn anew for each epoch.
    They are distributed evenly over as few minibatches of at most `size` rows as hold them.

    Args:
        key: for the order of rows.
        mask: true for the rows to visit.
        epochs: number of times that each row is visited.
        size: largest number of rows of a minibatch.
        step: `step(carry, rows, real)` returns the next carry and whether to go on. All minibatches
            have arrays of the same length; `real` is false for entries that do not belong to it.
        carry: first carry.

    Returns:
        The carry after the last step.

    Example:
        The sum of the rows inside the mask, in minibatches of two.

        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect.minibatches import sweep
        >>> data = jnp.array([1.0, 2.0, 4.0, 8.0])
        >>> def add(total, rows, real):
        ...     return total + jnp.sum(jnp.where(real, data[rows], 0)), jnp.array(True)
        >>> mask = jnp.array([True, True, False, True])
        >>> float(sweep(jax.random.key(0), mask, epochs=1, size=2, step=add, carry=jnp.array(0.0)))
        11.0
    """
    size = min(size, len(mask))
    count = mask.sum()
    batches = -(-count // size)

    def shuffled(epoch) -> Int[Array, " row"]:
        draws = jax.random.uniform(numbered(key, epoch), mask.shape)
        # Rows outside the mask sort behind all others, as draws are below 1.
        return jnp.argsort(jnp.where(mask, draws, 2.0))

    def minibatch(loop):
        epoch, i, order, carry, _ = loop
        order = lax.cond(i == 0, lambda: shuffled(epoch), lambda: order)
        # ⌊i · count / batches⌋, in parts that stay below 2³¹.
        edge = lambda i: i * (count // batches) + i * (count % batches) // batches
        start = edge(i)
        end = edge(i + 1)
        rows = lax.dynamic_slice_in_dim(order, start, size)
        # A slice that would reach beyond the array starts earlier, and still contains [start, end).
        at = jnp.minimum(start, len(mask) - size) + jnp.arange(size)
        carry, go_on = step(carry, rows, (at >= start) & (at < end))
        last = i + 1 == batches
        return epoch + last, jnp.where(last, 0, i + 1), order, carry, go_on

    def whole(loop):
        epoch, i, order, carry, _ = loop
        # The order does not matter here, and gathering the rows takes a fifth of a step's time.
        carry, go_on = step(carry, slice(len(mask)), mask)
        return epoch + 1, i, order, carry, go_on

    def unfinished(loop):
        return (loop[0] < epochs) & loop[4]

    # Epoch, number of the minibatch in it, order of rows, carry, whether to go on.
    zero = jnp.zeros((), count.dtype)
    first = (zero, zero, jnp.arange(len(mask)), carry, count > 0)
    last = lax.while_loop(unfinished, whole if size == len(mask) else minibatch, first)
    return last[3]
