"""The schema of a table: how rows become numbers. Owners store it, and students encode by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, timedelta
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from terrine_protocol.base import Record, Sha256, absent, column_name, normalize

# Roles of columns that are encoded.
FEATURE_ROLES = ("numeric", "categorical", "boolean", "ordinal", "date", "text")
# Keys beside a column that are not read.
REMARK_KEYS = ("why", "check")
DateOrder = Literal["year-month-day", "day-month-year", "month-day-year"]
# What commas in numbers are: as in 1,234.5, or as in 3,14.
Commas = Literal["thousands", "decimal"]
DEFAULT_TEXT_WIDTH = 2048
NO_EMBEDDINGS = (
    "texts have no embeddings any more. Write the numbers of the embedding into columns of their "
    "own, and make the schema and the ensemble anew: docs/ensembles.md#texts says how"
)
DatePart = Literal["days", "year", "month", "weekday", "hour"]


def range_names(edges: Sequence[float]) -> tuple[str, ...]:
    """What the classes are called into which increasing edges cut numbers: `edges` [E] → [E + 1].

    An edge belongs to the class above it.
    """
    ends = [f"{edge:.12g}" for edge in edges]
    between = (f"{low} to {high}" for low, high in pairwise(ends))
    return f"under {ends[0]}", *between, f"{ends[-1]} and more"


class PublicSource(Record):
    """Data that its owner declared public, and on which something was fitted."""

    name: str
    sha256: Sha256
    records: Annotated[int, Field(ge=1)]


class Column(Record):
    """One column of a table and its public range or categories."""

    name: str
    role: Literal[
        "numeric",
        "categorical",
        "boolean",
        "ordinal",
        "date",
        "text",
        "label",
        "group",
        "ignored",
    ]
    low: float | None = None
    high: float | None = None
    """Of dates: days since `since`."""
    values: tuple[str, ...] | None = None
    """Of ordinal columns from least to most."""
    missing: Annotated[float | None, Field(exclude_if=absent)] = None
    """Of numbers: what stands for a missing one, beside an indicator that it is missing. Without
    it, the middle of the range does, and nothing says that it was missing."""

    edges: Annotated[tuple[float, ...] | None, Field(min_length=1, exclude_if=absent)] = None
    """Of a label of numbers: where they are cut into classes, in increasing order. An edge belongs
    to the class above it. `values` names the classes, one more than edges; without it they are
    called as `range_names` says."""

    commas: Annotated[Commas | None, Field(exclude_if=absent)] = None
    """Of numbers written as text: what their commas are. Without it, decimal signs where another
    character separates fields, and else none are read."""

    order: Annotated[DateOrder | None, Field(exclude_if=absent)] = None
    """Of dates: how they are written. A year has four digits. Of a time of day the hour is read."""
    since: Annotated[date | None, Field(exclude_if=absent)] = None
    """Of dates: the day from which days are counted."""
    parts: Annotated[
        tuple[DatePart, ...] | None, Field(min_length=1, max_length=5, exclude_if=absent)
    ] = None
    """Of dates: the numbers that are taken from one."""

    encoder: Annotated[Literal["hashed"] | None, Field(exclude_if=absent)] = None
    """Of texts: their n-grams are hashed."""
    width: Annotated[int | None, Field(ge=64, le=16_384, exclude_if=absent)] = None
    """Of texts: how many numbers their n-grams become."""

    @model_validator(mode="before")
    @classmethod
    def _leaves_out_remarks(cls, given: Any) -> Any:
        """A proposed schema says why a column has its role, for people."""
        if isinstance(given, dict):
            if given.get("encoder") == "embedding":
                raise ValueError(NO_EMBEDDINGS)
            return {key: value for key, value in given.items() if key not in REMARK_KEYS}
        return given

    @model_validator(mode="after")
    def _names_are_normalized(self) -> Self:
        object.__setattr__(self, "name", column_name(self.name))
        values = self.values
        if values is None and self.edges is not None:
            values = range_names(self.edges)
        if values is not None:
            object.__setattr__(self, "values", tuple(map(normalize, values)))
        if self.role == "text":
            object.__setattr__(self, "encoder", self.encoder or "hashed")
            object.__setattr__(self, "width", self.width or DEFAULT_TEXT_WIDTH)
        return self


class TableSchema(Record):
    """How the rows of a table become numbers. It is public and never derived from private rows."""

    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    fitted_on: PublicSource | None = None

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError("column names must differ from one another")
        roles = [column.role for column in self.columns]
        if roles.count("label") != 1 or roles.count("group") > 1:
            raise ValueError("exactly one column must have the role label, at most one group")
        if not set(FEATURE_ROLES) & set(roles):
            raise ValueError(f"at least one column must be {', '.join(FEATURE_ROLES)}")
        for column in self.columns:
            ranged = column.low is not None and column.high is not None
            if column.role in ("numeric", "date") and not (
                column.low is not None
                and column.high is not None
                and column.low < column.high
                and math.isfinite(column.high - column.low)
            ):
                raise ValueError(
                    f"{column.role} column {column.name!r} needs low < high, not too far apart"
                )
            if column.role in ("categorical", "ordinal", "label"):
                values = column.values or ()
                if len(values) < (1 if column.role == "categorical" else 2):
                    raise ValueError(f"column {column.name!r} needs its values listed")
                if len(set(values)) != len(values):
                    raise ValueError(f"column {column.name!r} lists a value twice")
            elif column.values is not None:
                raise ValueError(f"column {column.name!r} is {column.role}: it lists no values")
            _check_edges(column)
            if column.role not in ("numeric", "date") and ranged:
                raise ValueError(f"column {column.name!r} is {column.role}: it has no range")
            if column.role != "numeric" and column.missing is not None:
                raise ValueError(f"column {column.name!r} is {column.role}: it has no `missing`")
            if column.role != "numeric" and column.commas is not None:
                raise ValueError(f"column {column.name!r} is {column.role}: it has no `commas`")
            dated = (column.order, column.since, column.parts)
            if (column.role == "date") != all(dated) or any(dated) != all(dated):
                raise ValueError(
                    f"column {column.name!r}: dates, and no other columns, have order, since, parts"
                )
            if column.role != "text" and any((column.encoder, column.width)):
                raise ValueError(
                    f"column {column.name!r} is {column.role}: it has no encoder or width"
                )
            if column.parts is not None and len(set(column.parts)) != len(column.parts):
                raise ValueError(f"column {column.name!r} lists a part twice")
            if column.since is not None and not _are_dates(column):
                raise ValueError(f"column {column.name!r}: low and high reach beyond the calendar")
            if column.missing is not None and not (
                (column.low or 0.0) <= column.missing <= (column.high or 0.0)
            ):
                raise ValueError(f"column {column.name!r} needs low <= missing <= high")
        return self

    @property
    def names(self) -> list[str]:
        """All names that people read: of columns, categories and classes."""
        return [name for each in self.columns for name in (each.name, *(each.values or ()))]

    @property
    def features(self) -> list[str]:
        """The columns that are encoded."""
        return [column.name for column in self.columns if column.role in FEATURE_ROLES]


def _check_edges(column: Column) -> None:
    if column.edges is None:
        return
    if column.role != "label":
        raise ValueError(f"column {column.name!r} is {column.role}: it has no edges")
    if any(low >= high for low, high in pairwise(column.edges)):
        raise ValueError(f"column {column.name!r}: its edges must increase")
    if len(column.values or ()) != len(column.edges) + 1:
        raise ValueError(f"column {column.name!r} needs one value more than it has edges")


def _are_dates(column: Column) -> bool:
    try:
        for days in (column.low, column.high):
            (column.since or date.min) + timedelta(days=days or 0)
    except OverflowError:
        return False
    return True
