"""The numbers in the documentation are what the code beside them prints."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "\n>>> " in page.read_text("utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_number_is_printed_by_its_code(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_pages_with_numbers_are_found() -> None:
    assert {"adoption", "gnmax", "joint-price", "choosing"} <= {page.stem for page in PAGES}


def test_the_tables_for_committees_are_those_that_are_computed() -> None:
    page = (DOCS / "adoption.md").read_text()
    tables = re.findall(r"(?:^\| [\d.]+ \|.*\n)+", page, re.MULTILINE)
    assert tables[:2] == tables[2:]
    assert len(tables) == 4
