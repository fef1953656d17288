"""Copies of an environment outside the compiled program, stepped together as one vector.

Every observation, reward and flag that a copy returns is checked (`checked`). A vector reports the
true successor of every transition, and only then is a finished copy reset, from a seed that the
collector chooses. For this, the vectors made here disable Gymnasium's automatic resets.
"""

import abc
import contextlib
import multiprocessing
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import iterate

from recollect.envs.checked import (
    LARGEST,
    Checked,
    EnvironmentFailure,
    described,
    length_or_type,
    write_row,
)
from recollect.envs.spaces import decoder, encoder


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context in which Gymnasium does not print the tracebacks of its workers.

    It also raises the last of them, which is reported as an `EnvironmentFailure`.
    """
    level = gym.logger.min_level
    gym.logger.min_level = gym.logger.ERROR + 1
    try:
        yield
    finally:
        gym.logger.min_level = level


class Stepped(NamedTuple):
    """What one step of all copies returned; the first axis of each array is the copy."""

    observations: np.ndarray
    """The true successors, also at the end of an episode."""
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    real: np.ndarray
    """False where the step was no transition: the copy was left out, or the step reset it."""
    diverged: np.ndarray
    """True where a simulator reported that its state is no longer valid."""
    figures: np.ndarray
    """Entries of the infos that were asked for, one column for each; NaN where they are missing."""


class AbstractVector(abc.ABC):
    """Copies of an environment that are stepped together."""

    count: int
    """Number of copies."""
    observations: np.ndarray
    """One row per copy: what the policy acts on next."""
    rests: bool = False
    """Whether copies can be left out of a step."""
    resets_itself: bool = False
    """Whether a finished copy resets itself, from a seed that the vector chooses."""

    @abc.abstractmethod
    def reset(self, seeds: Sequence[int]) -> None:
        """Begin an episode in every copy, each from its seed."""

    @abc.abstractmethod
    def step(self, actions: np.ndarray, moving: np.ndarray) -> Stepped:
        """Step the copies where `moving` is true, or all copies if none can be left out.

        Args:
            actions: one row per copy, as the policy drew them.
            moving: one flag per copy.
        """

    @abc.abstractmethod
    def restart(self, which: np.ndarray, seeds: Callable[[int], int]) -> None:
        """Begin an episode in the copies where `which` is true.

        Args:
            which: one flag per copy.
            seeds: the function from the number of a copy to its seed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Free what the copies hold."""


def close_all(resources: Iterable[Any]) -> None:
    """Call `close` of every resource; failures become one warning, so that results are not lost."""
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
    """Copies in this process, stepped one after another.

    Args:
        make: makes the copy of a number.
        copies: their numbers.
    """

    rests = True

    def __init__(self, make: Callable[[int], Checked], copies: Sequence[int]):
        self.count = len(copies)
        self._envs: list[Checked] = []
        try:
            for copy in copies:
                self._envs.append(make(copy))
        except BaseException:
            self.close()
            raise
        self._decode = decoder(self._envs[0].action_space)
        self.observations = np.zeros((self.count, self._envs[0].size), np.float32)

    def reset(self, seeds):
        for i, env in enumerate(self._envs):
            self.observations[i], _ = env.reset(seed=seeds[i])

    def step(self, actions, moving):
        decoded = self._decode(actions)
        rewards = np.zeros(self.count, np.float32)
        terminated, truncated, diverged = np.zeros((3, self.count), bool)
        keywords = self._envs[0].keywords
        figures = np.full((self.count, len(keywords)), np.nan, np.float32)
        for i in np.flatnonzero(moving).tolist():
            row, rewards[i], terminated[i], truncated[i], info = self._envs[i].step(decoded[i])
            self.observations[i] = row
            diverged[i] = info["diverged"]
            figures[i] = [info[keyword] for keyword in keywords]
        return Stepped(
            observations=self.observations.copy(),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            real=moving.copy(),
            diverged=diverged,
            figures=figures,
        )

    def restart(self, which, seeds):
        for i in np.flatnonzero(which).tolist():
            self.observations[i], _ = self._envs[i].reset(seed=seeds(i))

    def check_time(self, limit: float) -> None:
        """Raise if a copy, in another thread, takes longer than `limit` seconds for a step."""
        for env in self._envs:
            env.check_time(limit)

    def close(self):
        close_all(self._envs)


class GymVector(AbstractVector):
    """A vector that follows Gymnasium's `VectorEnv`, in any of its modes of resetting.

    Args:
        vector: the vector, whose `metadata["autoreset_mode"]` says how it resets.
        name: of the environment, for error messages.
        seeded: whether the vector got its seeds at construction and takes none at a reset.
        keywords: entries of its infos that are reported.
        timeout: seconds after which a step or a reset in worker processes is given up; None for
            never.
    """

    def __init__(
        self,
        vector: Any,
        name: str,
        *,
        seeded: bool = False,
        keywords: tuple[str, ...] = (),
        timeout: float | None = None,
    ):
        self._vector = vector
        self._name = name
        self._steps = 0
        self._keywords = keywords
        self._timeout = timeout
        self.count = vector.num_envs
        self._quietly = quiet if isinstance(vector, AsyncVectorEnv) else contextlib.nullcontext
        self._mode = vector.metadata.get("autoreset_mode")
        if self._mode not in tuple(AutoresetMode):
            raise ValueError(
                f"{name} does not say in metadata['autoreset_mode'] how it resets; "
                "set it to one of gymnasium.vector.AutoresetMode."
            )
        self._seeded = seeded
        self.resets_itself = self._mode != AutoresetMode.DISABLED
        self._decode = decoder(vector.single_action_space)
        self._space = vector.observation_space
        space = vector.single_observation_space
        # Arrays of numbers are copied for all copies at once, other spaces row by row.
        self._flat = isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary)
        self._size, self._encode = encoder(space)
        self.observations = np.zeros((self.count, self._size), np.float32)
        # In mode NEXT_STEP: copies whose next step resets them instead of taking an action.
        self._resetting = np.zeros(self.count, bool)

    def reset(self, seeds):
        seeded = {} if self._seeded else dict(seed=list(seeds))
        self.observations = self._first_rows(seeded)
        self._resetting[:] = False

    def _first_rows(self, settings: dict[str, Any]) -> np.ndarray:
        returned = self._call("reset", settings)
        if not isinstance(returned, tuple) or len(returned) != 2:
            self._fail(
                "reset",
                f"returned {length_or_type(returned)} and not a pair of observations and infos",
            )
        return self._rows("reset", returned[0])

    def step(self, actions, moving):
        self._steps += 1
        returned = self._call("step", dict(actions=self._decode(actions)))
        if not isinstance(returned, tuple) or len(returned) != 5:
            self._fail(
                "step",
                f"returned {length_or_type(returned)} "
                "and not observations, rewards, terminated, truncated, infos",
            )
        observations, rewards, terminated, truncated, infos = returned
        terminated = self._of_each("terminated", terminated, bool)
        truncated = self._of_each("truncated", truncated, bool)
        rewards = self._of_each("rewards", rewards, float)
        successors = self._rows("step", observations)
        self.observations = successors.copy()
        ended = terminated | truncated
        real = ~self._resetting
        if self._mode == AutoresetMode.SAME_STEP:
            # `observations` already begin the next episode; the true successor is in the infos.
            for i in np.flatnonzero(ended):
                try:
                    final = infos["final_obs"][i]
                except (KeyError, IndexError, TypeError):
                    self._fail(
                        "step",
                        f"ended copy {i} without its last observation in infos['final_obs'], "
                        "as SAME_STEP resets need",
                    )
                self._row("step", final, successors[i])
        if self._mode == AutoresetMode.NEXT_STEP:
            self._resetting = ended & real
        # Written so that NaN, which is not less than anything, counts as wrong.
        wrong = ~(np.abs(np.where(real, rewards, 0)) <= LARGEST)
        if wrong.any():
            copy = np.flatnonzero(wrong)[0]
            self._fail(
                "step",
                f"returned the reward {rewards[copy]} in copy {copy}, "
                "which is not finite in single precision",
            )
        diverged = np.zeros(self.count, bool)
        if isinstance(infos, dict):
            diverged = np.asarray(infos.get("diverged", diverged), bool)
        return Stepped(
            observations=successors,
            rewards=np.where(real, rewards, 0).astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            real=real & moving,
            diverged=diverged,
            figures=self._figures(infos),
        )

    def _figures(self, infos: Any) -> np.ndarray:
        """The entries of the infos that were asked for; those of the episode that has ended, where
        the vector has begun the next one already."""
        figures = np.full((self.count, len(self._keywords)), np.nan, np.float32)
        for source in (infos, infos.get("final_info")) if isinstance(infos, dict) else ():
            for column, keyword in enumerate(self._keywords):
                if isinstance(source, dict) and keyword in source:
                    values = self._of_each(f"info[{keyword!r}]", source[keyword], float)
                    there = np.asarray(source.get(f"_{keyword}", np.ones(self.count, bool)))
                    figures[there, column] = values[there]
        return figures

    def _of_each(self, field: str, values: Any, kind: type) -> np.ndarray:
        """`values` as an array with one number or flag per copy."""
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
                f"returned {field} of shape {array.shape} "
                f"and not one for each of {self.count} copies",
            )
        return array

    def restart(self, which, seeds):
        if self.resets_itself:
            return
        chosen = [seeds(i) if which[i] else None for i in range(self.count)]
        rows = self._first_rows(dict(seed=chosen, options={"reset_mask": which.copy()}))
        self.observations[which] = rows[which]

    def close(self):
        if not isinstance(self._vector, AsyncVectorEnv):
            self._vector.close()
            return
        # Gymnasium's `close` asks the workers to finish, and would wait for one that hangs.
        for process, pipe in zip(self._vector.processes, self._vector.parent_pipes, strict=True):
            process.kill()
            process.join()
            if pipe is not None:
                pipe.close()
        self._vector.closed = True

    def _call(self, method: str, arguments: dict[str, Any]) -> Any:
        """What the vector's `step` or `reset` returns."""
        try:
            with self._quietly():
                if self._timeout is None:
                    return getattr(self._vector, method)(**arguments)
                getattr(self._vector, f"{method}_async")(**arguments)
                return getattr(self._vector, f"{method}_wait")(timeout=self._timeout)
        except EnvironmentFailure:
            raise
        except multiprocessing.TimeoutError as error:
            raise EnvironmentFailure(
                f"{self._name}, step {self._steps}: {method} took longer than step_timeout="
                f"{self._timeout:g} seconds."
            ) from error
        except (EOFError, BrokenPipeError, ConnectionError) as error:
            raise EnvironmentFailure(
                f"{self._name}, step {self._steps}: a worker process died during {method}."
            ) from error
        except Exception as error:
            raise EnvironmentFailure(
                f"{self._name}, step {self._steps}: {method} raised {described(error)}."
            ) from error

    def _rows(self, method: str, observations: Any) -> np.ndarray:
        """The observations of all copies, flattened and checked, in a new array."""
        rows = np.empty((self.count, self._size), np.float32)
        if self._flat and np.shape(observations) == self._space.shape:
            rows[:] = np.reshape(observations, (self.count, -1))
            if not np.isfinite(rows).all():
                copy, number = np.argwhere(~np.isfinite(rows))[0]
                self._fail(
                    method,
                    "gave back an observation that is not finite: "
                    f"number {number} of copy {copy} is {rows[copy, number]}",
                )
            return rows
        for row, observation in zip(rows, iterate(self._space, observations), strict=True):
            self._row(method, observation, row)
        return rows

    def _row(self, method: str, observation: Any, row: np.ndarray) -> None:
        problem = write_row(self._encode, observation, row)
        if problem:
            self._fail(method, problem)

    def _fail(self, method: str, what: str) -> NoReturn:
        raise EnvironmentFailure(f"{self._name}, step {self._steps}: {method} {what}.")
