"""Notebooks as pages of the site: their cells and outputs become Markdown, which MyST reads.

Nothing is run: outputs are those that `make notebooks` has written. So this does without MyST-NB,
which would bring a kernel and thirty packages to build a page.
"""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class NotebookParser(MystParser):
    """Reads `.ipynb`, as written by nbformat 4."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the notebook's JSON into `document`. Raises ValueError for an output of no page."""
        notebook = json.loads(inputstring)
        parts = [part for cell in notebook["cells"] for part in markdown(cell)]
        super().parse("\n\n".join(parts) + "\n", document)


def markdown(cell: dict[str, Any]) -> list[str]:
    """A cell, and each of its outputs, as Markdown."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *map(shown, cell["outputs"])]


def shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    picture = output.get("data", {}).get("image/png")
    if picture is None:
        raise ValueError(f"a notebook shows {output}, which has no place on a page: print it")
    return f"![What the code above draws](data:image/png;base64,{''.join(picture).strip()})"


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
