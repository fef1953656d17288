"""The differential equation of Theorem 1, and the draws behind the paths that should follow it.

    θ' = F̄⁻¹(θ) ∇η(θ) + z      F̄⁻¹(θ) = E[(εI + Σ_{i≤B} S(ξ_i, θ)/B)⁻¹]      z keeps θ in a box

The mean of the inverse is not the inverse of the mean: θ' = (εI + F)⁻¹ ∇η + z, with the exact
Fisher matrix, is a wrong equation, which experiments take as a control.

On LQC F̄⁻¹ is a number, found by quadrature. On a chain of three states it is a finite sum over all
outcomes of B draws, order aside: C(B + 5, B) inverses of 6×6 matrices for each evaluation.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from recollect.batch import Batch
from recollect.envs import LQC, AbstractOracle, Tabular
from recollect.policies import AbstractPolicy, ShiftPolicy, tabular_softmax_policy
from recollect.theory.enumeration import (
    batch_of_cells,
    draws_as_batch,
    mean_inverse_fisher,
    occupancy_of_cells,
)
from recollect.theory.lqc import inverse_fisher_moments
from recollect.tree import flatten

BLOCK = 1000
"""Replications that run side by side: XLA on a CPU can wait for itself forever over batches of many
thousand factorisations."""
ODE_STEPS = 200
"""Runge-Kutta steps over the horizon; between them the solution is a straight line."""
Drift = Callable[[Float[Array, " d"]], Float[Array, " d"]]


class Problem(eqx.Module):
    """Where paths start, how their samples are drawn, and the equation that they should follow."""

    env: AbstractOracle
    start: AbstractPolicy
    """θ_0."""
    draw: Callable[[Any, Any, Float[Array, "sample 3"]], Batch] = eqx.field(static=True)
    """(env, policy, standard normal numbers) to independent draws from d^π, without the walks of
    `Draws`."""
    drift: Drift = eqx.field(static=True)
    """F̄⁻¹(θ) ∇η(θ)."""
    naive_drift: Drift = eqx.field(static=True)
    """(εI + F(θ))⁻¹ ∇η(θ), which is not the limit."""


def lqc_problem(samples: int, damping: float) -> Problem:
    """LQC from θ_0 = 1, where ∇η = −2θ/(1 − γ) and F = 1.

    Args:
        samples: B, draws for a Fisher matrix.
        damping: ε.
    """
    env = LQC()
    drift = lambda inverse: lambda θ: -2 * inverse * θ / (1 - env.discount)
    mean_inverse = inverse_fisher_moments(samples, damping)[0]
    return Problem(
        env=env,
        start=ShiftPolicy(jnp.ones(())),
        draw=draw_lqc,
        drift=drift(mean_inverse),
        naive_drift=drift(1 / (1 + damping)),
    )


def tabular_problem(env: Tabular, samples: int, damping: float) -> Problem:
    """A finite MDP from the uniform softmax policy.

    Args:
        env: the MDP.
        samples: B, draws for a Fisher matrix.
        damping: ε.
    """
    start = tabular_softmax_policy(*env.rewards.shape)
    _, unflatten = flatten(start)

    def drift(θ):
        policy = unflatten(θ)
        return mean_inverse_fisher(env, policy, samples, damping) @ env.gradient(policy)

    def naive_drift(θ):
        policy = unflatten(θ)
        fisher = env.fisher(policy) + damping * jnp.eye(len(θ))
        return jnp.linalg.solve(fisher, env.gradient(policy))

    return Problem(env, start, draw_tabular, drift, naive_drift)


def draw_lqc(env: LQC, policy: ShiftPolicy, normal: Float[Array, "sample 3"]) -> Batch:
    """s is N(0, 1) with probability 1 − γ, else N(θ, 1), and s + a is N(θ, 1)."""
    later = normal[:, 2] > ndtri(1 - env.discount)
    states = normal[:, 0] + jnp.where(later, policy.shift, 0)
    actions = policy.shift - states + normal[:, 1]
    return draws_as_batch(policy, states[:, None], actions[:, None], -((states + actions) ** 2))


def draw_tabular(env: Tabular, policy: AbstractPolicy, normal: Float[Array, "sample 3"]) -> Batch:
    """(s, a) by inverting the distribution function of d^π(s, a)."""
    ceiling = jnp.cumsum(occupancy_of_cells(env, policy))
    cells = jnp.sum(ndtr(normal[:, :1]) * ceiling[-1] >= ceiling[:-1], axis=1, dtype=jnp.int32)
    return batch_of_cells(env, policy, cells)


def integrate(
    drift: Drift, start: Float[Array, " d"], bound: float, horizon: float, steps: int = ODE_STEPS
) -> Float[Array, "point d"]:
    """The projected equation at `steps` + 1 even times, by fourth-order Runge-Kutta steps.

    Args:
        drift: the right side.
        start: θ(0).
        bound: every θ_i is put back between −bound and bound after each step.
        horizon: the last time.
        steps: how many there are.

    Example:
        >>> path = integrate(lambda θ: -θ, jnp.ones(1), bound=1.0, horizon=1.0)
        >>> round(float(path[-1, 0]), 4)
        0.3679
    """
    h = horizon / steps

    def step(θ, _):
        k1 = drift(θ)
        k2 = drift(θ + h / 2 * k1)
        k3 = drift(θ + h / 2 * k2)
        k4 = drift(θ + h * k3)
        θ = jnp.clip(θ + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), -bound, bound)
        return θ, θ

    later = jax.jit(lambda θ: lax.scan(step, θ, None, steps)[1])(start)
    return jnp.concatenate([start[None], later])
