"""What the algorithms share: settings, what they keep and report, and the steps of an update."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from recollect.batch import Batch
from recollect.checks import check_count, check_number
from recollect.collect.rollout import Rollout
from recollect.envs.base import AbstractOracle
from recollect.estimate.advantages import AbstractAdvantages, Estimates, VTrace
from recollect.estimate.critic import Critic, Values
from recollect.estimate.metric import AbstractMetric, Euclidean
from recollect.estimate.shares import AbstractShares, ChosenShares, Uniform
from recollect.memory.history import History
from recollect.memory.rows import Rows, recall
from recollect.memory.weights import AbstractWeightRule, PolicyRatio
from recollect.policies import AbstractPolicy
from recollect.refusals import BATCH, DIRECTION, GRADIENT, PARAMETERS
from recollect.settings import Settings
from recollect.step.project import AbstractProjection, Unconstrained
from recollect.tree import all_finite, flatten

STATISTICS = 0.25
"""Share of a largest KL that new statistics of observations may take."""


class State(eqx.Module):
    """What the next update needs.

    Example:
        >>> import dataclasses
        >>> import recollect as rc
        >>> [field.name for field in dataclasses.fields(rc.State)]
        ['policy', 'critic', 'history', 'iteration', 'own', 'share_memory']
    """

    policy: AbstractPolicy
    critic: Values | None
    history: History
    iteration: Int[Array, ""]
    """Updates so far."""
    own: Any = None
    """The algorithm's own part."""
    share_memory: Any = None
    """What the rule of shares remembers."""


class Info(eqx.Module):
    """What a reader wants to see of an update. What was not measured is None.

    Example:
        Each figure is a curve of a run, as `run.curves["kl"]`.

        >>> import dataclasses
        >>> import recollect as rc
        >>> [field.name for field in dataclasses.fields(rc.Info)][:5]
        ['refused', 'ess', 'ess_by_age', 'shares', 'max_weight']
    """

    refused: Int[Array, ""]
    """0, or an index into `REFUSALS`: the policy was left bit for bit as it was."""
    ess: Float[Array, ""]
    """Effective sample size of all weights of the ages in use."""
    ess_by_age: Float[Array, " age"]
    """The same for each age, newest batch first."""
    shares: Float[Array, " window"]
    """How much each age of the window contributed; they sum to one."""
    max_weight: Float[Array, ""]
    """Largest importance weight."""
    kl: Float[Array, ""]
    """Mean KL(old ‖ new) over the states of the newest batch."""
    explained_variance: Float[Array, ""] | None = None
    """1 − Var(target − V) / Var(target) on the newest batch, before the critic saw it."""
    own: Any = None
    """What the algorithm measures beside that; a module, each of whose fields is a curve."""
    share_report: Any = None
    """The same of the rule of shares."""


class AbstractAlgorithm(Settings, eqx.Module):
    """An algorithm is its own configuration.

    Floats are traced, so that another number compiles nothing anew; the rest is static.
    `examples/vmpo.py` is an algorithm of one's own.

    Example:
        >>> import dataclasses
        >>> import recollect as rc
        >>> algorithm = rc.RNPG(window=5)
        >>> dataclasses.replace(algorithm, discount=0.9).discount
        0.9
    """

    window: int = eqx.field(static=True, default=1)
    """K₁: iterations reused in the gradient; 1 is the vanilla algorithm."""
    discount: float = 0.99
    """γ of the returns."""
    discount_states: bool = eqx.field(static=True, default=False)
    """Weigh a state at time t by γ^t, as the discounted objective asks; without it (the common
    practice) all states count alike."""
    advantages: AbstractAdvantages = VTrace(standardise=True)
    """How advantages are estimated."""
    critic: Critic = Critic()
    """The value network, where advantages need one."""
    critic_window: int | None = eqx.field(static=True, default=None)
    """Iterations that the critic is fitted to, where it is fitted to a window; as many as are
    reused in the gradient if not given. Fitting values wants more old data than a gradient does."""
    weights: AbstractWeightRule = PolicyRatio()
    """How old transitions are weighed."""
    shares: AbstractShares = Uniform()
    """How much each age of the window contributes."""
    project: AbstractProjection = Unconstrained()
    """Feasible set of θ."""

    def __check_init__(self):
        remedy = "give the number of iterations to reuse; 1 is the vanilla algorithm"
        check_count("window", self.window, remedy)
        if self.critic_window is not None:
            remedy = "give the number of iterations to fit to, or leave it out to take window"
            check_count("critic_window", self.critic_window, remedy)
            if self.critic.fit == "batch":
                raise ValueError(
                    f"critic_window={self.critic_window} has no effect on a critic with "
                    "fit='batch'; use fit='window', or leave critic_window out."
                )
        remedy = "give a discount in [0, 1)"
        check_number("discount", self.discount, low=0, high=1, open_high=True, remedy=remedy)

    @property
    def windows(self) -> tuple[int, ...]:
        """How many iterations are reused in each thing that the policy's step is made of."""
        return (self.window,)

    @property
    def capacity(self) -> int:
        """Batches that the history has to hold."""
        return max(*self.windows, self.critic_window or 1)

    def metric(self, rows: Rows) -> AbstractMetric:
        """In which a rule of shares compares gradients: where the step follows the gradient itself,
        Euclid's.

        Args:
            rows: all that is stored.
        """
        del rows
        return Euclidean()

    @property
    def persistence(self) -> float:
        """How much longer a bias lasts than noise, which a rule of shares may ask for: over how
        many updates the noise of gradients averages out by itself. 1 where the noise of every
        single step counts, as where it is as long as a radius or a clip lets it be, or is made
        long by a noisy Fisher matrix."""
        return 1.0

    @abc.abstractmethod
    def init(self, policy: AbstractPolicy, batch: Batch, key: PRNGKeyArray) -> State:
        """The state before the first update.

        Args:
            policy: where to start.
            batch: shows the shapes of those to come; what it holds is not used.
            key: of the critic's first parameters.
        """

    @abc.abstractmethod
    def update(self, state: State, rollout: Rollout, key: PRNGKeyArray) -> tuple[State, Info]:
        """One step with what `state.policy` has just collected."""


Algorithm = TypeVar("Algorithm", bound=AbstractAlgorithm)


def bind(algorithm: Algorithm, oracle: AbstractOracle) -> Algorithm:
    """The algorithm whose rules have an environment's exact answers, if they ask for them.

    Args:
        algorithm: a rule of which asks by a field `oracle`.
        oracle: the environment.
    """
    asks = lambda node: hasattr(node, "oracle")
    nothing = lambda node: node is None
    fill = lambda rule: eqx.tree_at(lambda rule: rule.oracle, rule, oracle, is_leaf=nothing)
    return jax.tree.map(lambda node: fill(node) if asks(node) else node, algorithm, is_leaf=asks)


def needs_oracle(algorithm: AbstractAlgorithm) -> bool:
    """Whether a rule of the algorithm asks for exact answers."""
    asks = lambda node: hasattr(node, "oracle")
    return any(asks(node) for node in jax.tree.leaves(algorithm, is_leaf=asks))


def initial_state(
    algorithm: AbstractAlgorithm,
    policy: AbstractPolicy,
    batch: Batch,
    key: PRNGKeyArray,
    own: Any = None,
) -> State:
    """A state with an empty history.

    Args:
        algorithm: whose state it is.
        policy: where to start.
        batch: shows the shapes of those to come.
        key: of the critic's first parameters.
        own: the algorithm's own part.
    """
    critic = None
    if algorithm.advantages.needs_critic:
        critic = algorithm.critic.init(key, batch.observations.shape[-1])
    return State(
        policy=policy,
        critic=critic,
        history=History.empty(batch, algorithm.capacity, algorithm.weights, policy),
        iteration=jnp.zeros((), jnp.int32),
        own=own,
        share_memory=algorithm.shares.init(algorithm.window),
    )


class UpdateStart(eqx.Module):
    """Where an update starts, once the newest batch has been stored and weighed."""

    state: State
    """The state with the newest batch in its history, of which only ages in use hold anything, and
    a policy whose statistics include it."""
    stored: History
    """The history with all ages."""
    reference: AbstractPolicy
    """The policy that the step is measured from."""
    usable: Bool[Array, ""]
    """Whether the newest batch could be stored."""
    rows: Rows


def begin(
    algorithm: AbstractAlgorithm,
    state: State,
    rollout: Rollout,
    radius: Float[Array, ""] | float | None = None,
) -> UpdateStart:
    """Store the newest batch, take its observations into the statistics, then weigh all there is.

    Args:
        algorithm: the settings.
        state: before the update.
        rollout: what `state.policy` has collected.
        radius: largest KL of the update, if there is one. New statistics change π; they are then
            taken in only as far as a quarter of it allows, so that something is left for the step.
    """
    history, usable = state.history.push(rollout.batch, state.policy, algorithm.weights)
    newest = jax.tree.map(lambda x: x[0], history.batches)
    observations = newest.observations.reshape(-1, *newest.observations.shape[2:])
    policy, reference = state.policy.seeing(observations, newest.mask.ravel())
    if radius is not None:
        policy = _part_of_the_way(reference, policy, newest, STATISTICS * radius)
    used = in_use(algorithm, history)
    state = dataclasses.replace(state, policy=policy, history=used)
    rows = weigh(algorithm, used, policy)
    return UpdateStart(state=state, stored=history, reference=reference, usable=usable, rows=rows)


def _part_of_the_way(
    old: AbstractPolicy, new: AbstractPolicy, batch: Batch, most: Float[Array, ""] | float
) -> AbstractPolicy:
    """The policy between two that differ in their statistics whose KL(old ‖ ·) is about `most`.

    To second order, the KL grows with the square of the way; `new` itself if it is near enough.
    """
    kl = _mean_kl(old, new, batch)
    part = jnp.where(kl > most, jnp.sqrt(most / kl), 1.0)
    between = lambda old, new: jnp.where(part < 1, old + part * (new - old), new)
    choose = lambda old, new: between(old, new) if eqx.is_inexact_array(new) else new
    return jax.tree.map(choose, old, new)


def _mean_kl(old: AbstractPolicy, new: AbstractPolicy, batch: Batch) -> Float[Array, ""]:
    """KL(old ‖ new), averaged over the states of a batch."""
    kls = jax.vmap(jax.vmap(lambda observation: old.kl(new, observation)))(batch.observations)
    return jnp.sum(kls, where=batch.mask) / jnp.maximum(batch.mask.sum(), 1)


def in_use(algorithm: AbstractAlgorithm, history: History) -> History:
    """The history with nothing in the slots of ages that do not count now."""
    ages = algorithm.shares.ages_in_use()
    if ages is None:
        return history
    return history.without(jnp.arange(len(history.batches.mask)) >= ages)


def weigh(algorithm: AbstractAlgorithm, history: History, policy: AbstractPolicy) -> Rows:
    """All that is stored, weighed by the current policy."""
    discount = algorithm.discount if algorithm.discount_states else None
    return recall(history, policy, algorithm.weights, discount)


def keep_or_revert(old, new, failures: Sequence[tuple[int, Bool[Array, ""]]]):
    """`new`, or `old` bit for bit if there is a failure.

    Args:
        old: pytree of what the update began with.
        new: the same after it.
        failures: pairs of an index into `REFUSALS` and whether that has happened.

    Returns:
        One of both, and the first failure's index into `REFUSALS`, or 0.
    """
    refused = jnp.zeros((), jnp.int32)
    for reason, failed in reversed(failures):
        refused = jnp.where(failed, reason, refused)
    keep = lambda new, old: jnp.where(refused > 0, old, new) if eqx.is_array(new) else new
    return jax.tree.map(keep, new, old), refused


def common_failures(usable, gradient, direction, policy) -> list[tuple[int, Bool[Array, ""]]]:
    """What can go wrong in every algorithm."""
    return [
        (BATCH, ~usable),
        (GRADIENT, ~all_finite(gradient)),
        (DIRECTION, ~all_finite(direction)),
        (PARAMETERS, ~all_finite(flatten(policy)[0])),
    ]


def describe(
    start: UpdateStart,
    chosen: ChosenShares,
    new: AbstractPolicy,
    estimates: Estimates,
    refused: Int[Array, ""],
    own: Any = None,
) -> Info:
    """What there is to say of an update.

    Args:
        start: where it started; the newest batch of its history is the one it was made with.
        chosen: the shares of the ages of its window.
        new: the policy after it.
        estimates: of the advantages.
        refused: why it was refused, or 0.
        own: what the algorithm measured beside that.
    """
    newest = jax.tree.map(lambda x: x[0], start.state.history.batches)
    ess, ess_by_age = start.rows.effective_sample_size()
    explained = None
    if estimates.values is not None:
        explained = _explained(estimates.targets[0], estimates.values[0], newest.mask)
    return Info(
        refused=refused,
        ess=ess,
        ess_by_age=ess_by_age,
        shares=chosen.shares,
        max_weight=start.rows.weights.max(),
        kl=_mean_kl(start.reference, new, newest),
        explained_variance=explained,
        own=own,
        share_report=chosen.report,
    )


def finish(
    start: UpdateStart, chosen: ChosenShares, refused: Int[Array, ""], **changed: Any
) -> State:
    """The state after an update, whose history is without what cannot be used.

    Args:
        start: where it started.
        chosen: the shares of the ages of its window.
        refused: why it was refused, or 0.
        changed: fields of the state that the update has changed.
    """
    return dataclasses.replace(
        start.state,
        **changed,
        history=_forget_unusable(start.stored, start.rows, refused),
        iteration=start.state.iteration + 1,
        share_memory=chosen.memory,
    )


def _forget_unusable(history: History, rows: Rows, refused: Int[Array, ""]) -> History:
    """The history without what made a gradient or a direction non-finite, which would do so again.

    These are the batches whose weights overflow, or else the newest one: the update before did
    without it.
    """
    by_age = rows.packing.unpack(rows.weights).sum((1, 2))
    overflowed = ~jnp.isfinite(by_age)
    newest = jnp.arange(len(overflowed)) == 0
    culprits = jnp.where(overflowed.any(), overflowed, newest)
    return history.without(culprits & ((refused == GRADIENT) | (refused == DIRECTION)))


def _explained(
    targets: Float[Array, "episode time"],
    values: Float[Array, "episode time"],
    mask: Bool[Array, "episode time"],
) -> Float[Array, ""]:
    spread = lambda x: jnp.var(x, where=mask)
    smallest = jnp.finfo(targets.dtype).tiny
    share = spread(targets - values) / jnp.maximum(spread(targets), smallest)
    return jnp.where(mask.any(), 1 - share, 0.0)
