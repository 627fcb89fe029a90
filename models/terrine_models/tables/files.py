"""Read tables in files with pyarrow: CSV, Parquet and Arrow, some rows at a time.

A file is read once from beginning to end, and hashed on the way (a Parquet or Arrow file before,
if its digest is wanted). Only where something is wrong a CSV file is read again, to find the line.
"""

from __future__ import annotations

import csv
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute, parquet
from pyarrow import csv as arrow_csv

from terrine_models.data.arrays import DataError
from terrine_models.data.reading import Progress, rows_at_a_time, unseen
from terrine_models.tables import text
from terrine_models.tables.columns import Note, check_names
from terrine_models.tables.text import TextFile
from terrine_protocol.files import opened
from terrine_protocol.names import normalize

SAMPLE = 100
"""Records that are read to find the delimiter."""
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}

Fits = Callable[[Sequence[str]], bool]
"""Whether a first record is as expected, which resolves most ambiguities."""


def silent(sentence: str) -> None:
    """Discard a note."""


class ArrowFile:
    """A Parquet or Arrow file. `first` are the names of its columns."""

    delimiter = None

    def __init__(self, path: Path, file: io.BufferedReader, digest: bool) -> None:
        self.path = path
        self.sha256 = hashlib.file_digest(file, "sha256").hexdigest() if digest else ""
        file.seek(0)
        self._parquet = file.read(4) == b"PAR1"
        file.seek(0)
        # A buffer: otherwise all of a row group's columns would be read at once.
        read = parquet.ParquetFile(file, buffer_size=text.BLOCK) if self._parquet else None
        self._file = read or pa.ipc.open_file(file)
        names = (read.schema_arrow if read else self._file.schema).names
        self.first = list(map(normalize, names))
        check_names(self.first, [], str(path))
        self._stored = dict(zip(self.first, names, strict=True))

    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = unseen
    ) -> Iterator[Any]:
        """Record batches with these columns. Raises what pyarrow does."""
        rows, columns, done = rows_at_a_time(len(names)), [self._stored[n] for n in names], 0
        if self._parquet:
            batches = self._file.iter_batches(batch_size=rows, columns=columns)
            total = self._file.metadata.num_rows
        else:
            total = self._file.num_record_batches
            batches = (self._file.get_batch(i).select(columns) for i in range(total))
        for batch in batches:
            named = list(map(normalize, batch.schema.names))
            batch = pa.RecordBatch.from_arrays(batch.columns, names=named)
            done += batch.num_rows if self._parquet else 1
            progress(done, total)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def where(self, record: int) -> str:
        """Name a record (from 0) in an error."""
        return f"{self.path} row {record + 1}"


class CsvFile:
    """A CSV file, plain or gzip. `first` is its first record, empty if there is none.

    Fields are separated by commas, semicolons, tabs or bars; a delimiter other than the comma is
    noted. Blank lines and UCI's `|` comments are skipped.
    """

    def __init__(
        self, path: Path, file: io.BufferedReader, fits: Fits, note: Note, digest: bool
    ) -> None:
        self.path, self.sha256 = path, ""
        self._size, self._text = path.stat().st_size, TextFile(path, file, note, digest)
        self._head = self._text.read(text.BLOCK)
        whole = len(self._head) < text.BLOCK
        lines = io.StringIO(self._head.decode(errors="ignore"), newline="").readlines()
        self.delimiter, self.first, header = _sniffed(path, lines, fits, whole)
        self._header = len("".join(lines[:header]).encode())
        if self.delimiter != ",":
            note(
                f"{path}: fields are separated by {DELIMITERS[self.delimiter]}; in numbers a comma "
                "is read as the decimal sign."
            )

    def batches(
        self, names: Sequence[str], header: bool, progress: Progress = unseen
    ) -> Iterator[Any]:
        """Record batches of text with columns of these names. Raises DataError.

        header: whether the first record is one; `names` are those of all columns.
        """
        self._names, self._after_header = list(names), header
        self._text.ready = self._head[self._header if header else 0 :] + self._text.ready
        del self._head
        records, delimiter = 0, self.delimiter
        reading = arrow_csv.ReadOptions(
            column_names=self._names, block_size=text.BLOCK, use_threads=False
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
                if compute.any(gone).as_py():
                    batch = batch.filter(compute.invert(gone))
                records += batch.num_rows
                progress(self._text.packed.count, self._size)
                if batch.num_rows:
                    yield batch
        except pa.ArrowInvalid as error:
            if self._look() or records:  # else nothing but blank lines
                reason = str(error).splitlines()[0]
                raise DataError(f"{self.path} cannot be read as CSV: {reason}") from None
        if self._text.quotes % 2:  # one is open: pyarrow does not mind at the end
            self._look()
        if self._text.packed.digest is not None:
            self.sha256 = self._text.packed.digest.hexdigest()

    def where(self, record: int) -> str:
        """Name a record (from 0, without the header) in an error.

        Raises DataError if another before it is wrong.
        """
        return f"{self.path} line {self._look(record)}"

    def _look(self, record: int | None = None) -> int:
        """Read the file again: the line on which a record ends, or how many records there are.

        Raises DataError for the first record, up to this one, that is wrong.
        """
        start, left = 1, text.BLOCK

        def lines(file: io.TextIOWrapper) -> Iterator[str]:
            nonlocal left
            while line := file.readline(left + 1):
                left -= len(line.encode())
                if left < 0:
                    raise DataError(
                        f"{self.path}: the record that starts on line {start} has more than "
                        f"{text.BLOCK:,} bytes. Is this a table with one record on each line?"
                    )
                yield line

        with opened(self.path) as file:
            again = io.BufferedReader(TextFile(self.path, file, silent, digest=False))
            plain = io.TextIOWrapper(again, "utf-8", newline="")
            reader = csv.reader(lines(plain), delimiter=self.delimiter, strict=True)
            found = -1 if self._after_header else 0
            try:
                for fields in reader:
                    line, start, left = reader.line_num, reader.line_num + 1, text.BLOCK
                    if _is_nothing(fields, self.delimiter):
                        continue
                    if found >= 0 and len(fields) != len(self._names):
                        raise DataError(
                            f"{self.path} line {line}: found {len(fields)} fields, expected "
                            f"{len(self._names)}: {', '.join(self._names)}."
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


TableFile = ArrowFile | CsvFile


@contextmanager
def open_file(
    path: Path, fits: Fits = bool, note: Note = silent, digest: bool = True
) -> Iterator[TableFile]:
    """Open a table's file, whatever its name. Raises DataError for what is no table, and if two
    delimiters fit.

    digest: whether `sha256` is wanted, which a CSV file has once it has been read.
    """
    kind = ""
    try:
        with opened(path) as file:
            if file.peek(8).startswith((b"PAR1", b"ARROW1")):
                kind = " as a Parquet or Arrow file"
                yield ArrowFile(path, file, digest)
            else:
                yield CsvFile(path, file, fits, note, digest)
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or (str(error) or "it is broken").splitlines()[0]
        raise DataError(f"{path} cannot be read{kind}: {reason.rstrip('.')}.") from None


def _is_nothing(fields: Sequence[str], delimiter: str) -> bool:
    """Whether a line is blank, or one of UCI's comments."""
    comment = delimiter != "|" and bool(fields) and fields[0].lstrip().startswith("|")
    return comment or not "".join(fields).strip()


def _sniffed(path: Path, lines: list[str], fits: Fits, whole: bool) -> tuple[str, list[str], int]:
    """Find the delimiter: the first record fits, and the next have equally many fields.

    Returns it, the first record, and on which line that ends. `lines` is the file's beginning, or
    the `whole` of it.
    """
    starts = {}
    for delimiter in DELIMITERS:
        rows: list[tuple[int, list[str]]] = []
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            for fields in reader:
                if not _is_nothing(fields, delimiter):
                    rows.append((reader.line_num, [normalize(field.strip()) for field in fields]))
                if len(rows) > SAMPLE:
                    break
        except csv.Error:  # counts as an empty record, and is the last
            rows += [(reader.line_num, [])] if rows else []
        starts[delimiter] = rows if whole or len(rows) <= 1 else rows[:-1]
    possible = [d for d, rows in starts.items() if rows and fits(rows[0][1])]
    possible = possible or [d for d, rows in starts.items() if rows and len(rows[0][1]) > 1]
    even = [d for d in possible if len({len(fields) for _, fields in starts[d]}) == 1]
    chosen = [d for d in even or possible if len(starts[d][0][1]) > 1] or [","]
    if len(chosen) > 1:
        ways = (f"{DELIMITERS[d]} ({len(starts[d][0][1])} columns)" for d in chosen)
        raise DataError(
            f"{path}: fields could be separated by {' or '.join(ways)}. Put quotes around fields "
            "that contain one of these characters, or name the columns in a header."
        )
    line, first = starts[chosen[0]][0] if starts[chosen[0]] else (0, [])
    return chosen[0], first, line
