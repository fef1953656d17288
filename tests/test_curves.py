"""Learning curves from run folders: what is read, averaged and drawn."""

import json
import warnings

import numpy as np
import pytest
import scipy.stats

from recollect.report.colours import ALGORITHM_COLOURS, run_colours
from recollect.report.curves import Curve, over_seeds, read_curve, runs_in
from recollect.report.plot import LETTERS, draw_curves, panels, save
from recollect.run.folder import progress_rows

HEADER = "seed,iteration,environment_steps,return_mean,recent_return,seconds\n"
SETTINGS = {
    "env": {"kind": "EnvSettings", "name": "Task-v0", "max_steps": None},
    "algorithm": {"kind": "NPG", "window": 4},
    "seeds": [3, 5],
}


def folder_of(path, rows, settings=SETTINGS):
    path.mkdir(parents=True)
    until = {"iterations": 2}
    (path / "config.json").write_text(json.dumps({"settings": settings, "until": until}))
    (path / "progress.csv").write_text(HEADER + rows)
    return path


def test_a_curve_is_the_latest_episodes_of_every_seed_where_there_are_any(tmp_path):
    rows = "3,1,10,nan,nan,1\n5,1,12,nan,nan,1\n3,2,20,nan,-7,2\n3,3,30,nan,-6,3\n"
    (name, folder), *more = runs_in(folder_of(tmp_path / "run", rows)).items()
    assert (name, more) == ("rnpg", [])
    for axis, x in (("steps", [20, 30]), ("iterations", [2, 3]), ("seconds", [2, 3])):
        curve = read_curve(name, folder, axis)
        assert (curve.algorithm, curve.env) == ("rnpg", "Task-v0")
        np.testing.assert_array_equal(curve.seeds[3], [x, [-7, -6]])
        assert curve.seeds[5][0].size == 0
        assert len(curve.there) == 1


def test_a_comparison_lists_its_runs_as_the_library_does(tmp_path):
    names = ["vpg", "rnpg-window-5", "rnpg-window-20", "Mine"]
    for name in sorted(names):
        folder_of(tmp_path / name, "")
    assert [*runs_in(tmp_path)] == names


def test_the_mean_over_seeds_is_taken_at_common_places():
    """Seeds of y = x and y = 3x on different grids; a third is over before the others."""
    first = np.array([0.0, 3.0, 8.0])
    second = np.array([0.0, 5.0, 8.0])
    x, mean, low, high = over_seeds([(first, first), (second, 3 * second)], points=9)
    np.testing.assert_allclose(mean, 2 * x)
    half = scipy.stats.t.ppf(0.975, 1) * x  # s/√2 = x√2/√2
    np.testing.assert_allclose(high - mean, half)
    np.testing.assert_allclose(mean - low, half)
    short = np.array([0.0, 1.0])
    x, mean, *_ = over_seeds([(short, short), (short, short), (first, 9 * first)], points=9)
    np.testing.assert_allclose(x, [0, 1])  # beyond, less than half of the seeds are left


def test_a_single_seed_has_no_interval():
    _, mean, low, _ = over_seeds([(np.array([1.0, 2.0]), np.array([4.0, 8.0]))], points=3)
    np.testing.assert_allclose(mean, [4, 6, 8])
    assert np.isnan(low).all()


def test_a_picture_without_episodes_says_so_and_warns_of_nothing(tmp_path):
    nothing = {0: (np.zeros(0), np.zeros(0))}
    some = {0: (np.array([1.0]), np.array([2.0]))}
    curves = [Curve("rnpg", "rnpg", "a$_^$", nothing), Curve("vnpg", "vnpg", "b", some)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw_curves(tmp_path / "picture.svg", curves) == ["rnpg"]
        assert draw_curves(tmp_path / "alone.png", curves[:1]) == ["rnpg"]
    assert (tmp_path / "picture.svg").stat().st_size > 1000


def test_one_colour_for_one_algorithm():
    assert len({*ALGORITHM_COLOURS.values()}) == 8
    for names in (["RNPG"], ["vpg", "RNPG"], ["K = 5", "RNPG", "K = 9"]):
        colours = run_colours(names)
        assert colours[names.index("RNPG")] == ALGORITHM_COLOURS["rnpg"]
        assert len({*colours}) == len(names)


def test_letters_are_large_enough_for_a_column(tmp_path):
    figure, (axes,) = panels(1, 1)
    small = axes.text(0.5, 0.5, "small", fontsize=6)
    large = axes.set_title("large", fontsize=20)
    for ending in ("png", "svg", "pdf"):
        save(figure, tmp_path / f"picture.{ending}")
    assert (small.get_fontsize(), large.get_fontsize()) == (LETTERS, 20)
    assert axes.get_xticklabels()[0].get_fontsize() == LETTERS
    assert b"/Type3" not in (tmp_path / "picture.pdf").read_bytes()


def test_damaged_progress_is_one_sentence(tmp_path):
    folder = folder_of(tmp_path / "run", "3,1,10,nan,seven,1\n")
    with pytest.raises(ValueError, match="is not the progress of a run"):
        read_curve("rnpg", folder)


def test_columns_of_the_progress_have_one_order():
    """A run that goes on has its curves in the order of a file."""
    curves = {
        name: np.full((1, 2), float(place))
        for place, name in enumerate(("recent_return", "kl", "environment_steps", "return_mean"))
    }
    clock = np.arange(2.0)
    text = progress_rows((0,), 0, curves, clock, header=True)
    other = progress_rows((0,), 0, dict(sorted(curves.items())), clock, header=True)
    assert text == other
    head = "seed,iteration,environment_steps,return_mean,recent_return,kl,seconds"
    assert text.splitlines()[0] == head
    assert text.splitlines()[1] == "0,1,2,3,0,1,0.0000"
