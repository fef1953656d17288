"""From flags to runs: what `train` and `compare` ask for, checked before anything is trained.

Which flags there are depends on the algorithm, on its preset for the environment and on the rules
that are chosen. So words are read in stages: algorithm and environment, which come first, then
`--preset`, then the rules, then everything.
"""

import dataclasses
import importlib.util
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from recollect.agent.ranges import ranges_of, start_of
from recollect.agent.tune import FIRST_SEED
from recollect.algorithms import ALGORITHMS, AbstractAlgorithm
from recollect.checks import check_name
from recollect.cli.fields import load, own_names, parse, rule_flags, with_rules
from recollect.cli.flags import Comparison, Run, Search, Task, Tune
from recollect.collect.compiled import Draws, Episodes, Steps
from recollect.collect.rollout import AbstractCollector
from recollect.envs import AbstractEnv, AbstractOracle, EnvSettings, HostEnv
from recollect.policies.architecture import Architecture
from recollect.run.config import RunConfig, check_algorithm, check_seeds, known_kinds
from recollect.run.files import legal
from recollect.run.presets import EXACT, Preset, default_collector, preset, settings_for
from recollect.run.session import Until
from recollect.serial import from_plain

Algorithm = TypeVar("Algorithm")
Rules = TypeVar("Rules")
Shared = TypeVar("Shared")
DEFAULT_ITERATIONS = 100
"""If no limit is given."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run that has not begun."""

    name: str
    """What it is called in tables and pictures."""
    config: RunConfig
    until: Until
    own: tuple[str, ...] = ()
    """FILE.py:NAME of all that is not the library's, to be given again to go on."""

    @property
    def folder_name(self) -> str:
        return legal(self.name)

    @property
    def env_folder_name(self) -> str:
        name = self.config.env_name
        return legal(Path(name).name if name.endswith(".npz") else name)


@dataclasses.dataclass(frozen=True)
class Training(Generic[Shared, Algorithm, Rules]):
    """All flags of an algorithm."""

    run: Annotated[Shared, tyro.conf.arg(name="")]
    rules: Annotated[Rules, tyro.conf.arg(name="")]
    algorithm: Annotated[Algorithm, tyro.conf.arg(name="")]
    policy: Architecture


@dataclasses.dataclass(frozen=True)
class Start:
    """The settings that an algorithm starts from in an environment, before other flags."""

    preset: Preset
    source: str | None

    @classmethod
    def of(cls, name: str, env: str | None, asked: str) -> "Start":
        """For the algorithm and the environment of these names, and what --preset asks for."""
        if name in ALGORITHMS:
            source = asked if asked != "auto" else settings_for(env or "default")
            start = preset(name, source)
        else:
            source = None
            start = own_preset(name)
        if env is not None and (env in EXACT or env.endswith(".npz")):
            # Theirs is part of the problem, and the algorithm's unless --discount changes both.
            exact = EnvSettings(env).make()
            assert isinstance(exact, AbstractOracle)
            algorithm = dataclasses.replace(start.algorithm, discount=float(exact.discount))
            start = dataclasses.replace(start, algorithm=algorithm)
        return cls(start, source)


@dataclasses.dataclass(frozen=True)
class _Preset:
    """The flag of `Run` that has to be known before the others."""

    preset: str = "auto"


def read_training(
    name: str,
    env: str | None,
    words: list[str],
    program: str,
    *,
    asked_preset: str | None = None,
    strict: bool = True,
    shared: Any = Run(),
    more: Callable[[AbstractAlgorithm], str] = lambda algorithm: "",
) -> tuple[Training, Start, list[str]]:
    """The flags of one algorithm, what they start from, and the words that are none of them.

    Args:
        name: of the algorithm.
        env: name of the environment; None if only help is asked for.
        words: the flags.
        program: what the help calls the command.
        asked_preset: what --preset says; looked for among the words if not given.
        strict: whether words that are no flags are an error.
        shared: the flags that all algorithms have, with their defaults.
        more: what the help says of the algorithm beside its flags.
    """
    asked = [word for word in words if word not in ("--help", "-h")]
    told, _ = parse(_Preset, asked, program, strict=False)
    start = Start.of(name, env, asked_preset or told.preset)
    rules = rule_flags(start.preset.algorithm)
    chosen, _ = parse(rules, asked, program, strict=False)
    algorithm = with_rules(start.preset.algorithm, chosen)
    about = _prose(ALGORITHMS[name] if name in ALGORITHMS else type(algorithm))
    training, unknown = parse(
        Training[type(shared), type(algorithm), rules],
        words,
        program,
        strict=strict,
        default=Training(shared, rules(), algorithm, start.preset.policy),
        description=f"{about}\n\nDefaults shown are {source_words(start.source)}.{more(algorithm)}",
    )
    return training, start, unknown


def _prose(documented: Any) -> str:
    """A docstring without its sections, which are written for Python."""
    text = inspect.cleandoc(documented.__doc__ or "")
    return re.split(r"^(?:Args|Returns|Example):", text, maxsplit=1, flags=re.M)[0].strip()


def source_words(source: str | None) -> str:
    """Where settings come from, in words."""
    known = {
        None: "its own",
        "default": "the default settings, for a task that nothing was tuned for",
        "paper": "the settings of the paper",
    }
    return known.get(source, f"the settings tuned for {source}")


def own_preset(name: str) -> Preset:
    """Defaults of an algorithm of one's own, FILE.py:NAME or MODULE:NAME."""
    if ":" not in name:
        check_name("algorithm", name, ALGORITHMS, source="FILE.py:NAME")
    made = load(name)
    algorithm = check_algorithm(made() if callable(made) else made)
    for field in dataclasses.fields(Run):
        if hasattr(algorithm, field.name):
            raise ValueError(
                f"{name} has a field {field.name!r}, which is a flag of recollect train already; "
                "give it another name."
            )
    return Preset(algorithm, default_collector(algorithm))


def plan_training(name: str, env: str, words: list[str]) -> tuple[Plan, Run]:
    """The run that `recollect train NAME ENV` asks for."""
    training, start, _ = read_training(name, env, words, f"recollect train {name} {env}")
    return _plan(name, env, training, start, {}), training.run


def plan_tuning(
    name: str, env: str | None, words: list[str], program: str
) -> tuple[Plan, Tune, list[str]]:
    """What `recollect tune NAME ENV` starts from, and the flags that are no other command's.

    Args:
        name: of the algorithm.
        env: name of the environment; None if only help is asked for.
        words: the flags.
        program: what the help calls the command.

    Returns:
        The run of a trial at the start, what is asked for, and the words that `recollect train`
        has to be given for the same run.
    """
    training, start, _ = read_training(name, env, words, program, shared=Tune(), more=_ranges)
    assert env is not None  # else help was asked for, and has ended the program
    asked = training.run
    task = {field.name: getattr(asked, field.name) for field in dataclasses.fields(Task)}
    run = Run(
        **task,
        seeds=asked.seeds,
        first_seed=FIRST_SEED,
        environment_steps=asked.environment_steps,
        on=asked.on,
    )
    plan = _plan(name, env, dataclasses.replace(training, run=run), start, {})
    _, others = parse(Search, words, program, strict=False)
    return plan, asked, others


def _ranges(algorithm: AbstractAlgorithm) -> str:
    """What is searched, for the help."""
    found = ranges_of(algorithm)
    lines = [
        f"{name}: {one.described(start_of(algorithm, Architecture(), name))} ({one.why})"
        for name, one in found.items()
    ]
    fixed = "A setting that a flag gives is not searched."
    return "\n\n".join(["", f"Searched around these defaults. {fixed}", *lines])


def plan_comparison(env: str, words: list[str]) -> tuple[list[Plan], Run]:
    """The runs that `recollect compare ENV` asks for."""
    program = f"recollect compare {env}"
    comparison, unknown = parse(Comparison, words, program, strict=False)
    run = comparison.run
    read = {
        name: read_training(name, env, unknown, program, asked_preset=run.preset, strict=False)
        for name in comparison.algorithms
    }
    _check_words(unknown, {name: foreign for name, (_, _, foreign) in read.items()})
    plans = []
    envs: dict[EnvSettings, AbstractEnv | HostEnv] = {}
    for name, (chosen, start, _) in read.items():
        training = dataclasses.replace(chosen, run=run)
        if name in ALGORITHMS and ALGORITHMS[name]().window == 1:
            plans.append(_plan(name, env, _with_window(training, 1), start, envs))
            continue
        if not comparison.windows:
            plans.append(_plan(name, env, training, start, envs))
        for window in comparison.windows:
            plan = _plan(name, env, _with_window(training, window), start, envs)
            plans.append(dataclasses.replace(plan, name=f"{plan.name}-window-{window}"))
    return plans, run


def _with_window(training: Training, window: int) -> Training:
    """With another window, for the Fisher matrix too where it has one of its own."""
    fields = ("window", "fisher_window")
    own = [name for name in fields if getattr(training.algorithm, name, None) is not None]
    algorithm = dataclasses.replace(training.algorithm, **dict.fromkeys(own, window))
    return dataclasses.replace(training, algorithm=algorithm)


def _check_words(words: list[str], foreign: dict[str, list[str]]) -> None:
    """Raise if a word is a flag of no algorithm, or stands where no flag is."""
    for left in foreign.values():
        stray = list(itertools.takewhile(lambda word: not word.startswith("-"), left))
        if stray:
            meant = {*stray} <= {*ALGORITHMS}
            flag = f"--algorithms {' '.join(stray)}" if meant else "--help"
            raise ValueError(f"{' '.join(stray)!r} is no flag; see recollect compare ENV {flag}.")
    for word in words:
        if word.startswith("--") and all(word in left for left in foreign.values()):
            raise ValueError(
                f"{word} is a flag of none of {', '.join(foreign)}; see recollect train "
                "ALGORITHM --help."
            )


def _plan(
    name: str,
    env: str,
    training: Training,
    start: Start,
    envs: dict[EnvSettings, AbstractEnv | HostEnv],
) -> Plan:
    """The run that flags ask for; `envs` holds environments that were made for others."""
    run = training.run
    algorithm: AbstractAlgorithm = training.algorithm
    exact = env in EXACT or env.endswith(".npz")
    made = EnvSettings(
        name=env,
        engine=run.engine,
        # A step can be given up in another process alone; actors step their copies themselves.
        workers=run.workers or (run.on is not None and run.step_timeout is not None),
        max_steps=run.max_steps,
        discount=float(algorithm.discount) if exact else None,
        info_keywords=run.info_keywords,
        step_timeout=run.step_timeout,
    )
    if made not in envs:
        find_module(env)
        envs[made] = made.make()
    check_seeds(run.seeds)  # before they are written out: there may be very many
    config = RunConfig(
        env=envs[made],
        algorithm=algorithm,
        collector=_collector(run, start.preset.collector),
        policy=training.policy,
        seeds=check_seeds(range(run.first_seed, run.first_seed + run.seeds)),
        made=made,
        source=start.source,
    )
    ours = name in ALGORITHMS
    own = (*(() if ours else (name,)), *own_names(training.rules))
    return Plan(name if ours else type(algorithm).__name__, config, until_of(run), own)


def until_of(run: Run) -> Until:
    """The limits that flags ask for."""
    limitless = run.iterations is None and run.environment_steps is None
    iterations = DEFAULT_ITERATIONS if limitless else run.iterations
    return Until(iterations, run.environment_steps, run.target_return)


def find_module(env: str) -> None:
    """Let MODULE of an environment MODULE:NAME be found in the current folder, if nowhere else.

    Only then the folder is searched for modules, after all others, so that it hides none of them.
    Worker processes get the same search path.
    """
    module = env.partition(":")[0].partition(".")[0] if ":" in env else ""
    if not module.isidentifier() or importlib.util.find_spec(module) is not None:
        return
    here = Path.cwd()
    if (here / f"{module}.py").is_file() or (here / module / "__init__.py").is_file():
        sys.path.append(os.fspath(here))


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


def given_env(settings: Mapping[str, Any], name: str | None) -> EnvSettings | None:
    """The environment that --env names, made as the settings of a run say of their own."""
    if name is None:
        return None
    find_module(name)
    before = settings["env"]
    same = isinstance(before, dict) and before.get("name") == name
    return from_plain(before, known_kinds(), "env") if same else EnvSettings(name)
