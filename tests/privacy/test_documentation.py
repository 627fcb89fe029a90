"""The numbers in the documentation are what the code beside them prints."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(("page", "examples"), [("mechanisms.md", 10), ("adoption.md", 5)])
def test_every_number_is_printed_by_its_code(page: str, examples: int) -> None:
    result = doctest.testfile(str(DOCS / page), module_relative=False)
    assert result.attempted > examples
    assert result.failed == 0


def test_the_table_for_committees_is_the_one_that_is_computed() -> None:
    page = (DOCS / "adoption.md").read_text()
    table, computed = re.findall(r"(?:^\| [\d.]+ \|.*\n)+", page, re.MULTILINE)
    assert table == computed
