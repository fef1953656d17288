"""The policy that training starts from, built to fit an environment."""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recollect.checks import check_count, check_name, check_number
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
from recollect.policies.networks import ACTIVATIONS
from recollect.policies.normaliser import Normaliser
from recollect.settings import Settings

Head = Literal["auto", "gaussian", "squashed", "grid"]


@dataclasses.dataclass(frozen=True)
class Architecture(Settings):
    """The kind of policy to build, for any environment.

    Example:
        >>> import jax
        >>> from recollect import Architecture, make
        >>> policy = Architecture(widths=(32,)).build(jax.random.key(0), make("Acrobot-v1"))
        >>> type(policy.head).__name__, [layer.weight.shape for layer in policy.network.layers]
        ('Softmax', [(32, 6), (3, 32)])
    """

    head: Head = "auto"
    """Distribution over actions. `auto` is a softmax for choices and `gaussian` for real numbers.
    For real numbers within bounds there are also `squashed` (a Gaussian through tanh) and `grid` (a
    softmax over equally spaced values)."""
    widths: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers. `Tabular` environments get a table instead of a network."""
    activation: str = "tanh"
    """Between layers: `relu`, `tanh` or `silu`."""
    log_std: float = -0.7
    """Logarithm of the initial standard deviation of `gaussian` and `squashed`: half of what most
    actuators take at most."""
    points: int = 11
    """Number of values on the `grid`, for each number of an action."""
    normalise: bool | None = None
    """Whether to standardise observations by the statistics of those seen so far. None means yes
    for environments on the host, no for compiled ones."""

    def __post_init__(self):
        check_name("activation", self.activation, ACTIVATIONS)
        for width in self.widths:
            check_count("widths", width)
        remedy = "give the number of values on the grid, at least 2"
        check_number("points", self.points, low=2, remedy=remedy)
        remedy = "give a finite logarithm, 0 for a standard deviation of 1"
        check_number("log_std", self.log_std, low=-math.inf, remedy=remedy)

    def build(self, key: PRNGKeyArray, env: AbstractEnv | HostEnv) -> AbstractPolicy:
        """Build a policy that can act in `env`.

        With `head="auto"`, LQC gets the paper's one-parameter `ShiftPolicy` with θ₀ = 2.

        Args:
            key: for the initial weights of the network.
            env: whose observations and actions the policy has to fit.

        Raises:
            ValueError: if `head` or `normalise` does not go with the environment.
        """
        policy = self._build(key, env)
        normalise = isinstance(env, HostEnv) if self.normalise is None else self.normalise
        if not normalise:
            return policy
        if not isinstance(policy, Policy):
            raise ValueError(
                f"normalise=True does not go with the {type(policy).__name__} of {env_name(env)}; "
                "leave it out."
            )
        return dataclasses.replace(policy, normaliser=Normaliser.fresh(env.observation_size))

    def _build(self, key: PRNGKeyArray, env: AbstractEnv | HostEnv) -> AbstractPolicy:
        """The policy without a normaliser."""
        size = env.observation_size
        actions = env.actions
        hidden = (self.widths, self.activation)
        if actions.whole:
            if self.head != "auto":
                raise ValueError(
                    f"head={self.head!r} is for actions that are numbers, "
                    f"and {env_name(env)} has choices; use head='auto'."
                )
            if actions.count is None:
                return multi_softmax_policy(key, size, actions.counts or (), *hidden)
            if isinstance(env, Tabular):
                return tabular_softmax_policy(size, actions.count)
            return softmax_policy(key, size, actions.count, *hidden)
        if isinstance(env, LQC) and self.head == "auto":
            return ShiftPolicy(jnp.array(2.0))
        if self.head in ("auto", "gaussian"):
            return gaussian_policy(key, size, actions.size, *hidden, self.log_std)
        if actions.bounds is None:
            raise ValueError(
                f"head={self.head!r} needs actions with bounds, which {env_name(env)} has not; "
                "use head='gaussian'."
            )
        if self.head == "squashed":
            return squashed_gaussian_policy(key, size, actions.bounds, *hidden, self.log_std)
        return grid_softmax_policy(key, size, actions.bounds, self.points, *hidden)


def env_name(env: AbstractEnv | HostEnv) -> str:
    """What error messages call an environment."""
    return env.name if isinstance(env, HostEnv) else type(env).__name__


InitialPolicy = AbstractPolicy | Architecture | Callable[[PRNGKeyArray], AbstractPolicy] | None
"""Where training starts: a policy, an architecture, a function from a key to a policy, or None for
the default architecture."""


def make_policy(
    key: PRNGKeyArray, env: AbstractEnv | HostEnv, start: InitialPolicy
) -> AbstractPolicy:
    """The policy that training starts from.

    Args:
        key: for initial weights; a policy given as `start` does not use it.
        env: that the policy will act in.
        start: see `InitialPolicy`.
    """
    if isinstance(start, AbstractPolicy):
        return start
    if start is None or isinstance(start, Architecture):
        return (start or Architecture()).build(key, env)
    return start(key)


def traced_spread(start: InitialPolicy) -> tuple[InitialPolicy, Float[Array, ""] | None]:
    """An architecture with its initial spread apart, as an array.

    A program that builds policies is then compiled once for all spreads. Other ways to start have
    None for a spread.
    """
    if start is None:
        start = Architecture()
    if not isinstance(start, Architecture):
        return start, None
    return dataclasses.replace(start, log_std=0.0), jnp.asarray(start.log_std, float)


def with_spread(policy: AbstractPolicy, log_std: Float[Array, ""] | None) -> AbstractPolicy:
    """A new policy with the initial spread that `traced_spread` has set apart, if it has one."""
    if log_std is None or not isinstance(policy, Policy) or not hasattr(policy.head, "log_std"):
        return policy
    where = lambda policy: policy.head.log_std
    return eqx.tree_at(where, policy, jnp.full_like(where(policy), log_std))
