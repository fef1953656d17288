"""Proximal policy optimisation, vanilla (PPO) and with reuse of past trajectories (RPPO).

Section 5.4 of the paper.
"""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from recollect.algorithms.ascent import PERSISTENCE, AbstractAscent
from recollect.algorithms.base import initial_state
from recollect.algorithms.naming import named
from recollect.algorithms.pg import AscentState
from recollect.algorithms.reuse import choose_shares, estimate_advantages, refit_critic
from recollect.algorithms.update import (
    UpdateStart,
    begin,
    common_failures,
    describe,
    finish,
    keep_or_revert,
)
from recollect.checks import check_count, check_number
from recollect.estimate.evidence import clipped
from recollect.estimate.gradient import policy_gradient
from recollect.estimate.metric import InverseFisher
from recollect.keys import stream
from recollect.memory.rows import Window
from recollect.memory.weights import positive
from recollect.minibatches import Indices, sweep
from recollect.policies import AbstractPolicy
from recollect.refusals import MINIBATCH
from recollect.step.surrogate import clipped_surrogate
from recollect.tree import all_finite, flatten

ClipCentre = Literal["one", "current"]
norm = jnp.linalg.norm
METRIC_DAMPING = 0.1
"""Of the Fisher matrix by which a rule of shares compares gradients: the default of NPG."""


class ClipInfo(eqx.Module):
    """What PPO measures beside the common figures."""

    gradient_norm: Float[Array, ""]
    """Of the reweighed gradient at the policy that the update began with."""
    direction_norm: Float[Array, ""]
    """Of the whole change of θ."""
    gradient_steps: Int[Array, ""]
    """Minibatch steps, fewer than planned if the update stopped early."""
    clip_fraction_by_age: Float[Array, " age"]
    """Share of transitions of each age that the clip takes out of the gradient, at the end of the
    update; 0 for ages that had no share in it."""


class PPO(AbstractAscent):
    """Several epochs of minibatch ascent on the mean of min(r A, clip(r) A) over the window.

    r = π(a|s) / μ(a|s), where μ acted. The paper clips r around 1, as for a fresh sample. An old
    one may start outside, where the clip takes it out at once if its advantage points further
    out. `clip_centre="current"` clips around π_n(a|s) / μ(a|s) instead, the ratio that the update
    begins with, so that every sample has the same room to move (Queeney et al. 2021, "Generalized
    proximal policy optimization with sample reuse").

    Example:
        >>> import recollect as rc
        >>> rc.PPO(clip=0.1, epochs=4).window
        1
    """

    learning_rate: float | Callable[[Int[Array, ""]], Float[Array, ""]] = 3e-4
    """α of every minibatch step: a number, or (in Python) an Optax schedule of the iteration."""
    optimizer: str | optax.GradientTransformation = eqx.field(static=True, default="adam")
    """`sgd`, `adam`, `adam:EPSILON`, or (in Python) any Optax transformation that descends; α
    multiplies its updates."""
    clip: float = 0.2
    """ε: how far a ratio may move before its sample is clipped; infinite for no clip."""
    clip_centre: ClipCentre = eqx.field(static=True, default="one")
    """Clip around `one`, as the paper prints it, or around the ratio of the `current` policy to the
    one that acted."""
    epochs: int = eqx.field(static=True, default=10)
    """Sweeps over the window at each iteration; over the newest batch, as far as the number of
    steps goes, with shares that have `steps_of_newest`."""
    minibatch: int = eqx.field(static=True, default=256)
    """Transitions in a minibatch step, at most."""
    entropy: float = 0.0
    """Weight of the mean entropy, added to the surrogate."""
    target_kl: float | None = None
    """Stop the update when the mean KL(π_n ‖ π) over a minibatch exceeds this; without it,
    never."""
    max_gradient_norm: float = 0.5
    """A longer gradient of a minibatch is scaled down to this Euclidean norm."""

    def __check_init__(self):
        check_count("epochs", self.epochs)
        check_count("minibatch", self.minibatch)
        remedy = "give how far ratios may move, for example 0.2"
        check_number("clip", self.clip, low=0, open_low=True, infinite=True, remedy=remedy)
        remedy = "give the weight of the entropy bonus, 0 for none"
        check_number("entropy", self.entropy, low=0, remedy=remedy)
        if self.target_kl is not None:
            remedy = "give the KL at which to stop, or leave it out"
            check_number("target_kl", self.target_kl, low=0, open_low=True, remedy=remedy)
        remedy = "give a length above 0, or infinity"
        longest = self.max_gradient_norm
        check_number(
            "max_gradient_norm", longest, low=0, open_low=True, infinite=True, remedy=remedy
        )

    @property
    def persistence(self):
        return PERSISTENCE

    def metric(self, rows):
        """That of a natural step: the clip bounds how far probabilities move, not parameters."""
        return InverseFisher.of(rows, METRIC_DAMPING)

    def init(self, policy, batch, key):
        own = AscentState(optimizer=self.transformation().init(flatten(policy)[0]))
        return initial_state(self, policy, batch, key, own)

    def update(self, state, rollout, key):
        start = begin(self, state, rollout)
        advantages, estimates = estimate_advantages(self, start)
        critic = refit_critic(self, start, estimates, key)
        chosen = choose_shares(self, start, advantages)
        window = start.rows.window(chosen.shares)
        gradient = self.scaled(policy_gradient(window, advantages))
        θ, unflatten = flatten(start.state.policy)
        rate = chosen.step_scale * self.rate(state.iteration).astype(θ.dtype)
        transformation = self.transformation()
        # Taken out of the loop over minibatches, which would compute them at every step.
        state_weights = window.state_weights
        coverage = window.coverage()
        most = self._most_steps(start)

        def step(carry, indices, real):
            θ, optimizer, steps, _ = carry
            weights = jnp.where(real, state_weights[indices], 0)
            surrogate = lambda θ: self._surrogate(
                unflatten(θ), start, window, advantages, indices, weights, coverage
            )
            slope, kl = jax.grad(surrogate, has_aux=True)(θ)
            slope = slope * jnp.minimum(1, self.max_gradient_norm / positive(norm(slope)))
            updates, after = transformation.update(-slope, optimizer, θ)
            sound = all_finite(slope)
            go_on = sound & (True if self.target_kl is None else kl <= self.target_kl)
            further = flatten(self.project(unflatten(θ + rate * jnp.asarray(updates))))[0]
            new = (further, after, steps + 1)
            kept = jax.tree.map(lambda new, old: jnp.where(go_on, new, old), new, carry[:3])
            return (*kept, sound), go_on & (steps + 1 < most)

        first = (θ, state.own.optimizer, jnp.zeros((), jnp.int32), jnp.array(True))
        end, optimizer, steps, sound = sweep(
            stream(key, "minibatches"),
            state_weights > 0,
            self.epochs,
            self.minibatch,
            step,
            first,
        )
        failures = [
            *common_failures(start.usable, gradient, end - θ, unflatten(end)),
            (MINIBATCH, ~sound),
        ]
        old = (state.policy, state.own)
        new = (unflatten(end), AscentState(optimizer=optimizer))
        (policy, own), refused = keep_or_revert(old, new, failures)

        measured = ClipInfo(
            gradient_norm=norm(gradient),
            direction_norm=norm(end - θ),
            gradient_steps=steps,
            clip_fraction_by_age=self._clip_fraction_by_age(policy, window, advantages),
        )
        info = describe(start, chosen, policy, estimates, refused, measured)
        return finish(start, chosen, refused, policy=policy, critic=critic, own=own), info

    def _most_steps(self, start: UpdateStart) -> Int[Array, ""] | float:
        """How many minibatch steps an update takes at most: what `epochs` gives, unless the rule of
        shares wants those of the newest batch."""
        if not self.shares.steps_of_newest:
            return float("inf")
        newest = start.rows.packing.counts[0]
        return self.epochs * -(-newest // self.minibatch)

    def _ratios(self, policy: AbstractPolicy, window: Window, indices: Indices):
        """π / μ, with any truncation of the weights that the update began with; and the clip's
        centre."""
        rows = window.rows
        log_prob = jax.vmap(policy.log_prob)
        log_probs = log_prob(rows.observations[indices], rows.actions[indices])
        weights = window.weights[indices]
        centre = jnp.ones_like(weights) if self.clip_centre == "one" else weights
        return weights * jnp.exp(log_probs - rows.log_probs[indices]), centre

    def _surrogate(
        self,
        policy: AbstractPolicy,
        start: UpdateStart,
        window: Window,
        advantages: Float[Array, " row"],
        indices: Indices,
        state_weights: Float[Array, " sample"],
        coverage: Float[Array, ""],
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """What a minibatch step ascends, and the mean KL from the policy that the update began
        with."""
        rows = window.rows
        ratio, centre = self._ratios(policy, window, indices)
        terms = clipped_surrogate(ratio, centre, advantages[indices], self.clip)
        observations = rows.observations[indices]
        mean = lambda values: jnp.sum(state_weights * values) / positive(state_weights.sum())
        denominator = rows.rule.denominator(window.weights[indices], state_weights)
        surrogate = jnp.sum(state_weights * terms) / denominator * coverage
        bonus = lax.cond(
            self.entropy > 0,
            lambda: self.entropy * mean(jax.vmap(policy.entropy)(observations)),
            lambda: jnp.zeros(()),
        )
        kl = jnp.zeros(())
        if self.target_kl is not None:
            kl = mean(jax.vmap(lambda s: start.reference.kl(policy, s))(observations))
        return self.scaled(surrogate) + bonus, kl

    def _clip_fraction_by_age(
        self, policy: AbstractPolicy, window: Window, advantages: Float[Array, " row"]
    ) -> Float[Array, " age"]:
        ratio, centre = self._ratios(policy, window, slice(window.bound))
        out = clipped(ratio, centre, advantages, self.clip) & (window.state_weights > 0)
        packing = window.rows.packing
        by_age = packing.unpack(out.astype(advantages.dtype)).sum((1, 2))
        return by_age / jnp.maximum(packing.counts[: len(by_age)], 1)


RPPO = named(
    "RPPO",
    PPO,
    """PPO that reuses the last `window` iterations.

    Args:
        settings: the fields of `PPO`, by name.

    Returns:
        A `PPO`.

    Example:
        >>> import recollect as rc
        >>> rc.RPPO(window=4, epochs=5).epochs
        5
    """,
    window=5,
)
