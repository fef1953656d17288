"""One copy of an environment outside the compiled program, with all that it returns checked.

The first observation, reward or flag that is wrong ends training with one sentence that names
environment, step and copy. A MuJoCo simulation that has diverged is no failure: it is reported with
the step, so that its episode can be left out.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from recollect.envs.spaces import Encoder, encoder

LARGEST = float(np.finfo(np.float32).max)
"""Rewards and observations are stored in single precision."""


class EnvironmentFailure(RuntimeError):
    """An environment raised an error or returned something that Gymnasium's API does not allow.

    Example:
        >>> import gymnasium as gym
        >>> from recollect import EnvironmentFailure, host
        >>> class Broken(gym.Env):
        ...     def __init__(self):
        ...         raise OSError("no such file")
        >>> try:
        ...     host(Broken)
        ... except EnvironmentFailure as failure:
        ...     print(failure, failure.training)
        the environment cannot be made: OSError: no such file. None
    """

    training: Any = None
    """The `Training` up to the failure; None if it came before the first update."""


class Checked(gym.Wrapper):
    """One copy of an environment, with flat observations and everything it returns checked.

    Args:
        env: the copy.
        name: of the environment, for error messages.
        copy: its number, for error messages.
        keywords: entries of its infos that are passed on; NaN stands for those that are missing.
    """

    def __init__(self, env: gym.Env, name: str, copy: int, keywords: tuple[str, ...] = ()):
        super().__init__(env)
        self.keywords = keywords
        self._label = f"copy {copy} of {name}"
        self._steps = 0
        self._under_way: tuple[str, float] | None = None
        self.size, self._encode = encoder(env.observation_space)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (self.size,), np.float32)
        self._diverged = _mujoco_warnings(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        returned = self._call("reset", lambda: self.env.reset(seed=seed, options=options))
        if not isinstance(returned, tuple) or len(returned) != 2:
            self._fail(
                "reset",
                f"returned {length_or_type(returned)} and not a pair of observation and info",
            )
        return self._row("reset", returned[0]), {}

    def step(self, action):
        self._steps += 1
        returned = self._call("step", lambda: self.env.step(action))
        if not isinstance(returned, tuple) or len(returned) != 5:
            self._fail(
                "step",
                f"returned {length_or_type(returned)} "
                "and not observation, reward, terminated, truncated, info",
            )
        observation, reward, terminated, truncated, infos = returned
        try:
            reward = float(reward)
        except (TypeError, ValueError):
            self._fail("step", f"returned the reward {reward!r:.60}, which is not a number")
        if not abs(reward) <= LARGEST:
            self._fail(
                "step", f"returned the reward {reward}, which is not finite in single precision"
            )
        for field, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_ | int | np.integer):
                self._fail(
                    "step", f"returned {field} = {flag!r:.60}, which is neither true nor false"
                )
        row = self._row("step", observation)
        # MuJoCo resets a simulation that has diverged without an error; only its counters tell.
        info = {"diverged": self._diverged()}
        info |= {keyword: self._figure(infos, keyword) for keyword in self.keywords}
        return row, reward, bool(terminated), bool(truncated), info

    def _figure(self, infos: Any, keyword: str) -> float:
        """An entry of the infos as a number; NaN if it is missing."""
        value = infos.get(keyword, np.nan) if isinstance(infos, dict) else np.nan
        try:
            return float(value)
        except (TypeError, ValueError):
            self._fail("step", f"returned {keyword} = {value!r:.60} in info, which is not a number")

    def _call(self, method: str, function: Callable[[], Any]) -> Any:
        self._under_way = (method, time.monotonic())
        try:
            return function()
        except Exception as error:
            raise EnvironmentFailure(
                f"{self._label}, step {self._steps}: {method} raised {described(error)}."
            ) from error
        finally:
            self._under_way = None

    def check_time(self, limit: float) -> None:
        """Raise if a step or reset in another thread takes longer than `limit` seconds."""
        method, began = self._under_way or ("", math.inf)
        if time.monotonic() - began > limit:
            self._fail(method, f"took longer than step_timeout={limit:g} seconds")

    def _row(self, method: str, observation: Any) -> np.ndarray:
        row = np.empty(self.size, np.float32)
        problem = write_row(self._encode, observation, row)
        if problem:
            self._fail(method, problem)
        return row

    def _fail(self, method: str, what: str) -> NoReturn:
        raise EnvironmentFailure(f"{self._label}, step {self._steps}: {method} {what}.")


def write_row(encode: Encoder, observation: Any, row: np.ndarray) -> str:
    """Write an observation into a row; returns what is wrong with it, or an empty string."""
    try:
        # A number too large for single precision becomes infinite, which is reported below.
        with np.errstate(over="ignore"):
            encode(observation, row)
    except ValueError as error:
        return f"gave back an observation that is wrong: {error}"
    if np.isfinite(row).all():
        return ""
    bad = int(np.flatnonzero(~np.isfinite(row))[0])
    return f"gave back an observation that is not finite: number {bad} of {len(row)} is {row[bad]}"


def length_or_type(returned: Any) -> str:
    """How an error message describes what a method returned: its length or its type."""
    return f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__


def described(error: Exception) -> str:
    """Kind and message of an error on one line, without the full stop."""
    return f"{type(error).__name__}: {error}".rstrip(".: ").replace("\n", " ")


def simulated_by_mujoco(env: gym.Env) -> bool:
    """Whether MuJoCo steps the environment."""
    return type(getattr(env.unwrapped, "data", None)).__module__.startswith("mujoco")


def _mujoco_warnings(env: gym.Env) -> Callable[[], bool]:
    """The function that tells whether MuJoCo has counted bad positions, velocities, accelerations.

    If `env` is no MuJoCo environment, the function always returns false.
    """
    if not simulated_by_mujoco(env):
        return lambda: False
    simulation: Any = env.unwrapped
    from mujoco import mjtWarning  # pyright: ignore[reportAttributeAccessIssue]

    kinds = [
        int(kind)
        for kind in (
            mjtWarning.mjWARN_BADQPOS,
            mjtWarning.mjWARN_BADQVEL,
            mjtWarning.mjWARN_BADQACC,
        )
    ]

    def any_counted() -> bool:
        counts = simulation.data.warning.number
        return any(counts[kind] for kind in kinds)

    return any_counted
