"""A whole algorithm of one's own: V-MPO (Song et al. 2020, arXiv 1909.12238), on the public names.

    recollect train examples/vmpo.py:VMPO CartPole-v1 --environment-steps 50000

It needs neither a Fisher matrix nor a clip. Of the window, the better half of the advantages is
taken, weighed by exp(A / η), and the policy made more likely to act so, held near the one before by
a multiple α of the KL divergence. Temperature η and multiplier α are learned by their dual losses.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import recollect as rc
from recollect.extend import (
    BATCH,
    PARAMETERS,
    all_finite,
    begin,
    choose_shares,
    describe,
    estimate_advantages,
    finish,
    flatten,
    initial_state,
    keep_or_revert,
    refit_critic,
)


class VMPOState(eqx.Module):
    """What V-MPO keeps beside the common state."""

    optimizer: optax.OptState
    log_temperature: jax.Array
    log_multiplier: jax.Array


class VMPOInfo(eqx.Module):
    """Curves of its own."""

    temperature: jax.Array
    multiplier: jax.Array


class VMPO(rc.AbstractAlgorithm):
    """Maximum a posteriori policy optimisation with a state-value function."""

    advantages: rc.AbstractAdvantages = rc.VTrace()
    learning_rate: float = 1e-3
    gradient_steps: int = eqx.field(static=True, default=20)
    """Gradient steps over the whole window at each iteration."""
    target_temperature: float = 0.1
    """ε_η: how far the weights exp(A / η) may be from even ones, as a KL divergence."""
    target_kl: float = 0.01
    """ε_α: how far the policy may move."""

    def _optimizer(self):
        return optax.adam(self.learning_rate)

    def init(self, policy, batch, key):
        learned = (flatten(policy)[0], jnp.zeros(()), jnp.zeros(()))
        own = VMPOState(self._optimizer().init(learned), *learned[1:])
        return initial_state(self, policy, batch, key, own)

    def update(self, state, rollout, key):
        start = begin(self, state, rollout)
        advantages, estimates = estimate_advantages(self, start)
        critic = refit_critic(self, start, estimates, key)
        chosen_shares = choose_shares(self, start, advantages)
        rows = start.rows
        window = rows.window(chosen_shares.shares)
        counted = window.coefficients()
        real = counted > 0
        # The better half of what counts.
        middle = jnp.nanmedian(jnp.where(real, advantages, jnp.nan))
        chosen = jnp.where(real & (advantages >= middle), counted, 0)
        share = chosen / jnp.maximum(chosen.sum(), 1e-8)
        θ, unflatten = flatten(start.state.policy)

        def loss(learned):
            θ, log_temperature, log_multiplier = learned
            η = jnp.exp(log_temperature)
            α = jnp.exp(log_multiplier)
            policy = unflatten(θ)
            # L_η = η ε + η log Σ share exp(A / η); its weights ψ are constants to the policy.
            scaled = jnp.where(chosen > 0, advantages / η, -jnp.inf)
            temperature_loss = η * (self.target_temperature + jax.nn.logsumexp(scaled, b=share))
            ψ = jax.lax.stop_gradient(share * jnp.exp(scaled - jax.nn.logsumexp(scaled, b=share)))
            log_probs = jax.vmap(policy.log_prob)(rows.observations, rows.actions)
            kls = jax.vmap(lambda s: start.reference.kl(policy, s))(rows.observations)
            kl, _ = window.average(kls)
            held = jax.lax.stop_gradient(α) * kl
            multiplier_loss = α * (self.target_kl - jax.lax.stop_gradient(kl))
            return held - jnp.sum(ψ * log_probs) + temperature_loss + multiplier_loss

        def step(carry, _):
            learned, optimizer = carry
            updates, optimizer = self._optimizer().update(jax.grad(loss)(learned), optimizer)
            return (optax.apply_updates(learned, updates), optimizer), None

        first = ((θ, state.own.log_temperature, state.own.log_multiplier), state.own.optimizer)
        (learned, optimizer), _ = jax.lax.scan(step, first, length=self.gradient_steps)
        new = (self.project(unflatten(learned[0])), VMPOState(optimizer, *learned[1:]))
        failures = [(BATCH, ~start.usable), (PARAMETERS, ~all_finite(new))]
        (policy, own), refused = keep_or_revert((state.policy, state.own), new, failures)
        measured = VMPOInfo(jnp.exp(own.log_temperature), jnp.exp(own.log_multiplier))
        info = describe(start, chosen_shares, policy, estimates, refused, measured)
        return finish(start, chosen_shares, refused, policy=policy, critic=critic, own=own), info
