"""Names as people write them: of people, columns, categories and classes.

A name is compared in Unicode NFC, so that ü is one letter however a program stored it. What else
may differ between two spellings of one name (capitals, invisible characters, 7 and 007) is told to
whoever can say whether it is one, and decides nothing by itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence

_WHOLE = re.compile(r"([+-]?)0*(\d+)(?:\.0*)?", re.ASCII)
_CASE = "capitals, spaces, invisible characters, or as 7 and 007"
LISTED = 20
"""Names that a message lists."""


def normalize(name: str) -> str:
    """A name in Unicode NFC."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def fold(name: str) -> str:
    """What is left of a name without case, width, spaces around, invisible characters, and zeros
    that do not change a whole number: 7, 7.0 and 007 are one."""
    if not name.isascii():
        visible = "".join(c for c in name if unicodedata.category(c) != "Cf")
        name = unicodedata.normalize("NFKC", visible)
    folded = " ".join(name.casefold().split())
    found = _WHOLE.fullmatch(folded)
    if found is None:
        return folded
    sign, digits = found[1] if found[1] == "-" and found[2] != "0" else "", found[2]
    return sign + digits


def near_equal(names: Iterable[str]) -> list[list[str]]:
    """The names of which `fold` leaves the same, in groups of two or more."""
    alike = defaultdict[str, list[str]](list)
    for name in names:
        alike[fold(name)].append(name)
    return [group for group in alike.values() if len(group) > 1]


def spelled(name: str) -> str:
    """A name in quotes, with invisible characters as escapes."""
    return repr(
        "".join(c if unicodedata.category(c) != "Cf" else f"<U+{ord(c):04X}>" for c in name)
    )


def listed(names: Sequence[str]) -> str:
    """Names for a message: the first, and how many more there are."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more:,} more" if more > 0 else "")


def ask_whether_one(names: Iterable[str]) -> str | None:
    """Ask whether names that are nearly equal are one; None if none are."""
    groups = near_equal(names)
    if not groups:
        return None
    shown = "; ".join(" and ".join(map(spelled, group)) for group in groups[:3])
    more = f", and {len(groups) - 3:,} more" if len(groups) > 3 else ""
    return (
        f"Is each of these one? {shown}{more}. They differ only in {_CASE}, and are kept apart: "
        "if they are one, write it in one way in all files."
    )


def numbered(classes: Sequence[str]) -> dict[int, int] | None:
    """Which class each number names; None if none is named by one: then numbers are indices.

    Raises ValueError, which says what is wrong, where only some are named by numbers, or two by
    the same.
    """
    found = {place: _WHOLE.fullmatch(name) for place, name in enumerate(classes)}
    places = {int(each[1] + each[2]): place for place, each in found.items() if each is not None}
    if not places:
        return None
    if len(places) < len(classes):
        raise ValueError(
            f"labels are numbers, and of the classes {listed(classes)} only some are named by "
            "numbers, or two by the same: name all of them by different numbers, or none"
        )
    return places
