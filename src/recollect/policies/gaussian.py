"""Gaussian distributions over continuous actions, unbounded or squashed into bounds by tanh.

The mean is the output of a network; the logarithm of the standard deviation is a parameter of its
own, the same in every state.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PRNGKeyArray

from recollect.checks import check_count
from recollect.policies.bounds import Bounds, checked_bounds, ends, resolution
from recollect.policies.networks import mlp
from recollect.policies.policy import AbstractHead, Policy
from recollect.settings import checked

# Gauss–Hermite quadrature: E[f(z)] ≈ Σ_i WEIGHTS_i f(NODES_i) for z ~ N(0, 1).
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS /= WEIGHTS.sum()


class Gaussian(AbstractHead):
    """a ~ N(outputs, exp(log_std)²), with independent components.

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect import Gaussian
        >>> head = Gaussian(log_std=jnp.zeros(2))
        >>> round(float(head.log_prob(jnp.zeros(2), jnp.array([1.0, 0.0]))), 4)  # −½ − log 2π
        -2.3379
        >>> float(head.kl(jnp.zeros(2), head, jnp.array([1.0, 0.0])))
        0.5
    """

    log_std: Float[Array, "*rank out"]
    """Logarithms of the standard deviations. The axis `rank` is there only in what `fisher_root`
    returns."""

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Float[Array, " out"]:
        return outputs + jnp.exp(self.log_std) * jax.random.normal(key, outputs.shape)

    def log_prob(
        self, outputs: Float[Array, " out"], action: Float[Array, " out"]
    ) -> Float[Array, ""]:
        return jnp.sum(_log_density(action, outputs, self.log_std))

    def mode(self, outputs: Float[Array, " out"]) -> Float[Array, " out"]:
        return outputs

    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(self.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e))

    def kl(
        self, outputs: Float[Array, " out"], other: "Gaussian", other_outputs: Float[Array, " out"]
    ) -> Float[Array, ""]:
        variance_ratio = jnp.exp(2 * (self.log_std - other.log_std))
        distance = ((outputs - other_outputs) * jnp.exp(-other.log_std)) ** 2
        return jnp.sum(other.log_std - self.log_std + 0.5 * (variance_ratio + distance - 1))

    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["Gaussian", Float[Array, "rank out"]]:
        """The Fisher matrix of N(μ, σ²) by (μ, log σ) is diag(1/σ², 2)."""
        eye = jnp.eye(outputs.size)
        zero = jnp.zeros((outputs.size, outputs.size))
        on_mean = jnp.concatenate([eye * jnp.exp(-self.log_std), zero])
        return Gaussian(jnp.concatenate([zero, 2**0.5 * eye])), on_mean


class SquashedGaussian(AbstractHead):
    """a = middle + half_range · tanh(u) with u ~ N(outputs, exp(log_std)²), within `bounds`.

    The action is stored, and u is recomputed from its distances b = a − low and c = high − a to the
    bounds: u = ½ log(b / c), with |da/du| = 2bc / (b + c). Both are accurate until rounding leaves
    too few floats between a and a bound. So the last 16 floats at each bound (|u| > 7.3 for float32
    and bounds ±1) count as one outcome, an edge cell, where `log_prob` is the logarithm of the mean
    density, P(u beyond) / width.

    Nothing is clipped: an action is stored as drawn, and its log-probability is finite and that of
    one normalised density. However far the network saturates, scores keep mean zero and importance
    ratios mean one, within 1% (often 0.1%) of their standard deviation. With the density at a
    clipped action instead, all scores there would have the same sign. An action outside the bounds,
    such as padding, belongs to the nearest edge cell.

    `entropy`, `kl` and `fisher_root` ignore edge cells. They are exact while u rarely gets there;
    otherwise KL and Fisher matrix are upper bounds, because merging outcomes loses information
    (2.6% at mean 0 and standard deviation 3).

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect.policies import SquashedGaussian
        >>> head = SquashedGaussian(jnp.zeros(1), bounds=((-2.0, 6.0),))
        >>> head.mode(jnp.zeros(1)).tolist()
        [2.0]
    """

    log_std: Float[Array, "*rank out"]
    """Logarithms of the standard deviations of u; see `Gaussian` for the axis `rank`."""
    bounds: Bounds = eqx.field(static=True)
    """Low and high of each number of an action."""

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Float[Array, " out"]:
        return self._squash(Gaussian(self.log_std).sample(key, outputs))

    def log_prob(
        self, outputs: Float[Array, " out"], action: Float[Array, " out"]
    ) -> Float[Array, ""]:
        low, high = ends(self.bounds, outputs.dtype)
        edge = resolution(self.bounds, outputs.dtype)
        # Never below the edge cell's width, so that neither logarithm nor its gradient overflows.
        above_low = jnp.maximum(action - low, edge)
        below_high = jnp.maximum(high - action, edge)
        u = 0.5 * jnp.log(above_low / below_high)
        slope = 2 * above_low * (below_high / (high - low))
        inside = _log_density(u, outputs, self.log_std) - jnp.log(slope)
        limit = 0.5 * jnp.log((high - low - edge) / edge)
        standardised = (jnp.sign(u) * outputs - limit) * jnp.exp(-self.log_std)
        beyond = norm.logcdf(standardised) - jnp.log(edge)
        return jnp.sum(jnp.where(jnp.minimum(above_low, below_high) > edge, inside, beyond))

    def mode(self, outputs: Float[Array, " out"]) -> Float[Array, " out"]:
        """The squashed mean of u, which is the median; the density may be highest at the bounds."""
        return self._squash(outputs)

    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        """H(u) + E[log |da/du|], the expectation by Gauss–Hermite quadrature.

        The error is below 6e-5 up to a standard deviation of 3, and below 6e-4 up to 4.
        """
        low, high = ends(self.bounds, outputs.dtype)
        u = outputs + jnp.exp(self.log_std) * NODES[:, None]
        log_slope = (
            jnp.log(2 * (high - low)) + jax.nn.log_sigmoid(2 * u) + jax.nn.log_sigmoid(-2 * u)
        )
        return Gaussian(self.log_std).entropy(outputs) + jnp.sum(WEIGHTS @ log_slope)

    def kl(
        self,
        outputs: Float[Array, " out"],
        other: "SquashedGaussian",
        other_outputs: Float[Array, " out"],
    ) -> Float[Array, ""]:
        """KL of the distributions of u, as KL is invariant under one-to-one maps.

        Both heads need the same bounds.
        """
        return Gaussian(self.log_std).kl(outputs, Gaussian(other.log_std), other_outputs)

    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["SquashedGaussian", Float[Array, "rank out"]]:
        """The root for u: the map from u to a has no parameters, so the scores are the same."""
        on_head, on_mean = Gaussian(self.log_std).fisher_root(outputs)
        return SquashedGaussian(on_head.log_std, self.bounds), on_mean

    def _squash(self, u: Float[Array, " out"]) -> Float[Array, " out"]:
        low, high = ends(self.bounds, u.dtype)
        # 1 − |tanh u| = 2 sigmoid(−2|u|). Measuring from the nearer bound is accurate there, and
        # rounding cannot take the action out of the bounds.
        distance = (high - low) * jax.nn.sigmoid(-2 * jnp.abs(u))
        return jnp.where(u > 0, high - distance, low + distance)


def _log_density(
    x: Float[Array, " out"], mean: Float[Array, " out"], log_std: Float[Array, " out"]
) -> Float[Array, " out"]:
    """log N(x; mean, exp(log_std)²) of each component."""
    return norm.logpdf((x - mean) * jnp.exp(-log_std)) - log_std


@checked
def gaussian_policy(
    key: PRNGKeyArray,
    observation_size: int,
    action_size: int,
    widths: Sequence[int] = (32,),
    activation: str = "relu",
    log_std: float = 0.0,
) -> Policy:
    """A Gaussian whose mean is an MLP, near zero at first.

    Args:
        key: for the initial weights.
        observation_size: number of inputs.
        action_size: number of components of an action.
        widths: sizes of the hidden layers.
        activation: `relu`, `tanh` or `silu`.
        log_std: logarithm of the initial standard deviation.

    Returns:
        A policy to start from.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import gaussian_policy
        >>> policy = gaussian_policy(jax.random.key(0), observation_size=4, action_size=3)
        >>> policy.mode(jnp.ones(4)).shape
        (3,)
    """
    check_count("action_size", action_size)
    network = mlp(key, observation_size, action_size, widths, activation)
    return Policy(network, Gaussian(jnp.full(action_size, log_std)))


@checked
def squashed_gaussian_policy(
    key: PRNGKeyArray,
    observation_size: int,
    bounds: Sequence[tuple[float, float]],
    widths: Sequence[int] = (32,),
    activation: str = "relu",
    log_std: float = 0.0,
) -> Policy:
    """A Gaussian whose mean is an MLP, squashed into bounds by tanh.

    At first the mean is near the middle of the bounds.

    Args:
        key: for the initial weights.
        observation_size: number of inputs.
        bounds: low and high of each number of an action.
        widths: sizes of the hidden layers.
        activation: `relu`, `tanh` or `silu`.
        log_std: logarithm of the initial standard deviation before squashing. At 0, the standard
            deviation of actions is 0.63 times half the range.

    Returns:
        A policy to start from.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect import squashed_gaussian_policy
        >>> bounds = ((-2.0, 2.0), (-2.0, 2.0), (0.0, 1.0))
        >>> policy = squashed_gaussian_policy(jax.random.key(0), 4, bounds)
        >>> policy.mode(jnp.zeros(4)).tolist()
        [0.0, 0.0, 0.5]
    """
    bounds = checked_bounds(bounds, 4)  # two edge cells, and as much again between them
    network = mlp(key, observation_size, len(bounds), widths, activation)
    return Policy(network, SquashedGaussian(jnp.full(len(bounds), log_std), bounds))
