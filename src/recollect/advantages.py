"""Advantage estimates for every transition in the window.

Returns-to-go R_t = Σ_{l≥0} γ^l r_{t+l} do not depend on the current policy, but what is subtracted
from them does: the baselines are refitted over the window at every iteration. The recursion runs as
an associative scan over time, O(N log T) operations but only log T passes.
"""

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.checks import check_name
from recollect.envs.base import AbstractOracle
from recollect.policies import AbstractPolicy
from recollect.types import Batch, where_mask

Estimator = Literal["return", "exact"]
Baseline = Literal["none", "mean", "linear"]
RIDGE = 1e-4
"""Penalty of the linear-quadratic fit, relative to the mean square of each feature."""
PRODUCTS_UP_TO = 16
"""Observations with at most this many features get all products of pairs, larger ones only squares."""


class Advantages(eqx.Module):
    """How advantages are estimated."""

    estimator: Estimator = eqx.field(static=True, default="return")
    """`return`: return-to-go minus the baseline. `exact`: A^π of the current policy, where the environment knows it."""
    baseline: Baseline = eqx.field(static=True, default="mean")
    """Subtracted from returns: nothing, their mean over the window, or a linear-quadratic fit of the value."""
    standardise: bool = eqx.field(static=True, default=False)
    """Shift and scale the advantages in the window to mean 0 and standard deviation 1."""

    def __check_init__(self):
        check_name("estimator", self.estimator, get_args(Estimator))
        check_name("baseline", self.baseline, get_args(Baseline))

    def __call__(
        self, batches: Batch, policy: AbstractPolicy, discount: Float[Array, ""] | float, oracle: AbstractOracle | None
    ) -> Float[Array, "window episode time"]:
        mask = batches.mask
        if self.estimator == "exact":
            if oracle is None:
                raise ValueError(
                    "estimator='exact' needs an environment that knows its advantages; use LQC or Tabular, or estimator='return'."
                )
            exact = lambda observation, action: oracle.advantage(policy, observation, action)
            estimates = jax.vmap(jax.vmap(jax.vmap(exact)))(batches.observations, batches.actions)
        else:
            returns = returns_to_go(batches.rewards, batches.terminated | batches.truncated, mask, discount)
            if self.baseline == "mean":
                returns = returns - _mean(returns, mask)
            elif self.baseline == "linear":
                returns = returns - linear_values(batches.observations, returns, mask)
            estimates = returns
        if self.standardise:
            centred = estimates - _mean(estimates, mask)
            estimates = centred / (jnp.sqrt(_mean(centred**2, mask)) + 1e-8)
        return where_mask(mask, estimates)


def returns_to_go(
    rewards: Float[Array, "*row time"], ended: Bool[Array, "*row time"], mask: Bool[Array, "*row time"], discount: Float[Array, ""] | float
) -> Float[Array, "*row time"]:
    """R_t = r_t + γ R_{t+1}, which stops at the end of an episode and of the batch (nothing is bootstrapped)."""
    rewards = where_mask(mask, rewards)
    decay = jnp.where(ended | ~mask, 0.0, discount).astype(rewards.dtype)

    def then(later, sooner):
        decay_later, value_later = later
        decay_sooner, value_sooner = sooner
        return decay_sooner * decay_later, value_sooner + decay_sooner * value_later

    # Time goes first, so that the scan combines whole rows of memory.
    elements = jnp.moveaxis(decay, -1, 0), jnp.moveaxis(rewards, -1, 0)
    return jnp.moveaxis(jax.lax.associative_scan(then, elements, reverse=True)[1], 0, -1)


def linear_values(
    observations: Float[Array, "*row feature"], returns: Float[Array, "*row"], mask: Bool[Array, "*row"]
) -> Float[Array, "*row"]:
    """Ridge regression of returns on 1, the observation and its products of pairs."""
    features = where_mask(mask, _quadratic(observations.reshape(-1, observations.shape[-1])).reshape(*mask.shape, -1))
    flat, targets = features.reshape(-1, features.shape[-1]), where_mask(mask, returns).reshape(-1)
    gram = flat.T @ flat
    penalty = RIDGE * jnp.diagonal(gram) + jnp.finfo(gram.dtype).tiny ** 0.5
    coefficients = jax.scipy.linalg.solve(gram + jnp.diag(penalty), flat.T @ targets, assume_a="pos")
    return features @ coefficients


def _quadratic(observations: Float[Array, "row feature"]) -> Float[Array, "row column"]:
    size = observations.shape[-1]
    rows, columns = jnp.triu_indices(size) if size <= PRODUCTS_UP_TO else (jnp.arange(size), jnp.arange(size))
    products = observations[:, rows] * observations[:, columns]
    return jnp.concatenate([jnp.ones_like(observations[:, :1]), observations, products], axis=1)


def _mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, ""]:
    return jnp.sum(values, where=mask) / jnp.maximum(mask.sum(), 1)
