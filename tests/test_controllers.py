"""Rules of shares that decide whether to reuse: what they look at, decide and remember."""

import dataclasses
import functools
from importlib.metadata import version
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ENV, batch_of, computed, history_from, parameters, random_policy

import recollect as rc
from recollect.algorithms import ALGORITHMS
from recollect.algorithms.control import planned_steps
from recollect.algorithms.narrow import narrow_update
from recollect.algorithms.update import begin
from recollect.collect.rollout import Rollout
from recollect.estimate.advantages import in_units_of
from recollect.estimate.controllers import JamesSteinMemory
from recollect.estimate.evidence import evidence_of
from recollect.estimate.gradient import gradient_by_age, gradient_by_half, policy_gradient
from recollect.estimate.metric import Euclidean, InverseFisher
from recollect.estimate.running import RunningMeans
from recollect.run.checkpoint import filled, named_arrays
from recollect.tree import all_finite, traced_numbers

KEY = jax.random.key(0)
CRITIC = rc.Critic(widths=(4,), epochs=2)
RULES = [rc.LeastError(), rc.WhileClose(), rc.JamesStein(), rc.CrossValidated()]


@functools.cache
def batches():
    """Three policies that differ, and a batch of each."""
    policies = [random_policy(jax.random.key(i)) for i in range(3)]
    return policies, [batch_of(jax.random.key(10 + i), one) for i, one in enumerate(policies)]


@eqx.filter_jit
def _state(algorithm, old, policies, kept):
    state = algorithm.init(policies[-1], kept[0], KEY)
    if not old:
        return state
    history = history_from(policies[:2], kept[:2], capacity=algorithm.capacity)
    return dataclasses.replace(state, history=history)


def fresh_state(algorithm, old: bool):
    """A state before the third batch arrives, with two old ones or none in its history."""
    return _state(algorithm, old, *batches())


@eqx.filter_jit
def _update(algorithm, state, batch):
    return algorithm.update(state, Rollout.of(batch), KEY)


@pytest.mark.parametrize("name", ["rpg", "rnpg", "rtrpo", "rppo"])
def test_without_old_shares_it_is_a_window_of_one(name):
    """The parameters and the critic are the same bit for bit, whatever the history holds.

    To the last digit with later versions of JAX, which round sums in a larger program otherwise.
    """
    last_digit = 0 if version("jax") < "0.11" else 3e-7
    settings: dict[str, Any] = dict(critic=CRITIC, critic_window=1)
    if name == "rppo":
        settings |= dict(epochs=1)
    make = ALGORITHMS[name]
    none = rc.JamesStein(shrinkage=0.0)
    batch = batches()[1][-1]
    reusing = make(window=3, shares=none, **settings)
    after, info = _update(reusing, fresh_state(reusing, old=True), batch)
    vanilla = make(window=1, **settings)
    expected, _ = _update(vanilla, fresh_state(vanilla, old=False), batch)
    assert info.refused == 0
    np.testing.assert_array_equal(info.shares, [1, 0, 0])
    start = parameters(fresh_state(vanilla, old=False).policy)
    assert np.abs(parameters(expected.policy) - start).max() > 1e-4
    np.testing.assert_allclose(
        parameters(after.policy), parameters(expected.policy), rtol=last_digit, atol=last_digit
    )
    np.testing.assert_allclose(
        parameters(after.critic.network),
        parameters(expected.critic.network),
        rtol=last_digit,
        atol=last_digit,
    )


@pytest.mark.parametrize("how", ["reshaped", "packed", "discounted"])
def test_halves_of_the_newest_batch_are_made_of_whole_episodes(how, monkeypatch):
    if how == "packed":
        monkeypatch.setattr("recollect.memory.rows.chunk_size", lambda: 30)
    algorithm = rc.RPG(window=3, discount=0.9, discount_states=how == "discounted")

    @eqx.filter_jit
    def look(state, batch):
        rows = begin(algorithm, state, Rollout.of(batch)).rows
        assert (rows.packing.source is not None) == (how == "packed")
        advantages = jax.random.normal(KEY, rows.weights.shape)
        halves, shares = gradient_by_half(rows, advantages)
        first = rows.packing.rows(jnp.zeros(rows.packing.shape, bool).at[0, 0].set(True))
        of_first = jnp.where(first, advantages, 0)[: rows.packing.per_batch]
        alone = policy_gradient(rows.window(jnp.ones(1)), of_first)
        counted = rows.packing.unpack(rows.state_weights)[0].sum(-1)
        return halves, shares, gradient_by_age(rows, advantages)[0], alone, counted

    # The newest batch is another policy's, as with a lag, so that it has weights; its first episode
    # is shorter than the place it has.
    found = computed(look, fresh_state(algorithm, old=True), batches()[1][1])
    halves, shares, newest, first, counted = found
    # Of three episodes one makes the first half, two the second.
    np.testing.assert_allclose(shares, [counted[0], counted[1:].sum()] / counted.sum(), rtol=1e-5)
    np.testing.assert_allclose(shares @ halves, newest, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(shares[0] * halves[0], first, rtol=1e-4, atol=1e-6)
    assert np.abs(halves[0] - halves[1]).max() > 0.1 * np.abs(newest).max()


def test_a_single_copy_is_halved_in_time():
    algorithm = rc.RPG(window=1)
    policy = random_policy(KEY)
    batch = batch_of(KEY, policy, collector=rc.Steps(1, 8))
    state = algorithm.init(policy, batch, KEY)

    def look():
        rows = begin(algorithm, state, Rollout.of(batch)).rows
        return *gradient_by_half(rows, jnp.arange(8.0)), gradient_by_age(rows, jnp.arange(8.0))[0]

    halves, shares, newest = computed(look)
    np.testing.assert_allclose(shares, [0.5, 0.5])
    np.testing.assert_allclose(shares @ halves, newest, rtol=1e-4, atol=1e-6)
    assert np.abs(halves[0]).max() > 0


def test_evidence_of_ratios():
    algorithm = rc.RPG(window=2)

    @eqx.filter_jit
    def look(state, batch):
        rows = begin(algorithm, state, Rollout.of(batch)).rows
        advantages = jax.random.normal(KEY, (2 * rows.packing.per_batch,))
        evidence = evidence_of(rows, advantages, Euclidean)
        # The same ratios, if an action had four dimensions.
        four = jnp.repeat(rows.actions[:, None], 4, axis=1)
        wide = dataclasses.replace(rows, view=dataclasses.replace(rows.view, actions=four))
        deviation = evidence_of(wide, advantages, Euclidean).ratio_deviation
        mask = rows.view.mask[: len(advantages)].reshape(2, -1)
        both = (rows.log_ratio[: len(advantages)].reshape(2, -1), advantages.reshape(2, -1))
        kept = (evidence.ratio_deviation, evidence.transitions)
        return kept, deviation, evidence.clip_fraction(0.2), mask, *both

    algorithm = dataclasses.replace(algorithm, window=3)
    state = fresh_state(algorithm, old=True)
    found = computed(look, state, batches()[1][-1])
    (deviation, transitions), of_four, clip_fraction, mask, log_ratio, advantages = found
    for age in range(2):
        ratio = np.exp(log_ratio[age][mask[age]])
        out = np.where(advantages[age][mask[age]] > 0, ratio > 1.2, ratio < 0.8)
        np.testing.assert_allclose(deviation[age], np.abs(ratio - 1).mean(), 1e-4)
        np.testing.assert_allclose(of_four[age], np.abs(np.sqrt(ratio) - 1).mean(), 1e-4)
        np.testing.assert_allclose(clip_fraction[age], out.mean(), rtol=1e-5)
    np.testing.assert_array_equal(transitions, mask.sum(1))
    assert clip_fraction[1] > 0.1


def test_the_metric_of_natural_steps_is_the_inverse_fisher_matrix():
    algorithm = rc.RNPG(window=3, damping=0.05)

    @eqx.filter_jit
    def look(state, batch):
        rows = begin(algorithm, state, Rollout.of(batch)).rows
        metric = algorithm.metric(rows)
        vectors = jax.random.normal(KEY, (3, metric.fisher.shape[0]))
        least = InverseFisher.of(rows, 0.0).damping / jnp.trace(metric.fisher.matrix())
        return metric.products(vectors), metric.fisher.matrix(), vectors, metric.damping, least

    found = computed(look, fresh_state(algorithm, old=True), batches()[1][-1])
    products, fisher, vectors, damping, least = found
    inverse = np.linalg.inv(fisher.astype(float) + damping * np.eye(len(fisher)))
    np.testing.assert_allclose(products, vectors @ inverse @ vectors.T, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(damping, 0.05)
    np.testing.assert_allclose(least, 1e-3, rtol=1e-4)


def gradients(draws, share=0.25, dimensions=30, bias=0.0):
    """Many drawn newest gradients, each in halves of unequal size, beside two old ones.

    The mean is (1, …, 1)/√d, the noise of the whole batch has E‖g₀ − g‖² = 1, and the old ones are
    off by `bias` squared in one direction.
    """
    mean = jnp.ones(dimensions) / dimensions**0.5
    noise = jax.random.normal(KEY, (draws, 2, dimensions)) / dimensions**0.5
    halves = mean + noise / jnp.sqrt(jnp.array([share, 1 - share]))[:, None]
    old = mean + jnp.array([1.0, 1.0])[:, None] * jnp.eye(dimensions)[0] * bias**0.5
    return halves, lambda halves: rc.Gradients(halves, jnp.array([share, 1 - share]), old), mean


def of_two_or_three(rule, window):
    """What the rule remembers if it has found a window of so many batches best, of three."""
    risks = jnp.where(jnp.arange(1, 4) == window, 1.0, 2.0)
    means = rule.init(3).risks.with_latest(risks, jnp.ones(3, bool), 2.0)
    return JamesSteinMemory(means)


def decisions(rule, drawn, memory):
    """What a rule decides for many drawn gradients, and the risk of each ĝ = Σ α_j g_j."""
    halves, make, mean = drawn

    def one(halves):
        gradients = make(halves)
        chosen = rule(rc.Evidence.fresh(jnp.array([8.0, 4.0, 4.0]), lambda: gradients), memory)
        estimate = chosen.shares @ gradients.by_age
        noise = gradients.noise(gradients.products())
        return chosen, jnp.sum((estimate - mean) ** 2), jnp.sum(estimate**2), noise

    return computed(eqx.filter_vmap(one), halves)


def within(values, expected, errors=4.0):
    """Whether the mean of the values is the expected one, within standard errors."""
    error = np.std(values, axis=0) / len(values) ** 0.5
    return np.abs(np.mean(values, axis=0) - expected).max() <= errors * np.max(error)


def test_estimated_noise_and_risks_are_unbiased():
    rule = rc.JamesStein(persistence=1.0, horizon=2.0)
    drawn = gradients(4000, bias=0.5)
    chosen, risk, square, noise = decisions(rule, drawn, rule.init(3))
    assert within(noise, 1.0)
    # Windows of rows: the newest has 8, the others 4 each; the constant is v₀.
    shares = np.array([[1, 0], [8 / 12, 4 / 12], [1 / 2, 1 / 2]])
    true = shares[:, 0] ** 2 + 0.5 * shares[:, 1] ** 2
    risks = chosen.memory.risks.total
    for window in range(3):
        assert within(risks[:, window] - 1.0, true[window])
    # Nothing is reused while nothing is known, and then s is about 1 − 1/E‖g₀‖² = ½.
    np.testing.assert_array_equal(chosen.report.old_share, 0)
    np.testing.assert_allclose(chosen.report.signal_share.mean(), 0.5, atol=0.05)
    assert (risk > 0).all()
    assert (square > 0).all()


@pytest.mark.parametrize(
    ("bias", "least", "most"), [(0.0, 0, 0.15), (2.0, 0.6, 0.95), (20.0, 0.9, 1.01)]
)
def test_james_stein_is_never_worse_than_the_newest_gradient(bias, least, most):
    """Relative to v₀ = 1, which is the risk of g₀, whatever the bias of the old gradients."""
    rule = rc.JamesStein(persistence=1.0)
    chosen, risk, _, _ = decisions(rule, gradients(2000, bias=bias), of_two_or_three(rule, 3))
    assert least <= risk.mean() <= most
    np.testing.assert_allclose(chosen.shares.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(chosen.shares[:, 1], chosen.shares[:, 2], rtol=1e-5)


def test_james_stein_shares():
    """β = min(1, c v₀/D, v₀/(v₀ + h max(D − v₀, 0))), and the rest as the report says it."""
    drawn = gradients(40, bias=2.0)
    for settings, lasting in ((dict(persistence=5.0), 5), (dict(), 2), (dict(shrinkage=0.1), 2)):
        rule = rc.JamesStein(**settings)
        chosen, _, square, noise = decisions(rule, drawn, of_two_or_three(rule, 2))
        report = chosen.report
        one = drawn[1](drawn[0][0])
        newest = np.einsum("h,nhd->nd", one.half_shares, drawn[0])
        apart = np.sum((one.older[0] - newest) ** 2, -1)
        np.testing.assert_allclose(report.disagreement, apart, rtol=1e-3)
        np.testing.assert_allclose(report.gradient_noise, noise, rtol=1e-5)
        β = np.minimum(rule.shrinkage * noise / apart, 1)
        β = np.minimum(β, noise / (noise + lasting * np.maximum(apart - noise, 0)))
        np.testing.assert_allclose(report.old_share, β, rtol=1e-3)
        np.testing.assert_allclose(chosen.shares, np.stack([1 - β, β, 0 * β], 1), atol=1e-3)
        error = β**2 * apart + (1 - 2 * β) * noise
        signal = np.clip(1 - error / square, 0.05, 1)
        np.testing.assert_allclose(report.signal_share, signal, atol=2e-3)
        assert (report.ages_compared == 2).all()
        assert (chosen.step_scale == 1.0).all()
    scaled = decisions(rc.JamesStein(scale_step=True), drawn, of_two_or_three(rule, 2))[0]
    np.testing.assert_array_equal(scaled.step_scale, scaled.report.signal_share)
    assert scaled.step_scale.min() < 0.9


ROWS = np.array([8.0, 4.0, 4.0])
SIZES = np.array([8.0, 2.0, 4.0])
WINDOWS = np.array([[1, 0, 0], [2 / 3, 1 / 3, 0], [1 / 2, 1 / 4, 1 / 4]])


def noisy_windows(rule, draws, bias, persistence=1.0):
    """What a rule decides in update after update, and what it remembered before each.

    The newest gradient has noise of E‖g₀ − g‖² = 1, the old ones as much more as their rows are
    worth less, and a bias of that square in one direction.
    """
    share, dimensions = 0.25, 40
    noise = jax.random.normal(KEY, (draws, 4, dimensions)) / dimensions**0.5
    mean = jnp.ones(dimensions) / dimensions**0.5
    scales = jnp.sqrt(8 / jnp.array([8 * share, 8 * (1 - share), *SIZES[1:]]))
    biases = jnp.eye(dimensions)[0] * bias**0.5 * jnp.array([0.0, 0.0, 1.0, 1.0])[:, None]

    def step(memory, noise):
        parts = mean + noise * scales[:, None] + biases
        gradients = rc.Gradients(parts[:2], jnp.array([share, 1 - share]), parts[2:])
        evidence = dataclasses.replace(
            rc.Evidence.fresh(jnp.array(ROWS), lambda: gradients),
            effective_sample_size=jnp.array(SIZES),
            persistence=persistence,
        )
        chosen = rule(evidence, memory)
        before = memory.biases.mean, memory.biases.error, memory.noises.mean
        return chosen.memory, (before, chosen)

    return computed(lambda: jax.lax.scan(step, rule.init(3), noise)[1])


def test_the_bias_of_a_window_is_estimated_without_bias():
    # A horizon that is short enough for the newest value to be most of the mean.
    _, chosen = noisy_windows(rc.LeastError(horizon=2.0), draws=6000, bias=0.5)
    totals = chosen.memory.biases.total
    values = totals[1:] - totals[:-1] / 2
    for window, share in ((1, 1 / 3), (2, 1 / 2)):
        assert within(values[:, window], share**2 * 0.5)
    np.testing.assert_allclose(values[:, 0], 0, atol=1e-5)
    noises = chosen.memory.noises.total
    assert within(noises[1:, 2] - noises[:-1, 2] / 2, 1.0)


@pytest.mark.parametrize(
    ("settings", "bias", "reused"),
    [
        (dict(), 0.6, {False, True}),
        (dict(), 0.0, {True}),
        (dict(persistence=9.0), 0.6, {False}),
        (dict(margin=4.0), 0.6, {False}),
        (dict(persistence=0.0), 0.6, {True}),
    ],
    ids=["usual", "no bias", "persistence", "margin", "noise alone"],
)
def test_the_window_of_least_error(settings, bias, reused):
    """The k with the least Σ α_j² v_j + h (max(b_k², 0) + z s_k), from the updates before."""
    rule = rc.LeastError(**settings)
    before, chosen = noisy_windows(rule, draws=40, bias=bias, persistence=3.0)
    mean, error, noise = before
    h = settings.get("persistence", 3.0)
    variances = (WINDOWS**2 * 8 / SIZES).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        above = np.maximum(mean, 0) + rule.margin * error
        errors = variances + h * above / noise
    errors[:, 0] = 1
    known = np.isfinite(errors) & np.isfinite(above)
    errors = np.where(known | (np.arange(3) == 0), errors, np.inf)
    best = errors.argmin(-1)
    np.testing.assert_array_equal(chosen.report.ages_used, best + 1)
    np.testing.assert_allclose(chosen.report.error_left, errors.min(-1), rtol=1e-3)
    np.testing.assert_allclose(chosen.shares, WINDOWS[best], rtol=1e-5)
    assert best[0] == best[1] == 0  # two updates before anything is known of a spread
    assert set((best[3:] > 0).tolist()) == reused


def test_a_biased_window_is_left():
    """Old gradients as far away as the noise of four newest ones."""
    _, chosen = noisy_windows(rc.LeastError(), draws=60, bias=4.0)
    assert (chosen.report.ages_used[5:] == 1).all()
    _, chosen = noisy_windows(rc.LeastError(), draws=60, bias=0.0)
    assert (chosen.report.ages_used[20:] > 1).mean() > 0.9


@pytest.mark.parametrize("name", ["rpg", "rnpg", "rtrpo", "rppo"])
def test_a_rule_is_told_how_long_a_bias_lasts(name):
    class Told(eqx.Module):
        persistence: Any

    class Asking(rc.AbstractShares):
        def __call__(self, evidence, memory):
            shares = rc.Uniform()(evidence, memory).shares
            return rc.ChosenShares(shares, report=Told(jnp.asarray(evidence.persistence)))

    algorithm = ALGORITHMS[name](window=3, advantages=rc.Returns(), shares=Asking())
    _, info = _update(algorithm, fresh_state(algorithm, old=True), batches()[1][-1])
    assert (info.share_report.persistence == 1.0) == (name in ("rnpg", "rtrpo"))


def test_while_close_uses_a_prefix():
    rows = jnp.array([10.0, 10.0, 0.0, 10.0, 10.0])
    evidence = rc.Evidence.fresh(rows)
    change = lambda **changed: (
        rc.WhileClose()(dataclasses.replace(evidence, **changed), None).shares
    )
    size = jnp.array([10.0, 6.0, 0.0, 4.9, 9.0])
    np.testing.assert_allclose(change(effective_sample_size=size), [10 / 16, 6 / 16, 0, 0, 0])
    deviation = jnp.array([0.5, 0.1, 9.0, 0.05, 0.11])
    thirds = np.array([1, 1, 0, 1, 0]) / 3
    np.testing.assert_allclose(change(ratio_deviation=deviation), thirds, rtol=1e-6)
    # With discounted states the weight of the rows is no number of transitions.
    np.testing.assert_allclose(change(rows=rows * 100), np.array([1, 1, 0, 1, 1]) / 4)


def cross_validation(older, draws=12, **settings):
    """Shares after some updates with newest gradients around (1, 0, …) and fixed old ones."""
    rule = rc.CrossValidated(**settings)
    noise = jax.random.normal(KEY, (draws, 2, 8))

    def step(memory, noise):
        halves = jnp.eye(8)[0] + noise
        gradients = rc.Gradients(halves, jnp.array([0.5, 0.5]), older)
        chosen = rule(rc.Evidence.fresh(jnp.full(4, 4.0), lambda: gradients), memory)
        return chosen.memory, (chosen.shares, chosen.report, halves)

    return computed(lambda: jax.lax.scan(step, rule.init(4), noise))


def test_cross_validation_reuses_what_points_to_the_other_half():
    good = jnp.tile(jnp.eye(8)[0], (3, 1))
    memory, (shares, report, halves) = cross_validation(good)
    assert (report.ages_used[:8] == 1).all()
    assert report.ages_used[-1] == 4
    np.testing.assert_allclose(shares[-1], np.full(4, 0.25), rtol=1e-5)
    np.testing.assert_allclose(shares[0], [1, 0, 0, 0])
    # The last gain of a window of two, written out.
    a, b = halves[-1]
    gain = lambda k: sum(
        other @ h / np.linalg.norm(h)
        for half, other in ((a, b), (b, a))
        for h in [(half + np.asarray(good[: k - 1]).sum(0)) / k]
    )
    before = cross_validation(good, draws=11)[0].gains.total
    expected = before * (1 - 1 / 30) + [(gain(k) - gain(1)) / 2 for k in (1, 2, 4)]
    np.testing.assert_allclose(memory.gains.total, expected, rtol=1e-4, atol=1e-5)


def test_cross_validation_stays_with_the_newest_where_reuse_does_not_pay():
    for older, settings in ((-jnp.eye(8)[:1], {}), (jnp.eye(8)[:1], dict(margin=100.0))):
        _, (shares, report, _) = cross_validation(jnp.tile(older, (3, 1)), **settings)
        assert (report.ages_used == 1).all()
        np.testing.assert_array_equal(shares[-1], [1, 0, 0, 0])


def test_running_means():
    means = RunningMeans.empty(2)
    values = np.array([[1.0, 5.0], [3.0, 1.0], [np.inf, 2.0], [4.0, 9.0]])
    for row in values:
        means = means.with_latest(jnp.array(row), jnp.array([True, row[1] < 9]), horizon=4.0)
    w = 0.75 ** np.array([2, 1, 0])
    for column, seen in enumerate(([1.0, 3.0, 4.0], [5.0, 1.0, 2.0])):
        mean = w @ seen / w.sum()
        np.testing.assert_allclose(means.mean[column], mean, rtol=1e-5)
        count = w.sum() ** 2 / (w**2).sum()
        np.testing.assert_allclose(means.count[column], count, rtol=1e-5)
        error = np.sqrt((w @ (np.array(seen) - mean) ** 2 / w.sum()) / (count - 1))
        np.testing.assert_allclose(means.error[column], error, rtol=1e-4)
    once = RunningMeans.empty(1).with_latest(jnp.ones(1), jnp.array([True]), 4.0)
    assert np.isinf(once.error).all()


def asked(rule, evidence, times):
    """What a rule decides after it has been shown the same so often."""

    def again(memory, _):
        chosen = rule(evidence, memory)
        return chosen.memory, chosen

    last = lambda chosen: jax.tree.map(lambda x: x[-1], chosen)
    ages = len(evidence.rows)
    return computed(lambda: last(jax.lax.scan(again, rule.init(ages), length=times)[1]))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_what_is_not_finite_has_no_share_and_is_not_remembered(rule):
    halves, make, _ = gradients(1)
    one = make(halves[0])
    sizes = jnp.array([4.0, 0.0, 4.0])
    spoilt = {
        "weights": dataclasses.replace(
            rc.Evidence.fresh(jnp.full(3, 4.0)), effective_sample_size=sizes
        ),
        "gradient": rc.Evidence.fresh(jnp.full(3, 4.0)),
        "newest": rc.Evidence.fresh(jnp.full(3, 4.0)),
    }
    worse = {
        "weights": one,
        "gradient": dataclasses.replace(one, older=one.older.at[0, 3].set(jnp.inf)),
        "newest": dataclasses.replace(one, halves=one.halves.at[1, 3].set(jnp.nan)),
    }
    for case, evidence in spoilt.items():
        if case == "gradient" and isinstance(rule, rc.WhileClose):
            continue  # it does not look at gradients
        evidence = dataclasses.replace(evidence, gradients=lambda case=case: worse[case])
        chosen = asked(rule, evidence, times=12)
        assert bool(all_finite((chosen.shares, chosen.memory, chosen.report)))
        np.testing.assert_allclose(chosen.shares.sum(), 1, rtol=1e-5)
        if case == "newest" and not isinstance(rule, rc.WhileClose):
            np.testing.assert_array_equal(chosen.shares, [1, 0, 0])
            for kept in jax.tree.leaves(chosen.memory):
                np.testing.assert_array_equal(kept, 0)
        elif case != "newest":
            assert chosen.shares[1] == 0


class Counting(rc.AbstractShares):
    """Remembers how often it was asked; what it adds may be no number."""

    step: float = 1.0

    def init(self, ages):
        return jnp.zeros(ages)

    def __call__(self, evidence, memory):
        return rc.ChosenShares(rc.Uniform()(evidence, None).shares, memory + self.step)


def test_a_memory_is_kept_where_there_is_nothing_to_learn_from():
    algorithm = rc.RPG(window=3, advantages=rc.Returns(), shares=Counting())
    state = fresh_state(algorithm, old=True)
    good = batches()[1][-1]
    bad = dataclasses.replace(good, rewards=good.rewards + jnp.nan)
    step = lambda state, batch, by=1.0: _update(
        traced_numbers(dataclasses.replace(algorithm, shares=Counting(by))), state, batch
    )
    after, info = step(state, good)
    assert info.refused == 0
    np.testing.assert_array_equal(after.share_memory, [1, 1, 1])
    refused, info = step(after, bad)
    assert info.refused > 0
    np.testing.assert_array_equal(refused.share_memory, [1, 1, 1])
    np.testing.assert_array_equal(step(after, good, jnp.inf)[0].share_memory, [1, 1, 1])
    # A checkpoint holds it.
    arrays = named_arrays(after)
    assert ".share_memory" in arrays
    np.testing.assert_array_equal(filled(state, arrays).share_memory, [1, 1, 1])


def test_other_numbers_compile_nothing_and_what_is_measured_becomes_curves():
    collector = rc.Episodes(2)
    rule = lambda c: rc.JamesStein(shrinkage=c, persistence=1.0)
    make = lambda c: rc.RPG(window=3, advantages=rc.Returns(), shares=rule(c))
    programs = []

    @eqx.filter_jit
    def step(algorithm, state, batch):
        programs.append(1)
        return algorithm.update(state, Rollout.of(batch), KEY)[1]

    state = fresh_state(make(0.5), old=True)
    memory = of_two_or_three(rc.JamesStein(), 3)
    state = dataclasses.replace(state, share_memory=memory)
    batch = batches()[1][-1]
    β = [step(traced_numbers(make(c)), state, batch).share_report.old_share for c in (0.5, 0.25)]
    assert len(programs) == 1
    assert 0 < β[1] <= β[0] <= 1
    run = rc.train(ENV, make(0.8), collector=collector, iterations=3, progress=False)
    assert run.curves["old_share"].shape == (1, 3)
    np.testing.assert_allclose(run.curves["shares"].sum(-1), 1, rtol=1e-3)
    np.testing.assert_allclose(1 - run.curves["shares"][..., 0], run.curves["old_share"], atol=1e-3)


def test_a_scaled_step_is_shorter():
    """By s for SGD; the trust region shrinks to s² of it."""
    batch = batches()[1][-1]
    for make, squared in ((rc.RPG, False), (rc.RTRPO, True)):
        θ, info = [], None
        for scale_step in (False, True):
            rule = rc.JamesStein(scale_step=scale_step)
            algorithm = make(window=3, advantages=rc.Returns(), shares=rule)
            state = fresh_state(algorithm, old=True)
            after, info = _update(algorithm, state, batch)
            θ.append(parameters(after.policy) - parameters(state.policy))
            kl = info.kl if not scale_step else kl
        s = float(info.share_report.signal_share)
        assert 0.05 <= s < 0.95
        if squared:
            assert info.kl <= s**2 * algorithm.target_kl * 1.001
            assert kl > 1.5 * s**2 * algorithm.target_kl
        else:
            np.testing.assert_allclose(θ[1], s * θ[0], rtol=1e-3, atol=1e-6)


class AllAlike(rc.AbstractShares):
    """As `LeastError` once it has chosen all there is."""

    @property
    def steps_of_newest(self):
        return True

    def __call__(self, evidence, memory):
        return rc.Uniform()(evidence, memory)


def test_ppo_takes_the_steps_of_the_newest_batch_whatever_data_a_rule_chooses():
    batch = batches()[1][-1]
    newest = int(batch.mask.sum())
    steps = {}
    for rule in (AllAlike(), rc.Uniform()):
        settings: dict[str, Any] = dict(epochs=2, minibatch=8, advantages=rc.Returns())
        algorithm = rc.RPPO(window=3, shares=rule, **settings)
        _, info = _update(algorithm, fresh_state(algorithm, old=True), batch)
        assert (info.shares > 0).all()
        steps[type(rule)] = int(info.own.gradient_steps)
    assert steps[AllAlike] == 2 * -(-newest // 8)
    assert steps[rc.Uniform] > 1.5 * steps[AllAlike]
    planned = planned_steps(rc.RPPO(window=3, shares=rc.LeastError()), np.array([512, 512]))
    np.testing.assert_array_equal(planned, [20, 20])


def test_advantages_of_a_window_in_units_of_the_newest_batch():
    """Standardised by its own mean and spread, as a window of 1 would have them."""
    values = np.asarray(jax.random.normal(KEY, (3, 2, 5)))
    mask = np.ones((3, 2, 5), bool)
    mask[0, 1, 2:] = False
    inside = values[0][mask[0]]
    of_newest = lambda x: np.where(mask, (x - inside.mean()) / inside.std(), 0)
    of_window = np.where(mask, 5 + 3 * values, 0)
    found = computed(in_units_of, of_newest(values)[:1], of_window, mask)
    np.testing.assert_allclose(found, of_newest(values), rtol=1e-4, atol=1e-5)
    alike = computed(in_units_of, np.zeros((1, 2, 5)), np.where(mask, values[:1, :1, :1], 0), mask)
    assert np.isfinite(alike).all()


def test_the_critic_has_a_window_of_its_own():
    """It is fitted to what a policy's window of that length would fit it to."""
    batch = batches()[1][-1]
    start = fresh_state(rc.RPG(window=3, critic=CRITIC), old=True)
    update = eqx.filter_jit(narrow_update)

    def fitted(**settings):
        algorithm = rc.RPG(critic=CRITIC, **settings)
        after, _ = update(traced_numbers(algorithm), start, Rollout.of(batch), KEY)
        return parameters(after.critic.network)

    expected = {window: fitted(window=window) for window in (1, 3)}
    assert np.abs(expected[1] - expected[3]).max() > 1e-4
    same = lambda found, window: np.testing.assert_allclose(
        found, expected[window], rtol=1e-4, atol=1e-6
    )
    assert rc.RPG(window=1, critic_window=3).capacity == 3
    same(fitted(window=1, critic_window=3), 3)
    same(fitted(window=3, critic_window=1), 1)
    # Fewer ages in use leave the critic its own.
    same(fitted(window=3, critic_window=3, shares=rc.Uniform(1)), 3)


@pytest.mark.parametrize("name", ["rpg", "rnpg", "rtrpo", "rppo"])
def test_a_longer_window_of_the_critic_leaves_the_step_of_the_policy_alone(name):
    batch = batches()[1][-1]
    settings: dict[str, Any] = dict(window=1, critic=CRITIC)
    if name == "rppo":
        settings |= dict(epochs=1)
    found = {}
    for critic_window in (1, 3):
        algorithm = ALGORITHMS[name](critic_window=critic_window, **settings)
        after, info = _update(algorithm, fresh_state(algorithm, old=True), batch)
        assert info.refused == 0
        found[critic_window] = parameters(after.policy), info.own
    np.testing.assert_allclose(found[3][0], found[1][0], rtol=1e-5, atol=1e-7)
    if name == "rppo":
        clipped = [info.clip_fraction_by_age for _, info in found.values()]
        np.testing.assert_allclose(*clipped, atol=1e-6)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"shrinkage=1.5 is out of range; give a number from 0"):
        rc.JamesStein(shrinkage=1.5)
    with pytest.raises(ValueError, match=r"horizon=4.0 is out of range; give at least 8 updates"):
        rc.CrossValidated(horizon=4.0)
    with pytest.raises(ValueError, match=r"least_effective=2.0 is out of range; give a part"):
        rc.WhileClose(least_effective=2.0)
    with pytest.raises(ValueError, match="critic_window=4 has no effect on a critic with fit"):
        rc.RPG(critic_window=4, critic=rc.Critic(fit="batch"))
    with pytest.raises(ValueError, match="there are no gradients to look at"):
        rc.JamesStein()(rc.Evidence.fresh(jnp.ones(2)), rc.JamesStein().init(2))
