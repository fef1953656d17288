"""Section 5 of the paper with one command: every figure, and an answer to every claim.

`protocol` has the settings, `cells` runs them and keeps what is finished, `figures` draws,
`comparisons` compares runs, `attribution` tells reuse from more steps, `verdicts` answers, `page`
writes it all down.
"""

import dataclasses
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from recollect.checks import check_count, check_name
from recollect.envs import ENGINES
from recollect.paper.attribution import attribution_table
from recollect.paper.cells import AbstractCell, Cell, TheoryCell, finish
from recollect.paper.figures import CURVES, FIGURES, densities, frames, fresh_cells
from recollect.paper.fresh import FreshCell, draw_fresh, fresh_table
from recollect.paper.page import page, write_seeds
from recollect.paper.protocol import FULL, PROTOCOLS, QUICK
from recollect.paper.verdicts import Claim, claims
from recollect.runtime import progress_bar


@dataclasses.dataclass(frozen=True)
class Paper:
    """Reproduce the experiments of the paper.

    Finished parts are kept in the folder: a run that was stopped goes on where it was.
    """

    figures: tuple[str, ...] = FIGURES
    """Which: fig1 to fig9, trpo, trpo-pendulum, step, why (the last not in a quick run); all if not
    given."""
    protocol: str = "sgd"
    """How the text is read: sgd (the main one), adam, sgd-gaussian, adam-gaussian."""
    quick: bool = False
    """A version of all in two minutes, to see that it works."""
    seeds: int | None = None
    """Replications of each curve; 50 if not given, as in the paper."""
    engine: str = "auto"
    """What runs the environments: auto, compiled, gymnasium or envpool."""

    def __post_init__(self):
        for name in self.figures:
            check_name("figures", name, FIGURES)
        check_name("protocol", self.protocol, PROTOCOLS)
        check_name("engine", self.engine, ENGINES)
        if self.seeds is not None:
            check_count("seeds", self.seeds)

    def place(self, folder: Path) -> Path:
        """Where in `folder` the results go: runs of different kinds keep out of each other's way.

        Example:
            >>> Paper(protocol="adam", quick=True).place(Path("results")).as_posix()
            'results/adam/quick'
        """
        kinds = {
            self.protocol: "sgd",
            self.engine: "auto",
            "quick" if self.quick else "full": "full",
        }
        return folder.joinpath(*[kind for kind, usual in kinds.items() if kind != usual])

    def run(self, folder: Path) -> list[Claim]:
        """Compute what is missing, then write pictures, tables and README.md.

        Args:
            folder: of the results; `place` says where in it they go.

        Returns:
            Answers to the claims that everything finished in that place can answer.
        """
        protocol = PROTOCOLS[self.protocol]
        scale = QUICK if self.quick else FULL
        scale = dataclasses.replace(scale, engine=self.engine, seeds=self.seeds or scale.seeds)
        place = self.place(folder)
        place.mkdir(parents=True, exist_ok=True)
        kept = place / "cells"
        plan = {name: figure.cells(protocol, scale) for name, figure in CURVES.items()}
        theory = TheoryCell(scale.normality)
        fresh = fresh_cells(protocol, scale)
        if "fig1" in self.figures:
            self._frames(place / "fig1.png")
        self._compute(kept, plan, theory, fresh)

        outcomes = {}
        for name, cells in plan.items():
            if all(cell.finished(kept) for cell in cells.values()):
                outcomes[name] = {label: cell.outcome(kept) for label, cell in cells.items()}
                CURVES[name].draw(place / f"{name}.png", outcomes[name])
                if not CURVES[name].timed:
                    for label, cell in cells.items():
                        write_seeds(place / "curves" / f"{cell.name}.csv", outcomes[name][label])
        rows = None
        if theory.finished(kept):
            findings = theory.findings(kept)
            rows = findings.rows
            densities(place, findings)
        looks = []
        if all(cell.finished(kept) for cell in fresh.values()):
            draw_fresh(place / "why.png", fresh, kept)
            looks = fresh_table(fresh, kept)
        answers = claims(outcomes, rows)
        parts = attribution_table(plan["fig7"], outcomes["fig7"]) if "fig7" in outcomes else []
        drawn = {*outcomes, *(["fig8", "fig9"] if rows else []), *(["why"] if looks else [])}
        drawn |= {"fig1"} if (place / "fig1.png").exists() else set()
        title = f"protocol `{self.protocol}`, {scale.seeds or protocol.seeds} replications"
        title += ", a quick run" if self.quick else ""
        text = page(title, answers, outcomes, rows, looks, drawn, parts)
        (place / "README.md").write_text(text, encoding="utf-8")
        return answers

    def _compute(
        self,
        kept: Path,
        plan: Mapping[str, Mapping[str, Cell]],
        theory: TheoryCell,
        fresh: Mapping[str, FreshCell],
    ) -> None:
        """Run what the figures need and is not kept yet."""
        # Figures share cells, hence by name. A quick run is too short to tell times.
        wanted = {
            cell.name: (cell, CURVES[name].timed)
            for name in self.figures
            if name in plan
            for cell in plan[name].values()
        }
        together: list[AbstractCell] = [
            cell for cell, timed in wanted.values() if not timed or self.quick
        ]
        alone = [cell for cell, timed in wanted.values() if timed and not self.quick]
        if "fig8" in self.figures or "fig9" in self.figures:
            together.append(theory)
        if "why" in self.figures and not self.quick:
            together += fresh.values()
        with progress_bar(sys.stderr.isatty(), "paper") as show:
            remaining = lambda left: "" if np.isnan(left) else f"about {left / 60:.0f} min left"
            finish(together, alone, kept, lambda share, left: show(share, remaining(left)))

    def _frames(self, path: Path) -> None:
        """Rendering needs packages, and a driver for OpenGL, that the experiments do without."""
        try:
            frames(path)
        except Exception as error:
            says = (
                f"fig1 cannot be rendered here ({type(error).__name__}: {error}); "
                "pip install 'recollect[paper]', or set MUJOCO_GL."
            )
            if self.figures == ("fig1",):
                raise ValueError(says) from error
            warnings.warn(says, stacklevel=2)
