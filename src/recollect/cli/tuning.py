"""`recollect tune`: better settings by trial, and what they are worth on other seeds."""

import json
import shlex
import sys
from pathlib import Path
from typing import TextIO

from recollect.agent.ranges import RANGES
from recollect.agent.study import Trial, import_optuna
from recollect.agent.tune import BEST_SETTINGS, TRIALS, Search, Tuned
from recollect.cli.flags import Tune
from recollect.cli.machines import answers
from recollect.cli.plan import plan_tuning
from recollect.cli.shared import console
from recollect.cli.training import RUNS, env_and_flags
from recollect.machines import AbstractMachines
from recollect.report.search import draw_search
from recollect.run.files import numbered_folder
from recollect.run.folder import holds_run
from recollect.runtime import progress_bar
from recollect.statistics import Estimate

PICTURE = "tuning.png"


def tune(flags: list[str], words: list[str]) -> int:
    """`recollect tune ALGORITHM ENV`."""
    name, *rest = flags
    if rest[:1] in (["--help"], ["-h"]):
        plan_tuning(name, None, rest, f"recollect tune {name} ENV")
    env, rest = env_and_flags(rest, f"recollect tune {name}")
    plan, asked, others = plan_tuning(name, env, rest, f"recollect tune {name} {env}")
    import_optuna()
    on = asked.chosen()
    search = Search(
        plan.config, asked.environment_steps, asked.trials, asked.held_back, _given(rest)
    )
    if asked.out is not None and holds_run(asked.out):
        raise ValueError(f"{asked.out} holds a run, which is no study; choose another folder.")
    parent = RUNS / "tune" / plan.env_folder_name / plan.folder_name
    out = asked.out or numbered_folder(parent)
    with answers(asked.json and asked.on == "ray") as answer:
        try:
            found = _searched(search, asked, out, on)
            draw_search(out / PICTURE, found)
        except BaseException as stop:
            place = [] if asked.out else ["--out", str(out)]
            stop.add_note(f"go on with: {shlex.join(['recollect', *words, *place])}")
            raise
        _tell(found, asked, out, ["recollect", "train", name, env, *others], answer)
    return 0


def _given(words: list[str]) -> tuple[str, ...]:
    """Names of the settings that flags give, which are not searched."""
    given = {word.partition("=")[0].replace("_", "-") for word in words}
    return tuple(name for name in RANGES if f"--{name.replace('_', '-')}" in given)


def _searched(search: Search, asked: Tune, out: Path, on: AbstractMachines | None) -> Tuned:
    """The result of a search that is shown as it goes on."""
    out_of = console(stderr=True)
    terminal = sys.stderr.isatty()

    def ended(trial: Trial, best: Trial | None) -> None:
        if not terminal and not asked.quiet:
            out_of.print(_line(trial, best), soft_wrap=True)

    if not asked.quiet:
        names = ", ".join(search.space)
        console(stderr=asked.json).print(f"searches {names}; kept in {out}", soft_wrap=True)
    with progress_bar(terminal and not asked.quiet, "tuning") as show:
        return search.run(out, asked.storage, show, ended, on)


def _line(trial: Trial, best: Trial | None) -> str:
    """What became of a trial, in a line."""
    came = f"mean return {trial.value:.5g}" if trial.value is not None else trial.outcome
    why = f": {trial.reason}" if trial.reason else ""
    of_best = "" if best is None else f", best {best.value:.5g} of trial {best.number}"
    return f"trial {trial.number}: {came}{why} ({trial.seconds:.0f} s){of_best}"


def _tell(found: Tuned, asked: Tune, out: Path, train: list[str], answer: TextIO) -> None:
    """Print what was found, and what it is worth; as JSON where a program expects the answer."""
    show = lambda text: console(stderr=asked.json).print(text, soft_wrap=True)
    best = found.best
    counted = [one.outcome for one in found.trials]
    show(
        f"best of {len(counted)} trials ({counted.count('pruned')} stopped early, "
        f"{counted.count('failed')} failed): trial {best.number}, mean return {best.value:.5g} "
        "while learning"
    )
    show(f"\non {len(found.config.seeds)} seeds that no trial has seen, 95 % bootstrap intervals:")
    for name, one in (("start", found.mean("start")), ("tuned", found.mean("tuned"))):
        show(f"  {name}      {_interval(one, '')}")
    show(f"  difference {_interval(found.gain, '+')}, seed by seed: {verdict(found.gain)}")
    limit = ["--environment-steps", str(found.environment_steps)]
    show(f"\nas flags:\n  {shlex.join([*train, *limit, *found.flags])}")
    show(f"\nin Python:\n{found.python}\n")
    show(f"wrote {out}/{BEST_SETTINGS}, {TRIALS}, {PICTURE}")
    show(f"the same run again: recollect train --config {shlex.quote(str(out / BEST_SETTINGS))}")
    if asked.json:
        figures = {
            "values": dict(found.values),
            "trial": best.number,
            "mean_return": best.value,
            "start": found.mean("start")._asdict(),
            "tuned": found.mean("tuned")._asdict(),
            "gain": found.gain._asdict(),
            "importances": dict(found.importances),
            "flags": found.flags,
            "config": str(out / BEST_SETTINGS),
        }
        print(json.dumps(figures), file=answer)


def _interval(one: Estimate, sign: str) -> str:
    return f"{one.value:{sign}.5g}  ({one.low:{sign}.5g} to {one.high:{sign}.5g})"


def verdict(gain: Estimate) -> str:
    """What the interval of a difference says."""
    if gain == Estimate(0, 0, 0):
        return "no trial did better than the settings at the start"
    if gain.low > 0:
        return "the tuned settings are better"
    if gain.high < 0:
        return "the tuned settings are worse"
    return "no difference is shown"
