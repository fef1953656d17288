"""Small networks for policies: fully connected layers, nothing else."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recollect.checks import check_count, check_name

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
}


class Affine(eqx.Module):
    """x ↦ W x + b, or W x without a bias."""

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"] | None

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        product = self.weight @ x
        return product if self.bias is None else product + self.bias


class MLP(eqx.Module):
    """Affine layers with one activation between them; no hidden layer makes a linear map or a table."""

    layers: tuple[Affine, ...]
    activation: str = eqx.field(static=True)

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)


def mlp(
    key: PRNGKeyArray,
    inputs: int,
    outputs: int,
    widths: Sequence[int] = (32,),
    activation: str = "relu",
    final_scale: float = 0.01,
) -> MLP:
    """An MLP with scaled orthogonal weights and zero biases.

    `final_scale` makes the last layer small, so that a fresh policy is close to uniform whatever it sees.
    """
    check_name("activation", activation, ACTIVATIONS)
    for width in widths:
        check_count("widths", width)
    sizes = [inputs, *widths, outputs]
    scales = [2**0.5 if activation == "relu" else 1.0] * len(widths) + [final_scale]
    keys = jax.random.split(key, len(scales))
    layers = [
        Affine(jax.nn.initializers.orthogonal(scale)(k, (after, before)), jnp.zeros(after))
        for k, scale, before, after in zip(keys, scales, sizes[:-1], sizes[1:], strict=True)
    ]
    return MLP(tuple(layers), activation)


def table(values: Float[Array, "state output"]) -> MLP:
    """A table read by one-hot observations: the linear map whose θ is the table itself (transposed)."""
    return MLP((Affine(jnp.asarray(values).T, None),), "relu")
