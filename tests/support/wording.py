"""What is said where words matter: refusals, and the promise. All of it stands in one file.

Tests compare kinds, fields and numbers; `tests/wording.txt` alone has the sentences. A test hands
over what was said as sections, and `make wording` writes them anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

RECORD = Path(__file__).resolve().parent.parent / "wording.txt"
HEAD = """\
What Terrine says where words matter: refusals, and the promise. `make wording` writes it anew.
In angle brackets: what is different each time.
"""
SECTION = re.compile(r"^== (.*)\n", re.MULTILINE)
MOVING = (
    (r" +$", ""),
    (r"\d{4}-\d\d-\d\d(?:[T ][\d:.]+(?:Z|\+00:00)?)?", "<time>"),
    (r"retry_after: \d+", "retry_after: <seconds>"),
    (r"Retry in \d+ s", "Retry in <seconds>"),
    (r"\b\d{9,}\b", "<units>"),
    (r"http://127\.0\.0\.1:\d+", "<url>"),
    (r"\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{12,}\b", "<hex>"),
)
"""What is different each time, and what stands for it."""

Wording = Callable[[str, Mapping[str, str]], None]
"""Compares a section, by the title of each paragraph, with what is on record; or writes it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-wording", action="store_true", help="write tests/wording.txt")


@pytest.fixture
def wording(request: pytest.FixtureRequest, tmp_path: Path) -> Wording:
    def compare(title: str, said: Mapping[str, str]) -> None:
        shown = "\n\n".join(f"# {about}\n{text.strip()}" for about, text in said.items())
        shown = shown.replace(str(tmp_path), "<directory>")
        for pattern, mark in MOVING:
            shown = re.sub(pattern, mark, shown, flags=re.MULTILINE)
        sections = recorded()
        if request.config.getoption("--write-wording"):
            sections[title] = shown
            found = "".join(f"\n== {name}\n\n{text}\n" for name, text in sorted(sections.items()))
            RECORD.write_text(HEAD + found)
        assert shown == sections.get(title), "If it should say this, run `make wording`."

    return compare


def recorded() -> dict[str, str]:
    """Return what is on record, by the title of its section."""
    if not RECORD.exists():
        return {}
    _, *found = SECTION.split(RECORD.read_text())
    return {name: text.strip() for name, text in zip(found[::2], found[1::2], strict=True)}
