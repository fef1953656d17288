"""Closed forms on the linear quadratic control problem of section 5.5.

The theorems can be checked to the last digit there. With X = s + a = θ + Z and Z ~ N(0, 1) under
d^{π_θ}, in the corrected sign of the score (docs/errata.md):

    η(θ) = −(1 + θ²)/(1 − γ)      A = 1 + θ² − X²      ∇log π = Z      F = 1
    G = A ∇log π/(1 − γ) = (Z − 2θZ² − Z³)/(1 − γ)
    E[G] = ∇η = −2θ/(1 − γ)      Var(G) = Σ_η = (10 + 8θ²)/(1 − γ)²

F̂ = ε + Σ Z_i²/B does not depend on θ, and Σ Z_i² is χ² with B degrees of freedom: moments of 1/F̂
are integrals over one variable.
"""

import dataclasses
import itertools

import numpy as np
from scipy.integrate import quad
from scipy.special import gammaln
from scipy.stats import chi2

from recollect.checks import check_count, check_number


def expected_return(shift: float, discount: float = 0.5) -> float:
    """η(θ) = −(1 + θ²)/(1 − γ).

    Example:
        >>> expected_return(shift=1.0)
        -4.0
    """
    return -(1 + shift**2) / (1 - discount)


def return_gradient(shift: float, discount: float = 0.5) -> float:
    """∇η(θ) = −2θ/(1 − γ).

    Example:
        >>> return_gradient(shift=1.0)
        -4.0
    """
    return -2 * shift / (1 - discount)


def advantage(shift: float, position: float, action: float) -> float:
    """A^{π_θ}(s, a) = 1 + θ² − (s + a)²."""
    return 1 + shift**2 - (position + action) ** 2


def score(shift: float, position: float, action: float) -> float:
    """∇log π_θ(a|s), with the sign that the calculation needs and the text misprints."""
    return position + action - shift


def gradient_variance(shift: float = 0.0, discount: float = 0.5) -> float:
    """Σ_η(θ) = Var(G) = (10 + 8θ²)/(1 − γ)².

    Example:
        >>> gradient_variance()
        40.0
    """
    return (10 + 8 * shift**2) / (1 - discount) ** 2


def inverse_fisher_moments(batch: int, damping: float) -> tuple[float, float]:
    """E[F̂⁻¹] and E[F̂⁻²] of a Fisher estimate F̂ = ε + Σ Z_i²/B.

    Args:
        batch: B.
        damping: ε.

    Example:
        >>> first, second = inverse_fisher_moments(batch=5, damping=0.0)  # B/(B − 2), …
        >>> round(first, 6), round(second, 6)
        (1.666667, 8.333333)
    """
    _check(batch, damping)
    # By the root R of ΣZ², whose density r^(B−1) exp(−r²/2) has no singularity at zero.
    log_scale = (1 - batch / 2) * np.log(2) - gammaln(batch / 2)

    def density(r: float) -> float:
        if r == 0:
            return float(batch == 1) * np.exp(log_scale)
        return np.exp(log_scale + (batch - 1) * np.log(r) - r**2 / 2)

    inverse = lambda r: 1 / (damping + r**2 / batch)
    middle = np.sqrt(batch)
    # 1/F̂ has a peak at zero that is as narrow as the knee, where ε and r²/B are equal; beyond ten
    # standard deviations of R nothing is left.
    knee = np.sqrt(batch * damping)
    breaks = [0.0, knee, 10 * knee, middle - 3, middle, middle + 3, middle + 10]
    breaks = np.unique(np.clip(breaks, 0, middle + 10))

    def integral(power: int) -> float:
        value = lambda r: density(r) * inverse(r) ** power
        parts = itertools.pairwise(breaks)
        return sum(
            quad(value, low, high, epsabs=0, epsrel=1e-12, limit=200)[0] for low, high in parts
        )

    return integral(1), integral(2)


@dataclasses.dataclass(frozen=True)
class Moments:
    """Everything in Theorem 2 at θ̄ = 0, as numbers."""

    inverse_fisher: float
    """F̄⁻¹ = E[F̂⁻¹]."""
    inverse_fisher_square: float
    """E[F̂⁻²]."""
    gradient_variance: float
    """Σ_η."""
    sigma_1: float
    """Σ₁ = F̄⁻² Σ_η: what the gradient's samples cause."""
    sigma_2_prime: float
    """Σ₂′ = E[F̂⁻²] Σ_η."""
    sigma_2: float
    """Σ₂ = Σ₂′ − Σ₁: the joint effect of both samples, which reuse divides by K."""
    drift: float
    """𝒢 = −2 F̄⁻¹/(1 − γ)."""
    noise: float
    """Σ̂ = Σ₁/B + Σ₂/(K B)."""
    asymptotic_variance: float
    """Σ∞ = −Σ̂/(2𝒢), the variance of E_n = (θ_n − θ̄)/√α_n as n grows."""


def moments(
    batch: int, window: int, damping: float = 0.01, discount: float = 0.5, fisher_window: int = 1
) -> Moments:
    """The quantities of Theorem 2 for B = `batch` and K = `window`.

    The theorem is about a Fisher matrix from fresh samples, `fisher_window=1`. A larger one gives
    the natural conjecture beyond it, in which the moments of F̂⁻¹ are those of an estimate from
    `fisher_window` times as many samples.

    Args:
        batch: B.
        window: K.
        damping: ε.
        discount: γ.
        fisher_window: K₂.
    """
    check_count("window", window)
    check_count("fisher_window", fisher_window)
    remedy = "give a discount in [0, 1)"
    check_number("discount", discount, low=0, high=1, open_high=True, remedy=remedy)
    first, second = inverse_fisher_moments(batch * fisher_window, damping)
    spread = gradient_variance(0.0, discount)
    sigma_1 = first**2 * spread
    sigma_2_prime = second * spread
    drift = -2 * first / (1 - discount)
    noise = sigma_1 / batch + (sigma_2_prime - sigma_1) / (window * batch)
    return Moments(
        inverse_fisher=first,
        inverse_fisher_square=second,
        gradient_variance=spread,
        sigma_1=sigma_1,
        sigma_2_prime=sigma_2_prime,
        sigma_2=sigma_2_prime - sigma_1,
        drift=drift,
        noise=noise,
        asymptotic_variance=-noise / (2 * drift),
    )


def asymptotic_variance(
    batch: int, window: int, damping: float = 0.01, discount: float = 0.5, fisher_window: int = 1
) -> float:
    """Σ∞ of RNPG on LQC (Theorem 2); a window of 1 is VNPG.

    The arguments are those of `moments`.

    Example:
        >>> [round(asymptotic_variance(batch=5, window=K), 2) for K in (1, 10)]
        [3.45, 1.79]
    """
    return moments(batch, window, damping, discount, fisher_window).asymptotic_variance


def constant_step_variance(
    batch: int,
    step: float,
    damping: float = 0.01,
    discount: float = 0.5,
) -> float:
    """E[θ²] of VNPG with a constant step size α in the long run: exact, if Θ is all numbers.

    θ_{n+1} = θ_n + α F̂⁻¹ĝ, where F̂ and ĝ are independent and depend on θ_n by E[ĝ] = −hθ,
    h = 2/(1 − γ), and Var(ĝ) = (10 + 8θ²)/((1 − γ)²B). So P = E[θ²] solves

        P = P − 2αhE[F̂⁻¹]P + α²E[F̂⁻²] (h²P + (10 + 8P)/((1 − γ)²B))

    The linear theory (`recollect.theory.linear`) has E[F̂⁻¹]² where h²P is multiplied by E[F̂⁻²], and
    no 8P. Beyond the step at which the factor of P reaches 1 the variance is infinite.

    Args:
        batch: B.
        step: α.
        damping: ε.
        discount: γ.
    """
    first, second = inverse_fisher_moments(batch, damping)
    slope = 2 / (1 - discount)
    fixed = gradient_variance(0.0, discount) / batch
    growing = (gradient_variance(1.0, discount) - gradient_variance(0.0, discount)) / batch
    most = 2 * slope * first / (second * (slope**2 + growing))
    remedy = f"give a step size above 0 and below {most:.4g}, where the variance becomes infinite"
    check_number("step", step, low=0, high=most, open_low=True, open_high=True, remedy=remedy)
    return step * second * fixed / (2 * slope * first - step * second * (slope**2 + growing))


def overlapping_variance(
    batch: int, window: int, fisher_window: int, damping: float = 0.01, discount: float = 0.5
) -> float:
    """Σ∞ with reuse in the Fisher matrix, where the conjecture of `moments` leaves something out.

    Two steps that lie ℓ iterations apart share (K₁ − ℓ)B samples in their gradients, and (K₂ − ℓ)B
    in their Fisher matrices: these are then correlated too.

        Σ̂ = Σ_η/(K₁²B) Σ_{|ℓ|<K₁} (K₁ − |ℓ|) E[F̂_n⁻¹F̂_{n+ℓ}⁻¹]

    The conjecture takes F̄⁻² for every ℓ ≠ 0.

    Args:
        batch: B.
        window: K₁.
        fisher_window: K₂.
        damping: ε.
        discount: γ.
    """
    simple = moments(batch, window, damping, discount, fisher_window)
    shared = [fisher_correlation(batch, fisher_window, lag, damping) for lag in range(window)]
    total = window * shared[0] + 2 * sum((window - lag) * shared[lag] for lag in range(1, window))
    return -simple.gradient_variance * total / (window**2 * batch) / (2 * simple.drift)


def fisher_correlation(batch: int, fisher_window: int, lag: int, damping: float) -> float:
    """E[F̂_n⁻¹ F̂_{n+ℓ}⁻¹] of Fisher estimates from windows that overlap in (K₂ − ℓ)B samples.

    Given the common samples both are independent and alike, so that it is E[E[F̂⁻¹ | common]²].

    Args:
        batch: B.
        fisher_window: K₂.
        lag: ℓ.
        damping: ε.
    """
    first, second = inverse_fisher_moments(batch * fisher_window, damping)
    if lag == 0:
        return second
    if lag >= fisher_window:
        return first**2
    # Gauss-Legendre in the quantiles of both sums of squares.
    nodes, weights = np.polynomial.legendre.leggauss(400)
    weights = weights / 2
    draws = lambda count: chi2.ppf((nodes + 1) / 2, count * batch)
    own = draws(lag)
    common = draws(fisher_window - lag)
    fisher = damping + (common[:, None] + own) / (batch * fisher_window)
    given_common = (1 / fisher) @ weights
    return float(given_common**2 @ weights)


def _check(batch: int, damping: float) -> None:
    check_count("batch", batch, "give the number of samples in an iteration")
    remedy = "give a number above 0, for example 0.01"
    check_number("damping", damping, low=0, open_high=True, remedy=remedy)
    if damping == 0 and batch < 5:
        raise ValueError(
            f"damping=0.0 with batch={batch} leaves E[F̂⁻²] infinite, as ΣZ² is χ² with {batch} "
            "degrees of freedom and its inverse square needs at least 5; "
            "give damping > 0 or batch >= 5."
        )
