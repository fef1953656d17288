"""What the algorithms share: their settings, what they remember, what they report, and how θ takes a step."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped
from tyro.constructors import PrimitiveConstructorSpec

from recollect.batch import Batch
from recollect.checks import check_count, check_name, check_number
from recollect.envs.base import AbstractOracle
from recollect.estimate.advantages import Advantages, Estimates
from recollect.estimate.critic import Critic, Values
from recollect.estimate.gradient import policy_gradient
from recollect.memory.history import History
from recollect.memory.rows import Recall, recall, remember_occupancy
from recollect.memory.weights import Weights
from recollect.policies import AbstractPolicy
from recollect.step.project import AbstractProjection, Unconstrained, parse_projection
from recollect.tree import all_finite, flatten


def parse_optimizer(text: str) -> optax.GradientTransformation:
    """`sgd`, `adam`, or `adam:EPSILON`; the epsilon that Adam adds to its denominator lets steps shrink with gradients smaller than it."""
    name, _, epsilon = text.partition(":")
    check_name("optimizer", name, ("sgd", "adam"))
    try:
        number = float(epsilon or 1e-8)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf") or (name == "sgd" and epsilon):
        raise ValueError(
            f"optimizer={text!r} is not understood; give sgd, adam or adam:EPSILON, for example adam:0.01."
        )
    return optax.sgd(1.0) if name == "sgd" else optax.adam(1.0, eps=number)


def _flag(
    metavar: str, parse: Callable[[str], Any], show: Callable[[Any], str] = str
) -> PrimitiveConstructorSpec:
    """How a field that takes more in Python than on the command line is read there."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: parse(words[0]),
        is_instance=lambda _: True,
        str_from_instance=lambda x: [show(x)],
    )


Rate = Annotated[float | Callable[[Int[Array, ""]], Float[Array, ""]], _flag("FLOAT", float)]
Optimizer = Annotated[str | optax.GradientTransformation, _flag("{sgd,adam,adam:EPSILON}", str)]
Projection = Annotated[AbstractProjection, _flag("SET", parse_projection, lambda _: "none")]

REFUSALS = (
    "accepted",
    "the batch holds a number that is not finite",
    "the gradient is not finite",
    "the direction is not finite",
    "the new parameters are not finite",
    "the line search found no step that improves the surrogate within the trust region",
    "the direction does not solve the system of the natural gradient, its residual is above 1/2",
    "a minibatch gradient is not finite",
    "the gradient is zero, the batches hold no signal",
)
"""What `Info.refused` means."""
BATCH, GRADIENT, DIRECTION, PARAMETERS, SEARCH, UNSOLVED, MINIBATCH, SIGNAL = range(
    1, len(REFUSALS)
)


class State(eqx.Module):
    """What the next update needs."""

    policy: AbstractPolicy
    optimizer: Any
    critic: Values | None
    history: History
    fisher_history: History | None
    """A window of independent batches for the Fisher matrix, if asked for (assumption A.1.7)."""
    direction: Float[Array, " d"]
    """The last direction, from which conjugate gradients start."""
    caution: Float[Array, ""]
    """What the damping is multiplied by: above 1 after line searches that failed."""
    iteration: Int[Array, ""]


class Info(eqx.Module):
    """What a reader wants to see of an update; 0 where an algorithm has nothing to say."""

    refused: Int[Array, ""]
    """0, or an index into `REFUSALS`: the policy was left bit for bit as it was."""
    ess: Float[Array, ""]
    """Effective sample size of all weights in the history."""
    ess_by_age: Float[Array, " window"]
    """The same for each age, newest batch first."""
    max_weight: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    """Of the reweighed gradient at the policy that the update began with."""
    direction_norm: Float[Array, ""]
    """Of what the step followed: the gradient, the natural direction, or (PPO) the whole change of θ."""
    kl: Float[Array, ""]
    """Mean KL(old ‖ new) over the states of the newest batch."""
    explained_variance: Float[Array, ""]
    """1 − Var(target − V) / Var(target) on the newest batch, before the critic saw it."""
    solver_residual: Float[Array, ""]
    """Relative residual of the natural-gradient system."""
    solver_steps: Int[Array, ""]
    """Fisher products that conjugate gradients took."""
    damping: Float[Array, ""]
    """ε in use; above the setting after line searches that failed."""
    backtracks: Int[Array, ""]
    """How often the line search shortened the step."""
    gradient_steps: Int[Array, ""]
    """Minibatch steps of PPO, fewer than planned if it stopped early."""
    silenced_by_age: Float[Array, " window"]
    """Share of transitions of each age that PPO's clip takes out of the gradient, at the end of the update."""


class AbstractAlgorithm(eqx.Module):
    """An algorithm is its own configuration. Floats are traced, so sweeping them compiles once; the rest is static."""

    window: int = eqx.field(static=True, default=1)
    """K₁: iterations reused in the gradient; 1 is the vanilla algorithm."""
    discount: float = 0.99
    """γ of the returns."""
    discount_states: bool = eqx.field(static=True, default=False)
    """Weigh a state at time t by γ^t, as the discounted objective asks; without it (the common practice) all states count alike."""
    advantages: Advantages = Advantages()
    critic: Critic = Critic()
    weights: Weights = Weights()
    project: Projection = Unconstrained()
    """Feasible set of θ: none, box:LOW:HIGH, ball:RADIUS, simplex or simplex:FLOOR."""

    @abc.abstractmethod
    def init(self, policy: AbstractPolicy, batch: Batch, key: PRNGKeyArray) -> State:
        """The state before the first update; `batch` only shows the shapes, `key` draws the critic."""

    @abc.abstractmethod
    def update(
        self,
        state: State,
        batch: Batch,
        key: PRNGKeyArray,
        oracle: AbstractOracle | None = None,
        fisher_batch: Batch | None = None,
    ) -> tuple[State, Info]:
        """One step with a batch that `state.policy` has just collected."""


class AbstractAscent(AbstractAlgorithm):
    """An algorithm that moves θ by a step size along what its optimizer makes of a direction."""

    learning_rate: Rate = 0.01
    """α: a number, or (in Python) an Optax schedule of the iteration."""
    decay: float = 0.0
    """β: the step size in iteration n = 1, 2, … is α n^−β."""
    optimizer: Optimizer = eqx.field(static=True, default="sgd")
    """`sgd`, `adam`, `adam:EPSILON`, or (in Python) any Optax transformation that descends; α multiplies its updates."""
    objective_scale: bool = eqx.field(static=True, default=False)
    """Multiply the gradient by 1/(1 − γ): with `discount_states`, or with independent draws, it then estimates ∇η as the paper defines
    it and not (1 − γ)∇η."""

    def rate(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        """α_n, for `iteration` = n − 1."""
        rate = self.learning_rate(iteration) if callable(self.learning_rate) else self.learning_rate
        return rate * (iteration + 1.0) ** -self.decay

    def transformation(self) -> optax.GradientTransformation:
        return (
            parse_optimizer(self.optimizer) if isinstance(self.optimizer, str) else self.optimizer
        )

    def scaled(self, gradient: Float[Array, "*d"]) -> Float[Array, "*d"]:
        return gradient / (1 - self.discount) if self.objective_scale else gradient

    def ascend(self, state: State, direction: Float[Array, " d"]) -> tuple[AbstractPolicy, Any]:
        """Proj(θ + α_n x), and the optimizer after it."""
        θ, unflatten = flatten(state.policy)
        updates, optimizer = self.transformation().update(-direction, state.optimizer, θ)
        return self.project(
            unflatten(θ + self.rate(state.iteration).astype(θ.dtype) * jnp.asarray(updates))
        ), optimizer


def check_settings(algorithm: AbstractAlgorithm) -> None:
    """Raise on settings that no update could work with."""
    check_count(
        "window",
        algorithm.window,
        "give the number of iterations to reuse; 1 is the vanilla algorithm",
    )
    check_number(
        "discount",
        algorithm.discount,
        low=0,
        high=1,
        open_high=True,
        remedy="give a discount in [0, 1)",
    )
    if isinstance(algorithm, AbstractAscent):
        check_number(
            "learning_rate",
            algorithm.learning_rate,
            low=0,
            open_low=True,
            remedy="give a step size above 0",
        )
        check_number(
            "decay",
            algorithm.decay,
            low=0,
            remedy="give the exponent of n^-decay, 0 for a constant step size",
        )
        if isinstance(algorithm.optimizer, str):
            parse_optimizer(algorithm.optimizer)


def initial_state(
    algorithm: AbstractAlgorithm,
    policy: AbstractPolicy,
    batch: Batch,
    key: PRNGKeyArray,
    window: int,
    fisher_window: int | None = None,
) -> State:
    """A state with an empty history of `window` batches (and of `fisher_window` independent ones)."""
    θ, _ = flatten(policy)
    if algorithm.weights.ratio == "occupancy":
        batch = eqx.tree_at(
            lambda b: b.log_occupancy,
            batch,
            jnp.zeros_like(batch.rewards),
            is_leaf=lambda x: x is None,
        )
    return State(
        policy=policy,
        optimizer=algorithm.transformation().init(θ)
        if isinstance(algorithm, AbstractAscent)
        else None,
        critic=algorithm.critic.init(key, batch.observations.shape[-1])
        if algorithm.advantages.baseline == "critic"
        else None,
        history=History.empty(batch, window),
        fisher_history=None if fisher_window is None else History.empty(batch, fisher_window),
        direction=jnp.zeros_like(θ),
        caution=jnp.ones(()),
        iteration=jnp.zeros((), jnp.int32),
    )


class Start(eqx.Module):
    """Where an update starts, once the newest batch has been stored and weighed."""

    state: State
    """The state with the newest batch in its history, and a policy whose statistics include it."""
    reference: AbstractPolicy
    """The policy that the step is measured from."""
    usable: Bool[Array, ""]
    """Whether the newest batch could be stored."""
    recalled: Recall


def begin(
    algorithm: AbstractAlgorithm, state: State, batch: Batch, oracle: AbstractOracle | None
) -> Start:
    """Store the newest batch, take its observations into the statistics, then weigh all that is stored by the current policy."""
    history, usable = push(algorithm, state.history, state.policy, batch, oracle)
    newest = jax.tree.map(lambda x: x[0], history.batches)
    rows = newest.observations.reshape(-1, *newest.observations.shape[2:])
    policy, reference = state.policy.seeing(rows, newest.mask.ravel())
    return Start(
        state=dataclasses.replace(state, policy=policy, history=history),
        reference=reference,
        usable=usable,
        recalled=weigh(algorithm, history, policy, oracle),
    )


def push(
    algorithm: AbstractAlgorithm,
    history: History,
    policy: AbstractPolicy,
    batch: Batch,
    oracle: AbstractOracle | None,
) -> tuple[History, Bool[Array, ""]]:
    """Store a batch that `policy` has collected; whether that was possible."""
    return history.push(remember_occupancy(batch, policy, algorithm.weights, oracle))


def weigh(
    algorithm: AbstractAlgorithm,
    history: History,
    policy: AbstractPolicy,
    oracle: AbstractOracle | None,
) -> Recall:
    """All that is stored, weighed by the current policy."""
    discount = algorithm.discount if algorithm.discount_states else None
    return recall(history, policy, algorithm.weights, discount, oracle)


def judge(
    algorithm: AbstractAlgorithm,
    state: State,
    recalled: Recall,
    oracle: AbstractOracle | None,
    key: PRNGKeyArray,
) -> tuple[Float[Array, " row"], Estimates, Values | None]:
    """Advantages of the newest `window` batches as rows and as estimates, and the critic refitted to them afterwards."""
    newest = jax.tree.map(lambda x: x[: algorithm.window], state.history.batches)
    log_ratio = recalled.packing.unpack(recalled.log_ratio)[: algorithm.window]
    estimates = algorithm.advantages(
        newest, state.policy, algorithm.discount, log_ratio, state.critic, oracle
    )
    bound, _ = recalled.packing.prefix(algorithm.window)
    older = len(recalled.packing.counts) - algorithm.window
    rows = recalled.packing.rows(jnp.pad(estimates.advantages, ((0, older), (0, 0), (0, 0))))[
        :bound
    ]
    critic = state.critic
    if critic is not None:
        critic = algorithm.critic.refit(
            critic, newest.observations, estimates.targets, newest.mask, key
        )
    return rows, estimates, critic


def reweighed_gradient(
    algorithm: AbstractAlgorithm, recalled: Recall, advantages: Float[Array, " row"]
) -> Float[Array, " d"]:
    """Equation (3) over the newest `window` batches."""
    bound, count = recalled.packing.prefix(algorithm.window)
    return policy_gradient(
        recalled.scores.rows(0, bound), recalled.coefficients(algorithm.window), advantages, count
    )


def accept(old, new, failures: Sequence[tuple[int, Bool[Array, ""]]]):
    """`new`, or `old` bit for bit if there is a failure; and the first failure's index into `REFUSALS`, or 0."""
    refused = jnp.zeros((), jnp.int32)
    for reason, failed in reversed(failures):
        refused = jnp.where(failed, reason, refused)
    keep = lambda new, old: jnp.where(refused > 0, old, new) if eqx.is_array(new) else new
    return jax.tree.map(keep, new, old), refused


def forget_unusable(history: History, recalled: Recall, refused: Int[Array, ""]) -> History:
    """The history without what made a gradient or a direction non-finite, which would do so again.

    These are the batches whose weights overflow, or else the newest one: the update before did without it.
    """
    by_age = recalled.packing.unpack(recalled.weights).sum((1, 2))
    overflowed = ~jnp.isfinite(by_age)
    newest = jnp.arange(len(overflowed)) == 0
    culprits = jnp.where(overflowed.any(), overflowed, newest)
    return history.without(culprits & ((refused == GRADIENT) | (refused == DIRECTION)))


def common_failures(usable, gradient, direction, policy) -> list[tuple[int, Bool[Array, ""]]]:
    """What can go wrong in every algorithm."""
    return [
        (BATCH, ~usable),
        (GRADIENT, ~all_finite(gradient)),
        (DIRECTION, ~all_finite(direction)),
        (PARAMETERS, ~all_finite(flatten(policy)[0])),
    ]


def describe(
    start: Start,
    new: AbstractPolicy,
    gradient: Float[Array, " d"],
    direction: Float[Array, " d"],
    estimates: Estimates,
    refused: Int[Array, ""],
    **more: Shaped[Array, "..."],
) -> Info:
    """What there is to say of an update; the newest batch of the history is the one it was made with."""
    newest = jax.tree.map(lambda x: x[0], start.state.history.batches)
    ess, ess_by_age = start.recalled.effective_sample_size()
    kls = jax.vmap(jax.vmap(lambda observation: start.reference.kl(new, observation)))(
        newest.observations
    )
    zero, nothing = jnp.zeros(()), jnp.zeros((), jnp.int32)
    unsaid = dict(
        solver_residual=zero,
        solver_steps=nothing,
        damping=zero,
        backtracks=nothing,
        gradient_steps=nothing,
    )
    return Info(
        refused=refused,
        ess=ess,
        ess_by_age=ess_by_age,
        max_weight=start.recalled.weights.max(),
        gradient_norm=jnp.linalg.norm(gradient),
        direction_norm=jnp.linalg.norm(direction),
        kl=jnp.sum(kls, where=newest.mask) / jnp.maximum(newest.mask.sum(), 1),
        explained_variance=_explained(estimates.targets[0], estimates.values[0], newest.mask),
        **{**unsaid, "silenced_by_age": jnp.zeros_like(ess_by_age), **more},
    )


def finish(start: Start, refused: Int[Array, ""], **changed: Any) -> State:
    """The state after an update: what has `changed`, and a history without what cannot be used."""
    state = dataclasses.replace(start.state, **changed, iteration=start.state.iteration + 1)
    history = forget_unusable(state.history, start.recalled, refused)
    fisher_history = state.fisher_history
    if fisher_history is not None:
        # Only the newest independent batch can be new to a direction that has become non-finite.
        newest = jnp.arange(len(fisher_history.batches.mask)) == 0
        fisher_history = fisher_history.without(newest & (refused == DIRECTION))
    return dataclasses.replace(state, history=history, fisher_history=fisher_history)


def _explained(
    targets: Float[Array, "episode time"],
    values: Float[Array, "episode time"],
    mask: Bool[Array, "episode time"],
):
    spread = lambda x: jnp.var(x, where=mask)
    return jnp.where(
        mask.any(),
        1 - spread(targets - values) / jnp.maximum(spread(targets), jnp.finfo(targets.dtype).tiny),
        0.0,
    )
