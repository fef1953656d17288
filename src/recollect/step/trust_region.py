"""How far to go along a direction: as far as the KL divergence allows, then back until it pays.

The trust region is KL(π_n ‖ π) averaged over states. A policy ratio corrects which actions were
taken, not which states were visited, so the average is over states as they were met, unweighted:
once over those of the newest batch, which the current policy visited itself, and once over those
of the whole window, which are more. A step must stay inside by both: the newest states alone are
few, and the window alone has states that the policy has left behind.

Other trajectories have another mean, and few of them tell little of it: that of eight is off by a
quarter on CartPole-v1. So a mean may be as large as the radius, but three standard errors more,
taken between trajectories, no larger than 1.2 radii; for the newest, which the window holds as
well, two more. `benchmarks/trust_region.py` measures what that is worth on fresh states: hardly a
step in a hundred beyond 1.5 radii.

How long a step may be is measured, not computed: the quadratic form of the Fisher matrix is off
where it is damped, and where it was estimated from other states than the KL.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from recollect.memory.rows import Window
from recollect.memory.weights import positive
from recollect.policies import AbstractPolicy
from recollect.step.solve import Solution

MARGIN = 3.0
"""Standard errors that the mean KL of the window may be wrong by: the 99 % quantile of Student's t
distribution for eight trajectories. One alone tells no error."""
NEWEST_MARGIN = 2.0
"""The same for the mean of the newest batch."""
SLACK = 1.2
"""How many radii the KL may be if the mean is wrong by so much."""
AIM = 0.95
"""Share of the radius that a corrected length aims at."""
ENOUGH = 0.9
"""Share of the radius from which on a length is not corrected any more."""
CORRECTIONS = 6
"""How often the length is corrected at most."""
LARGEST_CORRECTION = 10.0
"""By what a correction multiplies or divides the length at most."""


class Search(eqx.Module):
    """Where a backtracking search ended."""

    length: Float[Array, ""]
    """Multiple of the direction; meaningful only if `found`."""
    backtracks: Int[Array, ""]
    found: Bool[Array, ""]


def divergence(window: Window, old: AbstractPolicy, new: AbstractPolicy) -> Float[Array, ""]:
    """The KL divergence KL(old ‖ new) that is held against the radius; infinite if it is no number.

    Args:
        window: whose states are averaged over.
        old: the policy that the step is measured from.
        new: the policy after the step.
    """
    rows = window.rows
    kls = jax.vmap(lambda observation: old.kl(new, observation))(rows.observations[: window.bound])
    newest = _with_margin(rows.window(jnp.ones(1)).average(kls), NEWEST_MARGIN)
    whole = _with_margin(window.average(kls), MARGIN)
    largest = jnp.maximum(newest, whole)
    return jnp.where(jnp.isnan(largest), jnp.inf, largest)


def _with_margin(
    average: tuple[Float[Array, ""], Float[Array, ""]], errors: float
) -> Float[Array, ""]:
    """What has to stay within the radius so that the mean does, and `errors` standard errors more
    stay within the slack."""
    mean, error = average
    return jnp.maximum(mean, (mean + errors * error) / SLACK)


def length_to_radius(solution: Solution, radius: Float[Array, ""] | float) -> Float[Array, ""]:
    """t such that ½ t² xᵀ(F + εI)x = radius: the step whose KL, to second order, is at most the
    radius."""
    curvature = solution.direction @ solution.product
    # Zero where the gradient is zero, or so small that its square underflows.
    return jnp.sqrt(2 * radius / jnp.maximum(curvature, jnp.finfo(curvature.dtype).tiny))


def corrected_length(
    divergence: Callable[[Float[Array, ""]], Float[Array, ""]],
    guess: Float[Array, ""],
    radius: Float[Array, ""] | float,
    longest: Float[Array, ""] | float,
) -> Float[Array, ""]:
    """The length at which the divergence is about the radius, or the longest one allowed.

    A divergence grows with the square of a short step, so t ← t √(radius / divergence(t)) until
    it is a little below the radius.

    Args:
        divergence: of the step of a length.
        guess: where to begin.
        radius: of the trust region.
        longest: which no length exceeds.
    """

    def settled(length, spent):
        used = (spent >= ENOUGH * radius) | (length >= longest)
        return used & (spent <= radius)

    def correct(carry):
        length, spent, corrections = carry
        # Of a step of nothing, rounding may leave a divergence below zero.
        factor = jnp.sqrt(AIM * radius / positive(spent))
        length *= jnp.clip(factor, 1 / LARGEST_CORRECTION, LARGEST_CORRECTION)
        length = jnp.minimum(length, longest)
        return length, divergence(length), corrections + 1

    guess = jnp.minimum(guess, longest)
    length, _, _ = lax.while_loop(
        lambda carry: ~settled(*carry[:2]) & (carry[2] < CORRECTIONS),
        correct,
        (guess, divergence(guess), jnp.zeros((), jnp.int32)),
    )
    return length


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
