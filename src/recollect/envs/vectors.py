"""Copies of an environment outside the compiled program, stepped together as one vector.

Nothing that an environment gives back is trusted: every observation, reward and flag is checked, and the first that is wrong ends
training with one sentence that names environment, step and copy. A vector reports the true successor of every transition; only then
is a finished copy reset, from a seed that the collector chooses. That is why our own vectors disable Gymnasium's automatic resets.
"""

import abc
import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import iterate

from recollect.envs.spaces import Encoder, decoder, encoder

LARGEST = float(np.finfo(np.float32).max)
"""Rewards and observations are stored in single precision."""


class EnvironmentFailure(RuntimeError):
    """An environment broke its contract, or broke down. `training` holds what had been learned until then, if anything."""

    training: Any = None


class Checked(gym.Wrapper):
    """One copy of an environment, its observations as flat vectors, everything it returns checked."""

    def __init__(self, env: gym.Env, name: str, copy: int):
        super().__init__(env)
        self._where, self._steps = f"copy {copy} of {name}", 0
        self.size, self._encode = encoder(env.observation_space)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (self.size,), np.float32)
        self._diverged = _mujoco_warnings(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        found = self._call("reset", lambda: self.env.reset(seed=seed, options=options))
        if not isinstance(found, tuple) or len(found) != 2:
            self._fail("reset", f"returned {_count(found)} and not a pair of observation and info")
        return self._row("reset", found[0]), {}

    def step(self, action):
        self._steps += 1
        found = self._call("step", lambda: self.env.step(action))
        if not isinstance(found, tuple) or len(found) != 5:
            self._fail(
                "step",
                f"returned {_count(found)} and not observation, reward, terminated, truncated, info",
            )
        observation, reward, terminated, truncated, _ = found
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
        # MuJoCo puts a world that diverged back to its start and goes on as if nothing had happened; only its counters tell.
        return (
            self._row("step", observation),
            reward,
            bool(terminated),
            bool(truncated),
            {"diverged": self._diverged()},
        )

    def _call(self, method: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:
            raise EnvironmentFailure(
                f"{self._where}, step {self._steps}: {method} raised {described(error)}."
            ) from error

    def _row(self, method: str, observation: Any) -> np.ndarray:
        row = np.empty(self.size, np.float32)
        wrong = _write(self._encode, observation, row)
        if wrong:
            self._fail(method, wrong)
        return row

    def _fail(self, method: str, what: str) -> NoReturn:
        raise EnvironmentFailure(f"{self._where}, step {self._steps}: {method} {what}.")


def _write(encode: Encoder, observation: Any, row: np.ndarray) -> str:
    """Put an observation into a row; what is wrong with it, or nothing."""
    try:
        with np.errstate(over="ignore"):
            encode(observation, row)
    except ValueError as error:
        return f"gave back an observation that is wrong: {error}"
    if np.isfinite(row).all():
        return ""
    bad = int(np.flatnonzero(~np.isfinite(row))[0])
    return f"gave back an observation that is not finite: number {bad} of {len(row)} is {row[bad]}"


def _count(found: Any) -> str:
    return f"{len(found)} values" if isinstance(found, tuple) else type(found).__name__


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ").replace("\n", " ")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Gymnasium does not print the tracebacks of workers, whose last one it raises anyway."""
    level = gym.logger.min_level
    gym.logger.min_level = gym.logger.ERROR + 1
    try:
        yield
    finally:
        gym.logger.min_level = level


def _mujoco_warnings(env: gym.Env) -> Callable[[], bool]:
    """Whether MuJoCo has counted positions, velocities or accelerations that were not sane; never, if `env` is no MuJoCo world."""
    world: Any = env.unwrapped
    if not type(getattr(world, "data", None)).__module__.startswith("mujoco"):
        return lambda: False
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
        counts = world.data.warning.number
        return any(counts[kind] for kind in kinds)

    return any_counted


class Stepped(NamedTuple):
    """What one step of all copies gave; each array begins with the copy."""

    observations: np.ndarray
    """The true successors, also where an episode ended."""
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    real: np.ndarray
    """False where the step was no transition: the copy was at rest, or used the step to reset itself."""
    diverged: np.ndarray
    """Where a simulator reported that its state had become meaningless."""


class AbstractVector(abc.ABC):
    """Copies of an environment. `observations` is what the policy acts on next."""

    count: int
    observations: np.ndarray
    rests: bool = False
    """Whether copies can be left out of a step."""
    resets_itself: bool = False
    """Whether a copy that ended starts again without being asked, from a seed of its own."""

    @abc.abstractmethod
    def reset(self, seeds: Sequence[int]) -> None:
        """Begin an episode in every copy."""

    @abc.abstractmethod
    def step(self, actions: np.ndarray, moving: np.ndarray) -> Stepped:
        """One step of the copies in `moving` (of all, if copies cannot rest)."""

    @abc.abstractmethod
    def restart(self, which: np.ndarray, seeds: Callable[[int], int]) -> None:
        """Begin an episode in the copies `which`; `seeds` gives the seed of a copy."""

    @abc.abstractmethod
    def close(self) -> None: ...


def close_all(resources: Iterable[Any]) -> None:
    """Close everything. What fails at that is told once and otherwise ignored: what was learned is worth more."""
    failures = []
    for resource in resources:
        try:
            resource.close()
        except Exception as error:
            failures.append(error)
    if failures:
        more = f" and {len(failures) - 1} more failed as well" if len(failures) > 1 else ""
        warnings.warn(
            f"close raised {described(failures[0])}{more}; what was learned is kept.", stacklevel=2
        )


class LocalVector(AbstractVector):
    """Copies in this process, one stepped after another."""

    rests = True

    def __init__(self, envs: Sequence[Checked]):
        self.count, self._envs = len(envs), envs
        self._decode = decoder(envs[0].action_space)
        self.observations = np.zeros((self.count, envs[0].size), np.float32)

    def reset(self, seeds):
        for i, env in enumerate(self._envs):
            self.observations[i], _ = env.reset(seed=seeds[i])

    def step(self, actions, moving):
        decoded = self._decode(actions)
        rewards = np.zeros(self.count, np.float32)
        terminated, truncated, diverged = np.zeros((3, self.count), bool)
        for i in np.flatnonzero(moving).tolist():
            self.observations[i], rewards[i], terminated[i], truncated[i], info = self._envs[
                i
            ].step(decoded[i])
            diverged[i] = info["diverged"]
        return Stepped(
            self.observations.copy(), rewards, terminated, truncated, moving.copy(), diverged
        )

    def restart(self, which, seeds):
        for i in np.flatnonzero(which).tolist():
            self.observations[i], _ = self._envs[i].reset(seed=seeds(i))

    def close(self):
        close_all(self._envs)


class GymVector(AbstractVector):
    """A vectorised environment of Gymnasium's kind, whichever way it resets."""

    def __init__(self, vector: Any, name: str, seeded: bool = False):
        self._vector, self._name, self.count, self._steps = vector, name, vector.num_envs, 0
        self._quietly = quiet if isinstance(vector, AsyncVectorEnv) else contextlib.nullcontext
        self._style = vector.metadata.get("autoreset_mode")
        if self._style not in tuple(AutoresetMode):
            raise ValueError(
                f"{name} does not say in metadata['autoreset_mode'] how it resets; set it to one of gymnasium.vector.AutoresetMode."
            )
        self._seeded = seeded  # when it was made, which EnvPool takes for good
        self.resets_itself = self._style != AutoresetMode.DISABLED
        self._decode = decoder(vector.single_action_space)
        self._space, space = vector.observation_space, vector.single_observation_space
        self._flat = isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary)
        self._size, self._encode = encoder(space)
        self.observations = np.zeros((self.count, self._size), np.float32)
        self._resetting = np.zeros(self.count, bool)

    def reset(self, seeds):
        seeded = {} if self._seeded else dict(seed=list(seeds))
        self.observations = self._first_rows(lambda: self._vector.reset(**seeded))
        self._resetting[:] = False

    def _first_rows(self, reset: Callable[[], Any]) -> np.ndarray:
        found = self._call("reset", reset)
        if not isinstance(found, tuple) or len(found) != 2:
            self._fail(
                "reset", f"returned {_count(found)} and not a pair of observations and infos"
            )
        return self._rows("reset", found[0])

    def step(self, actions, moving):
        self._steps += 1
        found = self._call("step", lambda: self._vector.step(self._decode(actions)))
        if not isinstance(found, tuple) or len(found) != 5:
            self._fail(
                "step",
                f"returned {_count(found)} and not observations, rewards, terminated, truncated, infos",
            )
        observations, rewards, terminated, truncated, infos = found
        terminated = self._of_each("terminated", terminated, bool)
        truncated = self._of_each("truncated", truncated, bool)
        rewards = self._of_each("rewards", rewards, float)
        successors = self._rows("step", observations)
        self.observations = successors.copy()
        ended, real = terminated | truncated, ~self._resetting
        if self._style == AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(ended):
                try:
                    final = infos["final_obs"][i]
                except (KeyError, IndexError, TypeError):
                    self._fail(
                        "step",
                        f"ended copy {i} without its last observation in infos['final_obs'], as SAME_STEP resets need",
                    )
                self._row("step", final, successors[i])
        if self._style == AutoresetMode.NEXT_STEP:
            self._resetting = ended & real
        wrong = ~(np.abs(np.where(real, rewards, 0)) <= LARGEST)
        if wrong.any():
            copy = np.flatnonzero(wrong)[0]
            self._fail(
                "step",
                f"returned the reward {rewards[copy]} in copy {copy}, which is not finite in single precision",
            )
        diverged = (
            np.asarray(infos.get("diverged", np.zeros(self.count)), bool)
            if isinstance(infos, dict)
            else np.zeros(self.count, bool)
        )
        return Stepped(
            successors,
            np.where(real, rewards, 0).astype(np.float32),
            terminated,
            truncated,
            real & moving,
            diverged,
        )

    def _of_each(self, field: str, values: Any, kind: type) -> np.ndarray:
        """One number or flag of every copy."""
        try:
            array = np.asarray(values, kind)
        except (TypeError, ValueError):
            self._fail(
                "step",
                f"returned {field} = {values!r:.60}, which are not of the kind {kind.__name__}",
            )
        if array.shape != (self.count,):
            self._fail(
                "step",
                f"returned {field} of shape {array.shape} and not one for each of {self.count} copies",
            )
        return array

    def restart(self, which, seeds):
        if self.resets_itself:
            return
        chosen = [seeds(i) if which[i] else None for i in range(self.count)]
        rows = self._first_rows(
            lambda: self._vector.reset(seed=chosen, options={"reset_mask": which.copy()})
        )
        self.observations[which] = rows[which]

    def close(self):
        if not isinstance(self._vector, AsyncVectorEnv):
            self._vector.close()
            return
        # Asking workers to finish, as Gymnasium does, would wait for one that cannot answer.
        for process, pipe in zip(self._vector.processes, self._vector.parent_pipes, strict=True):
            process.kill()
            process.join()
            if pipe is not None:
                pipe.close()
        self._vector.closed = True

    def _call(self, method: str, function: Callable[[], Any]) -> Any:
        try:
            with self._quietly():
                return function()
        except EnvironmentFailure:
            raise
        except (EOFError, BrokenPipeError, ConnectionError) as error:
            raise EnvironmentFailure(
                f"{self._name}, step {self._steps}: a worker process died during {method}."
            ) from error
        except Exception as error:
            raise EnvironmentFailure(
                f"{self._name}, step {self._steps}: {method} raised {described(error)}."
            ) from error

    def _rows(self, method: str, observations: Any) -> np.ndarray:
        """The observations of all copies as rows of their own."""
        rows = np.empty((self.count, self._size), np.float32)
        if self._flat and np.shape(observations) == self._space.shape:
            rows[:] = np.reshape(observations, (self.count, -1))
            if not np.isfinite(rows).all():
                copy, number = np.argwhere(~np.isfinite(rows))[0]
                self._fail(
                    method,
                    f"gave back an observation that is not finite: number {number} of copy {copy} is {rows[copy, number]}",
                )
            return rows
        for row, observation in zip(rows, iterate(self._space, observations), strict=True):
            self._row(method, observation, row)
        return rows

    def _row(self, method: str, observation: Any, row: np.ndarray) -> None:
        wrong = _write(self._encode, observation, row)
        if wrong:
            self._fail(method, wrong)

    def _fail(self, method: str, what: str) -> NoReturn:
        raise EnvironmentFailure(f"{self._name}, step {self._steps}: {method} {what}.")
