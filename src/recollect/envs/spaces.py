"""From Gymnasium's spaces to flat vectors of numbers and back.

Observations become one vector in the order of Gymnasium's `flatten`: numbers as they are, choices as one-hot vectors, the parts of a
`Dict` or `Tuple` one after another. Actions go the other way, from what a policy draws to what the environment takes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from recollect.envs.base import Actions

Encoder = Callable[[Any, np.ndarray], None]
"""Writes one observation into a row; a ValueError says what is wrong with it."""

OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these"
ACTIONS = "Discrete, MultiDiscrete, MultiBinary and Box of floats"


def encoder(space: Space, label: str = "observation") -> tuple[int, Encoder]:
    """How many numbers an observation of `space` becomes, and the function that writes them."""
    match space:
        case spaces.Box():
            return _box(space.shape, label)
        case spaces.Discrete():
            return _choices(np.array([space.n]), np.array([space.start]), (), label)
        case spaces.MultiDiscrete():
            return _choices(space.nvec.ravel(), space.start.ravel(), space.shape, label)
        case spaces.MultiBinary():
            return _box(space.shape, label)
        case spaces.Dict():
            parts = {key: encoder(part, f"{label}[{key!r}]") for key, part in space.spaces.items()}
            return _parts(parts, dict, label)
        case spaces.Tuple():
            parts = {i: encoder(part, f"{label}[{i}]") for i, part in enumerate(space.spaces)}
            return _parts(parts, tuple, label)
    raise ValueError(f"{label} space {type(space).__name__} is not supported; use {OBSERVATIONS}.")


def _box(shape: tuple[int, ...], label: str) -> tuple[int, Encoder]:
    def encode(observation: Any, row: np.ndarray) -> None:
        try:
            numbers = np.asarray(observation)
        except ValueError:  # rows of different lengths
            numbers = np.array(None)
        if numbers.shape != shape:
            raise ValueError(f"{label} has shape {numbers.shape}, but its space has {shape}")
        if numbers.dtype.kind not in "fiub":
            raise ValueError(
                f"{label} is {observation!r:.60}, which does not consist of real numbers"
            )
        row[:] = numbers.ravel()

    return int(np.prod(shape)), encode


def _choices(
    counts: np.ndarray, starts: np.ndarray, shape: tuple[int, ...], label: str
) -> tuple[int, Encoder]:
    offsets = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(int)

    def encode(observation: Any, row: np.ndarray) -> None:
        chosen = np.asarray(observation)
        if chosen.shape != shape or chosen.dtype.kind not in "iu":
            raise ValueError(
                f"{label} is {observation!r:.60}, but its space has whole numbers of shape {shape}"
            )
        places = chosen.ravel().astype(int) - starts
        if (places < 0).any() or (places >= counts).any():
            raise ValueError(f"{label} is {observation!r:.60}, which its space does not contain")
        row[:] = 0
        row[offsets + places] = 1

    return int(counts.sum()), encode


def _parts(parts: dict[Any, tuple[int, Encoder]], kind: type, label: str) -> tuple[int, Encoder]:
    ends = np.cumsum([0, *[size for size, _ in parts.values()]])

    def encode(observation: Any, row: np.ndarray) -> None:
        if not isinstance(observation, kind) or len(observation) != len(parts):
            raise ValueError(
                f"{label} is {observation!r:.60}, but its space is a {kind.__name__} with {len(parts)} parts"
            )
        for (key, (_, part)), low, high in zip(parts.items(), ends[:-1], ends[1:], strict=True):
            try:
                value = observation[key]
            except KeyError:
                raise ValueError(f"{label} has no {key!r}, which its space has") from None
            part(value, row[low:high])

    return int(ends[-1]), encode


def actions_of(space: Space) -> Actions:
    """What a policy has to draw for `space`."""
    match space:
        case spaces.Discrete():
            return Actions(count=int(space.n))
        case spaces.MultiDiscrete():
            return Actions(counts=tuple(int(n) for n in space.nvec.ravel()))
        case spaces.MultiBinary():
            return Actions(counts=(2,) * int(np.prod(space.shape)))
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            size = int(np.prod(space.shape))
            low, high = space.low.ravel().astype(float), space.high.ravel().astype(float)
            bounded = np.isfinite(low).all() and np.isfinite(high).all()
            return Actions(
                size=size,
                bounds=tuple(zip(low.tolist(), high.tolist(), strict=True)) if bounded else None,
            )
        case spaces.Box():
            raise ValueError(
                f"action space Box of {space.dtype} is not supported; use MultiDiscrete for whole numbers."
            )
    raise ValueError(f"action space {type(space).__name__} is not supported; use {ACTIONS}.")


def decoder(space: Space) -> Callable[[np.ndarray], Sequence[Any] | np.ndarray]:
    """The function that turns the actions of all copies, one row each, into what `space` contains. Numbers are cut at its bounds."""
    match space:
        case spaces.Discrete():
            return lambda actions: actions.astype(space.dtype) + space.start
        case spaces.MultiDiscrete():
            return lambda actions: (actions.reshape(-1, *space.shape) + space.start).astype(
                space.dtype
            )
        case spaces.Box():
            low, high = space.low, space.high
            return lambda actions: np.clip(
                actions.reshape(-1, *space.shape), low, high, dtype=space.dtype, casting="unsafe"
            )
    shape, dtype = space.shape or (), space.dtype
    return lambda actions: actions.reshape(-1, *shape).astype(dtype)
