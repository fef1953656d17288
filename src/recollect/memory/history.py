"""The last K batches in fixed-shape arrays, newest first, so that the index along `window` is the
age.

Slots not yet filled are padding, as the tail of a short episode is: estimators average over what
exists.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from recollect.batch import Batch, zero_padding
from recollect.memory.weights import AbstractWeightRule
from recollect.policies import AbstractPolicy
from recollect.tree import all_finite


class History(eqx.Module):
    """Stored batches, and what the weight rule remembers of them.

    All arrays begin with a `window` axis; what padding holds is finite.
    """

    batches: Batch
    memory: Any
    """The rule's own part."""

    @classmethod
    def empty(
        cls, batch: Batch, window: int, rule: AbstractWeightRule, policy: AbstractPolicy
    ) -> "History":
        """Room for `window` batches shaped like `batch`, collected by policies like `policy`."""
        batches = jax.tree.map(lambda x: jnp.zeros((window, *x.shape), x.dtype), batch)
        return cls(batches=batches, memory=rule.init(batches, policy))

    def push(
        self, batch: Batch, policy: AbstractPolicy, rule: AbstractWeightRule
    ) -> tuple["History", Bool[Array, ""]]:
        """The history with a new batch, the oldest forgotten.

        A batch with a number that is not finite takes its slot with nothing in it, so that it can
        poison neither this update nor the next K − 1.

        Args:
            batch: the new one.
            policy: that acted in it.
            rule: the weight rule, which remembers what it needs of the batch.

        Returns:
            The new history, and whether the batch was usable.
        """
        batch = zero_padding(batch)
        usable = all_finite(batch)
        batch = zero_padding(_emptied(batch, ~usable))
        push = lambda new, old: jnp.concatenate([new[None], old[:-1]])
        batches = jax.tree.map(push, batch, self.batches)
        return History(batches, rule.remember(self.memory, batches, policy)), usable

    def without(self, ages: Bool[Array, " window"]) -> "History":
        """The history with nothing but padding in the slots of some ages."""
        return dataclasses.replace(self, batches=_emptied(self.batches, ages[:, None, None]))


def _emptied(batch: Batch, empty: Bool[Array, "..."]) -> Batch:
    """The batch with nothing but padding where `empty`."""
    absorbed = None if batch.absorbed is None else batch.absorbed & ~empty
    return dataclasses.replace(batch, mask=batch.mask & ~empty, absorbed=absorbed)
