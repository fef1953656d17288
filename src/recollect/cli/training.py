"""`recollect train` and `recollect compare`.

Their flags are the fields of the algorithms and of `Run`.
"""

import dataclasses
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import jax
import tyro

from recollect import __version__
from recollect.algorithms import ALGORITHMS, AbstractAlgorithm
from recollect.checks import check_name
from recollect.cli.fields import load, rule_flags, with_rules
from recollect.cli.machines import Machines, answers
from recollect.cli.shared import console, parse
from recollect.collect.compiled import Draws, Episodes, Steps
from recollect.collect.rollout import AbstractCollector
from recollect.envs import AbstractEnv, AbstractOracle, Engine, HostEnv, make
from recollect.policies.architecture import Architecture
from recollect.report.plot import learning_curves
from recollect.report.tables import summarise, table, write_curves
from recollect.run.presets import Preset, default_collector, preset, settings_for
from recollect.run.train import check_algorithm, train
from recollect.serial import to_json, write_settings


@dataclasses.dataclass(frozen=True)
class Run:
    """How much is run, and where it goes."""

    iterations: int | None = None
    """Iterations of each seed; 100 if no limit is given."""
    environment_steps: int | None = None
    """Stop a seed after this many environment steps."""
    target_return: float | None = None
    """Stop a seed when the mean over its latest 20 episodes reaches this."""
    seeds: int = 5
    """How many seeds."""
    first_seed: int = 0
    """The number of the first seed."""
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
    engine: Engine = "auto"
    """What runs the environment: auto takes a compiled one where there is one, else Gymnasium's."""
    workers: bool = False
    """Run every copy of a Gymnasium environment in a process of its own, for environments that
    are slow."""
    machines: Annotated[Machines, tyro.conf.arg(name="")] = dataclasses.field(default=Machines())
    out: Path | None = None
    """Folder for the results; a new one below runs/ if not given."""
    json: bool = False
    """Print the summary as one JSON object in the last line."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Train several algorithms on the same seeds and draw their learning curves.

    Flags of the algorithms (recollect train ALGORITHM --help) apply to those that have them;
    vanilla ones keep their window of 1.
    """

    env: tyro.conf.Positional[str]
    """Name of the environment."""
    run: Annotated[Run, tyro.conf.arg(name="")] = Run()
    algorithms: tuple[str, ...] = tuple(ALGORITHMS)
    """Names of algorithms."""


def train_one(name: str, flags: list[str], words: list[str]) -> int:
    """`recollect train NAME`."""
    chosen, _ = parse(_training(name, flags), flags, f"recollect train {name}")
    with answers(chosen.run.json and chosen.run.machines.on == "ray") as out:
        return _execute({name: chosen}, chosen.env, chosen.run, words, out)


def compare(flags: list[str], words: list[str]) -> int:
    """`recollect compare`."""
    comparison, unknown = parse(Comparison, flags, "recollect compare", strict=False)
    trainings = {}
    known = set()
    for name in comparison.algorithms:
        kind = _training(name, flags)
        chosen, foreign = parse(kind, [comparison.env, *unknown], "recollect compare", strict=False)
        known |= {word for word in unknown if word not in foreign}
        if name in ALGORITHMS and ALGORITHMS[name]().window == 1:
            vanilla = {
                field: 1
                for field in ("window", "fisher_window")
                if hasattr(chosen.algorithm, field)
            }
            chosen = dataclasses.replace(
                chosen, algorithm=dataclasses.replace(chosen.algorithm, **vanilla)
            )
        trainings[name] = chosen
    for word in unknown:
        if word.startswith("--") and word not in known:
            raise ValueError(
                f"{word} is a flag of none of {', '.join(trainings)}; see recollect train "
                "ALGORITHM --help."
            )
    with answers(comparison.run.json and comparison.run.machines.on == "ray") as out:
        return _execute(trainings, comparison.env, comparison.run, words, out)


def _training(name: str, flags: list[str]):
    """The flags of an algorithm, whose defaults are the settings to start from."""
    if name in ALGORITHMS:
        source = _source(flags)
        start = preset(name, source)
        about = ALGORITHMS[name].__doc__
    else:
        source = name
        start = own_preset(name)
        about = type(start.algorithm).__doc__
    rules = rule_flags(start.algorithm)
    # Twice: which rules are chosen decides which flags there are.
    asked = [word for word in flags if word not in ("--help", "-h")]
    chosen, _ = parse(rules, asked, "recollect train", strict=False)
    algorithm = with_rules(start.algorithm, chosen)
    kind = dataclasses.make_dataclass(
        "Training",
        [
            (
                "env",
                Annotated[
                    str, tyro.conf.Positional, tyro.conf.arg(help="Name of the environment.")
                ],
            ),
            ("run", Annotated[Run, tyro.conf.arg(name="")], Run()),
            ("rules", Annotated[rules, tyro.conf.arg(name="")], rules()),
            (
                "algorithm",
                Annotated[type(algorithm), tyro.conf.arg(name="")],
                dataclasses.field(default=algorithm),
            ),
            ("policy", Architecture, dataclasses.field(default=start.policy)),
            ("collector", tyro.conf.Suppress[Any], dataclasses.field(default=start.collector)),
            ("source", tyro.conf.Suppress[str], dataclasses.field(default=source)),
        ],
        frozen=True,
    )
    kind.__doc__ = f"{about}\n\nDefaults shown are {_SOURCES.get(source, source)}."
    return kind


@dataclasses.dataclass(frozen=True)
class _Preset:
    """The flag of `Run` that has to be known before the others."""

    preset: str = "auto"


_SOURCES = {
    "default": "the default settings, for a task that nothing was tuned for",
    "paper": "the settings of the paper",
}


def _source(flags: list[str]) -> str:
    """Which settings to start from: what --preset says, or what there is for the environment."""
    words = [word for word in flags if word not in ("--help", "-h")]
    asked, _ = parse(_Preset, words, "recollect train", strict=False)
    if asked.preset in ("default", "paper"):
        return asked.preset
    known = [settings_for(word) for word in words if word != "paper" and not word.startswith("-")]
    return next((source for source in known if source != "default"), "default")


def own_preset(name: str) -> Preset:
    """Defaults of an algorithm of one's own, FILE.py:NAME or MODULE:NAME."""
    if ":" not in name:
        check_name("algorithm", name, ALGORITHMS, source="FILE.py:NAME")
    made = load(name)
    algorithm = check_algorithm(made() if callable(made) else made)
    for field in (*dataclasses.fields(Run), *dataclasses.fields(Machines)):
        if hasattr(algorithm, field.name):
            raise ValueError(
                f"{name} has a field {field.name!r}, which is a flag of recollect train already; "
                "give it another name."
            )
    return Preset(algorithm, default_collector(algorithm))


def _execute(
    trainings: dict[str, Any], env_name: str, run: Run, words: list[str], answer: TextIO
) -> int:
    on = run.machines.chosen()
    env, algorithms = _environment(
        env_name, {name: training.algorithm for name, training in trainings.items()}, run
    )
    collectors = {name: _collector(run, training.collector) for name, training in trainings.items()}
    policies = {name: training.policy for name, training in trainings.items()}
    # MODULE:NAME is the name of an environment, but not of a folder on Windows.
    called = "-".join([Path(name).name.replace(":", "-") for name in (*algorithms, env_name)])
    folder = run.out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{called}"
    folder.mkdir(parents=True, exist_ok=True)
    about = dict(command=["recollect", *words], version=__version__, jax=jax.__version__)
    settings = dict(**about, env=env, run=run)
    write_settings(
        folder / "settings.json",
        {**settings, "collectors": collectors, "policies": policies, "algorithms": algorithms},
    )

    out = console(width=120, stderr=run.json)
    for name, training in trainings.items():
        tuned = f"the settings tuned for {training.source}"
        out.print(f"{name}: {_SOURCES.get(training.source, tuned)}", soft_wrap=True)
    limitless = run.iterations is None and run.environment_steps is None
    runs = {}
    stopped = None
    for name, algorithm in algorithms.items():
        try:
            runs[name] = train(
                env,
                algorithm,
                collector=collectors[name],
                policy=policies[name],
                seeds=range(run.first_seed, run.first_seed + run.seeds),
                iterations=100 if limitless else run.iterations,
                environment_steps=run.environment_steps,
                target_return=run.target_return,
                label=f"{name:>5}",
                on=on,
            )
        except BaseException as stop:  # whatever it is, what was learned before it is written down
            stopped = stop
            learned = getattr(stop, "training", None)
            runs |= {} if learned is None else {name: learned}
            break
    if stopped is not None and not runs:
        raise stopped
    write_curves(folder / "curves.csv", runs)
    title = env_name if run.max_steps is None else f"{env_name}, at most {run.max_steps} steps"
    learning_curves(
        folder / "learning_curves.png",
        {name.upper(): run.curves["return_mean"] for name, run in runs.items()},
        title,
    )

    summaries = {name: summarise(training) for name, training in runs.items()}
    out.print(table(summaries))
    out.print(f"wrote {folder}/learning_curves.png, curves.csv, settings.json", soft_wrap=True)
    if run.json:
        found = {name: dataclasses.asdict(summary) for name, summary in summaries.items()}
        print(to_json(found), file=answer)
    if stopped is not None:
        raise stopped
    return 0


def _environment(
    name: str, algorithms: dict[str, AbstractAlgorithm], run: Run
) -> tuple[AbstractEnv | HostEnv, dict[str, AbstractAlgorithm]]:
    """The environment; one with a discount of its own shares it with the algorithms, unless
    --discount changes both."""
    settings: dict[str, Any] = dict(engine=run.engine, workers=run.workers)
    if run.max_steps is not None:
        settings["max_steps"] = run.max_steps
    env = make(name, **settings)
    if not isinstance(env, AbstractOracle):
        return env, algorithms
    (asked,) = {algorithm.discount for algorithm in algorithms.values()}
    if asked == AbstractAlgorithm.discount:
        return env, {
            name: dataclasses.replace(algorithm, discount=float(env.discount))
            for name, algorithm in algorithms.items()
        }
    return make(name, discount=asked, **settings), algorithms


def _collector(run: Run, preset: AbstractCollector) -> AbstractCollector:
    """What the flags ask for, or the preset's."""
    asked = [name for name in ("episodes", "samples", "steps") if getattr(run, name) is not None]
    if len(asked) > 1:
        raise ValueError(
            f"--{asked[0]} and --{asked[1]} exclude each other; choose one way to collect."
        )
    if (
        run.copies is not None
        and run.steps is None
        and not (isinstance(preset, Steps) and not asked)
    ):
        raise ValueError(f"--copies {run.copies} goes with --steps; give --steps too.")
    if run.samples is not None:
        return Draws(run.samples)
    if run.episodes is not None:
        return Episodes(run.episodes)
    if run.steps is not None or run.copies is not None:
        usual = preset if isinstance(preset, Steps) else Steps()
        return Steps(run.copies or usual.copies, run.steps or usual.steps)
    return preset
