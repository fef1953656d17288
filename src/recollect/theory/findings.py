"""What an experiment of the laboratory gives back, and how it is shown and kept.

An experiment is a frozen dataclass whose fields are its settings (and so its flags on the command line) with a method
`run() -> Findings`.
"""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

Value = float | int | str | bool | Sequence[float] | None


@dataclasses.dataclass(frozen=True)
class Findings:
    """Figures in rows, pictures, and what they say in words."""

    rows: Sequence[Mapping[str, Value]]
    """All with the same names; intervals are pairs of numbers."""
    verdict: str
    """One or a few sentences, in figures: what holds, and what does not."""
    pictures: Mapping[str, Figure]
    """By file name without its ending."""

    def table(self) -> Table:
        table = Table(*self.rows[0])
        for row in self.rows:
            table.add_row(*[_text(value) for value in row.values()])
        return table

    def write(self, folder: Path) -> list[Path]:
        """The pictures, table.csv and verdict.txt in a folder; the pictures are closed."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.png" for name in self.pictures]
        for path, picture in zip(paths, self.pictures.values(), strict=True):
            picture.savefig(path, dpi=150)
            plt.close(picture)
        with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.rows[0])
            writer.writerows([_text(value) for value in row.values()] for row in self.rows)
        (folder / "verdict.txt").write_text(self.verdict + "\n", encoding="utf-8")
        return [*paths, folder / "table.csv", folder / "verdict.txt"]


def panels(
    rows: int, columns: int, width: float = 5.2, height: float = 3.6
) -> tuple[Figure, list[Axes]]:
    """A picture of several axes, row by row, in the style of the house."""
    figure, grid = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False
    )
    axes = list(grid.ravel())
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.25)
    return figure, axes


def _text(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_text(part) for part in value)}]"
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
