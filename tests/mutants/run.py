"""Break the library one formula at a time, and see whether the tests notice: `make mutants`.

A row of `table.py` names a function or class by its qualified name, a fragment of its source, what
to put in its place, and the tests that should then fail. Files are not named: the definition is
looked for in all of src/recollect, so that moving it changes nothing here. A row whose fragment is
no longer there, or is there more than once, is *stale* and has to be written anew.

Sources and tests are copied at the start, and each mutation is applied in a copy of its own: the
working tree is never touched, and may change meanwhile. The tests first run without any mutation,
where all have to pass. They leave their compiled programs in a cache that the mutants read, so
that only what a mutation touches is compiled again.

A mutant counts as caught only if a test failed on one of its own assertions. A mutant that cannot
be imported, whose tests cannot be collected, that raises some other error or runs out of time is
*broken*, which is as bad as *survived*: it says nothing about the tests.
"""

import argparse
import ast
import collections
import dataclasses
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
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
# Checks of shapes and words about what differed are not needed here, and take half of the time.
OPTIONS = ("--quiet", "--tb=line", "--assert=plain", "-oaddopts=", "-pno:cacheprovider")
ASSERTIONS = ("AssertionError", "Failed:")
"""How the message begins if a test failed by what it looked at; `Failed` is said of `raises`."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a mutation goes."""

    path: Path
    start: int
    """Of the fragment in the file's text."""
    end: int


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
    """For every qualified name the places where it is defined: file, offset, source."""
    places: dict[str, list[tuple[Path, int, str]]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        offsets = [0]
        for line in text.split("\n"):
            offsets.append(offsets[-1] + len(line) + 1)
        for name, node in _named(ast.parse(text)):
            start = offsets[node.lineno - 1]
            end = offsets[node.end_lineno or node.lineno]
            places.setdefault(name, []).append((path, start, text[start:end]))
    return places


def _named(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """All definitions within a node, with their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            yield from _named(child, f"{prefix}{child.name}.")


def place(mutant: Mutant) -> Place | str:
    """Where the mutant's fragment is, or why the row is stale."""
    known = definitions().get(mutant.function, [])
    if not known:
        return f"nothing is called {mutant.function}"
    pattern = loosely(mutant.fragment)
    having = [one for one in known if pattern.search(one[2])]
    if len(having) != 1:
        return f"{len(having)} of {len(known)} definitions have the fragment {mutant.fragment!r}"
    ((path, start, source),) = having
    matches = list(pattern.finditer(source))
    if len(matches) != 1:
        return f"the fragment {mutant.fragment!r} is there {len(matches)} times"
    return Place(path, start + matches[0].start(), start + matches[0].end())


def loosely(fragment: str) -> re.Pattern[str]:
    """The fragment however its lines are broken.

    White space is free, and so are commas before closing brackets.
    """
    pattern = ""
    previous = ""
    for token in re.findall(r"\w+|[^\w\s]", fragment):
        if previous:
            pattern += r"\s+" if previous[-1].isalnum() and token[0].isalnum() else r"\s*"
        if token in ")]}" and previous != ",":
            pattern += r"(?:,\s*)?"
        pattern += re.escape(token)
        previous = token
    start = r"(?<!\w)" if fragment[:1].isalnum() else ""
    return re.compile(start + pattern)


def apply(mutant: Mutant, where: Place, sources: Path) -> None:
    """Write the mutation into a copy of the sources."""
    path = sources / "recollect" / where.path.relative_to(SOURCES)
    text = path.read_text(encoding="utf-8")
    mutated = text[: where.start] + mutant.replacement + text[where.end :]
    ast.parse(mutated)
    path.write_text(mutated, encoding="utf-8")


def snapshot(folder: Path) -> None:
    """Copy what the tests need."""
    no_bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCES, folder / "src" / "recollect", ignore=no_bytecode)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=no_bytecode)
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_tests(copy: Path, sources: Path, tests: Sequence[str], *, write_cache=False, more=()):
    """Run tests on some sources: the process (None if it took too long), a report on each test."""
    report = sources / "report.xml"
    settings = {
        "PYTHONPATH": str(sources),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(CACHE),
        # A mutant's own programs are of no use to another, and without writers no reader meets
        # an entry that is half written.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0" if write_cache else "1e9",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={report}", *more, *tests],
            cwd=copy,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=None if write_cache else SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None, []
    if not report.exists():
        return done, []
    return done, list(xml.etree.ElementTree.parse(report).getroot().iter("testcase"))


def judge(done: subprocess.CompletedProcess | None, cases) -> tuple[str, str]:
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


def try_mutant(copy: Path, mutant: Mutant, where: Place | str) -> Outcome:
    """Apply one mutation to a copy of the sources and run its tests."""
    if isinstance(where, str):
        return Outcome(mutant, "stale", where)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="recollect-mutant-") as folder:
        sources = Path(folder)
        shutil.copytree(copy / "src", sources, dirs_exist_ok=True)
        apply(mutant, where, sources)
        done, cases = run_tests(copy, sources, mutant.tests, more=["--exitfirst"])
    return Outcome(mutant, *judge(done, cases), time.perf_counter() - began)


def baseline(copy: Path, mutants: Sequence[Mutant], processes: int) -> bool:
    """Whether all tests that rows name pass on the sources as they are."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    CACHE.mkdir(parents=True, exist_ok=True)
    if not imported_from(copy / "src"):
        print("The tests would not import the copy of the sources.")
        return False
    workers = ["--dist=worksteal", f"--numprocesses={processes}"]
    done, cases = run_tests(copy, copy / "src", tests, write_cache=True, more=workers)
    assert done is not None
    if done.returncode != 0 or not cases:
        print(done.stdout)
        print("The tests have to pass before anything is broken.")
        return False
    return True


def imported_from(sources: Path) -> bool:
    """Whether Python finds the library in the copy rather than where it is installed."""
    command = [sys.executable, "-c", "import recollect; print(recollect.__file__)"]
    settings = {**os.environ, "PYTHONPATH": str(sources)}
    done = subprocess.run(command, env=settings, cwd=sources, capture_output=True, text=True)
    return done.stdout.startswith(str(sources))


def main() -> int:
    """Run the rows asked for; the exit code says whether something is to be mended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("only", nargs="*", help="rows that hold one of these words; all without")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time")
    parser.add_argument("--check", action="store_true", help="only say which rows are stale")
    arguments = parser.parse_args()
    assert len({row.name for row in MUTANTS}) == len(MUTANTS), "two rows have the same name"
    words = [word.lower() for word in arguments.only]
    holds = lambda row: any(word in f"{row.name} {row.function}".lower() for word in words)
    chosen = [row for row in MUTANTS if not words or holds(row)]
    places = [(row, place(row)) for row in chosen]
    stale = [Outcome(row, "stale", where) for row, where in places if isinstance(where, str)]
    if arguments.check or not chosen:
        for outcome in stale:
            print(line(outcome))
        print(f"{len(chosen)} rows, {len(stale)} stale.")
        return int(bool(stale) or not chosen)

    began = time.perf_counter()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="recollect-mutants-") as folder:
        copy = Path(folder)
        snapshot(copy)
        if not baseline(copy, chosen, arguments.processes):
            return 1
        seconds = time.perf_counter() - began
        print(f"{len(chosen)} mutants; the tests pass without them ({seconds:.0f} s).", flush=True)
        with ThreadPoolExecutor(arguments.processes) as pool:
            for outcome in pool.map(lambda one: try_mutant(copy, *one), places):
                outcomes.append(outcome)
                print(line(outcome), flush=True)
    bad = [outcome for outcome in outcomes if not outcome.good]
    minutes = (time.perf_counter() - began) / 60
    counts = collections.Counter(outcome.verdict for outcome in outcomes)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    print(f"{summary}; {len(bad)} to be mended; {minutes:.1f} minutes.")
    REPORT.write_text(page(outcomes), encoding="utf-8")
    return int(bool(bad))


def line(outcome: Outcome) -> str:
    """What is printed of a mutant; a mark in front where something is to be mended."""
    mutant = outcome.mutant
    mark = " " if outcome.good else "!"
    place = f"{mutant.name} ({mutant.function})"
    return f"{mark} {outcome.verdict:8} {outcome.seconds:5.1f} s  {place}: {_reason(outcome)}"


def page(outcomes: Sequence[Outcome]) -> str:
    """The committed result, in which rows that were not run now stay as they were."""
    old = REPORT.read_text(encoding="utf-8").split("\n") if REPORT.exists() else []
    rows = {line.split(" | ")[0]: line for line in old if line.startswith("| ")}
    for outcome in outcomes:
        mutant = outcome.mutant
        cells = (mutant.name, f"`{mutant.function}`", outcome.verdict, _reason(outcome))
        rows[f"| {mutant.name}"] = f"| {' | '.join(cells)} |"
    names = [f"| {mutant.name}" for mutant in MUTANTS]
    kept = [rows[name] for name in names if name in rows]
    counts = collections.Counter(row.split(" | ")[2] for row in kept)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    head = (
        "# What the tests notice\n\n"
        "Written by `make mutants`, which breaks the library one formula at a time (`table.py`)\n"
        "and runs the tests that should see it.\n\n"
        f"{len(kept)} mutations: {summary}.\n\n"
        "| mutation | in | verdict | by, or why |\n|---|---|---|---|\n"
    )
    return head + "\n".join(kept) + "\n"


def _reason(outcome: Outcome) -> str:
    """The test that saw a mutant, what went wrong with it, or why nothing could see it."""
    if outcome.verdict == "survived":
        return outcome.mutant.harmless or "nothing saw it"
    return f"`{outcome.detail}`" if outcome.verdict == "caught" else outcome.detail


if __name__ == "__main__":
    sys.exit(main())
