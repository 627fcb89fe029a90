"""How pages write times, shares and numbers."""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil
from typing import Any

from markupsafe import Markup

from terrine_protocol.mechanisms import mechanism_text
from terrine_protocol.names import show_text


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


def show_value(value: Any) -> Any:
    """Return what stands in a page: of texts of others, nothing that turns the text beside it."""
    return show_text(value) if type(value) is str else value


def format_bound(share: float) -> str:
    """Return a bound in percent, rounded up to a tenth."""
    return f"{ceil(1000 * share) / 10:.1f} %"


# By their names in templates.
FILTERS = {
    "when": format_time,
    "number": format_count,
    "figure": format_number,
    "mechanism": mechanism_text,
    "at_most": format_bound,
}
