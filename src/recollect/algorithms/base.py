"""What the algorithms share: their settings, what they remember, what they report, and how θ takes a step."""

import abc
from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from tyro.constructors import PrimitiveConstructorSpec

from recollect.advantages import Advantages
from recollect.checks import check_count, check_name, check_number
from recollect.envs.base import AbstractOracle
from recollect.gradient import policy_gradient
from recollect.history import History
from recollect.policies import AbstractPolicy
from recollect.project import AbstractProjection, Unconstrained, parse_projection
from recollect.recall import Recall, recall, remember_occupancy
from recollect.solve import Solution
from recollect.types import Batch, all_finite, flatten
from recollect.weights import Weights

OPTIMIZERS = {"sgd": optax.sgd(1.0), "adam": optax.adam(1.0)}


def _flag(metavar: str, parse: Callable[[str], Any], show: Callable[[Any], str] = str) -> PrimitiveConstructorSpec:
    """How a field that takes more in Python than on the command line is read there."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: parse(words[0]),
        is_instance=lambda _: True,
        str_from_instance=lambda x: [show(x)],
    )


Rate = Annotated[float | Callable[[Int[Array, ""]], Float[Array, ""]], _flag("FLOAT", float)]
Optimizer = Annotated[str | optax.GradientTransformation, _flag("{sgd,adam}", str)]
Projection = Annotated[AbstractProjection, _flag("SET", parse_projection, lambda _: "none")]

REFUSALS = (
    "accepted",
    "the batch holds a number that is not finite",
    "the gradient is not finite",
    "the direction is not finite",
    "the new parameters are not finite",
)
"""What `Info.refused` means."""


class State(eqx.Module):
    """What the next update needs."""

    policy: AbstractPolicy
    optimizer: Any
    history: History
    fisher_history: History | None
    """A window of independent batches for the Fisher matrix, if asked for (assumption A.1.7)."""
    direction: Float[Array, " d"]
    """The last direction, from which conjugate gradients start."""
    iteration: Int[Array, ""]


class Info(eqx.Module):
    """What a reader wants to see of an update."""

    refused: Int[Array, ""]
    """0, or an index into `REFUSALS`: the policy was left bit for bit as it was."""
    ess: Float[Array, ""]
    """Effective sample size of all weights in the history."""
    ess_by_age: Float[Array, " window"]
    """The same for each age, newest batch first."""
    max_weight: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    direction_norm: Float[Array, ""]
    kl: Float[Array, ""]
    """Mean KL(old ‖ new) over the states of the newest batch."""
    solver_residual: Float[Array, ""]
    """Relative residual of the natural-gradient system; 0 for plain gradients."""
    solver_steps: Int[Array, ""]
    """Fisher products that conjugate gradients took; 0 for other solvers."""


class AbstractAlgorithm(eqx.Module):
    """An algorithm is its own configuration. Floats are traced, so sweeping them compiles once; the rest is static."""

    window: int = eqx.field(static=True, default=1)
    """K₁: iterations reused in the gradient; 1 is the vanilla algorithm."""
    learning_rate: Rate = 0.01
    """α: a number, or (in Python) an Optax schedule of the iteration."""
    decay: float = 0.0
    """β: the step size in iteration n = 1, 2, … is α n^−β."""
    optimizer: Optimizer = eqx.field(static=True, default="sgd")
    """`sgd`, `adam`, or (in Python) any Optax transformation that descends; α multiplies its updates."""
    discount: float = 0.99
    """γ of the returns."""
    discount_states: bool = eqx.field(static=True, default=False)
    """Weigh a state at time t by γ^t, as the discounted objective asks; without it (the common practice) all states count alike."""
    objective_scale: bool = eqx.field(static=True, default=False)
    """Multiply the gradient by 1/(1 − γ), so that it estimates ∇η as the paper defines it and not (1 − γ)∇η."""
    advantages: Advantages = Advantages()
    weights: Weights = Weights()
    project: Projection = Unconstrained()
    """Feasible set of θ: none, box:LOW:HIGH, ball:RADIUS, simplex or simplex:FLOOR."""

    @abc.abstractmethod
    def init(self, policy: AbstractPolicy, batch: Batch) -> State:
        """The state before the first update; `batch` only shows the shapes."""

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


def check_settings(algorithm: AbstractAlgorithm) -> None:
    """Raise on settings that no update could work with."""
    check_count("window", algorithm.window, "give the number of iterations to reuse; 1 is the vanilla algorithm")
    check_number("learning_rate", algorithm.learning_rate, low=0, open_low=True, remedy="give a step size above 0")
    check_number("decay", algorithm.decay, low=0, remedy="give the exponent of n^-decay, 0 for a constant step size")
    check_number("discount", algorithm.discount, low=0, high=1, open_high=True, remedy="give a discount in [0, 1)")
    if isinstance(algorithm.optimizer, str):
        check_name("optimizer", algorithm.optimizer, OPTIMIZERS)


def initial_state(algorithm: AbstractAlgorithm, policy: AbstractPolicy, batch: Batch, window: int, fisher_window: int | None) -> State:
    """A state with an empty history of `window` batches (and of `fisher_window` independent ones)."""
    θ, _ = flatten(policy)
    if algorithm.weights.ratio == "occupancy":
        batch = eqx.tree_at(lambda b: b.log_occupancy, batch, jnp.zeros_like(batch.rewards), is_leaf=lambda x: x is None)
    return State(
        policy=policy,
        optimizer=_optimizer(algorithm).init(θ),
        history=History.empty(batch, window),
        fisher_history=None if fisher_window is None else History.empty(batch, fisher_window),
        direction=jnp.zeros_like(θ),
        iteration=jnp.zeros((), jnp.int32),
    )


def push_and_recall(
    algorithm: AbstractAlgorithm, history: History, policy: AbstractPolicy, batch: Batch, oracle: AbstractOracle | None
) -> tuple[History, Bool[Array, ""], Recall]:
    """Store the newest batch, then weigh all that is stored by the current policy."""
    history, usable = history.push(remember_occupancy(batch, policy, algorithm.weights, oracle))
    discount = algorithm.discount if algorithm.discount_states else None
    return history, usable, recall(history, policy, algorithm.weights, discount, oracle)


def reweighed_gradient(
    algorithm: AbstractAlgorithm, history: History, recalled: Recall, policy: AbstractPolicy, oracle: AbstractOracle | None
) -> Float[Array, " d"]:
    """Equation (3) over the newest `window` batches."""
    newest = jax.tree.map(lambda x: x[: algorithm.window], history.batches)
    estimates = algorithm.advantages(newest, policy, algorithm.discount, oracle)
    bound, count = recalled.packing.prefix(algorithm.window)
    older = len(recalled.packing.counts) - algorithm.window
    advantages = recalled.packing.rows(jnp.pad(estimates, ((0, older), (0, 0), (0, 0))))[:bound]
    gradient = policy_gradient(recalled.scores.rows(0, bound), recalled.coefficients(algorithm.window), advantages, count)
    return gradient / (1 - algorithm.discount) if algorithm.objective_scale else gradient


def step(
    algorithm: AbstractAlgorithm, state: State, gradient: Float[Array, " d"], direction: Float[Array, " d"], usable: Bool[Array, ""]
) -> tuple[AbstractPolicy, Any, Int[Array, ""]]:
    """θ ← Proj(θ + α_n x), or θ as it was together with the reason why the step was refused."""
    θ, unflatten = flatten(state.policy)
    n = state.iteration + 1
    rate = algorithm.learning_rate(state.iteration) if callable(algorithm.learning_rate) else algorithm.learning_rate
    updates, optimizer = _optimizer(algorithm).update(-direction, state.optimizer, θ)
    policy = algorithm.project(unflatten(θ + rate * n.astype(θ.dtype) ** -algorithm.decay * jnp.asarray(updates)))

    failures = jnp.array([~usable, ~all_finite(gradient), ~all_finite(direction), ~all_finite(flatten(policy)[0])])
    refused = jnp.where(failures.any(), 1 + jnp.argmax(failures), 0).astype(jnp.int32)
    keep = lambda new, old: jnp.where(refused > 0, old, new) if eqx.is_array(new) else new
    return jax.tree.map(keep, policy, state.policy), jax.tree.map(keep, optimizer, state.optimizer), refused


def describe(
    recalled: Recall,
    history: History,
    old: AbstractPolicy,
    new: AbstractPolicy,
    gradient: Float[Array, " d"],
    solution: Solution,
    refused: Int[Array, ""],
) -> Info:
    """What there is to say of an update; the newest batch of the history is the one it was made with."""
    newest = jax.tree.map(lambda x: x[0], history.batches)
    ess, ess_by_age = recalled.effective_sample_size()
    kls = jax.vmap(jax.vmap(lambda observation: old.kl(new, observation)))(newest.observations)
    return Info(
        refused=refused,
        ess=ess,
        ess_by_age=ess_by_age,
        max_weight=recalled.weights.max(),
        gradient_norm=jnp.linalg.norm(gradient),
        direction_norm=jnp.linalg.norm(solution.direction),
        kl=jnp.sum(kls, where=newest.mask) / jnp.maximum(newest.mask.sum(), 1),
        solver_residual=solution.residual,
        solver_steps=solution.steps,
    )


def _optimizer(algorithm: AbstractAlgorithm) -> optax.GradientTransformation:
    return OPTIMIZERS[algorithm.optimizer] if isinstance(algorithm.optimizer, str) else algorithm.optimizer
