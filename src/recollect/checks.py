"""Checks of what a user may get wrong, one sentence each: field, value, remedy.

They look at plain Python numbers only, so that traced values pass through constructors untouched.
"""

import difflib
from collections.abc import Iterable


def check_number(
    field: str,
    value,
    *,
    low: float | int,
    high: float | int = float("inf"),
    open_low: bool = False,
    open_high: bool = False,
    remedy: str,
) -> None:
    """Raise unless `value` is a number between `low` and `high`; tracers and arrays pass."""
    if isinstance(value, bool):
        raise ValueError(f"{field}={value!r} is not a number; {remedy}.")
    if not isinstance(value, int | float):
        return
    above = value > low if open_low else value >= low
    below = value < high if open_high else value <= high
    if not (above and below):
        raise ValueError(f"{field}={value!r} is out of range; {remedy}.")


def check_count(field: str, value, remedy: str = "give a whole number of at least 1") -> None:
    """Raise unless `value` is a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{field}={value!r} is not a whole number of at least 1; {remedy}.")


def check_name(field: str, value, names: Iterable[str]) -> None:
    """Raise unless `value` is one of `names`, with the nearest of them in the message."""
    names = list(names)
    if value in names:
        return
    near = difflib.get_close_matches(str(value).lower(), [name.lower() for name in names], n=1, cutoff=0.5)
    original = {name.lower(): name for name in names}
    hint = f"did you mean {original[near[0]]!r}? " if near else ""
    raise ValueError(f"{field}={value!r} is unknown; {hint}choose from {', '.join(map(repr, names))}.")
