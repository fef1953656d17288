"""From padded arrays to rows: the window as one axis of transitions, newest batch first.

A window of no more than one chunk (`CHUNK` rows) is only reshaped. A longer one is packed: real transitions
first, then padding, so that work which goes chunk by chunk stops where the data stops.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

CHUNK = 8192
"""Rows handled at a time in products: smaller chunks measured slower, larger ones take more memory."""


class Packing(eqx.Module):
    """Where each row comes from. Rows of newer batches always stand before those of older ones."""

    counts: Int[Array, " window"]
    """Real transitions in each batch."""
    source: Int[Array, " row"] | None
    """For each row its place in the flattened (window, episode, time) axes, or one past the end; None: the same place."""
    shape: tuple[int, ...] = eqx.field(static=True)
    """Of the arrays that rows are taken from: window, episode, time."""

    @classmethod
    def of(cls, mask: Bool[Array, "window episode time"]) -> "Packing":
        packed = mask.size > CHUNK
        source = jnp.nonzero(mask.ravel(), size=mask.size, fill_value=mask.size)[0] if packed else None
        return cls(mask.sum((1, 2)), source, mask.shape)

    def rows(self, values: Shaped[Array, "window episode time ..."]) -> Shaped[Array, "row ..."]:
        """The values as rows, zero (or false) in rows that stand for nothing."""
        flat = values.reshape(-1, *values.shape[3:])
        return flat if self.source is None else flat.at[self.source].get(mode="fill", fill_value=0)

    def unpack(self, values: Float[Array, " row"]) -> Float[Array, "window episode time"]:
        """Back from the rows of all batches, or of the newest ones, to their places; zero where there is no row."""
        shape = (len(values) // self._per_batch, *self.shape[1:])
        if self.source is None:
            return values.reshape(shape)
        return jnp.zeros_like(values).at[self.source[: len(values)]].set(values, mode="drop").reshape(shape)

    @property
    def _per_batch(self) -> int:
        return self.shape[1] * self.shape[2]

    def prefix(self, window: int) -> tuple[int, Int[Array, ""]]:
        """How many rows hold the newest `window` batches: at most (a shape), and in fact."""
        bound = window * self._per_batch
        return bound, jnp.array(bound) if self.source is None else self.counts[:window].sum()
