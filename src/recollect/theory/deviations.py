"""How far estimates of the gradient are from ∇η(θ_n), in every iteration of RNPG on a finite MDP.

An estimate has two parts: the mean over the fresh samples of iteration n, and the reweighed mean
over those of the K − 1 iterations before it. ∇η(θ_n) is exact in each replication.

The bias of the part from old samples is small beside its noise. The noise that they had when
fresh, the mean of G(ξ_m, θ_m) − ∇η(θ_m), is zero on average: it is subtracted as a control variate
(`controlled`), which leaves the bias as it is and an error of order α.

An iteration costs an update and one more estimate of the gradient for each replication, and
enumeration as much for every outcome of the first batch.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from recollect.algorithms import NPG
from recollect.algorithms.base import State, bind
from recollect.algorithms.reuse import estimate_advantages
from recollect.algorithms.update import begin
from recollect.batch import Batch
from recollect.collect.rollout import Rollout
from recollect.envs import Tabular
from recollect.estimate.gradient import gradient_by_age
from recollect.memory.rows import weight_by_age
from recollect.policies import AbstractPolicy
from recollect.theory.enumeration import batch_of_cells, outcomes
from recollect.theory.flow import BLOCK, draw_tabular
from recollect.tree import flatten


class Deviations(NamedTuple):
    """How far estimates are from ∇η(θ_n), each entry a vector."""

    fresh: Float[Array | np.ndarray, "*axes d"]
    """Of the mean of G over the samples of iteration n."""
    old: Float[Array | np.ndarray, "*axes d"]
    """Of the mean of ω G over the samples of the K − 1 iterations before it; NaN if there are
    none."""


def deviations(algorithm: NPG, env: Tabular, state: State, batch: Batch) -> Deviations:
    """The two parts of the gradient estimate from a history and a fresh batch, minus ∇η(θ_n).

    Args:
        algorithm: whose estimate it is.
        env: the finite MDP, which knows ∇η.
        state: θ_n and the history.
        batch: the samples of iteration n.
    """
    bound = bind(algorithm, env)
    start = begin(bound, state, Rollout.of(batch))
    advantages, _ = estimate_advantages(bound, start)
    by_age = algorithm.scaled(gradient_by_age(start.rows, advantages))
    rows = weight_by_age(start.rows)[1 : algorithm.window]
    older = jnp.sum(by_age[1:] * rows[:, None], axis=0) / rows.sum()
    exact = env.gradient(state.policy)
    return Deviations(fresh=by_age[0] - exact, old=older - exact)


@eqx.filter_jit
def advance(
    algorithm: NPG, env: Tabular, states: State, normal: Float[Array, "replication 2 sample 3"]
) -> tuple[State, Deviations]:
    """One iteration of all replications, and how far its estimates of the gradient were off."""

    def step(one):
        state, normal = one
        batch, fisher_batch = (draw_tabular(env, state.policy, numbers) for numbers in normal)
        rollout = Rollout.of(batch, fisher_batch)
        after, _ = bind(algorithm, env).update(state, rollout, jax.random.key(0))
        return after, deviations(algorithm, env, state, batch)

    return lax.map(step, (states, normal), batch_size=BLOCK)


@eqx.filter_jit
def initial_states(
    algorithm: NPG, env: Tabular, policy: AbstractPolicy, samples: int, replications: int
) -> State:
    """States of all replications at θ_0, with empty histories."""
    batch = draw_tabular(env, policy, jnp.zeros((samples, 3)))
    return jax.vmap(lambda key: algorithm.init(policy, batch, key))(
        jax.random.split(jax.random.key(0), replications)
    )


@eqx.filter_jit
def enumerate_first_batch(algorithm: NPG, env: Tabular, policy: AbstractPolicy, samples: int):
    """θ_1 and the old part's deviation there for every first batch, and their probabilities."""
    draws, probabilities = outcomes(env, policy, samples)

    def one(cells):
        batch = batch_of_cells(env, policy, cells)
        bound = bind(algorithm, env)
        state = bound.init(policy, batch, jax.random.key(0))
        state, _ = bound.update(state, Rollout.of(batch), jax.random.key(0))
        return flatten(state.policy)[0], deviations(
            algorithm, env, state, batch_of_cells(env, state.policy, cells)
        ).old

    return *jax.vmap(one)(draws), probabilities


def controlled(run: Deviations, window: int) -> Float[np.ndarray, "replication iteration d"]:
    """Old parts less the noise that their samples had when fresh.

    Args:
        run: of all iterations.
        window: K.

    Returns:
        From the first iteration that has a full window on.
    """
    total = np.cumsum(run.fresh, axis=1)
    before = np.concatenate([np.zeros_like(total[:, :1]), total[:, :-1]], axis=1)[:, window - 1 :]
    earlier = np.concatenate([np.zeros_like(total[:, :1]), total], axis=1)[:, : before.shape[1]]
    return np.asarray(run.old)[:, window - 1 :] - (before - earlier) / (window - 1)
