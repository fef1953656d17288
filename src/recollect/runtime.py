"""What surrounds a run: threads, a private compilation cache and a progress bar."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import scipy.linalg  # noqa: F401  brings in the BLAS that JAX factors matrices with, so that it can be told
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits


def one_blas_thread() -> contextlib.AbstractContextManager:
    """Within it, matrices are factored by the thread that asks.

    Every core already runs a program of its own. Threads of the BLAS on top of that wait for each other in a
    spin: factoring 256 rows took 180 ms instead of 1 on two busy cores.
    """
    return threadpool_limits(1, user_api="blas")


def use_compilation_cache() -> None:
    """Keep compiled programs on disk for this user alone, unless JAX has been told of a cache already."""
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "recollect" / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(stat.S_IRWXU)
        mine = folder.stat().st_uid == os.getuid()
    except OSError:
        return
    # A program someone else put there would run as us.
    if mine and not folder.is_symlink():
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def jit(function: Callable) -> Callable:
    """`eqx.filter_jit` at level 1, which takes two thirds of the time to compile; its programs measured as fast.

    A level that the user has set in XLA_FLAGS is the user's.
    """
    level = "xla_backend_optimization_level"
    options: Any = {} if level in os.environ.get("XLA_FLAGS", "") else dict(compiler_options={level: 1})
    return eqx.filter_jit(function, **options)


def compile_quickly() -> None:
    """Plain and quick machine code from now on, for runs that last seconds; only before JAX has computed anything."""
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{quick} {os.environ.get('XLA_FLAGS', '')}"


@contextlib.contextmanager
def progress_bar(visible: bool, label: str) -> Iterator[Callable[[float, str], None]]:
    """A bar on standard error, fed with the fraction done and a note."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not visible) as progress:
        task = progress.add_task(label, total=1.0, note="compiling")
        yield lambda fraction, note: progress.update(task, completed=fraction, note=note)
