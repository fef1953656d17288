"""What the scripts share: small runs, processes that start quickly, and the table of results."""

import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "reliability.md"
INTRODUCTION = """# Reliability

What happens on a bad day, measured. Each row is a script of one page in `reliability/`, which
repeats the measurement and writes its row anew; a number after its name says how often; all of
them: `python reliability/run.py`. Small versions are tests (`tests/test_reliability.py`).

| what | how often | what happened | command |
|---|---|---|---|
"""


def set_up() -> None:
    """Let this process, and those it starts, compile quickly and only once; before JAX is used."""
    from recollect.runtime import compile_quickly

    compile_quickly()
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / "build" / "reliability"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def processes() -> Any:
    """Starts processes from one that has imported the library, and has done nothing with it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["recollect.agent.agent", "recollect.run.hosted"])
    return context


def apart(function: Callable, *arguments: Any) -> Any:
    """What a function gives in a process of its own."""
    with processes().Pool(1) as pool:
        return pool.apply(function, arguments)


def problem(engine: str = "compiled") -> dict[str, Any]:
    """Arguments of `train` for a small run, with `engine="gymnasium"` one on the host."""
    import recollect as rc

    return dict(
        env=rc.envs.EnvSettings("CartPole-v1", engine=engine, max_steps=30),
        algorithm=rc.RPG(window=3, advantages=rc.Returns()),
        collector=rc.Steps(copies=2, steps=8),
        policy=rc.Architecture(widths=(4,)),
    )


def record(script: str, what: str, times: str, result: str) -> None:
    """Print a row of the table, and write it down."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    rows[f"{script}: {what}"] = [what, times, result, f"`python reliability/{script}`"]
    lines = [f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(rows.items())]
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    table = [f"| {' | '.join(rows[key])} |" for key in sorted(rows)]
    PAGE.write_text(INTRODUCTION + "\n".join(table) + "\n", encoding="utf-8")
    print(f"{what} · {times} · {result}", flush=True)


def sentence(function: Callable[[], Any]) -> str:
    """The message of the ValueError that a call raises: one line; fails if there is none."""
    try:
        function()
    except ValueError as error:
        text = str(error)
    else:
        raise AssertionError("nothing was refused")
    assert "\n" not in text, text
    return text


def folder() -> tempfile.TemporaryDirectory:
    """A folder that is gone afterwards."""
    return tempfile.TemporaryDirectory(prefix="reliability-")


def count(default: int) -> int:
    """How often: the first word on the command line, or all of it."""
    return int(sys.argv[1]) if len(sys.argv) > 1 else default


def quiet() -> None:
    """Warnings are what most of these runs are about; those that count are looked at."""
    warnings.simplefilter("ignore")
