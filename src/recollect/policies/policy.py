"""What a policy is, and the policy made of a network and a distribution over its outputs."""

import abc

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from recollect.policies.networks import MLP


class AbstractPolicy(eqx.Module):
    """An Equinox module that acts on one observation; its floating-point arrays are θ. Callers `vmap`.

    A policy of your own needs these five methods and no more: gradients and Fisher products come
    from differentiating `log_prob`.
    """

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, observation: Float[Array, "*feature"]) -> Shaped[Array, "*action"]:
        """A draw a ~ π(·|s)."""

    @abc.abstractmethod
    def log_prob(self, observation: Float[Array, "*feature"], action: Shaped[Array, "*action"]) -> Float[Array, ""]:
        """log π(a|s)."""

    @abc.abstractmethod
    def mode(self, observation: Float[Array, "*feature"]) -> Shaped[Array, "*action"]:
        """The likeliest action, for acting without noise."""

    @abc.abstractmethod
    def entropy(self, observation: Float[Array, "*feature"]) -> Float[Array, ""]:
        """−E[log π(a|s)]."""

    @abc.abstractmethod
    def kl(self, other: "AbstractPolicy", observation: Float[Array, "*feature"]) -> Float[Array, ""]:
        """KL(π(·|s) ‖ other(·|s))."""


class AbstractHead(eqx.Module):
    """A distribution over actions whose parameters a network puts out."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Shaped[Array, "*action"]: ...

    @abc.abstractmethod
    def log_prob(self, outputs: Float[Array, " out"], action: Shaped[Array, "*action"]) -> Float[Array, ""]: ...

    @abc.abstractmethod
    def mode(self, outputs: Float[Array, " out"]) -> Shaped[Array, "*action"]: ...

    @abc.abstractmethod
    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]: ...

    @abc.abstractmethod
    def kl(self, outputs: Float[Array, " out"], other: "AbstractHead", other_outputs: Float[Array, " out"]) -> Float[Array, ""]: ...

    @abc.abstractmethod
    def fisher_root(self, outputs: Float[Array, " out"]) -> tuple["AbstractHead", Float[Array, "rank out"]]:
        """The Fisher matrix of the distribution in closed form over actions, as a root.

        Returns cotangents on the head's own arrays (with a leading rank axis) and on the outputs,
        whose outer products sum to E_a[∇log π ∇log πᵀ].
        """


class Policy(AbstractPolicy):
    """π(·|s) = head(network(s))."""

    network: MLP
    head: AbstractHead

    def sample(self, key: PRNGKeyArray, observation: Float[Array, "*feature"]) -> Shaped[Array, "*action"]:
        return self.head.sample(key, self.network(observation))

    def log_prob(self, observation: Float[Array, "*feature"], action: Shaped[Array, "*action"]) -> Float[Array, ""]:
        return self.head.log_prob(self.network(observation), action)

    def mode(self, observation: Float[Array, "*feature"]) -> Shaped[Array, "*action"]:
        return self.head.mode(self.network(observation))

    def entropy(self, observation: Float[Array, "*feature"]) -> Float[Array, ""]:
        return self.head.entropy(self.network(observation))

    def kl(self, other: "Policy", observation: Float[Array, "*feature"]) -> Float[Array, ""]:
        return self.head.kl(self.network(observation), other.head, other.network(observation))
