"""Rules of shares that decide at every update whether old batches help, and how much.

All three may leave every old batch out, and are then a window of 1. `WhileClose` goes by how far
the policies have moved apart and is blind to bias. `JamesStein` and `CrossValidated` compare
gradients: given the past, those of old batches are constants, and only the newest one is random,
so that whatever makes old data misleading (states that are not visited any more, a critic that has
changed, ratios cut off) shows in it.

Cost: the gradients by age take as long as the gradient of the window, and all else are quadratic
forms of the (K + 1)² inner products.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from recollect.checks import check_number
from recollect.estimate.comparison import Comparison
from recollect.estimate.running import RunningMeans
from recollect.estimate.shares import AbstractShares, ChosenShares, normalised
from recollect.memory.weights import positive

LEAST_SIGNAL = 0.05
"""Smallest share of signal that is reported."""
FEWEST = 8
"""Observations before a standard error is believed."""


class WhileClose(AbstractShares):
    """Old batches count for as long as the policies that collected them are close to this one.

    Age j is used if ESS_j / N_j ≥ ½, the mean of |ρ − 1| for one dimension of the action is at most
    0.1 (Han and Sung 2019, "Dimension-wise importance sampling weight clipping"), and all younger
    ages are used; then α_j ∝ ESS_j. The newest always counts.

    Example:
        The third of four batches is too far away, and so all older ones are.

        >>> import dataclasses
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> evidence = dataclasses.replace(
        ...     rc.Evidence.fresh(jnp.full(4, 10.0)),
        ...     ratio_deviation=jnp.array([0.0, 0.05, 0.2, 0.05]),
        ... )
        >>> rc.WhileClose()(evidence, None).shares.tolist()
        [0.5, 0.5, 0.0, 0.0]
    """

    least_effective: float = 0.5
    """Smallest effective sample size of a batch in use, as a part of its transitions."""
    largest_deviation: float = 0.1
    """Largest mean of |ρ − 1| for one dimension of the action."""

    def __check_init__(self):
        remedy = "give a part of the transitions, from 0 to 1"
        check_number("least_effective", self.least_effective, low=0, high=1, remedy=remedy)
        remedy = "give the largest mean of |ρ − 1|, for example 0.1"
        check_number(
            "largest_deviation", self.largest_deviation, low=0, infinite=True, remedy=remedy
        )

    @property
    def in_newest_units(self):
        return True

    def __call__(self, evidence, memory):
        size = evidence.effective_sample_size
        close = size >= self.least_effective * evidence.transitions
        close &= evidence.ratio_deviation <= self.largest_deviation
        # A slot that is still empty, or holds a batch that was forgotten, ends nothing.
        close |= (evidence.transitions == 0) | (jnp.arange(len(size)) == 0)
        return ChosenShares(normalised(jnp.where(jnp.cumprod(close) > 0, size, 0)))


class JamesSteinMemory(eqx.Module):
    """What `JamesStein` remembers."""

    risks: RunningMeans
    """‖ḡ_k − g₀‖² + 2α₀v₀ of the windows of 1, 2, … batches."""


class JamesSteinReport(eqx.Module):
    """What `JamesStein` measures."""

    old_share: Float[Array, ""]
    """β: how much all old batches together contributed."""
    gradient_noise: Float[Array, ""]
    """v₀: estimated E‖g₀ − g‖² of the newest gradient, in the metric of the algorithm."""
    disagreement: Float[Array, ""]
    """D = ‖g_old − g₀‖²."""
    signal_share: Float[Array, ""]
    """s: estimated part of ‖ĝ‖² that is no error."""
    ages_compared: Float[Array, ""]
    """Ages of the window that g_old was taken from, the newest included."""


class JamesStein(AbstractShares):
    """The newest gradient is shrunk towards that of older batches, as far as its noise asks for it.

    With g₀ the newest gradient, v₀ the estimate of its E‖g₀ − g‖² from two halves of the batch, and
    g_old the mean gradient of older batches, D = ‖g_old − g₀‖² and

        ĝ = (1 − β) g₀ + β g_old,    β = min(1, c v₀ / D, v₀ / (v₀ + h max(D − v₀, 0))).

    With c alone this is the positive-part estimator of James and Stein (1961), whose risk is below
    v₀ wherever g_old points, if g₀ is normal and its noise has enough dimensions. D − v₀ estimates
    ‖g_old − g‖², which acts in the same direction for as many updates as a batch stays in use,
    while noise does not: h counts it so often.

    Which batches g_old is made of is decided before the newest is seen: the window of k batches
    with the least running mean of ‖ḡ_k − g₀‖² + 2α₀v₀ (α₀ = 1/k is the share of the newest in its
    mean ḡ_k), which is an unbiased estimate of the risk E‖ḡ_k − g‖² but for the constant v₀.

    The gradient ĝ has an estimated risk of R = ‖ĝ − g₀‖² + (1 − 2β)v₀, and s = 1 − R/‖ĝ‖² of it is
    signal.

    Example:
        Half of the squared distance between the gradients is noise, c = 0.8 and h = 1: β is 0.4.

        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> evidence = rc.Evidence.fresh(
        ...     jnp.array([4.0, 4.0]),
        ...     lambda: rc.Gradients(
        ...         halves=jnp.array([[2.0, 1.0], [0.0, 1.0]]),
        ...         half_shares=jnp.array([0.5, 0.5]),
        ...         older=jnp.array([[2.0, 2.0]]),
        ...     ),
        ... )
        >>> rule = rc.JamesStein(persistence=1.0)
        >>> first = rule(evidence, rule.init(ages=2))
        >>> first.shares.tolist()  # nothing is known yet of windows of two
        [1.0, 0.0]
        >>> rule(evidence, first.memory).shares.round(3)
        Array([0.6, 0.4], dtype=float32)
    """

    shrinkage: float = 0.8
    """c: below 1 where the noise has few dimensions; 0 for no reuse."""
    persistence: float | None = None
    """h: for how many updates a bias counts; as many as there are batches in g_old and g₀, if not
    given."""
    horizon: float = 20.0
    """Updates over which the running means forget."""
    scale_step: bool = eqx.field(static=True, default=False)
    """Multiply the step by s, at least 0.05, so that it shrinks where only noise is left."""

    def __check_init__(self):
        remedy = "give a number from 0 to 1"
        check_number("shrinkage", self.shrinkage, low=0, high=1, remedy=remedy)
        if self.persistence is not None:
            remedy = "give a number of updates, at least 1, or leave it out"
            check_number("persistence", self.persistence, low=1, remedy=remedy)
        _check_horizon(self.horizon, least=2)

    @property
    def in_newest_units(self):
        return True

    def init(self, ages):
        return JamesSteinMemory(risks=RunningMeans.empty(ages))

    def __call__(self, evidence, memory):
        compared = Comparison.of(evidence)
        windows = compared.windows()
        noise = compared.noise
        distances = compared.squared_norm(windows - compared.newest)
        risks = distances + 2 * windows[:, 0] * noise
        after = memory.risks.with_latest(risks, compared.usable, self.horizon)

        known = (memory.risks.weight > 0) & compared.usable
        window = jnp.argmin(jnp.where(known, memory.risks.mean, jnp.inf))
        old = normalised(windows[window].at[0].set(0))
        disagreement = compared.squared_norm(old - compared.newest)
        β = self._old_share(noise, disagreement, window + 1)
        β = jnp.where(old.any(), β, 0)
        shares = (1 - β) * compared.newest + β * old

        error = compared.squared_norm(shares - compared.newest) + (1 - 2 * β) * noise
        signal = 1 - error / positive(compared.squared_norm(shares))
        signal = jnp.clip(signal, LEAST_SIGNAL, 1)
        report = JamesSteinReport(
            old_share=β,
            gradient_noise=noise,
            disagreement=disagreement,
            signal_share=signal,
            ages_compared=(window + 1).astype(noise.dtype),
        )
        return ChosenShares(
            shares=shares,
            memory=JamesSteinMemory(risks=after),
            report=report,
            step_scale=signal if self.scale_step else 1.0,
        )

    def _old_share(
        self,
        noise: Float[Array, ""],
        disagreement: Float[Array, ""],
        window: Int[Array, ""],
    ) -> Float[Array, ""]:
        """β."""
        shrunk = self.shrinkage * noise / positive(disagreement)
        persistence = window if self.persistence is None else self.persistence
        lasting = noise + persistence * jnp.maximum(disagreement - noise, 0)
        return jnp.minimum(jnp.minimum(1, shrunk), noise / positive(lasting))


class CrossValidatedMemory(eqx.Module):
    """What `CrossValidated` remembers."""

    gains: RunningMeans
    """Of windows of 1, 2, 4, … batches over a window of 1."""


class CrossValidatedReport(eqx.Module):
    """What `CrossValidated` measures."""

    ages_used: Float[Array, ""]
    """Batches of the window in use."""
    gain: Float[Array, ""]
    """Running mean of what the best window gains over a window of 1."""
    gain_error: Float[Array, ""]
    """Its standard error; 0 where it is not known."""


class CrossValidated(AbstractShares):
    """The window whose direction from one half of the newest batch gains most on the other half.

    A window of k batches, its newest one replaced by a half of it, has the gradient h. Its gain is
    ⟨h, g⟩ / ‖h‖ with the gradient g of the other half, averaged over both ways: unbiased for what a
    step of unit length gains to first order. The windows of 2, 4, … batches are compared with that
    of 1, and the best of those whose running mean exceeds its standard error is used, all rows
    alike; else the newest batch alone.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> rule = rc.CrossValidated()
        >>> evidence = rc.Evidence.fresh(
        ...     jnp.array([4.0, 4.0]),
        ...     lambda: rc.Gradients(
        ...         halves=jnp.array([[1.0, 3.0], [1.0, -2.0]]),
        ...         half_shares=jnp.array([0.5, 0.5]),
        ...         older=jnp.array([[1.0, 0.0]]),
        ...     ),
        ... )
        >>> memory = rule.init(ages=2)
        >>> for _ in range(10):  # the older gradient always points where both halves do
        ...     chosen = rule(evidence, memory)
        ...     memory = chosen.memory
        >>> chosen.shares.tolist()
        [0.5, 0.5]
    """

    margin: float = 1.0
    """Standard errors by which the gain has to exceed 0."""
    horizon: float = 30.0
    """Updates over which the running means forget."""

    def __check_init__(self):
        check_number("margin", self.margin, low=0, remedy="give a number of standard errors")
        _check_horizon(self.horizon, least=FEWEST)

    @property
    def in_newest_units(self):
        return True

    def init(self, ages):
        return CrossValidatedMemory(gains=RunningMeans.empty(len(_lengths(ages))))

    def __call__(self, evidence, memory):
        compared = Comparison.of(evidence)
        lengths = _lengths(len(evidence.rows))
        windows = compared.windows()[lengths - 1]
        gains = compared.gains(windows)
        gains = memory.gains.with_latest(
            gains - gains[0], compared.usable[lengths - 1], self.horizon
        )
        # Decided before the newest batch is seen: its halves must not choose by their own noise.
        past = memory.gains
        trusted = (past.count >= FEWEST) & (past.mean > self.margin * past.error)
        trusted &= compared.usable[lengths - 1]
        best = jnp.argmax(jnp.where(trusted, past.mean, 0))
        error = past.error[best]
        report = CrossValidatedReport(
            ages_used=jnp.asarray(lengths, float)[best],
            gain=past.mean[best],
            gain_error=jnp.where(jnp.isfinite(error), error, 0),
        )
        return ChosenShares(windows[best], CrossValidatedMemory(gains), report)


def _lengths(ages: int) -> Int[Any, " window"]:
    """1, 2, 4, …, and the number of ages itself."""
    return jnp.array([2**i for i in range((ages - 1).bit_length())] + [ages])


def _check_horizon(horizon: float, least: int) -> None:
    check_number("horizon", horizon, low=least, remedy=f"give at least {least} updates")
