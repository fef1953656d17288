"""Mixture weights: the current policy over the mixture of all policies in the window.

A ratio π/μ judges an action by the one policy that took it, and is large where that policy was
unlikely to. The balance heuristic asks how likely the window as a whole was to produce the action,
whichever batch it is in. The newest batch comes from the current policy, so that no weight exceeds
one over its share. (Where a normaliser has new statistics, the current policy is no longer quite
the one that acted; each policy is stored with its own.)

Cost: the last K policies are stored, and for each of the N transitions its density under each of
them, K·N numbers. A new batch asks its policy about all stored transitions, and the K − 1 older
policies about the new ones: two passes of the network over the window an update, without gradients.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PyTree, Shaped

from recollect.batch import Batch
from recollect.envs.base import AbstractOracle
from recollect.memory.weights import AbstractWeightRule, log_occupancies
from recollect.policies import AbstractPolicy
from recollect.tree import where_mask

Table = Float[Array, "window episode time policy"]
"""A number of each stored transition under each stored policy, both newest first."""


class MixtureMemory(eqx.Module):
    """What the mixture of policies needs to know of the stored batches."""

    policies: PyTree[Shaped[Array, "window ..."]]
    """The arrays of the policies that acted, statistics of observations included."""
    log_ratios: Table
    """log π_m(a|s) / μ(a|s), where μ acted in the transition's own batch, π_m in that of age m."""


class OccupancyMixtureMemory(eqx.Module):
    """The same, and how often each policy visits the states."""

    mixture: MixtureMemory
    log_occupancies: Table
    """log d^{π_m}(s)."""


class Mixture(AbstractWeightRule):
    """ω = π(a|s) / Σ_m α_m π_m(a|s), where π_m acted in the batch of age m and α_m is its share.

    The balance heuristic of multiple importance sampling: Veach and Guibas (1995), "Optimally
    combining sampling techniques for Monte Carlo rendering"; Owen and Zhou (2000), "Safe and
    effective importance sampling". ω ≤ 1/α₀. As the policy ratio, it corrects which actions were
    taken, not which states were visited.

    Example:
        >>> import recollect as rc
        >>> rc.RNPG(window=10, weights=rc.Mixture()).weights
        Mixture()
    """

    def init(self, batches, policy):
        return _empty(batches, policy)

    def remember(self, memory, batches, policy):
        return _remember(memory, batches, policy)

    def by_transition(self, memory):
        return memory.log_ratios

    @property
    def remembers_across_batches(self):
        return True

    def weights(self, view):
        return jnp.exp(view.log_ratio - logsumexp(view.memory, axis=-1, b=view.shares))


class OccupancyMixture(AbstractWeightRule):
    """ω = d^π(s, a) / Σ_m α_m d^{π_m}(s, a), for environments that know their occupancy measure.

    The balance heuristic for states and actions: unbiased, as `OccupancyRatio`, if the current
    policy did not depend on the stored transitions, and with less variance.

    Example:
        >>> import recollect as rc
        >>> exact = dict(advantages=rc.ExactAdvantages(), weights=rc.OccupancyMixture())
        >>> rc.RNPG(window=3, discount=0.5, **exact).weights.oracle is None  # `train` binds it
        True
    """

    oracle: AbstractOracle | None = None
    """The environment, which `train` fills in."""

    def init(self, batches, policy):
        mixture = _empty(batches, policy)
        return OccupancyMixtureMemory(mixture, jnp.zeros_like(mixture.log_ratios))

    def remember(self, memory, batches, policy):
        mixture = _remember(memory.mixture, batches, policy)
        visits = lambda policy, batch: where_mask(
            batch.mask, log_occupancies(self.oracle, policy, batch.observations)
        )
        table = _extended(memory.log_occupancies, mixture.policies, batches, policy, visits)
        return OccupancyMixtureMemory(mixture, table)

    def by_transition(self, memory):
        return (memory.mixture.log_ratios, memory.log_occupancies)

    @property
    def remembers_across_batches(self):
        return True

    def weights(self, view):
        log_ratios, _ = view.memory
        log_mixture = logsumexp(log_ratios + self._log_visits(view), axis=-1, b=view.shares)
        return jnp.exp(view.log_ratio - log_mixture)

    def occupancy_ratio(self, view):
        return jnp.exp(-logsumexp(self._log_visits(view), axis=-1, b=view.shares))

    def _log_visits(self, view) -> Float[Array, "row policy"]:
        """log d^{π_m}(s) / d^π(s) of every row and stored policy."""
        _, before = view.memory
        return before - log_occupancies(self.oracle, view.policy, view.observations)[:, None]


def _empty(batches: Batch, policy: AbstractPolicy) -> MixtureMemory:
    window = len(batches.mask)
    room = lambda x: jnp.zeros((window, *x.shape), x.dtype)
    policies = jax.tree.map(room, eqx.filter(policy, eqx.is_array))
    log_ratios = jnp.zeros((*batches.log_probs.shape, window), batches.log_probs.dtype)
    return MixtureMemory(policies, log_ratios)


def _remember(memory: MixtureMemory, batches: Batch, policy: AbstractPolicy) -> MixtureMemory:
    push = lambda new, old: jnp.concatenate([new[None], old[:-1]])
    policies = jax.tree.map(push, eqx.filter(policy, eqx.is_array), memory.policies)
    table = _extended(memory.log_ratios, policies, batches, policy, _log_ratio)
    # What acted in the newest batch is told by its own log-probabilities.
    return MixtureMemory(policies, table.at[0, ..., 0].set(0))


def _log_ratio(policy: AbstractPolicy, batch: Batch) -> Float[Array, "*batch"]:
    """log π(a|s) / μ(a|s) of every transition; zero in padding."""
    log_prob = policy.log_prob
    for _ in batch.mask.shape:
        log_prob = jax.vmap(log_prob)
    return where_mask(batch.mask, log_prob(batch.observations, batch.actions) - batch.log_probs)


def _extended(
    table: Table,
    policies: PyTree[Shaped[Array, "window ..."]],
    batches: Batch,
    policy: AbstractPolicy,
    look: Callable[[AbstractPolicy, Batch], Float[Array, "*batch"]],
) -> Table:
    """The table with what a new batch and its policy add: one block of rows and one column.

    Args:
        table: as it was before.
        policies: arrays of the stored policies, the new one first.
        batches: the stored batches, the new one first.
        policy: the new one.
        look: what the table holds, of a policy and all transitions of a batch.
    """
    column = look(policy, batches)
    newest = jax.tree.map(lambda x: x[0], batches)
    static = eqx.filter(policy, eqx.is_array, inverse=True)
    older = jax.tree.map(lambda x: x[1:], policies)
    block = jax.vmap(lambda one: look(eqx.combine(one, static), newest), out_axes=-1)(older)
    # Batches and policies all become older by one; the oldest of both are forgotten.
    kept = jnp.concatenate([block[None], table[:-1, ..., :-1]])
    return jnp.concatenate([column[..., None], kept], axis=-1)
