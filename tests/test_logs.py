"""What is told of a run while it goes on: event files, monitors, environments that hang."""

import struct
import time

import gymnasium as gym
import hosted_envs
import numpy as np
import pytest

import recollect as rc
from recollect.run.files import numbered_folder
from recollect.run.folder import Appended

SMALL = dict(collector=rc.Steps(2, 8), policy=rc.Architecture(widths=(4,)))
ALGORITHM = rc.VPG(critic=rc.Critic(widths=(4,), epochs=1))


def events(folder):
    """Tags, steps and values in the files of a folder."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        place = 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + length])
            place += 16 + length  # with a checksum of the length and one of the event
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


def test_tensorboard_has_one_curve_across_a_resume(tmp_path):
    board = rc.TensorBoard(tmp_path / "board")
    out = tmp_path / "run"
    rc.train(
        "CartPole-v1", ALGORITHM, **SMALL, seeds=[3, 8], iterations=2, out=out, loggers=[board]
    )
    run = rc.resume(out, iterations=3, loggers=[rc.TensorBoard(tmp_path / "board")])
    for row, seed in enumerate(run.seeds):
        curve = [
            (step, value)
            for tag, step, value in events(tmp_path / "board" / f"seed_{seed}")
            if tag == "train/approx_kl"
        ]
        assert [step for step, _ in curve] == [16, 32, 48]
        np.testing.assert_allclose([value for _, value in curve], run.curves["kl"][row], rtol=1e-6)


def test_agents_have_a_folder_for_every_call_of_learn(tmp_path):
    agent = rc.Agent("CartPole-v1", ALGORITHM, **SMALL, tensorboard_log=tmp_path)
    agent.learn(iterations=1).learn(iterations=1).learn(iterations=1, reset_num_timesteps=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run_1", "run_2"]
    steps = [step for tag, step, _ in events(tmp_path / "run_2" / "seed_0") if tag == "reuse/ess"]
    assert steps == [16, 32]


def test_monitors_hold_every_episode(tmp_path):
    run = rc.train("CartPole-v1", ALGORITHM, **SMALL, seeds=[3, 8], iterations=9, out=tmp_path)
    for row, seed in enumerate(run.seeds):
        about, columns, *lines = (tmp_path / f"{seed}.monitor.csv").read_text().splitlines()
        assert '"env_id": "CartPole-v1"' in about
        assert columns == "r,l,t"
        returns = [float(line.split(",")[0]) for line in lines]
        latest = run.curves["recent_return"][row, -1]
        assert np.mean(returns[-20:]) == pytest.approx(latest, rel=1e-5)


def test_a_text_that_cannot_be_written_waits_for_the_next_time(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    path.write_text("kept\ncut off")
    file = Appended(path, len("kept\n"))
    file.append("one\n")

    class Full:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def write(self, data):
            self.inner.write(data[:2])
            raise OSError(28, "No space left on device")

    whole = file._file
    file._file = Full(whole)
    with pytest.warns(UserWarning, match="could not be written: .*No space left"):
        file.append("two\n")
    file.append("three\n")  # does not warn again
    assert path.read_text() == "kept\none\n"
    file._file = whole
    file.append("four\n")
    assert path.read_text() == "kept\none\ntwo\nthree\nfour\n"
    assert file.length == path.stat().st_size
    file.close()


def test_folders_are_numbered_on(tmp_path):
    (tmp_path / "0007").mkdir()
    (tmp_path / "notes").mkdir()
    assert numbered_folder(tmp_path).name == "0008"
    assert numbered_folder(tmp_path / "new" / "below").name == "0001"


def test_an_environment_that_hangs_is_ended():
    env = rc.host(hosted_envs.Hanging, workers=True, step_timeout=1.0)
    began = time.monotonic()
    with pytest.raises(rc.EnvironmentFailure, match="longer than step_timeout=1 seconds"):
        rc.train(env, ALGORITHM, **SMALL, iterations=3)
    assert time.monotonic() - began < 60  # it would hang for an hour
    with pytest.raises(ValueError, match="step_timeout=1 needs workers=True"):
        rc.host(lambda: gym.make("CartPole-v1"), step_timeout=1.0)
