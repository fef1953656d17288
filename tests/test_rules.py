"""Rules that users bring: weights, shares, solvers and whole algorithms, in Python and by flags."""

import dataclasses
import importlib.util
import inspect
import json
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
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

import recollect as rc
from recollect.algorithms import ALGORITHMS
from recollect.algorithms.base import bind, needs_oracle
from recollect.algorithms.narrow import narrow_update
from recollect.algorithms.natural import estimate_fisher
from recollect.algorithms.reuse import choose_shares
from recollect.algorithms.update import begin
from recollect.cli import main
from recollect.cli.fields import rule_flags, with_rules
from recollect.collect.rollout import Rollout
from recollect.estimate.evidence import evidence_of
from recollect.estimate.gradient import gradient_by_age, policy_gradient
from recollect.estimate.metric import Euclidean
from recollect.memory.rows import recall, weight_by_age
from recollect.tree import traced_numbers

KEY = jax.random.key(0)
EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name):
    """A file of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def asked(algorithm, **flags):
    return with_rules(algorithm, rule_flags(algorithm)(**flags))


def test_short_names_make_rules():
    rnpg = rc.RNPG()
    assert asked(rnpg, weights="policy:2").weights == rc.PolicyRatio(truncate=2.0)
    assert asked(rnpg, weights="occupancy").weights == rc.OccupancyRatio()
    assert asked(rnpg, weights="mixture").weights == rc.Mixture()
    assert asked(rnpg, weights="occupancy-mixture").weights == rc.OccupancyMixture()
    assert asked(rnpg, weights="power:0.25").weights == rc.PowerMean(0.25)
    assert asked(rnpg, project="box:-1:2").project == rc.Box(-1.0, 2.0)
    assert asked(rnpg, project="simplex:0.01").project == rc.Simplex(0.01)
    assert asked(rnpg, solver="cg").solver == rc.ConjugateGradients()
    assert asked(rnpg, fisher="expected").fisher == rc.ExpectedFisher()
    assert asked(rnpg, shares="uniform:3").shares == rc.Uniform(3)
    assert asked(rnpg, shares="geometric:0.5").shares == rc.Geometric(0.5)
    assert asked(rnpg, shares="effective").shares == rc.ByEffectiveSize()
    # What the old rule and the new one have in common stays as it was.
    scaled = rc.RTRPO(advantages=rc.VTrace(gae_lambda=0.8, standardise=True))
    assert asked(scaled, advantages="gae").advantages == rc.GAE(gae_lambda=0.8, standardise=True)


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("weights", "polcy", "did you mean 'policy'"),
        ("project", "boxx:1:2", "did you mean 'box'"),
        ("project", "nomodule:Box", "cannot be imported"),
        ("project", "box:1", "lacks high"),
        ("project", "ball:a", "not a number"),
        ("weights", "policy:1:2:3:4", "has 4 numbers"),
        ("weights", "nofile.py:Rule", "not a file"),
        ("weights", f"{EXAMPLES}/weight_rule.py:Missing", "has no Missing"),
        ("solver", f"{EXAMPLES}/weight_rule.py:Flattened", "is no AbstractSolver"),
    ],
)
def test_a_rule_that_is_not_understood_is_named(field, text, words):
    with pytest.raises(ValueError, match=words):
        asked(rc.RNPG(), **{field: text})


def test_a_weight_rule_of_ones_own():
    source = (EXAMPLES / "weight_rule.py").read_text()
    assert len(source.splitlines()) <= 30
    algorithm = asked(rc.RNPG(window=2), weights=f"{EXAMPLES}/weight_rule.py:Flattened:0.25")
    old, new = random_policy(KEY), random_policy(jax.random.key(1))
    batches = [batch_of(jax.random.key(2), old), batch_of(jax.random.key(3), new)]
    history = history_from([old, new], batches)
    weigh = lambda rule: computed(lambda: recall(history, new, rule).weights)
    plain = weigh(rc.PolicyRatio())
    np.testing.assert_allclose(
        weigh(algorithm.weights), np.where(plain > 0, plain**0.25, 0), rtol=1e-4
    )
    _, info = updated(algorithm, old, KEY, updates=2)
    assert info.refused == 0


def test_an_algorithm_of_ones_own_learns():
    assert len((EXAMPLES / "vmpo.py").read_text().splitlines()) <= 120
    vmpo = example("vmpo").VMPO(window=2, learning_rate=3e-3)
    run = rc.train(
        rc.CartPole(max_steps=200), vmpo, collector=rc.Steps(4, 128), seeds=2, iterations=30
    )
    assert {"temperature", "multiplier"} <= set(run.curves)
    assert (run.curves["refused"] == 0).all()
    assert run.curves["recent_return"][:, -1].mean() > 60  # a random policy has about 22


def test_an_algorithm_of_ones_own_on_the_command_line(tmp_path, capsys):
    few = ["--iterations", "1", "--seeds", "1", "--steps", "8", "--copies", "1"]
    words = ["train", f"{EXAMPLES}/vmpo.py:VMPO", "CartPole-v1", *few, "--gradient-steps", "2"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    settings = json.loads((tmp_path / "config.json").read_text())["settings"]
    assert settings["algorithm"]["gradient_steps"] == 2
    own = tmp_path / "own.py"
    source = (EXAMPLES / "vmpo.py").read_text()
    own.write_text(source.replace("gradient_steps", "steps"))
    assert main(["train", f"{own}:VMPO", "CartPole-v1", *few]) == 2
    assert "has a field 'steps'" in capsys.readouterr().err


class OneAge(rc.AbstractShares):
    """All of the share to one age."""

    age: int = eqx.field(static=True, default=0)

    def __call__(self, evidence, memory):
        return rc.ChosenShares(jnp.where(jnp.arange(len(evidence.rows)) == self.age, 1.0, 0.0))


def started(algorithm, capacity=3):
    """An update's start, with three batches of rather different policies in the window."""
    policies = [random_policy(jax.random.key(i)) for i in range(3)]
    batches = [batch_of(jax.random.key(10 + i), policy) for i, policy in enumerate(policies)]
    state = algorithm.init(policies[-1], batches[0], KEY)
    history = history_from(policies[:2], batches[:2], capacity=capacity)
    state = dataclasses.replace(state, history=history)
    return begin(algorithm, state, Rollout.of(batches[2]))


@pytest.mark.parametrize("how", ["reshaped", "packed", "discounted"])
def test_the_gradient_is_the_sum_of_shares_times_gradients_of_ages(how, monkeypatch):
    if how == "packed":
        monkeypatch.setattr("recollect.memory.rows.chunk_size", lambda: 30)
    algorithm = rc.RPG(window=3, discount=0.9, discount_states=how == "discounted")

    @eqx.filter_jit
    def look():
        rows = started(algorithm).rows
        assert (rows.packing.source is not None) == (how == "packed")
        advantages = jax.random.normal(KEY, rows.weights.shape)
        by_age = gradient_by_age(rows, advantages)
        shares = jnp.array([0.2, 0.5, 0.3])
        given = policy_gradient(rows.window(shares), advantages)
        uniform = rc.Uniform()(evidence_of(rows, advantages, Euclidean), None).shares
        alike = policy_gradient(rows.window(uniform), advantages)
        return by_age, shares @ by_age, given, uniform @ by_age, alike, uniform, weight_by_age(rows)

    by_age, expected, given, expected_alike, alike, uniform, counts = map(np.asarray, look())
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(alike, expected_alike, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(uniform, counts / counts.sum(), rtol=1e-5)
    assert np.abs(by_age[0] - by_age[1]).max() > 0.1 * np.abs(by_age).max()


@pytest.mark.parametrize("age", [0, 2])
def test_shares_reach_gradient_fisher_matrix_and_states(age):
    algorithm = rc.RNPG(window=3, shares=OneAge(age))

    @eqx.filter_jit
    def look():
        start = started(algorithm)
        rows, policy = start.rows, start.state.policy
        batch = jax.tree.map(lambda x: x[0], start.state.history.batches)
        advantages = jnp.ones_like(rows.weights)
        window = rows.window(choose_shares(algorithm, start, advantages).shares)
        fisher = estimate_fisher(algorithm, start, window, Rollout.of(batch), policy, None)
        sums = (window.coefficients(), fisher.fisher.coefficients)
        return rows.packing.ages(), sums, window.state_weights

    ages, sums, state_weights = jax.tree.map(np.asarray, look())
    for coefficients in sums:
        assert (coefficients[ages != age] == 0).all()
        assert (coefficients[ages == age] > 0).any()
    np.testing.assert_allclose(state_weights[ages == age].sum(), 1, rtol=1e-5)


def test_another_number_of_ages_compiles_nothing_and_equals_a_shorter_window():
    long = rc.RPG(window=3, shares=rc.Uniform(2))
    programs = []

    @eqx.filter_jit
    def step(algorithm, state, rollout):
        programs.append(1)
        return parameters(algorithm.update(state, rollout, KEY)[0].policy)

    start = started(long).state
    rollout = Rollout.of(batch_of(jax.random.key(5), start.policy))
    two = step(traced_numbers(long), start, rollout)
    three = step(traced_numbers(dataclasses.replace(long, shares=rc.Uniform(3))), start, rollout)
    assert len(programs) == 1
    assert np.abs(two - three).max() > 0
    everything = step(traced_numbers(rc.RPG(window=3)), start, rollout)
    np.testing.assert_allclose(three, everything, atol=1e-6)


def test_shares_by_age_and_by_effective_sample_size():
    """Of four ages one is still empty, and one holds weights that are not finite."""
    evidence = dataclasses.replace(
        rc.Evidence.fresh(jnp.array([10.0, 20.0, 20.0, 0.0])),
        effective_sample_size=jnp.array([10.0, 5.0, 0.0, 0.0]),
    )
    of = lambda rule, evidence=evidence: rule(evidence, None).shares
    halved = np.array([10, 20 / 2, 0, 0])
    np.testing.assert_allclose(of(rc.Geometric(0.5)), halved / halved.sum(), rtol=1e-6)
    np.testing.assert_allclose(of(rc.ByEffectiveSize()), [2 / 3, 1 / 3, 0, 0], rtol=1e-6)
    nothing = rc.Evidence.fresh(jnp.zeros(2))
    for rule in (rc.Uniform(), rc.Geometric(), rc.ByEffectiveSize()):
        np.testing.assert_array_equal(of(rule, nothing), [0, 0])
    with pytest.raises(ValueError, match=r"factor=0.0 is out of range; give a number above 0"):
        rc.Geometric(0.0)


def test_another_factor_compiles_nothing_and_the_largest_is_uniform():
    programs = []

    @eqx.filter_jit
    def step(algorithm, state, rollout):
        programs.append(1)
        state, info = algorithm.update(state, rollout, KEY)
        return parameters(state.policy), info.shares

    make = lambda shares: rc.RPG(window=3, shares=shares, optimizer="sgd", learning_rate=0.1)
    algorithm = lambda shares: traced_numbers(make(shares))
    start = started(make(rc.Uniform())).state
    rollout = Rollout.of(batch_of(jax.random.key(5), start.policy))
    half, shares = step(algorithm(rc.Geometric(0.5)), start, rollout)
    one, _ = step(algorithm(rc.Geometric(1.0)), start, rollout)
    assert len(programs) == 1
    np.testing.assert_allclose(shares.sum(), 1, rtol=1e-5)
    assert np.abs(half - one).max() > 1e-5
    uniform, by_rows = step(algorithm(rc.Uniform()), start, rollout)
    np.testing.assert_allclose(one, uniform, atol=1e-6)
    halved = by_rows * np.array([1, 1 / 2, 1 / 4])
    np.testing.assert_allclose(shares, halved / halved.sum(), rtol=1e-5)


@pytest.mark.parametrize("name", ["rnpg", "rppo"])
def test_an_old_batch_whose_weights_overflow_has_no_share(name):
    """The update goes on as if it were not there."""
    settings = dict(epochs=1) if name == "rppo" else {}
    # What is taken over the rows of all ages, as a mean of returns, would know of it.
    settings |= dict(advantages=rc.Returns(baseline="none"))
    algorithm = ALGORITHMS[name](window=3, shares=rc.Geometric(0.5), **settings)
    policies = [random_policy(jax.random.key(i)) for i in range(3)]
    batches = [batch_of(jax.random.key(10 + i), policy) for i, policy in enumerate(policies)]
    impossible = dataclasses.replace(batches[1], log_probs=batches[1].log_probs - 200)
    state = algorithm.init(policies[2], batches[0], KEY)

    def after(algorithm, empty):
        history = history_from(policies[:2], [batches[0], impossible], capacity=3)
        history = history.without(jnp.array([empty, False, False]))
        one = dataclasses.replace(state, history=history)
        one, info = algorithm.update(one, Rollout.of(batches[2]), KEY)
        return parameters(one.policy), info.refused, info.shares

    found, refused, shares = computed(after, algorithm, empty=False)
    assert refused == 0
    assert shares[1] == 0
    assert shares[2] > 0
    expected, _, _ = computed(after, algorithm, empty=True)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rnpg", dict(fisher_window=2)),
        ("rppo", dict(epochs=2, critic=rc.Critic(epochs=2, widths=(4,)))),
    ],
)
def test_ages_not_in_use_are_kept_and_count_for_nothing(name, settings):
    make = ALGORITHMS[name]
    full = make(window=4, **settings)
    start = started(full, capacity=4).state
    batch = batch_of(jax.random.key(5), start.policy)
    after = lambda algorithm, state: narrow_update(algorithm, state, Rollout.of(batch), KEY)
    jitted = eqx.filter_jit(after)
    step = lambda algorithm, state: jitted(traced_numbers(algorithm), state)
    everything, _ = step(full, start)
    # Two programs serve: of one batch, and of four with one that is left alone.
    for ages in (1, 3):
        narrow = dataclasses.replace(full, shares=rc.Uniform(ages))
        state, info = step(narrow, start)
        # Stored is what a full window stores, bit for bit.
        np.testing.assert_array_equal(
            state.history.batches.mask, np.asarray(everything.history.batches.mask)
        )
        np.testing.assert_array_equal(
            state.history.batches.rewards, np.asarray(everything.history.batches.rewards)
        )
        assert (np.asarray(info.ess_by_age) > 0).tolist() == [age < ages for age in range(4)]
        # The step is that of a window which holds no more.
        windows = dict(window=ages)
        if "fisher_window" in settings:
            windows |= dict(fisher_window=min(ages, settings["fisher_window"]))
        short = dataclasses.replace(full, **windows)
        history = jax.tree.map(lambda x, ages=ages: x[:ages], start.history)
        alone, _ = step(short, dataclasses.replace(start, history=history))
        θ = parameters(alone.policy)
        assert np.abs(θ - parameters(start.policy)).max() > 1e-5
        np.testing.assert_allclose(parameters(state.policy), θ, rtol=1e-4, atol=1e-6)
        if alone.critic is not None:
            np.testing.assert_allclose(
                parameters(state.critic.network), parameters(alone.critic.network), atol=1e-5
            )


def test_rules_that_need_exact_answers_are_bound():
    exact = rc.RNPG(advantages=rc.ExactAdvantages(), weights=rc.OccupancyRatio())
    assert needs_oracle(exact)
    assert not needs_oracle(rc.RNPG())
    env = rc.make("LQC")
    bound = bind(exact, env)
    assert bound.advantages.oracle == env
    assert bound.weights.oracle == env
    batch = batch_of(KEY, random_policy(KEY))
    algorithm = rc.RNPG(advantages=rc.ExactAdvantages())
    state = algorithm.init(random_policy(KEY), batch, KEY)
    with pytest.raises(ValueError, match="ExactAdvantages needs an environment that knows"):
        update(algorithm, state, batch, KEY)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_named_constructors_show_their_parameters(name):
    make = ALGORITHMS[name]
    shown = inspect.signature(make).parameters
    fields = {field.name for field in dataclasses.fields(make())}
    vanilla = name in ("vpg", "vnpg")
    hidden = {"window", "fisher_window"} & fields if vanilla else set()
    assert set(shown) == fields - hidden
    if vanilla:
        with pytest.raises(TypeError, match=f"{name.upper()} reuses nothing"):
            make(window=3)


def test_what_is_not_measured_is_absent():
    short = dict(collector=rc.Episodes(2), iterations=1)
    plain = rc.train(ENV, rc.RPG(window=2, advantages=rc.Returns()), **short).curves
    for name in ("solver_residual", "damping", "backtracks", "clip_fraction_by_age"):
        assert name not in plain
    assert "explained_variance" not in plain
    np.testing.assert_array_equal(plain["length_mean"], plain["return_mean"])
