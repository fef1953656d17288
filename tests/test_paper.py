"""The paper's experiments: every figure from one command, what is finished is kept, and claims
are answered by intervals."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from recollect.algorithms import VPG
from recollect.algorithms.npg import NPG
from recollect.machines import File
from recollect.paper import Paper
from recollect.paper.attribution import (
    BEYOND,
    STEPS,
    UNDECIDED,
    WORSE,
    Attribution,
    attribution_table,
    attributions,
    control_label,
)
from recollect.paper.cells import Cell, Outcome, finish
from recollect.paper.figures import CURVES, FIGURES
from recollect.paper.fresh import FreshCell, draw_fresh
from recollect.paper.protocol import FULL, PROTOCOLS, QUICK
from recollect.paper.verdicts import Agreement, Claim, Measured, area_gain, claims, error_ratio
from recollect.workers import on_every_core

ELSEWHERE = ("fig3", "fig5", "step", "trpo", "trpo-pendulum")
"""Algorithms and problems that other tests train; here their pictures are drawn."""
TOGETHER = tuple(figure for figure in FIGURES if figure not in ELSEWHERE)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_figure_from_made_up_runs(name, tmp_path):
    cells = CURVES[name].cells(PROTOCOLS["sgd"], QUICK)
    rising = np.linspace(10, 100, 6) + np.arange(3)[:, None]
    outcomes = {label: _outcome(rising + i) for i, label in enumerate(cells)}
    CURVES[name].draw(tmp_path / "picture.png", outcomes)
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    header, *rows = (tmp_path / "picture.csv").read_text().splitlines()
    if name == "fig5":
        assert header == "K1,K2,solver,seconds"
        assert len(rows) == len(cells)
    else:
        first = [float(number) for number in rows[0].split(",")]
        error = 1 / 3**0.5  # of three seeds 1 apart
        expected = [1, *(value for i in range(len(cells)) for value in (11 + i, error))]
        np.testing.assert_allclose(first, expected, rtol=1e-4)


def test_trpo_on_the_pendulum_is_that_on_cartpole_with_the_problem_of_figure_3():
    protocol = PROTOCOLS["sgd"]
    cells = {name: CURVES[name].cells(protocol, QUICK) for name in CURVES}
    pendulum = cells["fig3"]["VPG"]
    of_the_problem = ("env", "max_steps", "episodes", "policy", "engine", "seeds", "iterations")
    problem = {field: getattr(pendulum, field) for field in of_the_problem}
    for label, cell in cells["trpo"].items():
        name = cell.name.replace("cartpole", f"pendulum-{protocol.head}")
        expected = dataclasses.replace(cell, name=name, **problem)
        assert cells["trpo-pendulum"][label] == expected
    assert type(CURVES["trpo-pendulum"]) is type(CURVES["trpo"])


def test_everything_in_a_quick_run(tmp_path):
    """One test, as what follows looks at the same folder."""
    out, tmp_path = tmp_path, tmp_path / "quick"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        answers = Paper(TOGETHER, quick=True).run(out)
    no_driver = any("fig1 cannot be rendered" in str(one.message) for one in warned)
    text = (tmp_path / "README.md").read_text()
    for figure in TOGETHER:
        if figure == "why" or (figure == "fig1" and no_driver):
            continue
        assert (tmp_path / f"{figure}.png").stat().st_size > 10_000, figure
        assert f"({figure}.png)" in text
        if figure not in ("fig1", "fig9"):
            rows = (tmp_path / f"{figure}.csv").read_text().splitlines()
            assert len(rows) > 1, figure
            assert "nan" not in "".join(rows), figure

    # The two headline claims.
    (faster,) = [
        one
        for one in answers
        if one.figure == "fig2"
        and one.sentence == "the convergence of RNPG is faster than that of VNPG"
    ]
    (normal,) = [one for one in answers if one.figure == "fig8"]
    assert faster.verdict == "holds"
    assert faster.measured[0].low > 0
    # Within 3.5 standard errors of a variance from 400 replications: one seed in twenty leaves the
    # 95 % interval that the page judges by.
    assert all(abs(one.value - 1) < 3.5 * (2 / 399) ** 0.5 for one in normal.measured)

    assert f"Of {len(answers)} claims: " in text
    assert "What reuse does and what more steps do" in text
    assert f"| {control_label(2)} |" in text

    # What is finished is kept; what is lost comes back with the same numbers, and the page still
    # answers with all that is there.
    tables = {path: path.read_bytes() for path in tmp_path.rglob("*.csv")}
    lost = tmp_path / "cells" / "sgd-cartpole-vpg-0-10.npz"
    lost.unlink()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    assert Paper(figures=("fig2",), quick=True).run(out) == answers
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.csv")} == tables
    assert {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz") if path != lost
    } == kept


def _short(name="vpg", **changes):
    cell = CURVES["fig2"].cells(PROTOCOLS["sgd"], QUICK)["VPG"]
    return dataclasses.replace(cell, name=name, iterations=2, seeds=3, **changes)


def _finish(cell, folder):
    """What `finish` does, in this process."""
    for file in cell.files(folder):
        if not file.fits():
            file.keep(cell.compute(file.seeds))


def test_other_settings_are_run_anew(tmp_path):
    _finish(_short(), tmp_path)
    first = _short().outcome(tmp_path)
    _finish(_short(max_steps=10), tmp_path)
    assert not _short().finished(tmp_path)
    assert (_short(max_steps=10).outcome(tmp_path).returns <= 10).all()
    assert first.returns.max() > 10


def _without_settings(path):
    with np.load(path) as kept:
        arrays = {name: kept[name] for name in kept.files if name != "about"}
    np.savez(path, **arrays)


def _one_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def _flipped(path):
    """One bit of the largest array."""
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.compress_size)
    data = bytearray(path.read_bytes())
    header = data[largest.header_offset : largest.header_offset + 30]
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    data[largest.header_offset + 30 + names + largest.compress_size // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "text": lambda path: path.write_text("not an archive"),
    "settings": _without_settings,
    "array": _one_array,
    "flipped": _flipped,
}


def test_damaged_cells_are_run_anew(tmp_path):
    """With the same numbers, though other cells of the same program run beside them."""
    whole = _short("whole")
    _finish(whole, tmp_path)
    (sound,) = whole.files(tmp_path)
    arrays = {field: values for field, values in sound.read().items() if field != "about"}
    cells = {name: _short(name) for name in DAMAGE}
    for name, damage in DAMAGE.items():
        (file,) = cells[name].files(tmp_path)
        file.keep(arrays)
        assert file.fits()
        damage(file.path)
        assert not file.fits(), name
    larger = dataclasses.replace(whole.algorithm, learning_rate=0.1)
    other, shares = _short("other", algorithm=larger), []
    finish([*cells.values(), other], [], tmp_path, lambda share, left: shares.append(share))
    assert shares[-1] == 1
    expected = whole.outcome(tmp_path).curves
    for name, cell in cells.items():
        for curve, values in cell.outcome(tmp_path).curves.items():
            np.testing.assert_array_equal(values, expected[curve], err_msg=f"{name} {curve}")
    assert (other.outcome(tmp_path).returns != expected["return_mean"]).any()


def test_a_cell_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    file, steps = File(tmp_path / "cell.npz", "{}"), []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        steps.append(("fsync", os.fstat(descriptor).st_size))
        fsync(descriptor)

    def replaced(source, target):
        steps.append(("replace", os.stat(source).st_size))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    file.keep(dict(numbers=np.arange(1000.0)))
    size = (tmp_path / "cell.npz").stat().st_size
    assert steps == [("fsync", size), ("replace", size)]
    assert file.fits()


def test_a_cell_that_fails_says_why(tmp_path):
    broken = [_short("a", env="NoSuchThing-v0"), _short("b", env="NoSuchThing-v0")]
    with pytest.raises(ValueError, match="NoSuchThing-v0"):
        finish(broken, [], tmp_path, lambda share, left: None)


def test_a_process_that_dies_is_an_error():
    with pytest.raises(ChildProcessError, match="status -9"):
        on_every_core(signal.raise_signal, [signal.SIGKILL] * 2)


def test_a_run_that_is_stopped_keeps_what_is_finished_and_leaves_no_process(tmp_path):
    """Interrupted, gone on with, and killed."""
    command = [
        Path(sys.executable).parent / "recollect",
        "paper",
        "fig2",
        "--quick",
        "--out",
        str(tmp_path),
    ]
    # Whoever runs the tests in the background of a script hands down that interrupts are ignored.
    heeding = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    finished = lambda: set(tmp_path.glob("quick/cells/*-10.npz"))
    kept = {}
    for stop in (signal.SIGINT, signal.SIGKILL):
        run = subprocess.Popen(
            command, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heeding
        )
        assert run.stderr is not None
        try:
            while not finished() - set(kept):
                assert run.poll() is None
                time.sleep(0.2)
            os.killpg(run.pid, stop) if stop == signal.SIGINT else run.kill()
            assert run.wait(20) != 0
            ends = time.monotonic() + 10
            while _session(run.pid):
                assert time.monotonic() < ends
                time.sleep(0.2)
        finally:
            run.kill()
        assert "Traceback" not in run.stderr.read().decode()
        for path, changed in kept.items():
            assert path.stat().st_mtime_ns == changed
        kept = {path: path.stat().st_mtime_ns for path in finished()}
    for path in kept:
        with np.load(path) as arrays:
            assert np.isfinite(arrays["return_mean"]).all()


def _session(leader: int) -> list[int]:
    """Processes of that session that are alive."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = entry.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(entry.parent.name))
    return found


def test_a_window_points_uphill_better_than_a_batch_when_the_policy_stands_still(tmp_path):
    still = _short(
        "still", algorithm=VPG(learning_rate=1e-9, advantages=PROTOCOLS["sgd"].advantages)
    )
    cell = FreshCell(still, windows=(1, 8), looks=(4, 8), fresh_episodes=200)
    _finish(cell, tmp_path)
    found = cell.read(tmp_path)
    assert found["cosines"].shape == (3, 2, 2)
    batch, window = found["cosines"].mean((0, 1))
    assert window > batch + 0.1
    draw_fresh(tmp_path / "why.png", {"VPG": cell}, tmp_path)
    assert len((tmp_path / "why.csv").read_text().splitlines()) == 1 + 2 * 2


def _outcome(returns) -> Outcome:
    return Outcome({"return_mean": np.asarray(returns, float)}, 0.0, 0.0)


def test_areas_are_compared_seed_by_seed():
    rng = np.random.default_rng(0)
    luck = rng.normal(0, 100, (30, 1))  # what seeds share does not hide a difference
    worse = luck + rng.normal(0, 1, (30, 20))
    gain = area_gain("", _outcome(worse + 1), _outcome(worse))
    assert gain.value == pytest.approx(1)
    assert gain.holds
    same = area_gain("", _outcome(worse), _outcome(luck + rng.normal(0, 1, (30, 20))))
    assert not same.holds
    assert not same.fails
    assert area_gain("", _outcome(worse - 1), _outcome(worse)).fails


def test_spreads_are_compared_by_their_ratio():
    rng = np.random.default_rng(0)
    wide, narrow = _outcome(rng.normal(0, 2, (50, 40))), _outcome(rng.normal(0, 1, (50, 40)))
    ratio = error_ratio("", narrow, wide)
    assert ratio.value == pytest.approx(0.5, abs=0.05)
    assert ratio.holds
    assert error_ratio("", wide, narrow).fails


def test_verdicts():
    yes, no, open_ = [
        Measured("", 0.0, low, high, 0.0, True)
        for low, high in ((1.0, 2.0), (-2.0, -1.0), (-1.0, 1.0))
    ]
    says = lambda *measured: Claim("", "", measured).verdict
    assert says(yes, yes) == "holds"
    assert says(yes, open_) == says(yes, no) == "depends"
    assert says(no, open_) == "does not hold"
    assert says(open_) == "undecided"
    assert Agreement("", 1.1, 0.9, 1.2, 1.0, True).holds
    assert Agreement("", 1.5, 1.1, 1.9, 1.0, True).fails


def _figure_7(vanilla: float, control: float, reuse: float, noise: float = 1.0):
    """Curves of 30 seeds and 30 iterations with these means; all three share the seeds' luck."""
    rng = np.random.default_rng(0)
    luck = rng.normal(0, 10, (30, 1))
    means = {"K = 1": vanilla, "K = 5": reuse, control_label(5): control}
    noisy = lambda mean: _outcome(mean + luck + rng.normal(0, noise, (30, 30)))
    return {label: noisy(mean) for label, mean in means.items()}


@pytest.mark.parametrize(
    ("curves", "answer", "verb"),
    [
        (_figure_7(100, 120, 150), BEYOND, "raises it"),
        (_figure_7(100, 100, 120), BEYOND, "raises it"),
        (_figure_7(100, 150, 140), STEPS, "lowers it"),
        (_figure_7(100, 150, 150), STEPS, "makes no difference"),
        (_figure_7(100, 150, 150, noise=200), UNDECIDED, "makes no difference"),
        (_figure_7(100, 100, 80), WORSE, "lowers it"),
        (_figure_7(100, 100, 100), UNDECIDED, "makes no difference"),
    ],
)
def test_what_reuse_does_and_what_more_steps_do(curves, answer, verb):
    area, last, _ = attributions(curves)
    assert area.answer == last.answer == answer
    assert f"reuse at as many steps {verb}" in area.sentence
    assert area.sentence.endswith(f": {answer}.")
    assert area.both.value == pytest.approx(area.steps.value + area.reuse.value)
    assert np.isnan(area.share) or area.share == pytest.approx(
        1 - area.reuse.value / area.both.value
    )


def test_a_smaller_spread_is_what_reuse_does_if_the_control_spreads_as_without_it():
    rng = np.random.default_rng(0)
    spread = lambda size: _outcome(rng.normal(0, size, (50, 30)))
    runs = {"K = 1": spread(4), "K = 5": spread(2), control_label(5): spread(4)}
    *_, error = attributions(runs)
    assert error.what == "standard error"
    assert error.answer == BEYOND
    assert "reuse at as many steps lowers it" in error.sentence
    assert error.both.value == pytest.approx(error.steps.value * error.reuse.value)
    assert error.share == pytest.approx(0, abs=0.1)
    runs = {"K = 1": spread(4), "K = 5": spread(2), control_label(5): spread(1)}
    *_, error = attributions(runs)
    assert error.answer == STEPS


def test_a_short_interval_around_zero_is_evidence_and_a_long_one_is_not():
    gains = Measured("", 50.0, 45.0, 55.0, 0.0, True)
    reuse = lambda low, high: Measured("", 0.0, low, high, 0.0, True)
    answer = lambda low, high: Attribution("area", "K = 5", gains, reuse(low, high), gains).answer
    assert answer(-4.0, 4.0) == STEPS
    assert answer(-4.0, 6.0) == UNDECIDED


def test_figure_7_is_judged_against_both_controls():
    """More steps explain the area, so that the claim depends; they do not explain the end."""
    curves = _figure_7(100, 150, 150)
    late = curves["K = 5"].returns.copy()
    late[:, -10:] += 5
    late[:, :-10] -= 5
    curves["K = 5"] = _outcome(late)
    faster, _, ends, alone = claims({"fig7": curves}, None)
    assert [one.holds for one in faster.measured] == [True, True, False]
    assert faster.verdict == "depends"
    assert ends.verdict == alone.verdict == "holds"
    assert "last 10 iterations" in ends.measured[0].what
    without = {label: run for label, run in curves.items() if label in ("K = 1", "K = 5")}
    assert [one.verdict for one in claims({"fig7": without}, None)][:1] == ["holds"]
    assert len(claims({"fig7": without}, None)) == 2


def test_the_page_tells_the_gradient_steps_of_figure_7():
    cells = CURVES["fig7"].cells(PROTOCOLS["sgd"], FULL)
    ends = np.cumsum(np.full((20, 150), 800), axis=1)
    returns = np.arange(20)[:, None] * np.ones((20, 150))
    curves = {"return_mean": returns, "environment_steps": ends}
    lines = attribution_table(cells, {label: Outcome(curves, 0.0, 0.0) for label in cells})
    (line,) = [line for line in lines if line.startswith(f"| {control_label(5)} |")]
    # Until the window is full 40, 70, 100 and 130 steps, then 160.
    assert line == f"| {control_label(5)} | 9.5 | 23,700 | 7,700 | 1.00 | 1.00 |"


def test_the_full_scale_is_the_papers():
    cells = {name: figure.cells(PROTOCOLS["sgd"], FULL) for name, figure in CURVES.items()}
    assert {cell.iterations for cell in cells["fig2"].values()} == {150}
    assert {cell.iterations for cell in cells["fig3"].values()} == {500}
    assert {
        (cell.seeds, cell.episodes)
        for name in ("fig2", "fig3", "fig4", "fig6", "fig7")
        for cell in cells[name].values()
    } == {(50, 4)}
    assert [cell.algorithm.window for cell in cells["fig4"].values()] == [1, 10, 50, 100]
    natural = [cell.algorithm for cell in cells["fig6"].values() if isinstance(cell.algorithm, NPG)]
    assert [(one.window, one.fisher_window) for one in natural] == [(10, 10), (50, 10), (100, 10)]
    assert [cell.algorithm.window for cell in cells["fig7"].values()] == [1, 2, 5, 2, 5]
    assert list(cells["fig7"]) == ["K = 1", "K = 2", "K = 5", control_label(2), control_label(5)]
    # No steps of RTRPO grow with its window, so that it needs no control.
    assert {PROTOCOLS["sgd"].trpo(window).critic.fit for window in (1, 10)} == {"batch"}
    names = [cell for figure in cells.values() for cell in figure.values()]
    by_name: dict[str, Cell] = {}
    for cell in names:  # figures that share a name share the cell
        assert by_name.setdefault(cell.name, cell) == cell


def test_no_claims_without_figures():
    assert claims({}, None) == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (dict(figures=("fig12",)), "figures='fig12'"),
        (dict(protocol="sdg"), "protocol='sdg'"),
        (dict(seeds=0), "seeds=0"),
        (dict(engine="warp"), "engine='warp'"),
    ],
)
def test_wrong_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        Paper(**settings)
