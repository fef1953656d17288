"""What of a run lies on which of several devices.

With as many seeds as devices, or more, each device has a share of the seeds and a program of its
own: nothing passes between devices, and between two calls each keeps what is its own. (As one
program of all devices, a seed whose line search or conjugate gradients take long would hold up all
others. `jax.shard_map` does not go with Lineax, its issue 185.)

With fewer seeds, all devices have a part of the episodes of every seed. They run one program, in
which they exchange sums over rows, such as gradients and products with the Fisher matrix.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from recollect.collect.rollout import Rollout
from recollect.devices import Device, divided, dividing_rows, mesh_of
from recollect.memory.history import History

Tree = TypeVar("Tree")


def over_devices(
    pool: Executor, devices: Sequence[Device], seeds: int, function: Callable, *trees: Any
) -> Any:
    """`function` of all seeds, computed by several devices.

    Args:
        pool: a thread for each device that has seeds of its own.
        devices: more than one.
        seeds: how many there are.
        function: of pytrees whose arrays begin with the axis of seeds; so does its result.
        trees: what it is given.
    """
    if not divides_rows(len(devices), seeds, trees):
        return _shares_of_seeds(pool, devices[:seeds], seeds, function, trees)
    with jax.set_mesh(mesh_of(devices)):
        return function(*laid_out(trees))


def divides_rows(devices: int, seeds: int, trees: Any) -> bool:
    """Whether several devices work on each seed: there are fewer seeds, and episodes to divide.

    Args:
        devices: how many.
        seeds: how many.
        trees: hold the histories of all seeds.
    """
    # Axes of a mask: seed, window, episode, time.
    found = [node.batches.mask.shape[2] for node in _nodes(trees) if isinstance(node, History)]
    return seeds < devices and bool(found) and all(count % devices == 0 for count in found)


def laid_out(tree: Tree, seeds: bool = True) -> Tree:
    """The same arrays; where devices divide rows, each with its part of the episodes.

    Everything that is not a batch is on all devices, so that what goes into a program lies as what
    comes out of it, and it is compiled once.

    Args:
        tree: holds histories or rollouts.
        seeds: whether all arrays begin with the axis of seeds.
    """
    if not dividing_rows():
        return tree

    def of_node(node):
        if isinstance(node, History):
            return History(divided(node.batches, seeds + 1), divided(node.memory, None))
        if isinstance(node, Rollout):
            batches = (node.batch, node.fisher_batch)
            at = lambda node: (node.batch, node.fisher_batch)
            nothing = lambda x: x is None
            return eqx.tree_at(at, divided(node, None), divided(batches, seeds), is_leaf=nothing)
        return divided(node, None)

    return jax.tree.map(of_node, tree, is_leaf=_is_node)


def _shares_of_seeds(
    pool: Executor, devices: Sequence[Device], seeds: int, function: Callable, trees: Any
) -> Any:
    """A share of the seeds on each device.

    Shares are equal: the last seed is repeated to fill them up, and dropped at the end.
    """
    size = -(-seeds // len(devices))
    rows = np.minimum(np.arange(size * len(devices)), seeds - 1)
    filled_up = len(rows) > seeds
    sharding = NamedSharding(Mesh(np.array(devices), ("seeds",)), PartitionSpec("seeds"))
    arrays, rest = eqx.partition(trees, eqx.is_array)
    # Moves nothing that lies there since the last call.
    laid = jax.tree.map(lambda x: jax.device_put(x[rows] if filled_up else x, sharding), arrays)

    def on(device: Device):
        share = jax.tree.map(lambda x: _on_device(x, device), laid)
        return function(*eqx.combine(share, rest))

    def join(*shares):
        if not eqx.is_array(shares[0]):
            return shares[0]
        shape = (len(rows), *shares[0].shape[1:])
        whole = jax.make_array_from_single_device_arrays(shape, sharding, shares)
        return whole[:seeds] if filled_up else whole

    return jax.tree.map(join, *pool.map(on, devices))


def _on_device(x: jax.Array, device: Device) -> jax.Array:
    """The part of an array that a device has."""
    return next(shard.data for shard in x.addressable_shards if shard.device == device)


def _is_node(node: Any) -> bool:
    return isinstance(node, History | Rollout)


def _nodes(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=_is_node)
