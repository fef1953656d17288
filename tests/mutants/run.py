"""Break the library one formula at a time, and see whether the tests notice: `make mutants`.

A row of `table.py` names a function or class by its qualified name, a fragment of its source, what to
put in its place, and the tests that should then fail. Files are not named: the definition is looked for in all of
src/recollect, so that moving it changes nothing here. A row whose fragment is no longer there, or
is there more than once, is *stale* and has to be written anew.

Each mutation is applied in a copy of the sources, never in the working tree. The tests first run on
a copy without any mutation, where all have to pass; they leave their compiled programs in a cache
that the mutants read, so that only what a mutation touches is compiled again.

A mutant counts as caught only if a test failed on one of its own assertions. A mutant that cannot be imported,
whose tests cannot be collected, that raises some other error or runs out of time is *broken*,
which is as bad as *survived*: it says nothing about the tests.
"""

import argparse
import ast
import dataclasses
import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "recollect"
CACHE = ROOT / "build" / "mutants" / "xla"
REPORT = Path(__file__).with_name("RESULTS.md")
SECONDS = 300
"""After which a mutant's tests are stopped."""
ASSERTIONS = ("AssertionError", "assert ", "Failed:")
"""How the message of a test begins that failed by what it looked at; `Failed` is pytest's own, as of `raises`."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a mutation goes."""

    path: Path
    start: int
    """Of the fragment in the file's text."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a mutant: `caught`, `survived`, `broken` or `stale`."""

    mutant: Mutant
    verdict: str
    detail: str = ""
    """The first test that failed, or what went wrong."""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Caught, unless the row says why it cannot be."""
        return self.verdict == ("survived" if self.mutant.harmless else "caught")


@functools.cache
def definitions() -> dict[str, list[tuple[Path, int, str]]]:
    """For every qualified name the places where it is defined: file, offset of the definition, its source."""
    found: dict[str, list[tuple[Path, int, str]]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        offsets = [0]
        for line in lines:
            offsets.append(offsets[-1] + len(line))
        for name, node in _named(ast.parse(text)):
            start, end = offsets[node.lineno - 1], offsets[node.end_lineno or node.lineno]
            found.setdefault(name, []).append((path, start, text[start:end]))
    return found


def _named(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            yield from _named(child, f"{prefix}{child.name}.")


def place(mutant: Mutant) -> Place | str:
    """Where the mutant's fragment is, or why the row is stale."""
    known = definitions().get(mutant.function, [])
    if not known:
        return f"nothing is called {mutant.function}"
    having = [(path, start, source) for path, start, source in known if mutant.fragment in source]
    if len(having) != 1:
        return f"{len(having)} definitions of {mutant.function} have the fragment {mutant.fragment!r}"
    ((path, start, source),) = having
    if source.count(mutant.fragment) != 1:
        return f"{mutant.function} has the fragment {mutant.fragment!r} {source.count(mutant.fragment)} times"
    return Place(path, start + source.index(mutant.fragment))


def apply(mutant: Mutant, where: Place, sources: Path) -> None:
    """Write the mutation into a copy of the sources."""
    path = sources / "recollect" / where.path.relative_to(SOURCES)
    text = path.read_text(encoding="utf-8")
    assert text[where.start :].startswith(mutant.fragment)
    after = text[where.start + len(mutant.fragment) :]
    mutated = text[: where.start] + mutant.replacement + after
    ast.parse(mutated)
    path.write_text(mutated, encoding="utf-8")


def run_tests(sources: Path, tests: Sequence[str], *, write_cache: bool, more: Sequence[str] = ()):
    """Run tests on some sources; the process (None if it took too long), and pytest's report on each test."""
    report = sources / "report.xml"
    settings = {
        "PYTHONPATH": str(sources),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(CACHE),
        # A mutant's own programs are of no use to another; without writers, no reader meets half an entry.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0" if write_cache else "1e9",
    }
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--tb=line", f"--junitxml={report}", *more, *tests]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=None if write_cache else SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None, []
    cases = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ()
    return done, list(cases)


def judge(mutant: Mutant, done: subprocess.CompletedProcess | None, cases) -> tuple[str, str]:
    """The verdict, and the test or the trouble behind it."""
    if done is None:
        return "broken", f"no answer within {SECONDS} s"
    if done.returncode == 0 and cases:
        return "survived", ""
    for case in cases:
        for failure in case.findall("failure"):
            if (failure.get("message") or "").startswith(ASSERTIONS):
                return "caught", case.get("name") or ""
    last = (done.stdout.strip() or "no output").splitlines()[-1]
    for case in cases:
        for trouble in (*case.findall("failure"), *case.findall("error")):
            last = f"{case.get('name')}: {(trouble.get('message') or '').splitlines()[0]}"
    return "broken", last


def try_mutant(mutant: Mutant) -> Outcome:
    """Apply one mutation to a copy of the sources and run its tests."""
    where = place(mutant)
    if isinstance(where, str):
        return Outcome(mutant, "stale", where)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="recollect-mutant-") as folder:
        sources = Path(folder)
        copy_sources(sources)
        apply(mutant, where, sources)
        done, cases = run_tests(sources, mutant.tests, write_cache=False, more=["--exitfirst"])
    return Outcome(mutant, *judge(mutant, done, cases), time.perf_counter() - began)


def copy_sources(folder: Path) -> None:
    shutil.copytree(SOURCES, folder / "recollect", ignore=shutil.ignore_patterns("__pycache__"))


def baseline(mutants: Sequence[Mutant], processes: int) -> bool:
    """Whether all tests that rows name pass on the sources as they are."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="recollect-mutant-") as folder:
        sources = Path(folder)
        copy_sources(sources)
        imported = [sys.executable, "-c", "import recollect; print(recollect.__file__)"]
        found = subprocess.run(imported, env={**os.environ, "PYTHONPATH": folder}, cwd=ROOT, capture_output=True, text=True)
        if not found.stdout.startswith(str(sources)):
            print(f"The tests would import {found.stdout.strip() or found.stderr.strip()} instead of a copy.")
            return False
        workers = ["--numprocesses", str(processes), "--dist", "worksteal"] if processes > 1 else []
        done, cases = run_tests(sources, tests, write_cache=True, more=workers)
    assert done is not None
    if done.returncode != 0 or not cases:
        print(done.stdout)
        print("The tests have to pass before anything is broken.")
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Break the library one formula at a time, and see whether the tests notice.")
    parser.add_argument("only", nargs="*", help="rows whose name or function holds one of these words; all without")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time")
    parser.add_argument("--check", action="store_true", help="only say which rows are stale")
    arguments = parser.parse_args()
    words = [word.lower() for word in arguments.only]
    chosen = [row for row in MUTANTS if not words or any(word in f"{row.name} {row.function}".lower() for word in words)]
    stale = [Outcome(row, "stale", where) for row in chosen if isinstance(where := place(row), str)]
    if arguments.check or not chosen:
        for outcome in stale:
            print(line(outcome))
        print(f"{len(chosen)} rows, {len(stale)} stale.")
        return int(bool(stale) or not chosen)

    began = time.perf_counter()
    if not baseline(chosen, arguments.processes):
        return 1
    print(f"{len(chosen)} mutants; their tests pass without them ({time.perf_counter() - began:.0f} s).", flush=True)
    outcomes = []
    with ThreadPoolExecutor(arguments.processes) as pool:
        for outcome in pool.map(try_mutant, chosen):
            outcomes.append(outcome)
            print(line(outcome), flush=True)
    bad = [outcome for outcome in outcomes if not outcome.good]
    minutes = (time.perf_counter() - began) / 60
    counts = {verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("caught", "survived", "broken", "stale")}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    print(f"{summary}; {minutes:.1f} minutes. {'All as it should be.' if not bad else f'{len(bad)} to be mended.'}")
    if not words:
        REPORT.write_text(page(outcomes, summary, minutes), encoding="utf-8")
    return int(bool(bad))


def line(outcome: Outcome) -> str:
    detail = outcome.detail if outcome.verdict != "survived" else outcome.mutant.harmless or "nothing saw it"
    mark = " " if outcome.good else "!"
    return f"{mark} {outcome.verdict:8} {outcome.seconds:5.1f} s  {outcome.mutant.name} ({outcome.mutant.function}): {detail}"


def page(outcomes: Sequence[Outcome], summary: str, minutes: float) -> str:
    """The committed result."""
    rows = ["| mutation | in | verdict | by, or why |", "|---|---|---|---|"]
    for outcome in outcomes:
        mutant = outcome.mutant
        detail = mutant.harmless if outcome.verdict == "survived" and mutant.harmless else f"`{outcome.detail}`"
        rows.append(f"| {mutant.name} | `{mutant.function}` | {outcome.verdict} | {detail} |")
    head = (
        "# What the tests notice\n\n"
        "Written by `make mutants`, which breaks the library one formula at a time (`table.py`) and runs the tests that should see it.\n\n"
        f"{len(outcomes)} mutations: {summary}. It took {minutes:.0f} minutes on {os.cpu_count()} cores (Python {platform.python_version()}).\n"
    )
    return head + "\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
