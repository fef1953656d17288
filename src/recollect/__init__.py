"""Policy gradients that reuse the trajectories of past policies by importance sampling."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from recollect.public import *  # noqa: F403
    from recollect.public import __all__ as __all__
else:
    # `public` is loaded with the first name that is asked for: `recollect --help` does without JAX.

    def __getattr__(name):
        if name == "__all__" or not name.startswith("_"):
            public = importlib.import_module("recollect.public")
            if name in ("__all__", *public.__all__):
                return getattr(public, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
