"""What `test_devices.py` runs where the CPU looks like several devices, whose number is given."""

import functools
import logging
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import recollect as rc
from recollect.batch import Batch
from recollect.collect.rollout import Rollout
from recollect.keys import seed_keys
from recollect.run.hosted import _learn
from recollect.run.layout import over_devices
from recollect.run.state import Limits, SeedState
from recollect.runtime import use_compilation_cache
from recollect.tree import traced_numbers

SHORT = rc.CartPole(max_steps=6)
ARCHITECTURE = rc.Architecture(widths=(4,))
EPISODES = 4
NPG = dict(window=2, damping=1e-3, learning_rate=0.1, advantages=rc.Returns())
CG = rc.ConjugateGradients(tolerance=1e-8, preconditioner_rows=16)
ALGORITHMS = {
    "cholesky": rc.RNPG(solver=rc.Cholesky(), **NPG),
    "sample": rc.RNPG(solver=rc.SampleSpace(), **NPG),
    "cg": rc.RNPG(solver=CG, **NPG),
    "ppo": rc.RPPO(window=2, epochs=2, minibatch=16),
}


def random_rollout(seed: int) -> Rollout:
    """A batch of one seed with episodes of different lengths."""
    draw = np.random.default_rng(seed)
    shape = (1, EPISODES, 6)
    times = np.broadcast_to(np.arange(shape[2], dtype=np.int32), shape)
    lengths = draw.integers(2, 7, shape[:2])[..., None]
    numbers = lambda *axes: jnp.asarray(draw.normal(size=(*shape, *axes)), float)
    batch = Batch(
        observations=numbers(4),
        actions=jnp.asarray(draw.integers(0, 2, shape), jnp.int32),
        log_probs=-0.7 + numbers() / 10,
        rewards=numbers(),
        next_observations=numbers(4),
        terminated=jnp.asarray(times == lengths - 1),
        truncated=jnp.zeros(shape, bool),
        times=jnp.asarray(times),
        mask=jnp.asarray(times < lengths),
    )
    return jax.vmap(Rollout.of)(batch)


def updated(algorithm, devices) -> np.ndarray:
    """θ after two updates on some devices, of which one is the reference."""
    keys = seed_keys((0,))
    policy = ARCHITECTURE.build(jax.random.key(1), SHORT)
    first = jax.tree.map(lambda x: x[0], random_rollout(0))
    seed = SeedState.fresh(algorithm, policy, first.batch, jax.random.key(2))
    seeds = jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, seed)
    problem = traced_numbers((algorithm, Limits(np.inf, np.inf)))
    learn = lambda *given: _learn(problem, *given, jnp.array(0))
    if len(devices) > 1:
        learn = functools.partial(over_devices, None, devices, 1, learn)
    for number in range(2):
        seeds, columns = learn(keys, seeds, random_rollout(number))
        assert columns["refused"] == 0
    if len(devices) > 1:
        # Each device has its part of the window, and all of θ.
        window = seeds.state.history.batches.rewards
        assert {shard.data.shape for shard in window.addressable_shards} == {
            (1, 2, EPISODES // len(devices), 6)
        }
    leaves = [np.ravel(x) for x in jax.tree.leaves(seeds.state.policy) if eqx.is_array(x)]
    return np.concatenate(leaves) - np.concatenate(
        [np.ravel(x) for x in jax.tree.leaves(policy) if eqx.is_array(x)]
    )


def check_rows(bits: int, tolerance: float, names) -> None:
    """One seed on all devices; the first of the names says what is expected of all."""
    with jax.enable_x64(bits == 64):
        with jax.default_device(jax.devices()[0]):
            expected = updated(ALGORITHMS[names[0]], jax.devices()[:1])
        for name in names:
            found = updated(ALGORITHMS[name], jax.devices())
            apart = np.abs(found - expected).max() / np.abs(expected).max()
            print(f"{name}, {bits} bits: {apart:.1e} apart")
            assert np.abs(expected).max() > 1e-6, name
            assert apart <= tolerance, name


class Compilations(logging.Handler):
    """Names of the programs that JAX compiles."""

    def __init__(self):
        super().__init__()
        self.names = []

    def emit(self, record):
        if record.getMessage().startswith("Compiling "):
            self.names.append(record.getMessage().split()[1])


def check_runs(count: int, folder: str) -> None:
    """Whole runs: seeds in shares, one of them filled up; rows; the environment on the host."""
    host = rc.make("CartPole-v1", engine="gymnasium")
    cases = {
        "shares": dict(env=SHORT, seeds=count + 1, collector=rc.Episodes(EPISODES)),
        "rows": dict(env=SHORT, seeds=1, collector=rc.Episodes(EPISODES)),
        "host": dict(env=host, seeds=count, collector=rc.Steps(copies=3, steps=4)),
    }
    log = Compilations()
    logging.getLogger("jax").addHandler(log)
    jax.config.update("jax_log_compiles", True)  # in all threads
    for name, case in cases.items():
        algorithm = rc.VPG(advantages=rc.Returns())
        given = dict(algorithm=algorithm, policy=ARCHITECTURE, progress=False, **case)
        if name != "rows":  # whose seed is the first of those before
            with jax.default_device(jax.devices()[0]):
                expected = rc.train(iterations=4, **given)
        log.names.clear()
        rc.train(iterations=2, out=f"{folder}/{name}", **given)
        programs = [name for name in log.names if "_run" in name or "_learn" in name]
        # One for each device, or one for all: a state lies where the next call asks for it.
        assert 1 <= len(programs) <= (1 if name == "rows" else count), programs
        found = rc.resume(f"{folder}/{name}", iterations=4, env=case["env"], progress=False)
        apart = jax.tree.map(
            lambda ours, other: np.abs(np.asarray(ours) - np.asarray(other)[: len(ours)]).max(),
            eqx.filter(found.policies, eqx.is_array),
            eqx.filter(expected.policies, eqx.is_array),
        )
        apart = max(jax.tree.leaves(apart))
        print(f"{name}: {apart:.1e} apart")
        assert apart <= 1e-5, name
        steps = found.curves["environment_steps"]
        np.testing.assert_array_equal(steps, expected.curves["environment_steps"][: len(steps)])


def main(count: int, folder: str) -> None:
    """What is checked with so many devices."""
    assert len(jax.devices()) == count
    use_compilation_cache()
    if count == 4:
        check_rows(64, 1e-6, ["cholesky", "sample", "cg"])
        check_rows(64, 1e-6, ["ppo"])
    else:
        check_rows(32, 1e-4, ["cg"])
        check_runs(count, folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
