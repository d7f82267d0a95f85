"""How Sphinx builds the site: `make docs`. It needs no network, and every warning is an error.

canonical-sphinx is the theme of Canonical's documents, on Sphinx, MyST and Furo. Its successor,
ulwazi 1.0, puts a tag manager into every page: it can replace this one when it asks first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import pages  # noqa: E402 - the folder of this file is not on the path before

project = "istio-aux"
author = "the maintainers of istio-aux"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx names it
extensions = ["canonical_sphinx"]
exclude_patterns = ["_build"]
html_title = "istio-aux"
html_static_path = ["_static"]
html_css_files = [("site.css", {"priority": 900})]
html_context = {
    "product_page": pages.SOURCE.removeprefix("https://"),
    "github_url": pages.SOURCE,
    "github_issues": "",
    "discourse": "https://discourse.charmhub.io",
    "product_tag": "_static/tag.svg",
    "display_contributors": False,
}
disable_feedback_button = True
myst_heading_anchors = 4
# Only text with a scheme is a link: `istio-aux.io` and `localhost:8080` are none.
myst_linkify_fuzzy_links = False
# The examples are JSON or YAML with places left out, and lines of several programs.
suppress_warnings = ["misc.highlighting_failure"]


def setup(app: Any) -> None:
    """Let `pages` write what Sphinx reads."""

    def read(app: Any, name: str, source: list[str]) -> None:
        source[0] = pages.text(Path(app.env.doc2path(name)))

    app.connect("source-read", read)
