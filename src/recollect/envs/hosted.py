"""Environments outside the compiled program: any that follows Gymnasium's API.

They come by name, as a function that makes one copy, or as a vector of copies, and are stepped on
the host as one vector (`vectors`). The collector (`collect_host`) keeps track of time limits,
boundaries between episodes and returns.
"""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator, registry
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit

from recollect.checks import check_name, check_number
from recollect.envs.base import Actions, check_max_steps
from recollect.envs.checked import Checked, EnvironmentFailure, described, simulated_by_mujoco
from recollect.envs.core_vector import CoreVector
from recollect.envs.spaces import actions_of, encoder
from recollect.envs.vectors import AbstractVector, GymVector, LocalVector, close_all, quiet
from recollect.runtime import cores
from recollect.settings import checked

Engine = Literal["auto", "compiled", "gymnasium", "envpool"]
ENGINES = get_args(Engine)
SAFE_PATH = "PYTHONSAFEPATH"
"""If set, Python does not put the current directory on its module search path."""


@dataclasses.dataclass(frozen=True)
class HostEnv:
    """An environment that is stepped in Python. Make one with `host` or `make`.

    It is a description; `open` makes the copies that are stepped.
    """

    name: str
    factory: Callable[[], gym.Env] | None
    """Makes one copy; None with a `vector` or with `envpool`."""
    observation_space: gym.Space
    action_space: gym.Space
    max_steps: int | None
    """Steps after which an episode is truncated; None for no limit."""
    workers: bool = False
    """Whether every copy runs in its own process."""
    vector: VectorEnv | None = None
    """Instead of a factory, a vector of copies that the user has made."""
    envpool: str | None = None
    """Instead of a factory, EnvPool's name for the environment."""
    limited: bool = False
    """Whether `max_steps` was given by the user, so that the collector has to truncate episodes. It
    is false for EnvPool, which is told the limit and truncates them itself."""
    on_cores: bool = False
    """Whether a process for each core steps its share of the copies."""
    info_keywords: tuple[str, ...] = ()
    """Entries of the infos at the ends of episodes that become curves."""
    step_timeout: float | None = None
    """Seconds after which a step in a worker process is given up."""

    def __post_init__(self):
        if self.observation_size == 0:
            raise ValueError(
                f"{self.name} has the observation space {self.observation_space!r:.60}, "
                "which has no numbers, and a policy needs at least one; "
                "give it a constant, as in Box(0, 1, (1,))."
            )

    @property
    def observation_size(self) -> int:
        """Length of the vector that an observation is flattened to."""
        return encoder(self.observation_space)[0]

    @property
    def actions(self) -> Actions:
        """The kind of action that the environment takes."""
        return actions_of(self.action_space)

    def make_checked(self, copy: int) -> Checked:
        """Make copy number `copy`, wrapped so that everything it returns is checked."""
        assert self.factory is not None
        with warnings.catch_warnings():
            # The copy that was made to look at its spaces has said what is deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            env = _made(self.name, self.factory)
        if env.observation_space != self.observation_space or env.action_space != self.action_space:
            raise EnvironmentFailure(
                f"copy {copy} of {self.name} has other spaces than the first; "
                "every copy must have the same."
            )
        return Checked(env, self.name, copy, self.info_keywords)

    def by_value(self) -> "HostEnv":
        """The same for processes that do not know its name, or cannot import what makes it."""
        if not isinstance(self.factory, _ById):
            return self
        return dataclasses.replace(self, factory=self.factory.by_value())

    def open(self, count: int, seed: int, first: int = 0) -> AbstractVector:
        """Make the copies as one vector, which the caller has to close.

        Args:
            count: number of copies.
            seed: for EnvPool, which takes seeds only at construction. Other vectors are seeded
                when they are reset.
            first: what error messages call the first copy.
        """
        if self.vector is not None:
            if self.vector.num_envs != count:
                raise ValueError(
                    f"{self.name} is a vector of {self.vector.num_envs} copies, "
                    f"but seeds times copies asks for {count}."
                )
            if getattr(self.vector, "closed", False):
                raise ValueError(f"{self.name} is a vector that has been closed; make a new one.")
            return GymVector(self.vector, self.name, keywords=self.info_keywords)
        if self.envpool is not None:
            pool = _envpool(self.envpool, count, seed, self.max_steps)
            return GymVector(pool, self.name, seeded=True, keywords=self.info_keywords)
        if not self.workers:
            if self.on_cores and min(cores(), count) > 1:
                return CoreVector(self.make_checked, count)
            return LocalVector(self.make_checked, range(first, first + count))
        safe_path = os.environ.get(SAFE_PATH)
        makers = [_Maker(self, copy, os.getpid(), safe_path) for copy in range(count)]
        mode = AutoresetMode.DISABLED
        try:
            # Spawned rather than forked: JAX's threads do not survive a fork.
            with quiet(), _safe_path():
                vector = AsyncVectorEnv(makers, context="spawn", autoreset_mode=mode, daemon=True)
        except (EOFError, BrokenPipeError, ConnectionError) as error:
            raise EnvironmentFailure(
                f"{self.name}: a worker process died at its start; likely the script has no "
                "if __name__ == '__main__': around what it runs, so that every worker runs it, too."
            ) from error
        return GymVector(vector, self.name, keywords=self.info_keywords, timeout=self.step_timeout)


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """A context in which new processes do not look for modules in the current directory.

    Otherwise a file there named like a module of the standard library would be run by the worker
    before its own code. Once it runs, a spawned worker gets the module search path of this process,
    which has the current directory only if the user put it there.
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
    """Makes one copy in a worker process; it is pickled and sent there."""

    env: HostEnv
    copy: int
    process: int
    """Id of the process that starts the workers. It calls one maker itself, to see the spaces."""
    safe_path: str | None
    """The user's own setting, restored in the worker for processes that the environment starts."""

    def __call__(self) -> Checked:
        if os.getpid() != self.process:
            _set_safe_path(self.safe_path)
        return self.env.make_checked(self.copy)


@checked
def host(
    source: Any,
    *,
    name: str | None = None,
    max_steps: int | None = None,
    workers: bool = False,
    info_keywords: tuple[str, ...] = (),
    step_timeout: float | None = None,
) -> HostEnv:
    """Use an environment of your own that follows Gymnasium's API.

    Args:
        source: a function that makes one copy, such as `lambda: MyEnv()`, or a vector of copies
            (`gymnasium.vector.VectorEnv`).
        name: what error messages call the environment; by default the name of its class.
        max_steps: truncate episodes after this many steps; by default the environment's own limit.
        workers: run every copy in its own process, which pays for slow environments.
        info_keywords: entries of the infos, such as `is_success`, whose values at the ends of
            episodes become curves, `rollout/is_success`.
        step_timeout: with `workers`, seconds after which a step that does not end is a failure;
            actors of `train(..., on=)` keep it, too.

    Returns:
        A description of the environment, with one copy made and closed to look at its spaces.

    Raises:
        ValueError: if the spaces are not supported or an argument is wrong.
        EnvironmentFailure: if the environment cannot be made.

    Example:
        >>> import gymnasium as gym
        >>> from recollect import host
        >>> env = host(lambda: gym.make("Pendulum-v1"), max_steps=50)
        >>> env.name, env.observation_size, env.max_steps
        ('PendulumEnv', 3, 50)
    """
    if max_steps is not None:
        check_max_steps(max_steps)
    if step_timeout is not None:
        remedy = "give the seconds that a step may take"
        check_number("step_timeout", step_timeout, low=0, open_low=True, remedy=remedy)
        if not workers:
            raise ValueError(
                f"step_timeout={step_timeout:g} needs workers=True: only a process of its own can "
                "be ended."
            )
    if isinstance(source, gym.Env):
        kind = type(source.unwrapped).__name__
        raise ValueError(
            f"{kind} is one environment, and several copies are needed; "
            f"give a function that makes one, such as lambda: {kind}()."
        )
    if isinstance(source, VectorEnv):
        if workers:
            raise ValueError(
                "workers=True needs a function that makes one copy, "
                "not a vector that exists already; leave it out."
            )
        first: Any = source
        observation_space = source.single_observation_space
        action_space = source.single_action_space
    else:
        first = _made(name or "the environment", source)
        observation_space = first.observation_space
        action_space = first.action_space
        close_all([first])
    # Both raise if the space is not supported.
    encoder(observation_space)
    actions_of(action_space)
    own_limit = _time_limit(first)
    if own_limit is not None:
        check_max_steps(own_limit)
    return HostEnv(
        name=name or type(first.unwrapped).__name__,
        factory=None if isinstance(source, VectorEnv) else source,
        observation_space=observation_space,
        action_space=action_space,
        max_steps=max_steps or own_limit,
        workers=workers,
        vector=source if isinstance(source, VectorEnv) else None,
        limited=max_steps is not None,
        on_cores=not isinstance(source, VectorEnv) and _worth_a_process(source, first),
        info_keywords=info_keywords,
        step_timeout=step_timeout,
    )


@checked
def host_by_name(
    name: str,
    engine: str,
    max_steps: int | None = None,
    workers: bool = False,
    info_keywords: tuple[str, ...] = (),
    step_timeout: float | None = None,
) -> HostEnv:
    """The environment that Gymnasium or EnvPool knows by `name`.

    Args:
        name: id of the environment.
        engine: `gymnasium` or `envpool`.
        max_steps: as in `host`.
        workers: as in `host`; not for EnvPool, which has its own threads.
        info_keywords, step_timeout: as in `host`; the latter not for EnvPool.
    """
    if engine == "envpool":
        if workers or step_timeout is not None:
            raise ValueError(
                "workers=True and step_timeout are for engine='gymnasium'; EnvPool has threads of "
                "its own."
            )
        probe = _envpool(name, 1, 0, max_steps)
        observation_space = probe.single_observation_space
        action_space = probe.single_action_space
        limit = max_steps or probe.spec.config.max_episode_steps
        close_all([probe])
        return HostEnv(
            name,
            None,
            observation_space,
            action_space,
            limit,
            envpool=name,
            info_keywords=info_keywords,
        )
    if name not in gym.registry and ":" not in name:
        check_name("env", name, (), gym.registry, "the names that Gymnasium knows")
    return host(
        _ById(name, max_steps),
        name=name,
        max_steps=max_steps,
        workers=workers,
        info_keywords=info_keywords,
        step_timeout=step_timeout,
    )


def _worth_a_process(source: Any, env: gym.Env) -> bool:
    """Whether copies are stepped in a process for each core, unasked.

    Only what comes with Gymnasium is sure to be made there as it is here, and only MuJoCo's steps
    take long enough.
    """
    ours = env.spec is not None and str(env.spec.entry_point).startswith("gymnasium.")
    return isinstance(source, _ById) and ours and simulated_by_mujoco(env)


@dataclasses.dataclass(frozen=True)
class _ById:
    """Makes the environment that Gymnasium registers under `name`."""

    name: str | EnvSpec
    max_steps: int | None

    def by_value(self) -> "_ById":
        """The same with what is registered in place of the name, and the class in place of its own.

        A class of a script or of a file beside it travels itself (`machines.packing`).
        """
        spec = registry.get(str(self.name).rpartition(":")[2])
        if spec is None or spec.entry_point is None:  # Gymnasium finds a version by itself
            return self
        creator = spec.entry_point
        if isinstance(creator, str):
            creator = load_env_creator(creator)
        return dataclasses.replace(self, name=dataclasses.replace(spec, entry_point=creator))

    def __call__(self) -> gym.Env:
        # Gymnasium's checker looks at the first step only; `Checked` looks at every one.
        return gym.make(self.name, max_episode_steps=self.max_steps, disable_env_checker=True)


def _time_limit(env: Any) -> int | None:
    """Steps after which an environment or a vector truncates episodes by itself, if it does."""
    limits = [] if env.spec is None else [env.spec.max_episode_steps]
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min((limit for limit in limits if limit is not None), default=None)


def _made(name: str, factory: Callable[[], gym.Env]) -> gym.Env:
    """A copy from the factory, with an error that says what is wrong if there is none."""
    if not callable(factory):
        raise ValueError(
            f"env={factory!r} is neither an environment nor a function that makes one; "
            "give for example lambda: gymnasium.make('Hopper-v5')."
        )
    try:
        env = factory()
    except DependencyNotInstalled as error:
        remedy = str(error).rstrip(".")
        if "mujoco" in remedy.lower():
            remedy = "pip install 'gymnasium[mujoco]'"
        raise ValueError(f"{name} needs a package that is not installed; {remedy}.") from error
    except Exception as error:
        raise EnvironmentFailure(f"{name} cannot be made: {described(error)}.") from error
    if not isinstance(env, gym.Env):
        raise ValueError(
            f"{name}: the function made a {type(env).__name__}, "
            "which is not a gymnasium.Env; subclass it."
        )
    for field in ("observation_space", "action_space"):
        if not isinstance(getattr(env, field, None), gym.Space):
            raise ValueError(
                f"{name} has no observation_space or no action_space; set both in its constructor."
            )
    return env


def _envpool(name: str, count: int, seed: int, max_steps: int | None) -> Any:
    """EnvPool's vector of `count` copies."""
    try:
        import envpool  # pyright: ignore[reportMissingImports]  an extra that few install
    except ImportError:
        raise ValueError(
            "engine='envpool' needs a package that is not installed; "
            "pip install 'recollect[envpool]'."
        ) from None
    check_name("env", name, (), envpool.list_all_envs(), "the names that EnvPool knows")
    limit = {} if max_steps is None else dict(max_episode_steps=max_steps)
    # EnvPool's seeds are signed 32-bit numbers.
    return envpool.make_gymnasium(name, num_envs=count, seed=seed % 2**31, **limit)
