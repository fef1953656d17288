"""A run goes on elsewhere as if it had never stopped: `RunState` is all there is."""

import contextlib
import dataclasses

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import RNPG

from recollect import Architecture, Critic, Episodes, Steps, VTrace, host, make, train
from recollect.collect.host import HostCollector
from recollect.envs import HostEnv
from recollect.keys import seed_keys
from recollect.policies.architecture import make_policy
from recollect.run.checkpoint import CheckpointError, named_arrays, read, write
from recollect.run.compiled import CompiledRun
from recollect.run.hosted import HostRun
from recollect.run.state import CorePool, Limits

SEEDS = (3, 8)


class Counting(gym.Env):
    """Counts its steps; every episode is as long as a number drawn at its reset says."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, forgetful=False):
        self.forgetful = forgetful
        self.resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.length = int(self.np_random.integers(3, 30))
        self.now = 0
        self.sum = float(self.np_random.random())
        return self._observed(), {}

    def step(self, action):
        self.now += 1
        self.sum += (1 + action) * float(self.np_random.random())
        return self._observed(), self.sum, self.now >= self.length, False, {}

    def _observed(self):
        # What an environment keeps beyond its resets cannot be repeated.
        kept = self.resets if self.forgetful else 0
        return np.array([self.now, self.sum, kept], np.float32)


@contextlib.contextmanager
def collecting(make_env, workers=False, collector=Steps(4, 10)):
    env = host(make_env, max_steps=40, workers=workers)
    one = HostCollector(env, collector, SEEDS)
    policies = [make_policy(key, env, Architecture(widths=(4,))) for key in seed_keys(SEEDS)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x) if hasattr(x[0], "shape") else x[0], *policies)
    keys = lambda iteration: seed_keys(tuple(seed + 100 * iteration for seed in SEEDS))
    try:
        yield one, lambda i, ongoing: one(stacked, keys(i), i, ongoing)
    finally:
        one.close()


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("workers", [False, True], ids=["here", "workers"])
def test_copies_opened_anew_go_on_where_others_were(workers):
    ongoing = None
    with collecting(Counting, workers) as (_, collect):
        for i in range(3):
            ongoing, _ = collect(i, ongoing)
        expected = collect(3, ongoing)
    assert [len(actions) for actions in ongoing.by_copy()] == ongoing.times.ravel().tolist()
    assert len(set(ongoing.times.ravel().tolist())) > 3
    with collecting(Counting, workers) as (collector, collect):
        restored, anew = collector.restore(ongoing)
        assert anew == 0
        assert_same(restored, ongoing)
        assert_same(collect(3, restored), expected)


def test_episodes_that_do_not_repeat_themselves_begin_anew():
    ongoing = None
    forgetful = lambda: Counting(forgetful=True)
    with collecting(forgetful) as (_, collect):
        for i in range(3):
            ongoing, _ = collect(i, ongoing)
    with collecting(forgetful) as (collector, collect):
        restored, anew = collector.restore(ongoing)
        assert anew == 8
        assert not restored.times.any()
        assert not restored.totals.any()
        assert len(restored.actions) == 0
        _, rollout = collect(3, restored)
    first = np.asarray(rollout.batch.observations)[:, :, 0]
    np.testing.assert_array_equal(first[..., 0], 0)
    np.testing.assert_array_equal(np.asarray(rollout.batch.times)[:, :, 0], 0)


def test_whole_episodes_need_nothing():
    with collecting(Counting, collector=Episodes(2)) as (_, collect):
        ongoing, _ = collect(0, None)
        expected = collect(1, ongoing)
    with collecting(Counting, collector=Episodes(2)) as (collector, collect):
        restored, anew = collector.restore(ongoing)
        assert anew == 0
        assert_same(collect(1, restored), expected)


ALGORITHM = RNPG(window=3, advantages=VTrace(), critic=Critic(widths=(4,), epochs=1))
PROBLEMS = {
    "compiled steps": (lambda: make("CartPole-v1", max_steps=30), Steps(3, 12)),
    "compiled episodes": (lambda: make("CartPole-v1", max_steps=30), Episodes(2)),
    "host steps": (lambda: make("CartPole-v1", engine="gymnasium"), Steps(3, 12)),
    "host episodes": (lambda: make("CartPole-v1", max_steps=30, engine="gymnasium"), Episodes(2)),
}


def opened(name, pool):
    """The run of a problem, as `train` opens it."""
    make_env, collector = PROBLEMS[name]
    env = make_env()
    keys = seed_keys(SEEDS)
    shared = (env, ALGORITHM, collector, Limits(np.inf, np.inf), Architecture(widths=(4,)))
    if isinstance(env, HostEnv):
        return HostRun(*shared, SEEDS, keys, pool)
    return CompiledRun(*shared, keys, pool)


def advanced(run, state, count):
    """The state after some iterations, and their curves."""
    chunks = []
    for _ in range(count):
        state, chunk = run.advance(state, 1)
        chunks.append(chunk)
    return state, chunks


@pytest.mark.parametrize("name", PROBLEMS)
def test_stopped_and_resumed_is_as_never_stopped_bit_for_bit(name, tmp_path):
    path = tmp_path / "run.zip"
    with CorePool(len(SEEDS)) as pool, contextlib.closing(opened(name, pool)) as run:
        state, _ = advanced(run, run.start(), 4)
        write(path, state.tree(), {"iteration": state.iteration})
        expected = advanced(run, state, 3)
    with CorePool(len(SEEDS)) as pool, contextlib.closing(opened(name, pool)) as run:
        arrays, facts = read(path)
        state = run.restore(arrays, facts["iteration"])
        found = advanced(run, state, 3)
    assert found[0].iteration == expected[0].iteration == 7
    one, other = (named_arrays(state.tree()) for state in (found[0], expected[0]))
    assert_same(one, other)
    assert_same(found[1], expected[1])


def kept_training(path, **settings):
    known = dict(collector=Steps(3, 12), policy=Architecture(widths=(4,)), seeds=SEEDS)
    algorithm = settings.pop("algorithm", ALGORITHM)
    env = settings.pop("env", "CartPole-v1")
    return train(env, algorithm, checkpoint=path, **{**known, **settings})


def test_training_goes_on_from_its_file(tmp_path):
    whole = kept_training(None, iterations=7)
    path = tmp_path / "run.zip"
    first = kept_training(path, iterations=4)
    assert first.curves["kl"].shape == (2, 4)
    second = kept_training(path, iterations=7)
    third = kept_training(path, iterations=7)  # nothing is left to do
    for run in (second, third):
        assert_same(run.curves, whole.curves)
        assert_same(named_arrays(run.policies), named_arrays(whole.policies))
        assert run.clock.shape == (7,)
        assert (np.diff(run.clock) >= 0).all()
    np.testing.assert_array_equal(second.clock[:4], first.clock)
    assert [file.name for file in tmp_path.iterdir()] == ["run.zip"]


def test_a_larger_limit_lets_seeds_go_on(tmp_path):
    path = tmp_path / "run.zip"
    kept_training(path, environment_steps=72)
    longer = kept_training(path, environment_steps=150)
    np.testing.assert_array_equal(longer.curves["environment_steps"], [[36, 72, 108, 144, 180]] * 2)
    # Draws depend on the number of the iteration: those after the first limit are not counted.
    assert_same(longer.curves, kept_training(None, environment_steps=150).curves)


class Interrupting(Counting):
    """Is interrupted once, at its hundredth step."""

    steps = 0

    def step(self, action):
        Interrupting.steps += 1
        if Interrupting.steps == 100:
            raise KeyboardInterrupt
        return super().step(action)


def test_an_interrupted_run_is_kept_and_gone_on_with(tmp_path):
    path = tmp_path / "run.zip"
    whole = kept_training(None, env=Counting, iterations=5)
    Interrupting.steps = 0
    again = lambda: kept_training(path, env=host(Interrupting, name="Counting"), iterations=5)
    with pytest.raises(KeyboardInterrupt) as stop:
        again()
    assert stop.value.training.curves["kl"].shape == (2, 1)
    found = again()
    assert_same(found.curves, whole.curves)
    assert_same(named_arrays(found.policies), named_arrays(whole.policies))


def test_a_file_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.zip"
    kept_training(path, iterations=1)
    before = path.read_bytes()
    mistakes = {
        r"algorithm\.damping is 0\.001 there, and 0\.5 here": dict(
            algorithm=dataclasses.replace(ALGORITHM, damping=0.5)
        ),
        r"seeds is \[3, 8\] there, and \[3, 9\] here": dict(seeds=(3, 9)),
        r"collector\.steps is 12 there, and 13 here": dict(collector=Steps(3, 13)),
        r"env is CartPole there, and Acrobot here": dict(env="Acrobot-v1"),
        r"policy\.widths is \[4\] there, and \[5\] here": dict(policy=Architecture(widths=(5,))),
    }
    for message, changed in mistakes.items():
        with pytest.raises(CheckpointError, match=message):
            kept_training(path, iterations=2, **changed)
    assert path.read_bytes() == before
    path.write_bytes(before[:-100])
    with pytest.raises(CheckpointError, match="is damaged"):
        kept_training(path, iterations=2)
    with pytest.raises(ValueError, match="a folder that does not exist"):
        kept_training(tmp_path / "no" / "run.zip", iterations=1)


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, monkeypatch):
    def full(path, tree, facts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("recollect.run.kept.write", full)
    with pytest.warns(UserWarning, match=r"run\.zip' could not be written: .*No space left"):
        run = kept_training(tmp_path / "run.zip", iterations=2)
    assert run.curves["kl"].shape == (2, 2)
