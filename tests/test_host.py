"""Environments on the host: nothing of reuse goes wrong, whichever way they come."""

import dataclasses
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import gymnasium as gym
import hosted_envs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, TimeLimit
from hosted_envs import ACTIONS, BAD, OBSERVATIONS, Anything, Counting, Spoiled, killed
from plain import RPG, RTRPO, TRPO, VNPG, VPG

from recollect import EnvironmentFailure, Episodes, Steps, host, make, train
from recollect.algorithms import REFUSALS
from recollect.cli import main
from recollect.collect.host import HostCollector
from recollect.envs import CartPole
from recollect.envs.checked import Checked
from recollect.envs.core_vector import CoreVector
from recollect.envs.spaces import actions_of, decoder, encoder
from recollect.envs.vectors import LocalVector
from recollect.estimate.advantages import Returns
from recollect.estimate.fisher import ExpectedFisher
from recollect.policies import Gaussian, Policy, mlp, softmax_policy
from recollect.policies.architecture import Architecture, make_policy
from recollect.policies.normaliser import Normaliser
from recollect.policies.scores import score_matrix
from recollect.runtime import core_numbers
from recollect.tree import flatten

PLAIN = Architecture(widths=(), normalise=False)


def policies_of(env, seeds=1, architecture=PLAIN):
    stack = eqx.filter_vmap(lambda key: make_policy(key, env, architecture))
    keys = jax.random.split(jax.random.key(0), seeds)
    return stack(keys), keys


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_flatten_as_gymnasium_does(name):
    space = OBSERVATIONS[name]
    size, encode = encoder(space)
    assert size == 6 == spaces.utils.flatdim(space)
    space.seed(0)
    for _ in range(20):
        observation, row = space.sample(), np.empty(6, np.float32)
        encode(observation, row)
        np.testing.assert_allclose(row, spaces.utils.flatten(space, observation).astype(np.float32))


@pytest.mark.parametrize("action", ACTIONS)
def test_every_combination_of_spaces_trains(action):
    for observation, space in OBSERVATIONS.items():
        env = host(
            lambda space=space: Anything(space, ACTIONS[action]), name=f"{observation} and {action}"
        )
        run = train(env, VPG(), collector=Steps(2, 8), policy=PLAIN, iterations=2)
        assert np.isfinite(flatten(run.policies)[0]).all()
        assert (run.curves["return_mean"] == 6.0).all()  # 1 + 2 + 3, in every finished episode


def test_actions_reach_the_environment_inside_its_bounds():
    space = ACTIONS["bounded"]
    assert actions_of(space).bounds == ((-2.0, 3.0),) * 4
    decoded = decoder(space)(np.array([[-5.0, 0.5, 7.0, 3.0]], np.float32))
    np.testing.assert_array_equal(decoded, [[[-2, 0.5], [3, 3]]])
    assert space.contains(decoded[0])


def vector_of(style):
    return lambda count: SyncVectorEnv([Counting] * count, autoreset_mode=style)


STYLES = {
    "ours": lambda count: Counting,
    "disabled": vector_of(AutoresetMode.DISABLED),
    "same step": vector_of(AutoresetMode.SAME_STEP),
    "next step": vector_of(AutoresetMode.NEXT_STEP),
}


@pytest.mark.parametrize("style", STYLES)
def test_no_transition_crosses_the_end_of_an_episode(style):
    seeds, copies, steps = 2, 10, 50
    env = host(STYLES[style](seeds * copies))
    collector = HostCollector(env, Steps(copies, steps), tuple(range(seeds)))
    policies, keys = policies_of(env, seeds)
    total, running = 0, np.zeros((seeds, copies))
    ongoing = None
    for iteration in range(10):
        ongoing, found = collector(policies, keys, iteration, ongoing)
        batch, returns = (
            jax.tree.map(np.asarray, found.batch),
            np.asarray(found.returns).reshape(seeds, steps, copies),
        )
        now, after, mask = batch.observations, batch.next_observations, batch.mask
        np.testing.assert_array_equal(after[mask][:, 0], now[mask][:, 0])
        np.testing.assert_array_equal(after[mask][:, 1], now[mask][:, 1] + 1)
        np.testing.assert_array_equal(batch.times[mask], now[mask][:, 1])
        np.testing.assert_array_equal(batch.rewards[mask], after[mask][:, 1])
        ended = (batch.terminated | batch.truncated) & mask
        assert not (batch.terminated & batch.truncated)[mask].any()
        for t in range(
            steps
        ):  # the returns of finished episodes, reckoned once more from the rewards
            running += np.where(mask[:, :, t], batch.rewards[:, :, t], 0)
            np.testing.assert_array_equal(np.isfinite(returns[:, t]), ended[:, :, t])
            np.testing.assert_array_equal(returns[:, t][ended[:, :, t]], running[ended[:, :, t]])
            running[ended[:, :, t]] = 0
        total += int(np.asarray(found.environment_steps).sum())
        assert int(mask.sum()) == int(np.asarray(found.environment_steps).sum())
    collector.close()
    assert total == 10_000 if style != "next step" else 9_000 < total < 10_000


@pytest.mark.parametrize("style", STYLES)
def test_whole_episodes(style):
    env = host(STYLES[style](6), max_steps=30)
    collector = HostCollector(env, Episodes(3), (0, 1))
    policies, keys = policies_of(env, 2)
    for iteration in range(3):
        batch = collector(policies, keys, iteration)[1].batch
        ended, mask = np.asarray(batch.terminated | batch.truncated), np.asarray(batch.mask)
        lengths = mask.sum(-1)
        assert (mask == (np.arange(30) < lengths[..., None])).all()
        assert ((ended & mask).sum(-1) == 1).all()
        assert np.take_along_axis(ended, lengths[..., None] - 1, -1).all()
        assert (np.asarray(batch.observations)[..., 0, 1] == 0).all()
    collector.close()


def test_a_limit_of_ours_cuts_episodes():
    env = host(Counting, max_steps=4)
    collector = HostCollector(env, Steps(3, 50), (0,))
    batch = collector(*policies_of(env), 0)[1].batch
    collector.close()
    times, cut = np.asarray(batch.times), np.asarray(batch.truncated)
    assert times.max() == 3
    assert cut[times == 3].all() or np.asarray(batch.terminated)[times == 3].any()


class From(gym.Wrapper):
    """CartPole that starts where it is told to."""

    def __init__(self, starts):
        super().__init__(gym.make("CartPole-v1").unwrapped)
        self.starts = starts

    def reset(self, *, seed=None, options=None):
        self.env.reset(seed=seed)
        self.env.unwrapped.state = np.array(next(self.starts), np.float64)
        return np.array(self.env.unwrapped.state, np.float32), {}


def test_the_host_gathers_what_the_compiled_engine_gathers():
    compiled, key = CartPole(max_steps=30), jax.random.key(7)
    policy = softmax_policy(key, 4, 2)
    expected = eqx.filter_jit(Episodes(4))(key, compiled, policy, None, 0.99)[1]
    starts = iter(np.asarray(expected.batch.observations[:, 0]))
    env = host(lambda: From(starts), max_steps=30)
    collector = HostCollector(env, Episodes(4), (0,))
    stacked = jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, policy)
    _, found = collector(stacked, key[None], 0)
    collector.close()
    np.testing.assert_array_equal(found.batch.mask[0], expected.batch.mask)
    mask = np.asarray(expected.batch.mask)
    for field in (
        "observations",
        "actions",
        "rewards",
        "next_observations",
        "terminated",
        "truncated",
        "times",
    ):
        ours, theirs = (
            np.asarray(getattr(found.batch, field)[0])[mask],
            np.asarray(getattr(expected.batch, field))[mask],
        )
        np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=field)
    np.testing.assert_array_equal(
        np.sort(found.returns[0][np.isfinite(found.returns[0])]), np.sort(expected.returns)
    )


def test_the_same_seed_writes_the_same_curves(tmp_path):
    tables = []
    for folder in ("a", "b"):
        flags = [
            "--engine",
            "gymnasium",
            "--seeds",
            "3",
            "--iterations",
            "2",
            "--steps",
            "16",
            "--copies",
            "2",
            "--out",
            str(tmp_path / folder),
        ]
        assert main(["train", "vpg", "CartPole-v1", *flags]) == 0
        lines = (tmp_path / folder / "progress.csv").read_text().splitlines()
        tables.append([line.rsplit(",", 1)[0] for line in lines])  # without the clock
    assert tables[0] == tables[1]


@pytest.mark.parametrize("name", BAD)
def test_a_broken_environment_gets_its_sentence(name):
    make_env, message = BAD[name]
    with pytest.raises((EnvironmentFailure, ValueError), match=message) as caught:
        train(make_env, VPG(), collector=Steps(2, 4), policy=PLAIN, iterations=4)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    if isinstance(caught.value, EnvironmentFailure) and caught.value.training is not None:
        assert np.isfinite(flatten(caught.value.training.policies)[0]).all()


def test_what_was_learned_before_a_failure_is_kept(tmp_path, capsys):
    breaks = lambda: Spoiled(hosted_envs.put(1, np.nan), at=10)
    with pytest.raises(EnvironmentFailure) as caught:
        train(breaks, VPG(), collector=Steps(2, 4), policy=PLAIN, iterations=4)
    training = caught.value.training
    assert training.curves["return_mean"].shape == (1, 2)
    assert int(training.curves["environment_steps"][0, -1]) == 16
    gym.register("Breaks-v0", breaks)
    flags = [
        "--seeds",
        "1",
        "--iterations",
        "4",
        "--steps",
        "4",
        "--copies",
        "2",
        "--policy.widths",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert main(["train", "vpg", "Breaks-v0", *flags, "--quiet"]) == 2
    assert re.fullmatch(
        r"recollect: copy 0 of Breaks-v0, step 10: step returned the reward nan, .*\n",
        capsys.readouterr().err,
    )
    assert len((tmp_path / "progress.csv").read_text().splitlines()) == 3
    gym.registry.pop("Breaks-v0")


def test_an_exception_in_close_does_not_cost_what_was_learned():
    hosted_envs.FailsToClose.asked = 0
    with pytest.warns(
        UserWarning, match="close raised RuntimeError: the window is gone and 2 more failed as well"
    ):
        run = train(
            hosted_envs.FailsToClose, VPG(), collector=Steps(3, 4), policy=PLAIN, iterations=2
        )
    assert run.curves["return_mean"].shape == (1, 2)
    assert hosted_envs.FailsToClose.asked == 4  # three copies, and the one that was looked at first


def test_an_exception_in_close_does_not_hide_the_failure_before_it():
    class Both(Spoiled):
        def close(self):
            raise RuntimeError("the window is gone")

    with (
        pytest.warns(UserWarning, match="close raised RuntimeError"),
        pytest.raises(EnvironmentFailure, match="not finite") as caught,
    ):
        train(
            lambda: Both(hosted_envs.put(1, np.nan), at=10),
            VPG(),
            collector=Steps(2, 4),
            policy=PLAIN,
            iterations=4,
        )
    assert caught.value.training is not None


def test_batches_without_signal_do_not_end_the_run():
    """As on a lake whose goal is not found, for longer than updates may be refused otherwise."""
    never_pays = lambda: gym.wrappers.TransformReward(gym.make("FrozenLake-v1"), lambda reward: 0.0)
    with pytest.warns(UserWarning, match="No batch of seed 0 held a signal"):
        run = train(never_pays, TRPO(advantages=Returns()), collector=Steps(2, 8), iterations=14)
    (refused,) = run.curves["refused"]
    assert {REFUSALS[int(reason)] for reason in refused} == {
        "the gradient is zero, the batches hold no signal"
    }
    assert len(refused) == 14


def test_a_vector_is_not_stepped_by_two_collectors():
    with pytest.raises(
        ValueError,
        match=r"independent_fisher=True needs copies of its own, .* a function that makes one copy",
    ):
        train(
            vector_of(AutoresetMode.SAME_STEP)(2),
            VNPG(independent_fisher=True),
            collector=Steps(2, 4),
            iterations=1,
        )


def test_a_vector_stays_open_until_whoever_made_it_closes_it():
    vector = vector_of(AutoresetMode.SAME_STEP)(2)
    for _ in range(2):
        train(vector, VPG(), collector=Steps(2, 4), policy=PLAIN, iterations=1)
    vector.close()
    with pytest.raises(ValueError, match="is a vector that has been closed; make a new one"):
        train(vector, VPG(), collector=Steps(2, 4), policy=PLAIN, iterations=1)


class Odd(gym.vector.SyncVectorEnv):
    """A vector whose steps from the fifth on are changed by `spoil`."""

    def __init__(self, spoil):
        super().__init__([Counting] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
        self.spoil, self.steps = spoil, 0

    def step(self, actions):
        self.steps += 1
        found = super().step(actions)
        return self.spoil(found) if self.steps >= 5 else found


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda found: (*found[:4], {}),
            r"ended copy \d without its last observation in infos\['final_obs'\]",
        ),
        (lambda found: found[:4], "step returned 4 values and not observations, rewards"),
        (
            lambda found: (found[0], found[1][:1], *found[2:]),
            r"rewards of shape \(1,\) and not one for each of 2 copies",
        ),
        (
            lambda found: (found[0], np.array([1.0, 1e39]), *found[2:]),
            r"reward 1e\+39 in copy 1, which is not finite in single",
        ),
        (lambda found: (found[0], ["a", "b"], *found[2:]), "rewards = .* not of the kind float"),
    ],
    ids=["no final_obs", "four values", "short rewards", "reward beyond single precision", "words"],
)
def test_a_broken_vector_gets_its_sentence_and_keeps_what_was_learned(spoil, message):
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        train(Odd(spoil), VPG(), collector=Steps(2, 4), policy=PLAIN, iterations=20)
    assert caught.value.training.curves["return_mean"].shape[1] >= 1


def test_any_exception_keeps_what_was_learned(monkeypatch):
    """Also one that comes from elsewhere than the environment."""
    calls = []

    def breaks(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise MemoryError("no room")
        return gather(*arguments)

    gather = HostCollector.__call__
    monkeypatch.setattr(HostCollector, "__call__", breaks)
    with pytest.raises(MemoryError, match="no room") as caught:
        train(Counting, VPG(), collector=Steps(2, 4), policy=PLAIN, iterations=4)
    assert caught.value.training.curves["return_mean"].shape == (1, 2)


class Rich(Counting):
    """Pays so much that the sum over an episode overflows, though no single reward does."""

    def step(self, action):
        observation, _, *ended = super().step(action)
        return observation, 3e38, *ended


def test_an_infinite_return_reaches_no_target():
    with pytest.warns(UserWarning, match="batches have returns that are not finite"):
        run = train(Rich, VPG(), collector=Steps(2, 64), policy=PLAIN, iterations=12)
    assert run.curves["return_mean"].shape == (1, 10)  # every update fails, and ten are enough
    with pytest.warns(UserWarning, match="batches have returns that are not finite"):
        run = train(
            Rich, VPG(), collector=Steps(2, 64), policy=PLAIN, iterations=6, target_return=1e4
        )
    assert np.isfinite(run.curves["environment_steps"]).sum() == 6


@pytest.mark.parametrize(
    ("factory", "limit"),
    [
        (Counting, None),
        (lambda: gym.make("MountainCar-v0"), 200),
        (lambda: TimeLimit(Counting(), 7), 7),
        (lambda: FlattenObservation(TimeLimit(FlattenObservation(Counting()), 7)), 7),
        (lambda: TimeLimit(gym.make("MountainCar-v0"), 7), 7),
        (lambda: TimeLimit(gym.make("MountainCar-v0"), 500), 200),
    ],
)
def test_a_time_limit_inside_a_factory_is_seen(factory, limit):
    assert host(factory).max_steps == limit


def test_whole_episodes_are_as_long_as_the_time_limit_inside_a_factory():
    run = train(lambda: TimeLimit(gym.make("MountainCar-v0"), 7), VPG(), iterations=1)
    assert run.curves["length_mean"] == 7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make("Hoper-v5"), "env='Hoper-v5' is unknown; did you mean 'Hopper-v5'"),
        (lambda: make("Hopper-v5", engine="compiled"), "env='Hopper-v5' is unknown"),
        (lambda: make("Hopper-v5", engine="fast"), "engine='fast' is unknown"),
        (lambda: make("Hopper-v5", max_steps=0), "max_steps=0 is not a whole number"),
        (lambda: make("Hopper-v5", max_steps=-3), "max_steps=-3 is not a whole number"),
        (
            lambda: train(Counting, VPG(), iterations=1),
            "Counting has no time limit, and whole episodes need one",
        ),
        (
            lambda: train(
                vector_of(AutoresetMode.SAME_STEP)(3), VPG(), collector=Steps(2, 4), iterations=1
            ),
            "a vector of 3 copies",
        ),
        (
            lambda: HostCollector(
                host(vector_of(AutoresetMode.SAME_STEP)(2), max_steps=3), Steps(2, 4), (0,)
            ),
            "max_steps=3 cannot be kept by SyncVectorEnv, which resets itself",
        ),
        (
            lambda: host(vector_of(AutoresetMode.DISABLED)(2), workers=True),
            "workers=True needs a function",
        ),
    ],
)
def test_mistakes_are_named_at_construction(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.fixture
def on_cores(monkeypatch):
    """Two processes for copies of a MuJoCo environment, whatever cores there are."""
    monkeypatch.setattr("recollect.envs.core_vector.cores", lambda: 2)
    monkeypatch.setattr("recollect.envs.core_vector.core_numbers", lambda: core_numbers()[:1] * 2)
    return make("InvertedPendulum-v5", engine="gymnasium", max_steps=7)


def test_a_process_for_each_core_steps_as_one_process_does(on_cores):
    together = LocalVector(on_cores.make_checked, range(5))
    apart = CoreVector(on_cores.make_checked, 5)
    rng = np.random.default_rng(0)
    for vector in (together, apart):
        vector.reset([11, 12, 13, 14, 15])
    np.testing.assert_array_equal(together.observations, apart.observations)
    for t in range(20):
        actions = rng.uniform(-3, 3, (5, 1)).astype(np.float32)
        moving = rng.random(5) < 0.8
        one, other = (vector.step(actions, moving) for vector in (together, apart))
        for field, values in one._asdict().items():
            np.testing.assert_array_equal(values, getattr(other, field), err_msg=field)
        ended = one.terminated | one.truncated
        for vector in (together, apart):
            vector.restart(ended, lambda copy, t=t: 100 * t + copy)
        np.testing.assert_array_equal(together.observations, apart.observations)
    together.close()
    apart.close()
    assert all(worker.poll() is not None for worker in apart._workers)


def test_what_fails_in_a_process_for_a_core_is_named_and_all_end(on_cores):
    other = dataclasses.replace(on_cores, action_space=gym.spaces.Discrete(2))
    with pytest.raises(EnvironmentFailure, match="copy 0 of InvertedPendulum-v5 has other spaces"):
        CoreVector(other.make_checked, 3)
    vector = CoreVector(on_cores.make_checked, 3)
    vector._workers[1].kill()
    with pytest.raises(EnvironmentFailure, match="a process that steps environments died"):
        vector.reset([1, 2, 3])
    vector.close()
    assert all(worker.poll() is not None for worker in vector._workers)


def test_processes_are_for_mujoco_environments_of_gymnasium():
    assert make("Hopper-v5").on_cores
    assert not make("CartPole-v1", engine="gymnasium").on_cores
    assert not host(lambda: gym.make("Hopper-v5")).on_cores
    assert not host(vector_of(AutoresetMode.DISABLED)(2)).on_cores


def test_copies_that_were_made_are_closed_if_another_cannot_be():
    closed = []

    class Closing(Counting):
        def close(self):
            closed.append(self)

    def breaks(copy):
        if copy == 2:
            raise EnvironmentFailure("no more windows")
        return Checked(Closing(), "Closing", copy)

    with pytest.raises(EnvironmentFailure, match="no more windows"):
        LocalVector(breaks, range(4))
    assert len(closed) == 2


def test_a_missing_package_is_named_with_the_line_to_type(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ValueError, match=r"pip install 'recollect\[envpool\]'"):
        make("Hopper-v5", engine="envpool")


def test_workers_train_and_leave_no_process_behind():
    env = host(Counting, workers=True)
    run = train(env, VPG(), collector=Steps(2, 8), policy=PLAIN, iterations=2)
    apart = train(host(Counting), VPG(), collector=Steps(2, 8), policy=PLAIN, iterations=2)
    np.testing.assert_array_equal(run.curves["return_mean"], apart.curves["return_mean"])
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_an_error_within_ten_seconds():
    env = host(lambda: Spoiled(killed, at=3), name="Mortal", workers=True)
    collector = HostCollector(env, Steps(2, 8), (0,))
    arguments = policies_of(env)
    began = time.monotonic()
    try:
        with pytest.raises(
            EnvironmentFailure, match="Mortal, step 3: a worker process died during step"
        ):
            collector(*arguments, 0)
    finally:
        collector.close()
    assert time.monotonic() - began < 10
    assert not multiprocessing.active_children()


RAISES = """
import sys
sys.path.insert(0, {tests!r})
from hosted_envs import Spoiled, raising
from recollect import VPG, Architecture, Steps, host, train

if __name__ == "__main__":
    breaks = lambda: Spoiled(raising(RuntimeError("100% lost")), at=3)
    env = host(breaks, name="Breaks", workers=True)
    train(env, VPG(), collector=Steps(1, 4), policy=Architecture(widths=()), iterations=1)
"""


def test_an_exception_in_a_worker_is_one_sentence_and_no_module_of_the_directory_is_run(tmp_path):
    """As a script elsewhere: what lies in the directory is no part of its path."""
    script, here = tmp_path / "script.py", tmp_path / "here"
    script.write_text(RAISES.format(tests=str(Path(__file__).parent)))
    here.mkdir()
    for name in ("signal", "selectors", "pickle"):  # the first that a process imports
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()")
    found = subprocess.run([sys.executable, script], cwd=here, capture_output=True, text=True)
    assert not (tmp_path / "sprung").exists()
    *before, last = found.stderr.splitlines()
    expected = r"recollect\.\S+: copy \d of Breaks, step 3: step raised RuntimeError: 100% lost\."
    assert re.fullmatch(expected, last), found.stderr
    assert "Worker" not in found.stderr  # the one traceback is that of the script
    assert sum("Traceback" in line for line in before) == 1


UNGUARDED = """
import gymnasium as gym
from recollect import VPG, Steps, host, train

env = host(lambda: gym.make("CartPole-v1"), workers=True)
train(env, VPG(), collector=Steps(1, 4), iterations=1)
"""


def test_a_script_without_the_guard_is_told_so(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    found = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert found.returncode == 1
    last = found.stderr.splitlines()[-1]
    assert "CartPole" in last
    assert "a worker process died at its start" in last
    assert "if __name__ == '__main__':" in last


def test_what_a_worker_starts_finds_its_modules_as_ever(monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    env = host(SafePath, workers=True)
    vector = env.open(1, 0)
    try:
        assert "PYTHONSAFEPATH" not in os.environ
        vector.reset([0])
        assert vector.observations.tolist() == [[0.0]]
    finally:
        vector.close()


class SafePath(gym.Env):
    """Observes whether Python is told to leave the directory of a script out of its path."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.array(["PYTHONSAFEPATH" in os.environ], np.float32), {}


class Exploding(gym.Wrapper):
    """InvertedPendulum whose world is made to diverge in the fourth step of every second
    episode."""

    def __init__(self):
        super().__init__(gym.make("InvertedPendulum-v5", disable_env_checker=True))
        self.episode = 0

    def reset(self, **settings):
        self.episode, self.now = self.episode + 1, 0
        return self.env.reset(**settings)

    def step(self, action):
        self.now += 1
        if self.now == 4 and self.episode % 2 == 0:
            self.env.unwrapped.data.qvel[:] = 1e11
        observation, reward, _, _, info = self.env.step(action)
        return observation, reward, self.now == 6, False, info


@pytest.mark.filterwarnings("ignore:.*diverged")
def test_episodes_in_which_mujoco_reset_a_diverged_world_are_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log where it is
    env = host(Exploding, name="Exploding")
    collector = HostCollector(env, Steps(2, 40), (0,))
    ongoing, found = collector(*policies_of(env), 0)
    collector.close()
    assert ongoing.dropped.sum() == 8
    assert int(found.environment_steps[0]) == 80
    assert int(found.batch.mask.sum()) == 2 * 4 * 6  # of ten steps, six are in a sound episode
    with pytest.warns(
        UserWarning,
        match="episodes of Exploding were left out because the simulated world had diverged",
    ):
        train(env, VPG(), collector=Steps(2, 40), policy=PLAIN, iterations=1)


def test_the_normaliser_moves_without_bending_importance_ratios():
    """The weighted mean action of old data estimates the new policy's, which holds only if ratios
    are those of the two policies."""
    key = jax.random.key(0)
    observations = 5 + 2 * jax.random.normal(key, (4000, 1))
    network = eqx.tree_at(lambda n: n.layers[-1].weight, mlp(key, 1, 1, ()), jnp.array([[0.5]]))
    old = Policy(network, Gaussian(jnp.zeros(1)), Normaliser.fresh(1))
    actions = jax.vmap(old.sample)(jax.random.split(key, 4000), observations)
    log_probs = jax.vmap(old.log_prob)(observations, actions)
    moved, _ = old.seeing(observations, jnp.ones(4000, bool))
    np.testing.assert_array_equal(
        flatten(moved)[0], flatten(old)[0]
    )  # statistics are no parameters
    np.testing.assert_allclose(moved.normaliser.units.mean, observations.mean(0), rtol=1e-5)

    target = float(jax.vmap(moved.mode)(observations).mean())
    ours = jnp.exp(score_matrix(moved, observations, actions)[0] - log_probs)
    # A naive buffer keeps what the network saw, and the network itself has not changed: its
    # ratios are all one.
    stored = jax.vmap(old.normalise)(observations)
    seen = jax.vmap(lambda s, a: moved.head.log_prob(moved.network(s), a))(stored, actions)
    naive = jnp.exp(seen - log_probs)
    estimate = lambda weights: (
        float((weights * actions[:, 0]).sum() / weights.sum()),
        float(jnp.std(actions) / jnp.sqrt(weights.sum() ** 2 / (weights**2).sum())),
    )
    (mean, error), (naive_mean, naive_error) = estimate(ours), estimate(naive)
    assert abs(mean - target) < 4 * error
    assert abs(naive_mean - target) > 20 * naive_error


def test_a_normalised_policy_learns_and_its_statistics_are_those_of_the_data():
    run = train(
        Counting,
        RPG(window=2),
        collector=Steps(2, 64),
        policy=Architecture(widths=(4,), normalise=True),
        iterations=3,
    )
    normaliser = run.policy().normaliser
    assert float(normaliser.seen) == 3 * 2 * 64
    assert 2 < float(normaliser.units.mean[1]) < 15


class Convolution(eqx.Module):
    """A small convolution over flat observations that are images."""

    filters: eqx.nn.Conv2d
    last: eqx.nn.Linear
    shape: tuple[int, int, int] = eqx.field(static=True)

    def __init__(self, key, shape, outputs):
        key_filters, key_last = jax.random.split(key)
        height, width, channels = shape
        self.filters = eqx.nn.Conv2d(channels, 2, 2, key=key_filters)
        self.last = eqx.nn.Linear(2 * (height - 1) * (width - 1), outputs, key=key_last)
        self.shape = shape

    def __call__(self, observation):
        image = observation.reshape(self.shape).transpose(2, 0, 1)
        return self.last(jax.nn.relu(self.filters(image)).ravel())


def test_a_network_of_ones_own_trains():
    images = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    start = lambda key: Policy(
        Convolution(key, images.shape, 2), Gaussian(jnp.zeros(2)), Normaliser.fresh(48)
    )
    settings = dict(advantages=Returns(), damping=0.1)
    run = train(
        lambda: Anything(images, spaces.Box(-1, 1, (2,))),
        RTRPO(window=2, **settings),
        collector=Steps(2, 8),
        policy=start,
        iterations=2,
    )
    assert np.isfinite(flatten(run.policies)[0]).all()
    with pytest.raises(
        ValueError,
        match=r"ExpectedFisher needs a Policy with an MLP.* and not Convolution; use ScoreFisher",
    ):
        train(
            lambda: Anything(images, spaces.Box(-1, 1, (2,))),
            RTRPO(fisher=ExpectedFisher(), **settings),
            policy=start,
            collector=Steps(2, 8),
            iterations=1,
        )


def test_envpool_steps_what_gymnasium_steps():
    pytest.importorskip(
        "envpool", reason="EnvPool takes 700 MB; pip install 'recollect[envpool]' to test with it"
    )
    env = make("InvertedPendulum-v5", engine="envpool")
    run = train(env, VPG(), collector=Steps(4, 32), policy=PLAIN, iterations=2)
    assert (run.curves["return_mean"] > 2).all()
    collector = HostCollector(env, Steps(4, 64), (0,))
    batch = collector(*policies_of(env), 0)[1].batch
    collector.close()
    mask, going = (
        np.asarray(batch.mask[0]),
        np.asarray(batch.mask[0, :, :-1] & batch.mask[0, :, 1:] & ~batch.terminated[0, :, :-1]),
    )
    np.testing.assert_array_equal(
        np.asarray(batch.next_observations[0, :, :-1])[going],
        np.asarray(batch.observations[0, :, 1:])[going],
    )
    assert (~mask).any()  # the steps with which EnvPool resets are no transitions
