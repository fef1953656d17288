"""Solving (F + εI) x = g three ways, and choosing between them.

With N rows, d parameters and k steps of conjugate gradients the operations are about

    cholesky   1.5 N d² + d³/3      the d×d matrix, written out and factored
    sample     N³/3 + 16 N d        the N×N system that the Woodbury identity leads to, for small N
    cg         4 N d k              products with F only, memory O(N·width)

Conjugate gradients are preconditioned by a direct solve on a few hundred well-chosen rows. That
is what makes them exact enough: in training on cartpole (N = 8,000, d = 226, ε = 1e-3) they reach
a residual of 1 % in about 5 steps, against 39 without, and 10 plain steps leave a residual of
12–20 %. Starting from the previous direction saves nothing there, because the gradient's noise
turns the direction anew.
"""

import abc
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from lineax.internal import two_norm

from recollect.checks import check_count, check_number
from recollect.devices import at_full_precision, backend
from recollect.estimate.fisher import Fisher
from recollect.settings import Settings

Method = Literal["cholesky", "sample", "cg"]
Inverse = Callable[[Float[Array, " d"]], Float[Array, " d"]]
ROUNDING = 32.0
"""Rounding errors of a matrix that the preconditioner is damped against, in units of the machine's
and of its trace."""
WORST_RESIDUAL = 0.5
"""Relative residual above which a direction is not taken."""


class Solution(eqx.Module):
    """x, and how well it solves the system.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> product = jnp.array([1.0, 0.0])
        >>> bool(rc.Solution(product / 2, product, jnp.array(0.01), jnp.array(5)).solved)
        True
    """

    direction: Float[Array, " d"]
    product: Float[Array, " d"]
    """(F + εI) x."""
    residual: Float[Array, ""]
    """‖g − (F + εI) x‖ / ‖g‖."""
    steps: Int[Array, ""]
    """Products with F that conjugate gradients took; 0 for the direct methods."""

    @property
    def solved(self) -> Bool[Array, ""]:
        """Whether x is closer to the solution than to nothing: x = 0 has a residual of 1."""
        return self.residual <= WORST_RESIDUAL


class AbstractSolver(Settings, eqx.Module):
    """How the natural gradient is solved for. A solver of one's own has to say `direction`.

    Example:
        The plain gradient, for comparison.

        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> class Plain(rc.AbstractSolver):
        ...     def direction(self, fisher, gradient, damping, guess):
        ...         return gradient, jnp.zeros((), jnp.int32)
        >>> rc.RNPG(solver=Plain()).solver
        Plain()
    """

    @abc.abstractmethod
    def direction(
        self,
        fisher: Fisher,
        gradient: Float[Array, " d"],
        damping: Float[Array, ""] | float,
        guess: Float[Array, " d"],
    ) -> tuple[Float[Array, " d"], Int[Array, ""]]:
        """x with (F + εI) x ≈ g.

        Args:
            fisher: F, by its products or written out.
            gradient: g.
            damping: ε.
            guess: the direction of the iteration before.

        Returns:
            x, and how many products with F it took, 0 for direct methods.
        """

    def limits(self) -> tuple[Float[Array, ""] | float, int]:
        """Tolerance and most steps of the conjugate gradients that are tried instead."""
        return 1e-2, 100

    @at_full_precision
    def __call__(
        self,
        fisher: Fisher,
        gradient: Float[Array, " d"],
        damping: Float[Array, ""] | float,
        guess: Float[Array, " d"],
    ) -> Solution:
        """x and its residual, by plain conjugate gradients where rounding has spoilt
        `direction`."""
        direction, steps = self.direction(fisher, gradient, damping, guess)
        solution = _with_residual(fisher, gradient, damping, direction, steps)
        if fisher.shape[0] == 1:  # A division needs no second try.
            return solution

        def again() -> Solution:
            # Where both branches run side by side, a system of zeros takes no steps.
            right = jnp.where(solution.solved, 0, gradient)
            direction, steps = conjugate_gradients(fisher, right, damping, *self.limits())
            return _with_residual(fisher, gradient, damping, direction, solution.steps + steps)

        return lax.cond(solution.solved, lambda: solution, again)


class Cholesky(AbstractSolver):
    """Write the d×d matrix out and factor it.

    Example:
        >>> import recollect as rc
        >>> rc.RNPG(solver=rc.Cholesky()).solver
        Cholesky()
    """

    def direction(self, fisher, gradient, damping, guess):
        del guess
        return _factored(fisher.matrix(), damping)(gradient), jnp.zeros((), jnp.int32)


class SampleSpace(AbstractSolver):
    """Factor the N×N matrix that the Woodbury identity leads to, for few rows.

    Example:
        >>> import recollect as rc
        >>> rc.RNPG(solver=rc.SampleSpace()).solver
        SampleSpace()
    """

    def direction(self, fisher, gradient, damping, guess):
        del guess
        inverse = _refined(fisher, damping, _sample_space(fisher, fisher.gram(), damping))
        return inverse(gradient), jnp.zeros((), jnp.int32)


class ConjugateGradients(AbstractSolver):
    """Products with F only, preconditioned by a direct solve on a few rows.

    Example:
        >>> import recollect as rc
        >>> rc.RTRPO(solver=rc.ConjugateGradients(tolerance=1e-3)).solver.max_steps
        100
    """

    tolerance: float = 1e-2
    """Relative residual at which they stop."""
    max_steps: int = eqx.field(static=True, default=100)
    """Products with F after which they stop in any case."""
    preconditioner_rows: int = eqx.field(static=True, default=512)
    """Rows from which a direct solve preconditions them; 0 for none."""
    warm_start: bool = eqx.field(static=True, default=False)
    """Start from the previous iteration's direction."""

    def __check_init__(self):
        remedy = "give a relative residual between 0 and 1"
        check_number(
            "tolerance", self.tolerance, low=0, high=1, open_low=True, open_high=True, remedy=remedy
        )
        check_count("max_steps", self.max_steps)
        remedy = "give a number of rows, 0 for no preconditioner"
        check_number("preconditioner_rows", self.preconditioner_rows, low=0, remedy=remedy)

    def limits(self):
        return self.tolerance, self.max_steps

    def direction(self, fisher, gradient, damping, guess):
        start = guess if self.warm_start else None
        rows = self.preconditioner_rows
        return conjugate_gradients(fisher, gradient, damping, *self.limits(), rows, start)


class Auto(AbstractSolver):
    """Whichever of the three costs least, by the shapes of the problem.

    Example:
        >>> import recollect as rc
        >>> solver = rc.Auto(rc.ConjugateGradients(tolerance=1e-3))
        >>> rc.RNPG(solver=solver).solver.conjugate_gradients.tolerance
        0.001
    """

    conjugate_gradients: ConjugateGradients = ConjugateGradients()
    """With these settings, where they cost least."""

    def limits(self):
        return self.conjugate_gradients.limits()

    def direction(self, fisher, gradient, damping, guess):
        solvers: dict[Method, AbstractSolver] = {
            "cholesky": Cholesky(),
            "sample": SampleSpace(),
            "cg": self.conjugate_gradients,
        }
        method = cheapest(*fisher.shape, fisher.scores.rank)
        return solvers[method].direction(fisher, gradient, damping, guess)


def conjugate_gradients(
    fisher: Fisher,
    gradient: Float[Array, " d"],
    damping: Float[Array, ""] | float,
    tolerance: Float[Array, ""] | float,
    max_steps: int,
    preconditioner_rows: int = 0,
    start: Float[Array, " d"] | None = None,
) -> tuple[Float[Array, " d"], Int[Array, ""]]:
    """x with (F + εI) x ≈ g, and how many products with F it took.

    Args:
        fisher: F.
        gradient: g.
        damping: ε.
        tolerance: relative residual at which to stop.
        max_steps: after which to stop in any case.
        preconditioner_rows: from which a direct solve preconditions; 0 for none.
        start: where to start; at the preconditioner's solution if not given.
    """
    # In units where the damping is 1 and ‖g‖ = 1 the solution is at most as large as the right
    # side, and the error at most as large as the residual: one absolute tolerance serves for both.
    norm = jnp.linalg.norm(gradient)
    scale = jnp.where(norm > 0, norm, 1)
    shape = jax.ShapeDtypeStruct(gradient.shape, gradient.dtype)
    symmetric = lambda function: lx.FunctionLinearOperator(
        function, shape, lx.positive_semidefinite_tag
    )
    right = gradient / scale
    options = {}
    if 0 < preconditioner_rows < fisher.shape[1]:
        rough, eased = _preconditioner(fisher.sample(preconditioner_rows), damping)
        options["preconditioner"] = symmetric(lambda y: rough(y) * eased)
        options["y0"] = rough(right) * damping
    if start is not None:
        options["y0"] = start * (damping / scale)
    method = lx.CG(
        rtol=0.0,
        atol=tolerance,  # pyright: ignore[reportArgumentType]
        norm=two_norm,
        stabilise_every=None,
        max_steps=max_steps,
    )
    operator = symmetric(lambda y: fisher.mv(y) / damping + y)
    solution = lx.linear_solve(operator, right, method, options=options, throw=False)
    # In double precision Lineax counts in 64 bits; everything here counts in 32.
    return solution.value * (scale / damping), solution.stats["num_steps"].astype(jnp.int32)


def _with_residual(fisher: Fisher, gradient, damping, direction, steps) -> Solution:
    """The direction with how well it solves the system."""
    norm = jnp.linalg.norm(gradient)
    product = fisher.mv(direction) + damping * direction
    residual = jnp.linalg.norm(gradient - product) / jnp.where(norm > 0, norm, 1)
    return Solution(direction, product, residual, steps)


def cheapest(parameters: int, rows: int, rank: int = 1) -> Method:
    """The method with the least milliseconds by the cost model above, for shapes known when
    compiling.

    The rates are those of the device. Conjugate gradients are reckoned at 15 steps, what cartpole
    took at its hardest. Where each state has `rank` rows, products cost as much as with one.
    """
    rates = backend()
    product = rates.product + 4 * rows / rank * parameters / rates.layer
    cost: dict[Method, float] = {
        "cholesky": 1.5 * rows * parameters**2 / rates.dense + parameters**3 / 3 / rates.factor,
        "sample": rows**3 / 3 / rates.factor + 4 * product,
        "cg": 15 * product + rates.preconditioner,
    }
    return min(cost, key=lambda method: cost[method])


def _preconditioner(
    few: Fisher, damping: Float[Array, ""] | float
) -> tuple[Inverse, Float[Array, ""]]:
    """(F + ε′I)⁻¹ on a few rows by factoring the smaller matrix, and ε′.

    ε′ is at least what rounding does to the matrix. Below that its inverse is noise, and need not
    even be positive: at ε = 1e-3 and eigenvalues up to 6,600 (two layers of 64 units on a double
    pendulum) conjugate gradients left a residual of 0.31 after 100 steps, and reach 0.01 in 80
    with ε′ = 0.05.
    """
    parameters, rows = few.shape
    matrix = few.matrix() if parameters <= rows else few.gram()
    eased = jnp.maximum(damping, ROUNDING * jnp.finfo(matrix.dtype).eps * jnp.trace(matrix))
    if parameters <= rows:
        return _factored(matrix, eased), eased
    return _sample_space(few, matrix, eased), eased


def _sample_space(
    fisher: Fisher, gram: Float[Array, "row row"], damping: Float[Array, ""] | float
) -> Inverse:
    """(F + εI)⁻¹ g = (g − H (HᵀH + εI)⁻¹ Hᵀ g) / ε with H = J C^½, by factoring the N×N matrix
    HᵀH."""
    root = fisher.root_coefficients()
    inner = _factored(gram, damping)
    return lambda g: (g - fisher.scores.pull(root * inner(root * fisher.scores.push(g)))) / damping


def _refined(fisher: Fisher, damping: Float[Array, ""] | float, inverse: Inverse) -> Inverse:
    """The inverse applied once more to the residual, which restores digits lost in the difference
    above."""

    def apply(g):
        x = inverse(g)
        return x + inverse(g - fisher.mv(x) - damping * x)

    return apply


def _factored(matrix: Float[Array, "n n"], damping: Float[Array, ""] | float) -> Inverse:
    if len(matrix) == 1:  # A division, which many problems side by side do as one vector.
        return lambda vector: vector / (matrix[0] + damping)
    operator = lx.MatrixLinearOperator(
        matrix + damping * jnp.eye(len(matrix)), lx.positive_semidefinite_tag
    )
    method = lx.Cholesky()
    state = method.init(operator, {})
    return lambda vector: lx.linear_solve(operator, vector, method, state=state, throw=False).value
