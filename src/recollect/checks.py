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


def check_name(field: str, value, names: Iterable[str], others: Iterable[str] = (), source: str = "") -> None:
    """Raise unless `value` is one of `names` or of `others`, which are too many to list and come from a `source`."""
    names = list(names)
    known = {name.lower(): name for name in (*names, *others)}
    if value in known.values():
        return
    near = difflib.get_close_matches(str(value).lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}? " if near else ""
    listed = ", ".join([*map(repr, names), *([source] if source else [])])
    raise ValueError(f"{field}={value!r} is unknown; {hint}choose from {listed}.")
