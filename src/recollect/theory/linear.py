"""How errors behave near the optimum θ̄, where the update is linear: closed forms for every step.

Let e_n = θ_n − θ̄, and let ε_n be the noise of the gradient from the batch of iteration n, whose
covariance is Σ_η/B. With the exact ratio ω every reused batch has the mean ∇η(θ_n) ≈ ∇²η e_n of
the *current* θ_n: the drift of a reused gradient is not delayed. Its noise is the mean ε̄_n of
ε_n, …, ε_{n−K+1}, as weights are 1 near θ̄. Write F̂_n⁻¹ = F̄⁻¹ + Δ_n, where Δ_n comes from a
fresh batch of its own and has mean zero (assumption A.1.7). Then

    e_{n+1} = (I + α𝒢) e_n + α (ξ̄_n + ζ_n),    ξ̄_n = F̄⁻¹ε̄_n,    ζ_n = Δ_n ε̄_n

ξ_n = F̄⁻¹ε_n has the covariance S₁ = Σ₁/B and enters K steps by 1/K each: a moving average. ζ_n
has the covariance S₂/K with S₂ = Σ₂/B. It is white, although ε̄_n is not, since the Δ_n are
independent of each other. So e_n is an ARMA(1, K − 1) process.

Left out are products of noise and error: Δ_n∇²η e_n, and the changes of the weights and of Σ_η
with e_n. Each changes the covariance by a share of order α.

With the policy ratio ω̂ old states stay distributed as when they were drawn. The part of the drift
that comes from the distribution of states then acts on the errors of that time: a delay
(`delayed_covariance`).
"""

import numpy as np
import scipy.linalg
from jaxtyping import Float

from recollect.checks import check_count, check_number

Matrix = Float[np.ndarray, "d d"]
Vector = Float[np.ndarray, " d"]


def arma_covariance(
    drift: Matrix,
    averaged: Matrix,
    white: Matrix,
    window: int,
    step: float,
) -> Matrix:
    """P = E[e eᵀ] in the long run of e_{n+1} = (I + α𝒢) e_n + α (ξ̄_n + ζ_n), in O(d³ log K).

    With A = I + α𝒢 and C = E[e_n ξ̄_nᵀ],

        P = A P Aᵀ + α (A C + Cᵀ Aᵀ) + (α²/K) (S₁ + S₂)
        C = 1/K² ((A^K − A)(α𝒢)⁻¹ − (K − 1) I) 𝒢⁻¹ S₁

    since e_n has met ξ_{n−j} in j steps, E[e_n ξ_{n−j}ᵀ] = (α/K) (I + A + … + A^{j−1}) S₁, and C
    is the mean of these over j = 0, …, K − 1. For one parameter, with a = 1 − α|𝒢|,

        P = α²/(1 − a²) ((S₁ + S₂)/K + 2a S₁/K² ((K − 1)/(1 − a) − (a − a^K)/(1 − a)²))

    As α → 0, P/α tends to Σ∞ of Theorem 2. Where αK|𝒢| is large, P tends to 𝒢⁻¹S₁𝒢⁻ᵀ/K, the error
    of the best θ for K batches at once: below the floor that Theorem 2 has for large K.

    Args:
        drift: 𝒢.
        averaged: S₁ = Σ₁/B.
        white: S₂ = Σ₂/B.
        window: K.
        step: α.

    Returns:
        P.

    >>> one = np.eye(1)
    >>> round(float(arma_covariance(-one, one, one, window=1, step=0.5)[0, 0]), 6)
    0.666667
    """
    transition = _stable_transition(drift, window, step)
    power = np.linalg.matrix_power(transition, window)
    met = (power - transition) @ np.linalg.inv(step * drift) - (window - 1) * np.eye(len(drift))
    shared = met @ np.linalg.solve(drift, averaged) / window**2
    carried = step * transition @ shared
    noise = step**2 * (averaged + white) / window + carried + carried.T
    return scipy.linalg.solve_discrete_lyapunov(transition, noise)


def delayed_covariance(
    drift: Matrix,
    delay: Matrix,
    averaged: Matrix,
    white: Matrix,
    window: int,
    step: float,
) -> Matrix:
    """P if a part 𝒟 of the drift acts on the errors at which samples were drawn, in O(d³K³).

        e_{n+1} = e_n + α ((𝒢 − 𝒟) e_n + 𝒟 (e_n + … + e_{n−K+1})/K + ξ̄_n + ζ_n)

    as with the policy ratio ω̂. One Lyapunov equation for the last K errors and K − 1 noises.
    Without delay it is `arma_covariance`, whose other arguments it takes.

    Args:
        drift: 𝒢.
        delay: 𝒟.
        averaged: S₁ = Σ₁/B.
        white: S₂ = Σ₂/B.
        window: K.
        step: α.

    >>> one = np.eye(1)
    >>> errors = delayed_covariance(-one, 0 * one, one, one, window=3, step=0.5)
    >>> bool(np.isclose(errors, arma_covariance(-one, one, one, window=3, step=0.5)))
    True
    """
    _stable_transition(drift, window, step)
    size = len(drift)
    transition = _companion(drift, delay, window, step)
    radius = np.abs(np.linalg.eigvals(transition)).max()
    if radius >= 1:
        raise ValueError(
            f"step={step!r} with window={window} makes delayed errors grow by {radius:.4g} a "
            "step, so they have no stationary covariance; give a smaller step or window."
        )
    source = np.zeros((len(transition), 2 * size))
    source[:size, :size] = step / window * np.eye(size)
    source[:size, size:] = step * np.eye(size)
    if window > 1:
        source[window * size : (window + 1) * size, :size] = np.eye(size)
    fresh = np.asarray(scipy.linalg.block_diag(averaged, white / window))
    noise = source @ fresh @ source.T
    return scipy.linalg.solve_discrete_lyapunov(transition, noise)[:size, :size]


def mean_error(
    drift: Matrix,
    delay: Matrix,
    window: int,
    step: float,
    start: Vector,
    iterations: int,
) -> Vector:
    """E[e_n] after n = `iterations` steps from e_0 = `start` with an empty history.

    Without delay it is (I + α𝒢)ⁿ e_0 for any window. With delay old errors are averaged over those
    that exist.

    Args:
        drift: 𝒢.
        delay: 𝒟.
        window: K.
        step: α.
        start: e_0.
        iterations: n.

    >>> one = np.eye(1)
    >>> mean_error(-one, 0 * one, window=5, step=0.5, start=np.ones(1), iterations=2).tolist()
    [0.25]
    """
    errors = [np.asarray(start, float)]
    for _ in range(iterations):
        now = errors[-1]
        old = np.mean(errors[-window:], axis=0)
        errors.append(now + step * ((drift - delay) @ now + delay @ old))
    return errors[-1]


def autocovariance(
    drift: Matrix,
    stationary: Matrix,
    lags: Float[np.ndarray, " lag"],
) -> Float[np.ndarray, "lag d d"]:
    """Cov(E(t + τ), E(t)) = e^{𝒢τ} Σ∞ of the stationary solution of dE = 𝒢E dt + dW, τ ≥ 0."""
    return np.stack([scipy.linalg.expm(drift * lag) @ stationary for lag in lags])


def _companion(
    drift: Matrix,
    delay: Matrix,
    window: int,
    step: float,
) -> Float[np.ndarray, "n n"]:
    """The step of (e_n, …, e_{n−K+1}, ξ_{n−1}, …, ξ_{n−K+1}) as one matrix."""
    size = len(drift)
    errors = window * size
    matrix = np.zeros((errors + (window - 1) * size,) * 2)
    # Old errors and old noises move one place on; the last of each is forgotten.
    matrix[size:errors, : errors - size] = np.eye(errors - size)
    matrix[errors + size :, errors:-size] = np.eye(max(errors - 2 * size, 0))
    matrix[:size, :size] = np.eye(size) + step * (drift - delay)
    matrix[:size, :errors] += step / window * np.tile(delay, window)
    matrix[:size, errors:] = step / window * np.tile(np.eye(size), window - 1)
    return matrix


def _stable_transition(drift: Matrix, window: int, step: float) -> Matrix:
    """I + α𝒢, if errors die out under it."""
    check_count("window", window)
    check_number("step", step, low=0, open_low=True, remedy="give a step size above 0")
    transition = np.eye(len(drift)) + step * drift
    radius = np.abs(np.linalg.eigvals(transition)).max()
    if radius >= 1:
        raise ValueError(
            f"step={step!r} makes errors grow by {radius:.4g} a step, so they have no stationary "
            "covariance; give a smaller step, and the drift at a strict maximum of η."
        )
    return transition
