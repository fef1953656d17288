"""What every weight rule makes of the same old samples, beside exact answers.

A policy takes K − 1 steps of a given KL, each along the natural direction that it estimates from
its newest batch alone. At the last policy, every rule estimates the gradient and the natural
direction from the same batches, and so does the newest batch by itself. The path does not depend
on the rule, so that rules differ in nothing but their weights; it does depend on the stored
samples, as in training.

A replication costs K updates and one estimate for each rule and window.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from recollect.algorithms import RPG
from recollect.algorithms.base import bind
from recollect.batch import Batch
from recollect.envs import LQC, AbstractOracle, Tabular
from recollect.estimate.fisher import ScoreFisher
from recollect.estimate.gradient import policy_gradient
from recollect.memory.history import History
from recollect.memory.rows import Window, recall
from recollect.memory.weights import AbstractWeightRule, PolicyRatio, positive
from recollect.policies import AbstractPolicy, ShiftPolicy, tabular_softmax_policy
from recollect.theory.flow import draw_lqc, draw_tabular
from recollect.tree import flatten

SIDE_BY_SIDE = 50
"""Replications at a time, so that what they store stays in cache."""


class Task(eqx.Module):
    """A problem with exact answers."""

    env: AbstractOracle
    start: AbstractPolicy
    draw: Callable[[Any, Any, Float[Array, "sample 3"]], Batch] = eqx.field(static=True)
    """(env, policy, standard normal numbers) to independent draws from d^π."""
    gradient: Callable[[Any, Any], Float[Array, " d"]] = eqx.field(static=True)
    """∇η, of (env, policy)."""
    fisher: Callable[[Any, Any], Float[Array, "d d"]] = eqx.field(static=True)
    """F, of (env, policy)."""


def tabular_task(env: Tabular) -> Task:
    """A finite MDP, from the uniform policy."""
    start = tabular_softmax_policy(*env.rewards.shape)
    return Task(env, start, draw_tabular, Tabular.gradient, Tabular.fisher)


def lqc_task(env: LQC) -> Task:
    """LQC from θ_0 = 1."""
    return Task(env, ShiftPolicy(jnp.ones(())), draw_lqc, _lqc_gradient, _lqc_fisher)


def _lqc_gradient(env: LQC, policy: ShiftPolicy) -> Float[Array, "1"]:
    return jnp.atleast_1d(-2 * policy.shift / (1 - env.discount))


def _lqc_fisher(env: LQC, policy: ShiftPolicy) -> Float[Array, "1 1"]:
    del env, policy
    return jnp.ones((1, 1))


class Estimate(NamedTuple):
    """A gradient and a natural direction; or how far they are from the exact ones."""

    gradient: Float[Array, "*case d"]
    direction: Float[Array, "*case d"]


class Compared(NamedTuple):
    """Deviations from the exact answers at the last policy."""

    fresh: Estimate
    """Of the newest batch alone, each a vector."""
    reused: dict[str, Estimate]
    """By rule, with axes window, d."""


def bound_rules(
    rules: Mapping[str, AbstractWeightRule], env: AbstractOracle
) -> dict[str, AbstractWeightRule]:
    """The rules with an environment's exact answers, where they ask for them."""
    return {name: bind(RPG(weights=rule), env).weights for name, rule in rules.items()}


@eqx.filter_jit
def compare(
    task: Task,
    rules: Mapping[str, AbstractWeightRule],
    windows: Sequence[int],
    radius: Float[Array, ""],
    damping: Float[Array, ""],
    normal: Float[Array, "replication window sample 3"],
) -> Compared:
    """Deviations of every replication, rule and window.

    Args:
        task: the problem.
        rules: by name; those that ask for exact answers have them (`bound_rules`).
        windows: numbers of newest batches that estimates are made from.
        radius: KL of a step, to second order.
        damping: ε, added to the diagonal of the Fisher matrix.
        normal: what batches are drawn with; as many batches as the longest window.
    """
    θ_0, unflatten = flatten(task.start)
    batches = normal.shape[1]
    shares = jnp.stack([jnp.where(jnp.arange(batches) < K, 1 / K, 0) for K in windows])

    def collect(θ, histories, numbers):
        policy = unflatten(θ)
        batch = task.draw(task.env, policy, numbers)
        push = lambda history, rule: history.push(batch, policy, rule)[0]
        alone = History.empty(batch, 1, PolicyRatio(), policy)
        newest = recall(push(alone, PolicyRatio()), policy, PolicyRatio()).window(jnp.ones(1))
        fresh = _estimate(task.env, newest, damping)
        return {name: push(histories[name], rule) for name, rule in rules.items()}, fresh

    def step(carry, numbers):
        θ, histories = carry
        histories, fresh = collect(θ, histories, numbers)
        fisher = task.fisher(task.env, unflatten(θ))
        return (θ + to_radius(fresh.direction, fisher, radius), histories), None

    def one(normal):
        batch = task.draw(task.env, task.start, normal[0])
        empty = {
            name: History.empty(batch, batches, rule, task.start) for name, rule in rules.items()
        }
        (θ, histories), _ = lax.scan(step, (θ_0, empty), normal[:-1])
        histories, fresh = collect(θ, histories, normal[-1])
        policy = unflatten(θ)
        exact = _exact(task, policy, damping)
        deviation = lambda estimate: jax.tree.map(jnp.subtract, estimate, exact)

        def of_rule(name):
            rows = recall(histories[name], policy, rules[name])
            of_window = lambda shares: _estimate(task.env, rows.window(shares), damping)
            return deviation(jax.vmap(of_window)(shares))

        reused = {name: of_rule(name) for name in rules}
        return Compared(fresh=deviation(fresh), reused=reused)

    return lax.map(one, normal, batch_size=SIDE_BY_SIDE)


def to_radius(
    direction: Float[Array, " d"], fisher: Float[Array, "d d"], radius: Float[Array, ""] | float
) -> Float[Array, " d"]:
    """The multiple Δ of a direction x whose KL is the radius to second order: ½ ΔᵀFΔ = δ."""
    curvature = direction @ fisher @ direction
    return direction * jnp.sqrt(2 * radius / positive(curvature))


def _estimate(env: AbstractOracle, window: Window, damping: Float[Array, ""]) -> Estimate:
    """From the rows of a window, with exact advantages."""
    rows = window.rows
    advantages = jax.vmap(lambda s, a: env.advantage(rows.policy, s, a))(
        rows.observations[: window.bound], rows.actions[: window.bound]
    )
    gradient = policy_gradient(window, advantages) / (1 - env.discount)
    return _with_direction(gradient, ScoreFisher()(window).matrix(), damping)


def _exact(task: Task, policy: AbstractPolicy, damping: Float[Array, ""]) -> Estimate:
    gradient = task.gradient(task.env, policy)
    return _with_direction(gradient, task.fisher(task.env, policy), damping)


def _with_direction(
    gradient: Float[Array, " d"], fisher: Float[Array, "d d"], damping: Float[Array, ""]
) -> Estimate:
    """The gradient g, and (F + εI)⁻¹ g."""
    damped = fisher + damping * jnp.eye(len(gradient))
    return Estimate(gradient, jnp.linalg.solve(damped, gradient))
