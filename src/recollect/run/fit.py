"""Whether policy, algorithm and collector fit the environment, before anything is compiled."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from recollect.algorithms import AbstractAlgorithm
from recollect.algorithms.base import needs_oracle
from recollect.collect.compiled import Draws, Occupancy
from recollect.collect.rollout import AbstractCollector
from recollect.envs import LQC, AbstractEnv, AbstractOracle, HostEnv
from recollect.estimate.advantages import ExactAdvantages
from recollect.policies import (
    Policy,
    Probabilities,
    ShiftPolicy,
    Softmax,
)
from recollect.policies.architecture import Architecture, InitialPolicy, env_name, make_policy
from recollect.runtime import memory
from recollect.step.project import Simplex


def check_draws(algorithm: AbstractAlgorithm, collector: AbstractCollector) -> None:
    """Raise if independent draws, which are episodes of one step, could not tell what an action
    is worth."""
    if not isinstance(collector, Draws | Occupancy):
        return
    name = type(collector).__name__
    advantages = algorithm.advantages
    if not isinstance(advantages, ExactAdvantages) and not advantages.needs_critic:
        raise ValueError(
            f"{name} collects single steps, of which {type(advantages).__name__} without a critic "
            "sees the immediate reward alone; use ExactAdvantages() where the environment knows "
            "them, or baseline='critic'."
        )
    if algorithm.discount_states:
        raise ValueError(
            f"discount_states=True would discount twice, as {name} draws states by γ^t already; "
            "leave it out."
        )


def check_memory(
    env: AbstractEnv | HostEnv,
    algorithm: AbstractAlgorithm,
    collector: AbstractCollector,
    seeds: int,
) -> None:
    """Raise if the window alone would not fit into the memory of this machine."""
    window = max(algorithm.capacity, *algorithm.windows)
    sizes = vars(collector)
    each = (env.max_steps or 1) if "episodes" in sizes else 1
    rows = each * math.prod(value for value in sizes.values() if isinstance(value, int))
    # Two observations and an action, and six other numbers of four bytes at most.
    size = 4 * seeds * window * rows * (2 * env.observation_size + math.prod(env.actions.shape) + 6)
    if size > memory():
        raise ValueError(
            f"window={window} batches of {rows} rows for {seeds} seeds would take "
            f"{size / 2**30:.3g} GiB, more than this machine has; give less of one of them."
        )


def check_fit(
    env: AbstractEnv | HostEnv, algorithm: AbstractAlgorithm, start: InitialPolicy = None
) -> None:
    """Raise unless the policy can act in the environment and the algorithm's settings make sense
    there."""
    name = env_name(env)
    key = jax.random.key(0)
    if isinstance(start, Architecture):
        eqx.filter_eval_shape(start.build, key, env)  # says by itself what does not fit

    def act():
        policy = make_policy(key, env, start)
        observation = jnp.zeros(env.observation_size)
        action = policy.sample(key, observation)
        return policy, observation, action, policy.log_prob(observation, action)

    try:
        policy, observation, action, _ = eqx.filter_eval_shape(act)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"policy does not fit {name}, whose observations have {env.observation_size} "
            f"features: {error}; "
            "build it for that size, or leave it out to get one that fits."
        ) from error
    if (
        action.shape != env.actions.shape
        or jnp.issubdtype(action.dtype, jnp.integer) != env.actions.whole
    ):
        raise ValueError(
            f"policy gives actions of shape {action.shape} and type {action.dtype}, but {name} "
            f"takes {env.actions}; build it for that."
        )
    if isinstance(policy, Policy) and isinstance(policy.head, Softmax | Probabilities):
        outputs = eqx.filter_eval_shape(policy.outputs, observation).shape[0]
        if outputs != env.actions.count:
            raise ValueError(
                f"policy chooses among {outputs} actions, but {name} has {env.actions.count}; "
                "build it for that many."
            )
    direct = isinstance(policy, Policy) and isinstance(policy.head, Probabilities)
    project = algorithm.project
    count = env.actions.count
    if direct != isinstance(project, Simplex):
        raise ValueError(
            f"project={type(project).__name__} does not go with this policy; a table of "
            "probabilities (tabular_direct_policy) "
            "needs project=Simplex(), and no other policy can use it."
        )
    if isinstance(project, Simplex) and count and float(project.floor) * count >= 1:
        raise ValueError(
            f"floor={float(project.floor):g} leaves no room for {count} actions; give less than "
            f"{1 / count:g}."
        )
    if (
        isinstance(env, AbstractOracle)
        and abs(float(env.discount) - float(algorithm.discount)) > 1e-6
    ):
        raise ValueError(
            f"discount={float(algorithm.discount):g} of the algorithm differs from discount="
            f"{float(env.discount):g} of {name}; "
            f"give the algorithm discount={float(env.discount):g}."
        )
    exact = needs_oracle(algorithm)
    if exact and not isinstance(env, AbstractOracle):
        raise ValueError(
            f"{name} does not know its exact advantages and occupancies; use Returns() and "
            "PolicyRatio()."
        )
    if exact and isinstance(env, LQC) and not isinstance(policy, ShiftPolicy):
        raise ValueError(
            f"policy is a {type(policy).__name__}, but LQC knows exact answers for ShiftPolicy "
            "alone; use that."
        )
