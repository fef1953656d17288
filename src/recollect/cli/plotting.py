"""`recollect plot RUN…`: learning curves of runs that are over, or still go on."""

from collections import Counter
from pathlib import Path

from recollect.checks import check_name
from recollect.cli.flags import Plot, parse
from recollect.cli.shared import console
from recollect.report.curves import read_curve, runs_in
from recollect.report.plot import NOTHING, draw_curves

FORMATS = (".png", ".svg", ".pdf")


def plot(flags: list[str], words: list[str]) -> int:
    """`recollect plot RUN…`."""
    del words
    asked, _ = parse(Plot, flags, "recollect plot")
    if not asked.runs:
        raise ValueError("there is no run to draw; give the folders of some.")
    check_name("the picture's ending", asked.out.suffix, FORMATS)
    folders = [pair for path in asked.runs for pair in runs_in(path).items()]
    curves = [read_curve(name, folder, asked.x) for name, folder in _named(folders)]
    silent = draw_curves(asked.out, curves, asked.x)
    out = console()
    for name in silent:
        out.print(f"{name}: {NOTHING}", soft_wrap=True)
    out.print(f"wrote {asked.out}", soft_wrap=True)
    return 0


def _named(folders: list[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """Names that differ: those of runs that are called alike tell their folders, too."""
    alike = Counter(name for name, _ in folders)
    return [(f"{name}-{folder}" if alike[name] > 1 else name, folder) for name, folder in folders]
