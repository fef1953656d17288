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


class Actions(eqx.Module):
    """What an action is: one of `count` choices, one of each of several `counts`, or a vector of `size` numbers."""

    count: int | None = eqx.field(static=True, default=None)
    counts: tuple[int, ...] | None = eqx.field(static=True, default=None)
    size: int = eqx.field(static=True, default=1)
    bounds: tuple[tuple[float, float], ...] | None = eqx.field(static=True, default=None)
    """Least and largest value of each number, if it has any. An action outside is the environment's to clip, not the policy's."""

    @property
    def whole(self) -> bool:
        """Whether actions are whole numbers."""
        return self.count is not None or self.counts is not None

    @property
    def shape(self) -> tuple[int, ...]:
        if self.count is not None:
            return ()
        return (self.size,) if self.counts is None else (len(self.counts),)

    def __str__(self) -> str:
        if self.count is not None:
            return f"one of {self.count} choices"
        return (
            f"{self.size} real numbers"
            if self.counts is None
            else f"{len(self.counts)} choices at once"
        )


class Step(eqx.Module):
    """What one step gives back; `observation` is the true successor, also at an ending."""

    state: Any
    observation: Float[Array, " feature"]
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class AbstractEnv(eqx.Module):
    """A compiled environment. States are pytrees that carry their own clock."""

    max_steps: eqx.AbstractVar[int]
    observation_size: eqx.AbstractVar[int]
    actions: eqx.AbstractVar[Actions]

    @abc.abstractmethod
    def reset(self, key: PRNGKeyArray) -> Any:
        """A first state."""

    @abc.abstractmethod
    def observe(self, state: Any) -> Float[Array, " feature"]:
        """What the policy sees of a state."""

    @abc.abstractmethod
    def step(self, key: PRNGKeyArray, state: Any, action: Shaped[Array, "*action"]) -> Step:
        """The next state and what it pays."""


class AbstractOracle(AbstractEnv):
    """An environment small enough to know its own answers, exactly and for any policy."""

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
        """Independent states s ~ d^π, drawn from the distribution itself."""

    @abc.abstractmethod
    def log_occupancy(self, policy, observation: Float[Array, " feature"]) -> Float[Array, ""]:
        """log d^π(s), the discounted state visitation distribution (its density where states are continuous)."""


def check_max_steps(value: int) -> None:
    check_count(
        "max_steps", value, "give the number of steps after which an episode is cut, at least 1"
    )
