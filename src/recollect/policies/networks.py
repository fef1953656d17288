"""Fully connected networks for policies and critics."""

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
    """Affine layers with an activation between them; without hidden layers, a linear map.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from recollect.policies import mlp
        >>> network = mlp(jax.random.key(0), inputs=4, outputs=3, widths=(32,))
        >>> network(jnp.ones(4)).shape
        (3,)
    """

    layers: tuple[Affine, ...]
    activation: str = eqx.field(static=True)
    """A key of `ACTIVATIONS`."""

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

    Args:
        key: for the weights.
        inputs: number of inputs.
        outputs: number of outputs.
        widths: sizes of the hidden layers.
        activation: a key of `ACTIVATIONS`.
        final_scale: scale of the last layer's weights. A small one makes the outputs of a new
            policy nearly the same for all observations, and a softmax of them nearly uniform.
    """
    check_name("activation", activation, ACTIVATIONS)
    for width in widths:
        check_count("widths", width)
    sizes = [inputs, *widths, outputs]
    # The factor √2 makes up for relu, which halves the mean square of its inputs.
    scales = [2**0.5 if activation == "relu" else 1.0] * len(widths) + [final_scale]
    keys = jax.random.split(key, len(scales))
    layers = [
        Affine(jax.nn.initializers.orthogonal(scale)(k, (after, before)), jnp.zeros(after))
        for k, scale, before, after in zip(keys, scales, sizes[:-1], sizes[1:], strict=True)
    ]
    return MLP(tuple(layers), activation)


def table(values: Float[Array, "state output"]) -> MLP:
    """A table read by one-hot observations: the linear map whose weight is the transposed table."""
    return MLP((Affine(jnp.asarray(values).T, None),), "relu")
