"""Trust region policy optimisation, vanilla (TRPO) and with reuse of past trajectories (RTRPO).

Section 3.3 of the paper.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from recollect.algorithms.base import initial_state
from recollect.algorithms.naming import named
from recollect.algorithms.natural import (
    AbstractNatural,
    estimate_fisher,
    forget_unusable_fisher,
    with_usable,
)
from recollect.algorithms.reuse import choose_shares, estimate_advantages, refit_critic
from recollect.algorithms.update import begin, common_failures, describe, finish, keep_or_revert
from recollect.checks import check_count, check_number
from recollect.estimate.gradient import policy_gradient
from recollect.memory.history import History
from recollect.refusals import SEARCH, SIGNAL, UNSOLVED
from recollect.step.surrogate import surrogate_gain
from recollect.step.trust_region import (
    backtrack,
    corrected_length,
    divergence,
    length_to_radius,
)
from recollect.tree import flatten

DAMPING_UP = 4.0
"""By what a failed line search multiplies the damping."""
DAMPING_DOWN = 0.5
"""By what a successful one does, until it is back."""
DAMPING_MOST = 1e6
"""Largest multiple of the damping."""


class TrustRegionState(eqx.Module):
    """What TRPO keeps beside the common state."""

    direction: Float[Array, " d"]
    """The last direction, from which conjugate gradients may start."""
    damping_scale: Float[Array, ""]
    """What the damping is multiplied by: above 1 after line searches that failed."""
    fisher_history: History | None
    """A window of independent batches for the Fisher matrix, if asked for (assumption A.1.7)."""


class TrustRegionInfo(eqx.Module):
    """What TRPO measures beside the common figures."""

    gradient_norm: Float[Array, ""]
    """Of the reweighed gradient."""
    direction_norm: Float[Array, ""]
    """Of the natural direction."""
    solver_residual: Float[Array, ""]
    """Relative residual of the natural-gradient system."""
    solver_steps: Int[Array, ""]
    """Fisher products that conjugate gradients took."""
    damping: Float[Array, ""]
    """ε in use; above the setting after line searches that failed."""
    backtracks: Int[Array, ""]
    """How often the line search shortened the step, which began as long as the radius allows."""
    step_length: Float[Array, ""]
    """Multiple of the natural direction that was tried last."""


class TRPO(AbstractNatural):
    """The natural direction x = (F̂ + εI)⁻¹ ∇̂η, as far as the trust region allows.

    θ ← Proj(θ + t x) with the longest t tried that keeps KL(π_n ‖ π) within `target_kl` and
    improves the surrogate, Σ c_i A_i π(a_i|s_i) / π_n(a_i|s_i) over the window, where c_i are the
    importance weights of the gradient over their denominator. `trust_region.py` tells over which
    states the KL is taken.

    Example:
        >>> import recollect as rc
        >>> rc.TRPO(target_kl=0.02, damping=0.1).window
        1
    """

    target_kl: float = 0.005
    """δ: radius of the trust region, most of which every step takes."""
    radius_decay: float = 0.0
    """β: the radius in iteration n = 1, 2, … is δ n^−β. Steps are as long as the radius even when
    the gradient is only noise."""
    max_length: float = float("inf")
    """Longest multiple of the natural direction. Steps then shrink as the gradient does, if
    advantages are not standardised."""
    backtracks: int = eqx.field(static=True, default=10)
    """How often the line search may shorten the step before it gives up."""
    shrink: float = 0.7
    """By what it multiplies the step each time."""

    def __check_init__(self):
        remedy = "give the largest KL of a step, for example 0.01"
        check_number("target_kl", self.target_kl, low=0, open_low=True, remedy=remedy)
        remedy = "give the exponent of n^-radius_decay, 0 for a constant radius"
        check_number("radius_decay", self.radius_decay, low=0, remedy=remedy)
        remedy = "give a multiple above 0, or leave it out"
        check_number(
            "max_length", self.max_length, low=0, open_low=True, infinite=True, remedy=remedy
        )
        check_count("backtracks", self.backtracks, "give how often the step may be shortened")
        remedy = "give a number between 0 and 1"
        check_number(
            "shrink", self.shrink, low=0, high=1, open_low=True, open_high=True, remedy=remedy
        )

    def init(self, policy, batch, key):
        own = TrustRegionState(
            direction=jnp.zeros_like(flatten(policy)[0]),
            damping_scale=jnp.ones(()),
            fisher_history=self.empty_fisher_history(batch, policy),
        )
        return initial_state(self, policy, batch, key, own)

    def update(self, state, rollout, key):
        radius = self.target_kl * (state.iteration + 1.0) ** -self.radius_decay
        start = begin(self, state, rollout, radius)
        advantages, estimates = estimate_advantages(self, start)
        critic = refit_critic(self, start, estimates, key)
        chosen = choose_shares(self, start, advantages)
        window = start.rows.window(chosen.shares)
        radius = radius * chosen.step_scale**2
        gradient = policy_gradient(window, advantages)
        estimate = estimate_fisher(
            self, start, window, rollout, state.policy, state.own.fisher_history
        )
        start = with_usable(start, estimate.usable)
        damping = self.damping * state.own.damping_scale
        solution = self.solver(estimate.fisher, gradient, damping, state.own.direction)

        θ, unflatten = flatten(start.state.policy)
        along = lambda length: self.project(unflatten(θ + length * solution.direction))
        spent = lambda length: divergence(window, start.reference, along(length))
        improves = lambda length: surrogate_gain(window, advantages, along(length)) > 0
        passes = lambda length: improves(length) & (spent(length) <= radius)
        # The Fisher matrix counts the time after endings, the mean KL does not.
        guess = length_to_radius(solution, radius * estimate.window.coverage())
        longest = corrected_length(spent, guess, radius, self.max_length)
        search = backtrack(passes, longest, self.shrink, self.backtracks)

        policy = along(search.length)
        failures = [
            *common_failures(start.usable, gradient, solution.direction, policy),
            (SIGNAL, ~gradient.any()),
            (UNSOLVED, ~solution.solved),
            (SEARCH, ~search.found),
        ]
        old = (state.policy, state.own.direction)
        new = (policy, solution.direction)
        (policy, direction), refused = keep_or_revert(old, new, failures)
        # Only the step's own failure asks for more damping, not a batch that held nothing to learn
        # from.
        failed = (refused == SEARCH) | (refused == UNSOLVED)
        factor = jnp.select([refused == 0, failed], [DAMPING_DOWN, DAMPING_UP], 1.0)

        measured = TrustRegionInfo(
            gradient_norm=jnp.linalg.norm(gradient),
            direction_norm=jnp.linalg.norm(solution.direction),
            solver_residual=solution.residual,
            solver_steps=solution.steps,
            damping=damping,
            backtracks=search.backtracks,
            step_length=search.length,
        )
        info = describe(start, chosen, policy, estimates, refused, measured)
        own = TrustRegionState(
            direction=direction,
            damping_scale=(state.own.damping_scale * factor).clip(1.0, DAMPING_MOST),
            fisher_history=forget_unusable_fisher(estimate.history, refused),
        )
        return finish(start, chosen, refused, policy=policy, critic=critic, own=own), info


RTRPO = named(
    "RTRPO",
    TRPO,
    """TRPO that reuses the last `window` iterations.

    The Fisher matrix reuses the last `fisher_window`, as many as the gradient if not given.

    Args:
        settings: the fields of `TRPO`, by name.

    Returns:
        A `TRPO`.

    Example:
        >>> import recollect as rc
        >>> rc.RTRPO(window=20, target_kl=0.02).windows
        (20, 20)
    """,
    window=5,
)
