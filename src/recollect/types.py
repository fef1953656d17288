"""The one shape in which data travels: a batch of transitions, padded and masked."""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Shaped

Module = TypeVar("Module", bound=eqx.Module)


class Batch(eqx.Module):
    """Transitions of one iteration; every array begins with the axes `episode, time`.

    An entry of the first axis is one episode, one copy of the environment, or (with a single time)
    one independent draw. Where `mask` is false the entry is padding and its content has no meaning.
    `terminated` (the environment ended) and `truncated` (we stopped watching) stay apart, and
    `next_observations` is the true successor even where a new episode begins right after.
    """

    observations: Float[Array, "..."]
    actions: Shaped[Array, "..."]
    log_probs: Float[Array, "*axes"]
    """log π(a|s) under the policy that acted, which importance weights divide by."""
    rewards: Float[Array, "*axes"]
    next_observations: Float[Array, "..."]
    terminated: Bool[Array, "*axes"]
    truncated: Bool[Array, "*axes"]
    times: Int[Array, "*axes"]
    """Steps since the episode began, for weighting states by γ^t."""
    mask: Bool[Array, "*axes"]
    log_occupancy: Float[Array, "*axes"] | None = None
    """log d^π(s) under the policy that acted; only there when weights are ratios of occupancies."""
    absorbed: Bool[Array, "*axes"] | None = None
    """Draws that fell after the end of their episode, for independent draws only: padding, since no action
    mattered there, that still counts in the size of the batch."""


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
    learned = jax.tree.map(lambda node: not frozen(node) and eqx.is_inexact_array(node), module, is_leaf=frozen)
    return eqx.partition(module, learned)


def where_mask(mask: Bool[Array, "..."], values: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """`values` where `mask` is true, else zero; `mask` lacks the trailing axes of `values`."""
    mask = mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    return jnp.where(mask, values, jnp.zeros((), values.dtype))


def zero_padding(batch: Batch) -> Batch:
    """The batch with zeros in its padding, so that nothing computed there can be non-finite."""
    zeroed = jax.tree.map(lambda values: where_mask(batch.mask, values), batch)
    return dataclasses.replace(zeroed, absorbed=batch.absorbed)


def all_finite(tree) -> Bool[Array, ""]:
    """Whether every floating-point number in the pytree is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in leaves]))


def traced_floats(tree):
    """Python floats become arrays, so that another learning rate or damping does not compile anew."""
    number = lambda x: isinstance(x, float | np.floating)
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(float)) if number(x) else x, tree)
