"""How far to go along a natural direction: as far as the KL divergence allows, then back until it
pays.

The trust region is KL(π_n ‖ π) averaged over states. A policy ratio corrects which actions were
taken, not which states were visited, so the average is over states as they were met, unweighted:
once over those of the newest batch, which the current policy visited itself, and once over those
of the whole window, which are more. A step must pass both: the newest states alone are few, and
the window alone has states that the policy has left behind.

The states are also those that the direction was made from, and the KL is larger on others. So the
mean over the window has to stay inside by three standard errors, taken between trajectories.
`benchmarks/trust_region.py` measures what that is worth on fresh states.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from recollect.step.solve import Solution


class Search(eqx.Module):
    """Where a backtracking search ended."""

    length: Float[Array, ""]
    """Multiple of the direction; meaningful only if `found`."""
    backtracks: Int[Array, ""]
    found: Bool[Array, ""]


def length_to_radius(solution: Solution, radius: Float[Array, ""] | float) -> Float[Array, ""]:
    """t such that ½ t² xᵀ(F + εI)x = radius: the step whose KL, to second order, is at most the
    radius."""
    curvature = solution.direction @ solution.product
    # Zero where the gradient is zero, or so small that its square underflows.
    return jnp.sqrt(2 * radius / jnp.maximum(curvature, jnp.finfo(curvature.dtype).tiny))


def backtrack(
    passes: Callable[[Float[Array, ""]], Bool[Array, ""]],
    length: Float[Array, ""],
    shrink: Float[Array, ""] | float,
    most: int,
) -> Search:
    """The first of `length`, `length`·shrink, `length`·shrink², … that passes, after at most
    `most` shortenings."""

    def try_next(search):
        shorter = Search(search.length * shrink, search.backtracks + 1, jnp.array(False))
        return Search(shorter.length, shorter.backtracks, passes(shorter.length))

    first = Search(length, jnp.zeros((), jnp.int32), passes(length))
    return lax.while_loop(
        lambda search: ~search.found & (search.backtracks < most), try_next, first
    )
