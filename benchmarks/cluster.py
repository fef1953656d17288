"""What a Ray cluster costs and gains, with environments that sleep: `python benchmarks/cluster.py`.

The cluster is several nodes on this machine, on the loopback interface alone. Environments sleep
instead of computing, so that eight actors need no eight cores; the time that is left beside the
sleep is what Ray, the policy and Python take. Writes `cluster.json` beside this file after every
measurement; names given as arguments (`speed`, `lost node 3`) choose some of them, `table` none.
Prints what was promised beside what was measured, and fills in the costs in docs/machines.md. All
takes about 20 minutes on an idle machine.
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

import equinox as eqx
import gymnasium as gym
import jax
import numpy as np
import scipy.stats

from recollect import Architecture, Local, Ray, Steps, host, make, train
from recollect.cli.machines import answers
from recollect.collect.elsewhere import Elsewhere
from recollect.collect.gathering import Here
from recollect.keys import seed_keys
from recollect.policies.architecture import make_policy
from recollect.report.tables import markdown

HEALTH = dict(
    health_check_initial_delay_ms=0,
    health_check_period_ms=500,
    health_check_timeout_ms=500,
    health_check_failure_threshold=3,
)
RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "machines.md"
BEGIN = "<!-- written by benchmarks/cluster.py -->"
END = "<!-- end -->"
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
        for unit in self.gathering._asked[0].units if isinstance(self.gathering, Elsewhere) else ():
            self.gathering._crew.result(unit)
        arrived = time.perf_counter()
        self.hosted, rollouts, self.figures = self.gathering.receive(self.hosted)
        self.batch = jax.block_until_ready(rollouts[0].batch)
        self.joined = time.perf_counter() - arrived
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
    runs = []
    for kill in (False, True):
        marker.unlink(missing_ok=True)
        how = dict(seconds=milliseconds / 1000, marker=marker, kill=kill)
        runs.append(several(opened(address, 4, 4, steps, **how), iterations=12))
    return compared(*runs)


def lost_node(one, folder, milliseconds=20, steps=50):
    """The same for a node that goes away without a word while its actors step."""
    marker = folder / "begun"
    runs = []
    for lose in (False, True):
        node = one.add_node(num_cpus=2, node_ip_address="127.0.0.1")
        driver = opened(one.address, 6, 6, steps, seconds=milliseconds / 1000, marker=marker)
        marker.unlink(missing_ok=True)

        def remove(node=node):
            while not marker.exists():
                time.sleep(0.01)
            one.remove_node(node, allow_graceful=False)

        thread = threading.Thread(target=remove)
        if lose:
            thread.start()
        runs.append(several(driver, iterations=8))
        if lose:
            thread.join()
        else:
            one.remove_node(node)
    return compared(*runs)


def several(driver, iterations):
    """Seconds of some iterations together, their batches, and how many units were repeated."""
    batches = []
    seconds = 0.0
    for _ in range(iterations):
        seconds += driver.iteration()
        batches.append(jax.tree.map(np.asarray, driver.batch))
    repeated = driver.gathering._crew.repeated
    driver.gathering.close()
    return seconds, batches, repeated


def compared(undisturbed, disturbed):
    """What the disturbance has cost and changed."""
    equal = jax.tree.map(np.array_equal, undisturbed[1], disturbed[1])
    return dict(
        lost_seconds=disturbed[0] - undisturbed[0],
        units_repeated=[undisturbed[2], disturbed[2]],
        same=all(jax.tree.leaves(equal)),
    )


def costs(address, actors=4):
    """What units cost: the learner's seconds for each and for each transition, bytes, memory."""
    found = {}
    for copies in (16, 128):
        driver = opened(address, actors, copies, 1, seconds=0.0)
        driver.iteration()
        found[copies] = statistics.median([driver.iteration() for _ in range(10)])
        driver.gathering.close()
    per_unit = (found[128] - found[16]) / (128 - 16)
    driver = opened(address, actors, 16, 500, seconds=0.0)
    joining = statistics.median([driver.iteration() and driver.joined for _ in range(5)])
    driver.gathering.close()
    leaves = jax.tree.leaves(driver.batch)
    session = Ray(actors=1, cluster=address).connect()
    memory = session.actor(Memory).ask("megabytes").result()
    session.close()
    return dict(
        per_unit_ms=1000 * per_unit,
        fixed_ms=1000 * (found[16] - 16 * per_unit),
        per_transition_us=1e6 * joining / (16 * 500),
        bytes_per_transition=sum(x.dtype.itemsize * int(np.prod(x.shape[3:])) for x in leaves),
        policy_bytes=sum(x.nbytes for x in jax.tree.leaves(driver.policies) if eqx.is_array(x)),
        actor_mb=memory,
    )


class Memory:
    """Lives in an actor that has computed something with JAX."""

    def megabytes(self):
        acting(10)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def returns(lags=(0, 1), seeds=10, iterations=60):
    """Returns that were learned with each lag: the mean over a run, of every seed."""
    found = {}
    for ahead in lags:
        run = train(
            make("CartPole-v1", engine="gymnasium"),
            "rtrpo",
            collector=Steps(8, 64),
            seeds=seeds,
            iterations=iterations,
            on=Local(actors=2, lag=ahead),
        )
        found[str(ahead)] = np.nanmean(run.curves["return_mean"], axis=1).tolist()
    return found


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


STEPS = 200
"""Of every copy in an iteration, in the table of costs."""
STEP_MS = 5.0
"""What a step takes there."""
WINDOW = 10
"""Iterations that the learner keeps there."""
COUNTS = (10, 100, 1000)
"""Actors there, each with one copy."""


def promises(found):
    """What was promised, and what was measured: rows of a table."""
    rows = []

    def row(what, bound, holds, measured, *labels):
        load = max(max(found[label]["load"]) for label in labels)
        rows.append((what, bound, measured, "yes" if holds else "no", f"{load:.1f}"))

    for milliseconds, share in ((5, 0.85), (20, 0.93)):
        for actors in (4, 8):
            label = f"speed {actors} {milliseconds}"
            if label not in found:
                continue
            one = found[label]
            over, speed = one["overhead_ms"], one["speed_up"]
            if actors == 4:
                what = f"overhead of an iteration, 4 actors, {milliseconds} ms a step"
                row(what, "≤ 60 ms", over <= 60, f"{over:.0f} ms", label)
            what = f"speed-up, {actors} actors, {milliseconds} ms a step"
            bound = share * actors
            row(what, f"≥ {bound:.2f}", speed >= bound, f"{speed:.2f}", label)
    if "killed" in found:
        one = found["killed"]
        lost = one["lost_seconds"]
        row("an actor is killed: the result", "the same", unchanged(one), words(one), "killed")
        row("an actor is killed: time lost", "≤ 6 s", lost <= 6, f"{lost:.1f} s", "killed")
    labels = [label for label in found if label.startswith("lost node")]
    if labels:
        kept = sum(unchanged(found[label]) for label in labels)
        lost = max(found[label]["lost_seconds"] for label in labels)
        times = f"{kept} of {len(labels)} the same"
        row("a node is lost: the result", "10 of 10", kept == len(labels) == 10, times, *labels)
        row("a node is lost: time lost", "≤ 10 s", lost <= 10, f"{lost:.1f} s at most", *labels)
    if "lag" in found:
        ratio = found["lag"]["ratio"]
        row("steps/s of lag 1 over lag 0", "≥ 1.3", ratio >= 1.3, f"{ratio:.2f}", "lag")
    if "returns" in found:
        more = np.array(found["returns"]["1"]) - np.array(found["returns"]["0"])
        not_lower = more.mean() + half_width(more) >= 0
        figure = f"{more.mean():+.1f} ± {half_width(more):.1f}"
        row("return of lag 1 minus lag 0", "not lower (95 %)", not_lower, figure, "returns")
    return rows


def unchanged(one):
    """Whether units were lost and nothing has changed."""
    return one["same"] and one["units_repeated"][1] > one["units_repeated"][0] == 0


def words(one):
    said = "the same" if one["same"] else "another"
    return f"{said}, {one['units_repeated'][1]} units repeated"


def half_width(values):
    """Of a 95 % interval of the mean."""
    return float(
        scipy.stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    )


def shares(unit, acts, actors):
    """Where time, memory and network go with so many actors, from what one unit costs."""
    rows = actors * STEPS
    return dict(
        stepping=STEPS * STEP_MS / 1000,
        acting=STEPS * acts[str(actors)] / 1000,
        handing=(unit["fixed_ms"] + actors * unit["per_unit_ms"]) / 1000,
        joining=rows * unit["per_transition_us"] / 1e6,
        sent_mb=actors * unit["policy_bytes"] / 1e6,
        received_mb=rows * unit["bytes_per_transition"] / 1e6,
        window_gb=WINDOW * rows * unit["bytes_per_transition"] / 1e9,
        actors_gb=actors * unit["actor_mb"] / 1024,
    )


WORDS = dict(
    acting="the policy in the actors, which each ask it for all copies",
    handing="handing out units, one after another",
    joining="joining the parts and their log-probabilities",
)
"""What grows with the number of actors."""


def cost_page(found):
    """The table of `shares`, and what grows to be the largest part."""
    of = {count: shares(found["costs"], found["acting"], count) for count in COUNTS}
    columns = (
        "actors",
        "stepping, s",
        "policy, s",
        "units, s",
        "joining, s",
        "policies out, MB",
        "transitions in, MB",
        "window, GB",
        "actors, GB",
    )
    rows = [(f"{count:,}", *(f"{x:.3g}" for x in one.values())) for count, one in of.items()]
    last = of[COUNTS[-1]]
    worst = max(WORDS, key=lambda name: last[name])
    total = sum(last[name] for name in ("stepping", *WORDS))
    return [
        f"An iteration of {STEPS} steps of {STEP_MS:g} ms in one copy for each actor, and a window "
        f"of {WINDOW} iterations, computed from what one unit costs:",
        "",
        *markdown(columns, rows),
        "",
        f"With {COUNTS[-1]:,} actors the first limit is {WORDS[worst]}: {last[worst]:.2f} s of "
        f"{total:.2f} s.",
    ]


def fill_in(lines):
    """Write the page of costs into its place in the documentation."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, *lines, END + after]), encoding="utf-8")


def main(names, out):
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def keep(name, measure):
        if names and not any(name.startswith(one) for one in names):
            return
        load = os.getloadavg()[0]
        results[name] = measure()
        results[name]["load"] = [round(load, 1), round(os.getloadavg()[0], 1)]
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")

    one, _ = cluster([4, 4])
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        keep("acting", lambda: {str(n): acting(n) for n in COUNTS})
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
    keep("returns", returns)
    columns = ("promise", "bound", "measured", "holds", "load of the machine, at most")
    print(*markdown(columns, promises(results), align="lllll"), sep="\n", file=out)
    if {"costs", "acting"} <= results.keys():
        lines = cost_page(results)
        print("", *lines, sep="\n", file=out)
        fill_in(lines)


if __name__ == "__main__":
    with answers(apart=True) as out:
        main(sys.argv[1:], out)
