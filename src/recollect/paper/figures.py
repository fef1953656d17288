"""The figures of section 5: which cells each needs, and how it is drawn."""

import abc
import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import gymnasium as gym
import numpy as np

from recollect.algorithms import AbstractAlgorithm
from recollect.paper.attribution import control_label, controls
from recollect.paper.cells import Cell, Outcome
from recollect.paper.fresh import FreshCell
from recollect.paper.protocol import CARTPOLE, EXPLICIT, PENDULUM, Problem, Scale
from recollect.report.plot import COLOURS, learning_curves, panels, save
from recollect.run.section5 import Protocol
from recollect.serial import write_csv
from recollect.statistics import standard_error
from recollect.step.solve import Auto
from recollect.theory.findings import Findings


def cell(
    name: str,
    problem: Problem,
    protocol: Protocol,
    algorithm: AbstractAlgorithm,
    scale: Scale,
    **changes,
) -> Cell:
    """One curve: an algorithm on a problem under a protocol.

    Args:
        name: of the algorithm and its setting, part of the names of its files.
        problem: cartpole or the inverted pendulum.
        protocol: settings of the paper.
        algorithm: what is run.
        scale: how much is run.
        **changes: fields of the cell that differ from what follows from the others.
    """
    kind = "cartpole" if problem is CARTPOLE else "pendulum"
    head = f"-{protocol.head}" if problem is PENDULUM else ""
    settings = Cell(
        name=f"{protocol.optimizer}-{kind}{head}-{name}".lower(),
        env=problem.env,
        max_steps=problem.max_steps,
        iterations=scale.iterations.get(problem.env, problem.iterations),
        episodes=protocol.episodes,
        policy=protocol.policy(problem.policy),
        algorithm=algorithm,
        engine=scale.engine,
        seeds=scale.seeds or protocol.seeds,
    )
    return dataclasses.replace(settings, **changes)


class AbstractFigure(abc.ABC):
    """A figure of curves; its cells by their labels in the legend."""

    title: str
    """Of the picture."""
    timed: bool = False
    """Whether it is about time, so that its cells run one by one."""
    note: str = ""
    """What a reader of the page should know beside the table."""

    @abc.abstractmethod
    def cells(self, protocol: Protocol, scale: Scale) -> dict[str, Cell]:
        """What has to be run, by its label in the legend."""

    def draw(self, path: Path, outcomes: Mapping[str, Outcome]) -> None:
        """The picture, and beside it mean and standard error of every curve as CSV.

        Args:
            path: of the picture.
            outcomes: of all cells, by their labels.
        """
        returns = {label: outcome.returns for label, outcome in outcomes.items()}
        learning_curves(path, returns, self.title, controls(returns))
        columns = {}
        for label, curves in returns.items():
            columns[f"{label} mean"] = curves.mean(0)
            columns[f"{label} standard error"] = standard_error(curves)
        rows = [
            (i + 1, *[f"{number:.6g}" for number in row])
            for i, row in enumerate(zip(*columns.values(), strict=True))
        ]
        write_csv(path.with_suffix(".csv"), ["iteration", *columns], rows)


@dataclasses.dataclass(frozen=True)
class FourAlgorithms(AbstractFigure):
    """Figures 2 and 3."""

    title: str
    problem: Problem

    def cells(self, protocol, scale):
        return {
            name: cell(name, self.problem, protocol, algorithm, scale)
            for name, algorithm in protocol.gradients().items()
        }


def _rnpg(protocol: Protocol, scale: Scale, window: int, fisher_window: int) -> Cell:
    """RNPG on cartpole; where figure 2 has the same setting, its very cell, which runs once."""
    of_figure_2 = {(1, 1): "VNPG", (protocol.window, protocol.window): "RNPG"}
    name = of_figure_2.get((window, fisher_window))
    if name is not None:
        return cell(name, CARTPOLE, protocol, protocol.gradients()[name], scale)
    algorithm = protocol.rnpg(window, fisher_window)
    return cell(f"RNPG-{window}-{fisher_window}", CARTPOLE, protocol, algorithm, scale)


class ReuseSizes(AbstractFigure):
    """Figure 4."""

    title = "RNPG on cartpole, K₁ = K₂ = K"

    def cells(self, protocol, scale):
        return {f"K = {window}": _rnpg(protocol, scale, window, window) for window in scale.windows}


class GradientReuseSizes(AbstractFigure):
    """Figure 6."""

    title = "RNPG on cartpole, K₂ = 10"

    def cells(self, protocol, scale):
        windows = [window for window in scale.windows if window >= protocol.window]
        return {
            f"K₁ = {window}": _rnpg(protocol, scale, window, protocol.window) for window in windows
        }


class Clipped(AbstractFigure):
    """Figure 7."""

    title = "PPO (K = 1) and RPPO on cartpole"

    def cells(self, protocol, scale):
        run = lambda name, algorithm: cell(name, CARTPOLE, protocol, algorithm, scale)
        cells = {}
        for window in scale.ppo_windows:
            cells[f"K = {window}"] = run(f"PPO-{window}", protocol.ppo(window))
        for window in scale.ppo_windows:
            if window > 1:
                control = protocol.ppo_control(window)
                cells[control_label(window)] = run(f"PPO-1-steps-of-{window}", control)
        return cells


@dataclasses.dataclass(frozen=True)
class TrustRegion(AbstractFigure):
    """No figure of the paper: section 3.3 says that reuse extends to TRPO."""

    title: str
    problem: Problem
    note = (
        "Both move the policy once an update and fit the critic to the newest batch, so RTRPO\n"
        "takes no more gradient steps than TRPO: there is nothing to control for."
    )

    def cells(self, protocol, scale):
        windows = {"TRPO": 1, "RTRPO": protocol.window}
        cells = {
            name: cell(name, self.problem, protocol, protocol.trpo(window), scale)
            for name, window in windows.items()
        }
        at_most = scale.trpo_iterations
        return {
            name: dataclasses.replace(one, iterations=min(one.iterations, at_most))
            for name, one in cells.items()
        }


class LargerStep(AbstractFigure):
    """No figure of the paper: its claim about the plain gradient where noise matters."""

    title = "VPG and RPG on cartpole, a ten times larger step"

    def cells(self, protocol, scale):
        return {
            name: cell(f"{name}-step", CARTPOLE, protocol, one, scale)
            for name, one in protocol.larger_steps().items()
        }


class RunningTime(AbstractFigure):
    """Figure 5."""

    title = "seconds of RNPG on cartpole, mean over seeds"
    timed = True

    def cells(self, protocol, scale):
        cells = {}
        for explicit, solver in (("", Auto()), ("explicit ", EXPLICIT)):
            for window in scale.windows:
                for fisher_window in sorted({window, min(window, protocol.window)}):
                    name = f"time-{explicit.strip()}{window}-{fisher_window}"
                    algorithm = protocol.rnpg(window, fisher_window, solver)
                    cells[f"{explicit}{window} {fisher_window}"] = cell(
                        name,
                        CARTPOLE,
                        protocol,
                        algorithm,
                        scale,
                        iterations=scale.timing_iterations,
                        seeds=scale.timing_seeds,
                    )
        return cells

    def draw(self, path, outcomes):
        """Seconds against the reuse size, and beside the picture all times as CSV."""
        times = []  # (K₁, K₂, solver, seconds of a seed)
        for label, outcome in outcomes.items():
            window, fisher_window = label.removeprefix("explicit ").split()
            solver = "explicit" if label.startswith("explicit") else "ours"
            seconds = outcome.seconds / len(outcome.returns)
            times.append((int(window), int(fisher_window), solver, seconds))
        longest = max(window for window, *_ in times)
        small = min(fisher for window, fisher, *_ in times if window == longest)
        fisher_windows = {
            "(a) K₁ = K₂ = K": lambda window: window,
            f"(b) K₂ = min(K, {small})": lambda window: min(window, small),
        }
        figure, axes = panels(1, 2)
        for one, (title, fisher_of) in zip(axes, fisher_windows.items(), strict=True):
            lines = (("ours", "ours", COLOURS[1]), ("explicit", "explicit matrix", COLOURS[3]))
            for solver, label, colour in lines:
                points = sorted(
                    (window, seconds)
                    for window, fisher, used, seconds in times
                    if used == solver and fisher == fisher_of(window)
                )
                one.plot(*zip(*points, strict=True), marker="o", color=colour, label=label)
            one.set(title=title, xlabel="reuse size K", ylabel="seconds", ylim=(0, None))
        axes[0].legend(frameon=False)
        save(figure, path)
        rows = [(*setting, f"{seconds:.4g}") for *setting, seconds in times]
        write_csv(path.with_suffix(".csv"), ("K1", "K2", "solver", "seconds"), rows)


CURVES: dict[str, AbstractFigure] = {
    "fig2": FourAlgorithms("cartpole, at most 200 steps", CARTPOLE),
    "fig3": FourAlgorithms("inverted pendulum, at most 500 steps", PENDULUM),
    "fig4": ReuseSizes(),
    "fig5": RunningTime(),
    "fig6": GradientReuseSizes(),
    "fig7": Clipped(),
    "trpo": TrustRegion("TRPO on cartpole", CARTPOLE),
    "trpo-pendulum": TrustRegion("TRPO on the inverted pendulum", PENDULUM),
    "step": LargerStep(),
}
FIGURES = (
    "fig1",
    "fig2",
    "fig3",
    "fig4",
    "fig5",
    "fig6",
    "fig7",
    "fig8",
    "fig9",
    "trpo",
    "trpo-pendulum",
    "step",
    "why",
)
"""In the paper's order.

8 and 9 come from the theory laboratory, `why` compares gradients with fresh ones.
"""


def fresh_cells(protocol: Protocol, scale: Scale) -> dict[str, FreshCell]:
    """Looks at the gradients of RPG and RNPG on cartpole, ten seeds each."""
    runs = CURVES["fig2"].cells(protocol, scale)
    return {name: FreshCell(dataclasses.replace(runs[name], seeds=10)) for name in ("RPG", "RNPG")}


def frames(path: Path) -> None:
    """Figure 1: both tasks as Gymnasium renders them."""
    if sys.platform == "linux" and "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")  # else MuJoCo looks for a window
    figure, axes = panels(1, 2, width=4.0, height=3.4)
    tasks = {"CartPole-v1": "cartpole", "InvertedPendulum-v5": "inverted pendulum"}
    for one, (name, title) in zip(axes, tasks.items(), strict=True):
        env = gym.make(name, render_mode="rgb_array")
        env.reset(seed=0)
        for _ in range(4):
            env.step(env.action_space.sample() * 0)
        one.imshow(np.asarray(env.render()))
        env.close()
        one.set(title=title)
        one.axis("off")
    save(figure, path)


def densities(folder: Path, findings: Findings) -> None:
    """Figures 8 and 9, and their table.

    Args:
        folder: where they go.
        findings: of the experiment `Normality`.
    """
    for name, picture in {"fig8": "density", "fig9": "quantiles"}.items():
        save(findings.pictures[picture], folder / f"{name}.png")
    # Times differ from run to run, and the table is to be the same.
    columns = [name for name in findings.rows[0] if name != "seconds"]
    rows = [[row[name] for name in columns] for row in findings.rows]
    write_csv(folder / "fig8.csv", columns, rows)
