"""Solving (F + εI) x = g three ways, and choosing between them.

With N rows, d parameters and k steps of conjugate gradients the operations are about

    cholesky   1.5 N d² + d³/3      the d×d matrix, written out and factored
    sample     N³/3 + 16 N d        the N×N system that the Woodbury identity leads to, for small N
    cg         4 N d k              products with F only, memory O(N·width)

Conjugate gradients are preconditioned by a direct solve on a few hundred well-chosen rows. That is
what makes them exact enough: in training on cartpole (N = 8,000, d = 226, ε = 1e-3) they reach a
residual of 1 % in about 5 steps, against 39 without, and 10 plain steps leave a residual of 12–20 %.
Starting from the previous direction saves nothing there, because the gradient's noise turns the direction anew.
"""

from collections.abc import Callable
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from lineax.internal import two_norm

from recollect.checks import check_count, check_name, check_number
from recollect.estimate.fisher import Fisher

Method = Literal["auto", "cholesky", "sample", "cg"]
Inverse = Callable[[Float[Array, " d"]], Float[Array, " d"]]
ROUNDING = 32.0
"""Rounding errors of a matrix, in units of the machine's and of its trace, that the preconditioner is damped against."""
WORST_RESIDUAL = 0.5
"""Relative residual above which a direction is not taken."""


class Solution(eqx.Module):
    """x, and how well it solves the system."""

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


class Solver(eqx.Module):
    """How the natural gradient is solved for."""

    method: Method = eqx.field(static=True, default="auto")
    """`cholesky`, `sample` and `cg` as above; `auto` picks one by its cost."""
    tolerance: float = 1e-2
    """Relative residual at which conjugate gradients stop."""
    max_steps: int = eqx.field(static=True, default=100)
    """Products with F after which conjugate gradients stop in any case."""
    preconditioner_rows: int = eqx.field(static=True, default=512)
    """Rows from which a direct solve preconditions conjugate gradients; 0 for none."""
    warm_start: bool = eqx.field(static=True, default=False)
    """Start conjugate gradients from the previous iteration's direction."""

    def __check_init__(self):
        check_name("method", self.method, get_args(Method))
        check_number(
            "tolerance",
            self.tolerance,
            low=0,
            high=1,
            open_low=True,
            open_high=True,
            remedy="give a relative residual between 0 and 1",
        )
        check_count("max_steps", self.max_steps)
        check_number(
            "preconditioner_rows",
            self.preconditioner_rows,
            low=0,
            remedy="give a number of rows, 0 for no preconditioner",
        )

    def __call__(
        self,
        fisher: Fisher,
        gradient: Float[Array, " d"],
        damping: Float[Array, ""] | float,
        guess: Float[Array, " d"],
    ) -> Solution:
        """x, by plain conjugate gradients where rounding has spoilt the method of choice."""
        method = (
            cheapest(*fisher.shape, fisher.scores.rank) if self.method == "auto" else self.method
        )
        if method == "cg":
            start = guess if self.warm_start else None
            direction, steps = self._conjugate_gradients(
                fisher, gradient, damping, self.preconditioner_rows, start
            )
        else:
            inverse = _direct(fisher, damping, method)
            direction, steps = inverse(gradient), jnp.zeros((), jnp.int32)
        solution = _judged(fisher, gradient, damping, direction, steps)
        if fisher.shape[0] == 1:  # A division needs no second try.
            return solution

        def again() -> Solution:
            # Where both branches run side by side, a system of zeros takes no steps.
            right = jnp.where(solution.solved, 0, gradient)
            direction, steps = self._conjugate_gradients(
                fisher, right, damping, preconditioner_rows=0
            )
            return _judged(fisher, gradient, damping, direction, solution.steps + steps)

        return lax.cond(solution.solved, lambda: solution, again)

    def _conjugate_gradients(
        self,
        fisher,
        gradient,
        damping,
        preconditioner_rows: int,
        start: Float[Array, " d"] | None = None,
    ):
        # In units where the damping is 1 and ‖g‖ = 1 the solution is at most as large as the right
        # side, and the error at most as large as the residual: one absolute tolerance serves for both.
        norm = jnp.linalg.norm(gradient)
        scale = jnp.where(norm > 0, norm, 1)
        symmetric = lambda function: lx.FunctionLinearOperator(
            function,
            jax.ShapeDtypeStruct(gradient.shape, gradient.dtype),
            lx.positive_semidefinite_tag,
        )
        right, options = gradient / scale, {}
        if 0 < preconditioner_rows < fisher.shape[1]:
            few = fisher.sample(preconditioner_rows)
            rough, eased = _preconditioner(few, damping)
            options["preconditioner"] = symmetric(lambda y: rough(y) * eased)
            options["y0"] = rough(right) * damping
        if start is not None:
            options["y0"] = start * (damping / scale)
        method = lx.CG(
            rtol=0.0,
            atol=self.tolerance,
            norm=two_norm,
            stabilise_every=None,
            max_steps=self.max_steps,
        )
        operator = symmetric(lambda y: fisher.mv(y) / damping + y)
        solution = lx.linear_solve(operator, right, method, options=options, throw=False)
        return solution.value * (scale / damping), solution.stats["num_steps"]


def _judged(fisher: Fisher, gradient, damping, direction, steps) -> Solution:
    """The direction with how well it solves the system."""
    norm = jnp.linalg.norm(gradient)
    product = fisher.mv(direction) + damping * direction
    residual = jnp.linalg.norm(gradient - product) / jnp.where(norm > 0, norm, 1)
    return Solution(direction, product, residual, steps)


def cheapest(parameters: int, rows: int, rank: int = 1) -> Literal["cholesky", "sample", "cg"]:
    """The method with the least milliseconds by the cost model above, for shapes known when compiling.

    The rates are operations a millisecond on two CPU cores: dense products, factorisations (which
    are small) and products with layers. Conjugate gradients are reckoned at 15 steps and 3 ms for
    the preconditioner, what cartpole took at its hardest. Where each state has `rank` rows, products cost as much as with one.
    """
    dense, factor, layer = 80e6, 25e6, 30e6
    product = 4 * rows / rank * parameters / layer
    cost: dict[Literal["cholesky", "sample", "cg"], float] = {
        "cholesky": 1.5 * rows * parameters**2 / dense + parameters**3 / 3 / factor,
        "sample": rows**3 / 3 / factor + 4 * product,
        "cg": 15 * product + 3,
    }
    return min(cost, key=lambda method: cost[method])


def _direct(fisher: Fisher, damping: Float[Array, ""] | float, method: Method) -> Inverse:
    """(F + εI)⁻¹ by factoring the d×d matrix, or the N×N one."""
    if method == "cholesky":
        return _factored(fisher.matrix(), damping)
    return _refined(fisher, damping, _sample_space(fisher, fisher.gram(), damping))


def _preconditioner(
    few: Fisher, damping: Float[Array, ""] | float
) -> tuple[Inverse, Float[Array, ""]]:
    """(F + ε′I)⁻¹ on a few rows by factoring the smaller matrix, and ε′.

    ε′ is at least what rounding does to the matrix. Below that its inverse is noise, and need not even be
    positive: at ε = 1e-3 and eigenvalues up to 6,600 (two layers of 64 units on a double pendulum)
    conjugate gradients left a residual of 0.31 after 100 steps, and reach 0.01 in 80 with ε′ = 0.05.
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
    """(F + εI)⁻¹ g = (g − H (HᵀH + εI)⁻¹ Hᵀ g) / ε with H = J C^½, by factoring the N×N matrix HᵀH."""
    root = fisher.root_coefficients()
    inner = _factored(gram, damping)
    return lambda g: (g - fisher.scores.pull(root * inner(root * fisher.scores.push(g)))) / damping


def _refined(fisher: Fisher, damping: Float[Array, ""] | float, inverse: Inverse) -> Inverse:
    """The inverse applied once more to the residual, which restores digits lost in the difference above."""

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
