"""The documentation's pages and their blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
IN_DOCKER = re.compile(r"\bdocker compose ")
"""In commands, where a page has them with Docker, too."""


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, str]]:
    """Yield language and text of a page's blocks in these languages; "" is no language."""
    for language, text in BLOCK.findall(page.read_text()):
        if language in languages:
            yield language, text


def lines(text: str) -> list[str]:
    """Return the lines of a shell block, continued ones joined, without comments."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [
        line for line in (part.partition(" #")[0].strip() for part in joined.split("\n")) if line
    ]
