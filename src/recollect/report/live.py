"""A run in the terminal while it goes on: a table with a row for each seed."""

import contextlib
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from recollect.refusals import REFUSALS
from recollect.run.session import Chunk, Session, Until, Watcher
from recollect.run.show import fraction_done, note

MOST = 12
"""Seeds that have a row of their own."""


@contextlib.contextmanager
def live_table(label: str, until: Until, console: Console | None = None) -> Iterator[Watcher]:
    """A context with the watcher that keeps a table on the terminal up to date.

    Args:
        label: what the run is called.
        until: its limits.
        console: where the table is shown; standard error if not given.
    """
    console = Console(stderr=True) if console is None else console
    waiting = Text(f"{label}: compiling")
    with Live(waiting, console=console, auto_refresh=False) as live:
        live.refresh()

        def watch(session: Session, chunk: Chunk) -> None:
            live.update(table_of(session, chunk, label, until), refresh=True)

        yield watch


def table_of(session: Session, chunk: Chunk, label: str, until: Until) -> Table:
    """The figures of a run's latest iteration, a row for each seed.

    Args:
        session: the run.
        chunk: its latest iterations.
        label: what it is called.
        until: its limits.
    """
    done = fraction_done(session, until)
    columns = ("seed", "steps", "return", "KL", "ESS", "largest weight", "refused, latest reason")
    table = Table(*columns, title=Text(f"{label}  {done:.0%}"), caption=note(session, chunk))
    for column in table.columns[1:-1]:
        column.justify = "right"
    latest = chunk.latest
    refused = session.curves["refused"]
    for row, seed in enumerate(session.seeds[:MOST]):
        table.add_row(
            str(seed),
            f"{session.environment_steps[row]:,.0f}",
            _figure(latest, "recent_return", row, ".1f"),
            _figure(latest, "kl", row, ".2g"),
            _figure(latest, "ess", row, ",.0f"),
            _figure(latest, "max_weight", row, ".3g"),
            _refusals(refused[row]),
        )
    if len(session.seeds) > MOST:
        table.add_row("…", f"and {len(session.seeds) - MOST} more seeds")
    return table


def _figure(latest: dict[str, np.ndarray], name: str, row: int, form: str) -> str:
    value = latest[name][row] if name in latest else np.nan
    return format(value, form) if np.isfinite(value) else "–"


def _refusals(refused: np.ndarray) -> str:
    """How many updates of a seed were refused, and why the latest was."""
    codes = refused[np.isfinite(refused) & (refused > 0)].astype(int)
    return f"{len(codes)}: {REFUSALS[codes[-1]]}" if len(codes) else "none"
