"""How an update begins and ends: the newest batch stored and weighed, a failed step taken back, and
what there is to say of it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from recollect.algorithms.base import AbstractAlgorithm, Info, State
from recollect.batch import Batch
from recollect.collect.rollout import Rollout
from recollect.estimate.advantages import Estimates
from recollect.estimate.shares import ChosenShares
from recollect.memory.history import History
from recollect.memory.rows import Rows, recall
from recollect.policies import AbstractPolicy
from recollect.refusals import BATCH, DIRECTION, GRADIENT, PARAMETERS
from recollect.tree import all_finite, flatten

STATISTICS = 0.25
"""Share of a largest KL that new statistics of observations may take."""


class UpdateStart(eqx.Module):
    """Where an update starts, once the newest batch has been stored and weighed."""

    state: State
    """The state with the newest batch in its history, of which only ages in use hold anything, and
    a policy whose statistics include it."""
    stored: History
    """The history with all ages."""
    reference: AbstractPolicy
    """The policy that the step is measured from."""
    usable: Bool[Array, ""]
    """Whether the newest batch could be stored."""
    rows: Rows


def begin(
    algorithm: AbstractAlgorithm,
    state: State,
    rollout: Rollout,
    radius: Float[Array, ""] | float | None = None,
) -> UpdateStart:
    """Store the newest batch, take its observations into the statistics, then weigh all there is.

    Args:
        algorithm: the settings.
        state: before the update.
        rollout: what `state.policy` has collected.
        radius: largest KL of the update, if there is one. New statistics change π; they are then
            taken in only as far as a quarter of it allows, so that something is left for the step.
    """
    history, usable = state.history.push(rollout.batch, state.policy, algorithm.weights)
    newest = jax.tree.map(lambda x: x[0], history.batches)
    observations = newest.observations.reshape(-1, *newest.observations.shape[2:])
    policy, reference = state.policy.seeing(observations, newest.mask.ravel())
    if radius is not None:
        policy = _part_of_the_way(reference, policy, newest, STATISTICS * radius)
    used = in_use(algorithm, history)
    state = dataclasses.replace(state, policy=policy, history=used)
    rows = weigh(algorithm, used, policy)
    return UpdateStart(state=state, stored=history, reference=reference, usable=usable, rows=rows)


def _part_of_the_way(
    old: AbstractPolicy, new: AbstractPolicy, batch: Batch, most: Float[Array, ""] | float
) -> AbstractPolicy:
    """The policy between two that differ in their statistics whose KL(old ‖ ·) is about `most`.

    To second order, the KL grows with the square of the way; `new` itself if it is near enough.
    """
    kl = _mean_kl(old, new, batch)
    part = jnp.where(kl > most, jnp.sqrt(most / kl), 1.0)
    between = lambda old, new: jnp.where(part < 1, old + part * (new - old), new)
    choose = lambda old, new: between(old, new) if eqx.is_inexact_array(new) else new
    return jax.tree.map(choose, old, new)


def _mean_kl(old: AbstractPolicy, new: AbstractPolicy, batch: Batch) -> Float[Array, ""]:
    """KL(old ‖ new), averaged over the states of a batch."""
    kls = jax.vmap(jax.vmap(lambda observation: old.kl(new, observation)))(batch.observations)
    return jnp.sum(kls, where=batch.mask) / jnp.maximum(batch.mask.sum(), 1)


def in_use(algorithm: AbstractAlgorithm, history: History) -> History:
    """The history with nothing in the slots of ages that do not count now."""
    ages = algorithm.shares.ages_in_use()
    if ages is None:
        return history
    return history.without(jnp.arange(len(history.batches.mask)) >= ages)


def weigh(algorithm: AbstractAlgorithm, history: History, policy: AbstractPolicy) -> Rows:
    """All that is stored, weighed by the current policy."""
    discount = algorithm.discount if algorithm.discount_states else None
    return recall(history, policy, algorithm.weights, discount)


def keep_or_revert(old, new, failures: Sequence[tuple[int, Bool[Array, ""]]]):
    """`new`, or `old` bit for bit if there is a failure.

    Args:
        old: pytree of what the update began with.
        new: the same after it.
        failures: pairs of an index into `REFUSALS` and whether that has happened.

    Returns:
        One of both, and the first failure's index into `REFUSALS`, or 0.
    """
    refused = jnp.zeros((), jnp.int32)
    for reason, failed in reversed(failures):
        refused = jnp.where(failed, reason, refused)
    keep = lambda new, old: jnp.where(refused > 0, old, new) if eqx.is_array(new) else new
    return jax.tree.map(keep, new, old), refused


def common_failures(usable, gradient, direction, policy) -> list[tuple[int, Bool[Array, ""]]]:
    """What can go wrong in every algorithm."""
    return [
        (BATCH, ~usable),
        (GRADIENT, ~all_finite(gradient)),
        (DIRECTION, ~all_finite(direction)),
        (PARAMETERS, ~all_finite(flatten(policy)[0])),
    ]


def describe(
    start: UpdateStart,
    chosen: ChosenShares,
    new: AbstractPolicy,
    estimates: Estimates,
    refused: Int[Array, ""],
    own: Any = None,
) -> Info:
    """What there is to say of an update.

    Args:
        start: where it started; the newest batch of its history is the one it was made with.
        chosen: the shares of the ages of its window.
        new: the policy after it.
        estimates: of the advantages.
        refused: why it was refused, or 0.
        own: what the algorithm measured beside that.
    """
    newest = jax.tree.map(lambda x: x[0], start.state.history.batches)
    ess, ess_by_age = start.rows.effective_sample_size()
    explained = None
    if estimates.values is not None:
        explained = _explained(estimates.targets[0], estimates.values[0], newest.mask)
    return Info(
        refused=refused,
        ess=ess,
        ess_by_age=ess_by_age,
        shares=chosen.shares,
        max_weight=start.rows.weights.max(),
        kl=_mean_kl(start.reference, new, newest),
        explained_variance=explained,
        own=own,
        share_report=chosen.report,
    )


def finish(
    start: UpdateStart, chosen: ChosenShares, refused: Int[Array, ""], **changed: Any
) -> State:
    """The state after an update, whose history is without what cannot be used.

    Args:
        start: where it started.
        chosen: the shares of the ages of its window.
        refused: why it was refused, or 0.
        changed: fields of the state that the update has changed.
    """
    return dataclasses.replace(
        start.state,
        **changed,
        history=_forget_unusable(start.stored, start.rows, refused),
        iteration=start.state.iteration + 1,
        share_memory=chosen.memory,
    )


def _forget_unusable(history: History, rows: Rows, refused: Int[Array, ""]) -> History:
    """The history without what made a gradient or a direction non-finite, which would do so again.

    These are the batches whose weights overflow, or else the newest one: the update before did
    without it.
    """
    by_age = rows.packing.unpack(rows.weights).sum((1, 2))
    overflowed = ~jnp.isfinite(by_age)
    newest = jnp.arange(len(overflowed)) == 0
    culprits = jnp.where(overflowed.any(), overflowed, newest)
    return history.without(culprits & ((refused == GRADIENT) | (refused == DIRECTION)))


def _explained(
    targets: Float[Array, "episode time"],
    values: Float[Array, "episode time"],
    mask: Bool[Array, "episode time"],
) -> Float[Array, ""]:
    spread = lambda x: jnp.var(x, where=mask)
    smallest = jnp.finfo(targets.dtype).tiny
    share = spread(targets - values) / jnp.maximum(spread(targets), smallest)
    return jnp.where(mask.any(), 1 - share, 0.0)
