"""Scripts that take too long to be run here import what there is."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("folder", ["benchmarks", "reliability", "examples", "docs"])
def test_scripts_import_names_that_exist(folder):
    """Also where they import them, deep within a function that runs after an hour."""
    scripts = sorted((ROOT / folder).glob("*.py"))
    assert scripts
    missing = []
    for script in scripts:
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recollect"):
                module = importlib.import_module(node.module)
                names = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                missing += [f"{script.name}:{node.lineno} {name}" for name in names]
    assert not missing
