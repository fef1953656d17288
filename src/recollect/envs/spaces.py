"""Gymnasium's spaces as flat vectors of numbers.

Observations become one vector in the order of Gymnasium's `flatten`: numbers as they are, choices
as one-hot vectors, the parts of a `Dict` or `Tuple` one after another. Actions are converted the
other way, from what a policy draws to what the environment takes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from recollect.envs.base import Actions

Encoder = Callable[[Any, np.ndarray], None]
"""Writes one observation into a row of floats; raises a ValueError if it is not in its space."""

OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these"
ACTIONS = "Discrete, MultiDiscrete, MultiBinary and Box of floats"


def encoder(space: Space, label: str = "observation") -> tuple[int, Encoder]:
    """The function that flattens observations of a space, and the length of its vectors.

    Args:
        space: of one observation.
        label: what error messages call the observation.

    Returns:
        The number of floats that an observation becomes, and the function that writes them into an
        array of that length.

    Example:
        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> from recollect.envs.spaces import encoder
        >>> space = spaces.Dict(speed=spaces.Box(-1, 1, (2,)), gear=spaces.Discrete(3))
        >>> size, encode = encoder(space)
        >>> row = np.empty(size)
        >>> encode({"speed": np.array([0.5, -0.5]), "gear": 2}, row)
        >>> row.tolist()
        [0.5, -0.5, 0.0, 0.0, 1.0]
    """
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
    """Numbers, copied as they are."""

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
    """Choices, each as a one-hot vector: `counts` of them, numbered from `starts` on."""
    offsets = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(int)

    def encode(observation: Any, row: np.ndarray) -> None:
        chosen = np.asarray(observation)
        if chosen.shape != shape or chosen.dtype.kind not in "iu":
            raise ValueError(
                f"{label} is {observation!r:.60}, but its space has whole numbers of shape {shape}"
            )
        indices = chosen.ravel().astype(int) - starts
        if (indices < 0).any() or (indices >= counts).any():
            raise ValueError(f"{label} is {observation!r:.60}, which its space does not contain")
        row[:] = 0
        row[offsets + indices] = 1

    return int(counts.sum()), encode


def _parts(parts: dict[Any, tuple[int, Encoder]], kind: type, label: str) -> tuple[int, Encoder]:
    """The parts of a `dict` or `tuple`, one after another."""
    ends = np.cumsum([0, *[size for size, _ in parts.values()]])

    def encode(observation: Any, row: np.ndarray) -> None:
        if not isinstance(observation, kind) or len(observation) != len(parts):
            raise ValueError(
                f"{label} is {observation!r:.60}, "
                f"but its space is a {kind.__name__} with {len(parts)} parts"
            )
        for (key, (_, encode_part)), low, high in zip(
            parts.items(), ends[:-1], ends[1:], strict=True
        ):
            try:
                value = observation[key]
            except KeyError:
                raise ValueError(f"{label} has no {key!r}, which its space has") from None
            encode_part(value, row[low:high])

    return int(ends[-1]), encode


def actions_of(space: Space) -> Actions:
    """The kind of action that a policy has to draw for `space`."""
    match space:
        case spaces.Discrete():
            return Actions(count=int(space.n))
        case spaces.MultiDiscrete():
            return Actions(counts=tuple(int(n) for n in space.nvec.ravel()))
        case spaces.MultiBinary():
            return Actions(counts=(2,) * int(np.prod(space.shape)))
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            size = int(np.prod(space.shape))
            low = space.low.ravel().astype(float)
            high = space.high.ravel().astype(float)
            bounded = np.isfinite(low).all() and np.isfinite(high).all()
            return Actions(
                size=size,
                bounds=tuple(zip(low.tolist(), high.tolist(), strict=True)) if bounded else None,
            )
        case spaces.Box():
            raise ValueError(
                f"action space Box of {space.dtype} is not supported; "
                "use MultiDiscrete for whole numbers."
            )
    raise ValueError(f"action space {type(space).__name__} is not supported; use {ACTIONS}.")


def decoder(space: Space) -> Callable[[np.ndarray], Sequence[Any] | np.ndarray]:
    """The function that converts drawn actions, one row per copy, to elements of `space`.

    Real numbers are clipped to the bounds of the space.
    """
    match space:
        case spaces.Discrete():
            return lambda actions: actions.astype(space.dtype) + space.start
        case spaces.MultiDiscrete():
            shaped = lambda actions: actions.reshape(-1, *space.shape)
            return lambda actions: (shaped(actions) + space.start).astype(space.dtype)
        case spaces.Box():
            low, high = space.low, space.high
            return lambda actions: np.clip(
                actions.reshape(-1, *space.shape), low, high, dtype=space.dtype, casting="unsafe"
            )
    shape = space.shape or ()
    dtype = space.dtype
    return lambda actions: actions.reshape(-1, *shape).astype(dtype)
