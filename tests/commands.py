"""Commands of the command line, run in real processes."""

import json
import subprocess
import sys
from pathlib import Path

RECOLLECT = str(Path(sys.executable).parent / "recollect")
ONE_BY_ONE = """
import contextlib, io, json, sys
from recollect.cli import main
found = []
for words in json.load(sys.stdin):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(words)
    found.append((code, out.getvalue(), errors.getvalue()))
print(json.dumps(found))
"""


def recollect(*words, cwd=None):
    return subprocess.run([RECOLLECT, *map(str, words)], capture_output=True, text=True, cwd=cwd)


def in_one_process(commands, cwd=None):
    """Exit code, output and errors of commands, run in one process without pytest's type checks."""
    words = json.dumps([[*map(str, words)] for words in commands])
    result = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE], input=words, capture_output=True, text=True, cwd=cwd
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])
