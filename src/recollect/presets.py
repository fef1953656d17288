"""Tuned settings of every algorithm on the environments that people try first."""

import dataclasses

from recollect.algorithms import ALGORITHMS, AbstractAlgorithm
from recollect.checks import check_name
from recollect.collect import AbstractCollector, Episodes, Steps
from recollect.defaults import Architecture


@dataclasses.dataclass(frozen=True)
class Preset:
    """All that `train` needs beside the environment."""

    algorithm: AbstractAlgorithm
    collector: AbstractCollector
    policy: Architecture = dataclasses.field(default_factory=Architecture)


PRESETS: dict[str, dict[str, Preset]] = {}


def preset(algorithm: str, env: str) -> Preset:
    """The tuned settings of a named algorithm on a named environment; its sensible defaults where nothing has been tuned."""
    check_name("algorithm", algorithm, ALGORITHMS)
    tuned = PRESETS.get(env, {}).get(algorithm)
    return default_preset(algorithm) if tuned is None else tuned


def default_preset(algorithm: str) -> Preset:
    """The defaults of a named algorithm: the paper's four whole trajectories, or fixed steps where a critic bootstraps."""
    settings = ALGORITHMS[algorithm]()
    bootstraps = settings.advantages.baseline == "critic"
    return Preset(settings, Steps(8, 64) if bootstraps else Episodes(4))
