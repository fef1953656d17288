"""The command line: its help, and which command was meant.

Nothing here needs JAX, so that help and mistyped commands are answered at once. Each command is
loaded when it is run.
"""

import io
import sys

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

HELP = f"""recollect {__version__}: policy gradients that reuse the trajectories of past policies.

usage:
  recollect train ALGORITHM ENV [flags]    train one algorithm on several seeds
  recollect compare ENV [flags]            train several algorithms on the same seeds
  recollect theory EXPERIMENT [flags]      check a theorem of the paper, with figures and pictures
  recollect paper [FIGURE ...] [flags]     the experiments of the paper, an answer to every claim
  recollect train ALGORITHM --help         all flags of an algorithm
  recollect compare --help                 all flags of a comparison
  recollect theory EXPERIMENT --help       all flags of an experiment
  recollect --version

algorithms:    {", ".join(ALGORITHMS)}
               FILE.py:NAME or MODULE:NAME, an algorithm of your own
environments:  {", ".join(ENVIRONMENTS)} (compiled)
               any name that Gymnasium knows, for example Hopper-v5,
               MODULE:NAME for one that MODULE registers,
               NAME.npz, a finite MDP as arrays (transitions, rewards, initial, discount)
experiments:   {", ".join(EXPERIMENTS)}

Each run writes a folder below runs/: settings.json, curves.csv and learning_curves.png.

Settings: those tuned for the algorithm and the environment where there are any, the paper's for
LQC and tables, else defaults for unfamiliar tasks; --preset default or --preset paper decides.

examples:
  recollect train rtrpo CartPole-v1 --target-return 475 --environment-steps 50000
  recollect train rppo InvertedPendulum-v5 --environment-steps 40000 --policy.head squashed
  recollect train rtrpo Hopper-v5 --environment-steps 200000
  recollect compare CartPole-v1 --algorithms vpg rpg vnpg rnpg --max-steps 200 --preset paper
  recollect theory normality --cases 5 1 5 10 --iterations 50000
  recollect train rnpg LQC --samples 5 --advantages exact --learning-rate 1 --step-decay 0.9
  recollect train examples/vmpo.py:VMPO CartPole-v1 --environment-steps 50000
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Greek letters must not lose a result at its last line.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return _dispatch(words)
    except (ValueError, OSError) as error:
        return _say(error)
    except RuntimeError as error:
        # Its class is imported only here because that brings JAX.
        from recollect.envs import EnvironmentFailure

        if not isinstance(error, EnvironmentFailure):
            raise
        return _say(error)
    except KeyboardInterrupt:
        print("recollect: interrupted", file=sys.stderr)
        return 130


def _say(error: Exception) -> int:
    print(f"recollect: {error}", file=sys.stderr)
    return 2


def _dispatch(words: list[str]) -> int:
    command, *rest = words or ["--help"]
    if command in ("--help", "-h"):
        print(HELP, end="")
        return 0
    if command == "--version":
        print(f"recollect {__version__}")
        return 0
    check_name("command", command, ("train", "compare", "theory", "paper"))
    if command == "compare":
        from recollect.cli.training import compare

        return compare(rest, words)
    if command == "paper":
        from recollect.cli.paper import paper

        return paper(rest)
    if not rest or rest[0] in ("--help", "-h"):
        print(HELP, end="")
        return 0 if rest else 2
    name, *flags = rest
    if command == "theory":
        check_name("experiment", name, EXPERIMENTS)
        from recollect.cli.theory import theory

        return theory(name, flags, words)
    if ":" not in name:
        check_name("algorithm", name, ALGORITHMS, source="FILE.py:NAME")
    from recollect.cli.training import train_one

    return train_one(name, flags, words)
