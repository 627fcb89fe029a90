"""Rows of a table's file as text, a block at a time: found by the header, or by their order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from terrine_models.data.arrays import DataError
from terrine_models.data.reading import Progress, unseen
from terrine_models.tables import arrow_files, columns
from terrine_models.tables.columns import MISSING, Texts
from terrine_models.tables.csv_files import Encoding, Note, columns_of, open_sheet, silent
from terrine_protocol.tables import Column, TableSchema

FEW = 10
"""So many values, none of them known, are no accident where columns are told by their order."""


@dataclass(frozen=True)
class Reading:
    """How the file of a table is read."""

    note: Note = silent
    """Is told how it was read."""
    encoding: Encoding = "utf-8"
    """Of text that is not UTF-8."""
    progress: Progress = unseen


@dataclass(frozen=True)
class Part:
    """Some rows of a table, as text."""

    columns: Mapping[str, Sequence[str]]
    """Equally long; at least those that are needed."""
    where: Callable[[int], str]
    """Names a row in an error."""
    named: bool
    """Whether columns were found by name, rather than by their order."""
    delimiter: str | None = None
    commas: frozenset[str] = frozenset()
    """Columns with decimal commas."""

    def texts(self, column: Column) -> Texts:
        """The values of a column."""
        comma = column.name in self.commas
        hint = partial(_number_hint, self.delimiter, comma)
        return Texts(self.columns[column.name], self.where, comma, hint)


def read_parts(
    path: Path, schema: TableSchema, needed: Sequence[str], how: Reading
) -> Iterator[Part]:
    """Read all rows; say in the end which columns held values that the schema does not list.

    Raises DataError.
    """
    parts = _read_arrow if arrow_files.is_arrow(path) else _read_csv
    yield from noted(parts(path, schema, needed, how), schema, str(path), how.note)


def noted(parts: Iterable[Part], schema: TableSchema, what: str, note: Note) -> Iterator[Part]:
    """Pass rows on, and say in the end which columns held values that the schema does not list."""
    strange, known = Counter[str](), Counter[str]()
    listed = [column for column in schema.columns if column.role in ("categorical", "ordinal")]
    for part in parts:
        for column in listed:
            found = columns.unknown(column, part.texts(column))
            given = sum(text not in MISSING for text in part.columns[column.name])
            strange[column.name] += found
            known[column.name] += given - found
            if found >= FEW and not known[column.name] and not part.named:
                raise DataError(
                    f"{what} has no header, and none of the {found:,} values of column "
                    f"{column.name} is in the schema. Are the columns in its order? Add a header "
                    "that names them."
                )
        yield part
    for name, count in strange.items():
        if count:
            note(
                f"{what}: column {name}: {count:,} of {count + known[name]:,} values are not in "
                "the schema; they count as other."
            )


def check_names(names: Sequence[str], needed: Iterable[str], what: str) -> None:
    """Raise DataError unless all columns that are needed are there, and no name is there twice."""
    absent = [name for name in needed if name not in names]
    if absent:
        raise DataError(
            f"{what} has no column {', '.join(absent)}; it has {', '.join(map(str, names))}."
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise DataError(f"{what} has two columns named {twice!r}.")


def _read_csv(
    path: Path, schema: TableSchema, needed: Sequence[str], how: Reading
) -> Iterator[Part]:
    orders = {len(order): order for order in (needed, [c.name for c in schema.columns])}

    def fits(first: Sequence[str]) -> bool:
        return len(first) in orders or set(needed) <= set(first)

    sheet = open_sheet(path, fits, how.note, how.encoding)
    blocks = sheet.blocks(how.progress)
    first = next(blocks, [])
    named = bool(first) and _is_header(first[0][1], schema)
    if named:
        names: Sequence[str] = first.pop(0)[1]
        check_names(names, needed, str(path))
    else:
        names = orders.get(len(first[0][1]) if first else 0, [c.name for c in schema.columns])
    commas = _Commas(sheet.delimiter, [c for c in schema.columns if c.role == "numeric"])
    empty = True
    blocks = itertools.chain([first], blocks)
    del first
    for block in blocks:
        if not block:
            continue
        found, lines = columns_of(path, block, names)
        if empty and not named:
            how.note(
                f"{path} has no header; its columns are taken to be {', '.join(names)}, in this "
                "order."
            )
        empty = False
        where = partial(_line, path, lines)
        yield Part(found, where, named, sheet.delimiter, commas.of(found, where))
    if empty:
        raise DataError(f"{path} holds no records.")


@dataclass
class _Commas:
    """Which columns have decimal commas. A column with commas in some rows and points in others
    is refused, in whichever rows they come first."""

    delimiter: str
    numeric: Sequence[Column]
    found: set[str] = field(default_factory=set)
    points: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Where a column has a number with a point, and which."""

    def of(self, part: Mapping[str, Sequence[str]], where: Callable[[int], str]) -> frozenset[str]:
        """The columns that have decimal commas so far."""
        if self.delimiter == ",":
            return frozenset()
        for name in (column.name for column in self.numeric if column.name in part):
            if name not in self.found and any("," in text for text in part[name]):
                self.found.add(name)
                if name in self.points:
                    place, text = self.points[name]
                    hint = _number_hint(self.delimiter, True, text)
                    raise DataError(
                        f"{place}: column {name} holds {text!r}, expected a finite number. {hint}"
                    )
            elif name not in self.found and name not in self.points:
                row = next((r for r, text in enumerate(part[name]) if "." in text), None)
                if row is not None:
                    self.points[name] = (where(row), part[name][row])
        return frozenset(self.found)


def _read_arrow(
    path: Path, schema: TableSchema, needed: Sequence[str], how: Reading
) -> Iterator[Part]:
    check_names(arrow_files.check(path), needed, str(path))
    described, start = {column.name: column for column in schema.columns}, 0
    for block in arrow_files.blocks(path, needed, how.progress):
        texts = {name: _spelled(block[name], described[name]) for name in needed}
        yield Part(texts, partial(_row, path, start), named=True)
        start += len(block[needed[0]])
    if not start:
        raise DataError(f"{path} holds no records.")


def _spelled(texts: Sequence[str], column: Column) -> Sequence[str]:
    if column.values is None:
        return texts
    ways = {text: spelled(text, column) for text in set(texts)}  # values repeat
    return [ways[text] for text in texts]


def spelled(text: str, column: Column) -> str:
    """A number or boolean as the schema has it, among its values: 1.0 as 1, true as True."""
    values = column.values
    if values is None or text in values:
        return text
    ways = (text.removesuffix(".0"), f"{text}.0", *_cases(text))
    return next((way for way in ways if way in values), text)


def _cases(text: str) -> tuple[str, ...]:
    known = text.lower() in ("true", "false")
    return (text.lower(), text.capitalize(), text.upper()) if known else ()


def _line(path: Path, lines: Sequence[int], row: int) -> str:
    return f"{path} line {lines[row]}"


def _row(path: Path, start: int, row: int) -> str:
    return f"{path} row {start + row + 1}"


def _is_header(first: Sequence[str], schema: TableSchema) -> bool:
    """Whether a first row names more than half of the features, or any column but by a value."""
    values = {value for column in schema.columns for value in column.values or ()}
    names = {column.name for column in schema.columns}
    many = 2 * len(set(first) & set(schema.features)) > len(schema.features)
    return many or bool(set(first) & names - values)


def _number_hint(delimiter: str | None, comma: bool, text: str) -> str:
    if delimiter is None:
        return ""
    if comma and "." in text:
        return "Other rows of this column have a decimal comma: use the same format in all rows."
    if "," in text and delimiter == ",":
        return "Decimal commas are read only if another character separates fields, as in a;3,5."
    return "If this line is a header, it must name every column that is needed."
