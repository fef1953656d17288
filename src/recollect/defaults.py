"""The policy to start from, and the check that it fits the environment and the algorithm."""

import dataclasses
from collections.abc import Callable
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from recollect.algorithms import AbstractAlgorithm
from recollect.checks import check_name
from recollect.collect import AbstractCollector, Draws, Occupancy
from recollect.envs import LQC, AbstractEnv, AbstractOracle, HostEnv, Tabular
from recollect.normaliser import Normaliser
from recollect.policies import (
    AbstractPolicy,
    Policy,
    Probabilities,
    ShiftPolicy,
    Softmax,
    gaussian_policy,
    grid_softmax_policy,
    multi_softmax_policy,
    softmax_policy,
    squashed_gaussian_policy,
    tabular_softmax_policy,
)
from recollect.project import Simplex

Head = Literal["auto", "gaussian", "squashed", "grid"]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What policy to make for an environment."""

    head: Head = "auto"
    """Distribution over actions. `auto` fits the environment: softmax for choices, tables for tables, `gaussian` for numbers. For numbers
    within bounds also `squashed` (a Gaussian through tanh) and `grid` (a softmax over equally spaced values)."""
    widths: tuple[int, ...] = (32,)
    """Hidden layers."""
    activation: str = "relu"
    log_std: float = 0.0
    """Logarithm of the first standard deviation of `gaussian` and `squashed`."""
    points: int = 11
    """Values of each number on the `grid`."""
    normalise: bool | None = None
    """Put observations into standard units by what has been seen so far. If not said: for environments on the host, not for compiled
    ones."""

    def __post_init__(self):
        check_name("head", self.head, get_args(Head))

    def build(self, key: PRNGKeyArray, env: AbstractEnv | HostEnv) -> AbstractPolicy:
        """A policy that can act in `env`: for LQC the paper's with one parameter, θ₀ = 2, else a table or a network."""
        policy = self._build(key, env)
        normalise = isinstance(env, HostEnv) if self.normalise is None else self.normalise
        if not normalise:
            return policy
        if not isinstance(policy, Policy):
            raise ValueError(f"normalise=True does not go with the {type(policy).__name__} of {_name(env)}; leave it out.")
        return dataclasses.replace(policy, normaliser=Normaliser.fresh(env.observation_size))

    def _build(self, key: PRNGKeyArray, env: AbstractEnv | HostEnv) -> AbstractPolicy:
        size, actions, shape = env.observation_size, env.actions, (self.widths, self.activation)
        if actions.whole:
            if self.head != "auto":
                raise ValueError(f"head={self.head!r} is for actions that are numbers, and {_name(env)} has choices; use head='auto'.")
            if actions.count is None:
                return multi_softmax_policy(key, size, actions.counts or (), *shape)
            if isinstance(env, Tabular):
                return tabular_softmax_policy(size, actions.count)
            return softmax_policy(key, size, actions.count, *shape)
        if isinstance(env, LQC) and self.head == "auto":
            return ShiftPolicy(jnp.array(2.0))
        if self.head in ("auto", "gaussian"):
            return gaussian_policy(key, size, actions.size, *shape, self.log_std)
        if actions.bounds is None:
            raise ValueError(f"head={self.head!r} needs actions with bounds, which {_name(env)} has not; use head='gaussian'.")
        if self.head == "squashed":
            return squashed_gaussian_policy(key, size, actions.bounds, *shape, self.log_std)
        return grid_softmax_policy(key, size, actions.bounds, self.points, *shape)


def _name(env: AbstractEnv | HostEnv) -> str:
    return env.name if isinstance(env, HostEnv) else type(env).__name__


Start = AbstractPolicy | Architecture | Callable[[PRNGKeyArray], AbstractPolicy] | None
"""Where training starts: from a policy, from one of some architecture, from what a function makes of a key, or from the default."""


def make_policy(key: PRNGKeyArray, env: AbstractEnv | HostEnv, start: Start) -> AbstractPolicy:
    """The policy to start from."""
    if isinstance(start, AbstractPolicy):
        return start
    if start is None or isinstance(start, Architecture):
        return (start or Architecture()).build(key, env)
    return start(key)


def check_draws(algorithm: AbstractAlgorithm, collector: AbstractCollector) -> None:
    """Raise if independent draws, which are episodes of one step, could not tell what an action is worth."""
    if not isinstance(collector, Draws | Occupancy):
        return
    name, advantages = type(collector).__name__, algorithm.advantages
    if advantages.estimator != "exact" and advantages.baseline != "critic":
        raise ValueError(
            f"{name} collects single steps, of which estimator={advantages.estimator!r} with baseline={advantages.baseline!r} sees "
            "the immediate reward alone; use estimator='exact' where the environment knows it, or baseline='critic'."
        )
    if algorithm.discount_states:
        raise ValueError(f"discount_states=True would discount twice, as {name} draws states by γ^t already; leave it out.")


def check_fit(env: AbstractEnv | HostEnv, algorithm: AbstractAlgorithm, start: Start = None) -> None:
    """Raise unless the policy can act in the environment and the algorithm's settings make sense there."""
    name = _name(env)
    key = jax.random.key(0)
    if isinstance(start, Architecture):
        eqx.filter_eval_shape(start.build, key, env)  # says by itself what does not fit

    def act():
        policy, observation = make_policy(key, env, start), jnp.zeros(env.observation_size)
        action = policy.sample(key, observation)
        return policy, observation, action, policy.log_prob(observation, action)

    try:
        policy, observation, action, _ = eqx.filter_eval_shape(act)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"policy does not fit {name}, whose observations have {env.observation_size} features: {error}; "
            "build it for that size, or leave it out to get one that fits."
        ) from error
    if action.shape != env.actions.shape or jnp.issubdtype(action.dtype, jnp.integer) != env.actions.whole:
        raise ValueError(
            f"policy gives actions of shape {action.shape} and type {action.dtype}, but {name} takes {env.actions}; build it for that."
        )
    if isinstance(policy, Policy) and isinstance(policy.head, Softmax | Probabilities):
        outputs = eqx.filter_eval_shape(policy.outputs, observation).shape[0]
        if outputs != env.actions.count:
            raise ValueError(f"policy chooses among {outputs} actions, but {name} has {env.actions.count}; build it for that many.")
    direct, project, count = isinstance(policy, Policy) and isinstance(policy.head, Probabilities), algorithm.project, env.actions.count
    if direct != isinstance(project, Simplex):
        raise ValueError(
            f"project={type(project).__name__} does not go with this policy; a table of probabilities (tabular_direct_policy) "
            "needs project=Simplex(), and no other policy can use it."
        )
    if isinstance(project, Simplex) and count and float(project.floor) * count >= 1:
        raise ValueError(f"floor={float(project.floor):g} leaves no room for {count} actions; give less than {1 / count:g}.")
    if isinstance(env, AbstractOracle) and abs(float(env.discount) - float(algorithm.discount)) > 1e-6:
        raise ValueError(
            f"discount={float(algorithm.discount):g} of the algorithm differs from discount={float(env.discount):g} of {name}; "
            f"give the algorithm discount={float(env.discount):g}."
        )
    exact = algorithm.advantages.estimator == "exact" or algorithm.weights.ratio == "occupancy"
    if exact and not isinstance(env, AbstractOracle):
        raise ValueError(f"{name} does not know its exact advantages and occupancies; use estimator='return' and ratio='policy'.")
    if exact and isinstance(env, LQC) and not isinstance(policy, ShiftPolicy):
        raise ValueError(f"policy is a {type(policy).__name__}, but LQC knows exact answers for ShiftPolicy alone; use that.")
