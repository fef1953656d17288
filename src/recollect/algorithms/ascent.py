"""What PG, NPG and PPO share: a step size, and an optimizer that makes a step of a direction."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from recollect.algorithms.base import AbstractAlgorithm, State
from recollect.checks import check_name, check_number
from recollect.policies import AbstractPolicy
from recollect.tree import flatten

PERSISTENCE = 64.0
"""How much longer a bias lasts than noise in the small steps of PG and PPO: they are in proportion
to the gradient, or have momentum, and noise averages out along the way. With Adam on CartPole-v1
the gradient of five batches is much nearer to the truth than that of one, and learns more slowly
(`benchmarks/gradient_error.py`). Of 16 and 64, on tuning seeds of CartPole-v1 and
InvertedPendulum-v5."""


class AbstractAscent(AbstractAlgorithm):
    """An algorithm that moves θ by a step size along what its optimizer makes of a direction."""

    learning_rate: float | Callable[[Int[Array, ""]], Float[Array, ""]] = 0.01
    """α: a number, or (in Python) an Optax schedule of the iteration."""
    step_decay: float = 0.0
    """β: the step size in iteration n = 1, 2, … is α n^−β."""
    optimizer: str | optax.GradientTransformation = eqx.field(static=True, default="sgd")
    """`sgd`, `adam`, `adam:EPSILON`, or (in Python) any Optax transformation that descends; α
    multiplies its updates."""
    objective_scale: bool = eqx.field(static=True, default=False)
    """Multiply the gradient by 1/(1 − γ): with `discount_states`, or with independent draws, it
    then estimates ∇η as the paper defines it and not (1 − γ)∇η."""

    def __check_init__(self):
        remedy = "give a step size above 0"
        check_number("learning_rate", self.learning_rate, low=0, open_low=True, remedy=remedy)
        remedy = "give the exponent of n^-step_decay, 0 for a constant step size"
        check_number("step_decay", self.step_decay, low=0, remedy=remedy)
        if isinstance(self.optimizer, str):
            parse_optimizer(self.optimizer)

    def rate(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        """α_n, for `iteration` = n − 1."""
        rate = self.learning_rate
        if callable(rate):
            rate = rate(iteration)
        return rate * (iteration + 1.0) ** -self.step_decay

    def transformation(self) -> optax.GradientTransformation:
        """The optimizer itself."""
        return (
            parse_optimizer(self.optimizer) if isinstance(self.optimizer, str) else self.optimizer
        )

    def scaled(self, gradient: Float[Array, "*d"]) -> Float[Array, "*d"]:
        """The gradient in the scale of the objective, if asked for."""
        return gradient / (1 - self.discount) if self.objective_scale else gradient

    def ascend(
        self,
        state: State,
        optimizer: optax.OptState,
        direction: Float[Array, " d"],
        scale: Float[Array, ""] | float,
    ) -> tuple[AbstractPolicy, optax.OptState]:
        """Proj(θ + s α_n x), and the optimizer after it; s is the scale."""
        θ, unflatten = flatten(state.policy)
        updates, optimizer = self.transformation().update(-direction, optimizer, θ)
        step = scale * self.rate(state.iteration).astype(θ.dtype) * jnp.asarray(updates)
        return self.project(unflatten(θ + step)), optimizer


def parse_optimizer(text: str) -> optax.GradientTransformation:
    """`sgd`, `adam`, or `adam:EPSILON`.

    The epsilon that Adam adds to its denominator lets steps shrink with gradients smaller than it.
    """
    name, _, epsilon = text.partition(":")
    check_name("optimizer", name, ("sgd", "adam"))
    try:
        number = float(epsilon or 1e-8)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf") or (name == "sgd" and epsilon):
        raise ValueError(
            f"optimizer={text!r} is not understood; give sgd, adam or adam:EPSILON, for example "
            "adam:0.01."
        )
    return optax.sgd(1.0) if name == "sgd" else optax.adam(1.0, eps=number)
