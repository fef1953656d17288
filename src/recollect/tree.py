"""Pytrees of arrays: θ as one vector, masks, and Python floats as arrays."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Shaped

Module = TypeVar("Module", bound=eqx.Module)


class Frozen(eqx.Module):
    """Base class of modules whose arrays are not part of θ."""


def flatten(module: Module) -> tuple[Float[Array, " d"], Callable[[Float[Array, " d"]], Module]]:
    """The parameters θ of a module as one vector, and the function back to a module.

    θ consists of the floating-point arrays outside `Frozen` parts, in the order of the pytree.

    Args:
        module: for example a policy.

    Returns:
        θ, and the function that puts a vector in its place.

    Example:
        >>> import jax.numpy as jnp
        >>> from recollect import ShiftPolicy
        >>> from recollect.tree import flatten
        >>> θ, unflatten = flatten(ShiftPolicy(jnp.array(2.0)))
        >>> θ.shape, float(unflatten(θ + 1).shift)
        ((1,), 3.0)
    """
    arrays, rest = split_parameters(module)
    vector, unravel = ravel_pytree(arrays)
    return vector, lambda vector: eqx.combine(unravel(vector), rest)


def split_parameters(module: Module) -> tuple[Module, Module]:
    """The arrays that θ consists of, and everything else, each with None in place of the other.

    `eqx.combine` joins them again.
    """
    frozen = lambda node: isinstance(node, Frozen)
    is_parameter = lambda node: not frozen(node) and eqx.is_inexact_array(node)
    return eqx.partition(module, jax.tree.map(is_parameter, module, is_leaf=frozen))


def where_mask(mask: Bool[Array, "..."], values: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """`values` where `mask` is true, else zero.

    Args:
        mask: its axes are the first axes of `values`.
        values: may have further axes.
    """
    mask = mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    return jnp.where(mask, values, jnp.zeros((), values.dtype))


def all_finite(tree) -> Bool[Array, ""]:
    """Whether every floating-point number in the pytree is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in leaves]))


def one_by_one(function: Callable, *trees):
    """`function` of each element of the leading axis of all arrays, the results stacked.

    New networks are made like this and not under `vmap`: side by side, some programs with several
    orthogonal matrices never end in XLA's CPU runtime (jaxlib 0.10; two matrices of 64 × 64 for
    each of two seeds, on two cores).

    Args:
        function: of one element; its result may hold more than arrays.
        trees: pytrees, whose arrays all begin with the axis that is mapped over.
    """
    arrays, rest = eqx.partition(trees, eqx.is_array)

    def one(arrays):
        result = function(*eqx.combine(arrays, rest))
        return eqx.filter(result, eqx.is_array), _Static(eqx.filter(result, eqx.is_array, True))

    mapped, static = jax.lax.map(one, arrays)
    return eqx.combine(mapped, static.tree)


def at_index(tree, index: int, count: int):
    """One element of a pytree whose arrays all begin with the axis that is indexed.

    Args:
        tree: the pytree.
        index: of the element; negative ones count from the end.
        count: length of the axis.

    Raises:
        IndexError: if there is no such element.
    """
    if not -count <= index < count:
        raise IndexError(f"index={index} is out of range; there are {count}, from 0 on.")
    # A slice of NumPy's or JAX's arrays; JAX would take an index beyond the end for the last one.
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, tree)


class _Static(eqx.Module):
    """A pytree without leaves, which passes through a loop as it is."""

    tree: Any = eqx.field(static=True)


def traced_numbers(tree):
    """The pytree with Python's and NumPy's numbers as arrays.

    `jit` compiles again for every new value of a Python number, but not of an array, so that
    another learning rate, damping or number of ages uses the same program. Numbers that set shapes
    are static fields, which are no part of a pytree.
    """

    def traced(x):
        if isinstance(x, bool | np.bool_):
            return x
        if isinstance(x, float | np.floating):
            return jnp.asarray(x, jnp.result_type(float))
        return jnp.asarray(x, jnp.int32) if isinstance(x, int | np.integer) else x

    return jax.tree.map(traced, tree)
