"""What surrounds a run: cores, threads, a private compilation cache and a progress bar."""

import contextlib
import math
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

MEMBERSHIP = Path("/proc/self/cgroup")
"""Where Linux says to which cgroups a process belongs."""
CGROUPS = Path("/sys/fs/cgroup")
"""Where it shows them."""


def cores() -> int:
    """How many cores this process may keep busy: those it sees, within the limits of its cgroup."""
    return max(1, math.ceil(min(len(core_numbers()), _cgroup_limit())))


def core_numbers() -> list[int]:
    """The cores that this process sees; only Linux can hold a process to some of them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _cgroup_limit() -> float:
    """Cores' worth of time that the cgroups of this process have, as containers limit it.

    A group has at most what those around it have. In a container they may be out of sight, and the
    group itself be mounted at the top, so that every level is looked at, where it exists.
    """
    limits = [math.inf]
    with contextlib.suppress(OSError):
        for line in MEMBERSHIP.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            # The second version has one tree for all controllers, which it does not name.
            second = controllers == ""
            if not second and "cpu" not in controllers.split(","):
                continue
            tree = CGROUPS if second else CGROUPS / "cpu"
            group = tree / path.lstrip("/")
            levels = [one for one in (group, *group.parents) if one.is_relative_to(tree)]
            limits += [_quota(level, second) for level in levels]
    return min(limits)


def _quota(group: Path, second: bool) -> float:
    """Time over period of one cgroup; infinite where there is no limit."""
    files = ("cpu.max",) if second else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        words = [word for file in files for word in (group / file).read_text("ascii").split()]
        time, period = (float(word) for word in words)
    except (OSError, ValueError):  # no such file, or "max"
        return math.inf
    return time / period if time > 0 and period > 0 else math.inf


def one_blas_thread() -> contextlib.AbstractContextManager:
    """Within it, matrices are factored by the thread that asks.

    Every core already runs a program of its own. Threads of the BLAS on top of that wait for each other in a
    spin: factoring 256 rows took 180 ms instead of 1 on two busy cores.
    """
    return threadpool_limits(1, user_api="blas")


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, unless JAX has been told of a cache already."""
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = _private_folder(home)
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _private_folder(home: Path) -> Path | None:
    """A folder for programs below `home` to which only this user can write; None if there is none.

    A program that someone else put there would run as us, and whoever can write to a folder around
    it could put another in its place.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        folder = home.resolve() / "recollect" / "xla"
        for part in (folder.parent, folder):
            part.mkdir(mode=stat.S_IRWXU, exist_ok=True)
        if folder.resolve() != folder:  # a link of ours is none
            return None
        around = all(_only_ours(part, sticky=True) for part in folder.parents)
        return folder if around and _only_ours(folder, sticky=False) else None
    except OSError:
        return None


def _only_ours(folder: Path, sticky: bool) -> bool:
    """Whether only we and root can write there or, if `sticky` is enough, replace what is ours."""
    if not hasattr(os, "getuid"):  # Windows: a user's folders are closed to others
        return True
    about = folder.stat()
    # A group with the number of the owner is, by convention, the owner's alone.
    others = stat.S_IWOTH | (0 if about.st_gid == about.st_uid else stat.S_IWGRP)
    # In folders such as /tmp everyone can add, but nobody replace what is another's.
    shared = about.st_mode & others and not (sticky and about.st_mode & stat.S_ISVTX)
    return about.st_uid in (0, os.getuid()) and not shared


def jit(function: Callable) -> Callable:
    """`eqx.filter_jit` at level 1, which takes two thirds of the time to compile; its programs measured as fast.

    A level that the user has set in XLA_FLAGS is the user's.
    """
    level = "xla_backend_optimization_level"
    options: Any = (
        {} if level in os.environ.get("XLA_FLAGS", "") else dict(compiler_options={level: 1})
    )
    return eqx.filter_jit(function, **options)


def compile_quickly() -> None:
    """Plain and quick machine code from now on, for runs that last seconds; only before JAX has computed anything."""
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{quick} {os.environ.get('XLA_FLAGS', '')}"


@contextlib.contextmanager
def progress_bar(visible: bool, label: str) -> Iterator[Callable[[float, str], None]]:
    """A bar on standard error, fed with the fraction done and a note."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not visible) as progress:
        task = progress.add_task(label, total=1.0, note="compiling")
        yield lambda fraction, note: progress.update(task, completed=fraction, note=note)
