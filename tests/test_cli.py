"""The command line as a user meets it: real processes, real files."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from recollect import cli
from recollect.algorithms import ALGORITHMS
from recollect.cli.shared import parse
from recollect.cli.training import _training
from recollect.envs import ENVIRONMENTS
from recollect.run.presets import default_collector
from recollect.theory import EXPERIMENTS, Gain, Ode
from recollect.theory.findings import panels
from recollect.theory.ode import SERIES
from recollect.theory.prediction import Prediction, Reusable

FIRST_COLUMNS = ["algorithm", "seed", "iteration", "environment_steps"]


def recollect(*words, cwd=None):
    return subprocess.run(
        [Path(sys.executable).parent / "recollect", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_python_and_the_command_line_start_from_the_same_collector(name):
    words = ["Unfamiliar-v0"]
    chosen, _ = parse(_training(name, words), words, "recollect train")
    assert chosen.collector == default_collector(ALGORITHMS[name]())


def in_one_process(*commands, cwd=None):
    """What some commands print, one after the other in a process; all have to succeed."""
    program = """
import json, sys
from recollect.cli import main
for words in json.load(sys.stdin):
    assert main(words) == 0
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([[*map(str, words)] for words in commands]),
        capture_output=True,
        text=True,
        cwd=cwd,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


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
    ):
        assert word in flags


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


def test_train_writes_settings_curves_and_picture(tmp_path):
    words = (
        "train",
        "rnpg",
        "CartPole-v1",
        "--window",
        3,
        "--iterations",
        4,
        "--seeds",
        2,
        "--max-steps",
        20,
        "--learning-rate",
        0.05,
        "--json",
    )
    printed = in_one_process(*[(*words, "--out", tmp_path / name) for name in ("a", "b")])
    figures = json.loads(printed.splitlines()[-1])["rnpg"]
    assert set(figures) >= {
        "final_return",
        "area_under_curve",
        "standard_error",
        "environment_steps",
        "seconds",
        "compile_seconds",
    }
    with (tmp_path / "b" / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0])
    assert columns[:4] == FIRST_COLUMNS
    assert columns[-1] == "seconds"
    measured = {"return_mean", "length_mean", "ess", "ess_by_age_0", "kl", "refused"}
    assert measured <= set(columns)
    assert [(row["seed"], row["iteration"]) for row in rows] == [
        (str(s), str(i)) for s in (0, 1) for i in (1, 2, 3, 4)
    ]
    assert (
        int(rows[3]["environment_steps"]) + int(rows[7]["environment_steps"])
        == figures["environment_steps"]
    )
    assert float(figures["area_under_curve"]) == pytest.approx(
        sum(float(row["return_mean"]) for row in rows) / 8, rel=1e-4
    )
    settings = json.loads((tmp_path / "a" / "settings.json").read_text())
    assert settings["algorithms"]["rnpg"]["window"] == 3
    assert settings["algorithms"]["rnpg"]["learning_rate"] == 0.05
    assert settings["env"]["max_steps"] == 20
    assert (tmp_path / "a" / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    # The same command again gives the same numbers.
    without_time = lambda name: [
        line.rsplit(",", 1)[0] for line in (tmp_path / name / "curves.csv").read_text().splitlines()
    ]
    assert without_time("a") == without_time("b")


def test_compare_runs_all_algorithms_into_a_folder_of_its_own(tmp_path):
    words = (
        "--algorithms",
        "vpg",
        "rnpg",
        "--iterations",
        2,
        "--seeds",
        2,
        "--max-steps",
        10,
        "--window",
        2,
        "--damping",
        0.01,
        "--preset",
        "paper",
    )
    result = recollect("compare", "CartPole-v1", *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    settings = json.loads((folder / "settings.json").read_text())["algorithms"]
    assert (settings["vpg"]["window"], settings["rnpg"]["window"], settings["rnpg"]["damping"]) == (
        1,
        2,
        0.01,
    )
    assert {path.name for path in folder.iterdir()} == {
        "settings.json",
        "curves.csv",
        "learning_curves.png",
    }
    for word in ("vpg", "rnpg", "area under curve", "learning_curves.png"):
        assert word in result.stdout


def test_an_environment_with_a_discount_of_its_own(tmp_path):
    words = (
        "train",
        "rnpg",
        "LQC",
        "--samples",
        3,
        "--advantages",
        "exact",
        "--iterations",
        2,
        "--seeds",
        1,
    )
    own, told = tmp_path / "own", tmp_path / "told"
    in_one_process((*words, "--out", own), (*words, "--discount", 0.7, "--out", told))
    for folder, discount in (own, 0.5), (told, 0.7):
        settings = json.loads((folder / "settings.json").read_text())
        assert settings["env"]["discount"] == settings["algorithms"]["rnpg"]["discount"] == discount


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
    (["train", "rnpg", "CartPole-v1", "--widow", "3"], "--window"),
    (["compare", "CartPole-v1", "--algorithms", "vpg", "rpgg"], "did you mean 'rpg'"),
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
    """All in one process without pytest's type checks."""
    program = """
import contextlib, io, json, sys
from recollect.cli import main
found = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    found.append((code, errors.getvalue()))
print(json.dumps(found))
"""
    words = json.dumps([words for words, _ in MISTAKES])
    result = subprocess.run(
        [sys.executable, "-c", program], input=words, capture_output=True, text=True, check=True
    )
    found = json.loads(result.stdout.splitlines()[-1])
    wrong = [
        (words, code, errors)
        for (words, says), (code, errors) in zip(MISTAKES, found, strict=True)
        if code != 2 or says not in errors or "Traceback" in errors
    ]
    assert not wrong
