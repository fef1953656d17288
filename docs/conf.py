"""How Sphinx builds the site; `make docs` runs it. Nothing is read from the network."""

import os
import sys
from pathlib import Path

# Figures of the command line's help: the width of a terminal, and no colours.
os.environ.update(COLUMNS="84", NO_COLOR="1", TERM="dumb", JAX_PLATFORMS="cpu")
sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

import recollect

project = "recollect"
author = "The recollect developers"
copyright = author
version = release = recollect.__version__

extensions = ["myst_parser", "recollect_site"]
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_extensions"]

html_theme = "furo"
html_title = "recollect"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

add_module_names = False
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 88
