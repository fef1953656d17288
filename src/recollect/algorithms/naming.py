"""Named constructors: the same class under another name, with other defaults."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from recollect.algorithms.base import Algorithm
from recollect.settings import check_names

Parameters = ParamSpec("Parameters")


def named(
    name: str, kind: Callable[Parameters, Algorithm], about: str, **settings: Any
) -> Callable[Parameters, Algorithm]:
    """A constructor of `kind` by another name, whose defaults differ in some `settings`.

    A window of 1 is no default but what the name says: another is refused.
    """
    vanilla = settings.get("window") == 1

    @functools.wraps(kind, updated=())
    def make(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Algorithm:
        if args:
            raise TypeError(f"{name} takes its settings by name, for example {name}(discount=0.9).")
        for field in settings:
            if vanilla and field in kwargs:
                raise TypeError(
                    f"{name} reuses nothing, so {field}={kwargs[field]!r} cannot be given; "
                    f"{name.replace('V', 'R', 1)} takes it."
                )
        check_names(name, kwargs, signature.parameters)
        return kind(**{**settings, **kwargs})  # pyright: ignore[reportCallIssue]

    def parameter(one: inspect.Parameter) -> inspect.Parameter:
        default = settings.get(one.name, one.default)
        return one.replace(default=default, kind=inspect.Parameter.KEYWORD_ONLY)

    asked = inspect.signature(kind).parameters.values()
    shown = [parameter(one) for one in asked if not (vanilla and one.name in settings)]
    signature = inspect.Signature(shown)
    make.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    make.__name__ = make.__qualname__ = name
    make.__doc__ = about
    return make
