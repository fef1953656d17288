"""A run goes on elsewhere as if it had never stopped: `RunState` is all there is."""

import contextlib
import dataclasses

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import RNPG

from recollect import Architecture, Critic, Episodes, Steps, VTrace, host, make, resume, train
from recollect.collect.host import HostCollector
from recollect.envs import HostEnv
from recollect.keys import seed_keys
from recollect.policies.architecture import make_policy
from recollect.run.checkpoint import CheckpointError, named_arrays, read, write
from recollect.run.compiled import CompiledRun
from recollect.run.folder import RunFolder
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


@pytest.mark.parametrize(("workers", "copies"), [(False, 4), (True, 1)], ids=["here", "workers"])
def test_copies_opened_anew_go_on_where_others_were(workers, copies):
    ongoing, collector = None, Steps(copies, 10)
    with collecting(Counting, workers, collector) as (_, collect):
        for i in range(3):
            ongoing, _ = collect(i, ongoing)
        expected = collect(3, ongoing)
    assert [len(actions) for actions in ongoing.by_copy()] == ongoing.times.ravel().tolist()
    assert len(set(ongoing.times.ravel().tolist())) >= copies
    with collecting(Counting, workers, collector) as (other, collect):
        restored, anew = other.restore(ongoing)
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
        write(path, named_arrays(state.tree()), {"iteration": state.iteration})
        expected = advanced(run, state, 3)
    with CorePool(len(SEEDS)) as pool, contextlib.closing(opened(name, pool)) as run:
        arrays, facts = read(path)
        state = run.restore(arrays, facts["iteration"])
        found = advanced(run, state, 3)
    assert found[0].iteration == expected[0].iteration == 7
    one, other = (named_arrays(state.tree()) for state in (found[0], expected[0]))
    assert_same(one, other)
    assert_same(found[1], expected[1])


KNOWN = dict(collector=Steps(3, 12), policy=Architecture(widths=(4,)), seeds=SEEDS)


def training(env="CartPole-v1", algorithm=ALGORITHM, **settings):
    return train(env, algorithm, **{**KNOWN, **settings})


def rows(folder):
    """The progress of a run without its last column, which is a time."""
    lines = (folder / "progress.csv").read_text().splitlines()
    return [line.rpartition(",")[0] for line in lines]


def test_a_run_goes_on_from_its_folder_as_if_it_had_never_stopped(tmp_path):
    whole = training(iterations=7, out=tmp_path / "whole")
    folder = tmp_path / "stopped"
    first = training(iterations=4, out=folder)
    assert first.curves["kl"].shape == (2, 4)
    second = resume(folder, iterations=7)
    third = resume(folder, iterations=7)  # nothing is left to do
    for run in (second, third):
        assert_same(run.curves, whole.curves)
        assert_same(dict(run.snapshot.arrays), dict(whole.snapshot.arrays))
        assert run.clock.shape == (7,)
        assert (np.diff(run.clock) >= 0).all()
    np.testing.assert_array_equal(second.clock[:4], first.clock)
    assert rows(folder) == rows(tmp_path / "whole")
    assert len(rows(folder)) == 1 + 2 * 7
    for seed in SEEDS:
        episodes = [
            [line.rpartition(",")[0] for line in (one / f"{seed}.monitor.csv").open()][2:]
            for one in (folder, tmp_path / "whole")
        ]
        assert episodes[0] == episodes[1]
        assert len(episodes[0]) > 5
    assert [path.name for path in RunFolder.open(folder).checkpoints()] == [
        "00000004.zip",
        "00000007.zip",
    ]


def test_the_limits_of_a_run_are_its_own_unless_others_are_given(tmp_path):
    training(environment_steps=72, out=tmp_path)
    assert resume(tmp_path).curves["kl"].shape == (2, 2)
    longer = resume(tmp_path, environment_steps=150)
    np.testing.assert_array_equal(longer.curves["environment_steps"], [[36, 72, 108, 144, 180]] * 2)
    # Draws depend on the number of the iteration: those after the first limit are not counted.
    assert_same(longer.curves, training(environment_steps=150).curves)


class Interrupting(Counting):
    """Is interrupted once, at its hundredth step."""

    steps = 0

    def step(self, action):
        Interrupting.steps += 1
        if Interrupting.steps == 100:
            raise KeyboardInterrupt
        return super().step(action)


def test_an_interrupted_run_is_kept_and_gone_on_with(tmp_path):
    whole = training(env=Counting, iterations=5)
    Interrupting.steps = 0
    env = host(Interrupting, name="Counting")
    with pytest.raises(KeyboardInterrupt) as stop:
        training(env=env, iterations=5, out=tmp_path)
    assert stop.value.training.curves["kl"].shape == (2, 1)
    with pytest.raises(
        ValueError, match=r"env was Counting, which no file can hold; give it again"
    ):
        resume(tmp_path)
    found = resume(tmp_path, env=env)
    assert_same(found.curves, whole.curves)
    assert_same(named_arrays(found.policies), named_arrays(whole.policies))


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path):
    training(iterations=1, out=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="holds a run already; resume or overwrite it"):
        training(iterations=2, out=tmp_path)
    other = dataclasses.replace(ALGORITHM, damping=0.5)
    with pytest.raises(ValueError, match=r"algorithm\.damping=0\.5 differs .* which has 0\.001"):
        resume(tmp_path, iterations=2, algorithm=other)
    with pytest.raises(CheckpointError, match="does not fit"):
        resume(tmp_path, iterations=2, env="Acrobot-v1")
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(ValueError, match=r"holds no run: it has no config\.json"):
        resume(tmp_path / "checkpoints")


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    training(iterations=2, out=tmp_path)
    resume(tmp_path, iterations=3)
    _, newest = RunFolder.open(tmp_path).checkpoints()
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"00000003\.zip is damaged: .* The checkpoint before it"):
        found = resume(tmp_path, iterations=4)
    assert_same(found.curves, training(iterations=4).curves)
    for path in RunFolder.open(tmp_path).checkpoints():
        path.write_bytes(b"PK")
    with pytest.raises(CheckpointError, match="is damaged"):
        resume(tmp_path, iterations=5)


def test_a_run_that_was_never_written_begins_anew(tmp_path):
    monitor = lambda: [line.rpartition(",")[0] for line in (tmp_path / "3.monitor.csv").open()][1:]
    training(iterations=2, out=tmp_path)
    episodes = monitor()
    assert len(episodes) > 1
    for path in RunFolder.open(tmp_path).checkpoints():
        path.unlink()
    (tmp_path / "progress.csv").write_text("cut sh")
    assert_same(resume(tmp_path).curves, training(iterations=2).curves)
    assert len(rows(tmp_path)) == 1 + 2 * 2
    assert monitor() == episodes


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, monkeypatch):
    def full(path, arrays, facts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("recollect.run.snapshot.write", full)
    with pytest.warns(UserWarning, match=r"0+2\.zip could not be written: .*No space left"):
        run = training(iterations=2, out=tmp_path)
    assert run.curves["kl"].shape == (2, 2)
    assert len(rows(tmp_path)) == 1 + 2 * 2
