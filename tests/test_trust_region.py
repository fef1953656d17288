"""Which KL divergence bounds an update, and over which states, on policies of one parameter."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import computed, history_from, update
from jaxtyping import Array, Float
from plain import RTRPO, TRPO

from recollect.algorithms import PPO
from recollect.batch import Batch
from recollect.estimate.advantages import Returns
from recollect.memory.rows import recall
from recollect.memory.weights import PolicyRatio
from recollect.policies import AbstractPolicy
from recollect.step.solve import Solution
from recollect.step.trust_region import backtrack, corrected_length, length_to_radius

KEY = jax.random.key(0)
PLAIN = Returns(baseline="none")


class Spread(AbstractPolicy):
    """a ~ N(0, exp(θ)²) whatever is observed. KL is far from symmetric if the spread shrinks."""

    log_std: Float[Array, ""]

    def sample(self, key, observation):
        return jnp.exp(self.log_std) * jax.random.normal(key)

    def log_prob(self, observation, action):
        return jax.scipy.stats.norm.logpdf(action, 0, jnp.exp(self.log_std))

    def mode(self, observation):
        return jnp.zeros(())

    def entropy(self, observation):
        return self.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e)

    def kl(self, other, observation):
        wider = other.log_std - self.log_std
        return wider + 0.5 * (jnp.exp(-2 * wider) - 1)


class Slope(AbstractPolicy):
    """a ~ N(θ s, 1), so that a step of Δ has KL ½ (Δ s)² at s: none where nothing is observed."""

    slope: Float[Array, ""]

    def sample(self, key, observation):
        return self.mode(observation) + jax.random.normal(key)

    def log_prob(self, observation, action):
        return jax.scipy.stats.norm.logpdf(action - self.mode(observation))

    def mode(self, observation):
        return self.slope * observation[0]

    def entropy(self, observation):
        return 0.5 * jnp.log(2 * jnp.pi * jnp.e) + 0 * self.slope

    def kl(self, other, observation):
        return 0.5 * (self.mode(observation) - other.mode(observation)) ** 2


def batch_from(policy, observations, actions, rewards, mask=None) -> Batch:
    """Episodes that last as long as the mask says."""
    observations = jnp.asarray(observations, jnp.float32)[..., None]
    actions = jnp.asarray(actions, jnp.float32)
    rewards = jnp.asarray(rewards, jnp.float32)
    mask = jnp.ones(rewards.shape, bool) if mask is None else jnp.asarray(mask)
    return Batch(
        observations=observations,
        actions=actions,
        log_probs=jax.vmap(jax.vmap(policy.log_prob))(observations, actions),
        rewards=rewards,
        next_observations=observations,
        terminated=jnp.ones(rewards.shape, bool),
        truncated=jnp.zeros(rewards.shape, bool),
        times=jnp.zeros(rewards.shape, jnp.int32),
        mask=mask,
    )


def narrowing(policy: Spread) -> Batch:
    """Small actions pay: the spread should shrink."""
    actions = np.random.default_rng(0).normal(size=(400, 1))
    return batch_from(policy, np.zeros((400, 1)), actions, 1 - actions**2)


def after_updates(algorithm, policy, *batches):
    state = algorithm.init(policy, batches[0], KEY)
    info = None
    for batch in batches:
        state, info = update(algorithm, state, batch, KEY)
    assert info is not None
    return state, info


def test_the_line_search_bounds_the_divergence_from_the_old_policy():
    start, radius = Spread(jnp.array(0.0)), 1.0
    algorithm = TRPO(advantages=PLAIN, target_kl=radius, shrink=0.97, backtracks=100)
    state, info = after_updates(algorithm, start, narrowing(start))
    assert int(info.refused) == 0
    assert state.policy.log_std < -0.5
    forward = start.kl(state.policy, jnp.zeros(1))
    backward = state.policy.kl(start, jnp.zeros(1))
    np.testing.assert_allclose(info.kl, forward, rtol=1e-5)
    # The step ends where KL(old ‖ new) meets the radius; KL(new ‖ old) is still far below it.
    assert 0.9 * radius < forward <= radius
    assert backward < 0.6 * radius


def test_ppo_stops_by_the_divergence_from_the_old_policy():
    start, target = Spread(jnp.array(0.0)), 0.5
    small_steps = dict(optimizer="sgd", learning_rate=1.0, max_gradient_norm=0.01)
    whole = dict(minibatch=400, clip=float("inf"), epochs=200)
    algorithm = PPO(advantages=PLAIN, target_kl=target, **small_steps, **whole)
    state, info = after_updates(algorithm, start, narrowing(start))
    forward = start.kl(state.policy, jnp.zeros(1))
    backward = state.policy.kl(start, jnp.zeros(1))
    assert 10 < info.gradient_steps < 200
    # The update ends with the first step beyond the target.
    assert target < forward < 1.1 * target
    assert backward < 0.7 * target


EPISODES, LONG = 9, 20


def seen_and_unseen(policy: Slope, first: int) -> Batch:
    """Each step observes 1 up to time `first` and 0 later; actions above the mean pay."""
    shape = (EPISODES, LONG)
    observations = np.broadcast_to(np.arange(LONG) < first, shape)
    actions = np.random.default_rng(1).normal(size=shape)
    return batch_from(policy, observations, actions, actions)


def first_steps(batch: Batch) -> Batch:
    """The batch with nothing but the first step of every episode."""
    return eqx.tree_at(lambda b: b.mask, batch, batch.mask & (jnp.arange(LONG) == 0))


def one_update(start: Slope, radius: float, old: Batch, newest: Batch):
    """State and Info after an update with a window of two batches.

    The old one is put there by hand: an update of its own would be refused if it has no signal.
    """
    algorithm = RTRPO(window=2, advantages=PLAIN, target_kl=radius, shrink=0.97, backtracks=200)
    state = algorithm.init(start, old, KEY)
    state = eqx.tree_at(
        lambda s: s.history, state, state.history.push(old, start, algorithm.weights)[0]
    )
    return update(algorithm, state, newest, KEY)


@pytest.mark.parametrize("moved", [EPISODES, 5])
def test_a_step_must_pass_on_the_newest_states_by_themselves(moved):
    """`moved` of nine newest states have a KL of k, and 180 old ones none: of that mean and its
    error, the window's have a twentieth."""
    start, radius = Slope(jnp.array(0.0)), 0.01
    seen = np.arange(EPISODES) < moved
    newest = first_steps(seen_and_unseen(start, 1))
    observations = newest.observations * seen[:, None, None]
    newest = eqx.tree_at(lambda b: b.observations, newest, observations)
    after, info = one_update(start, radius, seen_and_unseen(start, 0), newest)
    assert int(info.refused) == 0
    k = 0.5 * float(after.policy.slope) ** 2
    np.testing.assert_allclose(info.kl, k * seen.mean(), rtol=1e-4)
    mean, error = seen.mean(), seen.std(ddof=1) / np.sqrt(EPISODES)
    assert 0.9 * radius < k * max(mean, (mean + 2 * error) / 1.2) <= radius


def test_three_standard_errors_between_trajectories_stay_within_the_slack():
    """Half of ten one-step episodes observe nothing: the mean KL is k / 2, and its error k / 6."""
    start, radius = Slope(jnp.array(0.0)), 0.01
    observations = np.arange(10)[:, None] < 5
    actions = np.random.default_rng(1).normal(size=(10, 1))
    batch = batch_from(start, observations, actions, actions)
    algorithm = TRPO(advantages=PLAIN, target_kl=radius, shrink=0.97, backtracks=200)
    _, info = after_updates(algorithm, start, batch)
    assert int(info.refused) == 0
    assert 0.9 * radius < 2 * info.kl / 1.2 <= radius


def test_standard_errors_are_taken_between_trajectories():
    draw = np.random.default_rng(0)
    policy = Slope(jnp.array(0.3))
    lengths = np.array([[6, 2, 4, 5], [3, 6, 1, 6]])
    masks = np.arange(6) < lengths[..., None]
    # Values differ between trajectories and hardly within them: rows are anything but independent.
    values = 3 * draw.normal(size=(2, 4, 1)) + 0.1 * draw.normal(size=(2, 4, 6))
    values = values.astype(np.float32)
    batch_of = lambda some, mask: batch_from(policy, some, some, some, mask)

    def look(values):
        batches = [batch_of(values[age], masks[age]) for age in (1, 0)]
        history = history_from([policy] * 2, batches)
        recalled = recall(history, policy, PolicyRatio())
        rows = recalled.packing.rows(values)
        return [recalled.uniform_window(window).average(rows) for window in (1, 2)]

    for window, (mean, error) in zip((1, 2), computed(look, values), strict=True):
        mask, some = masks[:window], values[:window].astype(float)
        expected = some[mask].mean()
        sums = np.where(mask, some - expected, 0).sum(-1).ravel()
        count = len(sums)
        np.testing.assert_allclose(mean, expected, rtol=1e-4)
        between = np.sqrt(count / (count - 1) * (sums**2).sum()) / mask.sum()
        np.testing.assert_allclose(error, between, rtol=1e-4)
        alone = some[mask].std(ddof=1) / np.sqrt(mask.sum())
        assert error > 1.3 * alone


def test_the_first_length_reaches_the_radius_and_backtracking_counts_right():
    direction = jnp.array([1.0, -2.0])
    product = jnp.array([3.0, -1.0])
    solution = Solution(direction, product, residual=jnp.zeros(()), steps=jnp.zeros((), jnp.int32))
    length = length_to_radius(solution, 0.02)
    np.testing.assert_allclose(0.5 * length**2 * direction @ product, 0.02, rtol=1e-5)
    searches = {1.0: (1, 0, True), 0.3: (0.25, 2, True), 0.1: (0.125, 3, False)}
    for limit, expected in searches.items():
        search = backtrack(lambda length, limit=limit: length <= limit, jnp.array(1.0), 0.5, 3)
        found = (float(search.length), int(search.backtracks), bool(search.found))
        assert found == expected


@pytest.mark.parametrize("guess", [1e-3, 0.3, 2.0, 10.0])
def test_the_length_is_corrected_until_the_measured_divergence_is_the_radius(guess):
    """Whatever the guess was; not beyond the longest, and not where nothing is measured."""
    radius = 0.02
    guess = jnp.array(guess)
    divergences = {
        "quadratic": lambda length: 3 * length**2,
        "steeper": lambda length: length**2 + 40 * length**4,
        "flatter": lambda length: 0.3 * length**2 / (1 + length),
    }
    for name, divergence in divergences.items():
        correct = lambda guess, d=divergence: corrected_length(d, guess, radius, jnp.inf)
        assert 0.9 * radius <= divergence(computed(correct, guess)) <= radius, name
    longest = lambda guess: corrected_length(divergences["quadratic"], guess, radius, 0.05)
    np.testing.assert_allclose(computed(longest, guess), 0.05, rtol=1e-6)
    # Beyond a length of 0.05 the policy has no divergence any more.
    cliff = lambda length: jnp.where(length < 0.05, length**2, jnp.inf)
    found = computed(lambda guess: corrected_length(cliff, guess, radius, jnp.inf), guess)
    assert found < max(guess, 0.5)
    # Rounding may leave the divergence of a direction of nothing below zero.
    nothing = lambda guess: corrected_length(lambda _: jnp.array(-1e-9), guess, radius, jnp.inf)
    assert np.isfinite(computed(nothing, guess))


@pytest.mark.parametrize("entropy", [0.0, 0.5])
def test_the_entropy_bonus_raises_the_entropy(entropy):
    """Without rewards the bonus is all that there is: its slope by log σ is its weight."""
    start = Spread(jnp.array(0.0))
    batch = eqx.tree_at(lambda b: b.rewards, narrowing(start), jnp.zeros((400, 1)))
    one_step = dict(optimizer="sgd", learning_rate=0.1, epochs=1, minibatch=400)
    algorithm = PPO(advantages=PLAIN, entropy=entropy, max_gradient_norm=10.0, **one_step)
    state, _ = after_updates(algorithm, start, batch)
    np.testing.assert_allclose(state.policy.log_std, 0.1 * entropy, atol=1e-6)


def test_a_step_must_pass_on_the_states_of_the_whole_window():
    """Only five of nine old trajectories have a KL: its mean and standard error bound the step."""
    start, radius = Slope(jnp.array(0.0)), 0.01
    some = np.arange(EPISODES)[:, None] < 5
    actions = np.random.default_rng(1).normal(size=(EPISODES, LONG))
    old = batch_from(start, np.broadcast_to(some, actions.shape), actions, actions)
    moved, info = one_update(start, radius, old, first_steps(seen_and_unseen(start, 0)))
    assert (int(info.refused), float(info.kl)) == (0, 0.0)
    kl = 0.5 * float(moved.policy.slope) ** 2
    count = EPISODES * (LONG + 1)
    mean = 5 * LONG * kl / count
    sums = np.concatenate([np.full(EPISODES, -mean), LONG * (kl * some[:, 0] - mean)])
    error = np.sqrt(18 / 17 * (sums**2).sum()) / count
    assert 0.9 * radius < max(mean, (mean + 3 * error) / 1.2) <= radius


def test_a_step_must_improve_the_surrogate():
    """Where the radius bounds nothing, the first length with Σ ω A (π/π_n − 1) > 0 is taken."""
    start, shrink = Slope(jnp.array(0.0)), 0.95
    actions = np.random.default_rng(2).normal(size=(200, 1))
    rewards = 2 + actions
    batch = batch_from(start, np.ones((200, 1)), actions, rewards)
    # Another policy acted, which liked actions below zero: they have weights below one.
    weights = np.exp(1.5 * np.sign(actions))
    acted = batch.log_probs - np.log(weights).astype(np.float32)
    batch = eqx.tree_at(lambda b: b.log_probs, batch, acted)
    algorithm = TRPO(advantages=PLAIN, target_kl=50.0, shrink=shrink, backtracks=200)
    state, info = after_updates(algorithm, start, batch)
    gain = lambda slope: np.sum(weights * rewards * np.expm1(actions * slope - slope**2 / 2))
    slope = float(state.policy.slope)
    assert int(info.refused) == 0
    assert int(info.backtracks) > 3
    assert gain(slope) > 0 >= gain(slope / shrink)


def test_the_radius_of_the_trust_region_decays():
    """Where every state has the same KL, each update takes all that its radius δ / n allows."""
    policy, radius = Slope(jnp.array(0.0)), 0.01
    algorithm = TRPO(
        advantages=PLAIN, target_kl=radius, radius_decay=1.0, shrink=0.97, backtracks=50
    )
    actions = np.random.default_rng(1).normal(size=(100, 1))
    seen = np.ones((100, 1))
    state = algorithm.init(policy, batch_from(policy, seen, actions, actions), KEY)
    for n in (1, 2, 3):
        taken = actions + float(state.policy.slope)
        batch = batch_from(state.policy, seen, taken, actions)
        state, info = update(algorithm, state, batch, KEY)
        assert int(info.refused) == 0
        assert 0.89 * radius / n < info.kl <= radius / n


def test_a_minibatch_is_averaged_over_itself():
    """Where all transitions are the same, four minibatches make four steps of the whole batch."""
    start = Spread(jnp.array(0.0))
    batch = batch_from(start, np.zeros((400, 1)), np.full((400, 1), 0.5), np.ones((400, 1)))
    small = dict(optimizer="sgd", learning_rate=1e-3, epochs=1, entropy=0.1)
    small = dict(**small, advantages=PLAIN, max_gradient_norm=10.0)
    after = lambda algorithm: after_updates(algorithm, start, batch)[0].policy.log_std
    whole, parts = (after(PPO(minibatch=size, **small)) for size in (400, 100))
    np.testing.assert_allclose(parts, 4 * whole, rtol=1e-2)
    # The score of log σ is a² − 1, and the entropy's slope 1.
    np.testing.assert_allclose(whole, 1e-3 * (-0.75 + 0.1), rtol=1e-3)
