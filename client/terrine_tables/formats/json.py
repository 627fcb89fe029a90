"""JSON lines: an object of JSON on each line."""

from __future__ import annotations

import codecs
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from terrine_protocol.base import column_name, list_names
from terrine_protocol.errors import DataError
from terrine_protocol.files import open_regular_file
from terrine_tables.columns import (
    Progress,
    ignore_note,
    ignore_progress,
    rows_at_a_time,
)
from terrine_tables.formats.table import BLOCK_BYTES, ReadOptions, TableFile
from terrine_tables.formats.text import TextFile

SUFFIXES = (".jsonl", ".ndjson")
# Objects that are read to find the names of columns.
SAMPLE_OBJECTS = 100


class JsonLinesFile(TableFile):
    """A file with an object of JSON on each line: a row, by the names of columns.

    `first` are the names in its first objects. A column that an object lacks is empty there. Values
    are read as they are written: 1.50 is the text 1.50.
    """

    def __init__(self, path: Path, file: io.BufferedReader, options: ReadOptions) -> None:
        self.path, self.sha256, self.types = path, "", dict[str, Any]()
        self._text = TextFile(path, file, options.note, options.digest)
        self._objects = self._read(self._text)
        self._head = list(itertools.islice(self._objects, SAMPLE_OBJECTS))
        self.first = list(dict.fromkeys(name for _, row in self._head for name in row))

    @staticmethod
    def recognises(path: Path, file: io.BufferedReader) -> bool:
        """Whether the first line of a file is an object of JSON."""
        if not file.peek(1).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
            return False
        head = TextFile(path, file, ignore_note, digest=False).read(BLOCK_BYTES)
        file.seek(0)
        first = next((line.strip() for line in head.splitlines() if line.strip()), b"")
        if not first.startswith(b"{"):
            return False
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            return path.suffix in SUFFIXES  # a text too long for a line is said so, by name
        return True

    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = ignore_progress
    ) -> Iterator[Any]:
        """Record batches of text with these columns. Raises DataError."""
        rows, known = rows_at_a_time(len(names)), set(self.first)
        waiting = list[dict[str, str | None]]()

        def batch() -> Any:
            arrays = [pa.array([row.get(n) for row in waiting], pa.string()) for n in names]
            return pa.RecordBatch.from_arrays(arrays, names=list(names))

        for line, row in itertools.chain(self._head, self._objects):
            if unknown := [name for name in row if name not in known]:
                raise DataError(
                    f"{self.path} line {line} has a column {list_names(unknown)}, which the first "
                    f"{len(self._head)} objects lack. Name it in the first of them, as null."
                )
            waiting.append(row)
            if len(waiting) >= rows:
                progress(self._text.count, self._text.size)
                yield batch()
                waiting = []
        if waiting:
            yield batch()
        self.sha256 = self._text.sha256

    def where(self, record: int) -> str:
        """Name a record (from 0) in an error."""
        with open_regular_file(self.path) as file:
            again = self._read(TextFile(self.path, file, ignore_note, digest=False))
            line, _ = next(itertools.islice(again, record, None))
            return f"{self.path} line {line}"

    def _read(self, text: TextFile) -> Iterator[tuple[int, dict[str, str | None]]]:
        """Each object, and the line that it is on. Raises DataError."""
        lines = io.BufferedReader(text)
        for number in itertools.count(1):
            line = lines.readline(BLOCK_BYTES + 1)
            if not line:
                return
            where = f"{self.path} line {number}"
            if len(line) > BLOCK_BYTES:
                raise DataError(
                    f"{where} has more than {BLOCK_BYTES:,} bytes. Expected one object of JSON on "
                    "each line: shorten its texts."
                )
            if line.strip():
                yield number, _json_row(line, where)


def _json_row(line: bytes, where: str) -> dict[str, str | None]:
    """The columns of an object of JSON as text. Raises DataError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [column_name(name) for name, _ in pairs]
        if len(set(names)) != len(names):
            raise DataError(f"{where}: a column is given twice.")
        return dict(zip(names, (value for _, value in pairs), strict=True))

    try:
        row = json.loads(line, object_pairs_hook=unique, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        reason = f": {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{where} is not an object of JSON{reason}.") from None
    if not isinstance(row, dict):
        raise DataError(f"{where} is not an object of JSON with the names of columns.")
    for name, value in row.items():
        if isinstance(value, dict | list):
            raise DataError(
                f"{where}: column {name} holds a list or an object; expected a text, a number, "
                "true, false or null."
            )
    return {
        _write_value(name): None if row[name] is None else _write_value(row[name]) for name in row
    }


def _write_value(value: object) -> str:
    """A value of JSON as text. Half a surrogate pair becomes the sign for what cannot be read."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
