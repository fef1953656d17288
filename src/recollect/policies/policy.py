"""What a policy is, and the policy made of a network and a distribution over its outputs."""

import abc
import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped

from recollect.policies.normaliser import Normaliser


class AbstractPolicy(eqx.Module):
    """An Equinox module that acts on one observation; its floating-point arrays are θ. Callers `vmap`.

    A policy of your own needs these five methods and no more: gradients and Fisher products come
    from differentiating `log_prob`.
    """

    @abc.abstractmethod
    def sample(
        self, key: PRNGKeyArray, observation: Float[Array, "*feature"]
    ) -> Shaped[Array, "*action"]:
        """A draw a ~ π(·|s)."""

    @abc.abstractmethod
    def log_prob(
        self, observation: Float[Array, "*feature"], action: Shaped[Array, "*action"]
    ) -> Float[Array, ""]:
        """log π(a|s)."""

    @abc.abstractmethod
    def mode(self, observation: Float[Array, "*feature"]) -> Shaped[Array, "*action"]:
        """The likeliest action, for acting without noise."""

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
        """For policies that keep statistics of what they see: where an update starts, and from where its step is measured."""
        del observations, mask
        return self, self


class AbstractHead(eqx.Module):
    """A distribution over actions whose parameters a network puts out."""

    @abc.abstractmethod
    def sample(
        self, key: PRNGKeyArray, outputs: Float[Array, " out"]
    ) -> Shaped[Array, "*action"]: ...

    @abc.abstractmethod
    def log_prob(
        self, outputs: Float[Array, " out"], action: Shaped[Array, "*action"]
    ) -> Float[Array, ""]: ...

    @abc.abstractmethod
    def mode(self, outputs: Float[Array, " out"]) -> Shaped[Array, "*action"]: ...

    @abc.abstractmethod
    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]: ...

    @abc.abstractmethod
    def kl(
        self,
        outputs: Float[Array, " out"],
        other: "AbstractHead",
        other_outputs: Float[Array, " out"],
    ) -> Float[Array, ""]: ...

    @abc.abstractmethod
    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["AbstractHead", Float[Array, "rank out"]]:
        """The Fisher matrix of the distribution in closed form over actions, as a root.

        Returns cotangents on the head's own arrays (with a leading rank axis) and on the outputs,
        whose outer products sum to E_a[∇log π ∇log πᵀ].
        """


class Policy(AbstractPolicy):
    """π(·|s) = head(network(s)), or head(network(normaliser(s))).

    The network is an `MLP`, or any Equinox module from a flat observation to the head's outputs. Products with the Fisher
    matrix of an `MLP` are fast and need little memory; any other network is differentiated afresh in each.
    """

    network: Callable[[Float[Array, " feature"]], Float[Array, " out"]]
    head: AbstractHead
    normaliser: Normaliser | None = None

    def outputs(self, observation: Float[Array, "*feature"]) -> Float[Array, " out"]:
        return self.network(self.normalise(observation))

    def normalise(self, observations: Float[Array, "*row feature"]) -> Float[Array, "*row feature"]:
        return observations if self.normaliser is None else self.normaliser(observations)

    def seeing(
        self, observations: Float[Array, "row *feature"], mask: Bool[Array, " row"]
    ) -> tuple["Policy", "Policy"]:
        """The policy with statistics that include new observations, and the policy that its step is measured from.

        Other statistics move π, so the step is measured from the policy as it was: a trust region sees
        what they did. The very first ones are no step, as nothing has been learned before them that
        could be lost; the step is then measured from the policy that has them.
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
