"""Checks of what a user may get wrong, one sentence each: field, value, remedy.

They look at plain numbers only, Python's and NumPy's, so that traced values pass through constructors untouched.
"""

import difflib
import math
import numbers
from collections.abc import Iterable


def check_number(
    field: str,
    value,
    *,
    low: float | int,
    high: float | int = float("inf"),
    open_low: bool = False,
    open_high: bool = False,
    infinite: bool = False,
    remedy: str,
) -> None:
    """Raise unless `value` is a number between `low` and `high`, finite unless it may be `infinite`; tracers, arrays and functions pass."""
    if value is None or isinstance(value, bool | str):
        raise ValueError(f"{field}={value!r} is not a number; {remedy}.")
    if not isinstance(value, numbers.Real):
        return
    number = float(value)
    above = number > low if open_low else number >= low
    below = number < high if open_high else number <= high
    if not (above and below) or (math.isinf(number) and not infinite):
        raise ValueError(f"{field}={value} is out of range; {remedy}.")


def check_count(field: str, value, remedy: str = "give a whole number of at least 1") -> None:
    """Raise unless `value` is a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        shown = value if isinstance(value, numbers.Number) else repr(value)
        raise ValueError(f"{field}={shown} is not a whole number of at least 1; {remedy}.")


def check_name(
    field: str, value, names: Iterable[str], others: Iterable[str] = (), source: str = ""
) -> None:
    """Raise unless `value` is one of `names` or of `others`, which are too many to list and come from a `source`."""
    names = list(names)
    known = {name.lower(): name for name in (*names, *others)}
    if value in known.values():
        return
    near = difflib.get_close_matches(str(value).lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}? " if near else ""
    listed = ", ".join([*map(repr, names), *([source] if source else [])])
    raise ValueError(f"{field}={value!r} is unknown; {hint}choose from {listed}.")
