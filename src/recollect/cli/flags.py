"""The flags that do not depend on an algorithm, as dataclasses whose fields are the flags.

Nothing here needs JAX, so that the help of a command is there at once. The fields of algorithms
are flags, too; `fields` and `plan` add them.
"""

import contextlib
import dataclasses
import io
import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from recollect.cli import ALGORITHMS
from recollect.cli.machines import Machines, Trials

Runs = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
OneRun = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclasses.dataclass(frozen=True)
class Limits:
    """When a run ends: at the first of these limits."""

    iterations: int | None = None
    """Stop after this many iterations."""
    environment_steps: int | None = None
    """Stop a seed after this many environment steps."""
    target_return: float | None = None
    """Stop a seed when the mean over its latest 20 episodes reaches this."""

    @property
    def given(self) -> dict[str, Any]:
        """Those that were asked for."""
        limits = {field.name: getattr(self, field.name) for field in dataclasses.fields(Limits)}
        return {name: limit for name, limit in limits.items() if limit is not None}


@dataclasses.dataclass(frozen=True)
class Watch(Machines):
    """What is told and kept while a run goes on."""

    checkpoint_seconds: float = 60.0
    """Time between two checkpoints, at least; 0 for one after every chunk of iterations."""
    evaluate_every: int | None = None
    """Evaluate every so many iterations; the best agents go to best/ in the run folder."""
    tensorboard: bool = False
    """Write event files for TensorBoard into the run folder."""
    log_interval: int = 1
    """TensorBoard is told of every so many iterations."""
    live: bool = False
    """Show a table with a row for each seed while the run goes on, instead of a bar."""
    quiet: bool = False
    """Print no progress, only results and errors."""
    json: bool = False
    """Print the summary as one JSON object in the last line; everything else goes to stderr."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a run is kept."""

    out: Path | None = None
    """Folder of the run; if not given, the next free number below runs/ENV/ALGORITHM/."""
    resume: bool = False
    """If --out holds this run already, go on with it."""
    overwrite: bool = False
    """If --out holds a run, delete it first."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned, and what a batch is."""

    episodes: int | None = None
    """Collect this many whole episodes an iteration."""
    samples: int | None = None
    """Collect this many independent draws from the occupancy measure an iteration."""
    steps: int | None = None
    """Collect this many steps in each of --copies copies of the environment an iteration."""
    copies: int | None = None
    """Copies of the environment for --steps."""
    preset: Literal["auto", "default", "paper"] = "auto"
    """Settings to start from: `default` serves an unfamiliar task, `paper` has those of the paper.
    `auto` takes what was tuned for the environment, where there is anything, the paper's for
    tables and LQC, and else the defaults."""
    max_steps: int | None = None
    """Cut episodes after this many steps; the environment's own limit if not given."""
    engine: Literal["auto", "compiled", "gymnasium", "envpool"] = "auto"
    """What runs the environment: auto takes a compiled one where there is one, else Gymnasium's."""
    workers: bool = False
    """Run every copy of a Gymnasium environment in a process of its own, for environments that
    are slow."""
    step_timeout: float | None = None
    """With --workers or --on, seconds after which a step that does not end is an error."""
    info_keywords: tuple[str, ...] = ()
    """Figures that the environment puts into info at the end of an episode, such as is_success."""


@dataclasses.dataclass(frozen=True)
class Run(Task, Place, Watch, Limits):
    """How much is run, on what, and where it is kept; 100 iterations if no limit is given."""

    seeds: int = 5
    """How many seeds."""
    first_seed: int = 0
    """The number of the first seed."""


@dataclasses.dataclass(frozen=True)
class Search(Trials):
    """How much is tried, and where it is kept."""

    trials: int = 50
    """Trials that the study shall have, with those that it has already."""
    environment_steps: int = 100_000
    """Environment steps of every seed of a trial."""
    seeds: int = 5
    """Seeds that a trial trains: 1000, 1001 and so on."""
    held_back: int = 10
    """Seeds that the best settings and those at the start are trained on in the end: 0, 1 ..."""
    out: Path | None = None
    """Folder of the study; if it holds one, the search goes on, beside other processes that use it.
    If not given, the next free number below runs/tune/ENV/ALGORITHM/."""
    storage: str | None = None
    """URL of a database to use instead of the journal in that folder: sqlite:///FILE.db."""
    quiet: bool = False
    """Print no progress, only results and errors."""
    json: bool = False
    """Print the result as one JSON object in the last line; everything else goes to stderr."""


@dataclasses.dataclass(frozen=True)
class Tune(Task, Search):
    """Look for better settings by trial, and try the best on seeds that no trial has seen."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Train several algorithms on the same seeds and draw their learning curves.

    Flags of the algorithms (recollect train ALGORITHM --help) apply to those that have them;
    vanilla ones keep their window of 1.
    """

    run: Annotated[Run, tyro.conf.arg(name="")] = Run()
    algorithms: tuple[str, ...] = ALGORITHMS
    """Names of algorithms."""
    windows: tuple[int, ...] = ()
    """Train algorithms that reuse once with each of these windows."""


@dataclasses.dataclass(frozen=True)
class Own:
    """What a file may name but must not decide to run."""

    env: str | None = None
    """The environment, if it is one of your own (MODULE:NAME), or another one."""
    use: tuple[str, ...] = ()
    """Classes of your own that the run uses, FILE.py:NAME."""


@dataclasses.dataclass(frozen=True)
class Repeat(Own, Place, Watch, Limits):
    """Run again what a config.json describes; limits are its own if none is given."""

    config: Path = Path("config.json")
    """The config.json of a run, or its folder."""


@dataclasses.dataclass(frozen=True)
class Resume(Own, Watch, Limits):
    """Go on with a run, bit for bit as if it had never stopped.

    Limits are those of the run if none is given.
    """

    run: OneRun = tyro.MISSING
    """Folder of the run, or of a comparison, all of whose runs go on."""


@dataclasses.dataclass(frozen=True)
class Eval(Own):
    """Returns of what a run has learned in whole episodes, always the same for the same seed."""

    run: OneRun = tyro.MISSING
    """Folder of a run or of a comparison, or the file of an agent."""
    episodes: int = 100
    """Episodes for each seed of the run."""
    seed: int = 0
    """That first states and draws come from; no training sees these."""
    stochastic: bool = False
    """Draw actions instead of taking the most likely ones."""
    best: bool = False
    """Take the best agents that were evaluated in training instead of the latest."""
    out: Path | None = None
    """File for a row of every episode; evaluation.csv in the run folder if not given."""
    json: bool = False
    """Print the figures as one JSON object in the last line."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw learning curves of runs: the mean of the latest episodes, 95 % interval over seeds."""

    runs: Runs = tyro.MISSING
    """Folders of runs or of comparisons."""
    x: Literal["steps", "iterations", "seconds"] = "steps"
    """What returns are drawn against; steps are environment steps of a seed."""
    out: Path = Path("learning_curves.png")
    """The picture, as .png, .svg or .pdf."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Write a page about runs: what was run, learning curves, reuse, and a diagnosis in words."""

    runs: Runs = tyro.MISSING
    """Folders of runs or of comparisons."""
    out: Path = Path("report.html")
    """The page, one file that needs no network."""
    animation: Path | None = None
    """A GIF of the agent (recollect play) that becomes part of the page."""


@dataclasses.dataclass(frozen=True)
class Follow:
    """Serve the page about a run to a browser on this machine, and follow the run."""

    run: OneRun = tyro.MISSING
    """Folder of the run."""
    port: int = 0
    """Of the address; a free one if not given."""


@dataclasses.dataclass(frozen=True)
class Play(Own):
    """Film the best of some episodes of an agent, offscreen."""

    run: OneRun = tyro.MISSING
    """Folder of a run, or the file of an agent."""
    video: Path = Path("film.gif")
    """The film, as .gif or .mp4."""
    index: int = 0
    """Place of the seed among those of the run."""
    seeds: tuple[int, ...] = ()
    """Seeds of the episodes to choose from; one alone is the episode that is filmed."""
    best_of: int | None = None
    """If no seeds are given, how many episodes to choose from: those of seeds 0, 1 ...; 5 if not
    given."""
    stochastic: bool = False
    """Draw actions instead of taking the most likely ones."""


@dataclasses.dataclass(frozen=True)
class Export(Own):
    """Write the policy of a run as a file that acts without this library."""

    run: OneRun = tyro.MISSING
    """Folder of a run, or the file of an agent."""
    out: Path | None = None
    """The file: .npz for NumPy (with a script beside it), .onnx, or .zip for StableHLO; if not
    given, `policy` with the ending of the format."""
    to: Literal["jax", "onnx", "numpy"] | None = None
    """The format, if the ending of the file does not tell; numpy if nothing does."""
    index: int = 0
    """Place of the seed among those of the run."""


@dataclasses.dataclass(frozen=True)
class Envs:
    """List environments by name."""

    all: bool = False
    """Also those that Gymnasium knows."""


@dataclasses.dataclass(frozen=True)
class Algorithms:
    """List algorithms by name."""


COMMANDS = {
    "compare": Comparison,
    "resume": Resume,
    "eval": Eval,
    "plot": Plot,
    "report": Report,
    "watch": Follow,
    "play": Play,
    "export": Export,
    "envs": Envs,
    "algorithms": Algorithms,
}
"""Flags of the commands whose help depends on nothing else."""


def show_help(command: str) -> None:
    """Print the flags of a command, and exit."""
    program = f"recollect {command}" + (" ENV" if command == "compare" else "")
    parse(COMMANDS[command], ["--help"], program)


def parse(
    kind: Any,
    words: list[str],
    program: str,
    *,
    strict: bool = True,
    default: Any = None,
    description: str | None = None,
) -> tuple[Any, list[str]]:
    """The flags as an object of `kind`, and those that it does not know.

    Args:
        kind: a dataclass whose fields are the flags.
        words: of the command line.
        program: what the help calls the command.
        strict: whether a flag that is not known is an error.
        default: what the fields are if no flag says otherwise.
        description: of the command, instead of the docstring of `kind`.
    """
    settings: dict[str, Any] = dict(prog=program, default=default, description=description)
    with warnings.catch_warnings():
        # Modules as defaults are frozen, which tyro cannot see.
        warnings.filterwarnings("ignore", message="Mutable type", category=UserWarning)
        known = lambda words: tyro.cli(kind, args=words, return_unknown_args=True, **settings)
        chosen, unknown = _or_sentence(lambda: known(words), program)
        if strict and unknown:
            _answer_foreign(
                unknown, program, lambda flag: flag not in known([*words, flag, "1"])[1]
            )
            _or_sentence(lambda: tyro.cli(kind, args=words, **settings), program)
        return chosen, unknown


def _or_sentence(read: Callable[[], Any], program: str) -> Any:
    """What tyro has read, or a ValueError with the sentence that it would print in a box."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return read()
    except SystemExit as stop:
        if not stop.code:  # help
            raise
        # A title, then what is wrong, a rule, and more: options that look alike, or help.
        lines = [line.strip("│ ") for line in box.getvalue().splitlines()[1:]]
        is_rule = lambda line: not line.strip("─-")
        blocks = [[*block] for rule, block in itertools.groupby(lines, is_rule) if not rule]
        wrong = " ".join(blocks[0])
        meant = re.search(r"Perhaps you meant:\W+(--[\w.-]+)", box.getvalue())
        remedy = f"did you mean {meant[1]}?" if meant else f"see {program} --help."
        raise ValueError(f"{wrong.rstrip('.')}; {remedy}") from None


def _answer_foreign(unknown: list[str], program: str, is_flag: Callable[[str], bool]) -> None:
    """Raise if a flag is what other libraries call one of ours."""
    from recollect.settings import FOREIGN  # brings JAX

    for word in unknown:
        name = word.split("=")[0].lstrip("-").replace("-", "_")
        for ours in FOREIGN.get(name, ()) if word.startswith("--") else ():
            # `discount`, `critic=Critic(epochs=10)` or `train(..., seeds=[0])`
            rule = re.match(r"(\w+)=\w+\((\w+)=", ours)
            plain = re.match(r"(?:train\(\.\.\., )?(\w+)", ours)
            names = [".".join(rule.groups()), rule[2]] if rule else [plain[1]] if plain else []
            for flag in [f"--{one.replace('_', '-')}" for one in names]:
                if _quietly(is_flag, flag):
                    raise ValueError(f"{program} has no {word}; did you mean {flag}?")


def _quietly(is_flag: Callable[[str], bool], flag: str) -> bool:
    """Whether it is a flag; one whose value is refused is known, too."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return is_flag(flag)
        except (SystemExit, ValueError):
            return True
