"""A Gaussian over continuous actions, with a mean from a network and a log-std of its own."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PRNGKeyArray

from recollect.checks import check_count
from recollect.policies.networks import mlp
from recollect.policies.policy import AbstractHead, Policy


class Gaussian(AbstractHead):
    """a ~ N(outputs, exp(log_std)²), the same spread in every state."""

    log_std: Float[Array, "*rank out"]

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Float[Array, " out"]:
        return outputs + jnp.exp(self.log_std) * jax.random.normal(key, outputs.shape)

    def log_prob(self, outputs: Float[Array, " out"], action: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(norm.logpdf((action - outputs) * jnp.exp(-self.log_std)) - self.log_std)

    def mode(self, outputs: Float[Array, " out"]) -> Float[Array, " out"]:
        return outputs

    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(self.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e))

    def kl(self, outputs: Float[Array, " out"], other: "Gaussian", other_outputs: Float[Array, " out"]) -> Float[Array, ""]:
        spread = jnp.exp(2 * (self.log_std - other.log_std))
        distance = ((outputs - other_outputs) * jnp.exp(-other.log_std)) ** 2
        return jnp.sum(other.log_std - self.log_std + 0.5 * (spread + distance - 1))

    def fisher_root(self, outputs: Float[Array, " out"]) -> tuple["Gaussian", Float[Array, "rank out"]]:
        """The Fisher matrix of N(μ, σ²) by (μ, log σ) is diag(1/σ², 2)."""
        eye, zero = jnp.eye(outputs.size), jnp.zeros((outputs.size, outputs.size))
        on_mean = jnp.concatenate([eye * jnp.exp(-self.log_std), zero])
        return Gaussian(jnp.concatenate([zero, 2**0.5 * eye])), on_mean


def gaussian_policy(
    key: PRNGKeyArray,
    observation_size: int,
    action_size: int,
    widths: Sequence[int] = (32,),
    activation: str = "relu",
    log_std: float = 0.0,
) -> Policy:
    """A Gaussian over an MLP, first with mean near zero and standard deviation exp(`log_std`)."""
    check_count("action_size", action_size)
    return Policy(mlp(key, observation_size, action_size, widths, activation), Gaussian(jnp.full(action_size, log_std)))
