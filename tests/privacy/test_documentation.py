"""The numbers in the documentation are what the code beside them prints."""

from __future__ import annotations

import doctest
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_number_about_mechanisms_is_printed_by_its_code() -> None:
    result = doctest.testfile(str(DOCS / "mechanisms.md"), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0
