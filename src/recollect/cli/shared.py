"""What the commands share: flags become objects, and results are printed as they are."""

import sys
import warnings
from typing import Any

import matplotlib
import tyro
from rich.console import Console

from recollect.cli.fields import REGISTRY

matplotlib.use("agg")


def parse(kind: Any, words: list[str], program: str, strict: bool = True) -> tuple[Any, list[str]]:
    """The flags as an object of `kind`, and (unless `strict`) those that it does not know."""
    with warnings.catch_warnings():
        # Modules as defaults are frozen, which tyro cannot see.
        warnings.filterwarnings("ignore", message="Mutable type", category=UserWarning)
        with REGISTRY:
            if strict:
                return tyro.cli(kind, args=words, prog=program), []
            return tyro.cli(kind, args=words, prog=program, return_unknown_args=True)


def console(width: int, stderr: bool = False) -> Console:
    """Where results go; `width` is for tables where no terminal says how wide it is.

    Names of files and environments are the user's and may hold anything, brackets too.
    """
    known = None if sys.stdout.isatty() else width
    return Console(stderr=stderr, width=known, markup=False, emoji=False, highlight=False)
