"""(F + εI) x = g: the methods agree, and what they report is true."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import computed

from recollect.estimate.fisher import Fisher
from recollect.policies import softmax_policy
from recollect.policies.scores import score_matrix
from recollect.step.solve import Auto, Cholesky, ConjugateGradients, SampleSpace, cheapest
from recollect.tree import traced_numbers


@functools.cache
def problem(rows=60, damping=1e-2):
    return (*eqx.filter_jit(_fisher_and_gradient)(rows), damping)


def _fisher_and_gradient(rows, widths=(6,)):
    keys = jax.random.split(jax.random.key(0), 4)
    policy = softmax_policy(keys[0], 4, 3, widths)
    policy = eqx.tree_at(
        lambda p: p.network.layers[-1].weight, policy, jax.random.normal(keys[1], (3, widths[-1]))
    )
    observations = jax.random.normal(keys[2], (rows, 4))
    actions = jax.vmap(policy.sample)(jax.random.split(keys[3], rows), observations)
    _, scores = score_matrix(policy, observations, actions)
    coefficients = jnp.where(jnp.arange(rows) % 7 == 0, 0, jnp.linspace(0.5, 2, rows)) / rows
    fisher = Fisher(scores, coefficients, jnp.array(rows))
    return fisher, scores.pull(jnp.cos(jnp.arange(rows)) / rows)


@eqx.filter_jit
def _solve(solver, *system):
    return solver(*system)


def solve(solver, fisher, gradient, damping, guess=None):
    """The solution as NumPy arrays; solvers and dampings that differ in floats share a program."""
    guess = 0 * gradient if guess is None else guess
    solver, damping = traced_numbers((solver, damping))
    return jax.tree.map(np.asarray, _solve(solver, fisher, gradient, damping, guess))


@pytest.mark.parametrize("rows", [20, 200])
@pytest.mark.parametrize(
    "solver",
    [
        Cholesky(),
        SampleSpace(),
        ConjugateGradients(tolerance=1e-5),
        ConjugateGradients(tolerance=1e-5, preconditioner_rows=0),
        ConjugateGradients(tolerance=1e-5, preconditioner_rows=16),
        Auto(ConjugateGradients(tolerance=1e-5)),
    ],
    ids=["cholesky", "sample", "cg", "plain cg", "few rows", "auto"],
)
def test_all_methods_agree(solver, rows):
    fisher, gradient, damping = problem(rows)
    matrix = computed(Fisher.matrix, fisher).astype(np.float64) + damping * np.eye(gradient.size)
    exact = np.linalg.solve(matrix, np.asarray(gradient, np.float64))
    solution = solve(solver, fisher, gradient, damping)
    np.testing.assert_allclose(solution.direction, exact, rtol=0, atol=2e-3 * np.abs(exact).max())
    true = np.linalg.norm(gradient - matrix @ solution.direction) / np.linalg.norm(gradient)
    np.testing.assert_allclose(solution.residual, true, rtol=0.1, atol=1e-6)
    assert solution.residual < 1e-4


def test_conjugate_gradients_stop_at_their_tolerance_and_limit():
    fisher, gradient, damping = problem(200, damping=1e-4)
    run = lambda **settings: solve(
        ConjugateGradients(preconditioner_rows=0, **settings), fisher, gradient, damping
    )
    loose, tight, cut = run(tolerance=0.1), run(tolerance=1e-3), run(tolerance=1e-6, max_steps=3)
    assert 0 < loose.steps < tight.steps
    assert loose.residual <= 0.1
    assert tight.residual <= 1.05e-3
    assert cut.steps == 3
    assert cut.residual > 1e-3


def test_a_preconditioner_and_a_good_guess_save_steps():
    fisher, gradient, damping = problem(2000, damping=1e-4)
    plain = solve(
        ConjugateGradients(tolerance=1e-3, preconditioner_rows=0), fisher, gradient, damping
    )
    helped = solve(
        ConjugateGradients(tolerance=1e-3, preconditioner_rows=256), fisher, gradient, damping
    )
    assert helped.steps < plain.steps / 2
    warm = solve(
        ConjugateGradients(tolerance=1e-2, preconditioner_rows=0, warm_start=True),
        fisher,
        gradient,
        damping,
        plain.direction,
    )
    assert warm.steps <= 1


SOLVERS = {"cholesky": Cholesky(), "sample": SampleSpace(), "cg": ConjugateGradients()}


@pytest.mark.parametrize("method", SOLVERS)
def test_no_curvature_means_the_plain_gradient(method):
    """F → 0 leaves εI, so x = g / ε: with F + εI = I the natural gradient is the plain one."""
    fisher, gradient, _ = problem()
    flat = eqx.tree_at(lambda f: f.coefficients, fisher, 0 * fisher.coefficients)
    solution = solve(SOLVERS[method], flat, gradient, 1.0)
    np.testing.assert_allclose(solution.direction, gradient, atol=1e-6)


@pytest.mark.parametrize("method", SOLVERS)
def test_a_zero_gradient_has_a_zero_direction(method):
    fisher, gradient, damping = problem()
    solution = solve(SOLVERS[method], fisher, 0 * gradient, damping)
    np.testing.assert_array_equal(solution.direction, 0)
    assert solution.residual == 0


def test_auto_takes_the_small_system():
    assert cheapest(parameters=4610, rows=100) == "sample"
    assert cheapest(parameters=226, rows=800) == "cholesky"
    assert cheapest(parameters=226, rows=8000) == "cg"
    assert cheapest(parameters=4610, rows=80_000) == "cg"


def test_a_preconditioner_lost_in_rounding_is_damped_more():
    """Eigenvalues over seven decades: in single precision the inverse of a few rows is noise at
    the damping asked for."""
    fisher, gradient, _ = problem(200)
    steep = Fisher(fisher.scores, 1e5 * fisher.coefficients, fisher.count)
    solver = ConjugateGradients(tolerance=1e-2, preconditioner_rows=40, max_steps=60)
    solution = solve(solver, steep, gradient, 1e-2)
    assert solution.residual <= 0.0101
    assert solution.steps < 60


def test_what_one_method_cannot_solve_another_tries():
    """The small N×N system loses all digits where the damping is far below the rounding of the
    matrix."""
    fisher, gradient, _ = problem(20)
    steep = Fisher(fisher.scores, 1e6 * fisher.coefficients, fisher.count)
    solution = solve(SampleSpace(), steep, gradient, 1e-4)
    alone, _ = computed(lambda: SampleSpace().direction(steep, gradient, 1e-4, gradient))
    product = computed(steep.mv, alone) + 1e-4 * alone
    assert not np.linalg.norm(gradient - product) <= 0.5 * np.linalg.norm(gradient)
    assert solution.steps > 0
    assert solution.residual < np.linalg.norm(gradient - product) / np.linalg.norm(gradient)


@pytest.mark.parametrize("solver", [Cholesky(), SampleSpace(), ConjugateGradients()])
def test_solvers_run_in_double_precision(solver):
    with jax.enable_x64(True):
        fisher, gradient = _fisher_and_gradient(20)
        solution = solve(solver, fisher, gradient, 1e-2)
    assert solution.direction.dtype == np.float64
    assert solution.steps.dtype == np.int32
