"""The command line as a user meets it: help, names, flags and mistakes."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from commands import in_one_process, recollect

from recollect import cli
from recollect.algorithms import ALGORITHMS
from recollect.cli import flags
from recollect.cli.plan import Start, plan_training, read_training
from recollect.envs import ENGINES, ENVIRONMENTS, make
from recollect.run.presets import default_collector
from recollect.theory import EXPERIMENTS, Gain, Ode
from recollect.theory.findings import panels
from recollect.theory.ode import SERIES
from recollect.theory.prediction import Prediction, Reusable


@pytest.mark.parametrize("name", ALGORITHMS)
def test_python_and_the_command_line_start_from_the_same_collector(name):
    assert Start.of(name, "Unfamiliar-v0", "auto").preset.collector == default_collector(
        ALGORITHMS[name]()
    )


def test_help_and_version():
    result = recollect("--help")
    assert result.returncode == 0
    for word in ("train", "compare", "rnpg", "rtrpo", "CartPole-v1", "InvertedPendulum-v5"):
        assert word in result.stdout
    flags = recollect("train", "rnpg", "--help").stdout
    for word in (
        "--window",
        "--fisher-window",
        "--damping",
        "--solver",
        "--solver.conjugate-gradients.tolerance",
        "--weights",
        "--weights.truncate",
        "--advantages.baseline",
        "--max-steps",
        "Defaults shown are the default settings",
    ):
        assert word in flags
    assert "Args:" not in flags  # nor what else is for callers in Python


HEAVY = ("jax", "numpy", "gymnasium", "matplotlib", "tyro", "rich")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("--help", 0, "algorithms:"),
        ("--version", 0, "recollect 0."),
        ("train --help", 0, "algorithms:"),
        ("trian rnpg CartPole-v1", 2, "did you mean 'train'"),
        ("train rnp CartPole-v1", 2, "did you mean 'rnpg'"),
        ("theory rat", 2, "did you mean 'rate'"),
    ],
)
def test_help_and_wrong_names_need_no_jax(words, code, says):
    result = _loaded(words.split())
    assert says in result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == f"{code} []"


def test_the_help_of_every_command_needs_no_jax():
    commands = ("compare", "resume", "eval", "plot", "report", "watch", "play", "export")
    commands += ("envs", "algorithms")
    several = {"train", "tune", "theory", "paper"}
    assert {*commands} == {*flags.COMMANDS} == {*cli.COMMANDS} - several
    program = f"""
import sys
from recollect.cli import main
codes = [main([command, "--help"]) for command in {commands!r}]
print(codes, [name for name in ("jax", "numpy", "gymnasium") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == f"{[0] * len(commands)} []"
    for flag in ("--windows", "--use", "--stochastic", "--x {steps,iterations,seconds}", "--all"):
        assert flag in result.stdout


def _loaded(words, names=HEAVY):
    """What the command line prints, and then its exit code and which modules it has loaded."""
    program = f"""
import sys
from recollect.cli import main
code = main({words!r})
print(code, [name for name in {names!r} if name in sys.modules])
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_the_names_in_the_help_are_those_that_there_are():
    assert tuple(ALGORITHMS) == cli.ALGORITHMS
    assert tuple(ENVIRONMENTS) == cli.ENVIRONMENTS
    assert tuple(EXPERIMENTS) == cli.EXPERIMENTS
    for name in (*ALGORITHMS, *ENVIRONMENTS, *EXPERIMENTS):
        assert name in cli.HELP
    for command in cli.COMMANDS:
        assert f"recollect {command}" in cli.HELP
    engines = flags.Run.__dataclass_fields__["engine"].type
    assert engines.__args__ == ENGINES


NAMES = """
import sys
import recollect
assert "jax" not in sys.modules
import recollect.public
from jax._src import xla_bridge
assert not xla_bridge._backends  # no device has been touched
assert "scipy.stats" not in sys.modules
import recollect.report.tables
from recollect import train
assert train is recollect.train is sys.modules["recollect.run.train"].train
assert callable(train)
from recollect import public
for name in public.__all__:
    assert getattr(recollect, name) is getattr(public, name)
assert {*public.__all__, "__version__"} <= {*dir(recollect)}
everything = {}
exec("from recollect import *", everything)
assert {*public.__all__} <= {*everything}
try:
    recollect.trian
except AttributeError as error:
    assert "'trian'" in str(error)
else:
    raise AssertionError
"""


def test_the_package_loads_its_names_when_they_are_asked_for():
    result = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_training_takes_any_name_and_loads_neither_the_theory_nor_the_paper(tmp_path):
    """What rich and matplotlib take for commands, in the names of files."""
    odd = "a[/]$_^$b:smile:"
    mine, out = tmp_path / f"{odd}.npz", tmp_path / odd
    mine.parent.mkdir(parents=True)
    np.savez(mine, transitions=np.full((2, 1, 2), 0.5), rewards=np.ones((2, 1)))
    flags = ["--iterations", "2", "--seeds", "1", "--max-steps", "5"]
    words = ["train", "vpg", str(mine), *flags, "--out", str(out)]
    result = _loaded(words, ("jax", "recollect.theory", "recollect.paper"))
    *_, wrote, loaded = result.stdout.splitlines()
    assert loaded == "0 ['jax']", result.stderr
    assert wrote.startswith(f"wrote {out}/learning_curves.png")
    assert "one seed" in result.stdout
    assert "nan" not in result.stdout
    assert (out / "learning_curves.png").exists()


def test_pictures_of_the_theory_take_any_name(tmp_path):
    odd, half = "$_^$.npz", Reusable(0.5, (0.4, 0.6))
    prediction = Prediction(1.0, 1.0, 0.5, half, half, (0.1, 0.2), tail=0.1, environment_steps=1)
    Gain(env=odd)._picture(prediction, None).savefig(tmp_path / "gain.png")
    ode = Ode(halvings=2)
    figure, axes = panels(1, 2)
    paths = {series: [np.ones((2, 8, 1))] * 3 for series in SERIES}
    distances = {series: np.array([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]) for series in SERIES}
    ode._draw(axes, odd, paths, distances, distances["VNPG"], (np.ones((5, 1)),) * 2)
    figure.savefig(tmp_path / "ode.png")


@pytest.mark.parametrize("discount", [0.9, 0.99])
def test_a_discount_is_the_environments_and_the_algorithms(discount):
    plan, _ = plan_training("rnpg", "LQC", ["--advantages", "exact", "--samples", "3"])
    assert plan.config.env.discount == plan.config.algorithm.discount == 0.5
    words = ["--advantages", "exact", "--samples", "3", "--discount", str(discount)]
    plan, _ = plan_training("rnpg", "LQC", words)
    assert plan.config.env.discount == plan.config.algorithm.discount == discount


def test_only_the_environment_chooses_the_preset(tmp_path):
    _, start, _ = read_training("rnpg", "Never-v0", ["--out", "Hopper-v5"], "recollect")
    assert start.source == "default"
    _, start, _ = read_training("rnpg", "Hopper-v5", ["--out", "LQC"], "recollect")
    assert start.source == "Hopper-v5"


def test_copies_do_not_repeat_what_is_deprecated():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        env = make("Hopper-v4")
        for copy in range(3):
            env.make_checked(copy).env.close()
    assert len([one for one in told if "out of date" in str(one.message)]) == 1


MISTAKES = [
    (["train", "rpg", "CartPole-v1", "--fisher-window", "3"], "--fisher-window"),
    (
        ["compare", "CartPole-v1", "--algorithms", "vpg", "trpo", "--clip", "0.3"],
        "--clip is a flag of none of vpg, trpo",
    ),
    (["train", "trpo", "CartPole-v1", "--policy.head", "grid"], "CartPole has choices"),
    (
        ["train", "rnpg", "CartPole-v1", "--copies", "3", "--episodes", "2"],
        "--copies 3 goes with --steps",
    ),
    (["trian", "rnpg", "CartPole-v1"], "did you mean 'train'"),
    (["train", "rnp", "CartPole-v1"], "did you mean 'rnpg'"),
    (["train", "rnpg", "Cartpole"], "did you mean 'CartPole-v1'"),
    (["train", "rnpg", "CartPole-v1", "--window", "0"], "window=0"),
    (["train", "rnpg", "CartPole-v1", "--optimizer", "adm"], "did you mean 'adam'"),
    (["train", "rnpg", "CartPole-v1", "--episodes", "4", "--samples", "4"], "exclude each other"),
    (["train", "rnpg", "CartPole-v1", "--project", "boks:1:2"], "did you mean 'box'"),
    (["train", "rnpg", "CartPole-v1", "--widow", "3"], "--widow, 3; did you mean --window?"),
    (
        ["train", "rnpg", "CartPole-v1", "--window", "x"],
        "Error parsing --window: invalid literal for int() with base 10: 'x'; see recollect train",
    ),
    (["train", "rnpg", "CartPole-v1", "--preset"], "'--preset'. Expected 1 values; see recollect"),
    (["train", "rnpg", "CartPole-v1", "--seeds", "1000000000"], "seeds=1000000000 are more than"),
    (["eval"], "Missing from recollect eval: RUN"),
    (["compare", "CartPole-v1", "--algorithms", "vpg", "rpgg"], "did you mean 'rpg'"),
    (["compare", "CartPole-v1", "rnpg", "vnpg"], "--algorithms rnpg vnpg"),
    (["compare", "CartPole-v1", "--algorithms", "vpg", "--window", "2", "x"], "'x' is no flag"),
    (["compare", "--seeds", "2", "CartPole-v1"], "the environment has to come first"),
    (["train", "rnpg", "--seeds", "2", "CartPole-v1"], "recollect train rnpg ENV --seeds 2"),
    (["train", "rnpg"], "the environment has to come first"),
    (["train", "rnpg", "CartPole-v1", "--gamma", "0.9"], "did you mean --discount?"),
    (["train", "rnpg", "CartPole-v1", "--vf-lr", "1"], "did you mean --critic.learning-rate?"),
    (["train", "rnpg", "CartPole-v1", "--lam=0.9"], "did you mean --advantages.gae-lambda?"),
    (
        ["train", "rnpg", "CartPole-v1", "--total-timesteps", "9"],
        "did you mean --environment-steps?",
    ),
    (["train", "rnpg", "CartPole-v1", "--workers", "--engine", "compiled"], "leave it out"),
    (["train", "rnpg", "CartPole-v1", "--window", "1000000000"], "GiB, more than this machine"),
    (["train", "rnpg", "CartPole-v1", "--resume"], "--resume needs --out"),
    (["train", "rnpg", "CartPole-v1", "--log-interval", "0"], "log_interval=0"),
    (["train", "rnpg", "ALE/Pong-v5"], "pip install ale-py"),
    (["train", "--config", "nowhere"], "nowhere holds no run"),
    (["theory", "gain", "--env", "Hopper-v5"], "the prediction needs a compiled environment"),
    (["tune", "rnp", "CartPole-v1"], "did you mean 'rnpg'"),
    (["tune", "rnpg"], "the environment has to come first"),
    (["tune", "rnpg", "CartPole-v1", "--trials", "0"], "trials=0"),
    (["resume", "nowhere"], "nowhere holds neither a run nor a comparison"),
    (["eval", "nowhere"], "nowhere holds neither a run nor a comparison"),
    (["plot", "nowhere"], "nowhere holds neither a run nor a comparison"),
    (
        [
            "train",
            "rnpg",
            "CartPole-v1",
            "--seeds",
            "1",
            "--iterations",
            "1",
            "--out",
            "/dev/null/x",
        ],
        "/dev/null/x",
    ),
]


def test_mistakes_give_one_message_and_exit_code_2():
    found = in_one_process([words for words, _ in MISTAKES])
    wrong = [
        (words, code, errors)
        for (words, says), (code, _, errors) in zip(MISTAKES, found, strict=True)
        if code != 2 or says not in errors or len(errors.splitlines()) != 1
    ]
    assert not wrong
