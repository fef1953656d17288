"""Advantages under the current policy, for every transition in the window, and targets for its critic.

With values V (of a critic, or of a linear fit), δ_t = r_t + γ V(s_{t+1}) − V(s_t) and ω_t = π(a_t|s_t) / μ(a_t|s_t),

    v_t − V(s_t) = ρ_t δ_t + γλ c_t (v_{t+1} − V(s_{t+1}))     ρ_t = min(ω_t, ρ̄), c_t = min(ω_t, c̄)
    A_t          = δ_t + γλ (v_{t+1} − V(s_{t+1}))

which is V-trace (Espeholt et al. 2018): v_t is what the critic should say, A_t the advantage of a_t if the
*current* policy acts from s_{t+1} on. A_t leaves out the ratio of a_t itself, by which the gradient weighs it. With
every ω set to one both lines are GAE(λ), and with λ = 1 the return minus V(s_t).

An episode that terminated is worth nothing afterwards. One that was cut, by the clock or by the end of
the batch, goes on with V of its true last observation. All of it is recomputed at every iteration, so
old data is judged by the current critic. The recursions run as associative scans over time,
O(N log T) operations but only log T passes.
"""

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.batch import Batch
from recollect.checks import check_name, check_number
from recollect.envs.base import AbstractOracle
from recollect.estimate.critic import Values
from recollect.policies import AbstractPolicy
from recollect.tree import where_mask

Estimator = Literal["return", "gae", "vtrace", "exact"]
Baseline = Literal["none", "mean", "linear", "critic"]
RIDGE = 1e-4
"""Penalty of the linear-quadratic fit, relative to the mean square of each feature."""
PRODUCTS_UP_TO = 16
"""Observations with at most this many features get all products of pairs, larger ones only squares."""


class Estimates(eqx.Module):
    """What the window says of its transitions; zero in padding."""

    advantages: Float[Array, "window episode time"]
    values: Float[Array, "window episode time"]
    """V(s) before this iteration's fit; zero if the baseline has no values."""
    targets: Float[Array, "window episode time"]
    """What V(s) should be."""


class Advantages(eqx.Module):
    """How advantages are estimated."""

    estimator: Estimator = eqx.field(static=True, default="return")
    """`return`: return-to-go minus the baseline. `gae`: GAE(λ) as if the current policy had acted. `vtrace`: corrected by how likely it
    is to have done so. `exact`: A^π of the current policy, where the environment knows it."""
    baseline: Baseline = eqx.field(static=True, default="mean")
    """Nothing, the mean return over the window, a linear-quadratic fit of the value over the window, or the critic."""
    gae_lambda: float = 0.95
    """λ of `gae` and `vtrace`: 0 trusts the values alone, 1 the rewards alone."""
    truncate_rho: float = 1.0
    """ρ̄: largest weight of a step's own surprise δ in V-trace."""
    truncate_c: float = 1.0
    """c̄: largest weight by which a step of V-trace passes on what comes after it."""
    standardise: bool = eqx.field(static=True, default=False)
    """Shift and scale the advantages in the window to mean 0 and standard deviation 1."""

    def __check_init__(self):
        check_name("estimator", self.estimator, get_args(Estimator))
        check_name("baseline", self.baseline, get_args(Baseline))
        check_number("gae_lambda", self.gae_lambda, low=0, high=1, remedy="give a number in [0, 1]")
        for field in ("truncate_rho", "truncate_c"):
            check_number(
                field,
                getattr(self, field),
                low=0,
                open_low=True,
                infinite=True,
                remedy="give the largest weight allowed, above 0",
            )
        if self.estimator in ("gae", "vtrace") and self.baseline not in ("linear", "critic"):
            raise ValueError(
                f"estimator={self.estimator!r} needs values to build on, which baseline={self.baseline!r} has not; "
                "use baseline='critic' or 'linear'."
            )

    def __call__(
        self,
        batches: Batch,
        policy: AbstractPolicy,
        discount: Float[Array, ""] | float,
        log_ratio: Float[Array, "window episode time"],
        critic: Values | None = None,
        oracle: AbstractOracle | None = None,
    ) -> Estimates:
        """Advantages and targets of all transitions; `log_ratio` is log ω of the action taken."""
        mask = batches.mask
        values, next_values = self._values(batches, discount, critic)
        decay = discount * (1.0 if self.estimator in ("return", "exact") else self.gae_lambda)
        rho = c = jnp.ones_like(batches.rewards)
        if self.estimator == "vtrace":
            # The clamp also keeps an overflowing ratio from reaching the recursion as infinity.
            ratio = jnp.exp(jnp.minimum(where_mask(mask, log_ratio), 80.0))
            rho, c = jnp.minimum(ratio, self.truncate_rho), jnp.minimum(ratio, self.truncate_c)
        advantages, corrections = vtrace(batches, values, next_values, discount, decay, rho, c)
        targets = values + corrections
        if self.estimator == "exact":
            advantages = self._exact(batches, policy, oracle)
        elif self.baseline == "mean":
            advantages = advantages - _mean(advantages, mask)
        if self.standardise:
            advantages = _standardised(advantages, mask)
        return Estimates(
            where_mask(mask, advantages), where_mask(mask, values), where_mask(mask, targets)
        )

    def _values(self, batches: Batch, discount, critic: Values | None):
        """V of every observation and of its successor."""
        if self.baseline == "critic":
            if critic is None:
                raise ValueError(
                    "baseline='critic' needs a critic; train with an algorithm, or pass one."
                )
            return critic(batches.observations), critic(batches.next_observations)
        if self.baseline == "linear":
            returns = returns_to_go(
                batches.rewards, batches.terminated | batches.truncated, batches.mask, discount
            )
            fitted = linear_values(batches.observations, returns, batches.mask)
            return fitted(batches.observations), fitted(batches.next_observations)
        return jnp.zeros_like(batches.rewards), jnp.zeros_like(batches.rewards)

    @staticmethod
    def _exact(
        batches: Batch, policy: AbstractPolicy, oracle: AbstractOracle | None
    ) -> Float[Array, "window episode time"]:
        if oracle is None:
            raise ValueError(
                "estimator='exact' needs an environment that knows its advantages; use LQC or Tabular, or estimator='return'."
            )
        exact = lambda observation, action: oracle.advantage(policy, observation, action)
        return jax.vmap(jax.vmap(jax.vmap(exact)))(batches.observations, batches.actions)


def vtrace(
    batches: Batch,
    values: Float[Array, "*row time"],
    next_values: Float[Array, "*row time"],
    discount: Float[Array, ""] | float,
    decay: Float[Array, ""] | float,
    rho: Float[Array, "*row time"],
    c: Float[Array, "*row time"],
) -> tuple[Float[Array, "*row time"], Float[Array, "*row time"]]:
    """A_t and v_t − V(s_t), the two lines at the top of this file, with `decay` = γλ."""
    mask = batches.mask
    δ = where_mask(
        mask, batches.rewards + discount * jnp.where(batches.terminated, 0, next_values) - values
    )
    decay = jnp.where(batches.terminated | batches.truncated | ~mask, 0, decay).astype(δ.dtype)
    corrections = discounted_sums(rho * δ, decay * c)
    following = jnp.concatenate(
        [corrections[..., 1:], jnp.zeros_like(corrections[..., :1])], axis=-1
    )
    return δ + decay * following, corrections


def returns_to_go(
    rewards: Float[Array, "*row time"],
    ended: Bool[Array, "*row time"],
    mask: Bool[Array, "*row time"],
    discount: Float[Array, ""] | float,
) -> Float[Array, "*row time"]:
    """R_t = r_t + γ R_{t+1}, which stops at the end of an episode and of the batch (nothing is bootstrapped)."""
    return discounted_sums(
        where_mask(mask, rewards), jnp.where(ended | ~mask, 0, discount).astype(rewards.dtype)
    )


def discounted_sums(
    terms: Float[Array, "*row time"], decay: Float[Array, "*row time"]
) -> Float[Array, "*row time"]:
    """x_t = terms_t + decay_t x_{t+1}."""

    def then(later, sooner):
        decay_later, value_later = later
        decay_sooner, value_sooner = sooner
        return decay_sooner * decay_later, value_sooner + decay_sooner * value_later

    # Time goes first, so that the scan combines whole rows of memory.
    elements = jnp.moveaxis(decay, -1, 0), jnp.moveaxis(terms, -1, 0)
    return jnp.moveaxis(jax.lax.associative_scan(then, elements, reverse=True)[1], 0, -1)


def linear_values(
    observations: Float[Array, "*row feature"],
    returns: Float[Array, "*row"],
    mask: Bool[Array, "*row"],
):
    """Ridge regression of returns on 1, the observation and its products of pairs, as a function of observations."""
    features = where_mask(mask, _quadratic(observations))
    flat, targets = features.reshape(-1, features.shape[-1]), where_mask(mask, returns).reshape(-1)
    gram = flat.T @ flat
    penalty = RIDGE * jnp.diagonal(gram) + jnp.finfo(gram.dtype).tiny ** 0.5
    coefficients = jax.scipy.linalg.solve(
        gram + jnp.diag(penalty), flat.T @ targets, assume_a="pos"
    )
    return lambda observations: _quadratic(observations) @ coefficients


def _quadratic(observations: Float[Array, "*row feature"]) -> Float[Array, "*row column"]:
    size = observations.shape[-1]
    rows, columns = (
        jnp.triu_indices(size) if size <= PRODUCTS_UP_TO else (jnp.arange(size), jnp.arange(size))
    )
    products = observations[..., rows] * observations[..., columns]
    return jnp.concatenate([jnp.ones_like(observations[..., :1]), observations, products], axis=-1)


def _standardised(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, "..."]:
    """Mean 0 and standard deviation 1, whatever the scale; zero where all values are the same but for rounding."""
    values = where_mask(mask, values)
    largest = jnp.abs(values).max()
    # In units of the largest, neither sums nor squares can overflow, and the floor of the spread has no scale of its own.
    values = values / jnp.where(largest > 0, largest, 1)
    centred = where_mask(mask, values - _mean(values, mask))
    spread = jnp.sqrt(_mean(centred**2, mask))
    varies = spread > 10 * jnp.finfo(spread.dtype).eps
    return jnp.where(varies, centred / jnp.where(varies, spread, 1), 0)


def _mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, ""]:
    return jnp.sum(values, where=mask) / jnp.maximum(mask.sum(), 1)
