"""Pytrees of arrays: θ as one vector, masks, and which numbers are traced."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Shaped

Module = TypeVar("Module", bound=eqx.Module)


class Frozen(eqx.Module):
    """Base of modules whose arrays are not part of θ."""


def flatten(module: Module) -> tuple[Float[Array, " d"], Callable[[Float[Array, " d"]], Module]]:
    """θ: the floating-point arrays of a module as one vector, and the way back from a vector to a module."""
    arrays, rest = split_parameters(module)
    vector, unravel = ravel_pytree(arrays)
    return vector, lambda vector: eqx.combine(unravel(vector), rest)


def split_parameters(module: Module) -> tuple[Module, Module]:
    """The arrays that θ consists of, and everything else, each with None in place of the other."""
    frozen = lambda node: isinstance(node, Frozen)
    learned = jax.tree.map(
        lambda node: not frozen(node) and eqx.is_inexact_array(node), module, is_leaf=frozen
    )
    return eqx.partition(module, learned)


def where_mask(mask: Bool[Array, "..."], values: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """`values` where `mask` is true, else zero; `mask` lacks the trailing axes of `values`."""
    mask = mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    return jnp.where(mask, values, jnp.zeros((), values.dtype))


def all_finite(tree) -> Bool[Array, ""]:
    """Whether every floating-point number in the pytree is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in leaves]))


def traced_floats(tree):
    """Python floats become arrays, so that another learning rate or damping does not compile anew."""
    number = lambda x: isinstance(x, float | np.floating)
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(float)) if number(x) else x, tree)
