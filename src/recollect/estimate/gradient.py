"""The reweighed policy gradient, Equation (3), over the window and from each age alone."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from recollect.memory.rows import Rows, Window, weight_by_age
from recollect.policies.chunks import fold


def policy_gradient(window: Window, advantages: Float[Array, " newest"]) -> Float[Array, " d"]:
    """Σ_i c_i A_i ∇log π(a_i|s_i), where the c_i are importance weights over their denominator.

    Args:
        window: rows with their weights, and the share of each age.
        advantages: A of every row of the window.

    Returns:
        The gradient, in the order of `flatten`. `examples/vmpo.py` shows how an update comes to a
        window and its advantages.
    """
    scores = window.rows.scores.states(0, window.bound)
    terms = window.coefficients() * advantages
    return fold(lambda scores, u: scores.pull(u), scores, terms, window.count)


def gradient_by_age(
    rows: Rows, advantages: Float[Array, " newest"], youngest: int = 0
) -> Float[Array, "age d"]:
    """Σ ω s A ∇log π / S_j over the rows of each age, so that Σ_j α_j g_j is the gradient.

    (Up to the denominator of the weight rule, which may look at all ages at once.)

    Args:
        rows: all that is stored, weighed by the current policy.
        advantages: A of the rows of the newest ages; their number says how many ages are asked for.
        youngest: the first age that is asked for.
    """
    packing = rows.packing
    size = packing.per_batch
    ages = len(advantages) // size
    terms = rows.weights[: len(advantages)] * rows.state_weights[: len(advantages)] * advantages
    starts = jnp.cumsum(packing.counts)[:ages] - packing.counts[:ages]
    if packing.source is None:
        starts = jnp.arange(ages) * size
    ends = starts + (size if packing.source is None else packing.counts[:ages])

    def one(span: tuple[Int[Array, ""], Int[Array, ""]]) -> Float[Array, " d"]:
        start, end = span
        at = start + jnp.arange(size)
        # Where packed rows of an age are fewer than a batch may have, the next age follows.
        own = jnp.where(at < end, terms[at], 0)
        return rows.scores.states(start, size).pull(own)

    totals = weight_by_age(rows)[youngest:ages]
    sums = lax.map(one, (starts[youngest:], ends[youngest:]))
    return sums / jnp.where(totals > 0, totals, 1)[:, None]


def gradient_by_half(
    rows: Rows, advantages: Float[Array, " newest"]
) -> tuple[Float[Array, "2 d"], Float[Array, " 2"]]:
    """The gradient from either half of the newest batch, weighed as a window of one batch is.

    A half is made of whole copies (or episodes), as the transitions of one depend on one another;
    only where there is a single copy, of its time.

    Args:
        rows: all that is stored, weighed by the current policy.
        advantages: A of the rows of the newest ages.

    Returns:
        g_a and g_b, and the part of the batch that each half is: g₀ = w_a g_a + w_b g_b.
    """
    packing = rows.packing
    _, episodes, times = packing.shape
    size = packing.per_batch
    half = episodes // 2 * times if episodes > 1 else times // 2
    newest = rows.window(jnp.ones(1))
    state_weights = newest.newest(rows.state_weights)
    terms = newest.newest(newest.weights) * state_weights * advantages[:size]
    # Packed rows of the first half may be fewer than its places, and those of the second follow.
    end = half if packing.source is None else jnp.searchsorted(packing.source[:size], half)
    first = jnp.arange(size) < end
    cut = lambda values: lax.dynamic_slice_in_dim(values, end, size - half)
    sums = jnp.stack(
        [
            rows.scores.states(0, half).pull(jnp.where(first, terms, 0)[:half]),
            rows.scores.states(end, size - half).pull(cut(terms)),
        ]
    )
    part = jnp.sum(state_weights, where=first)
    parts = jnp.stack([part, state_weights.sum() - part])
    shares = parts / jnp.where(parts.sum() > 0, parts.sum(), 1)
    totals = weight_by_age(rows)[0] * shares
    return sums / jnp.where(totals > 0, totals, 1)[:, None], shares
