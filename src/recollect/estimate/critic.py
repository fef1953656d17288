"""A value network V(s) ≈ V^π(s), apart from the policy, that is refitted at every iteration.

It works in standard units: observations by their running mean and spread, values by those of the
latest targets. When the scale of the targets moves, the last layer is rewritten so that V itself
does not (van Hasselt et al. 2016, "Learning values across many orders of magnitude").
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from recollect.checks import check_count, check_name, check_number
from recollect.minibatches import sweep
from recollect.policies.networks import ACTIVATIONS, MLP, Affine, mlp
from recollect.policies.normaliser import Normaliser, Units
from recollect.settings import Settings
from recollect.tree import all_finite, flatten, where_mask

Fit = Literal["batch", "window"]


class Values(eqx.Module):
    """The critic as it is now: V(s) = mean + spread · network((s − m) / σ)."""

    network: MLP
    normaliser: Normaliser
    value_units: Units
    optimizer: optax.OptState

    def __call__(self, observations: Float[Array, "*row feature"]) -> Float[Array, "*row"]:
        outputs = jax.vmap(self.network)(
            self.normaliser(observations.reshape(-1, observations.shape[-1]))
        )[:, 0]
        return (self.value_units.mean + self.value_units.spread * outputs).reshape(
            observations.shape[:-1]
        )


class Critic(Settings, eqx.Module):
    """How the value network is made and fitted; used with `baseline="critic"`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import recollect as rc
        >>> values = rc.Critic(widths=(8,)).init(jax.random.key(0), observation_size=4)
        >>> values(jnp.ones((5, 4))).shape
        (5,)
    """

    widths: tuple[int, ...] = eqx.field(static=True, default=(64, 64))
    activation: str = eqx.field(static=True, default="tanh")
    fit: Fit = eqx.field(static=True, default="window")
    """Fit to the transitions of the current `batch` only, or of the whole gradient `window`."""
    epochs: int = eqx.field(static=True, default=10)
    """Sweeps over the data at each iteration."""
    minibatch: int = eqx.field(static=True, default=256)
    """Transitions in a step of Adam."""
    learning_rate: float = 1e-3

    def __check_init__(self):
        check_name("activation", self.activation, ACTIVATIONS)
        for width in self.widths:
            check_count("widths", width)
        check_count("epochs", self.epochs)
        check_count("minibatch", self.minibatch)
        check_number(
            "learning_rate",
            self.learning_rate,
            low=0,
            open_low=True,
            remedy="give a step size above 0",
        )

    def init(self, key: PRNGKeyArray, observation_size: int) -> Values:
        """A critic that knows nothing: V(s) is about zero everywhere."""
        network = mlp(key, observation_size, 1, self.widths, self.activation, final_scale=0.01)
        units = Units(jnp.zeros(()), jnp.ones(()))
        return Values(
            network, Normaliser.fresh(observation_size), units, _adam.init(flatten(network)[0])
        )

    def refit(
        self,
        values: Values,
        observations: Float[Array, "window episode time feature"],
        targets: Float[Array, "window episode time"],
        mask: Bool[Array, "window episode time"],
        key: PRNGKeyArray,
    ) -> Values:
        """Least squares on the targets by Adam; the critic as it was if that leads to anything
        that is not finite."""
        newest = mask.shape[1] * mask.shape[2]
        rows = observations.reshape(-1, observations.shape[-1])
        targets = targets.ravel()
        real = mask.ravel()
        normaliser = values.normaliser.seeing(rows[:newest], real[:newest])
        if self.fit == "batch":
            rows = rows[:newest]
            targets = targets[:newest]
            real = real[:newest]
        value_units = Units.of(targets, real)
        network = _in_units(values.network, values.value_units, value_units)
        inputs = normaliser(rows)
        outputs = (targets - value_units.mean) / value_units.spread

        w, unflatten = flatten(network)

        def loss(w, rows, inside):
            errors = jax.vmap(unflatten(w))(inputs[rows])[:, 0] - outputs[rows]
            return jnp.sum(where_mask(inside, errors**2)) / inside.sum()

        def step(carry, rows, inside):
            w, optimizer = carry
            updates, optimizer = _adam.update(jax.grad(loss)(w, rows, inside), optimizer)
            return (w + self.learning_rate * jnp.asarray(updates), optimizer), jnp.array(True)

        w, optimizer = sweep(key, real, self.epochs, self.minibatch, step, (w, values.optimizer))
        fitted = Values(unflatten(w), normaliser, value_units, optimizer)
        sound = all_finite(fitted) & real.any()
        return jax.tree.map(lambda new, old: jnp.where(sound, new, old), fitted, values)


_adam = optax.adam(1.0)


def _in_units(network: MLP, old: Units, new: Units) -> MLP:
    """The same values by another scale: only the last layer changes."""
    *layers, last = network.layers
    bias = (jnp.asarray(last.bias) * old.spread + old.mean - new.mean) / new.spread
    return MLP((*layers, Affine(last.weight * old.spread / new.spread, bias)), network.activation)
