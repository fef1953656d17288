"""Bounds of continuous actions.

They are tuples of Python numbers rather than arrays: as static fields they never become parameters.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Bounds = tuple[tuple[float, float], ...]
"""Low and high of each number of an action."""


def ends(bounds: Bounds, dtype) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
    """The lowest and the highest action, as arrays."""
    low, high = jnp.asarray(bounds, dtype).T
    return low, high


def resolution(bounds: Bounds, dtype) -> Float[np.ndarray, " size"]:
    """The smallest distance that stored actions resolve well: 16½ times the spacing of floats.

    The spacing is taken where it is largest within the bounds. The half puts the border of a cell
    of this width, measured from a bound, between two floats, where rounding divides samples too.
    """
    largest = np.abs(bounds).max(1).astype(dtype)
    return (16.5 * np.spacing(np.nextafter(largest, np.zeros_like(largest)))).astype(dtype)


def checked_bounds(bounds: Sequence[tuple[float, float]], cells: int) -> Bounds:
    """`bounds` as Python numbers, if they are finite and wide enough.

    Args:
        bounds: low and high of each number of an action.
        cells: number of intervals between low and high that stored actions have to tell apart.

    Raises:
        ValueError: if the bounds are not pairs of finite numbers or too close to each other.
    """
    try:
        pairs = np.asarray(bounds)
    except ValueError:  # rows of different lengths
        pairs = np.array(None)
    if pairs.dtype.kind not in "iuf" or pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.size == 0:
        raise ValueError(
            f"bounds={bounds!r} is not a sequence of pairs of numbers; "
            "give (low, high) for each number of an action, as in ((-1.0, 1.0),)."
        )
    dtype = jnp.result_type(float)
    limit = float(jnp.finfo(dtype).max) / 2  # half of it, so that high − low is finite too
    plain = tuple((float(low), float(high)) for low, high in pairs)
    for low, high in plain:
        if not -limit < low < high < limit:
            raise ValueError(
                f"bounds={(low, high)!r} is not a finite range; "
                "give finite numbers with low < high."
            )
        if high - low < cells * resolution(((low, high),), dtype)[0]:
            raise ValueError(
                f"bounds={(low, high)!r} is too narrow for {dtype} to tell actions apart; "
                "widen it or ask for fewer points."
            )
    return plain
