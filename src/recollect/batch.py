"""Transitions as all parts of the library exchange them: arrays, padded and masked."""

import dataclasses

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int, Shaped

from recollect.tree import where_mask


class Batch(eqx.Module):
    """Transitions of one iteration; every array begins with the axes `episode, time`.

    An entry of the first axis is one episode, one copy of the environment, or (with a single time)
    one independent draw. Entries where `mask` is false are padding; their values have no meaning.
    """

    observations: Float[Array, "..."]
    actions: Shaped[Array, "..."]
    log_probs: Float[Array, "*axes"]
    """log π(a|s) under the policy that acted, which importance weights divide by."""
    rewards: Float[Array, "*axes"]
    next_observations: Float[Array, "..."]
    """The true successors, also where the next entry begins a new episode."""
    terminated: Bool[Array, "*axes"]
    """Whether the problem ended with this transition, so that no reward follows."""
    truncated: Bool[Array, "*axes"]
    """Whether only the recording stopped here, so that rewards would have followed."""
    times: Int[Array, "*axes"]
    """Steps since the episode began, for weighting states by γ^t."""
    mask: Bool[Array, "*axes"]
    """True for transitions, false for padding."""
    absorbed: Bool[Array, "*axes"] | None = None
    """For independent draws only: draws that fell after the end of their episode. No action matters
    there, so they are padding, but they count in the size of the batch."""


def zero_padding(batch: Batch) -> Batch:
    """The batch with zeros in its padding, so that no computation there overflows or yields NaN."""
    zeroed = jax.tree.map(lambda values: where_mask(batch.mask, values), batch)
    return dataclasses.replace(zeroed, absorbed=batch.absorbed)
