"""The one shape in which data travels: a batch of transitions, padded and masked."""

import dataclasses

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int, Shaped

from recollect.tree import where_mask


class Batch(eqx.Module):
    """Transitions of one iteration; every array begins with the axes `episode, time`.

    An entry of the first axis is one episode, one copy of the environment, or (with a single time)
    one independent draw. Where `mask` is false the entry is padding and its content has no meaning.
    `terminated` (the environment ended) and `truncated` (we stopped watching) stay apart, and
    `next_observations` is the true successor even where a new episode begins right after.
    """

    observations: Float[Array, "..."]
    actions: Shaped[Array, "..."]
    log_probs: Float[Array, "*axes"]
    """log π(a|s) under the policy that acted, which importance weights divide by."""
    rewards: Float[Array, "*axes"]
    next_observations: Float[Array, "..."]
    terminated: Bool[Array, "*axes"]
    truncated: Bool[Array, "*axes"]
    times: Int[Array, "*axes"]
    """Steps since the episode began, for weighting states by γ^t."""
    mask: Bool[Array, "*axes"]
    absorbed: Bool[Array, "*axes"] | None = None
    """Draws that fell after the end of their episode, for independent draws only: padding, since no action
    mattered there, that still counts in the size of the batch."""


def zero_padding(batch: Batch) -> Batch:
    """The batch with zeros in its padding, so that nothing computed there can be non-finite."""
    zeroed = jax.tree.map(lambda values: where_mask(batch.mask, values), batch)
    return dataclasses.replace(zeroed, absorbed=batch.absorbed)
