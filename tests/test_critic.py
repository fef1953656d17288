"""The critic fits what it is given, in any units; minibatches visit every transition once an
epoch."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ENV, batch_of, computed, random_policy, update
from plain import RPG

from recollect.estimate.advantages import Returns
from recollect.estimate.critic import Critic, Units, _in_units
from recollect.minibatches import sweep

KEY = jax.random.key(0)
OBSERVATIONS = (
    np.random.default_rng(0).normal([5.0, 0.0], [0.01, 30.0], (2, 3, 40, 2)).astype(np.float32)
)
MASK = np.broadcast_to(np.arange(40) < np.array([[40], [25], [33]]), (2, 3, 40))


def value(observations):
    return 1000 + 50 * np.sin((observations[..., 0] - 5) * 100) + observations[..., 1]


def refitted(critic, times=1, observations=OBSERVATIONS, targets=None, mask=MASK):
    values = eqx.filter_jit(critic.init)(KEY, 2)
    targets = value(observations) if targets is None else targets
    refit = eqx.filter_jit(critic.refit)
    for i in range(times):
        values = refit(values, observations, targets, mask, jax.random.key(i))
    return values


def test_it_fits_values_of_any_scale_and_generalises():
    critic = Critic(widths=(32, 32), epochs=20, minibatch=32, learning_rate=3e-3)
    values = refitted(critic, 20)
    error = lambda where, observations: np.std(
        (computed(values, observations) - value(observations))[where]
    )
    assert error(MASK, OBSERVATIONS) < 0.15 * np.std(value(OBSERVATIONS)[MASK])
    fresh = OBSERVATIONS.copy()
    fresh[..., 1] = (
        np.random.default_rng(3).permutation(OBSERVATIONS[..., 1].ravel()).reshape(2, 3, 40)
    )
    assert error(MASK, fresh) < 0.3 * np.std(value(fresh)[MASK])


def test_other_units_leave_the_values_alone():
    network = refitted(Critic(widths=(8,)), 2).network
    old, new = Units(jnp.array(3.0), jnp.array(2.0)), Units(jnp.array(-7.0), jnp.array(0.1))
    say = lambda network, units: (
        units.mean + units.spread * jax.vmap(network)(jax.random.normal(KEY, (9, 2)))
    )
    both = computed(
        lambda network: (say(_in_units(network, old, new), new), say(network, old)), network
    )
    np.testing.assert_allclose(*both, rtol=1e-5)


def test_padding_is_not_seen():
    # 196 rows in fourteen minibatches of fourteen: the last one has room for a row of padding.
    critic = Critic(widths=(8,), minibatch=15)
    spoil = lambda x: np.where(MASK.reshape(MASK.shape + (1,) * (x.ndim - 3)), x, np.float32(1e9))
    clean = refitted(critic, observations=OBSERVATIONS)
    dirty = refitted(critic, observations=spoil(OBSERVATIONS), targets=spoil(value(OBSERVATIONS)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), clean, dirty)


def test_the_batch_is_the_newest_of_the_window():
    far = value(OBSERVATIONS)
    far[1] += 500
    on_batch, on_window = (
        refitted(Critic(widths=(8,), fit=fit), 5, targets=far) for fit in ("batch", "window")
    )
    np.testing.assert_allclose(on_batch.value_units.mean, far[0][MASK[0]].mean(), rtol=1e-4)
    np.testing.assert_allclose(on_window.value_units.mean, far[MASK].mean(), rtol=1e-4)


@pytest.mark.parametrize(
    ("targets", "mask"),
    [(np.full(MASK.shape, np.float32(np.inf)), MASK), (value(OBSERVATIONS), MASK & False)],
)
def test_a_fit_that_cannot_be_leaves_the_critic_alone(targets, mask):
    critic = Critic(widths=(8,))
    jax.tree.map(
        np.testing.assert_array_equal,
        refitted(critic, targets=targets, mask=mask),
        eqx.filter_jit(critic.init)(KEY, 2),
    )


@pytest.mark.parametrize(("rows", "size"), [(23, 5), (23, 23), (23, 100), (6, 5), (0, 5)])
def test_every_row_is_visited_once_an_epoch(rows, size):
    mask = np.random.default_rng(0).permutation(np.arange(30) < rows)

    def visit(carry, indices, real):
        seen, largest, orders = carry
        orders = orders.at[indices].add(jnp.where(real, jnp.arange(len(real)), 0))
        return (seen.at[indices].add(real), jnp.maximum(largest, real.sum()), orders), jnp.array(
            True
        )

    start = (jnp.zeros(30, int), jnp.array(0), jnp.zeros(30, int))
    seen, largest, _ = computed(lambda mask: sweep(KEY, mask, 3, size, visit, start), mask)
    np.testing.assert_array_equal(seen, 3 * mask)
    assert largest <= size
    # Minibatches are as even as they can be.
    assert rows == 0 or largest == -(-rows // -(-rows // min(size, 30)))


def test_a_sweep_stops_when_told():
    step = lambda carry, rows, real: (carry + 1, carry + 1 < 4)
    assert sweep(KEY, jnp.ones(30, bool), 10, 5, step, jnp.array(0)) == 4


@functools.cache
def fitted(critic):
    rows = np.random.default_rng(0).normal(size=(2, 3, 20, 5)).astype(np.float32)
    fit = lambda key, observations, targets, mask: critic.refit(
        critic.init(key, 4), observations, targets, mask, key
    )(observations)
    return computed(fit, KEY, rows[..., :4], rows[..., 4], np.ones((2, 3, 20), bool))


@pytest.mark.parametrize(
    ("field", "value"),
    dict(
        widths=(4,), activation="relu", fit="batch", epochs=1, minibatch=16, learning_rate=0.1
    ).items(),
)
def test_every_field_changes_the_fit(field, value):
    base = Critic(widths=(6,), epochs=2, minibatch=32)
    assert np.abs(fitted(base) - fitted(dataclasses.replace(base, **{field: value}))).max() > 1e-6


def test_advantages_are_taken_before_the_critic_sees_their_batch():
    """How eagerly the critic is fitted must not matter to the update that the fit follows."""
    policy = random_policy(KEY)
    batch = batch_of(KEY, policy, ENV)
    found = {}
    for epochs in (1, 60):
        critic = Critic(widths=(8,), epochs=epochs, minibatch=16, learning_rate=0.01)
        algorithm = RPG(window=2, advantages=Returns(baseline="critic"), critic=critic)
        state = algorithm.init(policy, batch, KEY)
        found[epochs] = update(algorithm, state, batch, KEY)
    (lazy, lazy_info), (eager, eager_info) = found[1], found[60]
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5)
    jax.tree.map(same, lazy.policy, eager.policy)
    np.testing.assert_allclose(eager_info.gradient_norm, lazy_info.gradient_norm, rtol=1e-5)
    # The critic that had seen nothing explains nothing, and the fitted one much.
    assert abs(eager_info.explained_variance) < 0.05
    targets = computed(lambda s: s.critic(batch.observations), eager)
    assert np.ptp(targets[np.asarray(batch.mask)]) > 1


def test_every_epoch_has_an_order_of_its_own():
    """Three rows at a time, in four epochs: minibatches must not be the same sets again."""

    def visit(carry, rows, real):
        seen, count = carry
        return (seen.at[count].set(jnp.where(real, rows, -1)), count + 1), jnp.array(True)

    start = (jnp.zeros((16, 3), int), jnp.array(0))
    seen, count = computed(lambda: sweep(KEY, jnp.ones(12, bool), 4, 3, visit, start))
    assert count == 16
    epochs = seen.reshape(4, 12)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.broadcast_to(np.arange(12), (4, 12)))
    assert len(np.unique(epochs, axis=0)) == 4
    assert not (epochs == np.arange(12)).all(1).any()


def test_statistics_count_every_batch_once():
    """A window shows the same observations again and again; only its newest batch is new."""
    values = refitted(Critic(widths=(4,), epochs=1), 3)
    newest = OBSERVATIONS[0][MASK[0]]
    assert float(values.normaliser.seen) == 3 * len(newest)
    np.testing.assert_allclose(values.normaliser.units.mean, newest.mean(0), rtol=1e-3, atol=1e-2)
