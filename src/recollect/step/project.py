"""Feasible sets Θ: where θ is put back after a step."""

import abc
from numbers import Real

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from optax.projections import projection_l2_ball, projection_simplex

from recollect.checks import check_number
from recollect.settings import Settings
from recollect.tree import Module, split_parameters


class AbstractProjection(Settings, eqx.Module):
    """Proj_Θ, the nearest point of a convex set."""

    @abc.abstractmethod
    def __call__(self, policy: Module) -> Module:
        """The policy whose θ is the nearest feasible one."""


class Unconstrained(AbstractProjection):
    """Θ is everything.

    Example:
        >>> import recollect as rc
        >>> rc.RNPG().project
        Unconstrained()
    """

    def __call__(self, policy: Module) -> Module:
        return policy


class Box(AbstractProjection):
    """low ≤ θ_i ≤ high for every i.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> float(rc.Box(-1.0, 1.0)(rc.ShiftPolicy(jnp.array(3.0))).shift)
        1.0
    """

    low: float
    high: float

    def __check_init__(self):
        plain = isinstance(self.low, Real) and isinstance(self.high, Real)
        if plain and not self.low < self.high:
            raise ValueError(
                f"low={self.low!r} is not below high={self.high!r}; give the bounds of a box in "
                "that order."
            )

    def __call__(self, policy: Module) -> Module:
        return _map_arrays(lambda x: jnp.clip(x, self.low, self.high), policy)


class Ball(AbstractProjection):
    """‖θ‖₂ ≤ radius.

    Example:
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> float(rc.Ball(1.5)(rc.ShiftPolicy(jnp.array(-3.0))).shift)
        -1.5
    """

    radius: float

    def __check_init__(self):
        check_number("radius", self.radius, low=0, open_low=True, remedy="give a radius above 0")

    def __call__(self, policy: Module) -> Module:
        parameters, rest = split_parameters(policy)
        return eqx.combine(projection_l2_ball(parameters, self.radius), rest)


class Simplex(AbstractProjection):
    """Each state's action probabilities are at least `floor` and sum to one, for
    `tabular_direct_policy`.

    A floor above zero keeps every action possible, so that importance weights exist (assumption
    A.1.5).

    Example:
        >>> import recollect as rc
        >>> rc.VNPG(discount=0.9, project=rc.Simplex(floor=0.01)).project.floor
        0.01
    """

    floor: float = 1e-3

    def __check_init__(self):
        check_number(
            "floor",
            self.floor,
            low=0,
            high=1,
            open_high=True,
            remedy="give a probability below 1 / number of actions",
        )

    def __call__(self, policy: Module) -> Module:
        def onto(row: Float[Array, " action"]) -> Float[Array, " action"]:
            return projection_simplex(row - self.floor, 1 - row.size * self.floor) + self.floor

        # A table keeps its actions along the first axis (see `networks.table`).
        return _map_arrays(jax.vmap(onto, 1, 1), policy)


def _map_arrays(function, policy: Module) -> Module:
    parameters, rest = split_parameters(policy)
    return eqx.combine(jax.tree.map(function, parameters), rest)
