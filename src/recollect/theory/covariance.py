"""The moments of Theorem 2 for a finite MDP, and the stationary covariance that follows from them.

    𝒢 Σ∞ + Σ∞ 𝒢ᵀ + Σ̂ = 0,    Σ̂ = Σ₁/B + Σ₂/(KB),    𝒢 = F̄⁻¹ ∇²η(θ̄)

A batch of B independent draws from n pairs (s, a) says no more than how often each pair occurs, so
every expectation over batches is a finite sum over C(B + n − 1, B) counts, each with a d×d inverse.
Beyond `MOST_COUNTS` of them the counts have to be drawn.

The theorem speaks of a maximum of η inside Θ. A softmax table has none (its maximum lies at
infinity, and adding a constant to a state's logits changes nothing); policies that share parameters
between states, so that the best of them is a compromise, do. Σ₁ and Σ₂ exist at any θ, and only
what needs 𝒢 asks for a maximum.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.optimize
from jaxtyping import Float, Int
from scipy.special import gammaln, xlogy

from recollect.checks import check_count, check_number
from recollect.envs import Tabular
from recollect.policies import AbstractPolicy
from recollect.policies.scores import score_matrix
from recollect.statistics import jackknife_error, leave_out
from recollect.tree import Module, flatten

MOST_COUNTS = 100_000
"""Different batches that are summed over exactly; a second or so for d = 10."""
BLOCKS = 20
"""Parts of the drawn batches that are left out in turn for the error bars."""
CHUNK = 4096
"""Batches whose d×d matrices are held at a time."""

Matrix = Float[np.ndarray, "d d"]


def stationary_covariance(drift: Matrix, noise: Matrix) -> Matrix:
    """Σ∞ of dE = 𝒢E dt + dW with Cov(W) = Σ̂ dt, which solves 𝒢Σ∞ + Σ∞𝒢ᵀ + Σ̂ = 0 in O(d³).

    The same as vec Σ∞ = −(𝒢 ⊕ 𝒢)⁻¹ vec Σ̂ of Theorem 2, which takes O(d⁶).

    Args:
        drift: 𝒢.
        noise: Σ̂.

    Example:
        >>> float(stationary_covariance(np.array([[-2.0]]), np.array([[1.0]]))[0, 0])
        0.25
    """
    eigenvalues = np.linalg.eigvals(drift)
    worst = eigenvalues[eigenvalues.real.argmax()]
    # An eigenvalue of zero comes out as one of the order of rounding errors.
    if worst.real >= -1e-9 * np.abs(eigenvalues).max():
        raise ValueError(
            f"drift has the eigenvalue {worst:.3g}, whose real part is not below 0, so errors do "
            "not die out and have no stationary covariance; give the drift at a strict maximum of "
            "η, and take out parameters that do not change the policy."
        )
    return scipy.linalg.solve_continuous_lyapunov(drift, -noise)


@dataclasses.dataclass(frozen=True)
class Moments:
    """What Theorem 2 needs to know of a problem at θ, for batches of one size.

    Windows K come in afterwards.
    """

    batch: int
    """B."""
    inverse_fisher: Matrix
    """F̄⁻¹ = E[(εI + (1/B) Σ S(ξ_i))⁻¹]."""
    gradient_covariance: Matrix
    """Σ_η = Var(G), of one draw."""
    solved_covariance: Matrix
    """Σ₂′ = E[F̂⁻¹ Σ_η F̂⁻ᵀ]."""
    gradient: Float[np.ndarray, " d"]
    """∇η."""
    hessian: Matrix
    """∇²η."""
    without: tuple["Moments", ...] = ()
    """The same with one block of the drawn batches left out each; none if the moments are exact."""

    @property
    def sigma_1(self) -> Matrix:
        """Σ₁ = F̄⁻¹ Σ_η F̄⁻ᵀ: noise of the gradient, which reuse only moves to later steps."""
        return self.inverse_fisher @ self.gradient_covariance @ self.inverse_fisher.T

    @property
    def sigma_2(self) -> Matrix:
        """Σ₂ = Σ₂′ − Σ₁: noise of gradient and Fisher matrix together, which reuse divides by K."""
        return self.solved_covariance - self.sigma_1

    @property
    def drift(self) -> Matrix:
        """𝒢, the derivative of F̄⁻¹∇η at a θ where ∇η = 0.

        F̄⁻¹ itself need not be differentiated there.
        """
        length = np.linalg.norm(self.gradient)
        spread = math.sqrt(np.trace(self.gradient_covariance))
        if length > 1e-3 * spread:
            raise ValueError(
                f"gradient has length {length:.3g} here, against a spread of {spread:.3g} in one "
                "draw, and the drift is that at a maximum; "
                "pass the policy through recollect.theory.covariance.optimum first."
            )
        return self.inverse_fisher @ self.hessian

    def noise(self, window: int) -> Matrix:
        """Σ̂ = Σ₁/B + Σ₂/(KB) for window K."""
        check_count("window", window)
        return (self.sigma_1 + self.sigma_2 / window) / self.batch

    def stationary(self, window: int) -> Matrix:
        """Σ∞, the covariance of (θ_n − θ̄)/√α_n in the limit."""
        return stationary_covariance(self.drift, self.noise(window))

    def error(self, quantity: Callable[["Moments"], np.ndarray]) -> np.ndarray:
        """Standard error of any quantity of the moments, by the jackknife over blocks of batches.

        Args:
            quantity: a function of the moments, for example `lambda m: m.sigma_1`.

        Returns:
            An array of the quantity's shape; zero if the moments are exact.
        """
        if not self.without:
            return np.zeros_like(quantity(self))
        return jackknife_error([quantity(each) for each in self.without])


def moments(
    env: Tabular,
    policy: AbstractPolicy,
    batch: int,
    damping: float,
    replications: int | None = None,
    seed: int = 0,
) -> Moments:
    """The moments of `policy` in `env`: exact sums over all batches, or means over drawn ones.

    Args:
        env: a finite MDP.
        policy: any policy for it, with at most a few hundred parameters.
        batch: B, draws for the gradient, and as many others for the Fisher matrix (assumption
            A.1.7).
        damping: ε.
        replications: batches drawn from d^π, where there are too many to sum over.
        seed: of those draws.
    """
    check_count("batch", batch)
    remedy = "give a number above 0; one batch's Fisher matrix may be singular"
    check_number("damping", damping, low=0, open_low=True, remedy=remedy)
    with jax.enable_x64(True):
        answers = [np.asarray(answer) for answer in _answers(_in_double(env), _in_double(policy))]
    probability, advantages, scores, gradient, hessian = answers
    # Rounding may leave a probability below zero, and a sum that is not one.
    probability = np.maximum(probability, 0) / np.maximum(probability, 0).sum()
    one = advantages[:, None] * scores / (1 - float(env.discount))
    mean = probability @ one
    covariance = (probability[:, None] * one).T @ one - np.outer(mean, mean)

    def of(counts, weights, without=()):
        """Moments as means over batches in which each pair occurs so often."""
        inverse, solved = _expectations(counts / batch, weights, scores, covariance, damping)
        return Moments(batch, inverse, covariance, solved, gradient, hessian, without)

    if replications is None:
        counts = _all_counts(len(probability), batch)
        # Multinomial probabilities.
        each = xlogy(counts, probability) - gammaln(counts + 1)
        return of(counts, np.exp(gammaln(batch + 1) + each.sum(1)))
    remedy = f"give at least {BLOCKS} batches, or None for exact sums"
    check_number("replications", replications, low=BLOCKS, remedy=remedy)
    drawn = np.random.default_rng(seed).multinomial(batch, probability, replications)
    equal = lambda counts: np.full(len(counts), 1 / len(counts))
    without = tuple(of(counts, equal(counts)) for counts in leave_out(drawn, BLOCKS))
    return of(drawn, equal(drawn), without)


@eqx.filter_jit
def _answers(env: Tabular, policy: AbstractPolicy):
    """d^π(s, a), A(s, a) and ∇log π(a|s) of every pair, state by state; ∇η and ∇²η."""
    states, actions = env.rewards.shape
    probability = env.occupancy(policy)[:, None] * env.probabilities(policy)
    pairs = jnp.repeat(jnp.eye(states), actions, axis=0), jnp.tile(jnp.arange(actions), states)
    _, scores = score_matrix(policy, *pairs)
    θ, unflatten = flatten(policy)
    value = lambda θ: env.expected_return(unflatten(θ))
    return (
        probability.ravel(),
        env.advantages(policy).ravel(),
        scores.columns().T,
        jax.grad(value)(θ),
        jax.hessian(value)(θ),
    )


def optimum(env: Tabular, policy: AbstractPolicy) -> AbstractPolicy:
    """The policy at a strict local maximum of η, by Newton's method with a trust region.

    Args:
        env: a finite MDP.
        policy: from which the search starts.
    """
    with jax.enable_x64(True):
        exact = _in_double(env)
        start, unflatten = flatten(_in_double(policy))
        loss = lambda θ: -exact.expected_return(unflatten(θ))
        value = jax.jit(jax.value_and_grad(loss))
        hessian = jax.jit(jax.hessian(loss))
        result = scipy.optimize.minimize(
            lambda θ: tuple(np.asarray(x, float) for x in value(θ)),
            np.asarray(start),
            jac=True,
            hess=lambda θ: np.asarray(hessian(θ)),
            method="trust-exact",
            options=dict(gtol=1e-10),
        )
        curvature = np.linalg.eigvalsh(np.asarray(hessian(result.x)))
    slope = np.abs(result.jac).max()
    if slope > 1e-6 * np.abs(curvature).max() or curvature[0] < 1e-6 * curvature[-1]:
        raise ValueError(
            "policy leads to no strict maximum of η: Newton's method ended at "
            f"|θ| = {np.linalg.norm(result.x):.3g}, where the curvature of "
            f"η lies between {-curvature[-1]:.3g} and {-curvature[0]:.3g}; "
            "softmax tables have none, let states share parameters."
        )
    parameters, unflatten = flatten(policy)
    return unflatten(jnp.asarray(result.x, parameters.dtype))


def _in_double(module: Module) -> Module:
    """The module with its arrays in double precision; within `jax.enable_x64`."""
    return jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64) if eqx.is_inexact_array(x) else x, module
    )


def _all_counts(pairs: int, batch: int) -> Int[np.ndarray, "batch_kind pair"]:
    """How often each pair may occur in a batch.

    Every way to place `pairs` − 1 bars among `batch` stars: the stars between two bars are the
    draws of one pair.
    """
    total = math.comb(batch + pairs - 1, batch)
    if total > MOST_COUNTS:
        raise ValueError(
            f"batch={batch} draws from {pairs} pairs (s, a) make {total:,} different batches, "
            "too many to sum over; give replications, for example 100000, to draw some."
        )
    places = batch + pairs - 1
    chosen = list(itertools.combinations(range(places), pairs - 1))
    bars = np.array(chosen, int).reshape(total, pairs - 1)
    before = np.full((total, 1), -1)
    behind = np.full((total, 1), places)
    return np.diff(np.concatenate([before, bars, behind], axis=1), axis=1) - 1


def _expectations(shares, weights, scores, covariance, damping) -> tuple[Matrix, Matrix]:
    """Σ w F̂⁻¹ and Σ w F̂⁻¹ Σ_η F̂⁻ᵀ over batches with these shares of each pair."""
    size = scores.shape[1]
    mean = np.zeros((size, size))
    solved = np.zeros((size, size))
    for start in range(0, len(shares), CHUNK):
        part = shares[start : start + CHUNK]
        w = weights[start : start + CHUNK]
        fisher = np.einsum("bn,nd,ne->bde", part, scores, scores, optimize=True)
        inverse = np.linalg.inv(fisher + damping * np.eye(size))
        mean += np.einsum("b,bde->de", w, inverse)
        solved += np.einsum("b,bde->de", w, inverse @ covariance @ inverse)
    return mean, solved
