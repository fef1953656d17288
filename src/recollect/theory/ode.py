"""Theorem 1: with small steps the iterates follow an ordinary differential equation.

They do so whether or not samples are reused. Here paths of the algorithms are compared with the
solution of the equation θ' = F̄⁻¹(θ) ∇η(θ) + z (`recollect.theory.flow`), and, as a control, with
that of a wrong one, from which the distance must not vanish. Paths cost replications × horizon/α
updates for each step size α.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from matplotlib.axes import Axes

from recollect.algorithms import NPG
from recollect.algorithms.base import bind
from recollect.checks import check_count, check_number
from recollect.collect.rollout import Rollout
from recollect.envs import AbstractOracle
from recollect.estimate.advantages import ExactAdvantages
from recollect.keys import numbered
from recollect.memory.weights import WEIGHT_RULES, Ratio
from recollect.report.plot import COLOURS
from recollect.run.section5 import algorithm_1
from recollect.runtime import one_blas_thread
from recollect.statistics import jackknife, standard_error
from recollect.step.project import Box
from recollect.theory.enumeration import check_outcomes, small_mdp
from recollect.theory.findings import Findings, panels
from recollect.theory.flow import BLOCK, Problem, integrate, lqc_problem, tabular_problem
from recollect.tree import flatten, traced_numbers


def interval(value: float, error: float, width: float = 1.96) -> tuple[float, float]:
    """value ± width × error; 95 % by the normal approximation if `width` is not given.

    Example:
        >>> interval(1.0, 0.5, width=2.0)
        (0.0, 2.0)
    """
    return value - width * error, value + width * error


def check_replications(replications: int) -> None:
    """Raise on fewer replications than a standard error needs."""
    check_count("replications", replications)
    remedy = "give at least 2, so that errors can be told"
    check_number("replications", replications, low=2, remedy=remedy)


SERIES: Mapping[str, tuple[bool, Ratio]] = {
    "VNPG": (False, "policy"),
    "RNPG ω": (True, "occupancy"),
    "RNPG ω̂": (True, "policy"),
}
"""Whether it reuses, and by which ratio."""
TOGETHER = 2.394
"""Standard errors in an interval of 95 % for the three of them together (Bonferroni)."""


@dataclasses.dataclass(frozen=True)
class Ode:
    """Do VNPG and RNPG, with the exact ratio ω and with the policy ratio ω̂, follow the same ODE?

    Theorem 1 and Corollary 2 say so. For each step size α, half the one before, paths run from the
    same start for the same time t_n = nα. Measured is max_n ‖θ_n − θ(t_n)‖, averaged over
    replications. Its power of α is fitted, and so is what is left of it as α → 0.
    """

    window: int = 5
    """K of RNPG: iterations reused in the gradient. The Fisher matrix always has fresh samples of
    its own (assumption A.1.7)."""
    samples: int = 5
    """B: independent draws from the occupancy measure for the gradient, and as many for the Fisher
    matrix."""
    damping: float = 0.1
    """ε, added to the diagonal of the Fisher matrix."""
    bound: float = 1.2
    """Every θ_i is kept between −bound and bound. The chain gets there within the default
    horizon."""
    horizon: float = 1.0
    """Time over which the equation is followed."""
    steps: int = 64
    """Updates over the horizon at the largest step size."""
    halvings: int = 4
    """How often the step size is halved."""
    replications: int = 128
    """Paths for each step size."""
    env: Path | None = None
    """A finite MDP of your own in the place of the chain: a NumPy file with transitions, rewards,
    initial, discount."""
    seed: int = 0
    """Of the samples."""

    def __post_init__(self):
        for field in ("window", "samples", "steps"):
            check_count(field, getattr(self, field))
        check_outcomes(small_mdp(self.env), self.samples)
        positive: dict[str, Any] = dict(low=0, high=float("inf"), open_low=True, open_high=True)
        for field in ("damping", "horizon"):
            value = getattr(self, field)
            check_number(field, value, **positive, remedy="give a number above 0")
        check_number("bound", self.bound, low=1, remedy="give at least 1, where LQC starts")
        check_count("halvings", self.halvings)
        remedy = "give at least 2, as three step sizes are needed to extrapolate to none"
        check_number("halvings", self.halvings, low=2, remedy=remedy)
        check_replications(self.replications)

    @property
    def step_sizes(self) -> Float[np.ndarray, " step"]:
        """α, largest first."""
        return self.horizon / self.steps / 2.0 ** np.arange(self.halvings + 1)

    def run(self) -> Findings:
        """Simulate all paths and compare them with the solutions of both equations."""
        figure, axes = panels(2, 2)
        rows = []
        words = []
        with one_blas_thread():
            problems = {
                "LQC": lqc_problem(self.samples, self.damping),
                "chain" if self.env is None else self.env.stem: tabular_problem(
                    small_mdp(self.env), self.samples, self.damping
                ),
            }
            for place, (name, problem) in zip((0, 2), problems.items(), strict=True):
                right, wrong = self.solutions(problem)
                paths = {series: self.paths(problem, series) for series in SERIES}
                distances = {series: self.distances(paths[series], right) for series in SERIES}
                control = self.distances(paths["VNPG"], wrong)
                rows += self._rows(name, distances, control)
                words.append(self._words(name, distances, control))
                self._draw(axes[place : place + 2], name, paths, distances, control, (right, wrong))
        return Findings(rows, "\n".join(words), {"ode": figure})

    def algorithm(self, env: AbstractOracle, series: str, step_size: float) -> NPG:
        """The algorithm of a name in `SERIES`."""
        reuse, ratio = SERIES[series]
        algorithm = algorithm_1(
            window=self.window if reuse else 1,
            fisher_window=1,
            independent_fisher=True,
            damping=self.damping,
            discount=env.discount,
            objective_scale=True,
            advantages=ExactAdvantages(),
            weights=WEIGHT_RULES[ratio](),
            project=Box(-self.bound, self.bound),
            learning_rate=step_size,
        )
        return traced_numbers(algorithm)

    def solutions(
        self, problem: Problem
    ) -> tuple[Float[np.ndarray, "point d"], Float[np.ndarray, "point d"]]:
        """Of the right equation and of the wrong one."""
        start = flatten(problem.start)[0]
        solve = lambda drift: np.asarray(integrate(drift, start, self.bound, self.horizon))
        return solve(problem.drift), solve(problem.naive_drift)

    def paths(self, problem: Problem, series: str) -> list[Float[np.ndarray, "replication _ d"]]:
        """θ_1, θ_2, … for each step size, largest first."""
        paths = []
        for halving, step_size in enumerate(self.step_sizes):
            algorithm = self.algorithm(problem.env, series, float(step_size))
            key = numbered(jax.random.key(self.seed), halving)
            states = _start(algorithm, problem, self.samples, self.replications)
            pieces = []
            # 2^j · steps updates run as 2^j pieces, so that one compiled program serves all.
            for piece in range(2**halving):
                normal = jax.random.normal(
                    numbered(key, piece),
                    (self.replications, self.steps, 2, self.samples, 3),
                )
                states, θ = _advance(algorithm, problem, states, normal)
                pieces.append(np.asarray(θ))
            paths.append(np.concatenate(pieces, axis=1))
        return paths

    def distances(
        self,
        paths: list[Float[np.ndarray, "replication _ d"]],
        solution: Float[np.ndarray, "point d"],
    ):
        """max_n ‖θ_n − θ(t_n)‖ for each replication and step size."""
        gap = lambda path: path - self._at(solution, path.shape[1])
        return np.stack([np.linalg.norm(gap(path), axis=-1).max(1) for path in paths], axis=1)

    def power(self, distances: Float[np.ndarray, "replication step"]) -> tuple[float, float]:
        """p of mean distance ∝ α^p, by least squares in logs, and its standard error."""
        slope = lambda x: np.polyfit(np.log(self.step_sizes), np.log(x.mean(0)), 1)[0]
        return jackknife(slope, distances)

    def remainder(self, distances: Float[np.ndarray, "replication step"]) -> tuple[float, float]:
        """c of mean distance = c + c₁ √α + c₂ α, and its standard error.

        Noise is of order √α, lag and bias are of order α. Least squares, each step size weighted
        by the inverse of its standard error.
        """
        powers = self.step_sizes[:, None] ** np.array([0, 0.5, 1])
        weights = np.sqrt(len(distances)) / np.maximum(distances.std(0), np.finfo(float).tiny)
        fit = lambda x: np.linalg.lstsq(powers * weights[:, None], x.mean(0) * weights)[0]
        return jackknife(lambda x: fit(x)[0], distances)

    def _at(
        self, solution: Float[np.ndarray, "point d"], updates: int
    ) -> Float[np.ndarray, "update d"]:
        """The solution at t_1, …, t_updates."""
        times = np.arange(1, updates + 1) / updates
        grid = np.linspace(0, 1, len(solution))
        return np.stack([np.interp(times, grid, one) for one in solution.T], axis=1)

    def _rows(
        self, problem: str, distances: Mapping[str, Float[np.ndarray, "replication step"]], control
    ):
        cases = [(name, "F̄⁻¹∇η", values) for name, values in distances.items()]
        cases.append(("VNPG", "(εI + F)⁻¹∇η", control))
        return [
            dict(
                problem=problem,
                algorithm=name,
                equation=equation,
                step_size=float(α),
                sup_distance=float(one.mean()),
                standard_error=float(standard_error(one)),
            )
            for name, equation, values in cases
            for α, one in zip(self.step_sizes, values.T, strict=True)
        ]

    def _words(
        self, problem: str, distances: Mapping[str, Float[np.ndarray, "replication step"]], control
    ) -> str:
        """What the distances say: their powers of α, and what is left of them as α → 0."""
        wide = lambda value, error: interval(value, error, TOGETHER)
        powers = {name: wide(*self.power(values)) for name, values in distances.items()}
        left = {name: wide(*self.remainder(values)) for name, values in distances.items()}
        wrong = interval(*self.remainder(control))
        show = lambda intervals: ", ".join(
            f"{name} [{low:.3f}, {high:.3f}]" for name, (low, high) in intervals.items()
        )
        falls = [name for name, (low, _) in powers.items() if low > 0]
        vanishes = [name for name, (low, _) in left.items() if low <= 0]
        same = len(falls) == len(vanishes) == len(distances)
        return (
            f"{problem}: the sup-distance falls as α^p with p in {show(powers)}: "
            f"it falls for {', '.join(falls) or 'none'}. "
            f"Extrapolated to α = 0 it leaves {show(left)}, "
            f"above 0 for {len(left) - len(vanishes)} of {len(left)}: "
            f"{'the three share' if same else 'it is not shown that the three share'} "
            "the limit of Theorem 1. "
            f"From the equation with (εI + F)⁻¹ VNPG keeps [{wrong[0]:.3f}, {wrong[1]:.3f}]: "
            f"the experiment {'can' if wrong[0] > 0 else 'cannot'} tell the two apart."
        )

    def _draw(self, axes, problem: str, paths, distances, control, solutions) -> None:
        """Paths and solutions on the left, distances against the step size on the right."""
        left, right = axes
        self._draw_paths(left, problem, paths, solutions)
        self._draw_distances(right, problem, distances, control)
        for one in axes:
            one.legend(frameon=False, fontsize=8)

    def _draw_paths(self, axes: Axes, problem: str, paths, solutions) -> None:
        component = int(solutions[0][-1].argmax())
        for (name, some), colour in zip(paths.items(), COLOURS[1:], strict=False):
            for path, width in ((some[0], 0.8), (some[-1], 1.4)):
                times = np.arange(1, path.shape[1] + 1) / path.shape[1] * self.horizon
                alpha = 0.45 if width < 1 else 1
                line = path[0, :, component]
                axes.plot(times, line, color=colour, linewidth=width, alpha=alpha)
            axes.plot([], [], color=colour, label=name)
        looks = (("-", "F̄⁻¹∇η"), ("--", "(εI + F)⁻¹∇η"))
        for solution, (style, label) in zip(solutions, looks, strict=True):
            times = np.linspace(0, self.horizon, len(solution))
            line = solution[:, component]
            axes.plot(times, line, style, color="black", linewidth=2, label=label)
        thin, thick = self.step_sizes[[0, -1]]
        # The problem may be a file of the user's, with dollars in its name.
        title = f"{problem}: a path each, α = {thin:.2g} (thin) and {thick:.2g}"
        axes.set_title(title, parse_math=False)
        axes.set(xlabel="time t = nα", ylabel=f"θ_{component}")

    def _draw_distances(self, axes: Axes, problem: str, distances, control) -> None:
        lines = [*distances.items(), ("VNPG to (εI + F)⁻¹∇η", control)]
        colours = (*COLOURS[1:4], COLOURS[0])
        for (name, values), colour, marker in zip(lines, colours, "osD^", strict=True):
            error = standard_error(values)
            # ω and ω̂ lie on each other: the second is larger and hollow.
            hollow = marker == "D"
            style: dict[str, Any] = dict(
                color=colour,
                marker=marker,
                markerfacecolor="none" if hollow else colour,
                markersize=9 if hollow else 5,
                capsize=2,
                linewidth=1,
            )
            axes.errorbar(self.step_sizes, values.mean(0), 1.96 * error, label=name, **style)
        guide = distances["VNPG"].mean(0)[-1] * 0.6 * np.sqrt(self.step_sizes / self.step_sizes[-1])
        axes.plot(self.step_sizes, guide, ":", color="black", label="∝ √α")
        axes.set_title(f"{problem}: largest distance from the solution", parse_math=False)
        axes.set(xlabel="step size α", ylabel="mean sup-distance")
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(self.step_sizes, [f"{α:.2g}" for α in self.step_sizes], minor=False)
        axes.set_xticks([], minor=True)


@eqx.filter_jit
def _start(algorithm: NPG, problem: Problem, samples: int, replications: int):
    """States at the start, with empty histories."""
    batch = problem.draw(problem.env, problem.start, jnp.zeros((samples, 3)))
    return jax.vmap(lambda key: algorithm.init(problem.start, batch, key))(
        jax.random.split(jax.random.key(0), replications)
    )


@eqx.filter_jit
def _advance(
    algorithm: NPG, problem: Problem, states, normal: Float[Array, "replication time 2 sample 3"]
):
    """As many updates as there are numbers, for all replications.

    Returns:
        The states after them, and θ after each.
    """

    def step(state, normal):
        batch, fisher_batch = (
            problem.draw(problem.env, state.policy, numbers) for numbers in normal
        )
        rollout = Rollout.of(batch, fisher_batch)
        state, _ = bind(algorithm, problem.env).update(state, rollout, jax.random.key(0))
        return state, flatten(state.policy)[0]

    return lax.map(lambda one: lax.scan(step, *one), (states, normal), batch_size=BLOCK)
