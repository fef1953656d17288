"""The last K batches in fixed-shape arrays, newest first, so that the index along `window` is the age.

Slots not yet filled are padding, as the tail of a short episode is: estimators average over what exists.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from recollect.batch import Batch, zero_padding
from recollect.tree import all_finite


class History(eqx.Module):
    """`batches` has a leading `window` axis on every array of a `Batch`; what padding holds is finite."""

    batches: Batch

    @classmethod
    def empty(cls, batch: Batch, window: int) -> "History":
        """Room for `window` batches shaped like `batch`."""
        return cls(jax.tree.map(lambda x: jnp.zeros((window, *x.shape), x.dtype), batch))

    def push(self, batch: Batch) -> tuple["History", Bool[Array, ""]]:
        """The history with `batch` as its newest, the oldest forgotten, and whether the batch was usable.

        A batch with a number that is not finite takes its slot with nothing in it, so that it can
        poison neither this update nor the next K − 1.
        """
        batch = zero_padding(batch)
        usable = all_finite(batch)
        batch = zero_padding(_emptied(batch, ~usable))
        push = lambda new, old: jnp.concatenate([new[None], old[:-1]])
        return History(jax.tree.map(push, batch, self.batches)), usable

    def without(self, ages: Bool[Array, " window"]) -> "History":
        """The history with nothing but padding in the slots of some ages."""
        return History(_emptied(self.batches, ages[:, None, None]))


def _emptied(batch: Batch, empty: Bool[Array, "..."]) -> Batch:
    """The batch with nothing but padding where `empty`."""
    absorbed = None if batch.absorbed is None else batch.absorbed & ~empty
    return dataclasses.replace(batch, mask=batch.mask & ~empty, absorbed=absorbed)
