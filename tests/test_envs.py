"""Compiled environments against the originals and against their own exact answers."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import computed

from recollect.envs import LQC, CartPole, Tabular, chain, garnet, gridworld
from recollect.envs.cartpole import CartPoleState
from recollect.policies import ShiftPolicy, tabular_softmax_policy
from recollect.tree import flatten


def test_cartpole_equals_gymnasium_step_by_step():
    count, draw = 20_000, np.random.default_rng(0)
    reference = gymnasium.make("CartPole-v1").unwrapped
    # Twice the limits in every direction, so that about half of the steps terminate.
    states = draw.uniform(-1, 1, (count, 4)) * [4.8, 5.0, 0.42, 5.0]
    actions = draw.integers(0, 2, count)
    expected, rewards, ended = np.empty((count, 4)), np.empty(count), np.empty(count, bool)
    for i in range(count):
        reference.reset(seed=0) if i == 0 else None
        reference.state, reference.steps_beyond_terminated = states[i], None
        _, rewards[i], ended[i], _, _ = reference.step(int(actions[i]))
        expected[i] = reference.state
    with jax.enable_x64(True):
        env = CartPole()
        step = lambda values, action: env.step(
            jax.random.key(0), CartPoleState(values, jnp.array(0)), action
        )
        steps = jax.jit(jax.vmap(step))(jnp.asarray(states), jnp.asarray(actions))
    np.testing.assert_allclose(steps.observation, expected, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(steps.terminated, ended)
    np.testing.assert_array_equal(steps.reward, rewards)
    assert 0.2 < ended.mean() < 0.8


def test_cartpole_starts_where_gymnasium_does():
    states = computed(
        jax.vmap(lambda key: CartPole().reset(key).values),
        jax.random.split(jax.random.key(0), 1000),
    )
    assert np.abs(states).max() <= 0.05
    np.testing.assert_allclose(states.mean(0), 0, atol=0.004)


def test_truncation_is_not_termination():
    env = CartPole(max_steps=3)
    state = env.reset(jax.random.key(0))
    flags = []
    for _ in range(3):
        step = env.step(jax.random.key(1), state, jnp.array(1))
        state = step.state
        flags.append((bool(step.terminated), bool(step.truncated)))
    assert flags == [(False, False), (False, False), (False, True)]


def test_lqc_closed_forms():
    env, policy = LQC(discount=0.5), ShiftPolicy(jnp.array(0.7))
    keys = jax.random.split(jax.random.key(0), 40_000)

    def walk(key):
        def walked(t, so_far):
            state, total, weight = so_far
            key_t = jax.random.fold_in(key, t)
            step = env.step(key_t, state, policy.sample(key_t, env.observe(state)))
            return step.state, total + weight * step.reward, weight * 0.5

        _, total, _ = jax.lax.fori_loop(0, 25, walked, (env.reset(key), 0.0, 1.0))
        return total

    returns = computed(jax.vmap(walk), keys)
    error = returns.std() / len(keys) ** 0.5
    assert abs(returns.mean() - env.expected_return(policy)) < 4 * error
    gradient = jax.grad(lambda shift: env.expected_return(ShiftPolicy(shift)))(policy.shift)
    np.testing.assert_allclose(gradient, -2 * 0.7 / 0.5, rtol=1e-6)
    # The density integrates to one, and the advantage averages to zero over actions.
    grid = np.linspace(-8, 8, 4001)
    density = np.exp(
        computed(jax.vmap(lambda s: env.log_occupancy(policy, s[None])), np.float32(grid))
    )
    np.testing.assert_allclose(np.trapezoid(density, grid), 1, rtol=1e-5)
    actions = np.asarray(policy.mode(jnp.array([1.3]))) + np.random.default_rng(1).normal(
        size=(100_000, 1)
    ).astype(np.float32)
    advantages = computed(jax.vmap(lambda a: env.advantage(policy, jnp.array([1.3]), a)), actions)
    assert abs(advantages.mean()) < 4 * advantages.std() / len(actions) ** 0.5


@pytest.mark.parametrize(
    "env",
    [chain(4), gridworld(2, 3), garnet(3, states=5, actions=3)],
    ids=["chain", "gridworld", "garnet"],
)
def test_tabular_answers_are_exact(env):
    with jax.enable_x64(True):
        env = Tabular(
            *[np.asarray(x, np.float64) for x in (env.transitions, env.rewards, env.initial)],
            env.discount,
        )
        env = Tabular(
            env.transitions / env.transitions.sum(-1, keepdims=True),
            env.rewards,
            env.initial / env.initial.sum(),
            env.discount,
        )
        θ, unflatten = flatten(tabular_softmax_policy(env.observation_size, env.actions.count))
        θ = np.random.default_rng(0).normal(size=θ.shape)

        def look(θ):
            policy, states = unflatten(θ), jnp.eye(env.observation_size)
            kl = lambda moved: (
                env.occupancy(policy) @ jax.vmap(lambda s: policy.kl(unflatten(moved), s))(states)
            )
            ask = (
                env.probabilities,
                env.value,
                env.occupancy,
                env.advantages,
                env.expected_return,
                env.gradient,
                env.fisher,
            )
            return [question(policy) for question in ask], jax.hessian(kl)(θ)

        (
            (π, found_value, found_occupancy, advantages, expected_return, gradient, fisher),
            curvature,
        ) = computed(look, θ)
        np.testing.assert_allclose(π.sum(1), 1, rtol=1e-12)
        # Value by iteration, occupancy by its series.
        table, dynamics = np.asarray(π), np.einsum("sa,sat->st", π, env.transitions)
        value, occupancy, reached, weight = (
            np.zeros(env.observation_size),
            0,
            np.asarray(env.initial),
            1 - env.discount,
        )
        for _ in range(600):
            value = (table * np.asarray(env.rewards)).sum(1) + env.discount * dynamics @ value
            occupancy, reached, weight = (
                occupancy + weight * reached,
                reached @ dynamics,
                weight * env.discount,
            )
        np.testing.assert_allclose(found_value, value, rtol=1e-9)
        np.testing.assert_allclose(found_occupancy, occupancy, rtol=1e-9)
        np.testing.assert_allclose((π * advantages).sum(1), 0, atol=1e-10)
        # η = E_d[R] / (1 − γ): the factor that the paper's preliminaries leave out.
        mean_reward = (found_occupancy[:, None] * π * np.asarray(env.rewards)).sum()
        np.testing.assert_allclose(expected_return, mean_reward / (1 - env.discount), rtol=1e-10)
        # Gradient against central differences, Fisher matrix against the curvature of KL.
        aside = 1e-5 * np.eye(θ.size)
        η = computed(
            jax.vmap(lambda θ: env.expected_return(unflatten(θ))),
            np.concatenate([θ + aside, θ - aside]),
        )
        np.testing.assert_allclose(gradient, (η[: θ.size] - η[θ.size :]) / 2e-5, atol=1e-8)
        np.testing.assert_allclose(fisher, curvature, atol=1e-10)


def test_tabular_steps_follow_the_table():
    env = garnet(1, states=4, actions=2, branching=3)
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 50_000))
    steps = jax.jit(jax.vmap(lambda key, s: env.step(key, s, jnp.array(1))))(
        jax.random.split(jax.random.key(1), 50_000), states
    )
    counts = np.zeros((4, 4))
    np.add.at(counts, (np.asarray(states.index), np.asarray(steps.state.index)), 1)
    np.testing.assert_allclose(
        counts / counts.sum(1, keepdims=True), env.transitions[:, 1], atol=0.02
    )
    np.testing.assert_allclose(steps.reward, env.rewards[states.index, 1])
