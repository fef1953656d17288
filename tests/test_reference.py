"""The reference: no public name is missing, and what docstrings say of arguments is of ours."""

import inspect
import re
import sys
from pathlib import Path

import pytest

from recollect import extend, public

DOCS = Path(__file__).parent.parent / "docs"
NAMES = [(module, name) for module in (public, extend) for name in module.__all__]


@pytest.fixture(scope="module")
def entries():
    sys.path.insert(0, str(DOCS / "_extensions"))
    yield __import__("entries")
    sys.path.pop(0)


def test_every_public_name_is_on_a_page_of_the_reference():
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    listed = [
        f"recollect.{one}" for line in re.findall(r"\{public\} (.+)", text) for one in line.split()
    ]
    for name in public.__all__:
        where = getattr(public, name).__module__
        assert any(f"{where}.".startswith(f"{one}.") for one in listed), f"{name} of {where}"


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda one: getattr(one, "__name__", one))
def test_documented_arguments_are_there(entries, module, name):
    value = getattr(module, name)
    if not callable(value):
        return
    methods = (
        [one for one in vars(value).values() if inspect.isfunction(one)]
        if inspect.isclass(value)
        else []
    )
    for one in (value, *methods):
        known = inspect.signature(one).parameters if not _bare(one) else {}
        told = entries.sections(entries.docstring(one)).get("Args", "")
        for names, _ in entries.arguments(told):
            assert {*names.replace("*", "").split(", ")} <= {*known, "settings"}, f"{one}: {names}"


def _bare(value):
    return inspect.isclass(value) and issubclass(value, Exception)


def test_an_entry_has_types_defaults_and_examples(entries):
    text = entries.entry("recollect", "train", public.train)
    assert text.startswith(":::{py:function} train(env, algorithm, *, collector=None,")
    assert "- **seeds** (`int | Sequence[int]`): how many seeds" in text
    assert "- **iterations, environment_steps** (`int | None`): limits" in text
    assert "```pycon\n>>> import recollect as rc\n" in text
    text = entries.entry("recollect", "PolicyRatio", public.PolicyRatio)
    assert "- **truncate** (`float`, default `inf`): Largest weight allowed." in text


def test_array_types_read_as_their_axes(entries):
    annotation = inspect.signature(public.View).parameters["log_ratio"].annotation
    assert entries.readable(annotation) == "Float[row]"
