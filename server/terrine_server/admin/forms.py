"""What people write into forms, and what is wrong with it in words."""

from __future__ import annotations

from pydantic import ValidationError

from terrine_protocol.base import in_words


def number(text: str) -> int | float | str:
    """Return the number that a text is; any other text as it is, for validation to refuse."""
    text = text.strip().replace(",", "")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def lines(text: str) -> str:
    """Return what somebody wrote into several lines, without what browsers end them with."""
    return text.replace("\r\n", "\n")


def spoken(error: ValidationError) -> list[str]:
    """Return what is wrong, a sentence for each field."""
    return [
        f"{_field(item['loc'])}{in_words(item).removeprefix('Value error, ').removesuffix('.')}."
        for item in error.errors(include_url=False)
    ]


def _field(place: tuple[int | str, ...]) -> str:
    return f"{str(place[-1]).replace('_', ' ').capitalize()}: " if place else ""
