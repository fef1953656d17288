"""Figures of docs/paper.md that `recollect paper` does not print, from the cells that it keeps.

    python benchmarks/paper_details.py FOLDER      # the folder given to recollect paper as --out

- how far the returns of VPG and RPG in the last tenth of a run are a matter of the seed;
- the standard error of RPG over that of VPG at equal mean return;
- when RNPG reaches a mean return of 150 for each window, where it ends, and how long its directions
  are in iterations 11 to 30;
- with a Fisher window of 10, how many seeds fall late, and how long the longest directions are.
"""

import sys
from pathlib import Path

import numpy as np

from recollect.report.tables import markdown

SMOOTH = 15
"""Iterations over which means and standard errors are averaged before they are compared."""


def read(folder: Path, cell: str, what: str) -> np.ndarray:
    """A curve of all seeds of a cell, with axes seed, iteration."""
    first_seed = lambda path: int(path.stem.split("-")[-2])
    parts = [
        path
        for path in (folder / "cells").glob(f"{cell}-*.npz")
        if path.stem.removeprefix(f"{cell}-").count("-") == 1
    ]
    curves = [np.load(path)[what] for path in sorted(parts, key=first_seed)]
    return np.concatenate(curves)


def matter_of_the_seed(vpg: np.ndarray, rpg: np.ndarray) -> float:
    """Correlation over seeds of the mean returns in the last tenth."""
    last = vpg.shape[1] // 10
    return float(np.corrcoef(vpg[:, -last:].mean(1), rpg[:, -last:].mean(1))[0, 1])


def error_at_equal_return(vpg: np.ndarray, rpg: np.ndarray) -> float:
    """Median ratio of standard errors where both have the same mean return."""

    def smooth(curve: np.ndarray) -> np.ndarray:
        return np.convolve(curve, np.ones(SMOOTH) / SMOOTH, "valid")

    mean = lambda returns: smooth(returns.mean(0))
    error = lambda returns: smooth(returns.std(0, ddof=1) / len(returns) ** 0.5)
    order = np.argsort(mean(vpg))
    both = mean(rpg) <= mean(vpg).max()
    at_equal = np.interp(mean(rpg), mean(vpg)[order], error(vpg)[order])
    return float(np.median((error(rpg) / at_equal)[both]))


def fallen(returns: np.ndarray) -> int:
    """Seeds in which the mean of some ten iterations after the sixtieth is below 100."""
    late = np.stack([returns[:, i : i + 10].mean(1) for i in range(60, returns.shape[1] - 9)])
    return int((late.min(0) < 100).sum())


def main() -> None:
    folder = Path(sys.argv[1])
    rows = []
    for task in ("cartpole", "pendulum-grid"):
        vpg, rpg = (read(folder, f"sgd-{task}-{name}", "return_mean") for name in ("vpg", "rpg"))
        rows.append(
            (
                task,
                f"{matter_of_the_seed(vpg, rpg):.2f}",
                f"{error_at_equal_return(vpg, rpg):.2f}",
            )
        )
    print(*markdown(("task", "correlation", "error at equal return"), rows), sep="\n")
    print()

    rows = []
    for label, cell in {
        "10, 10": "rnpg",
        "50, 50": "rnpg-50-50",
        "100, 100": "rnpg-100-100",
        "50, 10": "rnpg-50-10",
        "100, 10": "rnpg-100-10",
    }.items():
        returns = read(folder, f"sgd-cartpole-{cell}", "return_mean")
        lengths = read(folder, f"sgd-cartpole-{cell}", "direction_norm")
        rows.append(
            (
                label,
                int(np.argmax(returns.mean(0) >= 150)) + 1,
                f"{returns[:, -50:].mean():.1f}",
                f"{np.median(lengths[:, 10:30]):.0f}",
                f"{fallen(returns)} of {len(returns)}",
                f"{np.quantile(lengths[:, 50:], 0.99):.0f}",
            )
        )
    columns = (
        "K₁, K₂",
        "150 reached",
        "last 50",
        "length, 11 – 30",
        "seeds that fall",
        "99 % of lengths after 50",
    )
    print(*markdown(columns, rows), sep="\n")


if __name__ == "__main__":
    main()
