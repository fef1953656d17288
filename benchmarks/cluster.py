"""What a Ray cluster costs and gains, with environments that sleep: `python benchmarks/cluster.py`.

The cluster is several nodes on this machine, on the loopback interface alone. Environments sleep
instead of computing, so that eight actors need no eight cores; the time that is left beside the
sleep is what Ray, the policy and Python take. Writes `cluster.json` beside this file after every
measurement; names given as arguments choose some of them.
"""

import functools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

# Before Ray is imported: loopback only, nothing reported, actors not slower than others.
os.environ.update(
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0"
)

import gymnasium as gym
import jax
import numpy as np

from recollect import Architecture, Ray, Steps, host
from recollect.collect.elsewhere import Elsewhere
from recollect.collect.gathering import Here
from recollect.keys import seed_keys
from recollect.policies.architecture import make_policy

HEALTH = dict(
    health_check_initial_delay_ms=0,
    health_check_period_ms=500,
    health_check_timeout_ms=500,
    health_check_failure_threshold=3,
)
RESULTS = Path(__file__).with_suffix(".json")
FEATURES = 17
"""Numbers in an observation, as HalfCheetah has."""


class Sleeping(gym.Env):
    """Sleeps in every step, and kills its process once if it is told to."""

    observation_space = gym.spaces.Box(-1, 1, (FEATURES,))
    action_space = gym.spaces.Box(-1, 1, (6,))

    def __init__(self, seconds, marker=None, kill=False):
        self.seconds = seconds
        self.marker = marker
        self.kill = kill

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        time.sleep(self.seconds)
        if self.marker is not None and not self.marker.exists():
            self.marker.touch()
            if self.kill:
                os.kill(os.getpid(), 9)
        return self._seen(), float(action.sum()), False, False, {}

    def _seen(self):
        return self.np_random.uniform(-1, 1, FEATURES).astype(np.float32)


def cluster(cpus):
    """A head without CPUs and nodes with some each; the cluster and its nodes."""
    from ray.cluster_utils import Cluster

    here = dict(node_ip_address="127.0.0.1")
    head = dict(num_cpus=0, include_dashboard=False, _system_config=HEALTH, **here)
    one = Cluster(initialize_head=True, head_node_args=head)
    return one, [one.add_node(num_cpus=number, **here) for number in cpus]


class Driver:
    """Asks for batches as a run does, with a policy that stays as it is."""

    def __init__(self, gathering, env):
        self.gathering = gathering
        self.keys = seed_keys((0,))
        policy = make_policy(self.keys[0], env, Architecture(widths=(64, 64)))
        stack = lambda x: x[None] if isinstance(x, jax.Array) else x
        self.policies = jax.tree.map(stack, policy)
        gathering.begin(self.policies, self.keys)
        self.asked = 0
        self.hosted = (None,)

    def iteration(self, ahead=0, learning=0.0):
        """Seconds of one iteration, which asks for some batches more than it receives."""
        began = time.perf_counter()
        while self.asked <= self.received + ahead:
            keys = [jax.vmap(lambda key: jax.random.fold_in(key, self.asked))(self.keys)]
            self.gathering.ask(self.policies, keys, self.asked, self.asked)
            self.asked += 1
        self.hosted, rollouts, self.figures = self.gathering.receive(self.hosted)
        self.batch = jax.block_until_ready(rollouts[0].batch)
        time.sleep(learning)
        self.received += 1
        return time.perf_counter() - began

    received = 0


def opened(address, actors, copies, steps, **how):
    env = host(lambda: Sleeping(**how), name="Sleeping")
    machines = Ray(actors=actors, group=1, cluster=address)
    return Driver(Elsewhere(env, Steps(copies, steps), (0,), 1, machines), env)


def speed(address, actors, milliseconds, steps=40, iterations=8):
    """Seconds of an iteration on the cluster and in one process, and how much sleep alone takes."""
    seconds = milliseconds / 1000
    driver = opened(address, actors, actors, steps, seconds=seconds)
    driver.iteration()
    there = [driver.iteration() for _ in range(iterations)]
    driver.gathering.close()
    env = host(lambda: Sleeping(seconds), name="Sleeping")
    alone = Driver(Here(env, Steps(actors, steps), (0,), 1), env)
    alone.iteration()
    here = alone.iteration()
    alone.gathering.close()
    best, middle = min(there), statistics.median(there)
    return dict(
        actors=actors,
        milliseconds=milliseconds,
        sleep_ms=1000 * steps * seconds,
        median_ms=1000 * middle,
        best_ms=1000 * best,
        overhead_ms=1000 * (middle - steps * seconds),
        one_process_ms=1000 * here,
        speed_up=here / middle,
        best_speed_up=here / best,
    )


def lag(address, milliseconds=10, steps=40, iterations=10):
    """Iterations a second with lag 1 over those with lag 0; learning takes as long as collecting.

    Learning is a sleep here, so that nothing but the order of things is measured.
    """
    seconds = {}
    for ahead in (0, 1):
        driver = opened(address, 4, 4, steps, seconds=milliseconds / 1000)
        collecting = min(driver.iteration() for _ in range(3))
        driver.iteration(ahead, collecting)
        times = [driver.iteration(ahead, collecting) for _ in range(iterations)]
        seconds[ahead] = statistics.median(times)
        driver.gathering.close()
    return dict(
        lag_0_ms=1000 * seconds[0], lag_1_ms=1000 * seconds[1], ratio=seconds[0] / seconds[1]
    )


def killed(address, folder, milliseconds=10, steps=40):
    """Seconds that an actor's death costs, and whether the batches stay the same."""
    marker = folder / "killed"
    batches = []
    for kill in (False, True):
        marker.unlink(missing_ok=True)
        driver = opened(address, 4, 4, steps, seconds=milliseconds / 1000, marker=marker, kill=kill)
        times = []
        found = []
        for _ in range(4):
            times.append(driver.iteration())
            found.append(jax.tree.map(np.asarray, driver.batch))
        driver.gathering.close()
        batches.append(found)
    same = jax.tree.map(np.array_equal, *batches)
    return dict(
        lost_seconds=times[0] - statistics.median(times[1:]), same=all(jax.tree.leaves(same))
    )


def lost_node(one, folder, milliseconds=20, steps=50):
    """The same for a node that goes away without a word while its actors step."""
    marker = folder / "begun"
    batches = []
    for lose in (False, True):
        marker.unlink(missing_ok=True)
        node = one.add_node(num_cpus=2, node_ip_address="127.0.0.1")
        driver = opened(one.address, 6, 6, steps, seconds=milliseconds / 1000, marker=marker)
        marker.unlink(missing_ok=True)
        found = []

        def remove(node=node):
            while not marker.exists():
                time.sleep(0.01)
            one.remove_node(node, allow_graceful=False)

        thread = threading.Thread(target=remove)
        if lose:
            thread.start()
        times = []
        for _ in range(3):
            times.append(driver.iteration())
            found.append(jax.tree.map(np.asarray, driver.batch))
        driver.gathering.close()
        if lose:
            thread.join()
        else:
            one.remove_node(node)
        batches.append(found)
    same = jax.tree.map(np.array_equal, *batches)
    return dict(lost_seconds=max(times) - min(times), same=all(jax.tree.leaves(same)))


def costs(address, actors=4):
    """What one unit costs the driver: seconds and bytes, from many units of one step."""
    found = {}
    for copies in (16, 128):
        driver = opened(address, actors, copies, 1, seconds=0.0)
        driver.iteration()
        found[copies] = statistics.median([driver.iteration() for _ in range(10)])
        driver.gathering.close()
    per_unit = (found[128] - found[16]) / (128 - 16)
    transition = sum(
        x.dtype.itemsize * int(np.prod(x.shape[3:])) for x in jax.tree.leaves(driver.batch)
    )
    return dict(
        per_unit_ms=1000 * per_unit,
        fixed_ms=1000 * (found[16] - 16 * per_unit),
        bytes_per_transition=transition,
    )


def acting(copies):
    """Milliseconds in which a policy acts for so many copies, of which an actor needs one."""
    from recollect.collect.host import acting as function

    env = host(lambda: Sleeping(0.0), name="Sleeping")
    keys = seed_keys((0,))
    policy = make_policy(keys[0], env, Architecture(widths=(64, 64)))
    policies = jax.tree.map(lambda x: x[None] if isinstance(x, jax.Array) else x, policy)
    act = function(policies, keys, copies)
    inputs = np.zeros((1, copies, FEATURES + 1), np.float32)
    act(inputs)
    times = []
    for _ in range(50):
        began = time.perf_counter()
        act(inputs)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def main(names):
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def keep(name, measure):
        if names and not any(name.startswith(one) for one in names):
            return
        load = os.getloadavg()[0]
        results[name] = measure()
        results[name]["load"] = [round(load, 1), round(os.getloadavg()[0], 1)]
        print(name, json.dumps(results[name]), flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")

    one, _ = cluster([4, 4])
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        keep("acting", lambda: {str(n): acting(n) for n in (10, 100, 1000)})
        for milliseconds in (5, 20):
            for actors in (4, 8):
                keep(
                    f"speed {actors} {milliseconds}",
                    functools.partial(speed, one.address, actors, milliseconds),
                )
        keep("costs", lambda: costs(one.address))
        keep("lag", lambda: lag(one.address))
        keep("killed", lambda: killed(one.address, folder))
        for i in range(10):
            keep(f"lost node {i}", lambda: lost_node(one, folder))
    one.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
