"""The one-parameter policy of the linear quadratic control problem."""

import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PRNGKeyArray

from recollect.policies.policy import AbstractPolicy
from recollect.prng import normal


class ShiftPolicy(AbstractPolicy):
    """π_θ(·|s) = N(θ − s, 1), so that s + a ~ N(θ, 1) in every state and ∇log π = a + s − θ.

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect import ShiftPolicy
        >>> policy = ShiftPolicy(jnp.array(2.0))
        >>> policy.mode(jnp.array([0.5])).tolist()
        [1.5]
        >>> float(policy.kl(ShiftPolicy(jnp.array(3.0)), jnp.array([0.5])))
        0.5
    """

    shift: Float[Array, ""]
    """θ."""

    def sample(self, key: PRNGKeyArray, observation: Float[Array, "1"]) -> Float[Array, "1"]:
        return self.mode(observation) + normal(key, (1,))

    def log_prob(
        self, observation: Float[Array, "1"], action: Float[Array, "1"]
    ) -> Float[Array, ""]:
        return norm.logpdf(action[0] + observation[0] - self.shift)

    def mode(self, observation: Float[Array, "1"]) -> Float[Array, "1"]:
        return self.shift - observation

    def entropy(self, observation: Float[Array, "1"]) -> Float[Array, ""]:
        return jnp.asarray(0.5 * jnp.log(2 * jnp.pi * jnp.e))

    def kl(self, other: "ShiftPolicy", observation: Float[Array, "1"]) -> Float[Array, ""]:
        return 0.5 * (self.shift - other.shift) ** 2
