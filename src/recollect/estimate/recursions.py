"""Sums over the rest of an episode: returns, and the corrections of V-trace.

They run as associative scans over time, O(N log T) operations but only log T passes.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.batch import Batch
from recollect.tree import where_mask


def vtrace(
    batches: Batch,
    values: Float[Array, "*row time"],
    next_values: Float[Array, "*row time"],
    discount: Float[Array, ""] | float,
    trace_decay: Float[Array, ""] | float,
    rho: Float[Array, "*row time"],
    c: Float[Array, "*row time"],
) -> tuple[Float[Array, "*row time"], Float[Array, "*row time"]]:
    """A_t and v_t − V(s_t), the lines at the top of `advantages.py`, with `trace_decay` = γλ."""
    mask = batches.mask
    next_values = jnp.where(batches.terminated, 0, next_values)
    δ = where_mask(mask, batches.rewards + discount * next_values - values)
    ended = batches.terminated | batches.truncated | ~mask
    decay = jnp.where(ended, 0, trace_decay).astype(δ.dtype)
    corrections = discounted_sums(rho * δ, decay * c)
    following = jnp.concatenate(
        [corrections[..., 1:], jnp.zeros_like(corrections[..., :1])], axis=-1
    )
    return δ + decay * following, corrections


def returns_to_go(
    rewards: Float[Array, "*row time"],
    ended: Bool[Array, "*row time"],
    mask: Bool[Array, "*row time"],
    discount: Float[Array, ""] | float,
) -> Float[Array, "*row time"]:
    """R_t = r_t + γ R_{t+1}, which stops at the end of an episode and of the batch.

    Nothing is bootstrapped.
    """
    decay = jnp.where(ended | ~mask, 0, discount).astype(rewards.dtype)
    return discounted_sums(where_mask(mask, rewards), decay)


def discounted_sums(
    terms: Float[Array, "*row time"], decay: Float[Array, "*row time"]
) -> Float[Array, "*row time"]:
    """x_t = terms_t + decay_t x_{t+1}."""

    def then(later, sooner):
        decay_later, value_later = later
        decay_sooner, value_sooner = sooner
        return decay_sooner * decay_later, value_sooner + decay_sooner * value_later

    # Time goes first, so that the scan combines whole rows of memory.
    elements = jnp.moveaxis(decay, -1, 0), jnp.moveaxis(terms, -1, 0)
    return jnp.moveaxis(jax.lax.associative_scan(then, elements, reverse=True)[1], 0, -1)
