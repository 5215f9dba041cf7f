"""The site: `make docs` builds it from README, docs/ and results/, without a network.

Its source folder is the repository itself, so that a link means the same on the site and on a forge.
"""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from counterpoint.core.version import VERSION

ROOT = Path(__file__).parents[1]
START = "docs/index"

project, author, release = "Counterpoint", "The Counterpoint authors", VERSION
root_doc = START
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**.md",
    "reproduction/docs/*.md",
    "results/**.md",
]
exclude_patterns = [".*", "runs", "src", "tests", "benchmarks", "tools", "docs/_build"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
suppress_warnings = ["toc.not_included"]

html_theme = "furo"
html_title = f"Counterpoint {VERSION}"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_copy_source = False
html_show_sphinx = False

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False


def plain_marks(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `names`: bars are bars, and a name may be followed by a letter."""
    for number, line in enumerate(lines):
        lines[number] = re.sub(r"(`[^`]+`)(?=\w)", r"\1\\ ", re.sub(r"(?<!\\)\|", r"\\|", line))


def name_folders(app: Sphinx, page: nodes.document) -> None:
    """A folder has no page: on the site its name stands there without a link."""
    here = Path(app.env.doc2path(app.env.docname)).parent
    for link in list(page.findall(addnodes.pending_xref)):
        if (ROOT / here / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def start_at_index(app: Sphinx, error: Exception | None) -> None:
    """The first page is in docs/; who opens the folder of the site is led there."""
    refresh = f'<meta http-equiv="refresh" content="0; url={START}.html">'
    page = f'<!doctype html><title>{project}</title>{refresh}<a href="{START}.html">{project}</a>\n'
    if error is None:
        Path(app.outdir, "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", plain_marks)
    app.connect("doctree-read", name_folders)
    app.connect("build-finished", start_at_index)
