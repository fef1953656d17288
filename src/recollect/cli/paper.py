"""`recollect paper`: the experiments of the paper."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from recollect.cli.flags import parse
from recollect.cli.machines import Tasks
from recollect.cli.shared import console
from recollect.machines import tasks_on
from recollect.paper import Paper
from recollect.runtime import compile_quickly, use_compilation_cache


@dataclasses.dataclass(frozen=True)
class PaperCommand(Tasks, Paper):
    __doc__ = Paper.__doc__

    figures: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="FIGURE", help=f"{', '.join(Paper.figures)}; all if none."),
    ] = Paper.figures
    out: Path = Path("runs/paper")
    """Folder for pictures, tables and README.md with the answers."""


def paper(flags: list[str], words: list[str]) -> int:
    """`recollect paper [FIGURE …]`."""
    del words
    plan, _ = parse(PaperCommand, flags, "recollect paper")
    if plan.quick:
        compile_quickly()
    use_compilation_cache()
    with tasks_on(plan.chosen()):
        answers = plan.run(plan.out)
    out = console()
    for claim in answers:
        sentence = f": “{claim.sentence}” ({claim.figure})"
        out.print(Text.assemble((claim.verdict, "bold"), sentence))
        for measured in claim.measured:
            out.print(f"    {measured}")
    place = plan.place(plan.out)
    out.print(f"wrote {place}/README.md and the figures beside it", soft_wrap=True)
    return 0
