"""Advantages under the current policy, for every transition in the window, and targets for its
critic.

With values V (of a critic, or of a linear fit), δ_t = r_t + γ V(s_{t+1}) − V(s_t) and
ω_t = π(a_t|s_t) / μ(a_t|s_t),

    v_t − V(s_t) = ρ_t δ_t + γλ c_t (v_{t+1} − V(s_{t+1}))     ρ_t = min(ω_t, ρ̄), c_t = min(ω_t, c̄)
    A_t          = δ_t + γλ (v_{t+1} − V(s_{t+1}))

which is V-trace (Espeholt et al. 2018): v_t is what the critic should say, A_t the advantage of a_t
if the *current* policy acts from s_{t+1} on. A_t leaves out the ratio of a_t itself, by which the
gradient weighs it. With every ω set to one both lines are GAE(λ), and with λ = 1 the return minus
V(s_t).

An episode that terminated is worth nothing afterwards. One that was cut, by the clock or by the end
of the batch, goes on with V of its true last observation. All of it is recomputed at every
iteration, so that advantages of old data are those by the current critic. `recursions.py` has the
two lines.
"""

import abc
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from recollect.batch import Batch
from recollect.checks import check_number
from recollect.envs.base import AbstractOracle
from recollect.estimate.critic import Values
from recollect.estimate.linear import linear_values
from recollect.estimate.recursions import returns_to_go, vtrace
from recollect.memory.weights import positive
from recollect.policies import AbstractPolicy
from recollect.settings import Settings
from recollect.tree import where_mask

Baseline = Literal["none", "mean", "linear", "critic"]
LARGEST_LOG_RATIO = 80.0
"""Log-ratios are cut here before V-trace exponentiates them: e^80 is finite in single precision."""


class Estimates(eqx.Module):
    """What the window says of its transitions; zero in padding.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> rewards = jnp.ones((1, 2, 3))  # window, episode, time
        >>> rc.Estimates(advantages=rewards, targets=rewards).values is None
        True
    """

    advantages: Float[Array, "window episode time"]
    targets: Float[Array, "window episode time"]
    """What V(s) should be."""
    values: Float[Array, "window episode time"] | None = None
    """V(s) before this iteration's fit; None if the baseline has no values."""


class AbstractAdvantages(Settings, eqx.Module):
    """How advantages under the current policy are estimated.

    Example:
        >>> import recollect as rc
        >>> class Immediate(rc.AbstractAdvantages):
        ...     needs_critic = False
        ...     def __call__(self, batches, policy, discount, log_ratio, critic=None):
        ...         advantages = batches.rewards - batches.rewards.mean(where=batches.mask)
        ...         return rc.Estimates(advantages=advantages, targets=batches.rewards)
        >>> rc.RPG(advantages=Immediate()).advantages
        Immediate()
    """

    @property
    @abc.abstractmethod
    def needs_critic(self) -> bool:
        """Whether a value network has to be fitted for it."""

    @abc.abstractmethod
    def __call__(
        self,
        batches: Batch,
        policy: AbstractPolicy,
        discount: Float[Array, ""] | float,
        log_ratio: Float[Array, "window episode time"],
        critic: Values | None = None,
    ) -> Estimates:
        """Advantages and targets of all transitions of the window.

        Args:
            batches: the stored batches, newest first.
            policy: the current one.
            discount: γ.
            log_ratio: log π(a|s) / μ(a|s) of the actions taken.
            critic: the value network before this iteration's fit, if one is needed.
        """


class Returns(AbstractAdvantages):
    """Return-to-go minus a baseline.

    Example:
        >>> import recollect as rc
        >>> rc.RPG(advantages=rc.Returns(baseline="linear")).advantages.baseline
        'linear'
    """

    baseline: Baseline = eqx.field(static=True, default="mean")
    """Nothing, the mean return over the window, a linear-quadratic fit of the value over the
    window, or the critic."""
    standardise: bool = eqx.field(static=True, default=False)
    """Shift and scale the advantages in the window to mean 0 and standard deviation 1; to zero,
    where `all_is_well`."""

    @property
    def needs_critic(self):
        return self.baseline == "critic"

    def __call__(self, batches, policy, discount, log_ratio, critic=None):
        del policy, log_ratio
        values, next_values = baseline_values(self.baseline, batches, discount, critic)
        ones = jnp.ones_like(batches.rewards)
        advantages, corrections = vtrace(
            batches, values, next_values, discount, discount, ones, ones
        )
        if self.baseline == "mean":
            advantages = advantages - _mean(advantages, batches.mask)
        known = values if self.baseline in ("linear", "critic") else None
        return estimates(batches, advantages, known, corrections, self.standardise)


class GAE(AbstractAdvantages):
    """Generalised advantage estimation, GAE(λ), as if the current policy had acted.

    Example:
        >>> import recollect as rc
        >>> rc.PPO(advantages=rc.GAE(gae_lambda=0.9, standardise=True)).advantages.needs_critic
        True
    """

    baseline: Baseline = eqx.field(static=True, default="critic")
    """Where values come from: the `critic`, or a `linear` quadratic fit over the window."""
    gae_lambda: float = 0.95
    """λ: 0 trusts the values alone, 1 the rewards alone."""
    standardise: bool = eqx.field(static=True, default=False)
    """Shift and scale the advantages in the window to mean 0 and standard deviation 1; to zero,
    where `all_is_well`."""

    def __check_init__(self):
        _check_values(self)

    @property
    def needs_critic(self):
        return self.baseline == "critic"

    def __call__(self, batches, policy, discount, log_ratio, critic=None):
        del policy, log_ratio
        values, next_values = baseline_values(self.baseline, batches, discount, critic)
        ones = jnp.ones_like(batches.rewards)
        trace_decay = discount * self.gae_lambda
        advantages, corrections = vtrace(
            batches, values, next_values, discount, trace_decay, ones, ones
        )
        return estimates(batches, advantages, values, corrections, self.standardise)


class VTrace(AbstractAdvantages):
    """V-trace: GAE(λ), corrected by how likely the current policy is to have acted so.

    Example:
        >>> import recollect as rc
        >>> rc.RTRPO(advantages=rc.VTrace(gae_lambda=0.98)).advantages.needs_critic
        True
    """

    baseline: Baseline = eqx.field(static=True, default="critic")
    """Where values come from: the `critic`, or a `linear` quadratic fit over the window."""
    gae_lambda: float = 0.95
    """λ: 0 trusts the values alone, 1 the rewards alone."""
    truncate_rho: float = 1.0
    """ρ̄: largest weight of a step's own surprise δ."""
    truncate_c: float = 1.0
    """c̄: largest weight by which a step passes on what comes after it."""
    standardise: bool = eqx.field(static=True, default=False)
    """Shift and scale the advantages in the window to mean 0 and standard deviation 1; to zero,
    where `all_is_well`."""

    def __check_init__(self):
        _check_values(self)
        for field in ("truncate_rho", "truncate_c"):
            remedy = "give the largest weight allowed, above 0"
            value = getattr(self, field)
            check_number(field, value, low=0, open_low=True, infinite=True, remedy=remedy)

    @property
    def needs_critic(self):
        return self.baseline == "critic"

    def __call__(self, batches, policy, discount, log_ratio, critic=None):
        del policy
        values, next_values = baseline_values(self.baseline, batches, discount, critic)
        # The cut also keeps an overflowing ratio from reaching the recursion as infinity.
        log_ratio = jnp.minimum(where_mask(batches.mask, log_ratio), LARGEST_LOG_RATIO)
        ratio = jnp.exp(log_ratio)
        rho = jnp.minimum(ratio, self.truncate_rho)
        c = jnp.minimum(ratio, self.truncate_c)
        trace_decay = discount * self.gae_lambda
        advantages, corrections = vtrace(
            batches, values, next_values, discount, trace_decay, rho, c
        )
        return estimates(batches, advantages, values, corrections, self.standardise)


class ExactAdvantages(AbstractAdvantages):
    """A^π(s, a) of the current policy, where the environment knows it.

    Example:
        >>> import recollect as rc
        >>> rc.RNPG(discount=0.5, advantages=rc.ExactAdvantages()).advantages.needs_critic
        False
    """

    standardise: bool = eqx.field(static=True, default=False)
    """Shift and scale the advantages in the window to mean 0 and standard deviation 1; to zero,
    where `all_is_well`."""
    oracle: AbstractOracle | None = None
    """The environment, which `train` fills in."""

    @property
    def needs_critic(self):
        return False

    def __call__(self, batches, policy, discount, log_ratio, critic=None):
        del log_ratio, critic
        oracle = self.oracle
        if oracle is None:
            raise ValueError(
                "ExactAdvantages needs an environment that knows its advantages; use LQC or "
                "Tabular, or Returns()."
            )
        exact = lambda observation, action: oracle.advantage(policy, observation, action)
        advantages = jax.vmap(jax.vmap(jax.vmap(exact)))(batches.observations, batches.actions)
        ended = batches.terminated | batches.truncated
        returns = returns_to_go(batches.rewards, ended, batches.mask, discount)
        return estimates(batches, advantages, None, returns, self.standardise)


def baseline_values(
    baseline: Baseline,
    batches: Batch,
    discount: Float[Array, ""] | float,
    critic: Values | None,
) -> tuple[Float[Array, "window episode time"], Float[Array, "window episode time"]]:
    """V of every observation and of its successor; zero for a baseline without values."""
    if baseline == "critic":
        if critic is None:
            raise ValueError(
                "baseline='critic' needs a critic; train with an algorithm, or pass one."
            )
        return critic(batches.observations), critic(batches.next_observations)
    if baseline == "linear":
        ended = batches.terminated | batches.truncated
        returns = returns_to_go(batches.rewards, ended, batches.mask, discount)
        fitted = linear_values(batches.observations, returns, batches.mask)
        return fitted(batches.observations), fitted(batches.next_observations)
    return jnp.zeros_like(batches.rewards), jnp.zeros_like(batches.rewards)


def estimates(
    batches: Batch,
    advantages: Float[Array, "window episode time"],
    values: Float[Array, "window episode time"] | None,
    corrections: Float[Array, "window episode time"],
    standardise: bool,
) -> Estimates:
    """What an estimator gives back: zero in padding, standardised if asked for.

    Args:
        batches: what the estimates are of.
        advantages: of every transition.
        values: V(s) as it is, None where there are none.
        corrections: what V(s) should be minus what it is.
        standardise: whether advantages get mean 0 and standard deviation 1.
    """
    mask = batches.mask
    if standardise:
        # What a critic says of states that are all as good as can be is its own noise, and would be
        # scaled up to the size of a signal.
        advantages = jnp.where(all_is_well(batches), 0, _standardised(advantages, mask))
    targets = corrections if values is None else values + corrections
    return Estimates(
        advantages=where_mask(mask, advantages),
        targets=where_mask(mask, targets),
        values=None if values is None else where_mask(mask, values),
    )


def in_units_of(
    newest: Float[Array, "1 episode time"],
    advantages: Float[Array, "window episode time"],
    mask: Bool[Array, "window episode time"],
) -> Float[Array, "window episode time"]:
    """Advantages of a window, shifted and scaled so that the newest are those of it alone.

    What the window is subtracted and divided by, a mean and a standard deviation, is found from the
    newest by least squares.

    Args:
        newest: advantages of the newest batch as a window of its own.
        advantages: of the window; zero in padding.
        mask: of the window.

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect.estimate.advantages import in_units_of
        >>> window = jnp.array([[[0.0, 1.0]], [[0.0, 3.0]]])
        >>> newest = jnp.array([[[-1.0, 1.0]]])
        >>> in_units_of(newest, window, jnp.ones_like(window, bool)).tolist()
        [[[-1.0, 1.0]], [[-1.0, 5.0]]]
    """
    inside = mask[:1]
    mean, mean_newest = _mean(advantages[:1], inside), _mean(newest, inside)
    centred = where_mask(inside, advantages[:1] - mean)
    square = jnp.sum(centred**2)
    # Where all are the same, nothing tells of a scale.
    scale = jnp.where(square > 0, jnp.sum(centred * newest) / positive(square), 1)
    moved = where_mask(mask, mean_newest + scale * (advantages - mean))
    return moved.at[0].set(newest[0])


def all_is_well(batches: Batch) -> Bool[Array, ""]:
    """Whether every step of the window paid the same, more than nothing, and no episode terminated.

    Then nothing better is known, and all that could happen is an ending, which would cost: a
    solved balancing task. Where steps cost, or pay nothing, an ending might be what is looked for,
    so the policy goes on moving, though by noise; that finds the goal of MountainCar-v0, which a
    policy that stays as it is does not.
    """
    mask = batches.mask
    first = jnp.max(batches.rewards, where=mask, initial=-jnp.inf)
    same = jnp.all(jnp.where(mask, batches.rewards == first, True))
    return same & (first > 0) & ~(mask & batches.terminated).any()


def _check_values(advantages: GAE | VTrace) -> None:
    """Raise unless there are values to build on."""
    remedy = "give a number in [0, 1]"
    check_number("gae_lambda", advantages.gae_lambda, low=0, high=1, remedy=remedy)
    if advantages.baseline not in ("linear", "critic"):
        raise ValueError(
            f"{type(advantages).__name__} needs values to build on, which "
            f"baseline={advantages.baseline!r} has not; use baseline='critic' or 'linear'."
        )


def _standardised(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, "..."]:
    """Mean 0 and standard deviation 1, whatever the scale; zero where all values are the same but
    for rounding."""
    values = where_mask(mask, values)
    largest = jnp.abs(values).max()
    # In units of the largest, neither sums nor squares can overflow, and the floor of the spread
    # has no scale of its own.
    values = values / jnp.where(largest > 0, largest, 1)
    centred = where_mask(mask, values - _mean(values, mask))
    spread = jnp.sqrt(_mean(centred**2, mask))
    varies = spread > 10 * jnp.finfo(spread.dtype).eps
    return jnp.where(varies, centred / jnp.where(varies, spread, 1), 0)


def _mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, ""]:
    return jnp.sum(values, where=mask) / jnp.maximum(mask.sum(), 1)
