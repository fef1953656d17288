"""Tests spend their time compiling small programs: code generation may be quick and plain, and is
not done twice."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit all of it
    quick = (
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
        "--xla_cpu_parallel_codegen_split_count=1 "
    )
    if version("jax") < "0.11":  # 0.12 has no such flag, and ends a process that gives it
        quick += "--xla_cpu_use_fusion_emitters=false "
    os.environ["XLA_FLAGS"] = quick + os.environ.get("XLA_FLAGS", "")
    # The user's compilation cache stays as it is.
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="recollect-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
sys.path.insert(0, str(Path(__file__).parent))
# Programs stay in memory, as millions of objects that the collector would look through in vain: it
# took a tenth of the time.
gc.set_threshold(100_000, 20, 100)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Workers and the processes that tests start share what they have compiled from the start.

    Not earlier, as what is imported before the checks of types are in place goes without them.
    """
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses"):
        from recollect.runtime import use_compilation_cache

        use_compilation_cache()


@pytest.fixture(autouse=True, scope="module")
def programs_of_other_modules_are_let_go() -> Iterator[None]:
    """A process that holds thousands of them runs out of mappings of memory, and dies in XLA."""
    yield
    import jax  # not before XLA_FLAGS are set

    jax.clear_caches()
