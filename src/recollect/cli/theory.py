"""`recollect theory EXPERIMENT`: the theorems of the paper, checked."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import jax
import tyro

from recollect import __version__
from recollect.cli import Terminated
from recollect.cli.flags import parse
from recollect.cli.machines import Tasks, answers
from recollect.cli.shared import console
from recollect.machines import tasks_kept, tasks_on
from recollect.run.files import numbered_folder
from recollect.runtime import use_compilation_cache
from recollect.serial import to_json, write_settings
from recollect.theory import EXPERIMENTS

Experiment = TypeVar("Experiment")
PARTS = "parts"
"""Folder of what is finished, in that of the results."""


@dataclasses.dataclass(frozen=True)
class Theory(Tasks, Generic[Experiment]):
    """An experiment, and where its results go."""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")] = tyro.MISSING
    out: Path | None = None
    """Folder for the results; if not given, the next free number below runs/theory/EXPERIMENT/.
    Finished parts are kept in it: a run that was stopped goes on where it was."""
    json: bool = False
    """Print the table as one JSON list in the last line."""


def theory(flags: list[str], words: list[str]) -> int:
    """`recollect theory EXPERIMENT`."""
    name, *rest = flags
    kind = EXPERIMENTS[name]
    chosen, _ = parse(
        Theory[kind],
        rest,
        f"recollect theory {name}",
        default=Theory(experiment=kind()),
        description=kind.__doc__,
    )
    folder = chosen.out or numbered_folder(Path("runs") / "theory" / name)
    folder.mkdir(parents=True, exist_ok=True)
    about = dict(command=["recollect", *words], version=__version__, jax=jax.__version__)
    write_settings(folder / "settings.json", {**about, name: chosen.experiment})
    use_compilation_cache()
    with answers(chosen.json and chosen.on == "ray") as answer:
        try:
            with tasks_on(chosen.chosen()), tasks_kept(folder / PARTS):
                findings = chosen.experiment.run()
        except (KeyboardInterrupt, Terminated, OSError) as stop:
            place = [] if chosen.out else ["--out", str(folder)]
            stop.add_note(f"go on with: {shlex.join(['recollect', *words, *place])}")
            raise
        written = findings.write(folder)
        out = console(stderr=chosen.json)
        out.print(findings.table())
        out.print(findings.verdict)
        names = ", ".join(path.name for path in written)
        out.print(f"wrote {folder}/{names}, settings.json", soft_wrap=True)
        if chosen.json:
            print(to_json(findings.rows), file=answer)
    return 0
