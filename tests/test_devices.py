"""Several devices: the same numbers as one. Products are precise on all of them."""

import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import recollect as rc
from recollect import devices
from recollect.keys import seed_keys
from recollect.policies import Policy, Softmax, mlp
from recollect.policies.architecture import traced_spread
from recollect.policies.scores import expected_score_matrix, score_matrix
from recollect.run.compiled import CompiledRun, _advance, _start_seeds
from recollect.run.state import CorePool, Limits
from recollect.step.solve import cheapest

HIGHEST = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)
SOLVERS = (rc.Cholesky(), rc.SampleSpace(), rc.ConjugateGradients(preconditioner_rows=4))


def precisions(jaxpr) -> list:
    """Of every product in a program, and in the programs that it calls."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append(equation.params["precision"])
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            found += precisions(inner)
    return found


def scores(kind, width=3, rows=12):
    network = mlp(jax.random.key(0), inputs=2, outputs=2, widths=(width,))
    policy = Policy(network, Softmax())
    observations = jnp.ones((rows, 2))
    if kind == "expected":
        return expected_score_matrix(policy, observations)
    if kind == "traced":
        policy = Policy(Own(network), Softmax())
    return score_matrix(policy, observations, jnp.zeros(rows, int))[1]


class Own(eqx.Module):
    """A network that the library knows nothing of."""

    inner: eqx.Module

    def __call__(self, x):
        return self.inner(x)


@pytest.mark.parametrize("kind", ["layers", "expected", "traced"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_every_product_of_a_solution_has_all_digits(kind, solver):
    """Whoever calls it, in whatever precision JAX was asked to compute otherwise."""
    found = scores(kind)
    states = found.shape[1] // found.rank
    fisher = rc.Fisher(found, jnp.full(states, 1 / states), jnp.array(states))
    gradient = jnp.ones(found.shape[0])
    with jax.default_matmul_precision("bfloat16"):
        program = jax.make_jaxpr(lambda g: solver(fisher, g, 1e-3, g).direction)(gradient)
        matrix = jax.make_jaxpr(lambda: (fisher.matrix(), fisher.gram(), fisher.mv(gradient)))()
    for one in (program, matrix):
        products = precisions(one.jaxpr)
        assert len(products) >= 3
        assert set(products) == {HIGHEST}


@pytest.mark.parametrize("algorithm", [rc.RNPG(window=2), rc.RPPO(window=2)])
def test_every_product_of_a_run_has_all_digits(algorithm):
    keys = seed_keys((0,))
    limits = Limits(np.inf, np.inf)
    architecture = rc.Architecture(widths=(3,))
    with CorePool(1) as pool:
        env = rc.CartPole(max_steps=3)
        run = CompiledRun(env, algorithm, rc.Episodes(2), limits, architecture, keys, pool)
    seeds = eqx.filter_eval_shape(_start_seeds, run.problem, *traced_spread(run.policy), keys)
    zero = jnp.array(0)
    program = eqx.filter_make_jaxpr(_advance)(run.problem, keys, seeds, zero, zero)[0]
    products = precisions(program.jaxpr)
    assert len(products) >= 20
    assert set(products) == {HIGHEST}


def test_what_suits_cpus_is_not_forced_on_others(monkeypatch):
    """On an accelerator, which this machine has not: only the choice is looked at."""
    few = dict(parameters=226, rows=800)
    assert devices.backend() is devices.CPU
    assert devices.backend().compiler_options
    assert cheapest(**few) == "cholesky"
    assert not devices.side_by_side()
    other = type("Other", (), {"platform": "gpu", "device_kind": "H100"})
    monkeypatch.setattr(devices, "learning_devices", lambda: [other] * 2)
    assert devices.backend() is devices.ACCELERATOR
    assert not devices.backend().compiler_options
    assert devices.chunk_size() > devices.CPU.chunk
    assert devices.side_by_side()
    assert devices.described(devices.learning_devices()) == "2 × H100"
    # What starts fifteen products one after another waits for each of them to start.
    assert cheapest(parameters=226, rows=20_000) == "cholesky"


@pytest.mark.parametrize("count", [2, 4])
def test_several_devices_give_the_numbers_of_one(count, tmp_path):
    """Programs of `several_devices.py`, in a process that sees several devices in the CPU."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    script = Path(__file__).with_name("several_devices.py")
    result = subprocess.run(
        [sys.executable, str(script), str(count), str(tmp_path)],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
