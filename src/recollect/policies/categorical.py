"""Distributions over finitely many actions: softmax of the outputs, or the outputs themselves."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.checks import check_count
from recollect.policies.networks import mlp, table
from recollect.policies.policy import AbstractHead, Policy


class Softmax(AbstractHead):
    """π(a) ∝ exp(outputs_a)."""

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Int[Array, ""]:
        return _sample(key, jax.nn.softmax(outputs))

    def log_prob(self, outputs: Float[Array, " out"], action: Int[Array, ""]) -> Float[Array, ""]:
        return _pick(jax.nn.log_softmax(outputs), action)

    def mode(self, outputs: Float[Array, " out"]) -> Int[Array, ""]:
        return jnp.argmax(outputs)

    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        return -jnp.sum(jax.nn.softmax(outputs) * jax.nn.log_softmax(outputs))

    def kl(self, outputs: Float[Array, " out"], other: "Softmax", other_outputs: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(jax.nn.softmax(outputs) * (jax.nn.log_softmax(outputs) - jax.nn.log_softmax(other_outputs)))

    def fisher_root(self, outputs: Float[Array, " out"]) -> tuple["Softmax", Float[Array, "rank out"]]:
        """Rows √π_a (e_a − π): the scores of all actions, each weighed by its probability."""
        π = jax.nn.softmax(outputs)
        return self, jnp.sqrt(π)[:, None] * (jnp.eye(π.size) - π)


class Probabilities(AbstractHead):
    """π(a) = outputs_a: the direct parameterisation, to be kept on the simplex by projection."""

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Int[Array, ""]:
        return _sample(key, outputs)

    def log_prob(self, outputs: Float[Array, " out"], action: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.log(_pick(outputs, action))

    def mode(self, outputs: Float[Array, " out"]) -> Int[Array, ""]:
        return jnp.argmax(outputs)

    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(jax.scipy.special.entr(outputs))

    def kl(self, outputs: Float[Array, " out"], other: "Probabilities", other_outputs: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(jax.scipy.special.rel_entr(outputs, other_outputs))

    def fisher_root(self, outputs: Float[Array, " out"]) -> tuple["Probabilities", Float[Array, "rank out"]]:
        """∇log π(a) = e_a / π_a, so the Fisher matrix is diag(1/π)."""
        return self, jnp.diag(1 / jnp.sqrt(outputs))


def _pick(values: Float[Array, " out"], action: Int[Array, ""]) -> Float[Array, ""]:
    # A sum against the one-hot action; gathering one entry for each sample would leave the vector units idle.
    return jnp.sum(jnp.where(jnp.arange(values.size) == action, values, 0))


def _sample(key: PRNGKeyArray, probabilities: Float[Array, " out"]) -> Int[Array, ""]:
    # Inverse distribution function: one uniform draw an action, however many actions there are.
    ceiling = jnp.cumsum(probabilities)[:-1]
    return jnp.sum(jax.random.uniform(key) * probabilities.sum() >= ceiling, dtype=jnp.int32)


def softmax_policy(
    key: PRNGKeyArray, observation_size: int, action_count: int, widths: Sequence[int] = (32,), activation: str = "relu"
) -> Policy:
    """Softmax over an MLP; the default is the paper's network read as one hidden layer of 32."""
    check_count("action_count", action_count)
    return Policy(mlp(key, observation_size, action_count, widths, activation), Softmax())


def tabular_softmax_policy(observation_size: int, action_count: int) -> Policy:
    """Softmax over a table of preferences θ_{s,a}, uniform at first."""
    return Policy(table(jnp.zeros((observation_size, action_count))), Softmax())


def tabular_direct_policy(observation_size: int, action_count: int) -> Policy:
    """π(a|s) = θ_{s,a}, uniform at first, for `project=Simplex()`.

    Its scores do not average to zero over actions, so a baseline other than the value of the state
    tilts the natural gradient: take exact advantages or `baseline="linear"`.
    """
    return Policy(table(jnp.full((observation_size, action_count), 1 / action_count)), Probabilities())
