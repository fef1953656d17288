"""The files under examples/, as pages show them: they train, and twins agree."""

import importlib
from pathlib import Path

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recollect as rc

EXAMPLES = Path(__file__).parent.parent / "examples"
KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


def load(name):
    return importlib.import_module(name)


def test_the_compiled_drone_moves_as_the_other():
    hover, compiled = load("hover").Hover(), load("compiled_hover").Hover()
    state = compiled.reset(KEY)
    hover.reset(seed=0)
    hover.height, hover.speed = float(state.height), 0.0
    for number in range(30):
        key = jax.random.fold_in(KEY, number)
        # Both draw the same gust.
        hover.np_random = Gusts(float(jax.random.normal(key)))
        action = np.array([np.sin(number) * 0.9], np.float32)
        observation, reward, lost, _, _ = hover.step(action)
        step = compiled.step(key, state, jnp.asarray(action))
        np.testing.assert_allclose(step.observation, observation, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(step.reward, reward, atol=1e-5)
        assert bool(step.terminated) == lost
        state = step.state


class Gusts:
    """A source of one gust."""

    def __init__(self, gust):
        self.gust = gust

    def normal(self, scale):
        return scale * self.gust


def test_the_drone_keeps_gymnasiums_contract():
    from gymnasium.utils.env_checker import check_env

    load("hover")
    check_env(gym.make("Hover-v0", render_mode="rgb_array").unwrapped, skip_render_check=True)


def test_the_linear_policy_is_a_density_whose_kl_is_the_mean_log_ratio():
    LinearController = load("linear_policy").LinearController
    policy = LinearController(jnp.array([1.0, 0.5]), jnp.array(-0.7))
    other = LinearController(jnp.array([0.8, 0.9]), jnp.array(-0.4))
    observation = jnp.array([0.3, -1.2])
    grid = jnp.linspace(-6, 6, 4001)

    @jax.jit
    def measured():
        log_prob = lambda one: jax.vmap(lambda a: one.log_prob(observation, a[None]))(grid)
        log_probs, others = log_prob(policy), log_prob(other)
        mean = lambda values: jnp.trapezoid(jnp.exp(log_probs) * values, grid)
        drawn = jax.vmap(lambda key: policy.sample(key, observation))(jax.random.split(KEY, 4000))
        said = policy.entropy(observation), policy.kl(other, observation), policy.mode(observation)
        return mean(1.0), mean(-log_probs), mean(log_probs - others), drawn, *said

    total, entropy, kl, drawn, *said = measured()
    np.testing.assert_allclose(total, 1, rtol=1e-4)
    np.testing.assert_allclose(said[0], entropy, rtol=1e-3)
    np.testing.assert_allclose(said[1], kl, rtol=1e-3)
    # Four standard errors of a mean of 4000 draws with σ = exp(−0.7).
    np.testing.assert_allclose(drawn.mean(), said[2][0], atol=4 * 0.5 / 63)


def test_the_controller_learns_to_pull_towards_the_height():
    start, Hover = load("linear_policy").start, load("compiled_hover").Hover
    settings = dict(advantages=rc.Returns(), learning_rate=0.05, window=2)
    run = rc.train(
        Hover(max_steps=40),
        rc.RPG(**settings),
        policy=start,
        collector=rc.Episodes(8),
        iterations=20,
    )
    # Adam moves a parameter by at most about 0.05 in an iteration; towards it in most of 20.
    assert run.policy().gains[0] > 0.5
