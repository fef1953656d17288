"""The updates: identities between algorithms, refusal of bad numbers, bias and its absence."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import (
    ENV,
    batch_of,
    computed,
    history_from,
    parameters,
    random_policy,
    update,
    updated,
)
from plain import PG, RNPG, RPG, RTRPO, TRPO, VNPG, VPG

from recollect.algorithms import PPO, REFUSALS, RPPO
from recollect.algorithms.base import bind
from recollect.algorithms.reuse import reweighed_gradient
from recollect.algorithms.update import UpdateStart, begin
from recollect.collect.compiled import Draws, Episodes, Steps
from recollect.collect.rollout import Rollout
from recollect.envs import LQC, CartPole, garnet
from recollect.estimate.advantages import GAE, ExactAdvantages, Returns, VTrace
from recollect.estimate.critic import Critic
from recollect.estimate.evidence import clipped
from recollect.estimate.fisher import AutoFisher, ExpectedFisher, ScoreFisher
from recollect.estimate.shares import Uniform
from recollect.memory.rows import Packing, recall
from recollect.memory.weights import OccupancyRatio, PolicyRatio
from recollect.policies import AbstractPolicy, Policy, ShiftPolicy, Softmax, tabular_softmax_policy
from recollect.policies.scores import expected_score_matrix
from recollect.step.project import Ball, Box
from recollect.step.solve import Cholesky, ConjugateGradients, SampleSpace
from recollect.step.surrogate import clipped_surrogate
from recollect.step.trust_region import divergence
from recollect.tree import flatten

KEY = jax.random.key(0)
POLICY = random_policy(KEY)


def after(algorithm, **more):
    return np.asarray(parameters(updated(algorithm, POLICY, KEY, **more)[0].policy))


def test_a_window_of_one_is_the_vanilla_algorithm():
    np.testing.assert_array_equal(after(RPG(window=1)), after(VPG()))
    np.testing.assert_array_equal(after(RNPG(window=1)), after(VNPG()))
    np.testing.assert_array_equal(
        after(RTRPO(window=1, advantages=Returns())), after(TRPO(advantages=Returns()))
    )
    np.testing.assert_array_equal(
        after(RPPO(window=1, advantages=Returns())), after(PPO(advantages=Returns()))
    )
    assert np.abs(after(RNPG(window=3)) - after(VNPG())).max() > 1e-4


def test_vanilla_updates_equal_their_formula():
    """One step of VPG and VNPG, written out with dense arrays and no machinery."""
    batch = batch_of(jax.random.split(jax.random.fold_in(KEY, 0), 3)[0], POLICY)
    mask = np.asarray(batch.mask).ravel()
    rewards = np.asarray(batch.rewards)
    returns = np.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        future = returns[:, t + 1] if t + 1 < rewards.shape[1] else 0
        returns[:, t] = np.where(
            batch.mask[:, t],
            rewards[:, t]
            + 0.99 * np.where(batch.terminated[:, t] | batch.truncated[:, t], 0, future),
            0,
        )
    advantages = (returns.ravel()[mask] - returns.ravel()[mask].mean()).astype(np.float64)
    θ, unflatten = flatten(POLICY)
    observations, actions = batch.observations.reshape(-1, 4)[mask], batch.actions.ravel()[mask]
    scores = np.asarray(
        jax.jacobian(lambda θ: jax.vmap(unflatten(θ).log_prob)(observations, actions))(θ),
        np.float64,
    )
    gradient = scores.T @ advantages / mask.sum()
    fisher = scores.T @ scores / mask.sum() + 1e-3 * np.eye(θ.size)
    np.testing.assert_allclose(after(VPG(), updates=1), θ + 0.01 * gradient, atol=1e-5)
    np.testing.assert_allclose(
        after(VNPG(), updates=1), θ + 0.01 * np.linalg.solve(fisher, gradient), atol=2e-4
    )


def test_damping_that_drowns_the_fisher_matrix_gives_the_plain_gradient():
    huge = 1e4
    np.testing.assert_allclose(
        after(RNPG(window=3, damping=huge, learning_rate=0.01 * huge)),
        after(RPG(window=3)),
        atol=1e-4,
    )


def test_the_solvers_take_the_same_step():
    steps = [
        after(RNPG(window=3, damping=0.01, solver=solver))
        for solver in (Cholesky(), ConjugateGradients(tolerance=1e-6))
    ]
    np.testing.assert_allclose(steps[1], steps[0], atol=1e-3)


@pytest.mark.parametrize(
    "algorithm",
    [
        RPG(
            window=2,
            advantages=VTrace(),
            critic=Critic(widths=(6,), epochs=2),
        ),
        RNPG(window=2),
        RNPG(window=2, fisher=ExpectedFisher()),
        RTRPO(window=2, advantages=GAE(baseline="linear")),
        RPPO(window=2, advantages=GAE(baseline="linear"), minibatch=16),
    ],
    ids=["pg critic", "npg", "expected", "trpo", "ppo"],
)
def test_padding_filled_with_nan_changes_nothing(algorithm):
    def spoil(batch):
        fill = lambda x: jnp.where(
            batch.mask.reshape(batch.mask.shape + (1,) * (x.ndim - 2)),
            x,
            jnp.array(jnp.nan).astype(x.dtype),
        )
        return dataclasses.replace(jax.tree.map(fill, batch), mask=batch.mask)

    clean = batch_of(KEY, POLICY, collector=Episodes(3))
    assert not clean.mask.all()
    np.testing.assert_array_equal(after(algorithm, spoil=spoil), after(algorithm))


@pytest.mark.parametrize(
    ("algorithm", "field", "value"),
    [
        (RPG(window=2), "rewards", jnp.nan),
        (RNPG(window=2), "rewards", jnp.inf),
        (RNPG(window=2), "log_probs", jnp.nan),
        (RNPG(window=2), "observations", jnp.inf),
        (RNPG(window=2, optimizer="adam"), "rewards", jnp.nan),
        (RTRPO(window=2, advantages=Returns()), "rewards", jnp.nan),
        (RPPO(window=2, advantages=Returns()), "rewards", jnp.nan),
    ],
    ids=["pg", "npg", "npg log_probs", "npg observations", "adam", "trpo", "ppo"],
)
def test_a_batch_that_is_not_finite_is_refused_bit_for_bit(algorithm, field, value):
    state, _ = updated(algorithm, POLICY, KEY, updates=2)
    batch = batch_of(jax.random.key(5), state.policy)
    bad = eqx.tree_at(lambda b: getattr(b, field), batch, getattr(batch, field).at[1, 0].set(value))
    refused, info = update(algorithm, state, bad, KEY)
    assert REFUSALS[int(info.refused)] == "the batch holds a number that is not finite"
    np.testing.assert_array_equal(parameters(refused.policy), parameters(state.policy))
    jax.tree.map(np.testing.assert_array_equal, refused.own, state.own)
    # The bad batch poisons no later update.
    later, info = update(algorithm, refused, batch, KEY)
    assert info.refused == 0
    assert np.isfinite(parameters(later.policy)).all()


def test_weights_that_overflow_are_refused():
    state, _ = updated(RPG(window=2), POLICY, KEY, updates=1)
    batch = batch_of(jax.random.key(5), state.policy)
    absurd = eqx.tree_at(lambda b: b.log_probs, batch, batch.log_probs - 300)
    after_update, info = update(RPG(window=2), state, absurd, KEY)
    assert REFUSALS[int(info.refused)] == "the gradient is not finite"
    np.testing.assert_array_equal(parameters(after_update.policy), parameters(state.policy))
    _, info = update(RPG(window=2, weights=PolicyRatio(truncate=5.0)), state, absurd, KEY)
    assert info.refused == 0
    assert info.max_weight == 5


@pytest.mark.parametrize(
    "algorithm",
    [RPG(window=3), RNPG(window=3), RTRPO(window=3, advantages=Returns())],
    ids=["pg", "npg", "trpo"],
)
def test_what_overflows_leaves_the_window(algorithm):
    """Finite rewards whose sums are not cost one update, and not one for each place in the
    window."""
    state, _ = updated(algorithm, POLICY, KEY, updates=2)
    batch = batch_of(jax.random.key(5), state.policy)
    huge = dataclasses.replace(batch, rewards=jnp.full_like(batch.rewards, 3e38))
    refused, info = update(algorithm, state, huge, KEY)
    assert REFUSALS[int(info.refused)] == "the gradient is not finite"
    np.testing.assert_array_equal(refused.history.batches.mask.sum((1, 2)) > 0, [False, True, True])
    _, info = update(algorithm, refused, batch, KEY)
    assert info.refused == 0


def test_a_batch_whose_weights_overflow_leaves_the_window_and_the_newest_stays():
    algorithm = RPG(window=3)
    state, _ = updated(algorithm, POLICY, KEY, updates=3)
    batch = batch_of(jax.random.key(5), state.policy)
    log_probs = state.history.batches.log_probs.at[1].add(-300.0)
    history = eqx.tree_at(lambda h: h.batches.log_probs, state.history, log_probs)
    refused, info = update(algorithm, dataclasses.replace(state, history=history), batch, KEY)
    assert REFUSALS[int(info.refused)] == "the gradient is not finite"
    np.testing.assert_array_equal(refused.history.batches.mask.sum((1, 2)) > 0, [True, True, False])
    _, info = update(algorithm, refused, batch, KEY)
    assert info.refused == 0


def test_ppo_refuses_an_update_that_was_cut_short_by_a_bad_minibatch():
    """A first step that is far too long makes the next slope meaningless; what came before it is
    not kept either."""
    algorithm = RPPO(
        window=2,
        advantages=Returns(),
        optimizer="sgd",
        learning_rate=1e25,
        max_gradient_norm=float("inf"),
        minibatch=16,
    )
    state, info = updated(algorithm, POLICY, KEY, updates=1)
    assert REFUSALS[int(info.refused)] == "a minibatch gradient is not finite"
    assert info.gradient_steps > 0
    np.testing.assert_array_equal(parameters(state.policy), parameters(POLICY))


def test_only_a_failed_step_raises_the_damping_of_trpo():
    algorithm = RTRPO(window=2, advantages=Returns(), backtracks=1, target_kl=1e-3)
    state, _ = updated(algorithm, POLICY, KEY, updates=2)
    state = eqx.tree_at(lambda s: s.own.damping_scale, state, jnp.array(8.0))
    batch = batch_of(jax.random.key(5), state.policy)
    scale = lambda batch: float(update(algorithm, state, batch, KEY)[0].own.damping_scale)
    assert scale(batch) == 4
    assert scale(dataclasses.replace(batch, rewards=batch.rewards.at[0, 0].set(jnp.nan))) == 8
    assert scale(dataclasses.replace(batch, rewards=jnp.full_like(batch.rewards, 3e38))) == 8
    # Every candidate is pushed into a corner far outside the trust region.
    impossible = dataclasses.replace(algorithm, project=Box(5.0, 6.0))
    state_refused, info = update(impossible, state, batch, KEY)
    assert REFUSALS[int(info.refused)].startswith("no step was found within the trust region")
    assert float(state_refused.own.damping_scale) == 32


def test_a_batch_without_signal_is_told_apart_from_a_failed_search():
    algorithm = RTRPO(window=1, advantages=Returns())
    state, _ = updated(algorithm, POLICY, KEY, updates=1)
    batch = batch_of(jax.random.key(5), state.policy)
    after_update, info = update(
        algorithm, state, dataclasses.replace(batch, rewards=jnp.zeros_like(batch.rewards)), KEY
    )
    assert REFUSALS[int(info.refused)] == "the gradient is zero, the batches hold no signal"
    assert float(after_update.own.damping_scale) == float(state.own.damping_scale)
    np.testing.assert_array_equal(parameters(after_update.policy), parameters(state.policy))


def test_a_direction_that_does_not_solve_the_system_is_refused():
    algorithm = RNPG(
        window=2,
        damping=1e-6,
        solver=ConjugateGradients(tolerance=1e-4, max_steps=1, preconditioner_rows=0),
    )
    state, info = updated(algorithm, POLICY, KEY, updates=1)
    assert info.solver_residual > 0.5
    assert REFUSALS[int(info.refused)].startswith("the direction does not solve the system")
    np.testing.assert_array_equal(parameters(state.policy), parameters(POLICY))


def test_the_closed_form_fisher_matrix_does_not_weigh_states_by_actions():
    """Its actions are integrated out: how likely they were tells nothing of the state."""
    algorithm = RNPG(window=2, fisher=ExpectedFisher())
    start = policy_and_older_batch(algorithm)
    policy = start.state.policy
    fisher = computed(lambda rows: algorithm.fisher(rows.uniform_window(2)).matrix(), start.rows)
    assert float(start.rows.weights.max()) > 1.5
    real = np.asarray(start.rows.state_weights) > 0
    observations = np.asarray(start.rows.observations)[real]
    scores = lambda observations: expected_score_matrix(policy, observations).columns()
    columns = computed(scores, observations).astype(np.float64)
    np.testing.assert_allclose(fisher, columns @ columns.T / real.sum(), rtol=1e-3, atol=1e-6)


def policy_and_older_batch(algorithm):
    """Where an update starts whose window holds a batch of a rather different policy."""
    old, new = random_policy(jax.random.key(1)), random_policy(jax.random.key(2))

    @eqx.filter_jit
    def start(new, older, newer):
        state = algorithm.init(old, older, KEY)
        history, _ = state.history.push(older, old, algorithm.weights)
        state = dataclasses.replace(state, policy=new, history=history)
        return begin(algorithm, state, Rollout.of(newer))

    return start(new, batch_of(KEY, old), batch_of(jax.random.key(3), new))


def test_a_step_to_infinity_is_refused():
    state, info = updated(
        VPG(learning_rate=1e38, advantages=Returns(baseline="none")),
        random_policy(KEY),
        KEY,
        updates=2,
    )
    assert np.isfinite(parameters(state.policy)).all()
    assert int(info.refused) > 0


SMALL = Critic(widths=(6,), epochs=2, minibatch=32)
SHARED = {
    "window": 2,
    "discount": 0.8,
    "discount_states": True,
    "weights": [PolicyRatio(truncate=0.9), PolicyRatio(self_normalise=True)],
    "shares": Uniform(1),
    "project": Box(-0.3, 0.3),
    "critic_window": [],  # without a critic it changes nothing
}
ASCENT = {"learning_rate": 0.02, "step_decay": 0.5, "optimizer": "sgd", "objective_scale": True}
NATURAL = {
    "fisher_window": 1,
    "damping": 0.1,
    "fisher": ExpectedFisher(),
    "independent_fisher": True,
    "solver": [
        ConjugateGradients(tolerance=0.5, preconditioner_rows=0),
        ConjugateGradients(max_steps=1, preconditioner_rows=0),
    ],
}
V_TRACE = VTrace()
CRITIC_CHANGES = {
    "advantages": [
        GAE(),
        Returns(baseline="critic"),
        VTrace(baseline="linear"),
        VTrace(standardise=True),
        VTrace(gae_lambda=0.5),
        VTrace(truncate_rho=0.5),
        VTrace(truncate_c=0.5),
    ],
    "critic": dataclasses.replace(SMALL, epochs=1),
    "critic_window": 1,
}
BASES = {
    "npg": RNPG(window=3, learning_rate=0.05),
    "pg": RPG(window=3, optimizer="adam", advantages=V_TRACE, critic=SMALL),
    "trpo": RTRPO(window=3, advantages=Returns(baseline="linear"), target_kl=1.0, damping=1e-4),
    "ppo": RPPO(
        window=3,
        advantages=Returns(baseline="linear"),
        learning_rate=0.05,
        epochs=3,
        minibatch=32,
        clip=0.05,
    ),
}
CHANGES = {
    "npg": {
        **SHARED,
        **ASCENT,
        **NATURAL,
        "optimizer": "adam",
        "advantages": [
            Returns(baseline="none"),
            Returns(baseline="linear"),
            Returns(standardise=True),
        ],
        "project": [Box(-0.3, 0.3), Ball(0.5)],
        "critic": [],
        "target_kl": 1e-4,
    },
    "pg": {**{field: [] for field in (*SHARED, *ASCENT)}, **CRITIC_CHANGES},
    "trpo": {
        **SHARED,
        **{field: [] for field in ("discount", "discount_states", *NATURAL)},
        **dict(
            advantages=Returns(baseline="none"),
            critic=[],
            target_kl=0.01,
            radius_decay=2.0,
            max_length=0.01,
        ),
        # test_trust_region.py has a surrogate that bounds the step.
        **dict(backtracks=[], shrink=[]),
    },
    "ppo": {
        **SHARED,
        **{field: [] for field in ("discount", "discount_states")},
        **ASCENT,
        **dict(
            advantages=Returns(baseline="none"),
            critic=[],
            clip=0.3,
            clip_centre="current",
            epochs=2,
            minibatch=200,
        ),
        **dict(
            entropy=0.5, target_kl=1e-5, max_gradient_norm=1e-3, weights=PolicyRatio(truncate=0.9)
        ),
    },
}
"""For each algorithm all of its fields with other values; nothing for a field that another row
tests, as the code is shared."""


@pytest.mark.parametrize("name", BASES)
def test_every_field_is_listed(name):
    assert set(CHANGES[name]) == {field.name for field in dataclasses.fields(BASES[name])}


def variants():
    for name, fields in CHANGES.items():
        for field, values in fields.items():
            for i, value in enumerate(values if isinstance(values, list) else [values]):
                yield pytest.param(name, field, value, id=f"{name} {field} {i}")


@functools.cache
def after_base(name):
    return after(BASES[name])


@pytest.mark.parametrize(("name", "field", "value"), list(variants()))
def test_every_field_changes_the_update(name, field, value):
    changed = dataclasses.replace(BASES[name], **{field: value})
    assert np.abs(after(changed) - after_base(name)).max() > 1e-6


def test_trpo_without_backtracking_is_npg_scaled_to_the_radius():
    plain = dict(window=3, damping=0.05, advantages=Returns(), solver=Cholesky())
    state, _ = updated(RTRPO(**plain), POLICY, KEY, updates=2)
    batch = batch_of(jax.random.key(5), state.policy)
    moved, info = update(RTRPO(target_kl=1e-5, **plain), state, batch, KEY)
    assert (int(info.refused), int(info.backtracks)) == (0, 0)
    natural = RNPG(learning_rate=1.0, **plain)
    full, _ = update(
        natural,
        dataclasses.replace(natural.init(state.policy, batch, KEY), history=state.history),
        batch,
        KEY,
    )
    θ = parameters(state.policy)
    step = np.asarray(parameters(moved.policy) - θ, np.float64)
    direction = np.asarray(parameters(full.policy) - θ, np.float64)
    expected = float(info.step_length) * direction
    np.testing.assert_allclose(step, expected, atol=2e-3 * np.abs(expected).max())

    assert 0.9 * 1e-5 < computed(_spent, moved.history, state.policy, moved.policy, 3) <= 1e-5


def _spent(history, policy, new, window):
    """The KL that is held against the radius."""
    return divergence(recall(history, policy, PolicyRatio()).uniform_window(window), policy, new)


def test_the_closed_form_is_taken_where_it_is_known():
    linear = Policy(eqx.nn.Linear(4, 2, key=KEY), Softmax())
    for policy, known in ((POLICY, ExpectedFisher()), (linear, ScoreFisher())):
        history = history_from([policy], [batch_of(KEY, policy)])
        x = jnp.arange(1.0, 1 + len(parameters(policy)))

        def products(history, policy=policy, known=known, x=x):
            window = recall(history, policy, PolicyRatio()).uniform_window(1)
            return [kind(window).mv(x) for kind in (AutoFisher(), known)]

        auto, expected = computed(products, history)
        np.testing.assert_array_equal(auto, expected)


@pytest.mark.parametrize("bound", [1e-4, 1e-2])
def test_a_natural_step_is_shortened_to_its_bound_and_no_other_is(bound):
    """Along the same direction; a step that stays inside is what it is without a bound."""
    plain = dict(window=2, learning_rate=1.0, solver=Cholesky())
    state, _ = updated(RNPG(**plain), POLICY, KEY, updates=1)
    batch = batch_of(jax.random.key(5), state.policy)
    after_step = lambda **settings: update(RNPG(**plain, **settings), state, batch, KEY)
    free, info_free = after_step()
    bounded, info = after_step(target_kl=bound)
    inside, info_inside = after_step(target_kl=1e3)
    assert info_free.step_length is None
    assert float(info_inside.step_length) == 1
    np.testing.assert_array_equal(parameters(inside.policy), parameters(free.policy))
    length = float(info.step_length)
    assert 0 < length < 1
    θ = parameters(state.policy)
    step, whole = parameters(bounded.policy) - θ, parameters(free.policy) - θ
    np.testing.assert_allclose(step, length * whole, atol=1e-5 * np.abs(whole).max())
    spent = lambda new: float(computed(_spent, bounded.history, state.policy, new.policy, 2))
    assert 0.9 * bound < spent(bounded) <= bound < spent(free)


def test_a_natural_step_that_no_length_brings_inside_is_refused():
    algorithm = RNPG(window=2, target_kl=1e-3, project=Box(5.0, 6.0))
    state, info = updated(algorithm, POLICY, KEY, updates=1)
    assert REFUSALS[int(info.refused)].startswith("no step was found within the trust region")
    np.testing.assert_array_equal(parameters(state.policy), parameters(POLICY))


def test_a_line_search_that_cannot_succeed_restores_the_policy_and_raises_the_damping():
    algorithm = RTRPO(window=2, advantages=Returns())
    state, _ = updated(algorithm, POLICY, KEY, updates=2)
    # Every candidate is pushed into a corner far outside the trust region.
    hopeless = dataclasses.replace(algorithm, project=Box(5.0, 6.0))
    dampings = []
    for i in range(3):
        after_update, info = update(
            hopeless, state, batch_of(jax.random.key(5 + i), state.policy), KEY
        )
        assert REFUSALS[int(info.refused)].startswith("no step was found")
        np.testing.assert_array_equal(parameters(after_update.policy), parameters(state.policy))
        state = after_update
        dampings.append(float(info.damping))
    np.testing.assert_allclose(dampings, [1e-3, 4e-3, 16e-3], rtol=1e-5)
    for expected in (64e-3, 32e-3):
        state, info = update(algorithm, state, batch_of(jax.random.key(9), state.policy), KEY)
        assert int(info.refused) == 0
        np.testing.assert_allclose(info.damping, expected, rtol=1e-5)


def test_a_policy_without_doubts_is_left_alone():
    """Its probabilities are 0 and 1, so every score is 0, and with them gradient, direction and
    curvature."""
    θ, unflatten = flatten(POLICY)
    sure = unflatten(1e5 * θ)
    state, info = updated(RTRPO(window=2, advantages=Returns()), sure, KEY, updates=1)
    assert float(info.gradient_norm) < 1e-20
    assert REFUSALS[int(info.refused)] == "the gradient is zero, the batches hold no signal"
    np.testing.assert_array_equal(parameters(state.policy), parameters(sure))


def test_accepted_steps_stay_inside_the_trust_region_on_fresh_states():
    env, algorithm = (
        CartPole(max_steps=200),
        RTRPO(window=4, advantages=Returns(baseline="linear"), target_kl=0.02),
    )
    state = algorithm.init(POLICY, batch_of(KEY, POLICY, env, Steps(8, 50)), KEY)
    mean_kl = eqx.filter_jit(
        lambda old, new, batch: jax.vmap(jax.vmap(lambda s: old.kl(new, s)))(
            batch.observations
        ).mean()
    )
    kls = []
    for i in range(40):
        before = state.policy
        keys = jax.random.split(jax.random.fold_in(KEY, i))
        state, _ = update(algorithm, state, batch_of(keys[0], before, env, Steps(8, 50)), KEY)
        fresh = batch_of(keys[1], before, env, Steps(40, 50))
        kls.append(float(mean_kl(before, state.policy, fresh)))
    assert np.quantile(kls, 0.95) < 1.5 * 0.02
    assert np.median(kls) > 0.2 * 0.02


ONE_STEP = dict(
    window=3,
    epochs=1,
    minibatch=10**6,
    optimizer="sgd",
    advantages=Returns(),
    max_gradient_norm=float("inf"),
)


def test_ppo_with_infinite_clip_and_one_full_batch_step_is_the_policy_gradient():
    ppo = RPPO(learning_rate=0.05, clip=float("inf"), **ONE_STEP)
    np.testing.assert_allclose(after(ppo), after(RPG(window=3, learning_rate=0.05)), atol=1e-6)
    _, info = updated(ppo, POLICY, KEY)
    assert info.gradient_steps == 1
    assert (info.clip_fraction_by_age == 0).all()


def test_ppo_clips_the_gradient_by_its_norm_and_stops_at_the_target():
    state, _ = updated(
        RPPO(learning_rate=1.0, **{**ONE_STEP, "max_gradient_norm": 1e-3}), POLICY, KEY, updates=1
    )
    np.testing.assert_allclose(
        np.linalg.norm(parameters(state.policy) - parameters(POLICY)), 1e-3, rtol=1e-3
    )
    eager = RPPO(
        window=2, epochs=20, minibatch=32, learning_rate=0.05, advantages=Returns(), clip=10.0
    )
    _, free = updated(eager, POLICY, KEY, updates=1)
    _, held = updated(dataclasses.replace(eager, target_kl=0.01), POLICY, KEY, updates=1)
    assert 0 < held.gradient_steps < free.gradient_steps
    assert held.kl < 0.05 < free.kl


def test_a_clip_around_one_silences_old_samples_and_one_around_the_current_ratio_does_not():
    """Before the policy has moved, no sample is clipped by a clip around where it starts."""
    still = RPPO(
        window=3, learning_rate=1e-9, epochs=1, advantages=Returns(baseline="linear"), clip=0.05
    )
    state, _ = updated(
        RPPO(window=3, learning_rate=0.05, advantages=Returns(baseline="linear")), POLICY, KEY
    )
    batch = batch_of(jax.random.key(5), state.policy)
    fraction = {
        centre: update(dataclasses.replace(still, clip_centre=centre), state, batch, KEY)[
            1
        ].clip_fraction_by_age
        for centre in ("one", "current")
    }
    assert fraction["one"][0] == 0
    assert (fraction["one"][1:] > 0.05).all()
    np.testing.assert_allclose(fraction["current"], 0)


def test_the_surrogate_by_hand():
    ratio, centre = (
        jnp.array([1.5, 0.5, 1.5, 0.5, 3.1, 2.9]),
        jnp.array([1.0, 1.0, 1.0, 1.0, 3.0, 3.0]),
    )
    advantages = jnp.array([2.0, 2.0, -2.0, -2.0, 1.0, -1.0])
    np.testing.assert_allclose(
        clipped_surrogate(ratio, centre, advantages, 0.2),
        [2.4, 1.0, -3.0, -1.6, 3.1, -2.9],
        rtol=1e-6,
    )
    np.testing.assert_array_equal(
        clipped(ratio, centre, advantages, 0.2), [True, False, False, True, False, False]
    )


def test_solver_choices_that_must_not_matter_do_not():
    """A preconditioner and a warm start change the road, not the end."""
    base = after(RNPG(window=3, damping=0.01, solver=ConjugateGradients(tolerance=1e-6)))
    for solver in (
        ConjugateGradients(tolerance=1e-6, warm_start=True),
        ConjugateGradients(tolerance=1e-6, preconditioner_rows=8),
    ):
        np.testing.assert_allclose(
            after(RNPG(window=3, damping=0.01, solver=solver)), base, atol=1e-3
        )


def test_schedules_and_optax_optimizers():
    schedule = lambda iteration: 0.05 / (1 + iteration)
    np.testing.assert_allclose(
        after(RPG(learning_rate=schedule)),
        after(RPG(learning_rate=0.05, step_decay=1.0)),
        atol=1e-6,
    )
    np.testing.assert_allclose(
        after(RPG(optimizer=optax.sgd(0.05), learning_rate=1.0)),
        after(RPG(learning_rate=0.05)),
        atol=1e-6,
    )
    np.testing.assert_allclose(
        after(RPG(optimizer=optax.adam(0.05), learning_rate=1.0)),
        after(RPG(optimizer="adam", learning_rate=0.05)),
        atol=1e-6,
    )


def test_fewer_batches_than_the_window_average_over_those_that_exist():
    """Before the window is full its length cannot matter."""
    np.testing.assert_allclose(
        after(RNPG(window=3), updates=3), after(RNPG(window=7), updates=3), atol=1e-5
    )
    np.testing.assert_allclose(
        after(RNPG(window=3, fisher_window=7), updates=3),
        after(RNPG(window=7), updates=3),
        atol=1e-5,
    )


def test_a_longer_fisher_window_leaves_the_gradient_alone():
    _, short = updated(RNPG(window=2, fisher_window=2), POLICY, KEY, updates=1)
    _, long = updated(RNPG(window=2, fisher_window=5), POLICY, KEY, updates=1)
    np.testing.assert_allclose(short.gradient_norm, long.gradient_norm, rtol=1e-5)
    assert len(long.ess_by_age) == 5


def test_packed_windows_take_the_same_step(monkeypatch):
    algorithm = RNPG(window=3, fisher_window=2, learning_rate=0.02)
    state, _ = updated(algorithm, POLICY, KEY, updates=3)
    batch = batch_of(jax.random.key(5), state.policy)

    def step():
        # A function of its own, as one that is compiled already would not see smaller chunks.
        moved = lambda *given: parameters(algorithm.update(*given, KEY)[0].policy)
        return computed(moved, state, Rollout.of(batch))

    packing = lambda: eqx.filter_eval_shape(Packing.of, state.history.batches.mask)
    plain = step()
    assert packing().source is None
    monkeypatch.setattr("recollect.memory.rows.chunk_size", lambda: 30)
    monkeypatch.setattr("recollect.policies.chunks.fold.__defaults__", (30,))
    assert packing().source is not None
    np.testing.assert_allclose(step(), plain, atol=1e-4)


def test_vmap_over_seeds_equals_a_loop():
    algorithm = RNPG(window=2, damping=0.01)
    state, _ = updated(algorithm, POLICY, KEY, updates=1)
    batches = [batch_of(jax.random.key(seed), state.policy) for seed in range(3)]
    together = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    mapped = jax.jit(
        jax.vmap(
            lambda batch: parameters(algorithm.update(state, Rollout.of(batch), KEY)[0].policy)
        )
    )(together)
    np.testing.assert_allclose(
        mapped,
        jnp.stack([parameters(update(algorithm, state, b, KEY)[0].policy) for b in batches]),
        atol=1e-3,
    )


class Plain(AbstractPolicy):
    """A policy of the user's own: logistic in the observation, nothing of recollect's inside."""

    weights: jnp.ndarray

    def _logit(self, observation):
        return self.weights @ observation

    def sample(self, key, observation):
        return jax.random.bernoulli(key, jax.nn.sigmoid(self._logit(observation))).astype(jnp.int32)

    def log_prob(self, observation, action):
        return jax.nn.log_sigmoid(jnp.where(action == 1, 1, -1) * self._logit(observation))

    def mode(self, observation):
        return (self._logit(observation) > 0).astype(jnp.int32)

    def entropy(self, observation):
        p = jax.nn.sigmoid(self._logit(observation))
        return -(p * jnp.log(p) + (1 - p) * jnp.log1p(-p))

    def kl(self, other, observation):
        terms = [
            jnp.exp(self.log_prob(observation, a))
            * (self.log_prob(observation, a) - other.log_prob(observation, a))
            for a in (0, 1)
        ]
        return sum(terms)


@pytest.mark.parametrize("solver", [Cholesky(), SampleSpace(), ConjugateGradients()])
def test_a_custom_policy_needs_five_methods(solver):
    state, info = updated(
        RNPG(window=2, solver=solver, learning_rate=0.1), Plain(jnp.zeros(4)), KEY
    )
    assert info.refused == 0
    assert np.abs(state.policy.weights).max() > 0
    assert info.kl > 0


def exact_gradient(algorithm, history, policy, env):
    """The reweighed gradient with exact advantages."""
    algorithm = bind(algorithm, env)
    state = algorithm.init(policy, jax.tree.map(lambda x: x[0], history.batches), KEY)
    state = dataclasses.replace(state, history=history)
    rows = recall(history, policy, algorithm.weights)
    start = UpdateStart(
        state=state,
        stored=state.history,
        reference=policy,
        usable=jnp.array(True),
        rows=rows,
    )
    return algorithm.scaled(reweighed_gradient(algorithm, start))


def reuse_estimates(env, behaviours, target, rules, replications=4000, samples=10):
    """Estimates of ∇η(target) from one batch of each behaviour policy, whose parameters are fixed
    in advance."""

    def estimate(key):
        batches = [
            Draws(samples)(jax.random.fold_in(key, i), env, behaviour, None, env.discount)[1].batch
            for i, behaviour in enumerate(behaviours)
        ]
        return [weigh(batches, rule) for rule in rules]

    def weigh(batches, rule):
        history = history_from(behaviours, batches, rule)
        exact = ExactAdvantages()
        algorithm = PG(
            window=len(batches),
            discount=env.discount,
            objective_scale=True,
            weights=rule,
            advantages=exact,
        )
        return exact_gradient(algorithm, history, target, env)

    return jax.jit(jax.vmap(estimate))(jax.random.split(KEY, replications))


def test_exact_ratios_make_the_reuse_estimator_unbiased():
    env = garnet(4, states=3, actions=2, branching=2, discount=0.8)
    θ, unflatten = flatten(tabular_softmax_policy(3, 2))
    behaviours = [unflatten(0.8 * jax.random.normal(jax.random.key(i), θ.shape)) for i in range(3)]
    target = unflatten(jnp.linspace(-0.5, 1.0, θ.size))
    exact = computed(env.gradient, target)
    rules = OccupancyRatio(oracle=env), PolicyRatio()
    unbiased, biased = map(np.asarray, reuse_estimates(env, behaviours, target, rules))
    error = lambda estimates: estimates.std(0) / len(estimates) ** 0.5
    assert (np.abs(unbiased.mean(0) - exact) < 4 * error(unbiased)).all()
    # The policy ratio ignores how states are visited, and this test can see its bias.
    assert (np.abs(biased.mean(0) - exact) > 4 * error(biased)).any()


def test_two_iterations_show_the_bias_of_section_2_4():
    """θ₁ depends on the samples of θ₀, so reweighing those samples does not estimate ∇η(θ₁)
    without bias."""
    env = LQC()
    algorithm = VPG(
        discount=0.5,
        learning_rate=0.05,
        objective_scale=True,
        advantages=ExactAdvantages(),
    )
    start = ShiftPolicy(jnp.array(0.5))

    def errors(key):
        key_old, key_new = jax.random.split(key)
        draw = lambda key, policy: Draws(5)(key, env, policy, None, 0.5)[1].batch
        old = draw(key_old, start)
        exact_algorithm = bind(algorithm, env)
        state = exact_algorithm.init(start, old, key)
        state, _ = exact_algorithm.update(state, Rollout.of(old), key)
        policy = state.policy
        exact = -2 * policy.shift / (1 - 0.5)

        def estimate(batch):
            history = history_from([policy], [batch])
            return exact_gradient(algorithm, history, policy, env)[0] - exact

        return estimate(old), estimate(draw(key_new, policy))

    reused, fresh = jax.jit(jax.vmap(errors))(jax.random.split(KEY, 40_000))
    error = lambda x: x.std() / x.size**0.5
    assert abs(fresh.mean()) < 4 * error(fresh)
    assert abs(reused.mean()) > 10 * error(reused)


def test_info_tells_the_truth():
    state, info = updated(RNPG(window=3, learning_rate=0.05), POLICY, KEY, updates=4)
    assert info.refused == 0
    counts = state.history.batches.mask.sum((1, 2))
    assert (info.ess_by_age <= counts + 1e-3).all()
    np.testing.assert_allclose(info.ess_by_age[0], counts[0], rtol=1e-4)
    assert info.ess <= counts.sum() + 1e-3
    assert info.max_weight > 1
    before, _ = updated(RNPG(window=3, learning_rate=0.05), POLICY, KEY, updates=3)
    newest = jax.tree.map(lambda x: x[0], state.history.batches)
    kls = jax.vmap(jax.vmap(lambda s: before.policy.kl(state.policy, s)))(newest.observations)
    np.testing.assert_allclose(info.kl, kls[newest.mask].mean(), rtol=1e-3)
    assert ENV.max_steps == newest.mask.shape[1]


STILL = dict(learning_rate=1e-9, damping=0.01, solver=Cholesky())
"""Policies stay where they are, so that every weight is one and dense formulas are short."""


def score_products(policy, batches) -> np.ndarray:
    """The mean of ∇log π ∇log πᵀ over the transitions of some batches."""
    θ, unflatten = flatten(policy)
    mask = np.asarray(batches.mask).ravel()
    observations = batches.observations.reshape(-1, 4)[mask]
    actions = batches.actions.ravel()[mask]
    log_probs = lambda θ: jax.vmap(unflatten(θ).log_prob)(observations, actions)
    scores = np.asarray(jax.jit(jax.jacobian(log_probs))(θ), np.float64)
    return scores.T @ scores / len(scores)


def test_gradient_and_fisher_matrix_have_windows_of_their_own():
    state, info = updated(RNPG(window=1, fisher_window=3, **STILL), POLICY, KEY, updates=4)
    _, alone = updated(RNPG(window=1, **STILL), POLICY, KEY, updates=4)
    np.testing.assert_allclose(info.gradient_norm, alone.gradient_norm, rtol=1e-4)
    newest = jax.tree.map(lambda x: x[:3], state.history.batches)
    product = score_products(POLICY, newest) @ state.own.direction + 0.01 * state.own.direction
    np.testing.assert_allclose(np.linalg.norm(product), info.gradient_norm, rtol=1e-3)


def test_the_fisher_matrix_comes_from_the_independent_batch():
    algorithm = RNPG(window=1, independent_fisher=True, **STILL)
    batch, other = batch_of(jax.random.key(1), POLICY), batch_of(jax.random.key(2), POLICY)
    state, info = update(algorithm, algorithm.init(POLICY, batch, KEY), batch, KEY, other)
    shared = RNPG(window=1, **STILL)
    _, plain = update(shared, shared.init(POLICY, batch, KEY), batch, KEY)
    np.testing.assert_allclose(info.gradient_norm, plain.gradient_norm, rtol=1e-5)
    product = score_products(POLICY, other) @ state.own.direction + 0.01 * state.own.direction
    np.testing.assert_allclose(np.linalg.norm(product), info.gradient_norm, rtol=1e-3)


def test_the_last_direction_is_where_conjugate_gradients_start():
    state, info = updated(RNPG(window=2, learning_rate=0.05), POLICY, KEY, updates=1)
    step = parameters(state.policy) - parameters(POLICY)
    np.testing.assert_allclose(0.05 * state.own.direction, step, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(state.own.direction), info.direction_norm, rtol=1e-5)


def test_a_short_gradient_is_not_stretched():
    free = RPPO(learning_rate=0.05, **ONE_STEP)
    bounded = dataclasses.replace(free, max_gradient_norm=1e3)
    np.testing.assert_allclose(after(bounded), after(free), atol=1e-6)


def test_clip_fractions_are_of_their_age():
    """Where every advantage is positive, ratios above 1 + ε are clipped."""
    base = dict(window=3, advantages=Returns(baseline="none"), clip=0.05)
    state, _ = updated(RPPO(learning_rate=0.05, **base), POLICY, KEY)
    batch = batch_of(jax.random.key(5), state.policy)
    after_update, info = update(RPPO(learning_rate=1e-9, epochs=1, **base), state, batch, KEY)
    batches = after_update.history.batches
    log_prob = jax.jit(jax.vmap(jax.vmap(jax.vmap(state.policy.log_prob))))
    log_ratio = log_prob(batches.observations, batches.actions) - batches.log_probs
    above = np.asarray(log_ratio > np.log(1.05))
    expected = [above[age][batches.mask[age]].mean() for age in range(3)]
    assert max(expected) > 0.05
    np.testing.assert_allclose(info.clip_fraction_by_age, expected, atol=1e-6)


def test_explained_variance_is_that_of_the_targets():
    algorithm = RPG(window=1, advantages=Returns(baseline="linear"))
    batch = batch_of(jax.random.key(5), POLICY)
    state, info = update(algorithm, algorithm.init(POLICY, batch, KEY), batch, KEY)
    batches = state.history.batches
    ones = jnp.zeros_like(batches.rewards)
    estimates = eqx.filter_jit(algorithm.advantages)(batches, POLICY, 0.99, ones)
    mask = np.asarray(batches.mask)
    targets, values = np.asarray(estimates.targets)[mask], np.asarray(estimates.values)[mask]
    expected = 1 - np.var(targets - values) / np.var(targets)
    assert 0.1 < expected < 1
    np.testing.assert_allclose(info.explained_variance, expected, rtol=1e-3)


@pytest.mark.parametrize("name", ["npg", "trpo"])
def test_an_independent_batch_that_is_not_finite_is_refused(name):
    algorithm = dict(npg=RNPG, trpo=RTRPO)[name](
        window=2,
        independent_fisher=True,
        advantages=Returns(),
    )
    batch, other = batch_of(jax.random.key(1), POLICY), batch_of(jax.random.key(2), POLICY)
    bad = eqx.tree_at(lambda b: b.observations, other, other.observations.at[1, 0, 0].set(jnp.inf))
    state, info = update(algorithm, algorithm.init(POLICY, batch, KEY), batch, KEY, bad)
    assert REFUSALS[int(info.refused)] == "the batch holds a number that is not finite"
    np.testing.assert_array_equal(parameters(state.policy), parameters(POLICY))
