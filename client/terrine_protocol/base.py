"""What all models share: base classes, names, statuses, rules and prices."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from terrine_protocol.names import show_name

_NAME = r"^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$"
Name = Annotated[
    str,
    Field(
        pattern=_NAME,
        description="Lower-case letters, digits, '-' and '_'; at most 64 characters.",
        examples=["diabetes"],
    ),
]

# No control characters, and none that are invisible or turn the direction of text.
_HIDDEN = r"\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
# Pattern of one line of text without invisible characters.
VISIBLE_LINE = rf"^[^\x00-\x1f{_HIDDEN}]*$"

Title = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=100, pattern=VISIBLE_LINE),
    Field(description="What the project is called among people.", examples=["Sepsis, ward 3"]),
]
Purpose = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True,
        min_length=1,
        max_length=1000,
        pattern=rf"^[^\x00-\x09\x0b-\x1f{_HIDDEN}]*$",
    ),
    Field(
        description="What the labels are for. The log keeps it for good.",
        examples=["To warn of sepsis six hours earlier, on public records."],
    ),
]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


PROTECTS = "The unit that the guarantee protects: one record, or all records of a person."

_EXPLANATIONS = {
    _NAME: "use at most 64 lower-case letters, digits, '-' and '_', with a letter or digit at both "
    "ends",
    VISIBLE_LINE: "use one line of text that shows all that it holds: no control characters, and "
    "none that are invisible",
}


def quantity(count: int, noun: str, plural: str | None = None) -> str:
    """Return "1 column", "2 columns"; `plural`: if it does not end in s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def quote_text(text: str) -> str:
    """Return a text in quotes, as people see it, and by name what of it they would not see."""
    odd = {c for c in text if c.isspace() and c > "~"}
    shown = repr("".join(" " if c in odd else c for c in text))
    names = " and ".join(sorted(unicodedata.name(c, f"U+{ord(c):04X}").lower() for c in odd))
    return f"{shown} (with {names})" if odd else shown


def explain_error(error: ErrorDetails) -> str:
    """Return what is wrong with a field, for people: a pattern's rule instead of the pattern."""
    pattern = error.get("ctx", {}).get("pattern")
    return _EXPLANATIONS.get(pattern or "", error["msg"])


def first_problem(error: ValidationError) -> str:
    """Return where the first problem of a document is, and what it is."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the document"
    return f"at {where}: {first['msg'].removeprefix('Value error, ')}"


class ShortRepr(BaseModel):
    """A model whose text fits on a screen: long values are shown by their kind or length."""

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name in type(self).model_fields)
        fields = [f"{name}={_shorten(value)}" for name, value in shown if value is not None]
        return f"{type(self).__name__}({', '.join(fields)})"

    def __str__(self) -> str:
        return repr(self)


_MAX_FIELD_CHARACTERS = 72


def _shorten(value: object) -> str:
    text = repr(value)
    if len(text) <= _MAX_FIELD_CHARACTERS:
        return text
    match value:
        case str():
            return repr(value[: _MAX_FIELD_CHARACTERS - 3] + "…")
        case list() | tuple() | dict():
            return f"<{type(value).__name__} of {len(value)}>"
        case _:
            return f"{type(value).__name__}(…)"


class Wire(BaseModel):
    """Base of requests: immutable, with unknown fields forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Record(ShortRepr):
    """Base of what is stored as well as sent: immutable, finite, with unknown fields forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Reply(ShortRepr):
    """Base of replies: immutable. A newer server may add fields, which older clients ignore.

    The server makes replies from the attributes of its own records.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)


def absent(value: object) -> bool:
    """Whether a field has no value, and is left out of a reply."""
    return value is None


class Outcome(StrEnum):
    """The outcome of one query."""

    ANSWERED = "answered"
    ABSTAINED = "abstained"
    REINFORCED = "reinforced"
    PUBLISHED = "published"
    """Not a query: a ledger entry that publishes a bound on the cost of the queries so far."""
    RELEASED = "released"
    """Not a query: the first entry of a project that begins with a release (`EnsembleFacts`)."""
    EXHAUSTED = "exhausted"
    """For neighbours: by public rows, hardly anybody near this input can vote any more. No vote was
    taken, and nothing was charged."""
    REFUSED = "refused"
    """The budget does not cover this query. No vote was taken, and nothing was charged."""


class ProjectStatus(StrEnum):
    """Whether a project answers."""

    ACTIVE = "active"
    PAUSED = "paused"
    CLOSED = "closed"


class Role(StrEnum):
    """What the holder of a token may do."""

    STUDENT = "student"
    AUDITOR = "auditor"
    METRICS = "metrics"
    ADMIN = "admin"


class RuleInfo(Reply):
    """How the costs of a project add up; fixed when it is opened."""

    name: Annotated[
        Literal["gdp", "rdp"],
        Field(description="Gaussian-DP filter on μ², or Rényi-DP filter at one order."),
    ]
    order: Annotated[float | None, Field(description="Rényi order, for the rdp rule.")] = None


class DeltaSplitInfo(Reply):
    """How a project's δ is divided; the four parts add up to at most δ."""

    conversion: float
    stability: float
    publication: float
    sampler: float


class PriceInfo(Reply):
    """What one outcome costs, in the project's integer units."""

    cost: Annotated[int, Field(ge=0, description="Units of 1e-12 of the rule's quantity.")]
    delta: Annotated[int, Field(ge=0, description="Units of 1e-18 of δ.")]


_WHOLE = re.compile(r"([+-]?)0*(\d+)(?:\.0*)?", re.ASCII)
_CASE = "capitals, spaces, invisible characters, or as 7 and 007"
# A message lists no more names than these.
LISTED = 20


def normalize(name: str) -> str:
    """A name in Unicode NFC."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def column_name(name: str) -> str:
    """The name of a column wherever it comes from: without spaces around it, in Unicode NFC."""
    return normalize(name.strip())


def fold(name: str) -> str:
    """Return a name without case, width, outer spaces, invisible characters, and zeros that do not
    change a whole number: 7, 7.0 and 007 are one."""
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
    """Return the names that `fold` makes equal, in groups of two or more."""
    alike = defaultdict[str, list[str]](list)
    for name in names:
        alike[fold(name)].append(name)
    return [group for group in alike.values() if len(group) > 1]


def quote_name(name: str) -> str:
    """A name in quotes, with invisible characters as escapes."""
    return quote_text(
        "".join(c if unicodedata.category(c) != "Cf" else f"<U+{ord(c):04X}>" for c in name)
    )


def list_names(names: Sequence[str]) -> str:
    """Names for a message: the first, and how many more there are."""
    more = len(names) - LISTED
    return ", ".join(map(show_name, names[:LISTED])) + (f" and {more:,} more" if more > 0 else "")


def ask_whether_one(names: Iterable[str]) -> str | None:
    """Ask whether names that are nearly equal are one; None if none are."""
    groups = near_equal(names)
    if not groups:
        return None
    shown = "; ".join(" and ".join(map(quote_name, group)) for group in groups[:3])
    more = f", and {len(groups) - 3:,} more" if len(groups) > 3 else ""
    return (
        f"Is each of these one? {shown}{more}. They differ only in {_CASE}, and are kept apart: "
        "if they are one, write it in one way in all files."
    )


def map_class_numbers(classes: Sequence[str]) -> dict[int, int] | None:
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
            f"labels are numbers, and of the classes {list_names(classes)} only some are named by "
            "numbers, or two by the same: name all of them by different numbers, or none"
        )
    return places
