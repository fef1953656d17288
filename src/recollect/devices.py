"""The devices that a run learns on: what depends on their kind, and what of a run lies on which.

They are all local devices of JAX's default backend, or the one that `jax_default_device` names.

- One CPU: seeds are updated one by one, a share of them on each core.
- One accelerator: seeds are updated side by side.
- Several devices: each has a share of the seeds, which it updates side by side.
- Several devices for fewer seeds: if their number divides the episodes of a batch, all of them work
  on every seed, each on its part of the rows; else one works on each seed, and the rest is idle.

Several devices show as several only to XLA's partitioner: `divided` says what to divide, and it
derives the rest. What it adds up on several devices, it adds in another order.
"""

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.core
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

Tree = TypeVar("Tree")
Device = Any
"""A `jax.Device`, of which static checkers know no type."""
ROWS = "rows"
"""The axis of a mesh of devices that rows of data are divided over."""


@dataclasses.dataclass(frozen=True, eq=False)
class Backend:
    """What suits one kind of device."""

    side_by_side: bool
    """Whether seeds are updated side by side, and not one after another."""
    chunk: int
    """States handled at a time in products with scores."""
    matrix_chunk: int
    """Rows whose scores are written out at a time."""
    dense: float
    """Operations a millisecond of dense products, …"""
    factor: float
    """… of factorisations (which are small), …"""
    layer: float
    """… and of products with the scores of layers."""
    product: float
    """Milliseconds that a product takes at least."""
    preconditioner: float
    """Milliseconds to make one for conjugate gradients."""
    compiler_options: Mapping[str, Any]
    """For programs that run for long."""


CPU = Backend(
    side_by_side=False,  # the arrays of one seed stay in cache
    chunk=8192,  # fewer were slower, more would need more memory
    matrix_chunk=1024,  # so that they stay in cache
    # On two cores; benchmarks/solvers.py.
    dense=80e6,
    factor=25e6,
    layer=30e6,
    product=0.0,
    preconditioner=3.0,
    # Compiles in two thirds of the time of the default level, to programs that measured as fast.
    compiler_options={"xla_backend_optimization_level": 1},
)
"""Measured."""
ACCELERATOR = Backend(
    side_by_side=True,
    chunk=2**18,  # 64 MiB for each layer of 64 units
    matrix_chunk=2**14,
    dense=5e9,
    factor=2e8,
    layer=5e8,
    product=0.1,
    preconditioner=3.0,
    compiler_options={},
)
"""Reckoned from a data sheet (some 10¹³ operations and 10¹² bytes a second, and 10 µs to start a
kernel), and not measured."""


def learning_devices() -> list[Device]:
    """The devices that a run learns on.

    Example:
        >>> from recollect.devices import learning_devices
        >>> len(learning_devices()) >= 1
        True
    """
    chosen = jax.config.values["jax_default_device"]
    if chosen is None:
        return jax.local_devices()
    return jax.local_devices(backend=chosen)[:1] if isinstance(chosen, str) else [chosen]


def acting_device() -> Device:
    """Where policies act in environments on the host: a CPU, as each step waits for an answer."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return learning_devices()[0]


def backend() -> Backend:
    """What suits the devices that a run learns on."""
    return CPU if learning_devices()[0].platform == "cpu" else ACCELERATOR


def side_by_side() -> bool:
    """Whether seeds are updated side by side, and not one after another."""
    return backend().side_by_side or len(learning_devices()) > 1


def described(devices: Sequence[Device]) -> str:
    """Devices in words.

    Example:
        >>> import jax
        >>> from recollect.devices import described
        >>> described(jax.devices("cpu")[:1])
        'cpu'
    """
    kinds = Counter(device.device_kind for device in devices)
    return ", ".join(f"{count} × {kind}" if count > 1 else kind for kind, count in kinds.items())


def mesh_of(devices: Sequence[Device]) -> Mesh:
    """The mesh whose devices share the rows of each seed, while it is set."""
    return jax.make_mesh((len(devices),), (ROWS,), (AxisType.Auto,), devices=devices)


def dividing_rows() -> bool:
    """Whether the program that is traced now divides rows over several devices."""
    return ROWS in jax.sharding.get_abstract_mesh().axis_names


def divided(tree: Tree, axis: int | None) -> Tree:
    """The same arrays, each with its part on every device where rows are divided.

    Args:
        tree: a pytree; what is no array stays as it is.
        axis: to divide; None for all of each array on every device.
    """
    if not dividing_rows():
        return tree
    spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, ROWS)

    def place(x):
        if isinstance(x, jax.core.Tracer):
            return lax.with_sharding_constraint(x, spec)
        return jax.device_put(x, spec) if eqx.is_array(x) else x

    return jax.tree.map(place, tree)


def chunk_size() -> int:
    """States handled at a time in products with scores; all that a device has of divided ones."""
    return sys.maxsize if dividing_rows() else backend().chunk


def matrix_chunk_size() -> int:
    """Rows whose scores are written out at a time; all that a device has of divided ones."""
    return sys.maxsize if dividing_rows() else backend().matrix_chunk


def at_full_precision(function: Callable) -> Callable:
    """The function with products of single precision in all of its digits, on every device.

    Accelerators otherwise round factors to 8 or 11 bits: Gram matrices cease to be positive
    definite, and the weights of the newest batch to be 1.
    """

    @functools.wraps(function)
    def precise(*args, **kwargs):
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return precise
