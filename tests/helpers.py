"""Small problems that several tests use."""

import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from recollect.algorithms import AbstractAlgorithm
from recollect.batch import Batch
from recollect.collect.compiled import Episodes
from recollect.collect.rollout import AbstractCollector, Rollout
from recollect.envs import AbstractEnv, CartPole
from recollect.memory.history import History
from recollect.memory.weights import PolicyRatio
from recollect.policies import AbstractPolicy, softmax_policy
from recollect.tree import flatten, traced_numbers

ENV = CartPole(max_steps=20)


def computed(function, *arguments, **more):
    """What the function gives, as NumPy arrays, from one program.

    Called as it is, every operation in it would be compiled by itself.
    """
    return jax.tree.map(np.asarray, eqx.filter_jit(function)(*arguments, **more))


@eqx.filter_jit
def random_policy(key, env: AbstractEnv = ENV, widths=(5,)) -> AbstractPolicy:
    """A softmax policy that is far from uniform."""
    θ, unflatten = flatten(softmax_policy(key, env.observation_size, env.actions.count, widths))
    return unflatten(θ + 0.5 * jax.random.normal(key, θ.shape))


@eqx.filter_jit
def batch_of(
    key,
    policy: AbstractPolicy,
    env: AbstractEnv = ENV,
    collector: AbstractCollector = Episodes(3),
    discount: float = 0.99,
) -> Batch:
    return collector(key, env, policy, collector.init(key, env), discount)[1].batch


@eqx.filter_jit
def _update(algorithm: AbstractAlgorithm, state, batch: Batch, key, fisher_batch=None):
    return algorithm.update(state, Rollout.of(batch, fisher_batch), key)


def update(algorithm: AbstractAlgorithm, state, batch: Batch, key, fisher_batch=None):
    """One compiled update; algorithms that differ in floats alone share the program."""
    state, info = _update(traced_numbers(algorithm), state, batch, key, fisher_batch)
    return state, all_figures(info)


def all_figures(info) -> types.SimpleNamespace:
    """What every algorithm reports, together with this one's own."""
    return types.SimpleNamespace(**{**vars(info), **vars(info.own)})


def history_from(policies, batches, rule=PolicyRatio(), capacity: int | None = None) -> History:
    """A history of batches, each collected by the policy of its place."""
    history = History.empty(batches[0], capacity or len(batches), rule, policies[0])
    for policy, batch in zip(policies, batches, strict=True):
        history, _ = history.push(batch, policy, rule)
    return history


def updated(
    algorithm: AbstractAlgorithm, policy: AbstractPolicy, key, updates: int = 3, spoil=lambda b: b
):
    """State and last figures after some updates on `ENV`, each with a fresh batch.

    The batch is passed through `spoil`.
    """
    state, info = algorithm.init(policy, batch_of(key, policy), key), None
    for i in range(updates):
        key_batch, key_fisher, key_update = jax.random.split(jax.random.fold_in(key, i), 3)
        fisher = (
            batch_of(key_fisher, state.policy)
            if getattr(algorithm, "independent_fisher", False)
            else None
        )
        state, info = update(
            algorithm, state, spoil(batch_of(key_batch, state.policy)), key_update, fisher
        )
    return state, info


def parameters(policy) -> jnp.ndarray:
    return flatten(policy)[0]


def dense(operator, size: int) -> jnp.ndarray:
    """The matrix of a linear function, column by column."""
    return jax.vmap(operator, out_axes=1)(jnp.eye(size))
