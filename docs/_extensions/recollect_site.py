"""What the pages show of the library itself, read from it while they are built.

    {public} MODULE ...   entries of the public names that modules define
    {steps}               entries of the steps in `recollect.extend`
    {settings} CLASS      the fields of an algorithm, those of its base classes behind
    {curves} CLASS ...    the figures that an algorithm reports
    {help} WORDS          what `recollect WORDS --help` prints

A public name in backticks becomes a link to its entry, and a public name without one is a warning.
"""

import contextlib
import importlib
import io
import re
import sys

import entries
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

from recollect import cli, extend, public

LOG = logging.getLogger(__name__)
SHOWN_AT = {"benchmarks/RESULTS.md": "benchmarks.md", "CHANGELOG.md": "changelog.md"}
"""Files outside docs/, and the pages that include them."""
SHOWN = set()
"""Public names that have an entry."""


def look_up(path: str):
    """A class by its public name, or as module.name below recollect."""
    if path in public.__all__:
        return getattr(public, path)
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"recollect.{module}"), name)


class Generated(Directive):
    """Markdown that is made from words and parsed in place."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        text = "\n\n".join(self.markdown(" ".join(self.arguments).split()))
        node = nodes.container(classes=["generated"])
        lines = StringList(text.splitlines(), source=self.name)
        self.state.nested_parse(lines, self.content_offset, node)
        return node.children


class Public(Generated):
    """Entries of the public names that modules define."""

    def markdown(self, modules):
        for module in modules:
            names = [one for one in public.__all__ if _defined(one, f"recollect.{module}")]
            assert names, f"{module} defines no public name"
            SHOWN.update(names)
            for name in sorted(names, key=_place):
                yield entries.entry("recollect", name, getattr(public, name))


def _defined(name, module):
    where = getattr(public, name).__module__
    return where == module or where.startswith(f"{module}.")


def _place(name):
    """Modules in the order of their names, and what they define in the order of the source."""
    module = getattr(public, name).__module__
    return module, list(vars(sys.modules[module])).index(name)


class Steps(Generated):
    """Entries of the steps that algorithms are assembled from."""

    required_arguments = 0

    def markdown(self, _):
        for name in extend.__all__:
            value = getattr(extend, name)
            if callable(value) and name not in public.__all__:
                yield entries.entry("recollect.extend", name, value)


class SettingsOf(Generated):
    """The fields of an algorithm: its own first, then those that it shares with others."""

    def markdown(self, names):
        (cls,) = map(look_up, names)
        for base in cls.__mro__:
            inherited = [one for one in entries.own_fields(base) if base is _declaring(cls, one)]
            if inherited:
                title = "Its own" if base is cls else f"From `{base.__name__}`"
                told = entries.meanings(base)
                yield f"**{title}**"
                yield "\n".join(entries._field(one, told) for one in inherited)


def _declaring(cls, field):
    """The class nearest to `cls` that declares a field, whose default holds."""
    return next(base for base in cls.__mro__ if field.name in entries.annotated(base))


class Curves(Generated):
    """The figures that modules report, each a curve of a run."""

    def markdown(self, names):
        return [entries.fields(look_up(name)) for name in names]


class Help(Directive):
    """What the command line answers to --help."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = cli.main([*" ".join(self.arguments).split(), "--help"])
        assert code == 0, self.arguments
        return [nodes.literal_block(out.getvalue(), out.getvalue(), language="text")]


class LinkNames(SphinxTransform):
    """Public names in backticks become links to their entries."""

    default_priority = 500
    apart = (nodes.reference, nodes.title, addnodes.desc_signature, addnodes.pending_xref)

    def apply(self, **options):
        for literal in list(self.document.findall(nodes.literal)):
            name = literal.astext()
            if name in public.__all__ and not self._apart(literal):
                literal.replace_self(self._link(literal, name))

    def _apart(self, node):
        while node.parent is not None:
            node = node.parent
            if isinstance(node, self.apart):
                return True
        return False

    def _link(self, literal, name):
        target = dict(refdomain="py", reftype="obj", reftarget=f"recollect.{name}")
        link = addnodes.pending_xref("", literal.deepcopy(), **target)
        link["refdoc"] = self.env.docname
        return link


def link_inside(app, docname, source):
    """Point links to files outside docs/ that the site shows at its own pages."""
    for file, page in SHOWN_AT.items():
        source[0] = re.sub(rf"\]\((\.\./)+{file}", f"](/{page}", source[0])


def check(app, env):
    """Warn of public names that no page has an entry of."""
    for name in sorted(set(public.__all__) - SHOWN):
        LOG.warning("the reference has no entry of %s", name)


def setup(app):
    app.add_directive("public", Public)
    app.add_directive("steps", Steps)
    app.add_directive("settings", SettingsOf)
    app.add_directive("curves", Curves)
    app.add_directive("help", Help)
    app.add_transform(LinkNames)
    app.connect("source-read", link_inside)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": False}
