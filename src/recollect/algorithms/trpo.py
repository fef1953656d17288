"""Trust region policy optimisation, vanilla (TRPO) and with reuse of past trajectories (RTRPO), section 3.3 of the paper."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.algorithms.base import (
    SEARCH,
    SIGNAL,
    UNSOLVED,
    Start,
    accept,
    begin,
    common_failures,
    describe,
    finish,
    judge,
    reweighed_gradient,
)
from recollect.algorithms.natural import AbstractNatural, check_natural, reweighed_fisher
from recollect.checks import check_count, check_number
from recollect.estimate.advantages import Advantages
from recollect.policies import AbstractPolicy
from recollect.step.trust_region import backtrack, length_to_radius
from recollect.tree import flatten

CAUTION_UP, CAUTION_DOWN, CAUTION_MOST = 4.0, 0.5, 1e6
"""By what a failed line search multiplies the damping, by what a successful one does until it is back, and its largest multiple."""
MARGIN = 3.0
"""Standard errors by which the mean KL has to stay inside the trust region; one trajectory alone tells no error."""


class TRPO(AbstractNatural):
    """θ ← Proj(θ + t (F̂ + εI)⁻¹ ∇̂η(θ)) with the longest t tried that keeps KL(π_n ‖ π) within `target_kl` and improves the surrogate.

    The surrogate is Σ c_i A_i π(a_i|s_i) / π_n(a_i|s_i) over the window, where c_i are the importance weights of the gradient
    divided by their normaliser. Over which states the KL is taken is told in `trust_region.py`.
    """

    advantages: Advantages = Advantages("vtrace", "critic", standardise=True)
    target_kl: float = 0.01
    """δ: radius of the trust region."""
    decay: float = 0.0
    """β: the radius in iteration n = 1, 2, … is δ n^−β. Steps are as long as the radius even when the gradient is only noise."""
    max_length: float = float("inf")
    """Longest multiple of the natural direction. Steps then shrink as the gradient does, if advantages are not standardised."""
    backtracks: int = eqx.field(static=True, default=10)
    """How often the line search may shorten the step before it gives up."""
    shrink: float = 0.7
    """By what it multiplies the step each time."""

    def __check_init__(self):
        check_natural(self)
        check_number(
            "target_kl",
            self.target_kl,
            low=0,
            open_low=True,
            remedy="give the largest KL of a step, for example 0.01",
        )
        check_number(
            "decay",
            self.decay,
            low=0,
            remedy="give the exponent of n^-decay, 0 for a constant radius",
        )
        check_number(
            "max_length",
            self.max_length,
            low=0,
            open_low=True,
            infinite=True,
            remedy="give a multiple above 0, or leave it out",
        )
        check_count("backtracks", self.backtracks, "give how often the step may be shortened")
        check_number(
            "shrink",
            self.shrink,
            low=0,
            high=1,
            open_low=True,
            open_high=True,
            remedy="give a number between 0 and 1",
        )

    def update(self, state, batch, key, oracle=None, fisher_batch=None):
        start = begin(self, state, batch, oracle)
        advantages, estimates, critic = judge(self, start.state, start.recalled, oracle, key)
        gradient = reweighed_gradient(self, start.recalled, advantages)
        fisher, start = reweighed_fisher(self, start, state.policy, fisher_batch, oracle)
        damping = self.damping * state.caution
        solution = self.solver(fisher, gradient, damping, state.direction)

        θ, unflatten = flatten(start.state.policy)
        along = lambda length: self.project(unflatten(θ + length * solution.direction))
        radius = self.target_kl * (state.iteration + 1.0) ** -self.decay
        passes = lambda length: self._passes(start, advantages, along(length), radius)
        # The Fisher matrix counts the time after endings, the mean KL does not.
        curved = radius * start.recalled.coverage(self.windows[1])
        longest = jnp.minimum(length_to_radius(solution, curved), self.max_length)
        search = backtrack(passes, longest, self.shrink, self.backtracks)

        moved = (along(search.length), solution.direction)
        failures = [
            *common_failures(start.usable, gradient, solution.direction, moved[0]),
            (SIGNAL, ~gradient.any()),
            (UNSOLVED, ~solution.solved),
            (SEARCH, ~search.found),
        ]
        (policy, direction), refused = accept((state.policy, state.direction), moved, failures)
        # Only the step's own failure asks for more damping, not a batch that held nothing to learn from.
        failed = (refused == SEARCH) | (refused == UNSOLVED)
        factor = jnp.select([refused == 0, failed], [CAUTION_DOWN, CAUTION_UP], 1.0)
        caution = (state.caution * factor).clip(1.0, CAUTION_MOST)

        told = dict(
            solver_residual=solution.residual,
            solver_steps=solution.steps,
            damping=damping,
            backtracks=search.backtracks,
        )
        info = describe(start, policy, gradient, solution.direction, estimates, refused, **told)
        return finish(
            start, refused, policy=policy, critic=critic, direction=direction, caution=caution
        ), info

    def _passes(
        self,
        start: Start,
        advantages: Float[Array, " row"],
        new: AbstractPolicy,
        radius: Float[Array, ""],
    ) -> Bool[Array, ""]:
        """Whether a step improves the surrogate and stays inside the trust region."""
        recalled = start.recalled
        bound, _ = recalled.packing.prefix(self.window)
        observations, actions = recalled.observations[:bound], recalled.actions[:bound]
        change = jax.vmap(new.log_prob)(observations, actions) - recalled.log_probs[:bound]
        gain = jnp.sum(recalled.coefficients(self.window) * advantages * jnp.expm1(change))
        kls = jax.vmap(lambda observation: start.reference.kl(new, observation))(observations)
        (newest, _), (all_states, error) = (
            recalled.average(kls, 1),
            recalled.average(kls, self.window),
        )
        return (gain > 0) & (newest <= radius) & (all_states + MARGIN * error <= radius)


def RTRPO(window: int = 10, fisher_window: int | None = None, **settings) -> TRPO:
    """TRPO that reuses the last `window` iterations (and `fisher_window` for the Fisher matrix)."""
    return TRPO(window=window, fisher_window=fisher_window, **settings)
