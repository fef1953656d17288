"""What collecting gives, and the interface of what collects."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.batch import Batch
from recollect.envs.base import AbstractEnv
from recollect.policies import AbstractPolicy
from recollect.settings import Settings


class Rollout(eqx.Module):
    """A batch, and what a reader of learning curves wants to know of it."""

    batch: Batch
    returns: Float[Array, "*seed ending"]
    """Undiscounted returns of the episodes that ended, in the order in which they did, among NaN
    for those that did not. For independent draws R(s, a) / (1 − γ), whose mean estimates η."""
    lengths: Float[Array, "*seed ending"]
    """Steps of these episodes, NaN where `returns` is; for independent draws those of the walk."""
    environment_steps: Int[Array, "*seed"]
    iteration: Int[Array, "*seed"] | None = None
    """How many updates the policy that acted had had; None if whoever collected does not know."""
    figures: Mapping[str, Float[Array, "*seed ending"]] = eqx.field(default_factory=dict)
    """What environments said of these episodes in their infos, NaN where `returns` is."""
    fisher_batch: Batch | None = None
    """A second, independent batch of the same policy for the Fisher matrix alone, if the algorithm
    asks for one (assumption A.1.7)."""

    @classmethod
    def of(cls, batch: Batch, fisher_batch: Batch | None = None) -> "Rollout":
        """A batch that was made elsewhere, of which nothing else is known."""
        return cls(
            batch=batch,
            returns=jnp.full(1, jnp.nan),
            lengths=jnp.full(1, jnp.nan),
            environment_steps=batch.mask.sum(),
            fisher_batch=fisher_batch,
        )

    def with_fisher(self, other: "Rollout") -> "Rollout":
        """Together with an independent rollout, whose batch is for the Fisher matrix alone."""
        steps = self.environment_steps + other.environment_steps
        return dataclasses.replace(self, environment_steps=steps, fisher_batch=other.batch)


class AbstractCollector(Settings, eqx.Module):
    """How a batch is gathered. `init` makes what is carried from one iteration to the next."""

    def init(self, key: PRNGKeyArray, env: AbstractEnv) -> Any:
        """What the first call is given as `carry`.

        Nothing, unless episodes go on between batches.
        """
        del key, env
        return None

    @abc.abstractmethod
    def __call__(
        self,
        key: PRNGKeyArray,
        env: AbstractEnv,
        policy: AbstractPolicy,
        carry: Any,
        discount: Float[Array, ""] | float,
    ) -> tuple[Any, Rollout]:
        """A batch of transitions under `policy`."""


def with_log_probs(policy: AbstractPolicy, batch: Batch) -> Batch:
    """Fill in the behaviour log-probabilities, all at once rather than one step at a time."""
    log_probs = jax.vmap(jax.vmap(policy.log_prob))(batch.observations, batch.actions)
    return eqx.tree_at(lambda batch: batch.log_probs, batch, log_probs)
