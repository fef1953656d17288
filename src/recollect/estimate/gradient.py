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


def gradient_by_age(rows: Rows, advantages: Float[Array, " newest"]) -> Float[Array, "age d"]:
    """Σ ω s A ∇log π / S_j over the rows of each age, so that Σ_j α_j g_j is the gradient.

    (Up to the denominator of the weight rule, which may look at all ages at once.)

    Args:
        rows: all that is stored, weighed by the current policy.
        advantages: A of the rows of the newest ages; their number says how many ages are asked for.
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

    totals = weight_by_age(rows)[:ages]
    sums = lax.map(one, (starts, ends))
    return sums / jnp.where(totals > 0, totals, 1)[:, None]
