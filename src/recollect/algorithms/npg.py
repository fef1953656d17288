"""Natural policy gradient, vanilla (VNPG) and with reuse of past trajectories (RNPG).

Algorithm 1 of the paper.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from recollect.algorithms.ascent import AbstractAscent
from recollect.algorithms.base import initial_state
from recollect.algorithms.naming import named
from recollect.algorithms.natural import (
    AbstractNatural,
    estimate_fisher,
    forget_unusable_fisher,
    with_usable,
)
from recollect.algorithms.reuse import choose_shares, estimate_advantages, refit_critic
from recollect.algorithms.update import (
    UpdateStart,
    begin,
    common_failures,
    describe,
    finish,
    keep_or_revert,
)
from recollect.checks import check_number
from recollect.estimate.gradient import policy_gradient
from recollect.memory.history import History
from recollect.memory.rows import Window
from recollect.policies import AbstractPolicy
from recollect.refusals import SEARCH, UNSOLVED
from recollect.step.trust_region import Search, backtrack, corrected_length, divergence
from recollect.tree import flatten

SHRINK = 0.7
"""By what a step that is still too long is multiplied, where measured corrections did not do."""
SHORTENINGS = 10
"""How often."""


class NaturalState(eqx.Module):
    """What NPG keeps beside the common state."""

    optimizer: Any
    """State of the Optax transformation."""
    direction: Float[Array, " d"]
    """The last direction, from which conjugate gradients may start."""
    fisher_history: History | None
    """A window of independent batches for the Fisher matrix, if asked for (assumption A.1.7)."""


class NaturalInfo(eqx.Module):
    """What NPG measures beside the common figures."""

    gradient_norm: Float[Array, ""]
    """Of the reweighed gradient."""
    direction_norm: Float[Array, ""]
    """Of the natural direction."""
    solver_residual: Float[Array, ""]
    """Relative residual of the natural-gradient system."""
    solver_steps: Int[Array, ""]
    """Fisher products that conjugate gradients took."""
    damping: Float[Array, ""]
    """ε in use."""
    step_length: Float[Array, ""] | None = None
    """Share of the step that the bound on the KL has left; 1 where it left all, None without a
    bound."""


class NPG(AbstractAscent, AbstractNatural):
    """θ ← Proj(θ + α (F̂ + εI)⁻¹ ∇̂η(θ)), Equation (6).

    Gradient and Fisher matrix each have a window of their own. A step whose KL is above `target_kl`
    is shortened.

    Example:
        >>> import recollect as rc
        >>> rc.NPG(window=5) == rc.RNPG(window=5)
        True
    """

    learning_rate: float | Callable[[Int[Array, ""]], Float[Array, ""]] = 0.3
    """α: a number, or (in Python) an Optax schedule of the iteration."""
    target_kl: float | None = 0.05
    """Largest KL(π_n ‖ π) of a step, over the states that TRPO takes it; a longer step is
    shortened. None for no bound, as in the paper."""

    def __check_init__(self):
        if self.target_kl is not None:
            remedy = "give the largest KL of a step, for example 0.05, or None for no bound"
            check_number("target_kl", self.target_kl, low=0, open_low=True, remedy=remedy)

    def init(self, policy, batch, key):
        θ, _ = flatten(policy)
        own = NaturalState(
            optimizer=self.transformation().init(θ),
            direction=jnp.zeros_like(θ),
            fisher_history=self.empty_fisher_history(batch, policy),
        )
        return initial_state(self, policy, batch, key, own)

    def update(self, state, rollout, key):
        start = begin(self, state, rollout, self.target_kl)
        advantages, estimates = estimate_advantages(self, start)
        critic = refit_critic(self, start, estimates, key)
        chosen = choose_shares(self, start, advantages)
        window = start.rows.window(chosen.shares)
        gradient = self.scaled(policy_gradient(window, advantages))
        estimate = estimate_fisher(
            self, start, window, rollout, state.policy, state.own.fisher_history
        )
        start = with_usable(start, estimate.usable)
        solution = self.solver(estimate.fisher, gradient, self.damping, state.own.direction)
        policy, optimizer = self.ascend(
            start.state, state.own.optimizer, solution.direction, chosen.step_scale
        )
        policy, bounded = self._within_bound(start, window, policy)

        failures = [
            *common_failures(start.usable, gradient, solution.direction, policy),
            (UNSOLVED, ~solution.solved),
            *([] if bounded is None else [(SEARCH, ~bounded.found)]),
        ]
        old = (state.policy, state.own.optimizer, state.own.direction)
        new = (policy, optimizer, solution.direction)
        (policy, optimizer, direction), refused = keep_or_revert(old, new, failures)

        measured = NaturalInfo(
            gradient_norm=jnp.linalg.norm(gradient),
            direction_norm=jnp.linalg.norm(solution.direction),
            solver_residual=solution.residual,
            solver_steps=solution.steps,
            damping=jnp.asarray(self.damping),
            step_length=None if bounded is None else bounded.length,
        )
        info = describe(start, chosen, policy, estimates, refused, measured)
        own = NaturalState(
            optimizer=optimizer,
            direction=direction,
            fisher_history=forget_unusable_fisher(estimate.history, refused),
        )
        return finish(start, chosen, refused, policy=policy, critic=critic, own=own), info

    def _within_bound(
        self, start: UpdateStart, window: Window, policy: AbstractPolicy
    ) -> tuple[AbstractPolicy, Search | None]:
        """The policy on the way to `policy` that is no further away than the bound allows."""
        bound = self.target_kl
        if bound is None:
            return policy, None
        θ, unflatten = flatten(start.state.policy)
        step = flatten(policy)[0] - θ
        along = lambda length: self.project(unflatten(θ + length * step))
        spent = lambda length: divergence(window, start.reference, along(length))
        longest = corrected_length(spent, jnp.ones(()), bound, longest=1.0)
        search = backtrack(lambda length: spent(length) <= bound, longest, SHRINK, SHORTENINGS)
        return along(search.length), search


VNPG = named(
    "VNPG",
    NPG,
    """Vanilla natural policy gradient: only the current iteration's trajectories.

    Args:
        settings: the fields of `NPG`, by name.

    Returns:
        An `NPG`.

    Example:
        >>> import recollect as rc
        >>> rc.VNPG(damping=0.01).windows
        (1, 1)
    """,
    window=1,
    fisher_window=1,
)
RNPG = named(
    "RNPG",
    NPG,
    """Natural policy gradient that reuses the last `window` iterations.

    The Fisher matrix reuses the last `fisher_window`, as many as the gradient if not given.

    Args:
        settings: the fields of `NPG`, by name.

    Returns:
        An `NPG`.

    Example:
        >>> import recollect as rc
        >>> rc.RNPG(window=20, fisher_window=5).windows
        (20, 5)
    """,
    window=5,
)
