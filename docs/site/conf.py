"""How Sphinx makes the site: `make site`. The sources are the Markdown files where they are."""

import re
import sys
import tomllib
from pathlib import Path

from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "client"), str(REPOSITORY / "docs" / "site")]

project = "Terrine"
author = "The Terrine authors"
release = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
html_title = f"Terrine {release}"

extensions = [
    "myst_parser",
    "notebook_pages",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinxcontrib.openapi",
]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "experiments/*.md", "tests/mutants/*.md"]
exclude_patterns = [".*", "build", "dist", "docs/site/templates"]
myst_heading_anchors = 4

# Docstrings are written in Markdown's way: `name` is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_type_aliases = {"npt.ArrayLike": "numpy.typing.ArrayLike"}
openapi_default_renderer = "httpdomain"

html_theme = "furo"
templates_path = ["templates"]
html_additional_pages = {"index": "start.html"}
html_copy_source = False


def list_arguments(app: Sphinx, what: str, name: str, obj: object, *rest: object) -> None:
    """Make a list of lines such as `timeout: seconds to wait`, and of the fields of a model."""
    lines = rest[-1]
    assert isinstance(lines, list)
    text, within = "\n".join(lines), r"(?<=\n\n)((?:\w+: .*\n(?:    .*\n)*)+)"
    text = re.sub(within, lambda found: _items(found[1]) + "\n", text + "\n")
    lines[:] = text.split("\n")
    if isinstance(obj, type) and issubclass(obj, BaseModel):
        for field, info in obj.model_fields.items():
            kind = re.sub(r"~?(\w+\.)+", "", stringify_annotation(info.annotation, "smart"))
            optional = "" if info.is_required() else ", optional"
            lines.append(f"- **{field}** (`{kind}`{optional}) {info.description or ''}")
        lines.append("")


def _items(block: str) -> str:
    return re.sub(r"(?m)^(\w+): ", r"- **\1**: ", re.sub(r"(?m)^    ", "  ", block))


def shorten_signature(app: Sphinx, what: str, name: str, obj: object, *rest: object) -> object:
    """Leave out the signature of a model, whose fields are listed, and say `ArrayLike`."""
    if isinstance(obj, type) and issubclass(obj, BaseModel):
        return "", ""
    arguments, returned = rest[-2:]
    if not isinstance(arguments, str):
        return None
    return re.sub(r"TypeAliasForwardRef\('([\w.]+)'\)", r"\1", arguments), returned


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", list_arguments)
    app.connect("autodoc-process-signature", shorten_signature)
