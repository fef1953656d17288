"""Collecting on a Ray cluster of two nodes, which are processes of this machine.

All traffic stays on the loopback interface: the first variable below has that effect, also on
Linux.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from test_machines import COLLECTORS, POLICY, Counting, assert_same, training

from recollect import RPG, Ray, host, tune

VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
# A node that has gone answers no check, and is given up after five. One that a busy machine holds
# up has as many times five seconds.
HEALTH = dict(
    health_check_initial_delay_ms=0,
    health_check_period_ms=500,
    health_check_timeout_ms=5000,
    health_check_failure_threshold=5,
)


@pytest.fixture
def cluster(monkeypatch):
    """A head without CPUs and two nodes with two each."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    from ray.cluster_utils import Cluster

    here = dict(node_ip_address="127.0.0.1")
    head = dict(num_cpus=0, include_dashboard=False, _system_config=HEALTH, **here)
    # Ray gives a node half a minute to start, which can be short on a machine that is busy.
    for tries_left in (2, 1, 0):
        one = Cluster()
        try:
            one.add_node(**head)
            nodes = [one.add_node(num_cpus=2, **here) for _ in range(2)]
            break
        except Exception:
            one.shutdown()
            if not tries_left:
                raise
    yield one, nodes
    one.shutdown()


def test_a_cluster_gathers_what_is_gathered_here_though_an_actor_and_a_node_die(
    cluster, tmp_path, monkeypatch
):
    address = cluster[0].address
    marker = tmp_path / "killed"

    def lose_a_node():
        while not marker.exists():
            time.sleep(0.1)
        cluster[0].remove_node(cluster[1][1], allow_graceful=False)

    losing = threading.Thread(target=lose_a_node)
    losing.start()
    changed = dict(killed_at=7, marker=marker, seconds=0.05)
    there = training(COLLECTORS["steps"], Ray(actors=4, cluster=address), iterations=6, **changed)
    losing.join()
    assert_same(training(COLLECTORS["steps"], iterations=6), there)
    assert there.curves["units_repeated"][0].sum() >= 2
    assert not there.curves["episodes_restarted"].any()

    with pytest.warns(UserWarning, match="actors=4, but the Ray cluster has 2 CPUs"):
        session = Ray(actors=4, cluster=address).connect()
    try:
        assert session.actors == 2
        assert session.map(abs, [-3, -1, -2], at_once=2) == [3, 1, 2]
        with pytest.raises(ValueError, match="invalid literal"):
            session.map(int, ["1", "one"])
        found = session.map(Surroundings(), [None] * 3)
        assert found == [(1, "1")] * 3
        # The current directory is not where actors look for modules first.
        paths = session.actor(Paths).ask("searched").result(timeout=60)
        assert os.getcwd() not in paths[:-1]
        there, here = tuning(Ray(actors=1)), tuning()
        of = lambda found: [(one.outcome, one.value, one.values) for one in found.trials]
        assert of(there) == of(here)
        np.testing.assert_array_equal(there.curves["tuned"], here.curves["tuned"])
    finally:
        session.close()
    monkeypatch.setattr(sys.modules["ray"], "__version__", "2.1.0")
    with pytest.raises(ValueError, match=r"runs other versions. .* Ray: 2\.1\.0"):
        Ray(cluster=address).connect()


def tuning(on=None):
    """A search of two trials, in an environment that an actor cannot import."""
    env = host(Counting, max_steps=40)
    batch = dict(collector=COLLECTORS["steps"], policy=POLICY, environment_steps=72)
    return tune(env, RPG(window=2), trials=2, seeds=1, held_back=1, on=on, **batch)


class Surroundings:
    """What a task sees: one core, as its processes are not restricted to some."""

    def __call__(self, task):
        from recollect.runtime import cores

        return cores(), os.environ["PJRT_NPROC"]


class Paths:
    def searched(self):
        return sys.path


DRIVER = """
import os, time
import gymnasium as gym
import recollect as rc

class Slow(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        open(os.environ["RECOLLECT_TEST"] + "/stepped", "a").close()
        time.sleep(0.2)
        return self.observation_space.sample(), 1.0, False, False, {}

if __name__ == "__main__":
    rc.train(Slow, "vpg", collector=rc.Steps(2, 1000), iterations=1, on=rc.Ray(actors=2))
"""


def test_nothing_is_left_when_the_driver_is_killed(tmp_path):
    """Neither the cluster that it had started, nor an actor in the middle of a step."""
    (tmp_path / "driver.py").write_text(DRIVER)
    stepped = tmp_path / "stepped"
    # A variable by which all processes of this cluster are known.
    environment = {**os.environ, "RECOLLECT_TEST": str(tmp_path)}
    driver = subprocess.Popen([sys.executable, str(tmp_path / "driver.py")], env=environment)
    try:
        until(stepped.exists, 300)
        assert len(processes_with(str(tmp_path))) > 5
        assert open_to_others(processes_with(str(tmp_path))) == []
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    # Two seconds; Ray alone takes up to a minute.
    with contextlib.suppress(AssertionError):
        until(lambda: not processes_with(str(tmp_path)), 20)
    assert processes_with(str(tmp_path)) == {}


def until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def processes_with(word):
    """Processes in whose environment a word stands: their ids and names."""
    found = {}
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if name.isdigit() and word.encode() in file.read():
                    found[int(name)] = Path(f"/proc/{name}/stat").read_text()[:40]
        except OSError:
            continue
    return found


def open_to_others(processes):
    """Addresses at which some processes listen beyond the loopback interface."""
    sockets = set()
    for process in processes:
        try:
            links = [
                os.readlink(f"/proc/{process}/fd/{fd}") for fd in os.listdir(f"/proc/{process}/fd")
            ]
        except OSError:
            continue
        sockets |= {link[8:-1] for link in links if link.startswith("socket:[")}
    found = []
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                listens = words[3] == "0A" and words[9] in sockets
                if listens and words[1].split(":")[0] not in loopback:
                    found.append(words[1])
    return found
