"""Environments by name: compiled ones of this library, and any that follows Gymnasium's API."""

import dataclasses
import importlib

import gymnasium as gym

from recollect.checks import check_name
from recollect.envs.acrobot import Acrobot
from recollect.envs.base import AbstractEnv, AbstractOracle, Actions, Step
from recollect.envs.cartpole import CartPole
from recollect.envs.checked import EnvironmentFailure
from recollect.envs.hosted import ENGINES, Engine, HostEnv, host, host_by_name
from recollect.envs.inverted_pendulum import InvertedPendulum
from recollect.envs.lqc import LQC
from recollect.envs.mdp_file import load_mdp
from recollect.envs.mountain_car import MountainCarContinuous
from recollect.envs.pendulum import Pendulum
from recollect.envs.tabular import Tabular, chain, garnet, gridworld
from recollect.settings import Settings, checked

ENVIRONMENTS = {
    "CartPole-v1": CartPole,
    "Acrobot-v1": Acrobot,
    "Pendulum-v1": Pendulum,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "InvertedPendulum-v5": InvertedPendulum,
    "LQC": LQC,
    "Chain": chain,
    "Gridworld": gridworld,
    "Garnet": garnet,
}
"""Constructor of each compiled environment. All take `max_steps`, the last four also `discount`."""

PACKAGES = {
    "ALE/": ("ale_py", "ale-py"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    "highway-": ("highway_env", "highway-env"),
}
"""Modules that register environments whose names begin so, and the packages that hold them."""


@checked
def make(
    name: str, *, engine: str = "auto", workers: bool = False, **settings
) -> AbstractEnv | HostEnv:
    """Make the environment called `name`.

    Args:
        name: a compiled environment (a key of `ENVIRONMENTS`), an id registered with Gymnasium or
            EnvPool, or the path of a file `NAME.npz` with a finite MDP (see `load_mdp`).
        engine: what steps the environment: `compiled`, `gymnasium` or `envpool`. `auto` takes the
            compiled version if there is one, else Gymnasium's.
        workers: run every copy of a Gymnasium environment in its own process.
        settings: passed to the environment: `max_steps`; for LQC and finite MDPs `discount`; for
            those on the host `info_keywords` and `step_timeout`, see `host`.

    Returns:
        An `AbstractEnv`, which is compiled together with the training loop, or a `HostEnv`, which
        is stepped in Python.

    Raises:
        ValueError: if the name or the engine is unknown.

    Example:
        >>> from recollect import make
        >>> env = make("CartPole-v1", max_steps=200)
        >>> type(env).__name__, env.max_steps, env.observation_size, str(env.actions)
        ('CartPole', 200, 4, 'one of 2 choices')
        >>> type(make("CartPole-v1", engine="gymnasium")).__name__
        'HostEnv'
    """
    check_name("engine", engine, ENGINES)
    compiled = engine == "compiled" or name.endswith(".npz")
    if compiled and workers:
        raise ValueError(
            f"workers=True is for environments of Gymnasium, and {name} would be compiled; leave "
            "it out, or choose engine='gymnasium'."
        )
    if name.endswith(".npz"):
        return load_mdp(name, **settings)
    if engine == "compiled" or (engine == "auto" and name in ENVIRONMENTS and not workers):
        check_name("env", name, ENVIRONMENTS)
        return ENVIRONMENTS[name](**settings)
    if engine in ("auto", "gymnasium"):
        _register(name)
    if engine == "auto" and name not in gym.registry and ":" not in name:
        check_name("env", name, ENVIRONMENTS, gym.registry, "and all that Gymnasium knows")
    return host_by_name(
        name, "gymnasium" if engine == "auto" else engine, workers=workers, **settings
    )


def _register(name: str) -> None:
    """Let Gymnasium know an environment of a package that only registers it when imported.

    Raises:
        ValueError: if that package is not installed.
    """
    for prefix, (module, package) in PACKAGES.items():
        if name.startswith(prefix) and name not in gym.registry:
            try:
                importlib.import_module(module)
            except ImportError:
                raise ValueError(
                    f"{name} needs a package that is not installed; pip install {package}."
                ) from None


@dataclasses.dataclass(frozen=True)
class EnvSettings(Settings):
    """The arguments of `make`: an environment in a form that can be written down.

    Example:
        >>> from recollect.envs import EnvSettings
        >>> EnvSettings("CartPole-v1", max_steps=200).make().max_steps
        200
    """

    name: str
    engine: Engine = "auto"
    workers: bool = False
    max_steps: int | None = None
    discount: float | None = None
    info_keywords: tuple[str, ...] = ()
    step_timeout: float | None = None

    def make(self) -> AbstractEnv | HostEnv:
        """The environment."""
        given = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("name", "engine", "workers")
        }
        settings = {name: value for name, value in given.items() if value not in (None, ())}
        return make(self.name, engine=self.engine, workers=self.workers, **settings)


__all__ = [
    "ENGINES",
    "ENVIRONMENTS",
    "LQC",
    "AbstractEnv",
    "AbstractOracle",
    "Acrobot",
    "Actions",
    "CartPole",
    "Engine",
    "EnvSettings",
    "EnvironmentFailure",
    "HostEnv",
    "InvertedPendulum",
    "MountainCarContinuous",
    "Pendulum",
    "Step",
    "Tabular",
    "chain",
    "garnet",
    "gridworld",
    "host",
    "load_mdp",
    "make",
]
