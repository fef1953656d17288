"""Proximal policy optimisation, vanilla (PPO) and with reuse of past trajectories (RPPO), section 5.4 of the paper."""

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from recollect.algorithms.base import (
    MINIBATCH,
    AbstractAscent,
    Optimizer,
    Rate,
    Start,
    accept,
    begin,
    check_settings,
    common_failures,
    describe,
    finish,
    initial_state,
    judge,
    reweighed_gradient,
)
from recollect.checks import check_count, check_name, check_number
from recollect.estimate.advantages import Advantages
from recollect.memory.rows import Recall
from recollect.minibatches import Rows, sweep
from recollect.policies import AbstractPolicy
from recollect.step.surrogate import clipped_surrogate, silenced
from recollect.tree import all_finite, flatten

ClipCentre = Literal["one", "current"]


class PPO(AbstractAscent):
    """Several epochs of minibatch ascent on the mean of min(r A, clip(r) A) over the window, where r = π(a|s) / μ(a|s) and μ acted.

    The paper clips r around 1, as for a fresh sample. An old one may start outside, where the clip silences
    it at once if its advantage points further out. `clip_centre="current"` clips around π_n(a|s) / μ(a|s)
    instead, the ratio that the update begins with, so that every sample has the same room to move
    (Queeney et al. 2021, "Generalized proximal policy optimization with sample reuse").
    """

    advantages: Advantages = Advantages("vtrace", "critic", standardise=True)
    learning_rate: Rate = 3e-4
    """α of every minibatch step: a number, or (in Python) an Optax schedule of the iteration."""
    optimizer: Optimizer = eqx.field(static=True, default="adam")
    """`sgd`, `adam`, `adam:EPSILON`, or (in Python) any Optax transformation that descends; α multiplies its updates."""
    clip: float = 0.2
    """ε: how far a ratio may move before its sample is silenced; infinite for no clip."""
    clip_centre: ClipCentre = eqx.field(static=True, default="one")
    """Clip around `one`, as the paper prints it, or around the ratio of the `current` policy to the one that acted."""
    epochs: int = eqx.field(static=True, default=10)
    """Sweeps over the window at each iteration."""
    minibatch: int = eqx.field(static=True, default=256)
    """Transitions in a minibatch step, at most."""
    entropy: float = 0.0
    """Weight of the mean entropy, added to the surrogate."""
    target_kl: float | None = None
    """Stop the update when the mean KL(π_n ‖ π) over a minibatch exceeds this; without it, never."""
    max_gradient_norm: float = 0.5
    """A longer gradient of a minibatch is scaled down to this Euclidean norm."""

    def __check_init__(self):
        check_settings(self)
        check_name("clip_centre", self.clip_centre, get_args(ClipCentre))
        check_count("epochs", self.epochs)
        check_count("minibatch", self.minibatch)
        check_number(
            "clip",
            self.clip,
            low=0,
            open_low=True,
            infinite=True,
            remedy="give how far ratios may move, for example 0.2",
        )
        check_number(
            "entropy",
            self.entropy,
            low=0,
            remedy="give the weight of the entropy bonus, 0 for none",
        )
        if self.target_kl is not None:
            check_number(
                "target_kl",
                self.target_kl,
                low=0,
                open_low=True,
                remedy="give the KL at which to stop, or leave it out",
            )
        check_number(
            "max_gradient_norm",
            self.max_gradient_norm,
            low=0,
            open_low=True,
            infinite=True,
            remedy="give a length above 0, or infinity",
        )

    def init(self, policy, batch, key):
        return initial_state(self, policy, batch, key, self.window)

    def update(self, state, batch, key, oracle=None, fisher_batch=None):
        del fisher_batch
        key_critic, key_sweep = jax.random.split(key)
        start = begin(self, state, batch, oracle)
        advantages, estimates, critic = judge(self, start.state, start.recalled, oracle, key_critic)
        gradient = self.scaled(reweighed_gradient(self, start.recalled, advantages))
        θ, unflatten = flatten(start.state.policy)
        rate, transformation = self.rate(state.iteration).astype(θ.dtype), self.transformation()

        def step(carry, rows, real):
            θ, optimizer, steps, _ = carry
            surrogate = lambda θ: self._surrogate(unflatten(θ), start, advantages, rows, real)
            slope, kl = jax.grad(surrogate, has_aux=True)(θ)
            slope = slope * jnp.minimum(
                1,
                self.max_gradient_norm
                / jnp.maximum(jnp.linalg.norm(slope), jnp.finfo(θ.dtype).tiny),
            )
            updates, moved = transformation.update(-slope, optimizer, θ)
            sound = all_finite(slope)
            go_on = sound & (True if self.target_kl is None else kl <= self.target_kl)
            after = (
                flatten(self.project(unflatten(θ + rate * jnp.asarray(updates))))[0],
                moved,
                steps + 1,
            )
            kept = jax.tree.map(lambda new, old: jnp.where(go_on, new, old), after, carry[:3])
            return (*kept, sound), go_on

        first = (θ, start.state.optimizer, jnp.zeros((), jnp.int32), jnp.array(True))
        real = start.recalled.importance > 0
        end, optimizer, steps, sound = sweep(
            key_sweep, real, self.epochs, self.minibatch, step, first
        )
        moved = (unflatten(end), optimizer)
        failures = [
            *common_failures(start.usable, gradient, end - θ, moved[0]),
            (MINIBATCH, ~sound),
        ]
        (policy, optimizer), refused = accept((state.policy, state.optimizer), moved, failures)

        told = dict(
            gradient_steps=steps,
            silenced_by_age=self._silenced_by_age(policy, start.recalled, advantages),
        )
        info = describe(start, policy, gradient, end - θ, estimates, refused, **told)
        return finish(start, refused, policy=policy, optimizer=optimizer, critic=critic), info

    def _ratios(self, policy: AbstractPolicy, recalled: Recall, rows: Rows):
        """π / μ, with any truncation of the weights that the update began with; and the centre of the clip."""
        log_probs = jax.vmap(policy.log_prob)(recalled.observations[rows], recalled.actions[rows])
        weights = recalled.weights[rows]
        centre = jnp.ones_like(weights) if self.clip_centre == "one" else weights
        return weights * jnp.exp(log_probs - recalled.log_probs[rows]), centre

    def _surrogate(
        self,
        policy: AbstractPolicy,
        start: Start,
        advantages: Float[Array, " row"],
        rows: Rows,
        real: Bool[Array, " sample"],
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """What a minibatch step ascends, and the mean KL from the policy that the update began with."""
        recalled = start.recalled
        ratio, centre = self._ratios(policy, recalled, rows)
        terms = clipped_surrogate(ratio, centre, advantages[rows], self.clip)
        importance = jnp.where(real, recalled.importance[rows], 0)
        observations = recalled.observations[rows]
        mean = lambda values: (
            jnp.sum(importance * values)
            / jnp.maximum(importance.sum(), jnp.finfo(values.dtype).tiny)
        )
        surrogate = jnp.sum(importance * terms) / recalled.rule.normaliser(
            recalled.weights[rows], importance
        )
        surrogate = surrogate * recalled.coverage(self.window)
        bonus = lax.cond(
            self.entropy > 0,
            lambda: self.entropy * mean(jax.vmap(policy.entropy)(observations)),
            lambda: jnp.zeros(()),
        )
        kl = (
            jnp.zeros(())
            if self.target_kl is None
            else mean(jax.vmap(lambda s: start.reference.kl(policy, s))(observations))
        )
        return self.scaled(surrogate) + bonus, kl

    def _silenced_by_age(
        self, policy: AbstractPolicy, recalled: Recall, advantages: Float[Array, " row"]
    ) -> Float[Array, " window"]:
        out = silenced(*self._ratios(policy, recalled, slice(None)), advantages, self.clip) & (
            recalled.importance > 0
        )
        return recalled.packing.unpack(out.astype(advantages.dtype)).sum((1, 2)) / jnp.maximum(
            recalled.packing.counts, 1
        )


def RPPO(window: int = 5, **settings) -> PPO:
    """PPO that reuses the last `window` iterations."""
    return PPO(window=window, **settings)
