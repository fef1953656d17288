"""Any environment that follows Gymnasium's API, by name, as a function or vectorised.

It is stepped on the host as one vector of copies (`vectors`). Time limits, boundaries between episodes and returns are counted by the
collector (`collect_host`).
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import gymnasium as gym
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from recollect.checks import check_name
from recollect.envs.base import Actions, check_max_steps
from recollect.envs.spaces import actions_of, encoder
from recollect.envs.vectors import (
    AbstractVector,
    Checked,
    EnvironmentFailure,
    GymVector,
    LocalVector,
    close_all,
    described,
    quiet,
)

Engine = Literal["auto", "compiled", "gymnasium", "envpool"]
ENGINES = get_args(Engine)
SAFE_PATH = "PYTHONSAFEPATH"


@dataclasses.dataclass(frozen=True)
class HostEnv:
    """An environment outside the compiled program; make one with `host` or `make`."""

    name: str
    factory: Callable[[], gym.Env] | None
    """Makes one copy."""
    observation_space: gym.Space
    action_space: gym.Space
    max_steps: int | None
    """Steps after which an episode is cut; None for no limit."""
    workers: bool = False
    """Every copy in a process of its own."""
    vector: VectorEnv | None = None
    """Instead of a factory, copies that someone else has made."""
    envpool: str | None = None
    """Instead of a factory, EnvPool's name of the environment."""
    limited: bool = False
    """Whether `max_steps` is a limit of ours, rather than the environment's own."""

    def __post_init__(self):
        if self.observation_size == 0:
            raise ValueError(
                f"{self.name} has the observation space {self.observation_space!r:.60}, which has no "
                "numbers, and a policy needs at least one; give it a constant, as in Box(0, 1, (1,))."
            )

    @property
    def observation_size(self) -> int:
        return encoder(self.observation_space)[0]

    @property
    def actions(self) -> Actions:
        return actions_of(self.action_space)

    def make_checked(self, copy: int) -> Checked:
        assert self.factory is not None
        env = _made(self.name, self.factory)
        if env.observation_space != self.observation_space or env.action_space != self.action_space:
            raise EnvironmentFailure(
                f"copy {copy} of {self.name} has other spaces than the first; every copy must have the same."
            )
        return Checked(env, self.name, copy)

    def open(self, count: int, seed: int) -> AbstractVector:
        """`count` copies, to be closed by the caller; `seed` is for vectors that seed themselves."""
        if self.vector is not None:
            if self.vector.num_envs != count:
                raise ValueError(
                    f"{self.name} is a vector of {self.vector.num_envs} copies, but seeds times copies asks for {count}."
                )
            if getattr(self.vector, "closed", False):
                raise ValueError(
                    f"{self.name} is a vector that has been closed, as training does at its end; make a new one."
                )
            return GymVector(self.vector, self.name)
        if self.envpool is not None:
            return GymVector(
                _envpool(self.envpool, count, seed, self.max_steps), self.name, seeded=True
            )
        if not self.workers:
            return LocalVector([self.make_checked(copy) for copy in range(count)])
        safe_path = os.environ.get(SAFE_PATH)
        makers = [_Maker(self, copy, os.getpid(), safe_path) for copy in range(count)]
        style = AutoresetMode.DISABLED
        try:
            # Started afresh rather than forked: threads of JAX do not survive a fork.
            with quiet(), _safe_path():
                vector = AsyncVectorEnv(makers, context="spawn", autoreset_mode=style, daemon=True)
        except (EOFError, BrokenPipeError, ConnectionError) as error:
            raise EnvironmentFailure(
                f"{self.name}: a worker process died at its start; likely the script has no "
                "if __name__ == '__main__': around what it runs, so that every worker runs it, too."
            ) from error
        return GymVector(vector, self.name)


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Processes started within do not look for modules in the current directory.

    Once at work they get the path of this process, which has it only where the user put it there.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        _set_safe_path(before)


def _set_safe_path(value: str | None) -> None:
    os.environ.pop(SAFE_PATH, None)
    if value is not None:
        os.environ[SAFE_PATH] = value


@dataclasses.dataclass(frozen=True)
class _Maker:
    """What a worker process is sent."""

    env: HostEnv
    copy: int
    process: int
    """That which makes the workers, and one copy to look at."""
    safe_path: str | None
    """What the user has set, for processes that the environment may start."""

    def __call__(self) -> Checked:
        if os.getpid() != self.process:
            _set_safe_path(self.safe_path)
        return self.env.make_checked(self.copy)


def host(
    source: Any, *, name: str | None = None, max_steps: int | None = None, workers: bool = False
) -> HostEnv:
    """An environment of your own: a function that makes one copy, or a vector of copies.

    Args:
        source: for example `lambda: MyEnv()`.
        name: what messages call it.
        max_steps: cut episodes after this many steps; the environment's own limit if not given.
        workers: run every copy in a process of its own, for environments that are slow.
    """
    if max_steps is not None:
        check_max_steps(max_steps)
    if isinstance(source, gym.Env):
        raise ValueError(
            f"{type(source.unwrapped).__name__} is one environment, and several copies are needed; give a function that makes one, "
            f"such as lambda: {type(source.unwrapped).__name__}()."
        )
    if isinstance(source, VectorEnv):
        if workers:
            raise ValueError(
                "workers=True needs a function that makes one copy, not a vector that exists already; leave it out."
            )
        first: Any = source
        observations, actions = source.single_observation_space, source.single_action_space
    else:
        first = _made(name or "the environment", source)
        observations, actions = first.observation_space, first.action_space
        close_all([first])
    encoder(observations)
    actions_of(actions)
    own = None if first.spec is None else first.spec.max_episode_steps
    if own is not None:
        check_max_steps(own)
    return HostEnv(
        name=name or type(first.unwrapped).__name__,
        factory=None if isinstance(source, VectorEnv) else source,
        observation_space=observations,
        action_space=actions,
        max_steps=max_steps or own,
        workers=workers,
        vector=source if isinstance(source, VectorEnv) else None,
        limited=max_steps is not None,
    )


def host_by_name(
    name: str, engine: str, max_steps: int | None = None, workers: bool = False
) -> HostEnv:
    """The environment that Gymnasium or EnvPool knows by `name`."""
    if engine == "envpool":
        if workers:
            raise ValueError(
                "workers=True is for engine='gymnasium'; EnvPool has threads of its own."
            )
        probe = _envpool(name, 1, 0, max_steps)
        spaces, limit = (
            (probe.single_observation_space, probe.single_action_space),
            max_steps or probe.spec.config.max_episode_steps,
        )
        close_all([probe])
        return HostEnv(name, None, *spaces, limit, envpool=name)
    if name not in gym.registry and ":" not in name:
        check_name("env", name, (), gym.registry, "the names that Gymnasium knows")
    return host(_ById(name, max_steps), name=name, max_steps=max_steps, workers=workers)


@dataclasses.dataclass(frozen=True)
class _ById:
    name: str
    max_steps: int | None

    def __call__(self) -> gym.Env:
        # Its checker looks at the first step only, and we look at every one.
        return gym.make(self.name, max_episode_steps=self.max_steps, disable_env_checker=True)


def _made(name: str, factory: Callable[[], gym.Env]) -> gym.Env:
    try:
        env = factory()
    except DependencyNotInstalled as error:
        extra = (
            "pip install 'recollect[mujoco]'"
            if "mujoco" in str(error).lower()
            else str(error).rstrip(".")
        )
        raise ValueError(f"{name} needs a package that is not installed; {extra}.") from error
    except Exception as error:
        raise EnvironmentFailure(f"{name} cannot be made: {described(error)}.") from error
    if not isinstance(env, gym.Env):
        raise ValueError(
            f"{name}: the function made a {type(env).__name__}, which is not a gymnasium.Env; subclass it."
        )
    if not isinstance(getattr(env, "observation_space", None), gym.Space) or not isinstance(
        getattr(env, "action_space", None), gym.Space
    ):
        raise ValueError(
            f"{name} has no observation_space or no action_space; set both in its constructor."
        )
    return env


def _envpool(name: str, count: int, seed: int, max_steps: int | None) -> Any:
    try:
        import envpool  # pyright: ignore[reportMissingImports]  an extra that few install
    except ImportError:
        raise ValueError(
            "engine='envpool' needs a package that is not installed; pip install 'recollect[envpool]'."
        ) from None
    check_name("env", name, (), envpool.list_all_envs(), "the names that EnvPool knows")
    return envpool.make_gymnasium(
        name,
        num_envs=count,
        seed=seed % 2**31,
        **({} if max_steps is None else dict(max_episode_steps=max_steps)),
    )
