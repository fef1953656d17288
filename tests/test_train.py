"""Training as a whole: repeatable, limited as asked, compiled once, and learning."""

import dataclasses
import functools
import os
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from plain import RNPG, VPG

from recollect import (
    LQC,
    Architecture,
    Box,
    CartPole,
    Critic,
    Draws,
    Episodes,
    ShiftPolicy,
    Simplex,
    Steps,
    chain,
    make,
    preset,
    tabular_direct_policy,
    train,
)
from recollect.algorithms import ALGORITHMS, PG
from recollect.envs import AbstractEnv, Actions, Step
from recollect.estimate.advantages import GAE, ExactAdvantages, Returns
from recollect.memory.weights import OccupancyRatio
from recollect.refusals import SIGNAL
from recollect.run.fit import check_fit
from recollect.run.presets import PRESETS
from recollect.run.session import Until
from recollect.run.state import CorePool, in_shares, two_words
from recollect.run.train import _warn_of_refusals, execute
from recollect.runtime import use_compilation_cache
from recollect.step.solve import ConjugateGradients

SHORT = CartPole(max_steps=20)


def test_the_same_seed_repeats_and_seeds_do_not_touch_each_other():
    run = lambda seeds: train(SHORT, RNPG(window=3), seeds=seeds, iterations=12)
    all_three, again, others = run(3), run(3), run([2, 7, 5])
    for name, curve in all_three.curves.items():
        np.testing.assert_array_equal(curve, again.curves[name])
    np.testing.assert_allclose(
        others.curves["return_mean"][0], all_three.curves["return_mean"][2], rtol=1e-3
    )
    assert not np.array_equal(
        all_three.curves["return_mean"][0], all_three.curves["return_mean"][1]
    )
    assert all_three.curves["return_mean"].shape == (3, 12)
    assert all_three.clock.shape == (12,)
    assert (np.diff(all_three.clock) >= 0).all()


def test_the_second_call_compiles_nothing_even_with_other_numbers():
    compiled = []
    listen = lambda event, seconds, **_: (
        compiled.append(event) if "backend_compile" in event else None
    )
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        train(SHORT, RNPG(window=4), seeds=2, iterations=3)
        assert compiled
        compiled.clear()
        train(
            SHORT,
            RNPG(window=4, learning_rate=0.3, damping=0.1, discount=0.5, step_decay=0.1),
            seeds=2,
            iterations=7,
        )
        assert not compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_the_compilation_cache_is_private():
    use_compilation_cache()
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "recollect" / "xla"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert jax.config.values["jax_compilation_cache_dir"] == str(folder)


def test_limits():
    steps = train(SHORT, VPG(), seeds=2, environment_steps=300).curves["environment_steps"]
    for row in steps:
        real = row[np.isfinite(row)]
        assert real[-1] >= 300
        assert real[-2] < 300
    easy = train(SHORT, VPG(), seeds=2, iterations=50, target_return=5.0).curves["return_mean"]
    # Twenty episodes are five batches of four, and a mean of five is reached at once.
    np.testing.assert_array_equal(np.isfinite(easy).sum(1), 5)
    both = train(SHORT, VPG(), seeds=2, iterations=3, environment_steps=10**6).curves["return_mean"]
    assert both.shape == (2, 3)


def test_steps_are_counted_and_limited_beyond_2_to_the_31():
    limit = 2**31 + 150
    before = limit - 200
    run = train(SHORT, VPG(), seeds=2, iterations=2)
    words = np.asarray([two_words(before)] * 2)
    arrays = {**run.snapshot.arrays, "['seeds'].environment_steps": words}
    there = dataclasses.replace(run.snapshot, arrays=arrays)
    until = Until(environment_steps=limit, iterations=50)
    curves = execute(there.config, until, snapshot=there).curves
    for steps, lengths in zip(curves["environment_steps"], curves["length_mean"], strict=True):
        real = steps[np.isfinite(steps)]
        assert real[-2] < limit <= real[-1]
        np.testing.assert_array_equal(
            real[2:], before + np.cumsum(np.rint(4.0 * lengths[2 : len(real)].astype(float)))
        )


@pytest.mark.parametrize(
    "collector", [Episodes(2), Steps(2, 15), Draws(6)], ids=["episodes", "steps", "draws"]
)
def test_every_way_of_collecting_trains(collector):
    draws = isinstance(collector, Draws)
    advantages = GAE() if draws else Returns()
    algorithm = RNPG(window=2, independent_fisher=True, advantages=advantages)
    result = train(SHORT, algorithm, collector=collector, seeds=2, iterations=4)
    assert (result.curves["refused"] == 0).all()
    assert (result.curves["gradient_norm"].max(1) > 1e-3).all()
    if isinstance(collector, Steps):
        # The independent batch for the Fisher matrix is paid for.
        np.testing.assert_array_equal(result.curves["environment_steps"], [[60, 120, 180, 240]] * 2)
    assert np.isfinite(
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(result.policies)])
    ).all()


class Probe(AbstractEnv):
    """See a sign, answer it, be paid for it one step later: the best return is 1, that of a blind
    policy ½."""

    max_steps: int = eqx.field(static=True, default=2, init=False)
    observation_size: int = eqx.field(static=True, default=2, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=2), init=False)

    def reset(self, key):
        return jnp.array([jnp.where(jax.random.bernoulli(key), 1.0, -1.0), 0.0, 0.0])

    def observe(self, state):
        sign, answer, time = state
        return jnp.where(time == 0, jnp.array([sign, 0.0]), jnp.array([answer, 1.0]))

    def step(self, key, state, action):
        sign, answer, time = state
        answered = jnp.where(time == 0, jnp.where((action == 1) == (sign > 0), 1.0, -1.0), answer)
        after = jnp.array([sign, answered, time + 1])
        return Step(
            after,
            self.observe(after),
            jnp.where((time == 1) & (answer > 0), 1.0, 0.0),
            time == 1,
            jnp.array(False),
        )


@pytest.mark.parametrize("name", ["rpg", "rnpg", "rtrpo", "rppo"])
def test_every_algorithm_solves_a_probe(name):
    """With reuse; the vanilla ones are the same with a window of one (test_algorithms.py)."""
    algorithm = ALGORITHMS[name]()
    rates = dict(rpg=1.0, rnpg=0.3, rppo=0.02)
    rate = {"learning_rate": rates[name]} if name in rates else {}
    small = dataclasses.replace(
        algorithm,
        window=min(algorithm.window, 4),
        critic=Critic(widths=(8,), learning_rate=0.01),
        **rate,
    )
    result = train(
        Probe(),
        small,
        collector=Episodes(16),
        policy=Architecture(widths=(8,)),
        seeds=2,
        iterations=60,
    )
    assert result.curves["return_mean"][:, :2].mean() < 0.8
    assert result.curves["return_mean"][:, -5:].mean() > 0.95


def test_presets_are_complete_and_fit():
    assert set(PRESETS) == {
        "CartPole-v1",
        "Acrobot-v1",
        "Pendulum-v1",
        "InvertedPendulum-v5",
        "Hopper-v5",
        "HalfCheetah-v5",
    }
    for env, presets in PRESETS.items():
        assert set(presets) == set(ALGORITHMS)
        for name, chosen in presets.items():
            assert preset(name, env) is chosen
            assert (chosen.algorithm.window > 1) == (ALGORITHMS[name]().window > 1)
            check_fit(make(env), chosen.algorithm, chosen.policy)
    for env in ("LQC", "Chain", "mine.npz"):
        assert preset("rnpg", env) == preset("rnpg", "paper")
    for name in ALGORITHMS:
        assert preset(name, "Unfamiliar-v0").algorithm == ALGORITHMS[name]()
        assert preset(name, "default") == preset(name, "Unfamiliar-v0")


def test_a_seed_that_never_had_a_signal_is_named_and_a_solved_one_is_not():
    nan = np.nan
    solved = np.array([[0, SIGNAL, SIGNAL], [SIGNAL, 0, nan]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_refusals(solved, (3, 5), hopeless=False, name="CartPole", fault="")
    with pytest.warns(UserWarning, match="No batch of seed 5 held a signal"):
        _warn_of_refusals(
            np.array([[0, SIGNAL], [SIGNAL, nan]]),
            (3, 5),
            hopeless=False,
            name="CartPole",
            fault="",
        )
    with pytest.warns(
        UserWarning, match="1 of 3 updates on CartPole were refused.*seed 3 in iteration 2"
    ):
        _warn_of_refusals(
            np.array([[0, 1, SIGNAL]]), (3,), hopeless=False, name="CartPole", fault=""
        )


class Hostile(AbstractEnv):
    """Pays a reward that is not a number, always or never."""

    poison: float
    max_steps: int = eqx.field(static=True, default=5)
    observation_size: int = eqx.field(static=True, default=1, init=False)
    actions: Actions = eqx.field(static=True, default=Actions(count=2), init=False)

    def reset(self, key):
        return jnp.zeros((), jnp.int32)

    def observe(self, state):
        return jnp.ones(1)

    def step(self, key, state, action):
        return Step(
            state + 1,
            jnp.ones(1),
            jnp.asarray(self.poison, jnp.float32),
            jnp.array(False),
            state + 1 >= self.max_steps,
        )


def test_training_on_bad_numbers_stops_with_one_sentence_and_keeps_the_policy():
    with pytest.warns(
        UserWarning, match="20 of 20 updates on .* were refused.*not finite.*Training stopped"
    ):
        result = train(Hostile(float("nan")), RNPG(window=2), seeds=2, iterations=50)
    assert result.curves["return_mean"].shape == (2, 10)
    # One that meets its limit at the same moment was not stopped.
    with pytest.warns(UserWarning, match=r"20 of 20 updates on .* were refused.*finite[^.]*\.$"):
        train(Hostile(float("nan")), RNPG(window=2), seeds=2, iterations=10)
    assert np.isfinite(
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(result.policies)])
    ).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(Hostile(1.0), RNPG(window=2), seeds=2, iterations=3)


def test_lqc_finds_its_optimum():
    algorithm = RNPG(
        window=5,
        fisher_window=1,
        learning_rate=1.0,
        step_decay=0.9,
        discount=0.5,
        damping=0.01,
        objective_scale=True,
        independent_fisher=True,
        advantages=ExactAdvantages(),
        weights=OccupancyRatio(),
        project=Box(-3.0, 3.0),
    )
    result = train(LQC(), algorithm, collector=Draws(10), seeds=20, iterations=200)
    shifts = np.asarray(result.policies.shift)
    assert result.policy(3).shift == shifts[3]
    # Var θ_n ≈ n^−0.9 Σ∞ with Σ∞ = 0.65 for these settings, so all of twenty lie within 5
    # standard deviations.
    assert np.abs(shifts).max() < 5 * (0.65 * 200**-0.9) ** 0.5


def test_a_chain_is_solved_with_probabilities_as_parameters():
    env = chain(4)
    algorithm = RNPG(
        window=5,
        learning_rate=0.3,
        discount=0.9,
        damping=0.1,
        project=Simplex(0.02),
        advantages=Returns(baseline="linear"),
    )
    start = tabular_direct_policy(4, 2)
    result = train(env, algorithm, policy=start, collector=Episodes(8), seeds=2, iterations=100)
    assert (result.curves["refused"] == 0).all()
    best = np.asarray(env.probabilities(result.policy()))
    np.testing.assert_allclose(best.sum(1), 1, rtol=1e-5)
    assert (best[:, 1] > 0.9).all()
    assert env.expected_return(result.policy()) > 1.3 * env.expected_return(start)


def test_starting_policies():
    start = ShiftPolicy(jnp.array(1.0))
    assert (
        train(
            LQC(), VPG(discount=0.5, learning_rate=1e-9), policy=start, seeds=2, iterations=1
        ).policies.shift
        == 1
    ).all()
    random = lambda key: ShiftPolicy(jax.random.normal(key))
    made = train(LQC(), VPG(discount=0.5, learning_rate=1e-9), policy=random, seeds=2, iterations=1)
    assert len(np.unique(made.policies.shift)) == 2


def test_conjugate_gradients_keep_their_word_in_training():
    result = train(
        CartPole(max_steps=100),
        RNPG(window=5, solver=ConjugateGradients(tolerance=0.01)),
        seeds=2,
        iterations=30,
    )
    assert (result.curves["solver_residual"] <= 0.0101).all()
    assert (result.curves["solver_steps"] > 0).all()


class Keyed(PG):
    """Reports a number drawn with the key of each update."""

    def __check_init__(self):
        pass

    def update(self, state, rollout, key):
        state, info = PG.update(self, state, rollout, key)
        return state, dataclasses.replace(info, explained_variance=jax.random.uniform(key))


KEYED = Keyed(learning_rate=0.5, advantages=Returns(), optimizer="sgd")


@functools.cache
def keyed_curves():
    return train(SHORT, KEYED, seeds=2, iterations=12).curves


def test_recent_returns_are_those_of_the_latest_twenty_episodes():
    means, recent = keyed_curves()["return_mean"], keyed_curves()["recent_return"]
    # Twenty episodes are five batches of four; before there are as many, all that there are.
    latest = [means[:, max(n - 4, 0) : n + 1].mean(1) for n in range(12)]
    np.testing.assert_allclose(recent, np.stack(latest, axis=1), rtol=1e-5)
    assert means.std() > 0.1


def test_a_seed_stops_when_the_mean_of_its_latest_returns_reaches_the_target():
    recent = keyed_curves()["recent_return"]
    target = recent[:, 5:].max() - 1e-3
    limited = train(SHORT, KEYED, seeds=2, iterations=12, target_return=float(target))
    reached = recent >= target
    expected = np.where(reached.any(1), reached.argmax(1) + 1, 12)
    lengths = np.isfinite(limited.curves["return_mean"]).sum(1)
    np.testing.assert_array_equal(lengths, expected)
    assert lengths.max() > 5  # by then single episodes had reached it long before


def test_updates_draw_anew_in_every_iteration_and_seed():
    assert len(np.unique(keyed_curves()["explained_variance"])) == 24


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_shares_of_seeds_are_joined_in_their_order(cores, monkeypatch):
    monkeypatch.setattr("recollect.run.state.cores", lambda: cores)
    seeds = jnp.arange(5)
    with CorePool(5) as pool:
        assert pool.shares == cores
        found, name = in_shares(pool, lambda seeds, name: (10 * seeds, name), seeds, "same")
    np.testing.assert_array_equal(found, 10 * np.arange(5))
    assert name == "same"
