"""What a run depends on beside its limits, checked, and as JSON that the run can be repeated from.

Everything that the library offers is written down: the environment by the arguments of `make`, the
algorithm with its rules, the collector and the architecture by their fields. What a file cannot
hold (an environment, a network or an Optax transformation of one's own) is recorded by name and has
to be given again.
"""

import dataclasses
import inspect
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from recollect.algorithms import ALGORITHMS, AbstractAlgorithm
from recollect.checks import check_count, shown
from recollect.collect.compiled import Episodes, Steps
from recollect.collect.rollout import AbstractCollector
from recollect.envs import AbstractEnv, AbstractOracle, EnvSettings, HostEnv, host
from recollect.policies.architecture import Architecture, InitialPolicy, env_name
from recollect.run.fit import check_draws, check_fit, check_memory
from recollect.run.presets import Preset, default_collector, preset, settings_for
from recollect.serial import OBJECT, differences, from_plain, object_name, to_plain
from recollect.settings import Settings, check_type

MOST_SEEDS = 10**6
"""In one run."""
SEEDS = 2**32
"""How many there are."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """All that decides what a run computes, beside the moment at which it stops."""

    env: AbstractEnv | HostEnv
    algorithm: AbstractAlgorithm
    collector: AbstractCollector
    policy: InitialPolicy
    seeds: tuple[int, ...]
    lag: int = 0
    """Iterations that collecting runs ahead of learning."""
    made: EnvSettings | None = None
    """How the environment can be made again by name; None if only whoever gave it knows."""
    source: str | None = None
    """Where the settings come from: `"default"`, `"paper"`, the environment that they were tuned
    for, or None if they were given."""

    @classmethod
    def of(
        cls,
        env: Any,
        algorithm: AbstractAlgorithm | str,
        collector: AbstractCollector | None = None,
        policy: InitialPolicy = None,
        seeds: int | Sequence[int] = 1,
    ) -> "RunConfig":
        """The configuration that the arguments of `train` ask for.

        Raises:
            ValueError: if something does not fit; the sentence names it and the remedy.
        """
        made = EnvSettings(env) if isinstance(env, str) else env
        if isinstance(made, EnvSettings):
            env = made.make()
        else:
            made = None
            if isinstance(env, Settings) and not isinstance(env, AbstractEnv):
                raise ValueError(f"env={shown(env)} is no environment; give for example a name.")
            env = env if isinstance(env, AbstractEnv | HostEnv) else host(env)
        source = None
        seeds = check_seeds(seeds)
        given = collector is not None
        if isinstance(algorithm, str):
            exact = isinstance(env, AbstractOracle)
            source = "paper" if exact else settings_for(made.name if made else "default")
            chosen = shared_discount(preset(algorithm, source), env)
            algorithm = chosen.algorithm
            collector = collector if given else chosen.collector
            policy = chosen.policy if policy is None else policy
        algorithm = check_algorithm(algorithm)
        if collector is None:
            collector = default_collector(algorithm)
        if not given and isinstance(env, HostEnv) and env.vector is not None:
            collector = _of_copies(collector, env.vector.num_envs // len(seeds))
        return cls(env, algorithm, collector, policy, seeds, made=made, source=source)

    def __post_init__(self):
        check_type("collector", self.collector, AbstractCollector, Episodes(4))
        check_type("policy", self.policy, InitialPolicy)
        if isinstance(self.policy, Settings) and not isinstance(self.policy, Architecture):
            raise ValueError(f"policy={shown(self.policy)} is no policy; give an Architecture().")
        check_fit(self.env, self.algorithm, self.policy)
        check_draws(self.algorithm, self.collector)
        check_memory(self.env, self.algorithm, self.collector, len(self.seeds))

    @property
    def env_name(self) -> str:
        """What the environment is called."""
        return self.made.name if self.made else env_name(self.env)

    @property
    def algorithm_name(self) -> str:
        """What the algorithm is called: `rnpg` and `vnpg`, which differ in their window alone."""
        return name_of(type(self.algorithm).__name__, self.algorithm.window)

    def plain(self) -> dict[str, Any]:
        """In terms of JSON."""
        known = self.policy is None or isinstance(self.policy, Architecture)
        return {
            "env": to_plain(self.made) if self.made else {OBJECT: env_name(self.env)},
            "max_steps": self.env.max_steps,
            "algorithm": to_plain(self.algorithm),
            "collector": to_plain(self.collector),
            "policy": to_plain(self.policy) if known else {OBJECT: object_name(self.policy)},
            "seeds": list(self.seeds),
            "lag": self.lag,
            "source": self.source,
        }

    def changed(self) -> list[tuple[str, Any, Any]]:
        """Settings that differ from the defaults: name, default and what the run has."""
        usual = ALGORITHMS.get(self.algorithm_name)
        defaults = {
            "algorithm": to_plain(usual() if usual else self.algorithm),
            "collector": to_plain(default_collector(self.algorithm)),
            "policy": to_plain(Architecture()),
        }
        plain = self.plain()
        ours = {name: plain[name] for name in defaults}
        if self.policy is None:
            ours["policy"] = defaults["policy"]
        return list(differences(defaults, ours))

    @classmethod
    def from_plain(
        cls,
        plain: Any,
        env: Any = None,
        algorithm: AbstractAlgorithm | str | None = None,
        policy: InitialPolicy = None,
        use: Iterable[type] = (),
    ) -> "RunConfig":
        """The configuration that `plain` gave, with what no file can hold.

        Args:
            plain: what a file held.
            env: the environment, in any form that `train` takes; if not given, the one that the
                file names.
            algorithm: instead of the file's.
            policy: the same.
            use: classes of one's own that the file names.

        Raises:
            ValueError: if something is missing, unknown or does not fit.
        """
        fields = {"env", "algorithm", "collector", "policy", "seeds"}
        if not isinstance(plain, Mapping) or not fields <= plain.keys():
            raise ValueError(
                "the settings of a run lack env, algorithm, collector, policy or seeds."
            )
        kinds = known_kinds(use)
        read = lambda name: from_plain(plain[name], kinds, name)
        if env is None:
            env = read("env")
            if isinstance(env, EnvSettings) and ":" in env.name:
                # Making it would import a module, and a file may not decide which.
                raise ValueError(f"env was {env.name!r}, a module of your own; give it again.")
        chosen: Any = read("algorithm") if algorithm is None else algorithm
        policy = read("policy") if policy is None else policy
        config = cls.of(env, chosen, read("collector"), policy, read("seeds"))
        lag = plain.get("lag", 0)
        if not isinstance(lag, int) or lag < 0:
            raise ValueError(f"lag={lag!r} is no number of iterations.")
        return dataclasses.replace(config, lag=lag, source=plain.get("source"))


def name_of(kind: str, window: Any) -> str:
    """What an algorithm is called, by the name of its class and its window.

    Example:
        >>> from recollect.run.config import name_of
        >>> name_of("NPG", 1), name_of("NPG", 10), name_of("VMPO", 1)
        ('vnpg', 'rnpg', 'VMPO')
    """
    for name, make in ALGORITHMS.items():
        usual = make()
        if type(usual).__name__ == kind and (usual.window == 1) == (window == 1):
            return name
    return kind


def known_kinds(use: Iterable[type] = ()) -> dict[str, type]:
    """The classes that a file may name: those of the library, and those that are given."""
    found: dict[str, type] = {}
    waiting: list[type] = [Settings]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        final = dataclasses.is_dataclass(kind) and not inspect.isabstract(kind)
        if final and kind.__module__.startswith("recollect."):
            found[kind.__name__] = kind
    return found | {kind.__name__: kind for kind in use}


def shared_discount(chosen: Preset, env: AbstractEnv | HostEnv) -> Preset:
    """Settings with the discount of an environment that has one of its own."""
    if not isinstance(env, AbstractOracle):
        return chosen
    algorithm = dataclasses.replace(chosen.algorithm, discount=float(env.discount))
    return dataclasses.replace(chosen, algorithm=algorithm)


def _of_copies(collector: AbstractCollector, copies: int) -> AbstractCollector:
    """A collector of about as many steps that uses so many copies of the environment."""
    copies = max(copies, 1)
    if isinstance(collector, Steps):
        return Steps(copies, max(collector.copies * collector.steps // copies, 1))
    return Episodes(copies)


def check_algorithm(algorithm: Any) -> AbstractAlgorithm:
    """The algorithm; raises if it is none."""
    if isinstance(algorithm, AbstractAlgorithm):
        return algorithm
    if algorithm in ALGORITHMS.values() or (
        isinstance(algorithm, type) and issubclass(algorithm, AbstractAlgorithm)
    ):
        name = algorithm.__name__
        raise ValueError(f"algorithm={name} is not yet made; call it, for example {name}().")
    raise ValueError(
        f"algorithm={shown(algorithm)} is no algorithm; give for example RNPG(window=10), or "
        "'rnpg'."
    )


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds themselves; their number and they may be NumPy's."""
    remedy = "give how many seeds to run, or which"
    if isinstance(seeds, int | np.integer):
        check_count("seeds", seeds, remedy)
        if seeds > MOST_SEEDS:
            raise ValueError(f"seeds={seeds} are more than {MOST_SEEDS}; {remedy}.")
        return tuple(range(int(seeds)))
    try:
        chosen = tuple(operator.index(seed) for seed in seeds)
    except TypeError:
        raise ValueError(
            f"seeds={shown(seeds)} is neither a whole number nor several; {remedy}."
        ) from None
    if not chosen or min(chosen) < 0:
        raise ValueError(f"seeds={shown(seeds)} is empty or has a negative number; {remedy}.")
    if max(chosen) >= SEEDS:
        # Random keys are made of 32 bits: larger numbers would repeat smaller ones.
        raise ValueError(f"seeds={shown(seeds)} has a number of 2³² or more; {remedy}.")
    return chosen
