"""CSV files: fields that commas, semicolons, tabs or bars separate, as people write them.

A file is read once from beginning to end, and hashed on the way. Only where something is wrong it
is read again, to find the line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute
from pyarrow import csv as arrow_csv

from terrine_protocol.base import column_name, list_names, quantity, quote_text
from terrine_protocol.errors import DataError
from terrine_protocol.files import open_regular_file
from terrine_protocol.schema import Column, TableSchema
from terrine_tables.columns import (
    MISSING_TEXTS,
    Progress,
    Values,
    ignore_note,
    ignore_progress,
    rows_at_least,
)
from terrine_tables.formats import unread_format
from terrine_tables.formats.table import BLOCK_BYTES, Fits, ReadOptions, TableFile
from terrine_tables.formats.text import UNUSED_CHARACTER, TextFile

# Records that are read to find the delimiter.
SAMPLE_RECORDS = 100
# Of numbers, and of no other texts, such as n.a.
_DECIMAL_COMMA = r"^\s*[+-]?[0-9.]*,[0-9]+\s*$"
_POINT = r"^\s*[+-]?([0-9]+\.|\.[0-9])"
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
OTHER_DELIMITERS = (" ", ":", "^", "~", "\x01")
MAX_TITLE_LINES = 20
# A first line that tells Excel the delimiter, and is not a record.
SEPARATOR_HINT = re.compile(r"sep=(.?)", re.IGNORECASE)
# How JSON that is not a line each starts, and pages of the Web; a file of them alone is [ or {.
OTHER_TEXTS = ("[{", "[[", "<!doctype", "<!DOCTYPE", "<html", "<?xml")


class CsvFile(TableFile):
    """A CSV file. `first` is its first record, empty if there is none.

    Fields are separated by commas, semicolons, tabs or bars; a delimiter other than the comma is
    noted. Blank lines and UCI's `|` comments are skipped.
    """

    delimiter: str

    def __init__(self, path: Path, file: io.BufferedReader, options: ReadOptions) -> None:
        self.path, self.sha256, self.types = path, "", dict[str, Any]()
        self._text = TextFile(path, file, options.note, options.digest)
        self._head = self._text.read(BLOCK_BYTES)
        whole = len(self._head) < BLOCK_BYTES
        lines = io.StringIO(self._head.decode(errors="ignore"), newline="").readlines()
        if lines and not whole and not lines[0].endswith(("\n", "\r")):
            raise DataError(
                f"{path}: its first line has more than {BLOCK_BYTES:,} bytes. Is this a table with "
                "one record on each line? If so, it has too many columns: keep those that count."
            )
        if next(filter(None, map(str.strip, lines)), "").startswith(OTHER_TEXTS):
            raise unread_format(path)
        self._hinted = SEPARATOR_HINT.fullmatch(lines[0].strip("\r\n ")) if lines else None
        skipped, delimiters = 0, tuple(DELIMITERS)
        if self._hinted is not None:
            skipped, told = 1, self._hinted[1]
            if told and told not in DELIMITERS:
                raise DataError(_other_delimiter(path, "as its first line says", told))
            delimiters = (told,) if told else delimiters
        readings = [_read_with(each, lines[skipped:], whole) for each in delimiters]
        chosen = _choose_reading(path, readings, options.fits)
        if not options.fits(chosen.first):
            _check_first(path, chosen.rows, lines[skipped:], options.fits)
        self.delimiter, self._header_fields = chosen.delimiter, chosen.first
        header = chosen.rows[0][0] if chosen.rows else 0
        nameless = self._header_fields.count("") > 1  # are called as pandas does
        self.first = [
            name or (f"Unnamed: {place}" if nameless else "")
            for place, name in enumerate(self._header_fields)
        ]
        self._noted, self._note = False, options.note
        self._commas, self._points = set[str](), dict[str, tuple[int, str]]()
        """Columns with decimal commas, and those with points and where the first one is."""
        self._hint = len("".join(lines[:skipped]).encode())
        self._header = len("".join(lines[: skipped + header]).encode())
        if self.delimiter != ",":
            self._note(
                f"{path}: fields are separated by {DELIMITERS[self.delimiter]}; in numbers a comma "
                "is read as the decimal sign."
            )

    @staticmethod
    def recognises(path: Path, file: io.BufferedReader) -> bool:
        """Whether a file may be one: any text is."""
        return True

    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = ignore_progress
    ) -> Iterator[Any]:
        """Record batches of text with columns of these names. Raises DataError.

        header: whether the first record is one; `names` are those of all columns.
        """
        self._names, self._after_header = list(names), header
        self._text.ready = self._head[self._header if header else self._hint :] + self._text.ready
        del self._head
        records, delimiter = 0, self.delimiter
        some, waiting = rows_at_least(len(names)), list[Any]()
        reading = arrow_csv.ReadOptions(
            column_names=self._names, block_size=BLOCK_BYTES, use_threads=False
        )
        parsing = arrow_csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            invalid_row_handler=lambda row: (
                "skip" if _is_nothing(row.text.split(delimiter), delimiter) else "error"
            ),
        )
        types = dict.fromkeys(self._names, pa.string())  # UTF-8 was checked
        converting = arrow_csv.ConvertOptions(column_types=types, check_utf8=False, null_values=[])
        try:
            for batch in arrow_csv.open_csv(self._text, reading, parsing, converting):
                # What `_is_nothing` says of a line that has as many delimiters as a record
                first = compute.utf8_trim_whitespace(batch.column(0))
                gone = compute.equal(first, "")
                for column in batch.columns[1:]:
                    if not compute.any(gone).as_py():
                        break
                    empty = compute.equal(compute.utf8_trim_whitespace(column), "")
                    gone = compute.and_(gone, empty)
                if delimiter != "|":
                    gone = compute.or_(gone, compute.starts_with(first, "|"))
                if header and len(names) > 1:
                    gone = compute.or_(gone, self._repeats_header(batch, first))
                if compute.any(gone).as_py():
                    batch = batch.filter(compute.invert(gone))
                records += batch.num_rows
                progress(self._text.count, self._text.size)
                waiting += [batch] if batch.num_rows else []
                if sum(each.num_rows for each in waiting) >= some:
                    yield _join_batches(waiting)
                    waiting = []
        except pa.ArrowInvalid as error:
            if self._look() or records:  # else nothing but blank lines
                reason = str(error).splitlines()[0]
                raise DataError(f"{self.path} cannot be read as CSV: {reason}") from None
        if waiting:
            yield _join_batches(waiting)
        if self._text.quotes % 2:  # one is open: pyarrow does not mind at the end
            self._look()
        self.sha256 = self._text.sha256

    def _repeats_header(self, batch: Any, first: Any) -> Any:
        """Which rows are the header again, as where files were joined."""
        same = compute.equal(first, self._header_fields[0])
        for name, column in zip(self._header_fields[1:], batch.columns[1:], strict=True):
            if not compute.any(same).as_py():
                return same
            same = compute.and_(same, compute.equal(compute.utf8_trim_whitespace(column), name))
        if compute.any(same).as_py() and not self._noted:
            self._noted = True
            self._note(f"{self.path}: lines that repeat the header are left out.")
        return same

    def has_header(self, schema: TableSchema) -> bool:
        """Whether the first row names more than half of the features, or any column other than by a
        value."""
        values = {value for column in schema.columns for value in column.values or ()}
        names = {column.name for column in schema.columns}
        many = 2 * len(set(self.first) & set(schema.features)) > len(schema.features)
        return many or bool(set(self.first) & names - values)

    def names_to_read(self, schema: TableSchema, needed: Sequence[str], header: bool) -> list[str]:
        """All columns, which a file without a header has in the order of the schema."""
        if header:
            return self.first
        every = [column.name for column in schema.columns]
        return list({len(order): order for order in (needed, every)}.get(len(self.first), every))

    def check_header(self) -> None:
        """Raise DataError if a column's name is in no known encoding."""
        self._text.check("".join(self.first), f"{self.path}: its header")

    def check(self, texts: Sequence[str], where: Callable[[int], str], name: str) -> None:
        """Raise DataError for a text in no known encoding, or with a quote that opens no field."""
        for place, text in enumerate(texts):
            if self._text.odd and UNUSED_CHARACTER.search(text):
                self._text.check(text, where(place), name)
            if text[:1] == " " and text.lstrip()[:1] == '"':
                raise DataError(
                    f"{where(place)}: column {name} starts with a space and a quote, which does "
                    f"not open a field. Leave out the space, or the column: --ignore {name}."
                )

    def find_decimal_commas(
        self, batch: Any, described: Sequence[Column], start: int
    ) -> frozenset[str]:
        """The columns that had decimal commas in rows until now.

        Raises DataError if one has points in other rows, in whichever rows they come first.
        """
        if self.delimiter == ",":
            return frozenset()
        for column in described:
            if column.commas == "thousands" or not (column.role == "numeric" or column.edges):
                continue
            name, texts = column.name, batch.column(column.name)
            if name not in self._commas and _first(texts, _DECIMAL_COMMA) is not None:
                self._commas.add(name)
                if name in self._points:
                    record, text = self._points[name]
                    raise DataError(
                        f"{self.where(record)}: column {name} holds {quote_text(text)}, "
                        f"expected a finite number. {self.hint(name, text)}"
                    )
            elif name not in {*self._commas, *self._points}:
                row = _first(texts, _POINT)
                if row is not None:
                    self._points[name] = (start + row, texts[row].as_py().strip())
        return frozenset(self._commas)

    def values(self, column: Column, array: Any, start: int) -> Values:
        """The values of a column, of rows from `start` on. Raises DataError."""
        if column.role != "numeric" or column.name in self._commas:
            return self.coded(column.name, array, start)
        plain = _parse_plain(array)
        if plain is None:
            trimmed = compute.utf8_trim_whitespace(array)
            missing = compute.is_in(trimmed, value_set=pa.array(sorted(MISSING_TEXTS)))
            plain = _parse_plain(compute.if_else(missing, None, trimmed))
        return self.coded(column.name, array, start) if plain is None else plain

    def hint(self, name: str, text: str) -> str:
        """What else to say of a field that is not a number."""
        if name in self._commas and "." in text:
            return (
                "Other rows of this column have a decimal comma: use the same format in all rows."
            )
        header = "If this line is a header, it must name every column that is needed."
        return super().hint(name, text) or header

    def where(self, record: int) -> str:
        """Name a record (from 0, without the header) in an error.

        Raises DataError if another before it is wrong.
        """
        return f"{self.path} line {self._look(record)}"

    def _why_uneven(self, fields: Sequence[str]) -> str:
        """What may be the cause of a record of one field too many or too few."""
        more = len(fields) - len(self._names) if self._after_header else 0
        if more == 1 and not fields[-1].strip():
            return " Records end with a delimiter, and the header does not: add one to it."
        if more == 1:
            return (
                " If records start with the name of a row, as R writes them, add a name for that "
                "column to the start of the header; if a field contains the delimiter, quote it."
            )
        if more == -1 and not self._names[-1]:
            return " The header ends with a delimiter, and records do not: remove it."
        return ""

    def _look(self, record: int | None = None) -> int:
        """Read the file again: the line on which a record ends, or how many records there are.

        Raises DataError for the first record, up to this one, that is wrong.
        """
        start, left = 1, BLOCK_BYTES

        def lines(file: io.TextIOWrapper) -> Iterator[str]:
            nonlocal left
            while line := file.readline(left + 1):
                left -= len(line.encode())
                if left < 0:
                    raise DataError(
                        f"{self.path}: the record that starts on line {start} has more than "
                        f"{BLOCK_BYTES:,} bytes. Is this a table with one record on each line?"
                    )
                yield line

        with open_regular_file(self.path) as file:
            again = io.BufferedReader(TextFile(self.path, file, ignore_note, digest=False))
            plain = io.TextIOWrapper(again, "utf-8", newline="")
            reader = csv.reader(lines(plain), delimiter=self.delimiter, strict=True)
            found = -1 if self._after_header else 0
            try:
                for fields in reader:
                    line, start, left = reader.line_num, reader.line_num + 1, BLOCK_BYTES
                    hint = self._hinted is not None and line == 1
                    if hint or _is_nothing(fields, self.delimiter):
                        continue
                    may_repeat = found >= 0 and self._after_header and len(fields) > 1
                    if may_repeat and [column_name(each) for each in fields] == self._header_fields:
                        continue
                    if found >= 0 and len(fields) != len(self._names):
                        raise DataError(
                            f"{self.path} line {line}: found {quantity(len(fields), 'field')}, "
                            f"expected {len(self._names)}: {list_names(self._names)}."
                            f"{self._why_uneven(fields)}"
                        )
                    if found == record:
                        return line
                    found += 1
            except csv.Error as error:
                raise DataError(
                    f"{self.path} is not a CSV file: in the record that starts on line {start}, "
                    f"{error}. A quote that opens a field must be closed, and quotes inside it "
                    "doubled."
                ) from None
        return max(0, found)


def _join_batches(batches: Sequence[Any]) -> Any:
    """Record batches as one."""
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _check_title(path: Path, readings: Sequence[_Reading]) -> None:
    """Raise DataError if lines of one field stand above a table, such as its title."""
    for each in readings:
        sizes = [len(fields) for _, fields in each.rows]
        above = next((i for i, size in enumerate(sizes) if size > 1), 0)
        below = sizes[above:]
        if above and len(below) > 1 and set(below) == {below[0]}:
            raise DataError(_below_title(path, below[0], each.rows[above][0]))


def _check_first(
    path: Path, rows: Sequence[tuple[int, list[str]]], lines: Sequence[str], fits: Fits
) -> None:
    """Raise DataError if a first record that does not fit is a title, or has other delimiters."""
    given = [sum(map(bool, fields)) for _, fields in rows]
    for place, (line, fields) in enumerate(rows[:MAX_TITLE_LINES]):
        if 2 * max(given[:place], default=len(fields)) <= len(fields) == given[place]:
            if fits(fields):
                raise DataError(_below_title(path, len(fields), line))
            break
    full = [line.strip() for line in lines if line.strip()][:SAMPLE_RECORDS]
    if len(rows) > 2 and all(len(fields) == 1 for _, fields in rows):
        for delimiter in OTHER_DELIMITERS:
            sizes = {len([part for part in line.split(delimiter) if part]) for line in full[:-1]}
            if len(sizes) == 1 and sizes != {1}:
                raise DataError(_other_delimiter(path, "as it seems", delimiter))


def _below_title(path: Path, columns: int, line: int) -> str:
    return (
        f"{path}: the table of {quantity(columns, 'column')} seems to start on line {line}, below "
        f"a title. Remove the lines above it: tail -n +{line} {path.name} > table.csv"
    )


def _other_delimiter(path: Path, says: str, delimiter: str) -> str:
    return (
        f"{path}: fields are separated by {'spaces' if delimiter == ' ' else repr(delimiter)}, "
        f"{says}; expected one of "
        f"{', '.join(DELIMITERS.values())}. If no field contains a comma: "
        f"tr {'-s ' if delimiter == ' ' else ''}'{delimiter}' ',' < {path.name} > table.csv"
    )


def _is_nothing(fields: Sequence[str], delimiter: str) -> bool:
    """Whether a line is blank, one of UCI's comments, or the mark at the end of files of DOS."""
    comment = delimiter != "|" and bool(fields) and fields[0].lstrip().startswith("|")
    return comment or not "".join(fields).strip().strip("\x1a")


@dataclass(frozen=True)
class _Reading:
    """How a file's beginning reads if this separates its fields."""

    delimiter: str
    rows: list[tuple[int, list[str]]]
    """Records, and on which line each ends. One that is broken is empty, and the last."""
    broken: csv.Error | None

    @property
    def first(self) -> list[str]:
        """The first record."""
        return self.rows[0][1] if self.rows else []

    @property
    def is_even(self) -> bool:
        """Whether all records have equally many fields."""
        return len({len(fields) for _, fields in self.rows}) == 1


def _read_with(delimiter: str, lines: Sequence[str], whole: bool) -> _Reading:
    """Read the beginning of a file, or the `whole` of it."""
    rows, broken = list[tuple[int, list[str]]](), None
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if not _is_nothing(fields, delimiter):
                rows.append((reader.line_num, [column_name(field) for field in fields]))
            if len(rows) > SAMPLE_RECORDS:
                break
    except csv.Error as error:
        broken = error
        rows += [(reader.line_num, [])] if rows else []
    if not whole and len(rows) > 1:
        rows.pop()  # it may be cut off
    return _Reading(delimiter, rows, broken)


def _choose_reading(path: Path, readings: Sequence[_Reading], fits: Fits) -> _Reading:
    """The reading whose first record fits, and the next have equally many fields.

    Raises DataError if several do, and for what is not a table.
    """
    broken = next((each.broken for each in readings if each.broken is not None), None)
    if broken is not None and not any(each.rows for each in readings):
        raise DataError(
            f"{path} is not a CSV file: in its first record, {broken}. After the quote that closes "
            "a field, the next delimiter follows at once, without a space."
        )
    possible = [each for each in readings if each.rows and fits(each.first)]
    possible = possible or [each for each in readings if len(each.first) > 1]
    if all(len(each.first) == 1 for each in possible):
        _check_title(path, readings)
    even = [each for each in possible if each.is_even]
    chosen = [each for each in even or possible if len(each.first) > 1] or [readings[0]]
    if len(chosen) > 1:
        ways = (
            f"{DELIMITERS[each.delimiter]} ({quantity(len(each.first), 'column')})"
            for each in chosen
        )
        raise DataError(
            f"{path}: fields could be separated by {' or '.join(ways)}. Put quotes around fields "
            "that contain one of these characters, or name the columns in a header."
        )
    return chosen[0]


def _parse_plain(texts: Any) -> NDArray[np.float64] | None:
    """Numbers, NaN where there is none; None if one is not finite, or not plain digits, of which
    `columns.parse_number` makes what it can."""
    try:
        numbers = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    found: NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
    finite = np.count_nonzero(np.isfinite(found))
    return found if len(found) - finite == numbers.null_count else None


def _first(texts: Any, pattern: str) -> int | None:
    """The first row in which a pattern is found."""
    row = compute.index(compute.match_substring_regex(texts, pattern), True).as_py()
    return None if row < 0 else row
