"""What an experiment of the laboratory gives back, and how it is shown and kept.

An experiment is a frozen dataclass whose fields are its settings (and so its flags on the command
line) with a method `run() -> Findings`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from recollect.report.plot import panels as panels
from recollect.report.plot import save
from recollect.serial import write_csv

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
        """The rows as a table for the terminal."""
        table = Table(*self.rows[0])
        for row in self.rows:
            table.add_row(*[_text(value) for value in row.values()])
        return table

    def write(self, folder: Path) -> list[Path]:
        """Write the pictures, table.csv and verdict.txt, and close the pictures.

        Args:
            folder: where they go; it is made if it is not there.

        Returns:
            The paths of what was written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.png" for name in self.pictures]
        for path, picture in zip(paths, self.pictures.values(), strict=True):
            save(picture, path)
        cells = [[_text(value) for value in row.values()] for row in self.rows]
        write_csv(folder / "table.csv", self.rows[0], cells)
        (folder / "verdict.txt").write_text(self.verdict + "\n", encoding="utf-8")
        return [*paths, folder / "table.csv", folder / "verdict.txt"]


def _text(value: Any) -> str:
    """A cell of a table: numbers with six digits, intervals in brackets, nothing for None."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_text(part) for part in value)}]"
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
