"""`recollect theory EXPERIMENT`: the theorems of the paper, checked."""

import dataclasses
from datetime import datetime
from pathlib import Path
from typing import Annotated

import jax
import tyro

from recollect import __version__
from recollect.cli.shared import console, parse
from recollect.runtime import use_compilation_cache
from recollect.serial import to_json, write_settings
from recollect.theory import EXPERIMENTS


def theory(name: str, flags: list[str], words: list[str]) -> int:
    experiment = EXPERIMENTS[name]
    where = tyro.conf.arg(help="Folder for the results; a new one below runs/ if not given.")
    as_json = tyro.conf.arg(help="Print the table as one JSON list in the last line.")
    own = Annotated[experiment, tyro.conf.arg(name="")]
    kind = dataclasses.make_dataclass(
        "Theory",
        [
            ("experiment", own, dataclasses.field(default_factory=experiment)),
            ("out", Annotated[Path | None, where], None),
            ("json", Annotated[bool, as_json], False),
        ],
        frozen=True,
    )
    kind.__doc__ = experiment.__doc__
    chosen, _ = parse(kind, flags, f"recollect theory {name}")
    folder = chosen.out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-theory-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    about = dict(command=["recollect", *words], version=__version__, jax=jax.__version__)
    write_settings(folder / "settings.json", {**about, name: chosen.experiment})
    use_compilation_cache()
    findings = chosen.experiment.run()
    written = findings.write(folder)
    out = console(width=160, stderr=chosen.json)
    out.print(findings.table())
    out.print(findings.verdict)
    names = ", ".join(path.name for path in written)
    out.print(f"wrote {folder}/{names}, settings.json", soft_wrap=True)
    if chosen.json:
        print(to_json(findings.rows))
    return 0
