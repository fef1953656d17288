"""What tuning looks for: a range of each setting, with the reason for it.

Settings are numbers that scale arithmetic, which are traced: a program that was compiled for one
trial serves all others. Sizes of batches, networks and minibatches stay as they are. Two settings
that set shapes are worth it none the less. Of the window, trials use the newest part of one memory;
the number of epochs takes one of three values, whose programs are compiled once each.

Numbers are rounded to three digits, so that what is printed is what was tried.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from recollect.algorithms import AbstractAlgorithm
from recollect.envs import LQC, AbstractOracle
from recollect.estimate.shares import Uniform
from recollect.policies.architecture import Architecture
from recollect.run.config import RunConfig

DISTANCE = "1 - "
"""What Optuna's name of a setting begins with where it draws the distance to 1."""


class AbstractRange(abc.ABC):
    """Values that a setting may take. `trial` is Optuna's, or one of the same methods."""

    why: str
    """The reason, which help shows."""

    @abc.abstractmethod
    def suggest(self, trial: Any, name: str, start: Any) -> Any:
        """A value for a trial.

        Args:
            trial: that asks for one.
            name: of the setting.
            start: its value in the settings that the search starts from, always in the range.
        """

    def first(self, name: str, start: Any) -> dict[str, Any]:
        """What Optuna has to be told so that `suggest` gives `start`."""
        return {name: start}

    @abc.abstractmethod
    def described(self, start: Any) -> str:
        """The range in words."""


@dataclasses.dataclass(frozen=True)
class Between(AbstractRange):
    """Numbers from `low` to `high`, and `start` where that lies beyond.

    Example:
        >>> from recollect.agent.ranges import Between
        >>> Between(0.001, 1.0, "", log=True).described(2.0)
        '0.001 … 2, log'
    """

    low: float
    high: float
    why: str
    log: bool = False

    def suggest(self, trial, name, start):
        return _rounded(trial.suggest_float(name, *self._ends(start), log=self.log))

    def described(self, start):
        low, high = self._ends(start)
        return f"{low:g} … {high:g}{', log' if self.log else ''}"

    def _ends(self, start: Any) -> tuple[float, float]:
        return min(self.low, float(start)), max(self.high, float(start))


@dataclasses.dataclass(frozen=True)
class Around(AbstractRange):
    """A share of the start to a multiple of it, uniform in the logarithm.

    Example:
        >>> from recollect.agent.ranges import Around
        >>> Around(10.0, "").described(0.3)
        '0.03 … 3, log'
    """

    factor: float
    why: str

    def suggest(self, trial, name, start):
        low, high = self._ends(start)
        return _rounded(trial.suggest_float(name, low, high, log=True))

    def described(self, start):
        low, high = self._ends(start)
        return f"{low:g} … {high:g}, log"

    def _ends(self, start: Any) -> tuple[float, float]:
        return float(start) / self.factor, float(start) * self.factor


@dataclasses.dataclass(frozen=True)
class BelowOne(AbstractRange):
    """Numbers whose distance to one is uniform in the logarithm, from `near` to `far`.

    Example:
        >>> from recollect.agent.ranges import BelowOne
        >>> BelowOne(0.003, 0.1, "").described(0.99)
        '0.9 … 0.997, log of the distance to 1'
    """

    near: float
    far: float
    why: str

    def suggest(self, trial, name, start):
        near, far = self._ends(start)
        distance = trial.suggest_float(DISTANCE + name, near, far, log=True)
        return float(f"{1 - _rounded(distance):.6g}")

    def first(self, name, start):
        return {DISTANCE + name: 1 - float(start)}

    def described(self, start):
        near, far = self._ends(start)
        return f"{1 - far:.4g} … {1 - near:.4g}, log of the distance to 1"

    def _ends(self, start: Any) -> tuple[float, float]:
        distance = 1 - float(start)
        return min(self.near, distance), max(self.far, distance)


@dataclasses.dataclass(frozen=True)
class UpTo(AbstractRange):
    """Whole numbers from 1 to a multiple of the start, uniform in the logarithm.

    Example:
        >>> from recollect.agent.ranges import UpTo
        >>> UpTo(2, "").described(5)
        '1 … 10, log'
    """

    factor: int
    why: str

    def suggest(self, trial, name, start):
        return trial.suggest_int(name, 1, self.most(start), log=True)

    def described(self, start):
        return f"1 … {self.most(start)}, log"

    def most(self, start: Any) -> int:
        """The largest value."""
        return self.factor * int(start)


@dataclasses.dataclass(frozen=True)
class Among(AbstractRange):
    """One of some values, or the start.

    Example:
        >>> from recollect.agent.ranges import Among
        >>> Among((5, 10, 20), "").described(10)
        '5, 10 or 20'
    """

    values: tuple[int, ...]
    why: str

    def suggest(self, trial, name, start):
        return trial.suggest_categorical(name, self._values(start))

    def described(self, start):
        *others, last = self._values(start)
        return f"{', '.join(map(str, others))} or {last}"

    def _values(self, start: Any) -> list[int]:
        return sorted({*self.values, start})


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


WINDOW = "window"
"""Set by `shares.newest` while trials share the memory of one window."""
RANGES: dict[str, AbstractRange] = {
    "learning_rate": Around(
        10.0, "its scale is that of rewards and gradients, which the settings at the start know"
    ),
    "target_kl": Between(
        0.002,
        0.1,
        "less hardly moves in a short run; more leaves old batches little to say",
        log=True,
    ),
    "max_length": Around(10.0, "its scale is that of rewards, as a learning rate's"),
    "damping": Between(
        1e-3,
        1.0,
        "from trust in the Fisher matrix where it is nearly flat to little but the gradient",
        log=True,
    ),
    "clip": Between(0.05, 0.5, "on either side of the usual 0.1 to 0.3", log=True),
    "epochs": Among((5, 10, 20), "more of them learn more from a batch, and follow its noise"),
    "entropy": Between(0.0, 0.02, "none, to as much as keeps a policy of few actions exploring"),
    WINDOW: UpTo(2, "1 is no reuse; how much pays depends on how fast the policy moves"),
    "discount": BelowOne(0.003, 0.1, "horizons of 10 to 330 steps"),
    "advantages.gae_lambda": Between(0.8, 1.0, "from a critic that is trusted to plain returns"),
    "critic.learning_rate": Between(3e-4, 1e-2, "of Adam on standardised targets", log=True),
    "policy.log_std": Between(-2.0, 0.5, "the first spread of actions decides what is explored"),
}
"""By the field of the algorithm, of a rule in it, or of the policy."""


def search_space(config: RunConfig, fixed: tuple[str, ...] = ()) -> dict[str, AbstractRange]:
    """The ranges that make sense for an algorithm, a policy and an environment.

    Args:
        config: the settings that the search starts from.
        fixed: names of settings that stay as they are.
    """
    found = ranges_of(config.algorithm)
    if isinstance(config.env, AbstractOracle):  # the discount is part of the problem
        found.pop("discount", None)
    if not _has_spread(config):
        found.pop("policy.log_std", None)
    return {name: one for name, one in found.items() if name not in fixed}


def ranges_of(algorithm: AbstractAlgorithm) -> dict[str, AbstractRange]:
    """The ranges that an algorithm has in one environment or another."""
    found = {}
    for name, one in RANGES.items():
        value = value_of(algorithm, name)
        numeric = isinstance(value, float | int) and math.isfinite(value)
        if numeric or name.startswith("policy."):
            found[name] = one
    if not algorithm.advantages.needs_critic:
        found.pop("critic.learning_rate")
    if algorithm.window == 1 or algorithm.shares != Uniform():
        found.pop(WINDOW)
    return found


def _has_spread(config: RunConfig) -> bool:
    """Whether the policy has a standard deviation to begin with."""
    start = config.policy or Architecture()
    own = not isinstance(start, Architecture)
    if own or config.env.actions.whole or isinstance(config.env, LQC):
        return False
    return start.head != "grid"


def value_of(node: Any, name: str) -> Any:
    """The field that a path of names leads to; None if there is none.

    Example:
        >>> import recollect as rc
        >>> from recollect.agent.ranges import value_of
        >>> value_of(rc.RNPG(), "critic.learning_rate")
        0.001
    """
    for part in name.split("."):
        node = getattr(node, part, None)
    return node


def start_of(algorithm: AbstractAlgorithm, policy: Architecture, name: str) -> Any:
    """The value of a setting in the settings that a search starts from."""
    owner, _, field = name.partition(".")
    return getattr(policy, field) if owner == "policy" else value_of(algorithm, name)


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """A configuration with other values of some settings.

    Args:
        config: the settings otherwise.
        values: by their names in `RANGES`.
    """
    algorithm: AbstractAlgorithm = config.algorithm
    policy = config.policy
    for name, value in values.items():
        owner, _, field = name.partition(".")
        if owner == "policy":
            policy = _replaced(policy or Architecture(), field, value)
        else:
            algorithm = _replaced(algorithm, name, value)
    fisher_window = getattr(algorithm, "fisher_window", None)
    if WINDOW in values and fisher_window is not None:
        # As while it was tried: no more batches are stored than the window holds.
        shorter = min(fisher_window, algorithm.window)
        algorithm = _replaced(algorithm, "fisher_window", shorter)
    return dataclasses.replace(config, algorithm=algorithm, policy=policy)


def for_trial(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The same with shapes that all trials have in common: the longest window, partly used."""
    if WINDOW not in values:
        return with_values(config, values)
    whole = RANGES[WINDOW]
    assert isinstance(whole, UpTo)
    others = {name: value for name, value in values.items() if name != WINDOW}
    tried = with_values(config, others)
    algorithm = dataclasses.replace(
        tried.algorithm,
        window=whole.most(config.algorithm.window),
        shares=Uniform(newest=values[WINDOW]),
    )
    return dataclasses.replace(tried, algorithm=algorithm)


def _replaced(node: Any, name: str, value: Any) -> Any:
    """A dataclass with another value of the field that a path of names leads to."""
    field, _, rest = name.partition(".")
    if rest:
        value = _replaced(getattr(node, field), rest, value)
    return dataclasses.replace(node, **{field: value})
