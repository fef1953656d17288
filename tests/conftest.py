"""Tests spend their time compiling small programs: code generation may be quick and plain, and is
not done twice."""

import atexit
import gc
import itertools
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
TESTS = itertools.count(1)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Workers and the processes that tests start share what they have compiled from the start.

    Not earlier, as what is imported before the checks of types are in place goes without them.
    """
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses"):
        from recollect.runtime import use_compilation_cache

        use_compilation_cache()


@pytest.fixture(autouse=True)
def programs_are_let_go_before_they_are_too_many() -> Iterator[None]:
    """Each takes dozens of mappings of memory. Linux gives a process 65,530, and then XLA dies."""
    yield
    # Looked at now and then, as it takes tens of milliseconds; other systems have no such limit.
    maps = Path("/proc/self/maps")
    if next(TESTS) % 10 == 0 and maps.exists() and maps.read_bytes().count(b"\n") > 40_000:
        import jax  # not before XLA_FLAGS are set

        jax.clear_caches()
