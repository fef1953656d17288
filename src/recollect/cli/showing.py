"""`recollect report` and `recollect watch`: pages about runs, made without JAX."""

from recollect.cli.flags import Follow, Report, parse
from recollect.cli.shared import console
from recollect.report.page import write_report
from recollect.report.watch import serve


def report(flags: list[str], words: list[str]) -> int:
    """`recollect report RUN…`."""
    del words
    asked, _ = parse(Report, flags, "recollect report")
    if not asked.runs:
        raise ValueError("there is no run to tell of; give the folders of some.")
    written = write_report(asked.runs, asked.out, asked.animation)
    console().print(f"wrote {written}", soft_wrap=True)
    return 0


def watch(flags: list[str], words: list[str]) -> int:
    """`recollect watch RUN`."""
    del words
    asked, _ = parse(Follow, flags, "recollect watch")
    serve(asked.run, asked.port)
    return 0
