"""Surroundings of a run: cores, threads, compilation options and cache, a progress bar."""

import contextlib
import functools
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import scipy.linalg  # noqa: F401  loads the BLAS that JAX uses, so that threadpoolctl finds it
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from recollect.devices import ACCELERATOR, CPU, at_full_precision, backend

CONFIGURATION = (
    "jax_enable_x64",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_default_matmul_precision",
)
"""Settings of JAX that draws and policies depend on."""
MEMBERSHIP = Path("/proc/self/cgroup")
"""File in which Linux lists the cgroups of a process."""
CGROUPS = Path("/sys/fs/cgroup")
"""Folder in which Linux shows the settings of cgroups."""


def cores() -> int:
    """Number of cores that this process may use: those it sees, within the limits of its cgroup
    and of PJRT_NPROC, by which XLA is told where a process cannot be restricted to some.

    Example:
        >>> from recollect.runtime import core_numbers, cores
        >>> 1 <= cores() <= len(core_numbers())
        True
    """
    told = os.environ.get("PJRT_NPROC", "")
    limit = int(told) if told.isdecimal() else math.inf
    return max(1, math.ceil(min(len(core_numbers()), _cgroup_limit(), limit)))


def core_numbers() -> list[int]:
    """Numbers of the cores that this process sees; only Linux can restrict a process to some."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def memory() -> float:
    """Bytes of memory that the machine has; infinite where it does not say.

    Example:
        >>> from recollect.runtime import memory
        >>> memory() > 2**20
        True
    """
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _cgroup_limit() -> float:
    """CPU time per time, in cores, that the cgroups of this process allow, as containers set it.

    A group is limited by all groups around it. In a container these may be invisible, and the group
    itself may be mounted at the top, so every level that exists is looked at.
    """
    limits = [math.inf]
    with contextlib.suppress(OSError):
        for line in MEMBERSHIP.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            # Version 2 of cgroups has one tree for all controllers, and an empty field here.
            version_2 = controllers == ""
            if not version_2 and "cpu" not in controllers.split(","):
                continue
            tree = CGROUPS if version_2 else CGROUPS / "cpu"
            group = tree / path.lstrip("/")
            levels = [level for level in (group, *group.parents) if level.is_relative_to(tree)]
            limits += [_quota(level, version_2) for level in levels]
    return min(limits)


def _quota(group: Path, version_2: bool) -> float:
    """CPU time over period of one cgroup; infinite if there is no limit."""
    files = ("cpu.max",) if version_2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        words = [word for file in files for word in (group / file).read_text("ascii").split()]
        time, period = (float(word) for word in words)
    except (OSError, ValueError):  # no such file, or "max"
        return math.inf
    return time / period if time > 0 and period > 0 else math.inf


def one_blas_thread() -> contextlib.AbstractContextManager:
    """A context in which BLAS uses one thread, the one that calls it.

    Every core already runs a program of its own. More threads of the BLAS then wait for each other
    in a spin lock: factoring 256 rows took 180 ms instead of 1 on two busy cores.
    """
    return threadpool_limits(1, user_api="blas")


def use_compilation_cache() -> None:
    """Let JAX keep compiled programs on disk, unless it has a cache already."""
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = _private_folder(home)
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def configuration() -> dict[str, Any]:
    """The settings of JAX that an actor has to share."""
    return {name: jax.config.values[name] for name in CONFIGURATION}


def configure_actor(configuration: Mapping[str, Any]) -> None:
    """Let an actor's process compute as the one that has started it.

    On the CPU, where environments are.
    """
    for name, value in configuration.items():
        jax.config.update(name, value)
    jax.config.update("jax_platforms", "cpu")
    use_compilation_cache()


def _private_folder(home: Path) -> Path | None:
    """A folder below `home` to which only this user can write; None if there cannot be one.

    Compiled programs from it are run with this user's rights, so nobody else may be able to write
    to it, nor to any folder around it, where it could be replaced as a whole.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        folder = home.resolve() / "recollect" / "xla"
        for part in (folder.parent, folder):
            part.mkdir(mode=stat.S_IRWXU, exist_ok=True)
        if folder.resolve() != folder:  # `recollect` or `xla` is a symbolic link
            return None
        parents_safe = all(_only_ours(part, sticky=True) for part in folder.parents)
        return folder if parents_safe and _only_ours(folder, sticky=False) else None
    except OSError:
        return None


def _only_ours(folder: Path, sticky: bool) -> bool:
    """Whether only this user and root can write to a folder.

    With `sticky`, a folder to which others can write is accepted if it has the sticky bit, as /tmp
    has: they can add files there, but not replace those of this user.
    """
    if not hasattr(os, "getuid"):  # Windows: a user's folders are closed to others
        return True
    status = folder.stat()
    # A group with the same number as the owner is, by convention, the owner's alone.
    others = stat.S_IWOTH | (0 if status.st_gid == status.st_uid else stat.S_IWGRP)
    shared = status.st_mode & others and not (sticky and status.st_mode & stat.S_ISVTX)
    return status.st_uid in (0, os.getuid()) and not shared


def jit(function: Callable, on_cpu: Mapping[str, Any] = CPU.compiler_options) -> Callable:
    """`eqx.filter_jit` with products at full precision, and options that suit the device.

    Args:
        function: to be compiled.
        on_cpu: options of the compiler for CPUs. Those that the user has set in XLA_FLAGS take
            precedence.
    """
    precise = at_full_precision(function)
    flags = os.environ.get("XLA_FLAGS", "")
    ours = {name: value for name, value in on_cpu.items() if name not in flags}
    for_cpu: Any = dict(compiler_options=ours)
    for_others: Any = dict(compiler_options=dict(ACCELERATOR.compiler_options))
    compiled = {
        CPU: eqx.filter_jit(precise, **for_cpu),
        ACCELERATOR: eqx.filter_jit(precise, **for_others),
    }

    # Which backend there is, JAX finds out at the first call, and not when modules are imported.
    @functools.wraps(function)
    def call(*args):
        return compiled[backend()](*args)

    return call


def compile_quickly() -> None:
    """Let XLA compile quickly to slower programs, for runs that last seconds.

    It has an effect only before JAX's first computation. Flags that the user has set come last and
    take precedence.
    """
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    if jax.__version_info__ < (0, 11):  # 0.12 has no such flag, and ends a process that gives it
        quick += " --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{quick} {os.environ.get('XLA_FLAGS', '')}"


@contextlib.contextmanager
def progress_bar(visible: bool, label: str) -> Iterator[Callable[[float, str], None]]:
    """A context with a progress bar on standard error.

    Args:
        visible: whether to show it.
        label: text in front of the bar.

    Yields:
        The function to call with the fraction done and a note to show.
    """
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
