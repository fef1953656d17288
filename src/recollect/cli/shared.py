"""What the commands share: results are printed as they are, whoever reads them."""

import sys

import matplotlib
from rich.console import Console

matplotlib.use("agg")

PIPED = 1000
"""Columns where no terminal says how many there are: no table is cut or wrapped in a file."""


def console(stderr: bool = False) -> Console:
    """Where results go.

    Names of files and environments are the user's and may hold anything, brackets too.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)
