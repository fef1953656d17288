"""Watch a policy act: episodes of the Gymnasium environment, drawn offscreen, as a film.

Compiled environments are shown by their Gymnasium originals. A GIF needs Pillow alone, an MP4 the
extra `video`.
"""

import contextlib
import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from recollect.checks import check_count
from recollect.envs import ENVIRONMENTS, EnvironmentFailure, HostEnv
from recollect.envs.checked import described
from recollect.run.config import RunConfig

GIF_WIDTH = 320
"""Wider pictures are made narrower in a GIF, which holds every one of them nearly as it is."""
MOST_FRAMES = 2_000


@dataclasses.dataclass(frozen=True)
class Film:
    """One episode as it was seen."""

    frames: list[np.ndarray]
    total: float
    """Its undiscounted return."""
    seed: int
    rate: float
    """Frames a second."""

    def write(self, path: str | Path) -> None:
        """Write it as GIF or MP4.

        Args:
            path: of the file, which ends in `.gif` or `.mp4`.

        Raises:
            ValueError: if it ends in something else, or a package is missing.
        """
        path = Path(path)
        check_film_path(path)
        if path.suffix == ".gif":
            path.write_bytes(self.gif())
            return
        import imageio.v3 as iio

        even = [frame[: len(frame) // 2 * 2, : frame.shape[1] // 2 * 2] for frame in self.frames]
        with warnings.catch_warnings():
            # ffmpeg is started by a fork, after which the child does nothing but start it.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            iio.imwrite(path, np.stack(even), fps=self.rate, codec="libx264", macro_block_size=1)

    def gif(self, width: int = GIF_WIDTH, most: int = MOST_FRAMES) -> bytes:
        """The film as a GIF.

        Args:
            width: of the picture, at most.
            most: frames, at most; of longer films every other one is shown, or every third, …
        """
        import io

        from PIL import Image

        every = -(-len(self.frames) // most)
        images = [Image.fromarray(frame) for frame in self.frames[::every]]
        if images[0].width > width:
            size = (width, round(images[0].height * width / images[0].width))
            images = [image.resize(size) for image in images]
        buffer = io.BytesIO()
        duration = max(20, round(1000 * every / self.rate))  # viewers slow shorter ones down
        first, *rest = [image.quantize(64) for image in images]
        first.save(buffer, "GIF", save_all=True, append_images=rest, duration=duration, loop=0)
        return buffer.getvalue()


def check_film_path(path: Path) -> None:
    """Raise a ValueError unless a film can be written to a path of that ending."""
    if path.suffix not in (".gif", ".mp4"):
        raise ValueError(f"{path} ends in neither .gif nor .mp4; give one of them.")
    if path.suffix == ".mp4":
        try:
            import imageio_ffmpeg  # noqa: F401
        except ImportError:
            raise ValueError(
                "MP4 needs packages that are not installed; pip install imageio imageio-ffmpeg, or "
                "give a path that ends in .gif."
            ) from None


def film(
    config: RunConfig,
    predict: Callable[[Any], Any],
    *,
    seeds: Sequence[int] | None = None,
    best_of: int = 1,
) -> Film:
    """The best of some episodes.

    Args:
        config: of the run, which tells the environment.
        predict: from an observation to an action.
        seeds: of the episodes.
        best_of: if no seeds are given, how many episodes to run, from seeds 0, 1, ….

    Raises:
        ValueError: if the environment cannot be drawn.
    """
    check_count("best_of", best_of)
    env = rendering_env(config)
    try:
        films = [_episode(env, predict, seed, config) for seed in (seeds or range(best_of))]
    finally:
        with contextlib.suppress(Exception):
            env.close()
    return max(films, key=lambda film: film.total)


def rendering_env(config: RunConfig) -> gym.Env:
    """One copy of a run's environment that draws itself.

    Raises:
        ValueError: if there is none, with the reason.
    """
    env = config.env
    if isinstance(env, HostEnv) and config.made is None:
        if env.factory is None:
            raise ValueError(f"{env.name} is a vector, whose copies cannot be drawn one by one.")
        made = env.factory()
        if made.render_mode != "rgb_array":
            raise ValueError(
                f"{env.name} is made with render_mode={made.render_mode!r}; make it with "
                "render_mode='rgb_array' to see it."
            )
        return made
    names = [name for name, kind in ENVIRONMENTS.items() if kind is type(env)]
    name = config.made.name if config.made is not None else next(iter(names), config.env_name)
    if name not in gym.registry and ":" not in name:
        raise ValueError(f"{name} has no picture; only environments of Gymnasium can be drawn.")
    choose_offscreen_renderer()
    try:
        made = gym.make(name, render_mode="rgb_array", max_episode_steps=env.max_steps)
        made.reset(seed=0)
        made.render()
    except Exception as error:
        raise ValueError(
            f"{name} cannot be drawn: {described(error)}; MuJoCo needs EGL or OSMesa (Debian: "
            "apt-get install libegl1 libosmesa6), others what their message says."
        ) from error
    return made


def choose_offscreen_renderer() -> None:
    """Let SDL and MuJoCo draw without a screen, where there is none.

    MuJoCo takes the first library of OpenGL that is there.
    """
    if sys.platform != "linux" or {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}:
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if "MUJOCO_GL" in os.environ:
        return
    import ctypes.util

    for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library) is not None:
            os.environ["MUJOCO_GL"] = name
            return


def _episode(env: gym.Env, predict: Callable[[Any], Any], seed: int, config: RunConfig) -> Film:
    frames: list[np.ndarray] = []
    total = 0.0
    observation, _ = env.reset(seed=seed)
    ended = False
    while not ended and len(frames) < (config.env.max_steps or MOST_FRAMES):
        frames.append(_frame(env))
        observation, reward, terminated, truncated, _ = env.step(predict(observation))
        total += float(reward)
        ended = bool(terminated or truncated)
    frames.append(_frame(env))
    return Film(frames, total, seed, float(env.metadata.get("render_fps", 30)))


def _frame(env: gym.Env) -> np.ndarray:
    frame = np.asarray(env.render())
    if frame.ndim != 3 or frame.shape[2] != 3:
        raise EnvironmentFailure(
            f"render gave an array of shape {frame.shape}, which is no picture."
        )
    return frame
