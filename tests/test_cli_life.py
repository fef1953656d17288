"""The life of a run on the command line: real processes, real files."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import time

import numpy as np
import pytest
from commands import RECOLLECT, in_one_process

from recollect.algorithms import ALGORITHMS

FIRST_COLUMNS = ["algorithm", "seed", "iteration", "environment_steps"]
TRAIN = shlex.split(
    "train rnpg CartPole-v1 --window 3 --seeds 2 --max-steps 20 --learning-rate 0.05 --quiet"
)
FIRST = "runs/CartPole-v1/rnpg/0001"
SECOND = "runs/CartPole-v1/rnpg/0002"
COMPARED = "runs/CartPole-v1/compare/0001"
LIFE = {
    "train": [*TRAIN, *shlex.split("--iterations 4 --evaluate-every 2 --tensorboard --json")],
    "repeat": ["train", "--config", f"{FIRST}/config.json", "--target-return", "1000"],
    "half": [*TRAIN, "--iterations", "2", "--out", "half"],
    "whole": ["resume", "half", "--iterations", "4", "--json"],
    "again": [*TRAIN, "--iterations", "4", "--out", "half", "--resume"],
    "refused": [*TRAIN, "--iterations", "2", "--out", "half"],
    "other": [*TRAIN, "--damping", "0.5", "--out", "half", "--resume"],
    "overwrite": [*TRAIN, "--iterations", "1", "--out", "half", "--overwrite"],
    "eval": ["eval", FIRST, "--episodes", "3", "--json"],
    "stochastic": ["eval", FIRST, "--episodes", "3", "--stochastic", "--out", "drawn.csv"],
    "best": ["eval", FIRST, "--best", "--episodes", "3", "--out", "best.csv"],
    "no best": ["eval", SECOND, "--best"],
    "compare": shlex.split(
        "compare CartPole-v1 --algorithms rnpg --windows 1 3 --iterations 2 --seeds 2 "
        "--max-steps 20 --preset paper --damping 0.01"
    ),
    "plot": ["plot", FIRST, COMPARED, "--x", "iterations", "--out", "picture.svg"],
    "plot nothing": ["plot", FIRST, "--out", "picture.jpg"],
    "envs": ["envs", "--all"],
    "algorithms": ["algorithms"],
    "never": shlex.split("train vpg never:Never-v0 --iterations 1 --seeds 1 --steps 8 --copies 1"),
    "resume never": ["resume", "runs/never-Never-v0/vpg/0001", "--iterations", "2"],
    "never again": [
        *["resume", "runs/never-Never-v0/vpg/0001", "--iterations", "2"],
        *["--env", "never:Never-v0"],
    ],
}
NEVER = """
import gymnasium as gym
import numpy as np

class Never(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(action), False, False, {}

gym.register("Never-v0", Never, max_episode_steps=1000)
"""


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """A folder in which every command has been run, and what each of them has answered."""
    folder = tmp_path_factory.mktemp("life")
    (folder / "never.py").write_text(NEVER)
    found = in_one_process(LIFE.values(), cwd=folder)
    return folder, dict(zip(LIFE, found, strict=True))


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def without_time(path):
    return [{**row, "seconds": ""} for row in rows_of(path)]


def test_every_command_succeeds_or_says_why_not(life):
    refused = {
        "refused": "half holds a run already",
        "other": "half holds a run with algorithm.damping",
        "no best": "--best needs train … --evaluate-every N",
        "plot nothing": "choose from '.png', '.svg', '.pdf'",
        "resume never": "env was 'never:Never-v0', a module of your own; give it again",
    }
    for name, (code, _, errors) in life[1].items():
        assert (code, name) == (2 if name in refused else 0, name), errors
        assert refused.get(name, "") in errors
        assert "Traceback" not in errors


def test_train_keeps_settings_progress_and_checkpoints(life):
    folder, answers = life
    figures = json.loads(answers["train"][1].splitlines()[-1])["rnpg"]
    rows = rows_of(folder / FIRST / "progress.csv")
    assert [(row["iteration"], row["seed"]) for row in rows] == [
        (str(i), str(s)) for i in (1, 2, 3, 4) for s in (0, 1)
    ]
    assert sum(int(row["environment_steps"]) for row in rows[-2:]) == figures["environment_steps"]
    mean = sum(float(row["return_mean"]) for row in rows) / 8
    assert figures["area_under_curve"] == pytest.approx(mean, rel=1e-4)
    config = json.loads((folder / FIRST / "config.json").read_text())
    assert config["command"] == ["recollect", *LIFE["train"]]
    settings = config["settings"]
    assert (settings["algorithm"]["window"], settings["algorithm"]["learning_rate"]) == (3, 0.05)
    assert (settings["env"]["max_steps"], settings["source"]) == (20, "CartPole-v1")
    assert (folder / FIRST / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / FIRST / "checkpoints" / "00000004.zip").exists()
    assert len([*(folder / FIRST / "tensorboard").rglob("events*")]) == 2


def test_a_config_repeats_its_run(life):
    folder, answers = life
    assert without_time(folder / FIRST / "progress.csv") == without_time(
        folder / SECOND / "progress.csv"
    )
    assert "rnpg reached 1000: seed 0 did not, seed 1 did not" in answers["repeat"][1]
    assert "rnpg reached" not in answers["half"][1]


def test_a_run_goes_on_as_if_it_had_never_stopped(life):
    _, answers = life
    of_time = {"seconds", "compile_seconds", "transitions_per_second"}
    last = [json.loads(answers[name][1].splitlines()[-1])["rnpg"] for name in ("train", "whole")]
    first, second = [{key: x for key, x in one.items() if key not in of_time} for one in last]
    assert first == second
    assert "goes on after 2 iterations" in answers["whole"][2]


def test_overwriting_leaves_nothing_of_the_run_before(life):
    folder, _ = life
    assert [row["iteration"] for row in rows_of(folder / "half" / "progress.csv")] == ["1", "1"]
    assert [path.name for path in (folder / "half" / "checkpoints").iterdir()] == ["00000001.zip"]


def test_evaluation_tells_every_episode_of_every_seed(life):
    folder, answers = life
    rows = rows_of(folder / FIRST / "evaluation.csv")
    assert [(row["seed"], row["episode"]) for row in rows] == [(s, e) for s in "01" for e in "012"]
    figures = json.loads(answers["eval"][1].splitlines()[-1])["rnpg"]
    assert figures["mean"] == pytest.approx(np.mean([float(row["return"]) for row in rows]))
    low, high = figures["interval"]
    assert low <= figures["mean"] <= high
    drawn = rows_of(folder / "drawn.csv")
    assert [row["return"] for row in drawn] != [row["return"] for row in rows]
    assert len(rows_of(folder / "best.csv")) == 6


def test_compare_keeps_a_run_for_each_window_and_all_curves(life):
    folder, answers = life
    names = {"rnpg-window-1", "rnpg-window-3"}
    found = {path.name for path in (folder / COMPARED).iterdir()}
    assert found == {*names, "curves.csv", "learning_curves.png"}
    for name in names:
        config = json.loads((folder / COMPARED / name / "config.json").read_text())["settings"]
        assert name == f"rnpg-window-{config['algorithm']['window']}"
        assert config["algorithm"]["fisher_window"] in (None, config["algorithm"]["window"])
        assert (config["algorithm"]["damping"], config["source"]) == (0.01, "paper")
        assert name in answers["compare"][1]
    rows = rows_of(folder / COMPARED / "curves.csv")
    assert list(rows[0])[:4] == FIRST_COLUMNS
    assert [(row["algorithm"], row["seed"], row["iteration"]) for row in rows] == [
        (name, s, i) for name in sorted(names) for s in "01" for i in "12"
    ]
    assert "steps of all seeds" in answers["compare"][1]


def test_pictures_of_runs_take_their_format_from_the_name(life):
    folder, _ = life
    assert "<svg" in (folder / "picture.svg").read_text()


def test_lists_of_environments_and_algorithms(life):
    _, answers = life
    assert {"CartPole-v1", "Hopper-v5"} <= {*re.findall(r"[\w-]+", answers["envs"][1])}
    assert {*ALGORITHMS} <= {*re.findall(r"\w+", answers["algorithms"][1])}


def test_a_run_without_an_episode_says_so(life):
    """Its environment is a module of the current folder, which Python does not search by itself."""
    folder, answers = life
    _, out, errors = answers["never"]
    assert "no episode has ended" in out
    assert "nan" not in out
    assert "Warning" not in errors
    assert "wrote runs/never-Never-v0/vpg/0001/learning_curves.png" in out
    assert not (folder / "__pycache__").exists() or "never" in os.listdir(folder / "__pycache__")[0]


def test_a_closed_pipe_is_no_error():
    for words in (["--help"], ["resume", "--help"]):
        process = subprocess.Popen(
            [RECOLLECT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        process.stdout.close()
        assert process.wait() == 128 + signal.SIGPIPE
        assert process.stderr.read() == ""


def test_interrupts_keep_the_run_and_tell_how_to_go_on(tmp_path):
    words = [*TRAIN, "--iterations", "100000", "--out", "run"]
    iterations = []
    for kind, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process = subprocess.Popen(
            [RECOLLECT, *words], stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        seen = 0 if not iterations else iterations[-1]
        while len(_progress(tmp_path / "run")) < 2 * seen + 3:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(kind)
        began = time.monotonic()
        assert process.wait() == code
        assert time.monotonic() - began < 30  # 5 on a machine that does nothing else
        (line,) = process.stderr.read().splitlines()
        told = re.fullmatch(
            r"recollect: (interrupted|terminated); go on with: recollect (.*)", line
        )
        words = [*shlex.split(told[2]), "--quiet"]
        (*_, latest) = sorted((tmp_path / "run" / "checkpoints").iterdir())
        iterations.append(int(latest.stem))
    assert 0 < iterations[0] < iterations[1]


def _progress(folder):
    path = folder / "progress.csv"
    return path.read_text().splitlines() if path.exists() else []
