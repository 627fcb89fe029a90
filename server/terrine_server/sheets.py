"""Tables for spreadsheets. Students write them, too, who have none of what pages need."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import Any, TextIO

# Also the full-width forms, which some spreadsheets take for the others.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)


class CsvWriter:
    """Writes rows to a file as CSV that people open in a spreadsheet: no cell is a formula.

    A spreadsheet runs what a cell begins with `=`, `+`, `-` or `@`, and class names and labels are
    words of somebody else. Such a text gets an apostrophe in front, as OWASP advises ("CSV
    Injection"), unless all of it is a number: classes are often called -1 and +1, and programs
    compare them.
    """

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file, lineterminator="\r\n")

    def write_row(self, cells: Iterable[Any]) -> None:
        """Write a row."""
        self._writer.writerow([_escape_formula(cell) for cell in cells])


def _escape_formula(cell: Any) -> Any:
    runs = isinstance(cell, str) and cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if runs else cell
