"""Decode the rows of a table that are sent by name: as objects of JSON, or as CSV with a header.

They are encoded by the project's public schema, with the code that clients encode them with: the
same rows are the same queries, in whichever form they come.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from terrine_protocol import TableSchema
from terrine_protocol.base import normalize
from terrine_protocol.tables import DataError
from terrine_protocol.tables.columns import check_names, encoded_width
from terrine_protocol.tables.encoding import columns_of, encode_columns
from terrine_server.errors import InvalidQuery, PayloadTooLarge
from terrine_server.labeling.queries import check_batch

MAX_TEXT_CHARACTERS = 200
"""Characters of a column's name, or of a value that is used, except free text: to normalize a text
in Unicode may take time that grows with the square of its length. Free text is normalized a part at
a time (`texts.clean_text`), and cut where it is longer than is read."""
ROW_DECODER = msgspec.json.Decoder(dict[str, str | int | float | bool | None])
ESCAPED = re.compile(rb"\\.", re.DOTALL)


@dataclass(frozen=True)
class NamedRows:
    """How named rows are read: the project's schema, and the most rows and bytes of numbers.

    accept_clipped: whether much of a column may be clipped to the schema's range, or missing.
    """

    schema: TableSchema
    batch: int
    body: int
    accept_clipped: bool

    def of_objects(self, texts: Sequence[msgspec.Raw]) -> EncodedRows:
        """Encode objects of JSON, each with a value for every feature: a row at a time.

        Raises `InvalidQuery` or `PayloadTooLarge`.
        """
        check_batch(len(texts), self.batch)
        rows = (_decode_row(index, bytes(text)) for index, text in enumerate(texts))
        try:
            columns = columns_of(rows, self.schema.features)
        except DataError as error:
            raise InvalidQuery(str(error)) from None
        return self._encoded(columns, "row {}".format)

    def of_csv(self, body: bytes) -> EncodedRows:
        """Encode CSV: UTF-8, fields separated by commas, and a header that names every feature.

        Raises `InvalidQuery` or `PayloadTooLarge`.
        """
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidQuery(
                f"The CSV is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}."
            ) from None
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        features, lines, rows, count = self.schema.features, list[int](), list[list[str]](), 0
        try:
            header = next(reader, [])
            _check_lengths("the header", header)
            names = [normalize(name.strip()) for name in header]
            check_names(names, features, "The header")
            place_of = {name: place for place, name in enumerate(names)}
            places = [place_of[name] for name in features]
            for record in reader:
                if not record:
                    continue  # a blank line
                if len(record) != len(names):
                    raise InvalidQuery(
                        f"line {reader.line_num}: found {len(record)} fields, expected "
                        f"{len(names)}, as the header has."
                    )
                count += 1
                if count <= self.batch:
                    rows.append([record[place] for place in places])
                    lines.append(reader.line_num)
        except csv.Error as error:
            raise InvalidQuery(
                f"line {reader.line_num}: {error}. A quote that opens a field must be closed, and "
                "quotes inside it doubled."
            ) from None
        except DataError as error:
            raise InvalidQuery(f"{error} Fields are separated by commas.") from None
        check_batch(count, self.batch)
        columns = {
            name: np.fromiter((row[place] for row in rows), dtype=object, count=len(rows))
            for place, name in enumerate(features)
        }
        return self._encoded(columns, lambda row: f"line {lines[row]}")

    def _encoded(
        self, columns: Mapping[str, NDArray[np.object_]], where: Callable[[int], str]
    ) -> EncodedRows:
        rows = len(next(iter(columns.values())))
        if rows * sum(map(encoded_width, self.schema.columns)) * np.float32().itemsize > self.body:
            raise PayloadTooLarge(
                f"The rows become more than {self.body} bytes of numbers. Split the request.",
                limit=self.body,
            )
        prose = {column.name for column in self.schema.columns if column.role == "text"}
        for name, column in columns.items():
            for row, value in enumerate(() if name in prose else column):
                if isinstance(value, str):
                    _check_lengths(f"{where(row)}: column {name}", [value])
        notes: list[str] = []
        try:
            inputs = encode_columns(
                columns,
                self.schema,
                "The rows",
                notes.append,
                self.accept_clipped,
                lambda start, row: where(start + row),
            )
        except DataError as error:
            raise InvalidQuery(str(error)) from None
        return EncodedRows(inputs, tuple(notes))


@dataclass(frozen=True)
class EncodedRows:
    """Rows as inputs [B, width], and what the schema does not foresee in them, in sentences."""

    inputs: NDArray[np.float32]
    notes: tuple[str, ...]


def _decode_row(index: int, text: bytes) -> dict[str, Any]:
    """Decode a row. What it holds is no deeper than its type, and no column is given twice."""
    try:
        row: dict[str, Any] = ROW_DECODER.decode(text)
    except UnicodeDecodeError:
        raise InvalidQuery(f"row {index}: the JSON is not UTF-8.") from None
    except msgspec.DecodeError as error:
        what, _, _ = str(error).partition(" - at `$")
        raise InvalidQuery(
            f"row {index}: {what}. Expected an object that names columns, each with a text, a "
            "number, true, false or null."
        ) from None
    _check_lengths(f"row {index}", row)
    given = len(row) + sum(isinstance(value, str) for value in row.values())
    if ESCAPED.sub(b"", text).count(b'"') != 2 * given:
        raise InvalidQuery(f"row {index}: a column is given twice.")
    return row


def _check_lengths(where: str, texts: Iterable[str]) -> None:
    longest = max(map(len, texts), default=0)
    if longest > MAX_TEXT_CHARACTERS:
        raise InvalidQuery(
            f"{where}: a text has {longest} characters; expected at most {MAX_TEXT_CHARACTERS}."
        )
