"""What an update makes of its window: advantages, a fitted critic, and the share of each age."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recollect.algorithms.base import AbstractAlgorithm, State
from recollect.algorithms.update import UpdateStart
from recollect.batch import Batch
from recollect.estimate.advantages import Estimates, in_units_of
from recollect.estimate.critic import Values
from recollect.estimate.evidence import evidence_of
from recollect.estimate.gradient import policy_gradient
from recollect.estimate.shares import ChosenShares
from recollect.keys import stream
from recollect.policies import AbstractPolicy
from recollect.tree import all_finite, where_mask


def estimate_advantages(
    algorithm: AbstractAlgorithm, start: UpdateStart
) -> tuple[Float[Array, " newest"], Estimates]:
    """Advantages of the newest `window` batches.

    Returns:
        The advantages as rows, and the estimates with values and targets as they were made.
    """
    packing = start.rows.packing
    window = min(algorithm.window, len(packing.counts))
    batches = jax.tree.map(lambda x: x[:window], start.state.history.batches)
    log_ratio = packing.unpack(start.rows.log_ratio)[:window]
    estimates = _estimates(algorithm, start.state, batches, log_ratio)
    if algorithm.shares.in_newest_units and window > 1:
        newest = jax.tree.map(lambda x: x[:1], (batches, log_ratio))
        alone = _estimates(algorithm, start.state, *newest).advantages
        advantages = in_units_of(alone, estimates.advantages, batches.mask)
        estimates = dataclasses.replace(estimates, advantages=advantages)
    bound, _ = packing.prefix(window)
    older = len(packing.counts) - window
    advantages = jnp.pad(estimates.advantages, ((0, older), (0, 0), (0, 0)))
    return packing.rows(advantages)[:bound], estimates


def _estimates(
    algorithm: AbstractAlgorithm,
    state: State,
    batches: Batch,
    log_ratio: Float[Array, "window episode time"],
) -> Estimates:
    return algorithm.advantages(batches, state.policy, algorithm.discount, log_ratio, state.critic)


def refit_critic(
    algorithm: AbstractAlgorithm, start: UpdateStart, estimates: Estimates, key: PRNGKeyArray
) -> Values | None:
    """The critic fitted to the targets of its window; None if there is none.

    Args:
        algorithm: the settings.
        start: holds the critic as it is.
        estimates: which therefore have to be made first.
        key: of the order of minibatches.
    """
    critic = start.state.critic
    if critic is None:
        return None
    batches = jax.tree.map(lambda x: x[: algorithm.window], start.state.history.batches)
    targets = estimates.targets
    if algorithm.critic_window is not None:
        batches = jax.tree.map(lambda x: x[: algorithm.critic_window], start.stored.batches)
        log_ratio = _log_ratio(start.state.policy, batches)
        targets = _estimates(algorithm, start.state, batches, log_ratio).targets
    key_critic = stream(key, "critic")
    return algorithm.critic.refit(critic, batches.observations, targets, batches.mask, key_critic)


def _log_ratio(policy: AbstractPolicy, batches: Batch) -> Float[Array, "window episode time"]:
    """log π(a|s) / μ(a|s) of all transitions, zero in padding."""
    log_prob = jax.vmap(jax.vmap(jax.vmap(policy.log_prob)))
    log_probs = log_prob(batches.observations, batches.actions)
    return where_mask(batches.mask, log_probs - batches.log_probs)


def choose_shares(
    algorithm: AbstractAlgorithm, start: UpdateStart, advantages: Float[Array, " newest"]
) -> ChosenShares:
    """How much each age of the window counts, with what the rule remembers of it.

    The memory is of what was seen, and also moves where the step is refused: else a rule whose
    shares make a step fail would choose them again. It stays as it was if the newest batch could
    not be stored, or a number in it would not be finite.

    Args:
        algorithm: the settings.
        start: where the update starts.
        advantages: of the rows of the window.
    """
    metric = lambda: algorithm.metric(start.rows)
    evidence = evidence_of(start.rows, advantages, metric, algorithm.persistence)
    before = start.state.share_memory
    chosen = algorithm.shares(evidence, before)
    sound = start.usable & all_finite(chosen.memory)
    keep = lambda new, old: jnp.where(sound, new, old)
    return dataclasses.replace(chosen, memory=jax.tree.map(keep, chosen.memory, before))


def reweighed_gradient(algorithm: AbstractAlgorithm, start: UpdateStart) -> Float[Array, " d"]:
    """The gradient that an update would take from there, Equation (3)."""
    advantages, _ = estimate_advantages(algorithm, start)
    shares = choose_shares(algorithm, start, advantages).shares
    return policy_gradient(start.rows.window(shares), advantages)
