"""Read tables in files with pyarrow: CSV, Parquet and Arrow, some rows at a time.

A file is read once from beginning to end, and hashed on the way (a Parquet or Arrow file before,
where its digest is wanted). Only where something is wrong a CSV file is read again, to find the
line.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet
from pyarrow import csv as arrow_csv

from terrine_models.data.arrays import DataError
from terrine_models.data.reading import Progress, rows_at_a_time, unseen
from terrine_models.tables.columns import check_names
from terrine_protocol.files import opened

BLOCK = 2**20
"""Bytes that are read together, and the most of one record: a file without line ends must not be
taken for one."""
SAMPLE = 100
"""Records that are read to find the delimiter."""
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
FOREIGN_SUFFIXES = {
    ".xlsx": "an Excel workbook",
    ".xls": "an Excel workbook",
    ".ods": "a spreadsheet",
}
ARROW = (b"PAR1", b"ARROW1")
MAGIC = {
    rb"PAR1": "a Parquet file",
    rb"ARROW1": "an Arrow file",
    rb"\xd0\xcf\x11\xe0": "an Excel workbook or another old Office document",
    rb"BZh[1-9]1AY&SY": "packed with bzip2",
    rb"\xfd7zXZ\0": "packed with xz",
    rb"\x28\xb5\x2f\xfd": "packed with zstd",
}
"""Starts of files, as regular expressions."""
OLD = "windows-1252"
"""Of text that is not UTF-8. In what is printed it is Latin-1, too."""

Note = Callable[[str], object]
"""Receives a sentence for the user about how a file was read."""
Fits = Callable[[Sequence[str]], bool]
"""Whether a first record is as expected, which resolves most ambiguities."""


def silent(sentence: str) -> None:
    """Discard a note."""


class TableFile(Protocol):
    """A table's file that is open."""

    path: Path
    delimiter: str | None
    """None if the file names its columns itself."""
    first: list[str]
    """The first record, or the names of the columns; empty if there is none."""

    def batches(
        self, names: Sequence[str], header: bool, progress: Progress = unseen
    ) -> Iterator[Any]:
        """Record batches with columns of these names. Raises DataError.

        header: whether the first record names the columns; `names` are then all of them.
        """

    def where(self, record: int) -> str:
        """Name a record (from 0, without the header) in an error. Raises DataError if another
        before it is wrong."""

    def sha256(self) -> str:
        """SHA-256 of the file, once it has been read, in hexadecimal; "" if it was not wanted."""


@contextmanager
def open_file(
    path: Path, fits: Fits = bool, note: Note = silent, digest: bool = True
) -> Iterator[TableFile]:
    """Open a table's file, whatever its name: CSV (plain or gzip), Parquet or Arrow.

    Fields are separated by commas, semicolons, tabs or bars; a delimiter other than the comma is
    noted. Blank lines and UCI's `|` comments are skipped, fields are trimmed. Text that is not
    UTF-8 is read as Windows-1252, and noted. Raises DataError for what is no table, and if two
    delimiters fit.
    """
    try:
        with opened(path) as file:
            if file.peek(8).startswith(ARROW):
                yield _ArrowFile(path, file, digest)
            else:
                yield _CsvFile(path, file, fits, note, digest)
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, pa.ArrowException):
            raise
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read: {reason}.") from None


class _ArrowFile:
    delimiter = None

    def __init__(self, path: Path, file: io.BufferedReader, digest: bool) -> None:
        self.path = path
        self._sha256 = hashlib.file_digest(file, "sha256").hexdigest() if digest else ""  # type: ignore[arg-type]
        file.seek(0)
        with self._refusing():
            self._parquet = file.read(4) == ARROW[0]
            file.seek(0)
            # A buffer: otherwise all of a row group's columns would be read at once.
            read = parquet.ParquetFile(file, buffer_size=BLOCK) if self._parquet else None
            self._file = read or pa.ipc.open_file(file)
            self.first = list((read.schema_arrow if read else self._file.schema).names)
        check_names(self.first, [], str(path))

    def batches(
        self, names: Sequence[str], header: bool, progress: Progress = unseen
    ) -> Iterator[Any]:
        with self._refusing():
            yield from (self._groups if self._parquet else self._records)(list(names), progress)

    def where(self, record: int) -> str:
        return f"{self.path} row {record + 1}"

    def sha256(self) -> str:
        return self._sha256

    def _groups(self, names: list[str], progress: Progress) -> Iterator[Any]:
        done, rows = 0, rows_at_a_time(len(names))
        for batch in self._file.iter_batches(batch_size=rows, columns=names):
            done += batch.num_rows
            progress(done, self._file.metadata.num_rows)
            yield batch

    def _records(self, names: list[str], progress: Progress) -> Iterator[Any]:
        rows = rows_at_a_time(len(names))
        for done in range(self._file.num_record_batches):
            batch = self._file.get_batch(done).select(names)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)
            progress(done + 1, self._file.num_record_batches)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(
                f"{self.path} cannot be read as a Parquet or Arrow file: {reason}"
            ) from None


class _CsvFile:
    def __init__(
        self, path: Path, file: io.BufferedReader, fits: Fits, note: Note, digest: bool
    ) -> None:
        self.path, self._size = path, path.stat().st_size
        self._packed = _Packed(file, hashlib.sha256() if digest else None)
        self._text = _Text(path, self._packed, note)
        head = self._text.read(BLOCK)
        whole = len(head) < BLOCK and not self._text.read(1, keep=True)
        lines = io.StringIO(head.decode(errors="ignore"), newline="").readlines()
        self.delimiter, self.first, header = _sniffed(path, lines, fits, whole)
        self._header = len("".join(lines[:header]).encode())
        self._head = head
        if self.delimiter != ",":
            note(
                f"{path}: fields are separated by {DELIMITERS[self.delimiter]}; in numbers a comma "
                "is read as the decimal sign."
            )

    def batches(
        self, names: Sequence[str], header: bool, progress: Progress = unseen
    ) -> Iterator[Any]:
        self._names, self._after_header = list(names), header
        self._text.unread(self._head[self._header if header else 0 :])
        del self._head
        records = 0
        try:
            for batch in self._parsed():
                some = _without_nothing(batch, self.delimiter)
                records += some.num_rows
                progress(self._packed.count, self._size)
                if some.num_rows:
                    yield some
        except pa.ArrowInvalid as error:
            if self._look() > 0 or records:  # else nothing but blank lines
                reason = str(error).splitlines()[0]
                raise DataError(f"{self.path} cannot be read as CSV: {reason}") from None
        if self._text.quotes % 2:
            self._look()

    def where(self, record: int) -> str:
        return f"{self.path} line {self._look(record)}"

    def sha256(self) -> str:
        return self._packed.digest.hexdigest() if self._packed.digest else ""

    def _parsed(self) -> Any:
        return arrow_csv.open_csv(
            self._text,
            arrow_csv.ReadOptions(column_names=self._names, block_size=BLOCK, use_threads=False),
            arrow_csv.ParseOptions(
                delimiter=self.delimiter,
                newlines_in_values=True,
                invalid_row_handler=self._skipped,
            ),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(self._names, pa.string()),
                check_utf8=False,  # it was
                null_values=[],
            ),
        )

    def _skipped(self, row: Any) -> str:
        return "skip" if _is_nothing(row.text.split(self.delimiter), self.delimiter) else "error"

    def _look(self, record: int | None = None) -> int:
        """Find the line on which a record ends; without one, how many records there are.

        Raises DataError for the first record, up to this one, that is wrong.
        """
        with opened(self.path) as file:
            text = io.BufferedReader(_Text(self.path, _Packed(file), silent))
            lines = _Lines(self.path, io.TextIOWrapper(text, "utf-8", newline=""))
            records = csv.reader(lines, delimiter=self.delimiter, strict=True)
            found = -1 if self._after_header else 0
            while True:
                lines.begin(records.line_num + 1)
                try:
                    fields = next(records)
                except StopIteration:
                    return max(0, found)
                except csv.Error as error:
                    raise DataError(
                        f"{self.path} is not a CSV file: in the record that starts on line "
                        f"{lines.start}, {error}. A quote that opens a field must be closed, and "
                        "quotes inside it doubled."
                    ) from None
                if _is_nothing(fields, self.delimiter):
                    continue
                if found >= 0 and len(fields) != len(self._names):
                    raise DataError(
                        f"{self.path} line {records.line_num}: found {len(fields)} fields, "
                        f"expected {len(self._names)}: {', '.join(self._names)}."
                    )
                if found == record:
                    return records.line_num
                found += 1


class _Packed(io.RawIOBase):
    """The bytes of a file, counted as they are read, and hashed if their digest is wanted."""

    def __init__(self, file: io.BufferedReader, digest: Any = None) -> None:
        self._file, self.digest, self.count = file, digest, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        if self.digest is not None:
            self.digest.update(chunk)
        self.count += len(chunk)
        return chunk

    def starts_with(self, magic: bytes) -> bool:
        """Whether the file, of which nothing was read, begins with these bytes."""
        return self._file.peek(len(magic)).startswith(magic)


class _Text(io.RawIOBase):
    """The text of a file, plain or gzip, as UTF-8 without a mark. Raises DataError if it is none.

    Text that is not UTF-8 is read as Windows-1252, if all before it was ASCII.
    """

    def __init__(self, path: Path, packed: _Packed, note: Note) -> None:
        zipped = packed.starts_with(b"\x1f\x8b")
        self._file: Any = gzip.GzipFile(fileobj=packed) if zipped else packed
        self._path, self._note, self._codec = path, note, "utf-8"
        self._next = self._file.read(BLOCK)
        _refuse_other_formats(path, self._next)
        self._place, self._ascii, self._ended = 0, True, False
        self._ready, self._tail = b"", b""
        self.quotes = 0
        """How many there were: an odd number leaves one open."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, *, keep: bool = False) -> bytes:
        while not self._ready and not self._ended:
            chunk, self._next = self._next or self._file.read(BLOCK), b""
            self._ended = not chunk
            self._ready = self._checked(chunk)
        size = len(self._ready) if size < 0 else size
        found = self._ready[:size]
        if not keep:
            self._ready = self._ready[size:]
        return found

    def readinto(self, buffer: Any) -> int:
        chunk = self.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def unread(self, data: bytes) -> None:
        """Put back what was read last."""
        self._ready = data + self._ready

    def _checked(self, chunk: bytes) -> bytes:
        if b"\0" in chunk:
            raise DataError(
                f"{self._path} is not text: byte {self._place + chunk.index(0)} is zero. A table "
                "must be a CSV file in UTF-8."
            )
        text = self._decoded(self._tail + chunk, final=not chunk)
        if not self._place:
            text = text.removeprefix(codecs.BOM_UTF8)
        self._place += len(chunk)
        self.quotes += np.count_nonzero(np.frombuffer(text, np.uint8) == ord('"'))
        return text

    def _decoded(self, data: bytes, final: bool) -> bytes:
        if self._codec == "utf-8":
            try:
                used = (
                    len(data) if data.isascii() else codecs.utf_8_decode(data, "strict", final)[1]
                )
                self._tail, data = data[used:], data[:used]
                self._ascii = self._ascii and data.isascii()
                return data
            except UnicodeDecodeError as error:
                line = self._line(error.start)
                if not (self._ascii and data[: error.start].isascii()):
                    raise self._undecodable(line, data[error.start], "UTF-8") from None
                self._codec, self._tail = OLD, b""
                self._note(f"{self._path} is not UTF-8 (line {line}); it is read as {OLD}.")
        try:
            return data.decode(OLD).encode()
        except UnicodeDecodeError as error:
            line = self._line(error.start)
            raise self._undecodable(line, data[error.start], f"UTF-8, nor {OLD}") from None

    def _line(self, start: int) -> int:
        """The line of a byte of those that are being decoded; the file is read again for it."""
        place = self._place - len(self._tail) + start
        with opened(self._path) as file:
            text: Any = file if isinstance(self._file, _Packed) else gzip.GzipFile(fileobj=file)
            return 1 + sum(
                text.read(min(BLOCK, place - at)).count(b"\n") for at in range(0, place, BLOCK)
            )

    def _undecodable(self, line: int, byte: int, codec: str) -> DataError:
        name = self._path.name.removesuffix(".gz")
        return DataError(
            f"{self._path} is not {codec}: line {line} holds the byte 0x{byte:02x}. Convert it "
            f"from what it is: iconv -f ENCODING -t UTF-8 {name} > utf8-{name}"
        )


class _Lines:
    """The lines of a text, for records that are not too long. Raises DataError for one that is."""

    def __init__(self, path: Path, text: io.TextIOWrapper) -> None:
        self._path, self._text, self.start, self._left = path, text, 1, BLOCK

    def begin(self, line: int) -> None:
        """The next record begins on this line."""
        self.start, self._left = line, BLOCK

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(self._left + 1)
        self._left -= len(line.encode())
        if self._left < 0:
            raise DataError(
                f"{self._path}: the record that starts on line {self.start} has more than "
                f"{BLOCK:,} bytes. Is this a table with one record on each line?"
            )
        if not line:
            raise StopIteration
        return line


def _is_nothing(fields: Sequence[str], delimiter: str) -> bool:
    """Whether a line is blank, or one of UCI's comments."""
    comment = delimiter != "|" and bool(fields) and fields[0].lstrip().startswith("|")
    return comment or not any(field.strip() for field in fields)


def _without_nothing(batch: Any, delimiter: str) -> Any:
    """Leave out the rows of which `_is_nothing` holds."""
    first = compute.utf8_trim_whitespace(batch.column(0))
    gone = compute.equal(first, "")
    for column in batch.columns[1:]:
        if not compute.any(gone).as_py():
            break
        gone = compute.and_(gone, compute.equal(compute.utf8_trim_whitespace(column), ""))
    if delimiter != "|":
        gone = compute.or_(gone, compute.starts_with(first, "|"))
    return batch.filter(compute.invert(gone)) if compute.any(gone).as_py() else batch


def _sniffed(path: Path, lines: list[str], fits: Fits, whole: bool) -> tuple[str, list[str], int]:
    """Find the delimiter: the first record fits, and the next have equally many fields.

    Returns it, the first record, and on which line that ends. `lines` is the file's beginning, or
    the `whole` of it.
    """
    starts = {delimiter: _start(lines, delimiter, whole) for delimiter in DELIMITERS}
    possible = [d for d, rows in starts.items() if rows and fits(rows[0][1])]
    possible = possible or [d for d, rows in starts.items() if rows and len(rows[0][1]) > 1]
    even = [d for d in possible if len({len(fields) for _, fields in starts[d]}) == 1]
    chosen = even or possible or [","]
    if len(chosen) > 1:
        ways = (f"{DELIMITERS[d]} ({len(starts[d][0][1])} columns)" for d in chosen)
        raise DataError(
            f"{path}: fields could be separated by {' or '.join(ways)}. Put quotes around fields "
            "that contain one of these characters, or name the columns in a header."
        )
    line, first = starts[chosen[0]][0] if starts[chosen[0]] else (0, [])
    return chosen[0], first, line


def _start(lines: list[str], delimiter: str, whole: bool) -> list[tuple[int, list[str]]]:
    """The first records, and on which lines they end; one that is not CSV is empty and the last."""
    rows: list[tuple[int, list[str]]] = []
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if not _is_nothing(fields, delimiter):
                rows.append((reader.line_num, [field.strip() for field in fields]))
            if len(rows) > SAMPLE:
                break
    except csv.Error:
        rows += [(reader.line_num, [])] if rows and whole else []
    else:
        whole = whole or len(rows) > SAMPLE
    return rows[:SAMPLE] if whole else rows[:-1]


def _refuse_other_formats(path: Path, start: bytes) -> None:
    what = _other_format(path, start)
    if what is not None:
        raise DataError(f"{path} is {what}. A table must be a CSV file: {_remedy(what)}")
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = path.name.removesuffix(".gz")
        convert = f"iconv -f UTF-16 -t UTF-8 {name} > utf8-{name}"
        raise DataError(f"{path} is in UTF-16. Convert it: {convert}")
    suffix = Path(str(path).lower().removesuffix(".gz")).suffix
    if suffix in FOREIGN_SUFFIXES:
        raise DataError(
            f"{path} is named as {FOREIGN_SUFFIXES[suffix]}, but it holds text. If that is CSV, "
            "give it a name that ends in .csv."
        )


def _other_format(path: Path, start: bytes) -> str | None:
    if start.startswith(b"PK\x03\x04"):
        return _zip_content(path)
    return next((what for magic, what in MAGIC.items() if re.match(magic, start)), None)


def _zip_content(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:  # also one that is packed with gzip
        names = []
    if any(name.startswith("xl/") for name in names):
        return "an Excel workbook"
    if "mimetype" in names:
        return "a spreadsheet"
    if any(name.endswith(".npy") for name in names):
        return "an .npz archive"
    return "a zip archive"


def _remedy(what: str) -> str:
    """Say how to convert a file of format `what` to CSV."""
    if what == "an .npz archive":
        return "or, if these are arrays to train on, give it a name that ends in .npz."
    if what.startswith(("packed", "a zip", "a Parquet", "an Arrow")):
        return "unpack it first. Only gzip is read without unpacking."
    return "open it in a spreadsheet program and save the sheet as CSV in UTF-8."
