"""Collecting in other processes: the same batches, whoever gathers them and whoever dies."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import RNPG

from recollect import (
    Architecture,
    EnvironmentFailure,
    Episodes,
    Local,
    PolicyRatio,
    Ray,
    Returns,
    Steps,
    host,
    make,
    resume,
    tasks_on,
    train,
)
from recollect.cli.machines import Machines, Tasks, answers
from recollect.cli.plan import find_module
from recollect.collect.elsewhere import Elsewhere
from recollect.collect.gathering import Here
from recollect.keys import seed_keys
from recollect.machines import ActorDied, map_kept, map_tasks, tasks_at_once, tasks_kept
from recollect.machines.packing import packed, unpacked
from recollect.policies.architecture import make_policy
from recollect.run.checkpoint import named_arrays, read, write
from recollect.run.hosted import HostRun
from recollect.run.state import CorePool, Limits
from recollect.runtime import cores

SEEDS = (3, 8)
ALGORITHM = RNPG(window=3, advantages=Returns())
POLICY = Architecture(widths=(4,))
COLLECTORS = {"steps": Steps(3, 12), "episodes": Episodes(3)}


class Counting(gym.Env):
    """Counts its steps; every episode is as long as a number drawn at its reset says.

    Args:
        killed_at: kills its own process in this step of an episode, if `marker` is not there.
        marker: a file, made then.
        forgetful: does not do the same after the same seed and actions.
        broken_at: gives back a wrong reward in this step of an episode.
        hangs_at: sleeps for an hour in this step of an episode.
        seconds: that a step takes.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gym.spaces.Discrete(2)
    resets = 0

    def __init__(
        self, killed_at=-1, marker=None, forgetful=False, broken_at=-1, hangs_at=-1, seconds=0
    ):
        self.killed_at = killed_at
        self.marker = marker
        self.forgetful = forgetful
        self.broken_at = broken_at
        self.hangs_at = hangs_at
        self.seconds = seconds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Counting.resets += 1
        self.length = int(self.np_random.integers(8, 30))
        self.now = 0
        self.sum = float(self.np_random.random())
        return self._observed(), {}

    def step(self, action):
        self.now += 1
        time.sleep(3600 if self.now == self.hangs_at else self.seconds)
        if self.now == self.killed_at:
            with contextlib.suppress(FileExistsError):  # of two at once, one makes the file
                self.marker.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        self.sum += (1 + action) * float(self.np_random.random())
        reward = np.nan if self.now == self.broken_at else self.sum
        return self._observed(), reward, self.now >= self.length, False, {}

    def _observed(self):
        kept = Counting.resets + os.getpid() if self.forgetful else 0
        return np.array([self.now, self.sum, kept], np.float32)


def training(collector, on=None, iterations=3, out=None, step_timeout=None, **changed):
    limits = dict(workers=step_timeout is not None, step_timeout=step_timeout)
    env = host(lambda: Counting(**changed), max_steps=40, **limits)
    settings = dict(collector=collector, policy=POLICY, seeds=SEEDS, iterations=iterations)
    return train(env, ALGORITHM, on=on, out=out, **settings)


def assert_same(one, other):
    """In all that both have measured; waiting times differ."""
    names = set(one.curves) & set(other.curves) - {"learner_waited", "actors_waited"}
    for name in names:
        np.testing.assert_array_equal(one.curves[name], other.curves[name], err_msg=name)
    jax.tree.map(
        np.testing.assert_array_equal, named_arrays(one.policies), named_arrays(other.policies)
    )


@pytest.mark.parametrize("name", COLLECTORS)
def test_actors_gather_what_is_gathered_here_also_when_one_is_killed(name, tmp_path):
    here = training(COLLECTORS[name])
    elsewhere = training(COLLECTORS[name], Local(actors=2), killed_at=7, marker=tmp_path / "killed")
    assert (tmp_path / "killed").exists()
    assert_same(here, elsewhere)
    assert elsewhere.curves["units_repeated"].sum(1).tolist() == [1, 1]
    assert not elsewhere.curves["episodes_restarted"].any()
    assert not elsewhere.curves["lag"].any()
    assert (elsewhere.curves["learner_waited"] > 0).all()
    assert set(elsewhere.curves) - set(here.curves) == {
        "lag",
        "units_repeated",
        "episodes_restarted",
        "learner_waited",
        "actors_waited",
    }


def test_a_run_begun_here_goes_on_elsewhere(tmp_path):
    whole = training(COLLECTORS["steps"], iterations=4)
    training(COLLECTORS["steps"], iterations=2, out=tmp_path)
    env = host(Counting, max_steps=40)
    there = resume(tmp_path, env=env, on=Local(actors=1), iterations=4)
    lag = there.curves.pop("lag")
    np.testing.assert_array_equal(np.isnan(lag), [[True, True, False, False]] * 2)
    for name in ("units_repeated", "episodes_restarted"):
        there.curves.pop(name)
    assert_same(whole, there)
    with pytest.raises(ValueError, match="lag=1 differs from the run, which has 0"):
        resume(tmp_path, env=env, on=Local(lag=1), iterations=5)


def test_the_independent_batch_is_gathered_as_well():
    env = host(Counting, max_steps=40)
    policies = [make_policy(key, env, POLICY) for key in seed_keys(SEEDS)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *policies)
    collector = Steps(5, 12)
    elsewhere = Elsewhere(env, collector, SEEDS, 2, Local(actors=2, group=2))
    found = []
    for gathering in (Here(env, collector, SEEDS, 2), elsewhere):
        with contextlib.closing(gathering):
            gathering.begin(stacked, seed_keys(SEEDS))
            hosted = (None, None)
            for iteration in range(2):
                keys = [seed_keys((iteration, 10 * stream + 1)) for stream in range(2)]
                gathering.ask(stacked, keys, iteration, iteration)
                hosted, rollouts, _ = gathering.receive(hosted)
        found.append((hosted, rollouts))
    jax.tree.map(np.testing.assert_array_equal, *found)
    first, second = found[0][1]
    assert not np.array_equal(first.batch.observations, second.batch.observations)


@contextlib.contextmanager
def opened(on):
    env = host(Counting, max_steps=40)
    with CorePool(len(SEEDS)) as pool:
        shared = (env, ALGORITHM, Steps(3, 12), Limits(np.inf, np.inf), POLICY)
        run = HostRun(*shared, SEEDS, seed_keys(SEEDS), pool, on)
        try:
            yield run
        finally:
            run.close()


def test_with_a_lag_older_policies_act_reproducibly_and_a_stopped_run_goes_on(tmp_path):
    lag = 2
    with opened(Local(actors=2, lag=lag)) as run:
        states = [run.start()]
        curves = []
        for _ in range(5):
            state, chunk = run.advance(states[-1], 1)
            states.append(state)
            curves.append(chunk)
    found = [chunk["lag"][0, 0] for chunk in curves]
    assert found == [0, 1, 2, 2, 2]
    for i in range(1, 6):
        # The newest batch of a state, and the policies that should have acted in it.
        newest = jax.tree.map(lambda x: x[:, 0], states[i].seeds.state.history.batches)
        acted = states[max(i - 1 - lag, 0)].policies
        again = _log_probs(acted, newest)
        np.testing.assert_allclose(newest.log_probs[newest.mask], again[newest.mask], atol=1e-6)
        if i > 2:
            other = _log_probs(states[i - 1].policies, newest)
            assert np.abs(other - newest.log_probs)[newest.mask].max() > 1e-4
    path = tmp_path / "run.zip"
    write(path, named_arrays(states[2].tree()), {"iteration": 2})
    with opened(Local(actors=1, lag=lag, group=3)) as run:
        arrays, facts = read(path)
        state = run.restore(arrays, facts["iteration"])
        for _ in range(3):
            state, _ = run.advance(state, 1)
    expected = named_arrays(states[5].tree())
    jax.tree.map(np.testing.assert_array_equal, named_arrays(state.tree()), expected)


@eqx.filter_jit
def _log_probs(policies, batches):
    of_seed = lambda policy, batch: jax.vmap(jax.vmap(policy.log_prob))(
        batch.observations, batch.actions
    )
    return eqx.filter_vmap(of_seed, in_axes=(eqx.if_array(0), 0))(policies, batches)


def test_episodes_that_cannot_be_repeated_begin_anew_and_are_marked(tmp_path):
    changed = dict(killed_at=7, marker=tmp_path / "killed", forgetful=True)
    with pytest.warns(UserWarning, match="unfinished episodes of Counting could not be repeated"):
        run = training(Steps(3, 5), Local(actors=1), **changed)
    assert run.curves["episodes_restarted"][0].sum() > 0
    assert run.curves["environment_steps"][:, -1].tolist() == [45, 45]


def test_an_environment_that_fails_ends_training_and_keeps_what_was_learned():
    with pytest.raises(
        EnvironmentFailure, match=r"copy . of Counting, step 7: .*reward nan"
    ) as one:
        training(Steps(3, 5), Local(actors=2, lag=1), broken_at=7)
    assert one.value.training.curves["return_mean"].shape == (2, 1)


def test_an_environment_that_hangs_in_an_actor_ends_training():
    says = r"copy . of Counting, step 7: step took longer than step_timeout=2 seconds"
    with pytest.raises(EnvironmentFailure, match=says):
        training(Steps(3, 5), Local(actors=2), step_timeout=2.0, hangs_at=7)


def test_mistakes_are_named():
    vector = gym.vector.SyncVectorEnv([Counting] * 6)
    settings = dict(iterations=1, collector=Steps(3, 5))
    mistakes = {
        "actors=0 is not a whole number": lambda: Local(actors=0),
        "group=0 is not a whole number": lambda: Ray(group=0),
        "lag=-1 is negative; give 0": lambda: Ray(lag=-1),
        "CartPole is compiled; leave it out": lambda: train(
            "CartPole-v1", ALGORITHM, on=Local(), **settings
        ),
        "SyncVectorEnv is a vector that exists already": lambda: train(
            vector, ALGORITHM, seeds=2, on=Local(), **settings
        ),
        r"lag=1: weights=Remembering\(\) remembers the policy": lambda: train(
            Counting, RNPG(weights=Remembering()), on=Local(lag=1), **settings
        ),
        "cluster='here' is neither auto nor HOST:PORT": lambda: Ray(cluster="here").connect(),
        r"cluster='127\.0\.0\.1:9' cannot be reached": lambda: Ray(cluster="127.0.0.1:9").connect(),
    }
    for message, mistake in mistakes.items():
        with pytest.raises(ValueError, match=message):
            mistake()


def test_what_is_no_ray_cluster_is_not_waited_for():
    """Ray waits for minutes, and then ends the process."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ValueError, match="something else than Ray answers there"):
            Ray(cluster=address).connect()


class Remembering(PolicyRatio):
    """Remembers something of the policy that acted."""

    def remember(self, memory, batches, policy):
        return memory


def test_an_actor_answers_raises_and_dies():
    session = Local(actors=1).connect()
    actor = session.actor(Answering)
    assert [actor.ask("add", i).result() for i in range(3)] == [0, 1, 3]
    with pytest.raises(EnvironmentFailure, match="broken"):
        actor.ask("fail", EnvironmentFailure("broken")).result()
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*Unsendable"):
        actor.ask("fail_unsendably").result()
    pending = [actor.ask("die"), actor.ask("add", 1)]
    for future in pending:
        with pytest.raises(ActorDied, match="ended with status -9"):
            future.result(timeout=60)
    session.close()


class Unsendable(Exception):
    def __reduce__(self):
        raise TypeError("not even pickled")


class Answering:
    """An object of this file, which no other process can import."""

    total = 0

    def add(self, number):
        self.total += number
        return self.total

    def fail(self, error):
        raise error

    def fail_unsendably(self):
        raise Unsendable

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"cannot be sent to another process: .* inside the func"):
        packed(lambda: lock)
    assert unpacked(packed(Answering))().add(2) == 2


SCRIPT = """
from beside import make
import recollect as rc

if __name__ == "__main__":
    session = rc.Local(actors=1).connect()
    print(session.actor(make).ask("index", 3).result(), flush=True)
    session.close()
"""
BESIDE = """
numbers = [1, 2, 3]
def make():
    return list(numbers)
"""


def test_a_file_beside_the_script_travels_and_the_current_directory_is_not_searched(tmp_path):
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w').close()"
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "main.py").write_text(SCRIPT)
    (tmp_path / "script" / "beside.py").write_text(BESIDE)
    (tmp_path / "wave.py").write_text(trap)
    (tmp_path / "jax.py").write_text(trap)
    program = [sys.executable, str(tmp_path / "script" / "main.py")]
    result = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout == "2\n", result.stderr
    assert not (tmp_path / "sprung").exists()


def test_ray_is_imported_when_it_is_asked_for_and_the_line_to_type_named_if_it_is_missing():
    program = """
import sys
import recollect.public
assert "ray" not in sys.modules
sys.modules["ray"] = None
try:
    recollect.Ray().connect()
except ValueError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == (
        "on=Ray needs a package that is not installed; pip install 'recollect[ray]'.\n"
    ), result.stderr


def test_tasks_are_done_on_the_machines_of_their_context():
    assert tasks_at_once() == cores()
    with tasks_on(Local(actors=1)):
        assert tasks_at_once() == 1
        arrived = []
        asked = [-3, -1, -2]
        results = map_tasks(abs, asked, arrived=lambda *result: arrived.append(result))
        assert results == [3, 1, 2]
        assert sorted(arrived) == [(0, 3), (1, 1), (2, 2)]
        with pytest.raises(ValueError, match="invalid literal"):
            map_tasks(int, ["1", "one", "2"], arrived=lambda *result: arrived.append(result))
        assert arrived[3] == (0, 1)  # what had arrived before the failure
        assert map_tasks(eval, ["__import__('os').getpid()"]) != [os.getpid()]
    assert tasks_at_once() == cores()


def done_once(task):
    """Twice a number, which has to be one; may be asked for once."""
    folder, word = task
    (folder / word).touch(exist_ok=False)
    return {"twice": 2 * int(word), "name": np.array(word)}


@pytest.mark.parametrize("apart", [True, False])
def test_tasks_that_are_kept_are_not_done_again(apart, tmp_path):
    done = tmp_path / "done"
    done.mkdir()
    tasks = [(done, word) for word in ("3", "one", "2")]
    with tasks_on(Local(actors=1)), tasks_kept(tmp_path / "kept"):
        with pytest.raises(ValueError, match="invalid literal"):
            map_kept(done_once, tasks, apart)
        found = map_kept(done_once, [tasks[2], tasks[0]], apart)
        assert [int(arrays["twice"]) for arrays in found] == [4, 6]
        assert [arrays.keys() for arrays in found] == [{"twice", "name"}] * 2
    with pytest.raises(FileExistsError):
        map_kept(done_once, tasks[:1], apart)


def test_the_longest_tasks_are_begun_first():
    begun = []

    def square(task):
        begun.append(task)
        return {"square": task**2}

    found = map_kept(square, [2, 5, 3], apart=False, work=lambda task: task)
    assert begun == [5, 3, 2]
    assert [int(arrays["square"]) for arrays in found] == [4, 25, 9]


def test_flags_say_where_environments_are_stepped():
    assert Machines().chosen() is None
    assert Machines(on="local", actors=3, lag=1).chosen() == Local(actors=3, lag=1)
    assert Machines(on="ray", cluster="auto").chosen() == Ray(cluster="auto")
    assert Tasks().chosen() == Local()
    assert Tasks(on="ray", cluster="auto").chosen() == Ray(cluster="auto")
    mistakes = {
        "--lag 1 says how other processes": Machines(lag=1),
        "--actors 2 says how other processes": Machines(actors=2),
        "--cluster auto goes with --on ray": Machines(on="local", cluster="auto"),
        "--cluster here goes with --on ray": Tasks(cluster="here"),
    }
    for message, flags in mistakes.items():
        with pytest.raises(ValueError, match=message):
            flags.chosen()


def test_nothing_comes_between_a_program_and_its_answer(capfd):
    with answers(apart=True) as out:
        print("a node died")
        os.write(1, b"and so did another\n")
        print("{}", file=out)
    print("afterwards")
    found = capfd.readouterr()
    assert found.out == "{}\nafterwards\n"
    assert "a node died" in found.err
    assert "so did another" in found.err


OWN = """
import gymnasium as gym
import numpy as np

gym.register("Own-v0", f"{__name__}:Own", max_episode_steps=40)

class Own(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observed(), {}

    def step(self, action):
        return self._observed(), float(action), False, False, {}

    def _observed(self):
        return self.np_random.random(3).astype(np.float32)
"""


def test_an_environment_of_a_file_that_only_this_process_finds_is_made_in_actors(
    tmp_path, monkeypatch, request
):
    """As `recollect train vpg own_env:Own-v0 --on local`, in the folder of own_env.py."""
    (tmp_path / "own_env.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    request.addfinalizer(lambda: (gym.registry.pop("Own-v0"), sys.modules.pop("own_env")))
    find_module("own_env:Own-v0")
    assert sys.path[-1] == str(tmp_path)
    env = make("own_env:Own-v0")
    assert env.by_value().factory.name.entry_point is sys.modules["own_env"].Own
    settings = dict(collector=Episodes(2), policy=POLICY, iterations=1)
    run = train(env, ALGORITHM, on=Local(actors=1), **settings)
    assert_same(run, train(env, ALGORITHM, **settings))
