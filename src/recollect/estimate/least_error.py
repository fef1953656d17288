"""The window that chooses itself: as many batches as leave the least error in the gradient.

More batches have less noise and more bias: other states, other ratios, advantages of a critic that
has moved on. Both show in the gradients by age alone. Given the past, those of old batches are
fixed and only that of the newest is random. How noisy it is, its two halves tell; whatever is
wrong with the old ones, for whatever reason, keeps them apart from it by more than noise does.

Cost: the gradients by age take as long as the gradient of the window, and all else are quadratic
forms of (K + 1)² inner products.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from recollect.checks import check_number
from recollect.estimate.comparison import Comparison
from recollect.estimate.evidence import Evidence
from recollect.estimate.running import RunningMeans
from recollect.estimate.shares import AbstractShares, ChosenShares
from recollect.memory.weights import positive


class LeastErrorMemory(eqx.Module):
    """What `LeastError` remembers of windows of 1, 2, … batches."""

    biases: RunningMeans
    """Estimates of b_k²."""
    noises: RunningMeans
    """v₀, in the updates in which b_k² was estimated."""


class LeastErrorReport(eqx.Module):
    """What `LeastError` measures."""

    ages_used: Float[Array, ""]
    """Batches of the window in use."""
    gradient_noise: Float[Array, ""]
    """v₀: estimated E‖g₀ − g‖² of the newest gradient, in the metric of the algorithm."""
    error_left: Float[Array, ""]
    """Estimated error of the window in use over that of the newest batch alone."""


class LeastError(AbstractShares):
    """All rows alike of the newest k batches, with the k whose mean gradient has the least error.

    Let ḡ_k = Σ_j α_j g_j be the gradient of the newest k batches, and v_j the noise of g_j, which
    is v₀ ESS₀/ESS_j if a row of old batches is worth what its effective sample size says. Then
    E‖ḡ_k − g₀‖² = b_k² + (1 − α₀)² v₀ + Σ_{j ≥ 1} α_j² v_j, where b_k is the bias of ḡ_k, whatever
    its cause. What is left of the measured distance is an estimate of b_k². The window in use has
    the least

        Σ_j α_j² v_j + h (max(b_k², 0) + z s_k)

    with running means of b_k² and v₀ over the updates before, and s_k the standard error of the
    mean of b_k², as if updates were independent. The newest batch does not choose by its own noise,
    and a window is not used before two updates have seen it: the first three use the newest batch
    alone.

    h is how much longer a bias lasts than noise does. Noise of successive updates averages out
    along the way by itself, so far as steps are in proportion to the gradient or have momentum; the
    bias of old batches does not, as it points the same way for many updates. PG and PPO take such
    steps, and have an h above 1 (`AbstractAlgorithm.persistence`). TRPO goes as far as its radius
    lets it however noisy the direction is, NPG by a noisy Fisher matrix: there h is 1.

    PPO sweeps over the rows of the chosen window, as often as gives the steps that the newest batch
    alone would have: the rule decides about data, not about how much work an update is.

    Example:
        Two halves that differ by noise alone, and old gradients at their mean: all are used, as
        soon as two updates have shown it.

        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> evidence = rc.Evidence.fresh(
        ...     jnp.array([4.0, 4.0, 4.0]),
        ...     lambda: rc.Gradients(
        ...         halves=jnp.array([[3.0, 1.0], [-1.0, 1.0]]),
        ...         half_shares=jnp.array([0.5, 0.5]),
        ...         older=jnp.array([[1.0, 1.0], [1.0, 1.0]]),
        ...     ),
        ... )
        >>> rule = rc.LeastError()
        >>> memory = rule.init(ages=3)
        >>> for _ in range(4):
        ...     chosen = rule(evidence, memory)
        ...     memory = chosen.memory
        ...     print(chosen.shares.round(3).tolist())
        [1.0, 0.0, 0.0]
        [1.0, 0.0, 0.0]
        [0.3330000042915344, 0.3330000042915344, 0.3330000042915344]
        [0.3330000042915344, 0.3330000042915344, 0.3330000042915344]
    """

    persistence: float | None = None
    """h; that of the algorithm if not given."""
    margin: float = 1.0
    """z: standard errors by which a bias may be larger than it looks."""
    horizon: float = 20.0
    """Updates over which the running means forget."""

    def __check_init__(self):
        if self.persistence is not None:
            remedy = "give a number of updates, or leave it out to take the algorithm's"
            check_number("persistence", self.persistence, low=0, remedy=remedy)
        check_number("margin", self.margin, low=0, remedy="give a number of standard errors")
        check_number("horizon", self.horizon, low=2, remedy="give at least 2 updates")

    @property
    def in_newest_units(self):
        return True

    @property
    def steps_of_newest(self):
        return True

    def init(self, ages):
        return LeastErrorMemory(biases=RunningMeans.empty(ages), noises=RunningMeans.empty(ages))

    def __call__(self, evidence, memory):
        compared = Comparison.of(evidence)
        windows = compared.windows()
        noise = compared.noise
        variances = windows**2 @ _relative_noise(compared, evidence)
        # (1 − α₀)² for the newest in the place of α₀².
        apart = variances + 1 - 2 * windows[:, 0]
        biases = compared.squared_norm(windows - compared.newest) - apart * noise
        after = LeastErrorMemory(
            biases=memory.biases.with_latest(biases, compared.usable, self.horizon),
            noises=memory.noises.with_latest(
                jnp.full_like(biases, noise), compared.usable, self.horizon
            ),
        )

        persistence = evidence.persistence if self.persistence is None else self.persistence
        # An estimate below zero is chance, or noise that old and newest share: no reason for trust.
        bias = jnp.maximum(memory.biases.mean, 0) + self.margin * memory.biases.error
        lasting = persistence * bias / positive(memory.noises.mean)
        known = compared.usable & jnp.isfinite(bias)
        errors = jnp.where(known, variances + lasting, jnp.inf)
        # The newest alone is its own measure, and needs no past.
        errors = jnp.where(jnp.arange(len(errors)) == 0, 1.0, errors)
        best = jnp.argmin(errors)
        report = LeastErrorReport(
            ages_used=jnp.sum(windows[best] > 0).astype(noise.dtype),
            gradient_noise=noise,
            error_left=errors[best],
        )
        return ChosenShares(windows[best], after, report)


def _relative_noise(compared: Comparison, evidence: Evidence) -> Float[Array, " age"]:
    """v_j / v₀ = ESS₀ / ESS_j; zero where an age is not used."""
    sizes = jnp.where(compared.usable, evidence.effective_sample_size, 0)
    return jnp.where(sizes > 0, sizes[0] / positive(sizes), 0)
