"""The command line. Its flags are the fields of the algorithms and of `Run`."""

import dataclasses
import sys
import warnings
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import jax
import matplotlib
import tyro
from rich.console import Console

import recollect
from recollect.algorithms import ALGORITHMS, AbstractAlgorithm
from recollect.checks import check_name
from recollect.collect import AbstractCollector, Draws, Episodes, Steps
from recollect.defaults import Architecture
from recollect.envs import ENVIRONMENTS, AbstractEnv, AbstractOracle, Engine, EnvironmentFailure, HostEnv, make
from recollect.paper import Paper
from recollect.plot import learning_curves
from recollect.presets import PRESETS, default_preset, preset
from recollect.report import summarise, table, to_json, write_curves, write_settings
from recollect.runtime import compile_quickly, use_compilation_cache
from recollect.theory import EXPERIMENTS
from recollect.train import train

HELP = f"""recollect {recollect.__version__}: policy gradients that reuse the trajectories of past policies.

usage:
  recollect train ALGORITHM ENV [flags]    train one algorithm on several seeds
  recollect compare ENV [flags]            train several algorithms on the same seeds
  recollect theory EXPERIMENT [flags]      check a theorem of the paper, with figures and pictures
  recollect paper [FIGURE ...] [flags]     the experiments of the paper, every figure, with an answer to every claim
  recollect train ALGORITHM --help         all flags of an algorithm
  recollect compare --help                 all flags of a comparison
  recollect theory EXPERIMENT --help       all flags of an experiment
  recollect --version

algorithms:    {", ".join(ALGORITHMS)}
environments:  {", ".join(ENVIRONMENTS)} (compiled)
               any name that Gymnasium knows, for example Hopper-v5, or MODULE:NAME for one that MODULE registers
               NAME.npz, a finite MDP of your own as arrays (transitions, rewards, initial, discount)
experiments:   {", ".join(EXPERIMENTS)}

Each run writes a folder below runs/ with its settings (settings.json), curves.csv and learning_curves.png.

Settings tuned for an algorithm and an environment are used where there are any, unless --no-preset is given.

examples:
  recollect train rtrpo CartPole-v1 --target-return 475 --environment-steps 50000
  recollect train rppo InvertedPendulum-v5 --environment-steps 40000 --policy.head squashed
  recollect train rtrpo Hopper-v5 --environment-steps 200000
  recollect compare CartPole-v1 --algorithms vpg rpg vnpg rnpg --max-steps 200 --no-preset
  recollect theory normality --cases 5 1 5 10 --iterations 50000
  recollect train rnpg LQC --samples 5 --advantages.estimator exact --learning-rate 1 --decay 0.9 --objective-scale
"""


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
    preset: bool = True
    """Start from the settings tuned for this algorithm and environment, where there are any, and not from the algorithm's defaults."""
    max_steps: int | None = None
    """Cut episodes after this many steps; the environment's own limit if not given."""
    engine: Engine = "auto"
    """What runs the environment: auto takes a compiled one where there is one, else Gymnasium's."""
    workers: bool = False
    """Run every copy of a Gymnasium environment in a process of its own, for environments that are slow."""
    out: Path | None = None
    """Folder for the results; a new one below runs/ if not given."""
    json: bool = False
    """Print the summary as one JSON object in the last line."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Train several algorithms on the same seeds and draw their learning curves.

    Flags of the algorithms (recollect train ALGORITHM --help) apply to those that have them; vanilla ones keep their window of 1.
    """

    env: tyro.conf.Positional[str]
    """Name of the environment."""
    run: Annotated[Run, tyro.conf.arg(name="")] = Run()
    algorithms: tuple[str, ...] = tuple(ALGORITHMS)
    """Names of algorithms."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    matplotlib.use("agg")
    try:
        return _dispatch(words)
    except (ValueError, OSError, EnvironmentFailure) as error:
        print(f"recollect: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("recollect: interrupted", file=sys.stderr)
        return 130


def _dispatch(words: list[str]) -> int:
    command, *rest = words or ["--help"]
    if command in ("--help", "-h"):
        print(HELP, end="")
        return 0
    if command == "--version":
        print(f"recollect {recollect.__version__}")
        return 0
    check_name("command", command, ("train", "compare", "theory", "paper"))
    if command == "compare":
        return _compare(rest, words)
    if command == "paper":
        return _paper(rest)
    if not rest or rest[0] in ("--help", "-h"):
        print(HELP, end="")
        return 0 if rest else 2
    name, *flags = rest
    if command == "theory":
        check_name("experiment", name, EXPERIMENTS)
        return _theory(name, flags, words)
    check_name("algorithm", name, ALGORITHMS)
    (chosen, _) = _parse(_training(name, flags), flags, f"recollect train {name}")
    return _execute({name: chosen}, chosen.env, chosen.run, words)


def _paper(flags: list[str]) -> int:
    positional = Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="FIGURE", help="fig1 … fig9, trpo, trpo-pendulum, step, why; all if none."),
    ]
    kind = dataclasses.make_dataclass(
        "PaperCommand",
        [
            ("figures", positional, ()),
            *[(field.name, field.type, field.default) for field in dataclasses.fields(Paper) if field.name != "figures"],
            ("out", Annotated[Path, tyro.conf.arg(help="Folder for pictures, tables and README.md with the answers.")], Path("runs/paper")),
        ],
        frozen=True,
    )
    kind.__doc__ = Paper.__doc__
    chosen, _ = _parse(kind, flags, "recollect paper")
    settings = {field.name: getattr(chosen, field.name) for field in dataclasses.fields(Paper)}
    paper = Paper(**{**settings, "figures": chosen.figures or Paper.figures})
    if paper.quick:
        compile_quickly()
    use_compilation_cache()
    answers = paper.run(chosen.out)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for claim in answers:
        console.print(f"[bold]{claim.verdict}[/bold]: “{claim.sentence}” ({claim.figure})")
        for measured in claim.measured:
            console.print(f"    {measured}", highlight=False, markup=False)
    console.print(f"wrote {paper.place(chosen.out)}/README.md and the figures beside it", highlight=False, soft_wrap=True)
    return 0


def _theory(name: str, flags: list[str], words: list[str]) -> int:
    experiment = EXPERIMENTS[name]
    kind = dataclasses.make_dataclass(
        "Theory",
        [
            ("experiment", Annotated[experiment, tyro.conf.arg(name="")], dataclasses.field(default_factory=experiment)),
            ("out", Annotated[Path | None, tyro.conf.arg(help="Folder for the results; a new one below runs/ if not given.")], None),
            ("json", Annotated[bool, tyro.conf.arg(help="Print the table as one JSON list in the last line.")], False),
        ],
        frozen=True,
    )
    kind.__doc__ = experiment.__doc__
    chosen, _ = _parse(kind, flags, f"recollect theory {name}")
    folder = chosen.out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-theory-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    about = dict(command=["recollect", *words], version=recollect.__version__, jax=jax.__version__)
    write_settings(folder / "settings.json", {**about, name: chosen.experiment})
    use_compilation_cache()
    findings = chosen.experiment.run()
    written = findings.write(folder)
    console = Console(stderr=chosen.json, width=None if sys.stdout.isatty() else 160)
    console.print(findings.table())
    console.print(findings.verdict, highlight=False)
    console.print(f"wrote {folder}/{', '.join(path.name for path in written)}, settings.json", highlight=False, soft_wrap=True)
    if chosen.json:
        print(to_json(findings.rows))
    return 0


def _compare(flags: list[str], words: list[str]) -> int:
    comparison, unknown = _parse(Comparison, flags, "recollect compare", strict=False)
    trainings, known = {}, set()
    for name in comparison.algorithms:
        check_name("algorithms", name, ALGORITHMS)
        kind = _training(name, flags)
        chosen, foreign = _parse(kind, [comparison.env, *unknown], "recollect compare", strict=False)
        known |= {word for word in unknown if word not in foreign}
        if ALGORITHMS[name]().window == 1:
            vanilla = {field: 1 for field in ("window", "fisher_window") if hasattr(chosen.algorithm, field)}
            chosen = dataclasses.replace(chosen, algorithm=dataclasses.replace(chosen.algorithm, **vanilla))
        trainings[name] = chosen
    for word in unknown:
        if word.startswith("--") and word not in known:
            raise ValueError(f"{word} is a flag of none of {', '.join(trainings)}; see recollect train ALGORITHM --help.")
    return _execute(trainings, comparison.env, comparison.run, words)


def _training(name: str, flags: list[str]):
    """The flags of an algorithm, with the preset of the environment among `flags` as defaults."""
    env = next((word for word in flags if word in PRESETS), "")
    start = default_preset(name) if "--no-preset" in flags else preset(name, env)
    kind = dataclasses.make_dataclass(
        "Training",
        [
            ("env", Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="Name of the environment.")]),
            ("run", Annotated[Run, tyro.conf.arg(name="")], Run()),
            ("algorithm", Annotated[type(start.algorithm), tyro.conf.arg(name="")], dataclasses.field(default=start.algorithm)),
            ("policy", Architecture, dataclasses.field(default=start.policy)),
            ("collector", tyro.conf.Suppress[Any], dataclasses.field(default=start.collector)),
        ],
        frozen=True,
    )
    kind.__doc__ = ALGORITHMS[name].__doc__
    return kind


def _parse(kind, words: list[str], program: str, strict: bool = True):
    """The flags as an object of `kind`, and (unless `strict`) those that it does not know."""
    with warnings.catch_warnings():
        # Modules as defaults are frozen, which tyro cannot see.
        warnings.filterwarnings("ignore", message="Mutable type", category=UserWarning)
        if strict:
            return tyro.cli(kind, args=words, prog=program), []
        return tyro.cli(kind, args=words, prog=program, return_unknown_args=True)


def _execute(trainings: dict[str, Any], env_name: str, run: Run, words: list[str]) -> int:
    env, algorithms = _environment(env_name, {name: training.algorithm for name, training in trainings.items()}, run)
    collectors = {name: _collector(run, training.collector) for name, training in trainings.items()}
    policies = {name: training.policy for name, training in trainings.items()}
    folder = run.out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{'-'.join(algorithms)}-{Path(env_name).name}"
    folder.mkdir(parents=True, exist_ok=True)
    settings = dict(command=["recollect", *words], version=recollect.__version__, jax=jax.__version__, env=env, run=run)
    write_settings(folder / "settings.json", {**settings, "collectors": collectors, "policies": policies, "algorithms": algorithms})

    limitless = run.iterations is None and run.environment_steps is None
    runs, stopped = {}, None
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
    learning_curves(folder / "learning_curves.png", {name.upper(): run.curves["return_mean"] for name, run in runs.items()}, title)

    summaries = {name: summarise(training) for name, training in runs.items()}
    console = Console(stderr=run.json, width=None if sys.stdout.isatty() else 120)
    console.print(table(summaries))
    console.print(f"wrote {folder}/learning_curves.png, curves.csv, settings.json", highlight=False, soft_wrap=True)
    if run.json:
        print(to_json(summaries))
    if stopped is not None:
        raise stopped
    return 0


def _environment(
    name: str, algorithms: dict[str, AbstractAlgorithm], run: Run
) -> tuple[AbstractEnv | HostEnv, dict[str, AbstractAlgorithm]]:
    """The environment; one with a discount of its own shares it with the algorithms, unless --discount changes both."""
    settings: dict[str, Any] = dict(engine=run.engine, workers=run.workers)
    if run.max_steps is not None:
        settings["max_steps"] = run.max_steps
    env = make(name, **settings)
    if not isinstance(env, AbstractOracle):
        return env, algorithms
    (asked,) = {algorithm.discount for algorithm in algorithms.values()}
    if asked == AbstractAlgorithm.discount:
        return env, {name: dataclasses.replace(algorithm, discount=float(env.discount)) for name, algorithm in algorithms.items()}
    return make(name, discount=asked, **settings), algorithms


def _collector(run: Run, preset: AbstractCollector) -> AbstractCollector:
    """What the flags ask for, or the preset's."""
    asked = [name for name in ("episodes", "samples", "steps") if getattr(run, name) is not None]
    if len(asked) > 1:
        raise ValueError(f"--{asked[0]} and --{asked[1]} exclude each other; choose one way to collect.")
    if run.copies is not None and run.steps is None and not (isinstance(preset, Steps) and not asked):
        raise ValueError(f"--copies {run.copies} goes with --steps; give --steps too.")
    if run.samples is not None:
        return Draws(run.samples)
    if run.episodes is not None:
        return Episodes(run.episodes)
    if run.steps is not None or run.copies is not None:
        usual = preset if isinstance(preset, Steps) else Steps()
        return Steps(run.copies or usual.copies, run.steps or usual.steps)
    return preset


if __name__ == "__main__":
    sys.exit(main())
