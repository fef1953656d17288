"""Reference entries as Markdown: signatures, docstrings, and the strings under fields.

The library's docstrings are Markdown in Google's sections. They are written out as the entries of
Sphinx's Python domain, so that a name can be linked to and looked up.
"""

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

SECTION = re.compile(r"^(Args|Returns|Raises|Examples?):\n", re.M)
ARGUMENT = re.compile(r"^(\*{0,2}\w+(?:, \w+)*): ", re.M)
LONGEST_DEFAULT = 60


def entry(module: str, name: str, value: Any) -> str:
    """The entry of a public name: a class with its fields and methods, or a function."""
    option = f":module: {module}\n\n"
    if not inspect.isclass(value):
        return _described("py:function", name, value, docstring(value), option)
    parts = [option + _text(docstring(value), value), _fields(value), *_methods(value)]
    return _fenced("::::", "py:class", name + signature(value), "\n\n".join(filter(None, parts)))


def fields(cls: type) -> str:
    """A list of the fields that a class declares itself, with types, defaults and meanings."""
    return "\n".join(_field(field, meanings(cls)) for field in own_fields(cls))


def own_fields(cls: type) -> list[dataclasses.Field]:
    """The fields whose meaning stands in the class itself."""
    if not dataclasses.is_dataclass(cls):
        return []
    return [one for one in dataclasses.fields(cls) if one.init and one.name in annotated(cls)]


@functools.cache
def annotated(cls: type) -> list[str]:
    """Names that a class annotates itself."""
    return list(vars(cls).get("__annotations__", {}))


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """What the strings under the fields of a class say of them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for first, second in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(first, ast.AnnAssign) and isinstance(second, ast.Expr):
            assert isinstance(first.target, ast.Name)
            assert isinstance(second.value, ast.Constant)
            found[first.target.id] = inspect.cleandoc(second.value.value)
    return found


def docstring(value: Any) -> str:
    """The docstring of a class or function itself, not of one that it is derived from."""
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return inspect.cleandoc(own or "")


def signature(value: Callable) -> str:
    """Parameters and defaults in parentheses; types stand with their meanings."""
    parameters = list(_parameters(value).values())
    bare = [one.replace(annotation=one.empty, default=_shown(one.default)) for one in parameters]
    bare = [one for one in bare if one.name not in ("self", "cls")]
    return str(inspect.Signature(bare))


def _parameters(value: Callable) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(value).parameters)
    except ValueError:  # an exception class, which takes what BaseException takes
        return {}


class _Written(str):
    """A default that is written as it is, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _shown(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return default
    return _Written(shown(default))


def shown(default: Any) -> str:
    """A default as one would write it."""
    if inspect.isclass(default) or inspect.isfunction(default):
        return default.__name__
    if dataclasses.is_dataclass(default):
        return _constructed(default)
    text = repr(default)
    return "…" if len(text) > LONGEST_DEFAULT or "<" in text else text


def _constructed(module: Any) -> str:
    """A module as its constructor with what differs from the defaults."""
    own = [one for one in dataclasses.fields(module) if one.init and one.repr]
    changed = [one for one in own if getattr(module, one.name) is not one.default]
    given = ", ".join(f"{one.name}={shown(getattr(module, one.name))}" for one in changed)
    return f"{type(module).__name__}({given})"


NAMES = {NoneType: "None", Any: "anything", inspect.Parameter.empty: ""}


def readable(annotation: Any) -> str:
    """A type in words that a reader of signatures knows; arrays with the names of their axes."""
    if hasattr(annotation, "array_type"):
        return f"{annotation.__name__.split('[')[0]}[{annotation.dim_str.strip() or 'scalar'}]"
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return " | ".join(map(readable, get_args(annotation)))
    if origin is Literal:
        return " | ".join(map(repr, get_args(annotation)))
    if origin is Callable or str(origin) == "<class 'collections.abc.Callable'>":
        return "function"
    if isinstance(annotation, TypeVar):
        return readable(annotation.__bound__) if annotation.__bound__ else "anything"
    if origin is not None:
        inner = ", ".join("…" if one is ... else readable(one) for one in get_args(annotation))
        return f"{origin.__name__}[{inner}]"
    if annotation in NAMES:
        return NAMES[annotation]
    return annotation if isinstance(annotation, str) else annotation.__name__


def _field(field: dataclasses.Field, told: dict[str, str]) -> str:
    absent = field.default is dataclasses.MISSING
    default = "" if absent else f", default `{shown(field.default)}`"
    return _item(field.name, f"{_code(readable(field.type))}{default}", told.get(field.name, ""))


def _item(name: str, kind: str, meaning: str) -> str:
    separator = ": " if meaning else ""
    first = f"- **{name}** ({kind}){separator}" if kind else f"- **{name}**{separator}"
    return first + textwrap.indent(meaning, "  ").lstrip()


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _fields(cls: type) -> str:
    listed = fields(cls)
    return f"**Fields**\n\n{listed}" if listed else ""


def _methods(cls: type) -> Iterator[str]:
    """Entries of the methods and properties that a class documents itself."""
    for name, member in vars(cls).items():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        text = getattr(function, "__doc__", None)
        if name.startswith("_") or not text:
            continue
        # Equinox wraps methods in descriptors of its own.
        if isinstance(member, property):
            yield _fenced(":::", "py:property", name, _text(inspect.cleandoc(text), None))
        elif callable(function) or hasattr(function, "__wrapped__"):
            method = getattr(cls, name)
            yield _described("py:method", name, method, inspect.cleandoc(text))


def _described(kind: str, name: str, function: Callable, text: str, option: str = "\n") -> str:
    return _fenced(":::", kind, name + signature(function), option + _text(text, function))


def _fenced(fence: str, kind: str, head: str, body: str) -> str:
    return f"{fence}{{{kind}}} {head}\n{body}\n{fence}"


def _text(text: str, owner: Callable | None) -> str:
    """A docstring as Markdown: prose, then its sections."""
    parts = [_section(title, body, owner) for title, body in sections(text).items()]
    return "\n\n".join(parts)


def _section(title: str, body: str, owner: Callable | None) -> str:
    if title.startswith("Example"):
        return f"**Example**\n\n{_doctests(body)}"
    if title in ("Args", "Raises"):
        types = {} if owner is None or title == "Raises" else _parameters(owner)
        return f"**{title}**\n\n{_arguments(body, types)}"
    return f"**{title}**\n\n{body.strip()}" if title else body


def _arguments(body: str, types: dict[str, inspect.Parameter]) -> str:
    kind = lambda name: _code(readable(types[name].annotation)) if name in types else ""
    return "\n".join(
        _item(names, kind(names.split(", ")[0]), inspect.cleandoc(text))
        for names, text in arguments(body)
    )


def arguments(body: str) -> list[tuple[str, str]]:
    """What a section says of every argument, or of several at once."""
    _, *parts = ARGUMENT.split(body)
    return list(zip(parts[::2], parts[1::2], strict=True))


def sections(text: str) -> dict[str, str]:
    """The sections of a docstring by their titles; prose has none."""
    prose, *rest = SECTION.split(text)
    bodies = map(textwrap.dedent, rest[1::2])
    return {"": prose.strip(), **dict(zip(rest[::2], bodies, strict=True))}


def _doctests(body: str) -> str:
    """Doctests in fences of their own between the prose."""
    blocks = re.split(r"\n\s*\n", body.strip())
    fence = lambda block: f"```pycon\n{block}\n```" if block.startswith(">>>") else block
    return "\n\n".join(map(fence, blocks))
