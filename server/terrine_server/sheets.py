"""CSV that people open in a spreadsheet: no cell is a formula.

A spreadsheet runs what a cell begins with `=`, `+`, `-` or `@`, and class names and labels are
words of somebody else. Such a text gets an apostrophe in front, as OWASP advises ("CSV Injection");
numbers stay numbers. What a program reads back is JSON or arrays, never these files.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Any, TextIO

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Also the full-width forms, which some spreadsheets take for the others."""


class Sheet:
    """Writes rows to a file as CSV."""

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file, lineterminator="\r\n")

    def row(self, cells: Iterable[Any]) -> None:
        """Write a row."""
        self._writer.writerow(
            [f"'{c}" if isinstance(c, str) and c.startswith(_FORMULA) else c for c in cells]
        )
