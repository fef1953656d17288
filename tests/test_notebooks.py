"""The notebooks as they are committed: run to the end, whole, and nobody's machine in them."""

import ast
import json
import re

import notebooks
import pytest

ALL = notebooks.notebooks()
SHOWS = {"print", "show"}
"""Functions that leave something below the cell that calls them."""
ABSOLUTE = re.compile(r"(?<![\w./])(?:/\w[\w.-]*/\w|[A-Z]:\\\w)")
LARGEST = 200_000
"""Bytes of a file; pictures are small."""


def text_of(output):
    """What an output says in letters."""
    said = output.get("text", [])
    data = output.get("data", {})
    letters = [data[kind] for kind in data if kind.startswith("text/")]
    return "".join("".join(part) for part in (said, *letters))


def shows(source):
    """Whether a cell prints or draws when it is run, and not only in functions that it defines."""
    definitions = ast.FunctionDef | ast.ClassDef
    now = [one for one in ast.parse(source).body if not isinstance(one, definitions)]
    calls = [node.func for one in now for node in ast.walk(one) if isinstance(node, ast.Call)]
    return any(getattr(call, "id", getattr(call, "attr", "")) in SHOWS for call in calls)


def test_there_are_notebooks():
    assert len(ALL) == 3


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_notebooks_have_been_run(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        source = "".join(cell["source"])
        kinds = {output.get("name", output["output_type"]) for output in cell["outputs"]}
        assert kinds <= {"stdout", "display_data", "execute_result"}, source
        assert cell["outputs"] or not shows(source), source
    told = ["".join(cell["source"]) for cell in cells]
    told += [text_of(output) for cell in code for output in cell["outputs"]]
    assert not [words for words in told if ABSOLUTE.search(words)]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_links_of_notebooks_lead_somewhere(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (path.parent / target).exists(), target
