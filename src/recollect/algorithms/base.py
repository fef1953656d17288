"""What the algorithms share: settings, and what they keep and report."""

import abc
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recollect.batch import Batch
from recollect.checks import check_count, check_number
from recollect.collect.rollout import Rollout
from recollect.envs.base import AbstractOracle
from recollect.estimate.advantages import AbstractAdvantages, VTrace
from recollect.estimate.critic import Critic, Values
from recollect.estimate.metric import AbstractMetric, Euclidean
from recollect.estimate.shares import AbstractShares, Uniform
from recollect.memory.history import History
from recollect.memory.rows import Rows
from recollect.memory.weights import AbstractWeightRule, PolicyRatio
from recollect.policies import AbstractPolicy
from recollect.settings import Settings
from recollect.step.project import AbstractProjection, Unconstrained


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
        single step counts, as where it is as long as a radius lets it be, or is made long by a
        noisy Fisher matrix."""
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
