"""Films of agents, of any environment that draws itself."""

import io
import shutil

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import recollect as rc
from recollect.cli import main

SMALL = dict(collector=rc.Steps(2, 8), policy=rc.Architecture(widths=(4,)))


def test_a_film_shows_the_best_episode(tmp_path):
    agent = rc.Agent("CartPole-v1", rc.VPG(), **SMALL)
    films = [agent.play(seeds=[seed]) for seed in range(3)]
    best = agent.play(tmp_path / "pole.gif", best_of=3)
    assert best.total == max(film.total for film in films)
    assert len({film.total for film in films}) > 1
    assert len(best.frames) == best.total + 1  # a step pays 1, and the end is shown
    assert agent.play(seeds=[best.seed]).total == best.total
    with Image.open(tmp_path / "pole.gif") as image:
        assert image.n_frames > 5
        assert image.width == 320
    with Image.open(io.BytesIO(best.gif(width=100, most=4))) as image:
        assert image.n_frames <= 4
    agent.play(tmp_path / "pole.mp4", seeds=[best.seed])
    assert (tmp_path / "pole.mp4").read_bytes()[4:8] == b"ftyp"


class Silent(gym.Env):
    """Draws nothing."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


def test_what_cannot_be_drawn_is_said_in_one_sentence(tmp_path):
    lqc = rc.Agent("LQC", "vpg")
    with pytest.raises(ValueError, match="LQC has no picture; only environments of Gymnasium"):
        lqc.play()
    silent = rc.Agent(rc.host(Silent, max_steps=3), rc.VPG(), **SMALL)
    with pytest.raises(ValueError, match=r"render_mode=None; make it with render_mode='rgb_array'"):
        silent.play()
    with pytest.raises(ValueError, match=r"ends in neither \.gif nor \.mp4"):
        silent.play(tmp_path / "film.avi")


def test_the_command_films_the_seeds_that_it_is_given(tmp_path, capsys):
    agent = rc.Agent("CartPole-v1", rc.VPG(), **SMALL)
    agent.learn(iterations=1)
    agent.save(tmp_path / "agent.zip")
    words = ["play", str(tmp_path / "agent.zip"), "--video", str(tmp_path / "film.gif")]
    assert main([*words, "--seeds", "7"]) == 0
    assert "the episode of seed 7, return " in capsys.readouterr().out
    assert main([*words, "--seeds", "7", "--best-of", "2"]) == 2
    assert "--seeds and --best-of exclude each other" in capsys.readouterr().err


def test_a_run_that_has_learned_nothing_has_nothing_to_show(tmp_path):
    rc.train("CartPole-v1", rc.VPG(), **SMALL, iterations=1, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ValueError, match="run has learned nothing yet; resume it first"):
        rc.Agent.load(tmp_path / "run")
