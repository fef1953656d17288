"""Collecting on a Ray cluster of two nodes, which are processes of this machine.

All traffic stays on the loopback interface: the variable below has that effect, also on Linux.
"""

import os
import signal
import subprocess
import sys
import time

import pytest
from test_machines import COLLECTORS, Counting, assert_same, training

from recollect import EnvironmentFailure, Local, Ray

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
HEALTH = dict(
    health_check_initial_delay_ms=0,
    health_check_period_ms=500,
    health_check_timeout_ms=500,
    health_check_failure_threshold=3,
)


@pytest.fixture(scope="module")
def cluster():
    """A head without CPUs and two nodes with two each."""
    before = {name: os.environ.get(name) for name in LOOPBACK}
    os.environ.update(LOOPBACK)
    from ray.cluster_utils import Cluster

    address = dict(node_ip_address="127.0.0.1")
    head = dict(num_cpus=0, include_dashboard=False, _system_config=HEALTH, **address)
    one = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        one.add_node(num_cpus=2, **address)
    yield one
    one.shutdown()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def test_a_cluster_gathers_what_is_gathered_here_also_when_an_actor_is_killed(cluster, tmp_path):
    here = training(COLLECTORS["steps"])
    changed = dict(killed_at=7, marker=tmp_path / "killed")
    there = training(COLLECTORS["steps"], Ray(actors=3, cluster=cluster.address), **changed)
    assert (tmp_path / "killed").exists()
    assert_same(here, there)
    assert there.curves["units_repeated"].sum(1).tolist() == [1, 1]


class Waiting(Counting):
    """Takes its time, so that a machine can be lost meanwhile."""

    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


def test_map_and_a_lost_node(cluster):
    """A node that goes away takes tasks and actors with it; others do their work."""
    session = Ray(actors=4, cluster=cluster.address).connect()
    try:
        assert session.actors == 4
        assert session.map(abs, [-3, -1, -2], at_once=2) == [3, 1, 2]
        with pytest.raises(ValueError, match="invalid literal"):
            session.map(int, ["1", "one"])
        with pytest.raises(EnvironmentFailure, match="broken"):
            session.map(fail, [EnvironmentFailure("broken")])
        lost = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", resources={"lost": 1})
        # ...
    finally:
        session.close()


def fail(error):
    raise error
