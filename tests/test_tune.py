"""Tuning: what is tried, what is kept of it, and what it is said to be worth."""

import dataclasses
import json
import re
import shlex
import signal
import subprocess
import sys

import gymnasium as gym
import jax.monitoring
import numpy as np
import pytest
from commands import RECOLLECT, recollect

import recollect as rc
from recollect.agent.ranges import RANGES, for_trial, search_space, start_of, with_values
from recollect.agent.study import PLACES, Study
from recollect.agent.tune import Search, best_of
from recollect.agent.worth import failure, learning_curves
from recollect.algorithms import ALGORITHMS
from recollect.cli.plan import plan_training
from recollect.cli.tuning import verdict
from recollect.refusals import SEARCH, SIGNAL
from recollect.run.config import RunConfig
from recollect.run.folder import read_config
from recollect.serial import to_code, to_plain
from recollect.statistics import Estimate

SMALL = rc.Architecture(widths=(4,))
STEPS = 64
RATE = "learning_rate"


def a_search(trials=3, **changes):
    """Of a policy gradient on poles that fall, with everything tiny."""
    config = RunConfig.of(
        "CartPole-v1", rc.RPG(window=2), rc.Steps(2, 8), SMALL, seeds=[1000, 1001]
    )
    settings = dict(environment_steps=STEPS, trials=trials, held_back=2)
    return Search(config, **{**settings, **changes})


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A study of three trials, interrupted in the second, and what its second half compiled."""
    folder = tmp_path_factory.mktemp("study")
    fractions = []

    def stop(fraction, note):
        fractions.append(fraction)
        if fraction > 1 / 5:  # of three trials and two runs in the end
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        a_search().run(folder, show=stop)
    stopped = a_search(trials=1).run(folder)
    ended = []
    compiled = []
    listen = lambda event, seconds, **_: "backend_compile" in event and compiled.append(event)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        search = a_search(trials=3, held_back=2)
        found = search.run(folder, ended=lambda trial, best: ended.append(list(compiled)))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return folder, stopped, found, ended


def test_trials_share_one_program(kept):
    *_, ended = kept
    assert ended == [[], []]


def test_a_search_goes_on_where_it_was_stopped(kept):
    _, stopped, found, _ = kept
    assert [one.outcome for one in found.trials] == ["complete"] * 3
    assert found.trials[0] == stopped.trials[0]
    numbers = [one.number for one in found.trials]
    assert numbers[0] == 0
    assert 1 not in numbers  # interrupted, and its settings were tried again
    journal = (kept[0] / "study.journal").read_text()
    drawn = [json.loads(line) for line in journal.splitlines()]
    rates = [one["param_value_internal"] for one in drawn if one.get("param_name") == "damping"]
    assert not rates
    rates = [one["param_value_internal"] for one in drawn if one.get("param_name") == RATE]
    assert rates[1] == pytest.approx(found.trials[1].values["learning_rate"], rel=1e-2)


def test_the_first_trial_is_the_start_and_what_it_is_worth_is_its_learning_curve(kept):
    _, _, found, _ = kept
    first = found.trials[0]
    assert first.values["learning_rate"] == rc.RPG().learning_rate
    assert first.values["window"] == 2
    again = rc.train(
        "CartPole-v1",
        rc.RPG(window=4, shares=rc.Uniform(newest=2)),
        collector=rc.Steps(2, 8),
        policy=SMALL,
        seeds=[1000, 1001],
        environment_steps=STEPS,
    )
    assert first.value == pytest.approx(learning_curves(again.curves, STEPS).mean())


def test_the_verdict_is_on_other_seeds_and_paired(kept):
    _, _, found, _ = kept
    assert found.start.seeds == found.config.seeds == (0, 1)
    again = rc.train(
        found.start.env,
        found.start.algorithm,
        collector=found.start.collector,
        policy=found.start.policy,
        seeds=2,
        environment_steps=STEPS,
    )
    np.testing.assert_allclose(found.curves["start"], learning_curves(again.curves, STEPS))
    ours = dataclasses.replace(
        found,
        curves={
            "start": np.array([[0.0, 0.0], [100.0, 100.0]]),
            "tuned": np.array([[1.0, 3.0], [103.0, 105.0]]),
        },
    )
    assert ours.gain == Estimate(3.0, 2.0, 4.0)
    assert ours.mean("tuned").value == 53


def test_settings_are_told_as_flags_as_python_and_as_a_file(kept):
    folder, _, found, _ = kept
    facts = read_config(folder / "best.json")
    written = RunConfig.from_plain(facts["settings"])
    assert written.plain() == found.config.plain()
    assert facts["until"]["environment_steps"] == STEPS
    words = ["--copies", "2", "--steps", "8", "--policy.widths", "4", "--window", "2"]
    plan, _ = plan_training("rpg", "CartPole-v1", [*words, "--preset", "default", *found.flags])
    assert to_plain(plan.config.algorithm) == to_plain(found.config.algorithm)
    called = {}
    fake = dict(
        vars(rc.public),
        train=lambda env, algorithm, **rest: called.update(env=env, algorithm=algorithm, **rest),
    )
    eval(found.python, {"rc": type("rc", (), fake)})
    assert called["env"] == "CartPole-v1"
    assert to_plain(called["algorithm"]) == to_plain(found.config.algorithm)
    assert called["collector"] == found.config.collector
    assert called["policy"] == found.config.policy
    header, *rows = (folder / "trials.csv").read_text().splitlines()
    assert header.startswith("trial,outcome,mean_return,learning_rate,")
    assert len(rows) == 3


def test_a_study_of_something_else_is_refused(kept):
    folder, *_ = kept
    for search, says in (
        (a_search(environment_steps=32), r"environment_steps=64, not 32; give another --out"),
        (a_search(fixed=("window",)), r"ranges\.window="),
    ):
        with pytest.raises(ValueError, match=says):
            search.run(folder)
    other = RunConfig.of("Acrobot-v1", rc.RPG(window=2), rc.Steps(2, 8), SMALL, [1000, 1001])
    with pytest.raises(ValueError, match=r"env\.name=CartPole-v1, not Acrobot-v1"):
        Search(other, STEPS, 1, 1).run(folder)


FACTS = {"seeds": [1000], "environment_steps": 8}


def a_study(place, url=None, facts=FACTS):
    return Study(place, url, facts, {"x": 0.5})


def suggest(trial):
    return {"x": trial.suggest_float("x", 0, 1)}


def test_processes_share_a_study(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    for one, other in (
        (a_study(tmp_path), a_study(tmp_path)),
        (a_study(None, url), a_study(None, url)),
    ):
        asked = [study.ask(suggest) for study in (one, other, one)]
        assert [trial.number for trial, _ in asked] == [0, 1, 2]
        assert asked[0][1] == {"x": 0.5}
        assert asked[1][1] != asked[2][1]
        one.complete(asked[0][0], 1.5)
        other.fail(asked[1][0], "it broke")
        one.put_back(asked[2][0])
        ended = other.trials()
        assert [(it.number, it.outcome, it.value, it.reason) for it in ended] == [
            (0, "complete", 1.5, ""),
            (1, "failed", None, "it broke"),
        ]
        taken, values = other.ask(suggest)
        assert (taken.number, values) == (3, asked[2][1])
    with pytest.raises(ValueError, match="environment_steps=8, not 9"):
        a_study(None, url, {**FACTS, "environment_steps": 9})


def test_what_cannot_be_read_is_said_in_one_sentence(tmp_path):
    (tmp_path / "study.journal").write_text("no journal\n")
    with pytest.raises(ValueError, match=r"study\.journal holds no study that can be read: "):
        a_study(tmp_path)
    for url in ("nonsense", "sqlite:////nowhere/at/all.db"):
        with pytest.raises(ValueError, match="holds no study that can be read: "):
            a_study(None, url)


def test_trials_below_the_median_are_stopped(tmp_path):
    search = a_search(trials=8)
    start = {name: start_of(search.config.algorithm, SMALL, name) for name in search.space}
    study = Study(tmp_path, None, search._facts(start), {})
    for worth in (0.0, 1.0, 1e6, 1e6, 2e6):
        assert (study.bars() == -np.inf).all()
        trial, _ = study.ask(lambda trial: {"learning_rate": 0.1})
        study.record(trial, np.where(np.arange(PLACES) == 15, np.nan, worth), 1.0)
        study.complete(trial, worth)
    bars = study.bars()
    assert (bars == -np.inf).tolist() == [place + 1 < PLACES // 2 for place in range(PLACES)]
    assert set(bars[-4:]) == {1e6}
    assert np.isnan(bars[15])
    found = search.run(tmp_path)
    assert [one.outcome for one in found.trials[5:]] == ["pruned"] * 3
    assert found.best.value == 2e6


def test_several_trials_at_once_and_all_that_were_interrupted_are_tried_again(kept, tmp_path):
    def stop(fraction, note):
        if fraction >= 1 / 5:  # one has ended, and two more have begun
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        a_search().run(tmp_path, show=stop, on=rc.Local(actors=2))
    found = a_search().run(tmp_path)
    assert [one.number for one in found.trials] == [0, 3, 4]
    drawn = [json.loads(line) for line in (tmp_path / "study.journal").read_text().splitlines()]
    rates = [one["param_value_internal"] for one in drawn if one.get("param_name") == RATE]
    assert rates[3:] == pytest.approx(rates[1:3])
    one, other = found.trials[0], kept[2].trials[0]
    assert (one.outcome, one.value, one.values) == (other.outcome, other.value, other.values)
    with pytest.raises(ValueError, match="lag=1 is for actors that collect"):
        a_search().run(on=rc.Local(lag=1))
    vector = gym.make_vec("CartPole-v1", 4)
    with pytest.raises(ValueError, match="a vector that exists already"):
        rc.tune(vector, "vpg", trials=1, environment_steps=8, seeds=2, on=rc.Local())


def test_importance_finds_what_matters(tmp_path):
    study = a_study(None)
    for n in range(24):
        trial, values = study.ask(
            lambda trial: {**suggest(trial), "idle": trial.suggest_float("1 - idle", 0, 1)}
        )
        study.complete(trial, -((values["x"] - 0.3) ** 2))
        assert bool(study.importances()) == (n >= 7)
    shares = study.importances()
    assert list(shares) == ["x", "idle"]
    assert shares["x"] > 0.6


def test_learning_curves_are_read_at_even_steps():
    nan = np.nan
    curves = {
        "environment_steps": np.array([[10.0, 20.0, 30.0, nan]] * 2),
        "recent_return": np.array([[nan, 2.0, 4.0, nan], [nan] * 4]),
    }
    first, second = learning_curves(curves, 40)
    assert first[0] == first[9] == 2  # nothing is known before
    assert first[12] == pytest.approx(3.2)  # of 26 steps
    assert first[-1] == 4
    assert np.isnan(second).all()


def test_what_came_to_nothing_has_a_reason():
    refused = np.array([[0.0, 0.0]])
    returns = np.array([[np.nan, 1.0]])
    told = lambda refused, returns: failure({"refused": refused, "recent_return": returns})
    assert told(refused, returns) == ""
    assert told(refused + SIGNAL, returns) == ""
    assert "every update was refused: no step was found" in told(refused + SEARCH, returns)
    assert told(np.array([[SEARCH, 0.0]]), returns) == ""
    assert told(refused, returns * np.nan) == "no episode of some seed has ended"
    assert told(refused, returns * np.inf) == "returns are not finite"


class Fragile(gym.Env):
    """Its first copy breaks."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    copies = 0

    def __init__(self):
        Fragile.copies += 1
        self.breaks = Fragile.copies == 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.now += 1
        if self.breaks and self.now > 2:
            raise RuntimeError("gears")
        return np.zeros(2, np.float32), float(action), self.now > 3, False, {}


def test_a_trial_that_fails_is_recorded_and_the_search_goes_on():
    Fragile.copies = -1  # a copy that tells its spaces comes first
    env = rc.host(Fragile, max_steps=4)
    found = rc.tune(
        env,
        rc.VPG(),
        collector=rc.Steps(2, 8),
        policy=SMALL,
        trials=2,
        environment_steps=32,
        seeds=1,
        held_back=2,
    )
    assert sorted(one.outcome for one in found.trials) == ["complete", "failed"]
    (failed,) = (one for one in found.trials if one.outcome == "failed")
    assert "gears" in failed.reason
    assert found.python.startswith("rc.train(\n    env,")
    with pytest.raises(ValueError, match=r"none of 1 trials came to its end; .*gears"):
        best_of([failed])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_range_holds_the_start_and_changes_what_is_run(name):
    config = RunConfig.of("Pendulum-v1", name, seeds=[1000])
    space = search_space(config)
    start = {key: start_of(config.algorithm, config.policy, key) for key in space}
    assert ("window" in space) == (config.algorithm.window > 1)
    assert {"learning_rate", "target_kl"} & {*space}
    study = Study(
        None,
        None,
        FACTS,
        {k: v for key, one in space.items() for k, v in one.first(key, start[key]).items()},
    )
    every = lambda trial: {key: one.suggest(trial, key, start[key]) for key, one in space.items()}
    _, first = study.ask(every)
    assert first == pytest.approx(start)
    assert to_plain(with_values(config, start).algorithm) == to_plain(config.algorithm)
    _, values = study.ask(every)
    for key, value in values.items():
        if value == start[key]:
            continue
        one = with_values(config, {key: value})
        changed = (to_plain(one.algorithm), to_plain(one.policy))
        assert changed != (to_plain(config.algorithm), to_plain(config.policy))
        assert start_of(one.algorithm, one.policy, key) == value
    tried = for_trial(config, {**values, "window": 2} if "window" in values else values)
    assert tried.algorithm.window == config.algorithm.window * (2 if "window" in values else 1)


def test_only_what_makes_sense_is_searched():
    assert {*RANGES} >= {*search_space(RunConfig.of("Pendulum-v1", "rppo"))}
    choices = search_space(RunConfig.of("CartPole-v1", rc.RTRPO()))
    assert "policy.log_std" not in choices
    assert "max_length" not in choices  # infinite
    assert "discount" not in search_space(RunConfig.of("Chain", "rnpg"))
    assert "window" not in search_space(RunConfig.of("CartPole-v1", rc.RPG(shares=rc.Geometric())))
    assert "clip" not in search_space(RunConfig.of("CartPole-v1", rc.RPPO()), ("clip",))
    shorter = with_values(
        RunConfig.of("CartPole-v1", rc.RNPG(window=8, fisher_window=6)), {"window": 3}
    )
    assert shorter.algorithm.windows == (3, 3)


def test_settings_as_python_leave_out_defaults():
    made = rc.RPPO(window=3, clip=float("inf"), critic=rc.Critic(widths=(8,)))
    code = to_code(made)
    assert code == "rc.PPO(window=3, critic=rc.Critic(widths=(8,)), clip=float('inf'))"
    assert eval(code, {"rc": rc}) == made


def test_verdicts():
    assert "better" in verdict(Estimate(2.0, 1.0, 3.0))
    assert "worse" in verdict(Estimate(-2.0, -3.0, -1.0))
    assert "no difference is shown" in verdict(Estimate(0.5, -1.0, 2.0))
    assert "no trial did better" in verdict(Estimate(0.0, 0.0, 0.0))


@pytest.mark.parametrize("field", ["trials", "environment_steps", "held_back"])
def test_counts_are_checked(field):
    with pytest.raises(ValueError, match=f"{field}=0"):
        a_search(**{field: 0})


def test_a_search_has_something_to_search_and_keeps_its_seeds_apart():
    with pytest.raises(ValueError, match="at most 1000"):
        a_search(held_back=1001)
    with pytest.raises(ValueError, match="no number left to tune"):
        a_search(fixed=tuple(RANGES))


WITHOUT = """
import sys
sys.modules["optuna"] = None
from recollect.cli import main
sys.exit(main(["tune", "vpg", "CartPole-v1", "--trials", "1"]))
"""


def test_without_optuna_it_says_what_to_install(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 2
    assert "pip install 'recollect[tune]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not [*tmp_path.iterdir()]


TUNE = "tune vpg CartPole-v1 --seeds 1 --held-back 2 --copies 2 --steps 8 --policy.widths 4"


def test_the_command_is_interrupted_and_goes_on(tmp_path):
    words = [*TUNE.split(), "--environment-steps", "160000", "--trials", "2"]
    process = subprocess.Popen([RECOLLECT, *words], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    journal = tmp_path / "runs/tune/CartPole-v1/vpg/0001/study.journal"
    while '"learning_rate"' not in (journal.read_text() if journal.exists() else ""):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    *_, line = process.stderr.read().splitlines()
    told = re.fullmatch(r"recollect: interrupted; go on with: recollect (.*)", line)
    assert told[1] == f"{shlex.join(words)} --out runs/tune/CartPole-v1/vpg/0001"
    short = [*TUNE.split(), "--environment-steps", "160", "--trials", "2", "--out", "other"]
    result = recollect(*short, "--learning-rate", "0.01", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert "learning_rate" not in found["values"]
    assert {"best.json", "trials.csv", "tuning.png"} < {
        one.name for one in (tmp_path / "other").iterdir()
    }
    assert "on 2 seeds that no trial has seen" in result.stderr
    assert "trial 1: mean return" in result.stderr
    assert isinstance(found["gain"]["value"], float)
