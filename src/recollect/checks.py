"""Checks of arguments. Each error is one sentence that names the field, its value and the remedy.

Only Python's and NumPy's numbers are checked; traced values pass, so that constructors can be
called inside `jit`.
"""

import difflib
import math
import numbers
from collections.abc import Iterable

LONGEST = 200
"""Characters of a value in a message."""


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
    """Raise a ValueError if `value` is a plain number out of range, or certainly not a number.

    Tracers, arrays and functions (schedules) pass unchecked.

    Args:
        field: name of the argument, for the message.
        value: to be checked.
        low: least value allowed.
        high: largest value allowed.
        open_low: exclude `low` itself.
        open_high: exclude `high` itself.
        infinite: allow infinity.
        remedy: end of the message, what to do instead.
    """
    if value is None or isinstance(value, bool | str):
        raise ValueError(f"{field}={shown(value)} is not a number; {remedy}.")
    if not isinstance(value, numbers.Real):
        return
    number = float(value)
    above = number > low if open_low else number >= low
    below = number < high if open_high else number <= high
    if not (above and below) or (math.isinf(number) and not infinite):
        raise ValueError(f"{field}={value} is out of range; {remedy}.")


def shown(value) -> str:
    """A value as messages show it: on one line, and not at any length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def check_count(field: str, value, remedy: str = "give a whole number of at least 1") -> None:
    """Raise a ValueError unless `value` is a whole number of at least 1.

    Args:
        field: name of the argument, for the message.
        value: to be checked.
        remedy: end of the message, what to do instead.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        text = value if isinstance(value, numbers.Number) else shown(value)
        raise ValueError(f"{field}={text} is not a whole number of at least 1; {remedy}.")


def check_name(
    field: str, value, names: Iterable[str], others: Iterable[str] = (), source: str = ""
) -> None:
    """Raise a ValueError unless `value` is a known name; the message suggests the nearest one.

    Args:
        field: name of the argument, for the message.
        value: to be checked.
        names: known names, which the message lists.
        others: further known names, too many to list.
        source: what the message calls the `others`.

    Example:
        >>> from recollect.checks import check_name
        >>> check_name("activation", "rellu", ["relu", "tanh"])
        Traceback (most recent call last):
        ValueError: activation='rellu' is unknown; did you mean 'relu'? choose from 'relu', 'tanh'.
    """
    names = list(names)
    known = {name.lower(): name for name in (*names, *others)}
    if value in known.values():
        return
    near = difflib.get_close_matches(str(value).lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}? " if near else ""
    listed = ", ".join([*map(repr, names), *([source] if source else [])])
    raise ValueError(f"{field}={shown(value)} is unknown; {hint}choose from {listed}.")
