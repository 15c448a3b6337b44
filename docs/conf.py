"""How Sphinx makes the site of these pages; `make site` runs it.

The pages are plain Markdown that reads as well on the forge; what only the site needs stands here: the navigation and
the look.
"""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import forebay

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PAGES = Path(__file__).parent

NAVIGATION = {
    "index": [
        "Tutorial <tutorial>",
        "howto/index",
        "reference/index",
        "explanation",
        "project",
    ],
    "howto/index": [
        "resume",
        "gpus",
        "workers",
        "transforms",
        "dataloader",
        "tensors",
        "packing",
        "images",
        "features",
        "sampling",
        "filters",
        "queries",
        "selections",
        "rows",
        "arrow",
        "huggingface",
        "stores",
        "hub",
        "catalogue",
        "../memory",
        "errors",
    ],
    "reference/index": [
        "datasets",
        "selections",
        "streams",
        "batches",
        "huggingface",
        "options",
        "exceptions",
    ],
    "explanation": ["order", "architecture", "limits"],
    "project": [
        "benchmarks",
        "performance",
        "reliability",
        "decisions/README",
        "changelog",
    ],
    "decisions/README": [
        *(page.stem for page in sorted((PAGES / "decisions").glob("0*.md"))[1:]),
        "Template <0000-template>",
    ],
}
"""The pages below each page, in the order of the menus."""

project = "Forebay"
author = "the Forebay authors"
copyright = author  # noqa: A001 - Sphinx's name for it
version = release = forebay.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Docstrings put names of the package, and all other code, between single backticks.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_title = "Forebay"
html_favicon = "_site/favicon.svg"
html_static_path = ["_site"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "Forebay"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "pygments_light_style": "github-light",
    "pygments_dark_style": "github-dark",
}
# No menu beside pages that have few neighbours: their code and tables are wide.
html_sidebars = {
    page: []
    for page in (
        "index",
        "tutorial",
        "explanation",
        "order",
        "architecture",
        "limits",
    )
}


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Appends the pages below a page, which the forge would show as code."""
    if page in NAVIGATION:
        below = "\n".join(NAVIGATION[page])
        # Other pages lead to those below them by links of their own.
        how = ":maxdepth: 1" if page == "decisions/README" else ":hidden:"
        source[0] += f"\n\n```{{toctree}}\n{how}\n\n{below}\n```\n"


def link_to_name(link: re.Match[str]) -> str:
    """Links to a name of the package: one with dots is whole, another is found wherever it stands."""
    text, name = link.groups()
    return f":py:obj:`{text} <{name if '.' in name else '.' + name}>`"


def translate(
    _app: Sphinx,
    _what: str,
    _name: str,
    _found: object,
    _options: object,
    lines: list[str],
) -> None:
    """Translates the Markdown of docstrings, tables and links to other names, into what Sphinx reads there."""
    translated: list[str] = []
    for number, line in enumerate(lines):
        text = re.sub(r"\[`?([^]`]+)`?\]\(#([\w.]+)\)", link_to_name, line)
        text = re.sub(
            r"\[([^]`]+)\]\(([\w./]+)\.md(#[\w-]+)?\)", r"`\1 <\2.html\3>`__", text
        )
        cells = (
            [cell.strip() for cell in text.strip().strip("|").split("|")]
            if text.lstrip().startswith("|")
            else []
        )
        if not cells:
            translated.append(text)
        elif not all(re.fullmatch(":?-+:?", cell) for cell in cells):
            margin = " " * (len(text) - len(text.lstrip()))
            if not lines[number - 1].lstrip().startswith("|"):
                translated += [
                    f"{margin}.. list-table::",
                    f"{margin}   :header-rows: 1",
                    "",
                ]
            translated += [
                f"{margin}   {' ' if column else '*'} - {cell}"
                for column, cell in enumerate(cells)
            ]
    lines[:] = translated


def hide_constructor(
    _app: Sphinx,
    what: str,
    _name: str,
    found: object,
    _options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Hides the signature of classes that users do not make themselves: all but those of options."""
    is_hidden = what == "class" and signature and not is_dataclass(found)
    return ("", "") if is_hidden else (signature, returns)


def setup(app: Sphinx) -> None:
    """Registers the above with Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", translate, priority=400)  # before Napoleon
    app.connect("autodoc-process-signature", hide_constructor)
