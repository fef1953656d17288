"""The policy to start from, made for an environment."""

import dataclasses
from collections.abc import Callable
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from recollect.checks import check_name
from recollect.envs import LQC, AbstractEnv, HostEnv, Tabular
from recollect.policies import (
    AbstractPolicy,
    Policy,
    ShiftPolicy,
    gaussian_policy,
    grid_softmax_policy,
    multi_softmax_policy,
    softmax_policy,
    squashed_gaussian_policy,
    tabular_softmax_policy,
)
from recollect.policies.normaliser import Normaliser

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
            raise ValueError(
                f"normalise=True does not go with the {type(policy).__name__} of {env_name(env)}; leave it out."
            )
        return dataclasses.replace(policy, normaliser=Normaliser.fresh(env.observation_size))

    def _build(self, key: PRNGKeyArray, env: AbstractEnv | HostEnv) -> AbstractPolicy:
        size, actions, shape = env.observation_size, env.actions, (self.widths, self.activation)
        if actions.whole:
            if self.head != "auto":
                raise ValueError(
                    f"head={self.head!r} is for actions that are numbers, and {env_name(env)} has choices; use head='auto'."
                )
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
            raise ValueError(
                f"head={self.head!r} needs actions with bounds, which {env_name(env)} has not; use head='gaussian'."
            )
        if self.head == "squashed":
            return squashed_gaussian_policy(key, size, actions.bounds, *shape, self.log_std)
        return grid_softmax_policy(key, size, actions.bounds, self.points, *shape)


def env_name(env: AbstractEnv | HostEnv) -> str:
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
