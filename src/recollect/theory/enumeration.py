"""A small finite MDP gone through outcome by outcome: expectations over batches as finite sums."""

import itertools
from math import comb, lgamma
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from recollect.batch import Batch
from recollect.devices import at_full_precision
from recollect.envs import Tabular, chain, load_mdp
from recollect.policies import AbstractPolicy
from recollect.policies.scores import score_matrix

MOST_OUTCOMES = 5_000
"""Outcomes of a batch that are gone through at most."""


def batch_of_cells(env: Tabular, policy: AbstractPolicy, cells: Int[Array, " sample"]) -> Batch:
    """The draws (s, a), numbered s·A + a, as a batch."""
    states, actions = jnp.divmod(cells, env.rewards.shape[1])
    return draws_as_batch(
        policy, jax.nn.one_hot(states, env.observation_size), actions, env.rewards[states, actions]
    )


def draws_as_batch(
    policy: AbstractPolicy,
    observations: Float[Array, "sample feature"],
    actions: Shaped[Array, "sample ..."],
    rewards,
) -> Batch:
    """Independent draws as a batch of episodes of one step.

    None has a successor, as exact advantages do not ask for it: each state stands for its own.

    Args:
        policy: that drew the actions.
        observations: of the states.
        actions: in them.
        rewards: for them.
    """
    no = jnp.zeros((len(rewards), 1), bool)
    return Batch(
        observations=observations[:, None],
        actions=actions[:, None],
        log_probs=jax.vmap(policy.log_prob)(observations, actions)[:, None],
        rewards=rewards[:, None],
        next_observations=observations[:, None],
        terminated=no,
        truncated=no,
        times=no.astype(jnp.int32),
        mask=~no,
    )


def occupancy_of_cells(env: Tabular, policy: AbstractPolicy) -> Float[Array, " cell"]:
    """d^π(s, a), where the pair (s, a) has the number s·A + a."""
    return (env.occupancy(policy)[:, None] * env.probabilities(policy)).ravel()


def small_mdp(path: Path | None) -> Tabular:
    """The MDP in a file, or a chain of three states."""
    return chain(length=3, discount=0.8) if path is None else load_mdp(path)


def check_outcomes(env: Tabular, samples: int) -> None:
    """Raise if a batch has more outcomes than can be gone through."""
    cells = env.rewards.size
    outcomes = comb(samples + cells - 1, samples)
    if outcomes > MOST_OUTCOMES:
        raise ValueError(
            f"samples={samples} among {cells} pairs of state and action have {outcomes:,} "
            "outcomes, and all are enumerated; "
            f"give fewer samples or a smaller MDP (at most {MOST_OUTCOMES:,})."
        )


def unordered_draws(
    samples: int, cells: int
) -> tuple[Int[np.ndarray, "outcome sample"], Float[np.ndarray, " outcome"]]:
    """All outcomes of some draws, order aside, and the log of how many orders each has.

    Args:
        samples: draws.
        cells: among which they are made.

    Example:
        >>> draws, log_orders = unordered_draws(samples=2, cells=2)
        >>> draws.tolist()
        [[0, 0], [0, 1], [1, 1]]
        >>> np.exp(log_orders).round(6).tolist()
        [1.0, 2.0, 1.0]
    """
    draws = np.array(list(itertools.combinations_with_replacement(range(cells), samples)))
    counts = (draws[:, :, None] == np.arange(cells)).sum(1)
    return draws, lgamma(samples + 1) - np.vectorize(lgamma)(counts + 1.0).sum(1)


def outcomes(
    env: Tabular, policy: AbstractPolicy, samples: int
) -> tuple[Int[Array, "outcome sample"], Float[Array, " outcome"]]:
    """All outcomes of `samples` independent draws from d^π(s, a), and their probabilities."""
    draws, log_orders = unordered_draws(samples, env.rewards.size)
    log_occupancy = jnp.log(occupancy_of_cells(env, policy))
    log_probability = jnp.asarray(log_orders, log_occupancy.dtype) + log_occupancy[draws].sum(-1)
    return jnp.asarray(draws), jnp.exp(log_probability)


@at_full_precision
def mean_inverse_fisher(
    env: Tabular, policy: AbstractPolicy, samples: int, damping: float
) -> Float[Array, "d d"]:
    """F̄⁻¹(θ) = E[(εI + Σ_{i≤B} S(ξ_i, θ)/B)⁻¹], by enumeration.

    Args:
        env: the finite MDP.
        policy: θ.
        samples: B.
        damping: ε.
    """
    every = batch_of_cells(env, policy, jnp.arange(env.rewards.size))
    scores = score_matrix(policy, every.observations[:, 0], every.actions[:, 0])[1].columns().T
    draws, probabilities = outcomes(env, policy, samples)
    estimates = jax.vmap(lambda draw: scores[draw].T @ scores[draw] / samples)(draws)
    inverses = jnp.linalg.inv(estimates + damping * jnp.eye(scores.shape[1]))
    return jnp.einsum("n,nde->de", probabilities, inverses)
