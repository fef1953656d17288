"""Returns-to-go against a double loop, baselines against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers import batch_of, random_policy

from recollect.advantages import Advantages, linear_values, returns_to_go
from recollect.collect import Draws, Steps
from recollect.envs import CartPole, garnet
from recollect.history import History
from recollect.policies import tabular_softmax_policy

KEY = jax.random.key(0)


def test_returns_to_go_equal_a_double_loop():
    draw = np.random.default_rng(0)
    rewards, ended, mask = draw.normal(size=(3, 9)), draw.random((3, 9)) < 0.25, np.arange(9) < np.array([[9], [5], [0]])
    expected = np.zeros((3, 9))
    for row in range(3):
        for start in range(9):
            weight = 1.0
            for t in range(start, 9):
                if not mask[row, t]:
                    break
                expected[row, start] += weight * rewards[row, t]
                weight *= 0.9
                if ended[row, t]:
                    break
    dirty = np.where(mask, rewards, np.nan)
    found = returns_to_go(*map(jnp.asarray, (dirty, ended, mask)), 0.9)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def history_of(env, collector, count=2, spoil=lambda b: b):
    policy = random_policy(KEY, env)
    batches = [spoil(batch_of(jax.random.fold_in(KEY, i), policy, env, collector)) for i in range(count)]
    history = History.empty(batches[0], count + 1)
    for batch in batches:
        history, _ = history.push(batch)
    return history.batches, policy


def test_baselines():
    batches, policy = history_of(CartPole(max_steps=40), Steps(4, 30))
    mask = np.asarray(batches.mask)
    plain, centred, fitted = (np.asarray(Advantages(baseline=b)(batches, policy, 0.99, None)) for b in ("none", "mean", "linear"))
    np.testing.assert_allclose(centred[mask], plain[mask] - plain[mask].mean(), atol=1e-4)
    assert np.abs(fitted[mask].mean()) < 0.05 * plain[mask].mean()
    assert fitted[mask].var() < centred[mask].var()
    scaled = np.asarray(Advantages(standardise=True)(batches, policy, 0.99, None))
    np.testing.assert_allclose([scaled[mask].mean(), scaled[mask].std()], [0, 1], atol=1e-3)
    for estimates in (plain, centred, fitted, scaled):
        assert (estimates[~mask] == 0).all()


def test_the_linear_baseline_finds_a_quadratic_value():
    observations = jax.random.normal(KEY, (2, 3, 50, 3))
    value = 2 + observations[..., 0] - 3 * observations[..., 1] * observations[..., 2]
    mask = jnp.arange(50) < 45
    mask = jnp.broadcast_to(mask, (2, 3, 50))
    found = linear_values(observations, jnp.where(mask, value, 1e6), mask)
    np.testing.assert_allclose(found[mask], value[mask], atol=0.02)
    wide = jax.random.normal(KEY, (1, 1, 200, 20))
    np.testing.assert_allclose(linear_values(wide, wide[..., 0] ** 2, jnp.ones((1, 1, 200), bool)), wide[..., 0] ** 2, atol=0.02)


def test_exact_advantages_are_those_of_the_current_policy():
    env = garnet(0, states=4, actions=2)
    batches, _ = history_of(env, Draws(6))
    policy = tabular_softmax_policy(4, 2)
    found = Advantages(estimator="exact")(batches, policy, env.discount, env)
    table = env.advantages(policy)
    expected = table[batches.observations.argmax(-1), batches.actions]
    np.testing.assert_allclose(found[batches.mask], expected[batches.mask], atol=1e-5)
