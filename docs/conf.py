"""The documentation site: ``scripts/docs`` builds it with Sphinx into build/docs.

The pages are Markdown that can be read without the site, too. The pages about the public names are
made here, from the docstrings, before each build.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

from api_pages import write_api_pages  # noqa: E402

import mpgrad  # noqa: E402

project = "mpgrad"
author = copyright = "the mpgrad authors"  # noqa: A001  (Sphinx's name)
release = version = mpgrad.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["outputs/*"]
nitpicky = False

# ---------------------------------------------------------------------------- pages

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

#: Pages beside docs/ that are part of the site, and where.
_ELSEWHERE = {
    "ARCHITECTURE.md": "maintainers/architecture.md",
    "CONTRIBUTING.md": "maintainers/contributing.md",
    "CHANGELOG.md": "maintainers/changelog.md",
}


def _lead_to_pages(app: Any, name: str, source: list[str]) -> None:
    """Links to pages beside docs/ lead to their places in the site."""
    up = "../" * name.count("/")
    for file, page in _ELSEWHERE.items():
        source[0] = source[0].replace(f"](../{file}", f"]({up}{page}")


# ---------------------------------------------------------------------------- names

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

#: Outside of literals a star is a star: docstrings here emphasise nothing.
_LITERAL_OR_STAR = re.compile(r"``.*?``|`[^`]*`|\*", re.DOTALL)


def _keep_stars(app: Any, kind: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    text = _LITERAL_OR_STAR.sub(
        lambda found: r"\*" if found[0] == "*" else found[0], "\n".join(lines)
    )
    lines[:] = text.split("\n")


# ---------------------------------------------------------------------------- how it looks

html_theme = "pydata_sphinx_theme"
html_title = "mpgrad"
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": []}


def setup(app: Any) -> None:
    """See https://www.sphinx-doc.org/en/master/extdev/appapi.html."""
    app.connect("builder-inited", lambda app: write_api_pages(HERE / "api"))
    app.connect("source-read", _lead_to_pages)
    app.connect("autodoc-process-docstring", _keep_stars, priority=400)  # before napoleon's
