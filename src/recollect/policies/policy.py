"""The contract of a policy, and the policy made of a network and a distribution over actions."""

import abc
import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped

from recollect.policies.normaliser import Normaliser


class AbstractPolicy(eqx.Module):
    """A policy π_θ(a|s): an Equinox module whose floating-point arrays are θ.

    Methods take one observation; callers `vmap`. A policy of your own needs the five abstract
    methods and no more: gradients and products with the Fisher matrix come from differentiating
    `log_prob`.

    Example:
        A coin whose probability of heads (action 1) does not depend on the observation.

        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import AbstractPolicy
        >>> class Coin(AbstractPolicy):
        ...     logit: jax.Array
        ...
        ...     def sample(self, key, observation):
        ...         return jax.random.bernoulli(key, jax.nn.sigmoid(self.logit)).astype(int)
        ...
        ...     def log_prob(self, observation, action):
        ...         return jax.nn.log_sigmoid(jnp.where(action == 1, self.logit, -self.logit))
        ...
        ...     def mode(self, observation):
        ...         return (self.logit > 0).astype(int)
        ...
        ...     def entropy(self, observation):
        ...         return -self._mean(lambda action: self.log_prob(observation, action))
        ...
        ...     def kl(self, other, observation):
        ...         ours, theirs = self.log_prob, other.log_prob
        ...         return self._mean(lambda a: ours(observation, a) - theirs(observation, a))
        ...
        ...     def _mean(self, function):
        ...         heads = jax.nn.sigmoid(self.logit)
        ...         return heads * function(1) + (1 - heads) * function(0)
        >>> fair = Coin(jnp.array(0.0))
        >>> round(float(fair.entropy(jnp.zeros(1))), 4)  # log 2
        0.6931
    """

    @abc.abstractmethod
    def sample(
        self, key: PRNGKeyArray, observation: Float[Array, "*feature"]
    ) -> Shaped[Array, "*action"]:
        """Draw an action a ~ π(·|s)."""

    @abc.abstractmethod
    def log_prob(
        self, observation: Float[Array, "*feature"], action: Shaped[Array, "*action"]
    ) -> Float[Array, ""]:
        """log π(a|s)."""

    @abc.abstractmethod
    def mode(self, observation: Float[Array, "*feature"]) -> Shaped[Array, "*action"]:
        """The action to take when acting without randomness, usually the most probable one."""

    @abc.abstractmethod
    def entropy(self, observation: Float[Array, "*feature"]) -> Float[Array, ""]:
        """−E[log π(a|s)]."""

    @abc.abstractmethod
    def kl(
        self, other: "AbstractPolicy", observation: Float[Array, "*feature"]
    ) -> Float[Array, ""]:
        """KL(π(·|s) ‖ other(·|s))."""

    def seeing(
        self, observations: Float[Array, "row *feature"], mask: Bool[Array, " row"]
    ) -> tuple["AbstractPolicy", "AbstractPolicy"]:
        """Update statistics of observations, for policies that keep any; this default does nothing.

        Args:
            observations: new ones, in rows.
            mask: true for the rows that count.

        Returns:
            The policy that an update starts from, and the policy that its step is measured from.
        """
        del observations, mask
        return self, self

    def __hash__(self) -> int:
        """A hash of all but the arrays, which have none: `jax.jit(policy.mode)` needs one.

        Policies whose arrays differ are told apart by `==`.
        """
        return hash(jax.tree.structure(self))


class AbstractHead(eqx.Module):
    """A distribution over actions, with the outputs of a network as its parameters.

    It may have further parameters that do not depend on the state, such as a standard deviation;
    these are its own arrays.
    """

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Shaped[Array, "*action"]:
        """Draw an action."""

    @abc.abstractmethod
    def log_prob(
        self, outputs: Float[Array, " out"], action: Shaped[Array, "*action"]
    ) -> Float[Array, ""]:
        """log π(a)."""

    @abc.abstractmethod
    def mode(self, outputs: Float[Array, " out"]) -> Shaped[Array, "*action"]:
        """The action to take when acting without randomness."""

    @abc.abstractmethod
    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        """−E[log π(a)]."""

    @abc.abstractmethod
    def kl(
        self,
        outputs: Float[Array, " out"],
        other: "AbstractHead",
        other_outputs: Float[Array, " out"],
    ) -> Float[Array, ""]:
        """KL(π ‖ other), each head with its outputs."""

    @abc.abstractmethod
    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["AbstractHead", Float[Array, "rank out"]]:
        """A root of the Fisher matrix E_a[∇log π(a) ∇log π(a)ᵀ], in closed form.

        Returns:
            Derivatives of the head's own arrays, in a head whose arrays have a leading axis `rank`,
            and of the outputs. The outer products of these `rank` vectors sum to the Fisher matrix.
        """


class Policy(AbstractPolicy):
    """π(·|s) = head(network(s)), or head(network(normaliser(s))).

    Example:
        >>> import equinox as eqx
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import Policy, Softmax
        >>> linear = eqx.nn.Linear(4, 3, key=jax.random.key(0))
        >>> policy = Policy(linear, Softmax())
        >>> policy.outputs(jnp.ones(4)).shape
        (3,)
    """

    network: Callable[[Float[Array, " feature"]], Float[Array, " out"]]
    """An `MLP`, or any Equinox module from a flat observation to the head's outputs. Products with
    the Fisher matrix are fast and need little memory for an `MLP`; any other network is
    differentiated again in each product."""
    head: AbstractHead
    normaliser: Normaliser | None = None
    """Standardises observations before the network sees them."""

    def outputs(self, observation: Float[Array, "*feature"]) -> Float[Array, " out"]:
        """What the network computes: the parameters of the distribution over actions."""
        return self.network(self.normalise(observation))

    def normalise(self, observations: Float[Array, "*row feature"]) -> Float[Array, "*row feature"]:
        """Observations as the network takes them."""
        return observations if self.normaliser is None else self.normaliser(observations)

    def seeing(
        self, observations: Float[Array, "row *feature"], mask: Bool[Array, " row"]
    ) -> tuple["Policy", "Policy"]:
        """The policy with new statistics, and the policy that the update's step is measured from.

        New statistics change π, so the step is measured from the policy with the old ones: a trust
        region then includes their effect. The first statistics are an exception. Nothing has been
        learned before them that could be lost, so the step is measured from the policy with them.
        """
        if self.normaliser is None:
            return self, self
        start = dataclasses.replace(self, normaliser=self.normaliser.seeing(observations, mask))
        first = self.normaliser.seen == 0
        choose = lambda new, old: jnp.where(first, new, old) if eqx.is_array(new) else new
        return start, jax.tree.map(choose, start, self)

    def sample(
        self, key: PRNGKeyArray, observation: Float[Array, "*feature"]
    ) -> Shaped[Array, "*action"]:
        return self.head.sample(key, self.outputs(observation))

    def log_prob(
        self, observation: Float[Array, "*feature"], action: Shaped[Array, "*action"]
    ) -> Float[Array, ""]:
        return self.head.log_prob(self.outputs(observation), action)

    def mode(self, observation: Float[Array, "*feature"]) -> Shaped[Array, "*action"]:
        return self.head.mode(self.outputs(observation))

    def entropy(self, observation: Float[Array, "*feature"]) -> Float[Array, ""]:
        return self.head.entropy(self.outputs(observation))

    def kl(self, other: "Policy", observation: Float[Array, "*feature"]) -> Float[Array, ""]:
        return self.head.kl(self.outputs(observation), other.head, other.outputs(observation))
