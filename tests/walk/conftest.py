"""`make notebooks` is the test of the notebooks, told to keep what it sees."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-notebooks", action="store_true", help="write the new outputs into docs/tutorials"
    )
