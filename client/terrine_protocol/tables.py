"""Tables: how the rows of a table become numbers. Owners store it, and students encode by it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from terrine_protocol.base import absent

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Record(BaseModel):
    """Base of what is stored as well as sent: immutable, finite, with unknown fields forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PublicSource(Record):
    """Data that its owner declared public, and on which something was fitted."""

    name: str
    sha256: Sha256
    records: Annotated[int, Field(ge=1)]


class Column(Record):
    """One column of a table and its public range or categories (see `tables.py`)."""

    name: str
    role: Literal["numeric", "categorical", "label", "group", "ignored"]
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] | None = None
    missing: Annotated[float | None, Field(exclude_if=absent)] = None
    """Of numbers: what stands for a missing one, beside an indicator that it is missing. Without
    it, the middle of the range does, and nothing says that it was missing."""


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
        if not {"numeric", "categorical"} & set(roles):
            raise ValueError("at least one column must be numeric or categorical")
        for column in self.columns:
            ranged = column.low is not None and column.high is not None
            if column.role == "numeric" and not (
                column.low is not None and column.high is not None and column.low < column.high
            ):
                raise ValueError(f"numeric column {column.name!r} needs low < high")
            if column.role in ("categorical", "label"):
                values = column.values or ()
                if len(values) < (2 if column.role == "label" else 1):
                    raise ValueError(f"column {column.name!r} needs its values listed")
                if len(set(values)) != len(values):
                    raise ValueError(f"column {column.name!r} lists a value twice")
            elif column.values is not None:
                raise ValueError(f"column {column.name!r} is {column.role}: it lists no values")
            if column.role != "numeric" and (ranged or column.missing is not None):
                raise ValueError(f"column {column.name!r} is {column.role}: it has no range")
            if column.missing is not None and not (
                (column.low or 0.0) <= column.missing <= (column.high or 0.0)
            ):
                raise ValueError(f"column {column.name!r} needs low <= missing <= high")
        return self

    @property
    def features(self) -> list[str]:
        """The columns that are encoded."""
        return [c.name for c in self.columns if c.role in ("numeric", "categorical")]
