"""A policy for an environment when none is given, and the check that a given one fits."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from recollect.algorithms import AbstractAlgorithm
from recollect.envs import LQC, AbstractEnv, AbstractOracle, Tabular
from recollect.policies import (
    AbstractPolicy,
    Policy,
    Probabilities,
    ShiftPolicy,
    Softmax,
    gaussian_policy,
    softmax_policy,
    tabular_softmax_policy,
)
from recollect.project import Simplex


def default_policy(key: PRNGKeyArray, env: AbstractEnv) -> AbstractPolicy:
    """Tables for tables, the paper's one-parameter policy (θ₀ = 2) for LQC, else a network with one hidden layer of 32."""
    if isinstance(env, LQC):
        return ShiftPolicy(jnp.array(2.0))
    if env.actions.count is None:
        return gaussian_policy(key, env.observation_size, env.actions.size)
    if isinstance(env, Tabular):
        return tabular_softmax_policy(env.observation_size, env.actions.count)
    return softmax_policy(key, env.observation_size, env.actions.count)


def make_policy(
    key: PRNGKeyArray, env: AbstractEnv, policy: AbstractPolicy | Callable[[PRNGKeyArray], AbstractPolicy] | None
) -> AbstractPolicy:
    """The policy to start from: the one given, the one that a given function makes, or the default."""
    if policy is None:
        return default_policy(key, env)
    return policy if isinstance(policy, AbstractPolicy) else policy(key)


def check_fit(
    env: AbstractEnv, algorithm: AbstractAlgorithm, start: AbstractPolicy | Callable[[PRNGKeyArray], AbstractPolicy] | None = None
) -> None:
    """Raise unless the policy can act in the environment and the algorithm's settings make sense there."""
    name = type(env).__name__
    key = jax.random.key(0)

    def act():
        policy, observation = make_policy(key, env, start), env.observe(env.reset(key))
        action = policy.sample(key, observation)
        return policy, action, policy.log_prob(observation, action)

    try:
        policy, action, _ = eqx.filter_eval_shape(act)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"policy does not fit {name}, whose observations have {env.observation_size} features: {error}; "
            "build it for that size, or leave it out to get one that fits."
        ) from error
    wanted = "one whole number" if env.actions.count is not None else f"{env.actions.size} real numbers"
    shape = () if env.actions.count is not None else (env.actions.size,)
    whole = jnp.issubdtype(action.dtype, jnp.integer)
    if action.shape != shape or whole != (env.actions.count is not None):
        raise ValueError(
            f"policy gives actions of shape {action.shape} and type {action.dtype}, but {name} takes {wanted}; build it for that."
        )
    if isinstance(policy, Policy) and isinstance(policy.head, Softmax | Probabilities):
        outputs = policy.network.layers[-1].weight.shape[0]
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
