"""`recollect train`, `recollect compare` and `recollect resume`: runs, each kept in a folder.

Everything is checked and every folder made before the first run begins. A run writes its folder as
it goes on; what stops it, an interrupt or anything else, ends in one line that tells how to resume.
"""

import contextlib
import dataclasses
import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recollect.agent.callbacks import Evaluate
from recollect.checks import check_count
from recollect.cli.evaluating import EVALUATION
from recollect.cli.fields import load_classes
from recollect.cli.flags import Limits, Repeat, Resume, Run, Watch, parse
from recollect.cli.machines import answers
from recollect.cli.plan import (
    Plan,
    given_env,
    plan_comparison,
    plan_training,
    read_training,
    source_words,
)
from recollect.cli.shared import console
from recollect.devices import described, learning_devices
from recollect.report.curves import read_curve, runs_in, write_curves
from recollect.report.live import live_table
from recollect.report.plot import draw_curves
from recollect.report.tables import reached, summarise, table
from recollect.run.config import RunConfig
from recollect.run.files import numbered_folder
from recollect.run.folder import (
    BEST,
    RunFolder,
    delete_run,
    holds_run,
    read_config,
)
from recollect.run.log import TensorBoard
from recollect.run.session import Until, Watcher
from recollect.run.show import Lines
from recollect.run.snapshot import Snapshot
from recollect.run.train import Training, execute, on_machines
from recollect.serial import differences, to_json

RUNS = Path("runs")
PICTURE = "learning_curves.png"
CURVES = "curves.csv"
BOARD = "tensorboard"


@dataclasses.dataclass(frozen=True)
class Job:
    """A run with its folder, which has been made or opened."""

    name: str
    config: RunConfig
    until: Until
    folder: RunFolder
    snapshot: Snapshot | None = None
    """Where to go on from."""


def train(flags: list[str], words: list[str]) -> int:
    """`recollect train ALGORITHM ENV`, or `recollect train --config FILE`."""
    if any(word.partition("=")[0] == "--config" for word in flags):
        return _repeat(flags, words)
    name, *rest = flags
    if rest[:1] in ([], ["--help"], ["-h"]):
        read_training(name, None, rest, f"recollect train {name} ENV")
    env, rest = env_and_flags(rest, f"recollect train {name}")
    plan, run = plan_training(name, env, rest)
    return _train(plan, run, words, f"{plan.name} on {env}: {source_words(plan.config.source)}")


def _repeat(flags: list[str], words: list[str]) -> int:
    """`recollect train --config FILE`."""
    asked, _ = parse(Repeat, flags, "recollect train")
    facts = read_config(asked.config)
    env = given_env(facts["settings"], asked.env)
    config = RunConfig.from_plain(facts["settings"], env=env, use=load_classes(asked.use))
    until = _until(asked, Until(**facts["until"]))
    plan = Plan(config.algorithm_name, config, until, asked.use)
    about = f"{plan.name} on {config.env_name}: the settings of {asked.config}"
    return _train(plan, asked, words, about)


def _train(plan: Plan, asked: Run | Repeat, words: list[str], about: str) -> int:
    _check(asked)
    path = asked.out or numbered_folder(RUNS / plan.env_folder_name / plan.folder_name)
    job = _job(plan, path, asked, words)
    _say(asked, about)
    return _carry_out([job], asked, path, _resume_words(path, asked, [plan], words))


def compare(flags: list[str], words: list[str]) -> int:
    """`recollect compare ENV`."""
    env, rest = env_and_flags(flags, "recollect compare")
    plans, run = plan_comparison(env, rest)
    _check(run)
    path = run.out or numbered_folder(RUNS / plans[0].env_folder_name / "compare")
    if holds_run(path):
        raise ValueError(f"{path} holds a run, which is no comparison; choose another folder.")
    jobs = [_job(plan, path / plan.folder_name, run, words) for plan in plans]
    for plan in plans:
        _say(run, f"{plan.name}: {source_words(plan.config.source)}")
    return _carry_out(jobs, run, path, _resume_words(path, run, plans, words))


def resume(flags: list[str], words: list[str]) -> int:
    """`recollect resume RUN`."""
    asked, _ = parse(Resume, flags, "recollect resume")
    _check(asked)
    use = load_classes(asked.use)
    jobs = []
    for name, path in runs_in(asked.run).items():
        folder = RunFolder.open(path, asked.checkpoint_seconds)
        env = given_env(read_config(path)["settings"], asked.env)
        snapshot = folder.latest(env=env, use=use)
        for field, before, after in snapshot.changed:
            raise ValueError(f"{path} holds a run with {field}={before}, not {after}.")
        jobs.append(Job(name, snapshot.config, _until(asked, folder.until), folder, snapshot))
        _say(asked, f"{name}: goes on after {snapshot.iteration} iterations")
    return _carry_out(jobs, asked, asked.run, ["recollect", *words])


def env_and_flags(words: list[str], program: str) -> tuple[str, list[str]]:
    """The environment, which stands first, and the words behind it."""
    if not words or words[0].startswith("-"):
        raise ValueError(
            f"the environment has to come first: {shlex.join([*program.split(), 'ENV', *words])}."
        )
    return words[0], words[1:]


def _until(asked: Limits, before: Until) -> Until:
    """The limits that are given, or those of before."""
    if {"iterations", "environment_steps"} & asked.given.keys():
        return Until(**asked.given)
    return dataclasses.replace(before, **asked.given)


def _check(asked: Watch) -> None:
    """Raise for flags that do not go together, before any folder is made."""
    check_count("log_interval", asked.log_interval)
    if asked.evaluate_every is not None:
        check_count("evaluate_every", asked.evaluate_every)
    if asked.tensorboard:
        TensorBoard(RUNS)  # raises if its package is not there
    if isinstance(asked, Run | Repeat) and asked.resume and (asked.overwrite or asked.out is None):
        raise ValueError("--resume needs --out, and excludes --overwrite.")


def _job(plan: Plan, path: Path, asked: Run | Repeat, words: list[str]) -> Job:
    """The run with its folder: a new one, or with --resume the one that is there."""
    config = on_machines(plan.config, asked.chosen())
    seconds = asked.checkpoint_seconds
    if asked.overwrite and holds_run(path):
        _delete(path)
    if not (asked.resume and holds_run(path)):
        command = ["recollect", *words]
        folder = RunFolder.create(path, config, plan.until, seconds=seconds, command=command)
        return Job(plan.name, config, plan.until, folder)
    now = json.loads(json.dumps(config.plain()))
    for name, before, after in differences(read_config(path)["settings"], now):
        raise ValueError(
            f"{path} holds a run with {name}={before}, not {after}; give --overwrite, or another "
            "--out."
        )
    folder = RunFolder.open(path, seconds)
    snapshot = folder.latest(env=config.env, algorithm=config.algorithm, policy=config.policy)
    return Job(plan.name, config, plan.until, folder, snapshot)


def _resume_words(
    path: Path, asked: Run | Repeat, plans: Sequence[Plan], words: list[str]
) -> list[str]:
    """The command that goes on with runs."""
    if asked.resume:  # the same again: its limits may be others than those of the folder
        return ["recollect", *words]
    command = ["recollect", "resume", str(path)]
    own = dict.fromkeys(name for plan in plans for name in plan.own)
    command += ["--use", *own] if own else []
    env = plans[0].config.env_name
    return command + (["--env", env] if ":" in env else [])


def _say(asked: Watch, text: str) -> None:
    """Print a line, unless --quiet."""
    if not asked.quiet:
        console(stderr=asked.json).print(text, soft_wrap=True)


def _carry_out(jobs: Sequence[Job], asked: Watch, path: Path, resume_words: list[str]) -> int:
    """Run all, tell what came out, and draw it; a single run is kept in `path` itself."""
    with answers(asked.json and asked.on == "ray") as answer:
        return _carry_out_all(jobs, asked, path, resume_words, answer)


def _carry_out_all(
    jobs: Sequence[Job], asked: Watch, path: Path, resume_words: list[str], answer: Any
) -> int:
    _say(asked, f"learns on {described(learning_devices())}")
    trainings: dict[str, Training] = {}
    written: list[str] = []
    for job in jobs:
        try:
            trainings[job.name] = _execute(job, asked)
            runs = {job.name: job.folder.path for job in jobs if job.name in trainings}
            written = _draw(path, runs)
        except BaseException as stop:
            if isinstance(stop, ValueError) and not job.folder.checkpoints():
                # It could not begin: the machine's memory, say, did not allow it.
                _delete(job.folder.path)
            else:
                stop.add_note(f"go on with: {shlex.join(resume_words)}")
            raise
    _report(trainings, jobs, asked)
    _say(asked, f"wrote {path}/{', '.join(written)}")
    if asked.json:
        summaries = {name: summarise(training) for name, training in trainings.items()}
        found = {name: dataclasses.asdict(one) for name, one in summaries.items()}
        print(to_json(found), file=answer)
    return 0


def _delete(folder: Path) -> None:
    """Delete the folder of a run, but nothing in it that is the user's."""
    delete_run(folder)
    shutil.rmtree(folder / BOARD, ignore_errors=True)
    for name in (PICTURE, EVALUATION):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _execute(job: Job, asked: Watch) -> Training:
    path = job.folder.path
    label = f"{job.name:>5}"
    with _shown(job, asked, label) as watchers:
        training = execute(
            job.config,
            job.until,
            snapshot=job.snapshot,
            callback=_evaluations(path, job, asked),
            loggers=[TensorBoard(path / BOARD)] if asked.tensorboard else [],
            folder=job.folder,
            watchers=watchers,
            progress=sys.stderr.isatty() and not asked.quiet and not asked.live,
            label=label,
            log_interval=asked.log_interval,
            on=asked.chosen(),
        )
    if job.snapshot is not None and training.snapshot.iteration == job.snapshot.iteration:
        _say(
            asked,
            f"{job.name}: its limits were met before; larger ones, such as --iterations, "
            "let it go on.",
        )
    return training


@contextlib.contextmanager
def _shown(job: Job, asked: Watch, label: str) -> Iterator[list[Watcher]]:
    """A context with what shows a run, where that is no bar."""
    terminal = sys.stderr.isatty()
    if asked.quiet or (terminal and not asked.live):
        yield []
    elif terminal:
        with live_table(job.name, job.until) as watcher:
            yield [watcher]
    else:  # a table that is drawn again and again is nothing for a file
        write = lambda line: print(line, file=sys.stderr, flush=True)
        yield [Lines(job.until, label, write)]


def _evaluations(path: Path, job: Job, asked: Watch) -> Sequence[Evaluate]:
    if asked.evaluate_every is None:
        return []
    evaluate = Evaluate(asked.evaluate_every, job.config.env, folder=path / BEST)
    if job.snapshot is not None:
        evaluate.remember(job.snapshot.iteration)
    return [evaluate]


def _draw(path: Path, runs: dict[str, Path]) -> list[str]:
    """Write the learning curves of what has finished; names of the files."""
    draw_curves(path / PICTURE, [read_curve(name, folder) for name, folder in runs.items()])
    if [*runs.values()] == [path]:
        return [PICTURE, "progress.csv", "config.json", "checkpoints"]
    write_curves(path / CURVES, runs)
    return [PICTURE, CURVES, *[folder.name for folder in runs.values()]]


def _report(trainings: dict[str, Training], jobs: Sequence[Job], asked: Watch) -> None:
    """Print a summary of every run, and which seeds have reached what they were to reach."""
    out = console(stderr=asked.json)
    out.print(table({name: summarise(training) for name, training in trainings.items()}))
    for job in jobs:
        target = job.until.target_return
        if target is not None:
            found = reached(trainings[job.name], target)
            words = [
                f"seed {seed} {'did not' if steps is None else f'after {steps:,} steps'}"
                for seed, steps in found.items()
            ]
            out.print(f"{job.name} reached {target:g}: {', '.join(words)}", soft_wrap=True)
