"""`recollect paper`: the experiments of the paper."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from recollect.cli.shared import console, parse
from recollect.paper import Paper
from recollect.runtime import compile_quickly, use_compilation_cache


def paper(flags: list[str]) -> int:
    positional = Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="FIGURE", help=f"{', '.join(Paper.figures)}; all if none."),
    ]
    where = tyro.conf.arg(help="Folder for pictures, tables and README.md with the answers.")
    fields = [field for field in dataclasses.fields(Paper) if field.name != "figures"]
    kind = dataclasses.make_dataclass(
        "PaperCommand",
        [
            ("figures", positional, ()),
            *[(field.name, field.type, field.default) for field in fields],
            ("out", Annotated[Path, where], Path("runs/paper")),
        ],
        frozen=True,
    )
    kind.__doc__ = Paper.__doc__
    chosen, _ = parse(kind, flags, "recollect paper")
    settings = {field.name: getattr(chosen, field.name) for field in dataclasses.fields(Paper)}
    plan = Paper(**{**settings, "figures": chosen.figures or Paper.figures})
    if plan.quick:
        compile_quickly()
    use_compilation_cache()
    answers = plan.run(chosen.out)
    out = console(width=160)
    for claim in answers:
        sentence = f": “{claim.sentence}” ({claim.figure})"
        out.print(Text.assemble((claim.verdict, "bold"), sentence))
        for measured in claim.measured:
            out.print(f"    {measured}")
    place = plan.place(chosen.out)
    out.print(f"wrote {place}/README.md and the figures beside it", soft_wrap=True)
    return 0
