"""The command line: its help, which command was meant, and how every one of them ends.

Nothing here needs JAX, so that help and mistyped commands are answered at once. A command is a
function of its words in a module of its own, which is loaded when it is run.
"""

import contextlib
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator

from recollect import __version__
from recollect.checks import check_name

# Written out, as the modules that define them bring JAX; a test compares them.
ALGORITHMS = ("vpg", "rpg", "vnpg", "rnpg", "trpo", "rtrpo", "ppo", "rppo")
ENVIRONMENTS = (
    "CartPole-v1",
    "Acrobot-v1",
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "InvertedPendulum-v5",
    "LQC",
    "Chain",
    "Gridworld",
    "Garnet",
)
EXPERIMENTS = (
    "normality",
    "process",
    "rate",
    "ode",
    "bias",
    "constant",
    "gain",
    "fisher",
    "weights",
)
COMMANDS = {
    "train": "training",
    "compare": "training",
    "resume": "training",
    "tune": "tuning",
    "eval": "evaluating",
    "plot": "plotting",
    "report": "showing",
    "watch": "showing",
    "play": "deploying",
    "export": "deploying",
    "envs": "listing",
    "algorithms": "listing",
    "theory": "theory",
    "paper": "paper",
}
"""Modules of the commands, by their names, which are those of the functions there, too."""

HELP = f"""recollect {__version__}: policy gradients that reuse the trajectories of past policies.

usage:
  recollect train ALGORITHM ENV [flags]    train one algorithm on several seeds
  recollect train --config FILE            repeat a run
  recollect compare ENV [flags]            train several algorithms on the same seeds
  recollect resume RUN                     go on with a run that was stopped
  recollect tune ALGORITHM ENV [flags]     look for better settings by trial
  recollect eval RUN [flags]               returns of what a run has learned
  recollect plot RUN ... [flags]           learning curves of runs
  recollect report RUN ... [flags]         a page about runs, with a diagnosis in words
  recollect watch RUN                      the same page, which follows the run
  recollect play RUN [flags]               a film of what was learned
  recollect export RUN [flags]             the policy as ONNX, StableHLO, or for NumPy
  recollect envs                           environments
  recollect algorithms                     algorithms
  recollect theory EXPERIMENT [flags]      check a theorem of the paper, with figures and pictures
  recollect paper [FIGURE ...] [flags]     the experiments of the paper, an answer to every claim
  recollect COMMAND --help                 all flags of a command
  recollect train ALGORITHM --help         all flags of an algorithm
  recollect tune ALGORITHM --help          what is searched, and why
  recollect theory EXPERIMENT --help       all flags of an experiment
  recollect --version

algorithms:    {", ".join(ALGORITHMS)}
               FILE.py:NAME or MODULE:NAME, an algorithm of your own
environments:  {", ".join(ENVIRONMENTS)} (compiled)
               any name that Gymnasium knows, for example Hopper-v5,
               MODULE:NAME for one that MODULE registers,
               NAME.npz, a finite MDP as arrays (transitions, rewards, initial, discount)
experiments:   {", ".join(EXPERIMENTS)}

A run is kept in runs/ENV/ALGORITHM/NUMBER/, a comparison in runs/ENV/compare/NUMBER/: settings
(config.json), curves (progress.csv), episodes, checkpoints and learning_curves.png. Ctrl-C loses
nothing: resume goes on bit for bit as if it had never stopped.

Settings: those tuned for the algorithm and the environment where there are any, the paper's for
LQC and tables, else defaults for unfamiliar tasks; --preset default or --preset paper decides.

examples:
  recollect train rtrpo CartPole-v1 --target-return 475 --environment-steps 50000
  recollect eval runs/CartPole-v1/rtrpo/0001 --episodes 100
  recollect train rtrpo Hopper-v5 --environment-steps 200000
  recollect train rtrpo Hopper-v5 --on ray --cluster auto --actors 8 --lag 1
  recollect compare CartPole-v1 --algorithms vpg rpg vnpg rnpg --max-steps 200 --preset paper
  recollect compare CartPole-v1 --algorithms rnpg --windows 1 5 20
  recollect tune rtrpo Hopper-v5 --trials 50 --environment-steps 100000
  recollect theory normality --cases 5 1 5 10 --iterations 50000
  recollect train rnpg LQC --samples 5 --advantages exact --learning-rate 1 --step-decay 0.9
  recollect train examples/vmpo.py:VMPO CartPole-v1 --environment-steps 50000
"""


class Terminated(BaseException):
    """The process was asked to end (SIGTERM); like an interrupt, no failure of the program."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Greek letters must not lose a result at its last line.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with _termination():
            return _answer(words)
    except BrokenPipeError:
        # Whoever read the output has seen enough. Nothing may be written to it at exit, either.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 1
    except (ValueError, OSError) as error:
        return _say(error)
    except RuntimeError as error:
        # Its class is imported only here because that brings JAX.
        from recollect.envs import EnvironmentFailure

        if not isinstance(error, EnvironmentFailure):
            raise
        return _say(error)
    except KeyboardInterrupt as stop:
        return _say(stop, "interrupted", 128 + signal.SIGINT)
    except Terminated as stop:
        return _say(stop, "terminated", 128 + signal.SIGTERM)


@contextlib.contextmanager
def _termination() -> Iterator[None]:
    """A context in which a request to end is raised, so that runs are kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_it(number, frame):
        raise Terminated

    before = signal.signal(signal.SIGTERM, raise_it)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(stop: BaseException, text: str | None = None, code: int = 2) -> int:
    """Print what stopped the program, and how to go on, in one line."""
    # JAX notes in several lines how its tracebacks are shown.
    notes = [note for note in getattr(stop, "__notes__", []) if "\n" not in note]
    print(f"recollect: {'; '.join([text or str(stop), *notes])}", file=sys.stderr)
    return code


def _answer(words: list[str]) -> int:
    """The exit code of a command, after all that it printed has been written."""
    try:
        code = _dispatch(words)
    except SystemExit as stop:  # tyro's, after help or a usage error
        code = stop.code if isinstance(stop.code, int) else 0
    sys.stdout.flush()
    return code


def _dispatch(words: list[str]) -> int:
    command, *flags = words or ["--help"]
    if command in ("--help", "-h"):
        print(HELP, end="")
        return 0
    if command == "--version":
        print(f"recollect {__version__}")
        return 0
    check_name("command", command, COMMANDS)
    if command in ("train", "tune", "theory") and (not flags or flags[0] in ("--help", "-h")):
        print(HELP, end="")
        return 0 if flags else 2
    if command == "theory":
        check_name("experiment", flags[0], EXPERIMENTS)
    if command in ("train", "tune") and ":" not in flags[0] and not flags[0].startswith("-"):
        check_name("algorithm", flags[0], ALGORITHMS, source="FILE.py:NAME")
    if {"--help", "-h"} & {*flags} and command not in ("train", "tune", "theory", "paper"):
        importlib.import_module("recollect.cli.flags").show_help(command)
    module = importlib.import_module(f"recollect.cli.{COMMANDS[command]}")
    return getattr(module, command)(flags, words)
