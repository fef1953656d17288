"""The report: what it reads from files, what it says of them, and that it holds together."""

import json
import subprocess
import sys

import numpy as np
import pytest
from run_files import write_run
from scipy import stats

import recollect as rc
from recollect.algorithms import ALGORITHMS
from recollect.refusals import SEARCH, SIGNAL
from recollect.report import diagnosis, figures
from recollect.report.colours import ALGORITHM_COLOURS, COLOURS, run_colours
from recollect.report.compare import differences_of
from recollect.report.figures import binned, by_age
from recollect.report.page import page, write_report
from recollect.report.reading import read_run, read_runs
from recollect.report.svg import Chart, Series, short, ticks
from recollect.run.config import RunConfig
from recollect.run.folder import RunFolder
from recollect.run.session import Until
from recollect.statistics import mean_interval


def test_a_run_is_read_as_it_was_written(tmp_path):
    returns = np.arange(12.0).reshape(3, 4)
    folder = write_run(tmp_path / "a", iterations=4, seeds=(5, 2, 9), return_mean=returns, window=2)
    run = read_run(folder)
    assert run.seeds == (2, 5, 9)
    np.testing.assert_array_equal(run.curves["return_mean"], returns[[1, 0, 2]])
    np.testing.assert_array_equal(run.axes["steps"], [100, 200, 300, 400])
    np.testing.assert_array_equal(run.axes["seconds"], [0.5, 1, 1.5, 2])
    assert run.curves["ess_by_age"].shape == (3, 4, 2)
    assert run.name == "rnpg"


def test_shares_of_the_effective_sample_size_are_of_what_was_there(tmp_path):
    run = read_run(write_run(tmp_path / "a", iterations=4, window=3, ess_by_age=[1, 0.5, 0.3]))
    # Batches of 100: one in the first iteration, two in the second, three from then on.
    np.testing.assert_allclose(run.ess_share[0], [1, 0.75, 0.6, 0.6])
    np.testing.assert_allclose(run.ess_share_by_age[0, :, 2], [np.nan, np.nan, 0.3, 0.3])


def test_unfinished_and_damaged_progress_is_read_as_far_as_it_goes(tmp_path):
    folder = write_run(tmp_path / "a", iterations=4, planned=9)
    path = folder / "progress.csv"
    whole = path.read_text()
    path.write_text(whole + "0,5,500,12.3")  # a line that is being written
    assert read_run(folder).iterations == 4
    assert read_run(folder).length == len(whole)
    path.write_text(whole + "0,5,5xx\nnonsense\n\n")
    assert read_run(folder).iterations == 4
    path.unlink()
    assert "No iteration has finished yet" in page(read_runs([folder]))
    path.write_text("not,a,run\n")
    with pytest.raises(ValueError, match=r"progress\.csv is not the progress of a run"):
        read_run(folder)
    with pytest.raises(ValueError, match="holds no run"):
        read_runs([tmp_path / "none"])


def test_a_seed_that_stops_early_leaves_no_trace_later(tmp_path):
    folder = write_run(tmp_path / "a", iterations=6, seeds=(0, 1))
    lines = (folder / "progress.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(("1,5,", "1,6,"))]
    (folder / "progress.csv").write_text("".join(kept))
    run = read_run(folder)
    assert np.isnan(run.curves["return_mean"][1, 4:]).all()
    assert np.isnan(run.returns[1, 4:]).all()
    assert "<svg" in page([run])


def test_runs_are_told_apart_by_what_differs(tmp_path):
    write_run(tmp_path / "all" / "x", window=4)
    write_run(tmp_path / "all" / "y", window=8)
    write_run(tmp_path / "all" / "z", window=8)
    write_run(tmp_path / "all" / "v")
    labels = [run.label for run in read_runs([tmp_path / "all"])]
    assert labels == ["vnpg", "rnpg, window 4", "rnpg, window 8, y", "rnpg, window 8, z"]


def test_names_are_those_of_training(tmp_path):
    for name, make in ALGORITHMS.items():
        config = RunConfig.of("CartPole-v1", make())
        folder = RunFolder.create(tmp_path / name, config, Until(iterations=3)).path
        run = read_run(folder)
        assert run.name == config.algorithm_name == name
        facts = json.loads((folder / "config.json").read_text())
        assert facts.pop("name") == name  # folders of before have none
        assert facts["changed"] == []
        (folder / "config.json").write_text(json.dumps(facts))
        assert read_run(folder).name == name
        assert name in page([run])


def test_settings_that_differ_from_the_defaults_are_kept(tmp_path):
    config = RunConfig.of("CartPole-v1", rc.RNPG(window=3), rc.Steps(2, 8))
    folder = RunFolder.create(tmp_path / "a", config, Until(iterations=3)).path
    changed = {name: ours for name, _, ours in read_run(folder).facts["changed"]}
    assert changed["algorithm.window"] == 3
    assert changed["collector.copies"] == 2
    assert not any(name.startswith("policy") for name in changed)


SHOWN = {
    "unfinished": (dict(planned=50), dict(), "20 of 50 iterations"),
    "progress": (dict(), dict(return_mean=np.tile([1.0, 3.0], 10)), "The return rose from"),
    "collapse": (
        dict(return_mean=[*range(10), *range(10, 0, -1)]),
        dict(),
        r"of the gain is lost",
    ),
    "reuse_reach": (
        dict(window=10, ess_by_age=[1, 0.4, 0.15, *[0.02] * 7]),
        dict(window=10, ess_by_age=[1, 0.9, *[0.8] * 8]),
        "At K = 10 the effective sample size is 17 % of the window: reuse beyond 3 iterations",
    ),
    "longer_window": (
        dict(window=3, ess_by_age=[1, 0.97, 0.95]),
        dict(window=3, ess_by_age=[1, 0.97, 0.5]),
        "Batches of 2 iterations ago still keep 95 %",
    ),
    "heavy_weights": (
        dict(window=3, max_weight=50),
        dict(window=3, max_weight=5),
        "largest importance weight is 50",
    ),
    "line_search": (
        dict(backtracks=[0, 1, 2, 1, 3] * 4),
        dict(backtracks=[0, 0, 0, 0, 1] * 4),
        "cut by the line search in 80 % of updates",
    ),
    "bounded_step": (
        dict(step_length=[1, 0.5, 0.4, 0.2] * 5),
        dict(step_length=[1, 1, 1, 0.5] * 5),
        "target_kl shortened the step in 75 % of updates",
    ),
    "unused_radius": (
        dict(kl=0.001, settings=dict(target_kl=0.05)),
        dict(kl=0.04, settings=dict(target_kl=0.05)),
        "uses 2 % of the KL that target_kl=0.05 allows",
    ),
    "beyond_radius": (
        dict(kl=[0.01, 0.01, 0.01, 0.2] * 5, settings=dict(target_kl=0.05)),
        dict(kl=0.06, settings=dict(target_kl=0.05)),
        "above 1.5 times target_kl=0.05 in 25 % of updates",
    ),
    "inexact_solver": (
        dict(solver_residual=[0.01, 0.3] * 10),
        dict(solver_residual=0.01),
        "residual above 0.1 in 50 % of updates",
    ),
    "refused_updates": (
        dict(refused=[0, 0, 0, SEARCH] * 5),
        dict(refused=SIGNAL),
        "25 % of updates were refused, mostly as no step was found within the trust region",
    ),
    "no_signal": (
        dict(refused=[0, SIGNAL] * 10),
        dict(refused=SEARCH),
        "50 % of updates found no signal",
    ),
    "blind_critic": (
        dict(explained_variance=0.02),
        dict(explained_variance=0.9),
        "critic explains 2 % of the variance",
    ),
}


def test_every_rule_is_shown():
    assert {rule.__name__ for rule in diagnosis.RULES} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_a_rule_finds_what_it_looks_for_and_nothing_else(tmp_path, name):
    yes, no, words = SHOWN[name]
    rule = getattr(diagnosis, name)
    finding = rule(read_run(write_run(tmp_path / "yes", **yes)))
    assert words in finding.says
    other = rule(read_run(write_run(tmp_path / "no", **no)))
    assert other is None or words not in other.says


def test_intervals_are_those_of_students_t():
    values = np.random.default_rng(0).normal(3, 2, 7)
    mean, low, high = mean_interval(np.r_[values, np.nan])
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    np.testing.assert_allclose([mean, low, high], [values.mean(), expected.low, expected.high])


def test_differences_are_paired_by_seed(tmp_path):
    luck = np.array([0.0, 100.0, 50.0])[:, None]
    write_run(tmp_path / "a", seeds=(0, 1, 2), return_mean=luck)
    gains = np.array([[4.0], [6.0], [9.0]])
    write_run(tmp_path / "b", seeds=(2, 1, 7), return_mean=luck[::-1] + gains)
    write_run(tmp_path / "c", seeds=(8,))
    (found,) = differences_of(read_runs([tmp_path / name for name in "abc"]))
    assert found.seeds == 2
    # Seed 1 gains 6; seed 2 has 50 there and 54 here.
    assert found.final.value == pytest.approx(5)
    assert found.average.value == pytest.approx(5)
    half = 12.706 * np.std([4, 6], ddof=1) / np.sqrt(2)
    assert found.final.high - found.final.value == pytest.approx(half, rel=1e-3)


def test_averages_are_taken_over_the_same_environment_steps(tmp_path):
    # Twice the batch, the same return for the same steps.
    write_run(tmp_path / "a", iterations=20, batch=100, return_mean=np.arange(1, 21) * 100)
    write_run(tmp_path / "b", iterations=20, batch=200, return_mean=np.arange(1, 21) * 200)
    (found,) = differences_of(read_runs([tmp_path / "a", tmp_path / "b"]))
    assert found.average.value == pytest.approx(0, abs=1e-9)
    assert found.final.value == pytest.approx(1950)


def test_the_page_is_whole_small_and_needs_no_network(tmp_path):
    # Runs of 40 ages and 2,000 iterations.
    noise = np.random.default_rng(0).normal(size=(3, 2000))
    columns = dict(kl=0.01 + 1e-3 * noise, max_weight=np.exp(noise), gradient_norm=np.exp(noise))
    columns |= dict(solver_steps=5 + noise, solver_residual=np.exp(noise), damping=0.1)
    columns |= dict(step_length=np.exp(noise), explained_variance=noise, direction_norm=0.1 + noise)
    for n in range(3):
        write_run(tmp_path / f"all/{n}", iterations=2000, window=40, return_mean=noise, **columns)
    out = write_report([tmp_path / "all"], tmp_path / "report.html")
    text = out.read_text()
    assert len(text.encode()) < 300_000
    outside = text.replace("http://www.w3.org/2000/svg", "")
    assert "http" not in outside.replace("http-equiv", "")
    assert "src=" not in text
    for words in ("Diagnosis", "Summary", "Paired differences", "Effective sample size by age"):
        assert words in text
    assert "Refused updates" in text


def test_ten_runs_still_make_a_small_page(tmp_path):
    noise = np.random.default_rng(0).normal(size=(3, 300))
    curves = dict(kl=np.exp(noise), max_weight=np.exp(noise), gradient_norm=np.exp(noise))
    curves |= dict(solver_steps=noise, solver_residual=np.exp(noise), explained_variance=noise)
    for n in range(10):
        write_run(tmp_path / f"all/{n}", iterations=300, window=20, return_mean=noise, **curves)
    out = write_report([tmp_path / "all"], tmp_path / "report.html")
    assert out.stat().st_size < 300_000


def test_names_stay_text(tmp_path):
    evil = "</script><script>alert(1)</script>"
    folder = write_run(tmp_path / "a", env=evil, settings={"<img src=x>": "<b>"}, **{"<i>odd": 3.0})
    other = write_run(tmp_path / "<u>name", env=evil)
    text = page(read_runs([folder, other]))
    for mark in ("<script>alert", "<img src=x>", "<i>odd", "<u>name"):
        assert mark not in text
    assert "&lt;script&gt;alert" in text
    data = text.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data)["runs"][1]["label"] == "vnpg, <u>name"


def test_an_animation_becomes_part_of_the_page(tmp_path):
    folder = write_run(tmp_path / "a")
    picture = tmp_path / "agent.gif"
    picture.write_bytes(b"GIF89a")
    out = write_report([folder], tmp_path / "r.html", animation=picture)
    assert 'src="data:image/gif;base64,R0lGODlh"' in out.read_text()
    with pytest.raises(ValueError, match="no picture"):
        write_report([folder], tmp_path / "r.html", animation=folder / "progress.csv")


def test_a_report_does_without_jax(tmp_path):
    folder = write_run(tmp_path / "a", window=3)
    code = (
        "import sys; from pathlib import Path; from recollect.report import page, watch; "
        f"page.write_report([Path({str(folder)!r})], Path({str(tmp_path / 'r.html')!r})); "
        "assert 'jax' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "r.html").exists()


def test_the_same_algorithm_has_the_same_colour_everywhere():
    assert len(set(ALGORITHM_COLOURS.values())) == len(ALGORITHMS)
    assert set(ALGORITHM_COLOURS) == set(ALGORITHMS)
    assert run_colours(["mine", "rnpg"])[1] == run_colours(["RNPG, window 5"])[0]
    many = run_colours([f"run {n}" for n in range(20)])
    assert set(many) == set(COLOURS)
    same = run_colours(["rnpg, window 1", "rnpg, window 2", "vpg"])
    assert len(set(same)) == 3


def test_axes_have_round_numbers():
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(-3, 7) == [-2, 0, 2, 4, 6]
    assert [short(x) for x in (-0.5, 12_345, 999, 2e6, 1e-5)] == [
        *("−0.5", "12.35k", "999", "2M", "1e−05"),
    ]
    wild = Series(0, "", np.array([1.0, 2.0]), np.array([-1e6, 0.0]), np.array([1e6, 3.0]))
    low, high = Chart("key", "title", [wild]).range
    assert low == 0
    assert 2 < high < 3


def test_the_window_is_told_by_its_mean_age_and_not_by_every_share(tmp_path):
    shares = {"shares_0": 0.5, "shares_1": 0.2, "shares_2": 0.3}
    run = read_run(write_run(tmp_path / "a", window=3, **shares))
    (age,) = [one for one in figures.REUSE if one.key == "mean_age"]
    np.testing.assert_allclose(age.curve(run), 0.8)
    assert "shares_" not in page([run])


def test_cells_of_a_heat_map_are_means():
    shares = np.arange(2 * 200 * 3, dtype=float).reshape(2, 200, 3)
    cells = by_age(shares)
    assert cells.shape == (96, 3)
    assert cells.mean() == pytest.approx(shares.mean(), rel=1e-2)
    np.testing.assert_array_equal(binned(np.array([[1.0, np.nan, 3.0, 5.0]]), 2), [[1, 4]])


def test_shares_that_a_rule_has_chosen_are_shown_by_age(tmp_path):
    chosen = dict(window=2, shares_0=0.75, shares_1=0.25, old_share=0.25)
    rule = dict(shares={"kind": "JamesStein", "shrinkage": 0.8})
    run = read_run(write_run(tmp_path / "a", settings=rule, **chosen))
    assert run.curves["shares"].shape == (3, 20, 2)
    text = page([run])
    assert "Shares by age" in text
    assert "<span>75 %</span>" in text  # what the strongest colour stands for
    assert "Share of old batches" in text
    assert "shares_0" not in text
    fixed = read_run(write_run(tmp_path / "b", settings=dict(shares={"kind": "Uniform"}), **chosen))
    assert "Shares by age" not in page([fixed])
