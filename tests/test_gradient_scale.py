"""What the gradient estimates: with discounted states and the scale of the objective exactly ∇η,
also where episodes end."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_policy
from plain import PG

from recollect.algorithms import PPO
from recollect.algorithms.reuse import reweighed_gradient
from recollect.algorithms.update import begin
from recollect.collect.compiled import Draws, Episodes, Steps
from recollect.collect.rollout import Rollout
from recollect.envs import AbstractEnv, Actions, CartPole, Step, Tabular
from recollect.estimate.advantages import GAE, Returns
from recollect.estimate.gradient import policy_gradient
from recollect.policies import tabular_softmax_policy
from recollect.tree import flatten

KEY = jax.random.key(0)
DISCOUNT = 0.9
LENGTH = 4


class Corridor(AbstractEnv):
    """Walk right to leave; every step pays its place, and the left end is a wall. It terminates,
    which `Tabular` never does."""

    max_steps: int = eqx.field(static=True, default=60, init=False)
    observation_size: int = eqx.field(static=True, default=LENGTH, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=2), init=False)

    def reset(self, key):
        return jax.random.randint(key, (), 0, 2), jnp.zeros((), jnp.int32)

    def observe(self, state):
        return jax.nn.one_hot(state[0], LENGTH)

    def step(self, key, state, action):
        place, now = state
        after = jnp.maximum(place + 2 * action - 1, 0)
        state = jnp.minimum(after, LENGTH - 1), now + 1
        return Step(
            state, self.observe(state), 1.0 + place, after >= LENGTH, now + 1 >= self.max_steps
        )


def exact_gradient(policy):
    """∇η of the corridor, from the same walk with an absorbing state that pays nothing."""
    places = np.arange(LENGTH + 1)
    transitions = np.zeros((LENGTH + 1, 2, LENGTH + 1))
    transitions[places, 0, np.maximum(places - 1, 0)] = 1
    transitions[places, 1, np.minimum(places + 1, LENGTH)] = 1
    transitions[LENGTH] = np.eye(LENGTH + 1)[LENGTH]
    rewards = np.repeat(np.where(places < LENGTH, 1.0 + places, 0)[:, None], 2, 1)
    initial = np.array([0.5, 0.5, *[0.0] * (LENGTH - 1)])
    oracle = Tabular(transitions, rewards, initial, DISCOUNT)
    wide = tabular_softmax_policy(LENGTH + 1, 2)
    table = jnp.pad(policy.network.layers[0].weight, ((0, 0), (0, 1)))
    wide = eqx.tree_at(lambda p: p.network.layers[0].weight, wide, table)
    gradient = oracle.gradient(wide).reshape(2, LENGTH + 1)[:, :LENGTH].ravel()
    return np.asarray(gradient, np.float64), oracle, wide


def corridor_policy():
    policy = tabular_softmax_policy(LENGTH, 2)
    table = 0.5 * jax.random.normal(KEY, (2, LENGTH)) + jnp.array(
        [[0.0], [2.0]]
    )  # mostly to the right
    return eqx.tree_at(lambda p: p.network.layers[0].weight, policy, table)


def estimates(algorithm, env, policy, collector, replications):
    """The gradient from each of many batches."""

    def one(key):
        carry = collector.init(key, env)
        for i in range(
            2 if isinstance(collector, Steps) else 1
        ):  # the second time, copies are in the midst of episodes
            carry, collected = collector(jax.random.fold_in(key, i), env, policy, carry, DISCOUNT)
        state = algorithm.init(policy, collected.batch, key)
        return algorithm.scaled(reweighed_gradient(algorithm, begin(algorithm, state, collected)))

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(KEY, replications)), np.float64)


SCALED = PG(
    discount=DISCOUNT,
    discount_states=True,
    objective_scale=True,
    advantages=Returns(baseline="none"),
)


@pytest.mark.parametrize("collector", [Episodes(300), Steps(16, 400)], ids=["episodes", "steps"])
def test_discounted_states_and_the_scale_of_the_objective_give_the_gradient(collector):
    policy = corridor_policy()
    exact, _, _ = exact_gradient(policy)
    found = estimates(SCALED, Corridor(), policy, collector, 200)
    error = found.std(0) / len(found) ** 0.5
    # A batch of steps divides by what it happens to hold: a bias of the order of one over its
    # episodes.
    slack = 0.01 * np.abs(exact).max() if isinstance(collector, Steps) else 0
    assert (np.abs(found.mean(0) - exact) < 4.5 * error + slack).all()
    assert (error < 0.06 * np.abs(exact).max()).all()
    plain = estimates(
        dataclasses.replace(SCALED, discount_states=False), Corridor(), policy, collector, 20
    )
    assert np.linalg.norm(plain.mean(0)) > 2 * np.linalg.norm(exact)


def test_draws_count_walks_that_ended_early():
    """E over d^π with the absorbing state: (1 − γ) ∇η, from draws of which a good part falls
    behind an ending."""
    policy = corridor_policy()
    exact, oracle, wide = exact_gradient(policy)
    table = jnp.asarray(oracle.advantages(wide))
    algorithm = PG(discount=DISCOUNT, objective_scale=True, advantages=GAE())

    def one(key):
        batch = Draws(200)(key, Corridor(), policy, None, DISCOUNT)[1].batch
        state = algorithm.init(policy, batch, key)
        rows = begin(algorithm, state, Rollout.of(batch)).rows
        advantages = table[rows.observations.argmax(-1), rows.actions]
        gradient = policy_gradient(rows.uniform_window(1), advantages)
        return algorithm.scaled(gradient), batch.absorbed.mean()

    found, absorbed = jax.jit(jax.vmap(one))(jax.random.split(KEY, 500))
    found = np.asarray(found, np.float64)
    error = found.std(0) / len(found) ** 0.5
    assert 0.2 < float(absorbed.mean()) < 0.8
    assert (np.abs(found.mean(0) - exact) < 4.5 * error).all()
    assert (error < 0.06 * np.abs(exact).max()).all()


def test_the_gradient_on_cartpole_is_that_of_simulated_returns():
    """Against differences of the mean discounted return along the estimated gradient, from the
    same random numbers."""
    env = CartPole(max_steps=40)
    θ, unflatten = flatten(random_policy(KEY))
    found = estimates(SCALED, env, unflatten(θ), Episodes(100), 600).mean(0)
    along = jnp.asarray(found / np.linalg.norm(found), θ.dtype)

    def mean_return(length):
        batch = Episodes(20_000)(KEY, env, unflatten(θ + length * along), None, DISCOUNT)[1].batch
        return jnp.sum(batch.rewards * DISCOUNT**batch.times, where=batch.mask) / 20_000

    h = 0.1
    up, down = jax.jit(jax.vmap(mean_return))(jnp.array([h, -h]))
    np.testing.assert_allclose(np.linalg.norm(found), (up - down) / (2 * h), rtol=0.1)


def test_ppo_has_the_same_scale():
    """Without a clip, one step over the whole batch is the step of the plain gradient, also with
    discounted states."""
    env, policy = CartPole(max_steps=30), random_policy(KEY)
    batch = jax.jit(lambda: Episodes(4)(KEY, env, policy, None, DISCOUNT)[1].batch)()
    shared = dict(
        discount=DISCOUNT,
        discount_states=True,
        advantages=Returns(),
        learning_rate=0.1,
        optimizer="sgd",
    )
    plain = PG(**shared)
    clipped = PPO(
        **shared, clip=float("inf"), epochs=1, minibatch=10_000, max_gradient_norm=float("inf")
    )
    after = []
    for algorithm in (plain, clipped):
        state, info = eqx.filter_jit(algorithm.update)(
            algorithm.init(policy, batch, KEY), Rollout.of(batch), KEY
        )
        assert info.refused == 0
        after.append(np.asarray(flatten(state.policy)[0]))
    np.testing.assert_allclose(after[1], after[0], atol=1e-6)
