"""What surrounds a run, on this platform and on others: cores, processes, files, the cache."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from recollect import runtime
from recollect.run.files import legal
from recollect.workers import on_every_core

GROUPS = {
    # Membership, files below the mount, cores.
    "second version": ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
    "the group around it": (
        "0::/a/b\n",
        {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"},
        0.5,
    ),
    "inside a container": ("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),
    "container, path of the host": ("0::/docker/12ab\n", {"cpu.max": "300000 100000\n"}, 3.0),
    "no limit": ("0::/\n", {"cpu.max": "max 100000\n"}, float("inf")),
    "first version": (
        "5:memory:/a\n4:cpu,cpuacct:/a\n",
        {"cpu/a/cpu.cfs_quota_us": "400000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
        4.0,
    ),
    "first version, no limit": (
        "4:cpu,cpuacct:/\n",
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
        float("inf"),
    ),
    "only the set of cores": (
        "4:cpuset:/\n",
        {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"},
        float("inf"),
    ),
    "nothing there": ("0::/\n", {}, float("inf")),
}


@pytest.mark.parametrize("name", GROUPS)
def test_limits_of_cgroups_are_read(name, tmp_path, monkeypatch):
    membership, files, limit = GROUPS[name]
    (tmp_path / "cgroup").write_text(membership)
    for file, text in files.items():
        path = tmp_path / "mount" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(runtime, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(runtime, "CGROUPS", tmp_path / "mount")
    assert runtime._cgroup_limit() == limit
    seen = len(os.sched_getaffinity(0))
    assert runtime.cores() == min(seen, max(1, np.ceil(limit)))


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    assert 1 <= runtime.cores() <= len(os.sched_getaffinity(0))
    with monkeypatch.context() as told:
        told.setenv("PJRT_NPROC", "1")
        assert runtime.cores() == 1
    program = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
    program += "from recollect.runtime import cores; print(cores())"
    assert _python(program) == "1"


ELSEWHERE = """
import os, signal, sys
for name in (
    "sched_getaffinity sched_setaffinity getuid geteuid getgid getppid getpgid getpgrp fork forkpty"
    " killpg setsid nice getloadavg chown O_DIRECTORY"
).split():
    delattr(os, name)
for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "alarm", "setitimer"):
    delattr(signal, name)
sys.modules |= dict.fromkeys(("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty"))
"""
RUNS = """
import os
from recollect.cli import main
from recollect.runtime import cores
from recollect.workers import on_every_core
assert not hasattr(os, "getuid")
assert cores() >= 1
assert on_every_core(abs, [-1, -2]) == [1, 2]
assert on_every_core(os.getenv, ["PJRT_NPROC"]) == ["1"]
train = "train vpg CartPole-v1 --iterations 1 --seeds 2 --max-steps 5 --preset paper --out train"
rate = "theory rate --iterations 20 --replications 8 --windows 1 --out rate"
assert main(train.split()) == 0
assert main("resume train --iterations 2".split()) == 0
assert main(rate.split()) == 0
"""


def test_everything_runs_where_neither_cores_nor_users_are_known_nor_greek_letters(tmp_path):
    """As on macOS and Windows: for every process that is started, too."""
    (tmp_path / "sitecustomize.py").write_text(ELSEWHERE)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ascii_only = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    _python(RUNS, cwd=tmp_path, PYTHONPATH=path, **ascii_only)
    assert "Σ∞" in (tmp_path / "rate" / "verdict.txt").read_text(encoding="utf-8")
    assert len((tmp_path / "train" / "progress.csv").read_text().splitlines()) == 1 + 2 * 2


BUSY = """
import os, sys, time
from recollect.workers import receive, send, start_worker
worker = start_worker(0)
send(worker, abs, -1)
receive(worker)
send(worker, time.sleep, 60)
print(worker.pid, flush=True)
time.sleep(60)
"""


def test_a_process_ends_with_its_parent_in_the_middle_of_a_task(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os; del os.getppid")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        [sys.executable, "-c", BUSY],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    until = time.monotonic() + 10
    while _lives(worker):
        assert time.monotonic() < until
        time.sleep(0.05)


def _lives(process: int) -> bool:
    """Whether a process is there and not waiting for a parent to ask how it ended."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("module:Name-v0", "module-Name-v0"),
        ("CON", "_CON"),
        ("nul.v1", "_nul.v1"),
        ("COM7 .x", "_COM7 .x"),
        ("console-v0", "console-v0"),
        ("dots...", "dots"),
        ("..", "unnamed"),
        ("a" * 300, "a" * 120),
        ("tab\there?", "tab-here-"),
    ],
)
def test_folders_have_names_that_every_system_takes(name, expected):
    assert legal(name) == expected


def _python(program, cwd=None, **environment):
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr  # of a thread or of another process
    return result.stdout.strip()


def test_processes_run_nothing_that_lies_in_the_current_directory(tmp_path, monkeypatch):
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w').close()"
    for name in ("threadpoolctl", "pickle", "jax", "recollect"):
        (tmp_path / f"{name}.py").write_text(trap)
    monkeypatch.chdir(tmp_path)
    assert on_every_core(abs, [-1]) == [1]
    assert not (tmp_path / "sprung").exists()


def test_the_cache_is_made_for_this_user_alone(tmp_path):
    folder = runtime._private_folder(tmp_path / "home" / ".cache")
    assert folder == (tmp_path / "home" / ".cache" / "recollect" / "xla").resolve()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert runtime._private_folder(tmp_path / "home" / ".cache") == folder


def test_a_link_is_no_cache_and_where_it_leads_stays_as_it_was(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    target.chmod(0o755)
    (tmp_path / "recollect").mkdir()
    (tmp_path / "recollect" / "xla").symlink_to(target)
    assert runtime._private_folder(tmp_path) is None
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


@pytest.mark.parametrize(("mode", "private"), [(0o777, False), (0o1777, True), (0o755, True)])
@pytest.mark.parametrize("part", [".", "recollect"])
def test_a_cache_in_a_folder_that_others_can_write_to_is_none(tmp_path, mode, private, part):
    folder = tmp_path / "home" / part
    folder.mkdir(parents=True)
    folder.chmod(mode)
    assert (runtime._private_folder(tmp_path / "home") is not None) == private


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_cache_that_others_can_write_to_is_none(tmp_path, mode):
    folder = runtime._private_folder(tmp_path)
    assert folder is not None
    folder.chmod(mode)
    assert runtime._private_folder(tmp_path) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
def test_a_group_of_others_counts_as_others_and_the_users_own_does_not(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o775)
    assert runtime._private_folder(home) is not None
    os.chown(home, -1, 12345)
    home.chmod(0o775)
    assert runtime._private_folder(home) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
@pytest.mark.parametrize("part", ["recollect/xla", "recollect", "."])
def test_a_cache_in_a_folder_of_someone_else_is_none(tmp_path, part):
    assert runtime._private_folder(tmp_path / "home") is not None
    os.chown(tmp_path / "home" / part, 12345, 12345)
    assert runtime._private_folder(tmp_path / "home") is None
