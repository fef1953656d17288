"""README is short, versions agree, and make needs no more than README promises."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import recollect

ROOT = Path(__file__).parent.parent
MAKE = shutil.which("make")
RUNS = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
BROKEN = "#!/bin/sh\necho no such version >&2\nexit 127\n"
OLD = '#!/bin/sh\ncase "$2" in *version_info*) exit 1;; esac\n'
NO_VENV = '#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\n'


def test_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


def test_the_version_and_its_date_are_the_same_everywhere():
    told = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.search(r"^## (\d\S+) - (\S+)$", told, re.M).groups()
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\ndate-released: {date}\n" in cited
    assert recollect.__version__ == version


def made(folder, pythons, *words):
    """What `make install` would run where these commands are all there is."""
    (folder / "bin").mkdir()
    for name, script in pythons.items():
        (folder / "bin" / name).write_text(script)
        (folder / "bin" / name).chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    # Also where make runs the tests, whose own variables would make this one a part of it.
    apart = lambda name: name != "PYTHON" and not name.startswith(("MAKE", "MFLAGS"))
    environment = {name: value for name, value in os.environ.items() if apart(name)}
    return subprocess.run(
        [MAKE, *words],
        cwd=folder,
        env={**environment, "PATH": str(folder / "bin")},
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(MAKE is None, reason="there is no make")
@pytest.mark.parametrize(
    ("pythons", "words", "chosen"),
    [
        ({"python3.11": RUNS, "python3.12": RUNS, "python3": RUNS}, (), "python3.11"),
        ({"python3.11": BROKEN, "python3.12": RUNS, "python3": RUNS}, (), "python3.12"),
        ({"python3.11": BROKEN, "python3.12": NO_VENV, "python3.13": RUNS}, (), "python3.13"),
        ({"python3": RUNS}, (), "python3"),
        ({"python3.11": RUNS}, ("PYTHON=mine",), "mine"),
    ],
)
def test_make_takes_the_first_python_that_will_do(tmp_path, pythons, words, chosen):
    result = made(tmp_path, pythons, "--dry-run", "install", *words)
    assert result.returncode == 0, result.stderr
    assert f"{chosen} -m venv .venv\n" in result.stdout


@pytest.mark.skipif(MAKE is None, reason="there is no make")
@pytest.mark.parametrize("pythons", [{}, {"python3": OLD}, {"python3.11": BROKEN}])
def test_make_without_python_is_one_sentence(tmp_path, pythons):
    result = made(tmp_path, pythons, "install")
    assert result.returncode != 0
    first, *rest = result.stderr.splitlines()
    assert first.startswith("recollect needs Python 3.11 or later with venv; ")
    assert all("make: ***" in line for line in rest)
    assert not (tmp_path / ".venv").exists()
