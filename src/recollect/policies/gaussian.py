"""Gaussians over continuous actions, unbounded or squashed into bounds: a mean from a network and a log-std of their own."""

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

# Gauss–Hermite nodes and weights for E[f(z)], z ~ N(0, 1).
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS /= WEIGHTS.sum()


class Gaussian(AbstractHead):
    """a ~ N(outputs, exp(log_std)²), the same spread in every state."""

    log_std: Float[Array, "*rank out"]

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
        spread = jnp.exp(2 * (self.log_std - other.log_std))
        distance = ((outputs - other_outputs) * jnp.exp(-other.log_std)) ** 2
        return jnp.sum(other.log_std - self.log_std + 0.5 * (spread + distance - 1))

    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["Gaussian", Float[Array, "rank out"]]:
        """The Fisher matrix of N(μ, σ²) by (μ, log σ) is diag(1/σ², 2)."""
        eye, zero = jnp.eye(outputs.size), jnp.zeros((outputs.size, outputs.size))
        on_mean = jnp.concatenate([eye * jnp.exp(-self.log_std), zero])
        return Gaussian(jnp.concatenate([zero, 2**0.5 * eye])), on_mean


class SquashedGaussian(AbstractHead):
    """a = middle + half_range · tanh(u) with u ~ N(outputs, exp(log_std)²), so that every action is within `bounds`.

    The action is stored, and u found again from its distances b = a − low and c = high − a to the ends:
    u = ½ log(b / c), with |da/du| = 2bc / (b + c). Both are accurate until rounding leaves too few floats between a and
    an end. So the last 16 floats at each end, |u| > 7.3 for float32 and bounds ±1, count as one outcome, an edge cell,
    and `log_prob` is there the mean density P(u beyond) / width. Nothing is clipped: an action is stored as drawn, and
    its log-probability is finite and that of one normalised density. Scores keep mean zero and importance ratios mean one
    (within 1%, often 0.1%, of their spread) however far the network saturates, where the density at a clipped action
    would send every score the same way. An action outside the bounds, such as padding, belongs to the nearest edge cell.

    `entropy`, `kl` and `fisher_root` leave edge cells out of account. That is exact while u rarely gets there; beyond,
    KL and Fisher matrix are upper bounds, because merging outcomes loses information (2.6% at mean 0 and deviation 3).
    """

    log_std: Float[Array, "*rank out"]
    bounds: Bounds = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray, outputs: Float[Array, " out"]) -> Float[Array, " out"]:
        return self._squash(Gaussian(self.log_std).sample(key, outputs))

    def log_prob(
        self, outputs: Float[Array, " out"], action: Float[Array, " out"]
    ) -> Float[Array, ""]:
        low, high = ends(self.bounds, outputs.dtype)
        edge = resolution(self.bounds, outputs.dtype)
        above_low, below_high = jnp.maximum(action - low, edge), jnp.maximum(high - action, edge)
        u = 0.5 * jnp.log(above_low / below_high)
        slope = 2 * above_low * (below_high / (high - low))
        inside = _log_density(u, outputs, self.log_std) - jnp.log(slope)
        limit = 0.5 * jnp.log((high - low - edge) / edge)
        beyond = norm.logcdf((jnp.sign(u) * outputs - limit) * jnp.exp(-self.log_std)) - jnp.log(
            edge
        )
        return jnp.sum(jnp.where(jnp.minimum(above_low, below_high) > edge, inside, beyond))

    def mode(self, outputs: Float[Array, " out"]) -> Float[Array, " out"]:
        """The squashed mean. It is the median; the density itself may be highest at the bounds."""
        return self._squash(outputs)

    def entropy(self, outputs: Float[Array, " out"]) -> Float[Array, ""]:
        """H(u) + E[log |da/du|], the mean by Gauss–Hermite quadrature: within 6e-5 up to a standard deviation of 3, 6e-4 up to 4."""
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
        """The divergence of u, which no one-to-one map changes; both heads need the same bounds."""
        return Gaussian(self.log_std).kl(outputs, Gaussian(other.log_std), other_outputs)

    def fisher_root(
        self, outputs: Float[Array, " out"]
    ) -> tuple["SquashedGaussian", Float[Array, "rank out"]]:
        """That of u: the map from u to a has no parameters, so the scores are the same."""
        on_head, on_mean = Gaussian(self.log_std).fisher_root(outputs)
        return SquashedGaussian(on_head.log_std, self.bounds), on_mean

    def _squash(self, u: Float[Array, " out"]) -> Float[Array, " out"]:
        low, high = ends(self.bounds, u.dtype)
        # 1 − |tanh u| = 2 sigmoid(−2|u|), measured from the nearer end: accurate there, and rounding cannot overstep it.
        distance = (high - low) * jax.nn.sigmoid(-2 * jnp.abs(u))
        return jnp.where(u > 0, high - distance, low + distance)


def _log_density(
    x: Float[Array, " out"], mean: Float[Array, " out"], log_std: Float[Array, " out"]
) -> Float[Array, " out"]:
    return norm.logpdf((x - mean) * jnp.exp(-log_std)) - log_std


def gaussian_policy(
    key: PRNGKeyArray,
    observation_size: int,
    action_size: int,
    widths: Sequence[int] = (32,),
    activation: str = "relu",
    log_std: float = 0.0,
) -> Policy:
    """A Gaussian over an MLP, first with mean near zero and standard deviation exp(`log_std`)."""
    check_count("action_size", action_size)
    return Policy(
        mlp(key, observation_size, action_size, widths, activation),
        Gaussian(jnp.full(action_size, log_std)),
    )


def squashed_gaussian_policy(
    key: PRNGKeyArray,
    observation_size: int,
    bounds: Sequence[tuple[float, float]],
    widths: Sequence[int] = (32,),
    activation: str = "relu",
    log_std: float = 0.0,
) -> Policy:
    """A Gaussian over an MLP, squashed into `bounds` (a pair of low and high for each number of the action).

    At first the mean is near the middle, and the standard deviation exp(`log_std`) before squashing: 0 spreads actions
    widely over the range, with a standard deviation of 0.63 half ranges.
    """
    bounds = checked_bounds(bounds, 4)  # two edge cells, and as much again between them
    return Policy(
        mlp(key, observation_size, len(bounds), widths, activation),
        SquashedGaussian(jnp.full(len(bounds), log_std), bounds),
    )
