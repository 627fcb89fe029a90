"""How pages write times, shares and numbers, and how tables are written for spreadsheets."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import ceil
from typing import Any, TextIO

from markupsafe import Markup, escape


def format_time(at: datetime | None) -> str:
    """Return an instant in UTC as an element."""
    if at is None:
        return "–"
    at = at.astimezone(UTC)
    shown = f"{at:%Y-%m-%d %H:%M} UTC"
    return Markup('<time datetime="{}">{}</time>').format(f"{at:%Y-%m-%dT%H:%M:%SZ}", shown)


def format_share(part: float, whole: float) -> str:
    """Return a part of a whole in percent."""
    return f"{part / whole:.1%}" if whole else "–"


def format_count(value: int | None) -> str:
    """Return a whole number in groups of three digits."""
    return "–" if value is None else f"{value:,}"


def format_number(value: float) -> str:
    """Return a number with four digits that count."""
    return f"{value:.4g}"


def describe_parameters(spec: Mapping[str, Any]) -> str:
    """Return a mechanism's parameters in one line."""
    shown = ((key.replace("_", " "), value) for key, value in spec.items() if key != "name")
    return ", ".join(f"{key} {value}" for key, value in shown if value is not None)


def mark_code(text: str) -> Markup:
    """Return a text, escaped, in which what is between backticks is code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )


def format_bound(share: float) -> str:
    """Return a bound in percent, rounded up to a tenth."""
    return f"{ceil(1000 * share) / 10:.1f} %"


FILTERS = {
    "when": format_time,
    "number": format_count,
    "figure": format_number,
    "parameters": describe_parameters,
    "coded": mark_code,
    "at_most": format_bound,
}
"""By their names in templates."""


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Also the full-width forms, which some spreadsheets take for the others."""
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
