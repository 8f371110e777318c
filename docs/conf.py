"""The site: what Sphinx makes of docs/, of the docstrings, and of the project's other pages.

make site                # build/site/index.html, for a browser; needs no network
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fastcomm._version import __version__  # noqa: E402

project = "fastcomm"
author = "the fastcomm authors"
version = release = __version__
root_doc = "index"
exclude_patterns = ["examples/**"]
extensions = [
    *("myst_parser", "sphinx_design", "sphinx_copybutton"),
    *("sphinx.ext.autodoc", "sphinx.ext.napoleon"),
]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# Names in docstrings stand between single quotes or double ones.
default_role = "py:obj"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_title = f"fastcomm {version}"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {"gallery": []}
html_theme_options: dict[str, Any] = {
    "logo": {"text": "fastcomm"},
    "navbar_end": ["version-switcher", "theme-switcher"],
    "switcher": {
        # Of the folder that holds a site for each version (tools/docs_site.py).
        "json_url": os.environ.get("FASTCOMM_SITE_VERSIONS", "/versions.json"),
        "version_match": version,
    },
    "check_switcher": False,
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "footer_start": [],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

# Pages outside of docs/, by the names of those that show them here.
SHOWN_AS = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "csrc/README.md": "project/csrc.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
# Scripts, which that page shows below its table.
GALLERY, EXAMPLES = "gallery", "docs/examples"
_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")


def _links_of_the_site(page: str, text: str, written_in: str) -> str:
    """Return a page's text with its links as they are on the site.

    Args:
        page: where the site has it, as Sphinx names it.
        text: of the page, in Markdown.
        written_in: the folder that its links start from, below the project's own.
    """

    def on_the_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(written_in, link.group(1)))
        if not (ROOT / target).exists():  # code that looks like one
            return link.group(1)
        if posixpath.dirname(target) == EXAMPLES and target.endswith(".py"):
            place = posixpath.relpath(f"docs/{GALLERY}.md", posixpath.dirname(f"docs/{page}"))
            return f"{place}#{posixpath.basename(target).replace('.', '')}"
        shown = f"docs/{SHOWN_AS[target]}" if target in SHOWN_AS else target
        if (ROOT / shown / "README.md").is_file():
            shown = f"{shown}/README.md"
        return posixpath.relpath(shown, posixpath.dirname(f"docs/{page}"))

    return _LINK.sub(on_the_site, text)


def _read(app: Any, page: str, source: list[str]) -> None:
    """Put the pages of the project in the place of those that stand for them."""
    found = {shown.removesuffix(".md"): path for path, shown in SHOWN_AS.items()}.get(page)
    path = ROOT / (found or f"docs/{page}.md")
    if not path.is_file():
        return
    text = path.read_text() if found else source[0]
    source[0] = _links_of_the_site(page, text, posixpath.dirname(str(path.relative_to(ROOT))))
    if page == GALLERY:
        for script in sorted((ROOT / EXAMPLES).glob("*.py")):
            shown = f"```{{literalinclude}} examples/{script.name}\n:language: python\n```"
            source[0] += f"\n\n## {script.name}\n\n{shown}\n"


def _mark_code(app: Any, kind: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    """Put reStructuredText's ``::`` before code, which docstrings have between empty lines."""
    marked: list[str] = []
    in_code = in_section = False
    for before, line in zip(["", *lines], lines, strict=False):
        indented = line.startswith("    ")
        if line and not indented:
            in_section = re.fullmatch(r"[A-Z]\w+:", line) is not None
        starts_code = indented and not before and not in_section
        if starts_code and not in_code:
            marked += ["::", ""]
        in_code = starts_code or (in_code and (indented or not line))
        marked.append(line)
    lines[:] = marked


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _mark_code, priority=400)  # Napoleon has 500
