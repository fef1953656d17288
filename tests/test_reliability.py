"""The measurements of reliability/ in small: killed runs, damaged files, fuzzed settings, more."""

import random
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import recollect as rc
from recollect.checks import shown
from recollect.run import checkpoint
from recollect.run.config import RunConfig, known_kinds
from recollect.run.folder import RunFolder
from recollect.run.session import Session
from recollect.serial import from_plain

sys.path.insert(0, str(Path(__file__).parents[1] / "reliability"))
import common
import corruption
import fuzz
import kill
import malicious
import nonfinite


def small_run(out, iterations=3, **settings):
    """A run with a checkpoint after every iteration."""
    settings = {"checkpoint_seconds": 0.0, "callback": lambda *_: None, **settings}
    return rc.train(**common.problem(), iterations=iterations, out=out, **settings)


def test_runs_that_are_killed_end_as_if_nothing_had_happened(tmp_path):
    """Three times at random, twice while a checkpoint is written."""
    lasts = kill.alone(tmp_path / "alone", "compiled")
    runs = kill.killed_at_random(tmp_path / "random", "compiled", 3, random.Random(0), lasts)
    assert kill.same(tmp_path / "random", runs, tmp_path / "alone") == runs
    kills, runs = kill.killed_at_lines(tmp_path / "lines", "compiled", [1, 2])
    assert kills == 2
    assert kill.same(tmp_path / "lines", runs, tmp_path / "alone") == runs


def test_damaged_checkpoints_are_noticed_and_put_aside(tmp_path):
    small_run(tmp_path)
    assert corruption.noticed(tmp_path, flips=15, cuts=5) == 20
    newest = RunFolder.open(tmp_path).checkpoints()[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="The checkpoint before it is taken"):
        rc.resume(tmp_path, iterations=4, checkpoint_seconds=np.inf)
    # The damaged one does not count among the last two that are kept.
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["00000002.zip", "00000003.zip.damaged", "00000004.zip"]


def test_what_a_killed_process_left_behind_is_tidied_up(tmp_path):
    small_run(tmp_path, iterations=2)
    parts = [tmp_path / ".config.json.7.part", tmp_path / "checkpoints" / ".00000003.zip.7.part"]
    for part in parts:
        part.write_text("half")
    (tmp_path / "checkpoints" / "notes.zip").write_text("not ours")
    rc.resume(tmp_path, iterations=3)
    assert not any(part.exists() for part in parts)
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    (tmp_path / "checkpoints").rmdir()
    rc.resume(tmp_path, iterations=1)
    assert [path.name for path in RunFolder.open(tmp_path).checkpoints()] == ["00000001.zip"]


def test_settings_appear_all_at_once_or_not_at_all(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full)
        with pytest.raises(ValueError, match=r"run cannot be written to: No space left on device"):
            small_run(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []

    def no_links(source, target):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(checkpoint.os, "link", no_links)
    checkpoint.create(tmp_path / "file", b"1")
    with pytest.raises(FileExistsError):
        checkpoint.create(tmp_path / "file", b"2")
    assert (tmp_path / "file").read_bytes() == b"1"
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=r"is a file|Not a directory"):
            small_run(out)


def test_a_disk_that_stays_full_is_said_once(tmp_path, monkeypatch):
    def full(path, arrays, facts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("recollect.run.snapshot.write", full)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        small_run(tmp_path, iterations=4)
    assert sum("could not be written" in str(one.message) for one in said) == 1


def test_files_made_to_do_harm_are_refused(tmp_path):
    said = common.apart(malicious.answers, str(tmp_path))
    assert len(said) > 40
    assert not {what: text for what, text in said.items() if text.startswith("!")}


def test_fuzzed_settings_are_accepted_or_refused_in_one_line():
    accepted, wrong = common.apart(fuzz.counted, 200, 5)
    assert accepted >= 10
    assert wrong == []


def test_only_classes_that_can_be_made_may_be_named():
    kinds = known_kinds()
    assert not {"Settings", "AbstractAlgorithm", "AbstractEnv"} & kinds.keys()
    for kind in (3, ["NPG"], {"kind": "NPG"}):
        with pytest.raises(ValueError, match="which is not part of recollect"):
            from_plain({"kind": kind}, kinds)
    with pytest.raises(ValueError, match=r"env=Uniform\(\S* is no environment"):
        RunConfig.of(rc.Uniform(), "vpg")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (dict(seeds=10**9), "seeds=1000000000 are more than"),
        (dict(seeds=[2**32]), r"seeds=\[4294967296\] has a number of 2³² or more"),
        (
            dict(algorithm=rc.RNPG(window=10**12)),
            r"window=10{12} batches .* more than this machine",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings, says):
    with pytest.raises(ValueError, match=says) as refusal:
        RunConfig.of(**{**common.problem(), **settings})
    assert "\n" not in str(refusal.value)


def test_values_are_shown_on_one_line_of_some_length():
    assert shown("a") == "'a'"
    assert "\n" in repr(rc.Critic(widths=(64,) * 40))
    text = shown(rc.Critic(widths=(64,) * 80))
    assert "\n" not in text
    assert len(text) == 201


def test_numbers_that_are_not_finite_never_get_into_the_policy_and_are_named():
    refused, moved, unfinite, told = nonfinite.measure("rpg", 12)
    assert (refused, moved, unfinite) == (12, 3, 0)
    assert len(told) == 1
    assert "updates on CartPole were refused" in told[0]
    assert "What was not finite first was the reward of seed 0 in step 4 of an episode" in told[0]


def test_curves_are_kept_in_few_pieces(tmp_path):
    pieces = []

    def look(run: Session, info):
        pieces.append((len(run._chunks), len(run._clocks)))

    run = small_run(tmp_path, iterations=40, callback=look, checkpoint_seconds=np.inf)
    assert max(max(pieces)) <= 6
    assert run.clock.shape == (40,)
    assert (np.diff(run.clock) >= 0).all()
    assert run.curves["kl"].shape == (1, 40)
