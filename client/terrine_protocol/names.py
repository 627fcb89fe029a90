"""Names and texts of files and servers, as people may be shown them. Needs Python alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

_UNSHOWN = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff"
# Controls, ends of lines and what turns the direction of text. Of letters without a width, some are
# spelling; names that differ by them alone are asked about (`base.ask_whether_one`).
IN_NO_NAME = re.compile(rf"[\x00-\x1f{_UNSHOWN}]")
IN_NO_TEXT = re.compile(rf"[\x00-\x08\x0b-\x1f\u200b\u2060\ufeff{_UNSHOWN}]")


def show_text(text: str) -> str:
    """A text for people, of one line or several: what would act on a terminal, or turn what stands
    beside it, is shown as <U+001B>."""
    return IN_NO_TEXT.sub(_code_point, text)


def show_name(name: str) -> str:
    """A name for people: as `show_text`, and on one line."""
    return IN_NO_NAME.sub(_code_point, show_text(name))


def _code_point(found: re.Match[str]) -> str:
    return f"<U+{ord(found[0]):04X}>"


def find_unshown(names: Iterable[str]) -> str | None:
    """Return what is wrong with the first name that acts on a terminal, ends its line or turns its
    direction, for whoever gave it; None if there is none."""
    for name in names:
        if IN_NO_NAME.search(name):
            return (
                f"the name {show_name(name)!r} holds what does not show: names of classes, "
                "categories and columns have no control characters, ends of lines, or characters "
                "that turn the direction of text. Write it without them in all files"
            )
    return None
