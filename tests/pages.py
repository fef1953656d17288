"""The code blocks of README and of the pages under docs/: which there are, and how they are run.

    python tests/pages.py [PAGE ...]        # all blocks of these pages, or of all

Every block names its language. `python` blocks of a page are one script, `sh` blocks a session of
the command line, both at the sizes of `SMALLER` and in a folder of their own. Any other block is
text. The line *Not run here: REASON* before a block keeps it from being run, and says why on the
page itself.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.M | re.S)
REASON = re.compile(r"^\*Not run here: (.+)\*$")
RUN = ("python", "sh")
TEXT = ("text", "pycon", "csv", "json")

SMALLER = {
    r"\bseeds=\d+": "seeds=1",
    r"\biterations=\d+": "iterations=1",
    r"\benvironment_steps=[\d_]+": "environment_steps=1",
    r"\btotal_timesteps=[\d_]+": "total_timesteps=1",
    r"\bepisodes=\d+": "episodes=2",
    r"\bevery=\d+": "every=1",
    r"\bsteps=128": "steps=8",
    r"\bcopies=4": "copies=1",
    r"\bcollector=tuned.collector": "collector=Steps(2, 8)",
    r"--seeds \d+": "--seeds 1",
    r"--iterations \d+": "--iterations 2",
    r"--environment-steps \d+": "--environment-steps 1",
    r"--episodes \d+": "--episodes 2",
}
"""What sizes on the pages become where they are run."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not run, if it says so."""


def pages() -> list[Path]:
    """README and all pages of the site."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page.relative_to(ROOT) for page in found]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, without Sphinx's directives."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        if match[1].startswith("{"):
            continue
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        reason = REASON.match(before)
        line = text.count("\n", 0, match.start()) + 1
        told = reason[1] if reason else None
        found.append(Block(page, line, match[1], match[2], told))
    return found


def to_run(page: Path, language: str) -> str:
    """The blocks of a page in one language that are run, at smaller sizes."""
    text = "\n".join(
        one.text for one in blocks(page) if one.language == language and not one.reason
    )
    for size, smaller in SMALLER.items():
        text = re.sub(size, smaller, text)
    return text


def commands(text: str) -> list[list[str]]:
    """The words of every line of a session."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_script(page: Path, folder: Path) -> subprocess.CompletedProcess:
    """Run the Python blocks of a page as one script, in a folder."""
    script = folder / "script.py"
    script.write_text(to_run(page, "python"), encoding="utf-8")
    command = [sys.executable, script.name]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def run_session(page: Path, folder: Path) -> Iterator[tuple[list[str], int, str]]:
    """Run the commands of a page in a folder; each with its exit code and what it wrote."""
    from recollect.cli import main

    for words in commands(to_run(page, "sh")):
        out = io.StringIO()
        shown = contextlib.redirect_stdout(out), contextlib.redirect_stderr(out)
        with contextlib.chdir(folder), shown[0], shown[1]:
            code = _run(words, main)
        yield words, code, out.getvalue()


def _run(words: list[str], main) -> int:
    """The exit code of one command: `recollect` in this process, others in theirs."""
    if words[0] == "recollect":
        return main(words[1:])
    given = [sys.executable, *words[1:]] if words[0] == "python" else words
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    return done.returncode


def _furnish(folder: Path) -> None:
    """What commands may name: the examples, and as modules of the folder too."""
    os.symlink(ROOT / "examples", folder / "examples")
    for example in (ROOT / "examples").glob("*.py"):
        os.symlink(example, folder / example.name)


def _report(page: Path) -> list[str]:
    """What went wrong on a page."""
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _furnish(folder)
        if to_run(page, "python"):
            done = run_script(page, folder)
            wrong += [done.stderr] if done.returncode else []
        for words, code, out in run_session(page, folder):
            wrong += [f"{shlex.join(words)}: exit code {code}\n{out}"] if code else []
    return wrong


def main(names: list[str]) -> int:
    """Run pages, and say how long each took; returns the exit code."""
    failed = 0
    for page in map(Path, names) if names else pages():
        start = time.perf_counter()
        wrong = _report(page)
        failed += len(wrong)
        print(f"{page}: {'failed' if wrong else 'ok'}, {time.perf_counter() - start:.1f} s")
        print("\n".join(wrong), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
