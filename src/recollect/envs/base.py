"""The contract of a compiled environment: pure functions of (key, state, action).

Compiled environments run inside `lax.scan`, so all of training is one XLA program. They keep
Gymnasium's meaning of the two endings: `terminated` means that the problem ended and no reward
follows; `truncated` means that the clock (`max_steps`) stopped an episode that would have gone on.
"""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped

from recollect.checks import check_count
from recollect.settings import Settings


class Actions(eqx.Module):
    """The kind of action that an environment takes.

    One of `count` choices (a whole number), one choice from each of several `counts` (a vector of
    whole numbers), or else a vector of `size` real numbers.

    Example:
        >>> from recollect.envs import Actions
        >>> Actions(counts=(2, 3)).shape
        (2,)
        >>> str(Actions(size=3))
        '3 real numbers'
    """

    count: int | None = eqx.field(static=True, default=None)
    counts: tuple[int, ...] | None = eqx.field(static=True, default=None)
    size: int = eqx.field(static=True, default=1)
    bounds: tuple[tuple[float, float], ...] | None = eqx.field(static=True, default=None)
    """Lowest and highest value of each real number; None if any of them is unbounded. Clipping an
    action to its bounds is the environment's task, not the policy's."""

    @property
    def whole(self) -> bool:
        """Whether actions are whole numbers."""
        return self.count is not None or self.counts is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that holds one action."""
        if self.count is not None:
            return ()
        return (self.size,) if self.counts is None else (len(self.counts),)

    def __str__(self) -> str:
        if self.count is not None:
            return f"one of {self.count} choices"
        if self.counts is None:
            return f"{self.size} real numbers"
        return f"{len(self.counts)} choices at once"


class Step(eqx.Module):
    """What one step returns. `observation` is the true successor, also at the end of an episode."""

    state: Any
    observation: Float[Array, " feature"]
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class AbstractEnv(Settings, eqx.Module):
    """A compiled environment, for one copy; callers `vmap`.

    A state is a pytree of arrays and includes the number of steps since its episode began, from
    which `step` computes `truncated`. An environment does not reset itself: the collector does.
    """

    max_steps: eqx.AbstractVar[int]
    """Steps after which an episode is truncated."""
    observation_size: eqx.AbstractVar[int]
    actions: eqx.AbstractVar[Actions]

    @abc.abstractmethod
    def reset(self, key: PRNGKeyArray) -> Any:
        """Draw the first state of an episode."""

    @abc.abstractmethod
    def observe(self, state: Any) -> Float[Array, " feature"]:
        """The observation of a state, which is what the policy acts on."""

    @abc.abstractmethod
    def step(self, key: PRNGKeyArray, state: Any, action: Shaped[Array, "*action"]) -> Step:
        """Apply an action: the next state, its observation, the reward and the two endings.

        Args:
            key: for random transitions; deterministic environments ignore it.
            state: as returned by `reset` or found in an earlier `Step`.
            action: an array of the shape and kind that `actions` describes.
        """


class AbstractOracle(AbstractEnv):
    """An environment whose value functions and state distributions are known in closed form.

    Tests and the `theory` package compare estimates with these exact answers.
    """

    discount: eqx.AbstractVar[float]

    @abc.abstractmethod
    def expected_return(self, policy) -> Float[Array, ""]:
        """η(π) = E[Σ_t γ^t R(s_t, a_t)], Equation (1)."""

    @abc.abstractmethod
    def advantage(
        self, policy, observation: Float[Array, " feature"], action: Shaped[Array, "*action"]
    ) -> Float[Array, ""]:
        """A^π(s, a) = Q^π(s, a) − V^π(s)."""

    @abc.abstractmethod
    def draw_states(self, key: PRNGKeyArray, policy, count: int) -> Any:
        """`count` independent states from d^π, stacked along a first axis."""

    @abc.abstractmethod
    def log_occupancy(self, policy, observation: Float[Array, " feature"]) -> Float[Array, ""]:
        """log d^π(s) of the discounted state visitation distribution.

        It is the logarithm of a probability for finitely many states, of a density otherwise.
        """


def check_max_steps(value: int) -> None:
    """Raise a ValueError unless `value` is a whole number of at least 1."""
    check_count(
        "max_steps", value, "give the number of steps after which an episode is cut, at least 1"
    )
