"""Read delimited text files: recognise the format, the encoding and the delimiter.

A file is read from beginning to end several times, and never held: once to see that it is text and
of which encoding, its beginning to find the delimiter, and then its records, a block at a time.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from terrine_models.data.arrays import DataError
from terrine_models.data.reading import Progress, rows_at_a_time, unseen
from terrine_protocol.files import opened

Encoding = Literal["utf-8", "latin-1", "windows-1252"]
"""Of files that are not UTF-8."""
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
TEXT_SUFFIXES = {".csv", ".tsv", ".tab", ".txt", ".data", ".test"}
FOREIGN_SUFFIXES = {
    ".xlsx": "an Excel workbook",
    ".xls": "an Excel workbook",
    ".ods": "a spreadsheet",
}
MAGIC = {
    rb"PAR1": "a Parquet file",
    rb"ARROW1": "an Arrow file",
    rb"\xd0\xcf\x11\xe0": "an Excel workbook or another old Office document",
    rb"BZh[1-9]1AY&SY": "packed with bzip2",
    rb"\xfd7zXZ\0": "packed with xz",
    rb"\x28\xb5\x2f\xfd": "packed with zstd",
}
"""Starts of files, as regular expressions."""
SAMPLE = 100
"""Records that are read to find the delimiter."""
CHUNK = 2**20
"""Bytes that are looked at together."""
LONGEST = 2**24
"""Characters of a record: a file without line ends must not be taken for one."""
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")

Row = tuple[int, list[str]]
"""Line number (of the record's last line) and fields."""
Note = Callable[[str], object]
"""Receives a sentence for the user about how a file was read."""


def silent(sentence: str) -> None:
    """Discard a note."""


@dataclass(frozen=True)
class CsvFile:
    """A file of records, including any header."""

    path: Path
    codec: Encoding
    delimiter: str

    def blocks(self, progress: Progress = unseen) -> Iterator[list[Row]]:
        """Read the records, some at a time. Raises DataError."""
        size = self.path.stat().st_size
        with _text(self.path, self.codec) as (text, packed):
            records = _rows(self.path, text, self.delimiter)
            for first in records:
                more = itertools.islice(records, rows_at_a_time(len(first[1])) - 1)
                progress(packed.tell(), size)
                yield [first, *more]


def open_sheet(
    path: Path,
    fits: Callable[[Sequence[str]], bool],
    note: Note = silent,
    encoding: Encoding = "utf-8",
) -> CsvFile:
    """Open a file with fields separated by commas, semicolons, tabs or bars.

    `fits` says whether a first row is as expected, which resolves most ambiguities. A delimiter
    other than the comma is noted. Blank lines and UCI's `|` comments are skipped; fields are
    trimmed. `encoding` is that of a file that is not UTF-8. Raises DataError if bytes are in
    neither, a record is not CSV or longer than `LONGEST`, or two delimiters fit.
    """
    path = Path(path)
    codec = check(path, note, encoding)
    delimiter = _delimiter(path, codec, fits)
    if delimiter != ",":
        note(
            f"{path}: fields are separated by {DELIMITERS[delimiter]}; in numbers a comma is read "
            "as the decimal sign."
        )
    return CsvFile(path, codec, delimiter)


def check(path: Path, note: Note = silent, encoding: Encoding = "utf-8") -> Encoding:
    """Return the encoding of a text file, plain or gzip. Raises DataError if it is no text.

    What is UTF-8 is read as such, whatever `encoding` says: text in another one hardly ever is.
    """
    path = Path(path)
    with _unpacked(path) as (file, _):
        _refuse_other_formats(path, file.read(CHUNK))
    first = _undecodable(path, "utf-8")
    if first is None:
        return "utf-8"
    found = first if encoding == "utf-8" else _undecodable(path, encoding)
    if found is not None:
        named = "UTF-8" if encoding == "utf-8" else f"UTF-8, nor {encoding}"
        raise DataError(
            f"{path} is not {named}: line {found.line} holds the byte 0x{found.byte:02x}. Older "
            "programs write Windows-1252 (--encoding windows-1252) or Latin-1 (--encoding latin-1)."
        )
    note(f"{path} is not UTF-8 (line {first.line}); it is read as {encoding}.")
    return encoding


def columns_of(
    path: Path, block: Sequence[Row], names: Sequence[str]
) -> tuple[dict[str, Sequence[str]], list[int]]:
    """The columns of some records by name, and their line numbers.

    Raises DataError for a record that has not as many fields as there are names.
    """
    for line, fields in block:
        if len(fields) != len(names):
            raise DataError(
                f"{path} line {line}: found {len(fields)} fields, expected {len(names)}: "
                f"{', '.join(names)}."
            )
    turned = zip(*(fields for _, fields in block), strict=True)
    return dict(zip(names, turned, strict=True)), [line for line, _ in block]


def number(text: str, *, decimal_comma: bool = False) -> float:
    """Parse a field as a number; NaN if it is not one.

    With `decimal_comma`, 3,5 and 1.234,5 are numbers, and 1.234 is not: it is ambiguous.
    """
    if decimal_comma and "," in text:
        text = text.replace(".", "").replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else ""
    elif decimal_comma and "." in text:
        return math.nan
    try:
        return float(text)
    except ValueError:
        return math.nan


@contextmanager
def _unpacked(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The bytes of a file, plain or gzip, without a mark at the beginning; and the file itself."""
    try:
        with opened(path) as packed:
            zipped = packed.peek(2).startswith(b"\x1f\x8b")
            file = gzip.GzipFile(fileobj=packed) if zipped else packed
            bytes_ = io.BufferedReader(file, CHUNK)
            if bytes_.peek(3).startswith(codecs.BOM_UTF8):
                bytes_.read(3)
            yield bytes_, packed
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read: {reason}.") from None


@contextmanager
def _text(path: Path, codec: Encoding) -> Iterator[tuple[io.TextIOWrapper, IO[bytes]]]:
    try:
        with _unpacked(path) as (file, packed):
            yield io.TextIOWrapper(file, codec, newline=""), packed
    except UnicodeDecodeError:  # it was found to be in this encoding
        raise DataError(f"{path} is no longer in {codec}.") from None


@dataclass(frozen=True)
class _Undecodable:
    line: int
    byte: int


def _undecodable(path: Path, codec: Encoding) -> _Undecodable | None:
    """The first byte that is not of an encoding. Raises DataError for a zero byte."""
    decoder, lines = codecs.getincrementaldecoder(codec)(), 1
    with _unpacked(path) as (file, _):
        while True:
            place, chunk = file.tell(), file.read(CHUNK)
            if b"\0" in chunk:
                raise DataError(
                    f"{path} is not text: byte {place + chunk.index(0)} is zero. A table must be a "
                    "CSV file in UTF-8."
                )
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                line = lines + error.object.count(b"\n", 0, error.start)
                return _Undecodable(line, error.object[error.start])
            if not chunk:
                return None
            lines += chunk.count(b"\n")


def _refuse_other_formats(path: Path, start: bytes) -> None:
    what = _other_format(path, start)
    if what is not None:
        raise DataError(f"{path} is {what}. A table must be a CSV file: {_remedy(path, what)}")
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


def _remedy(path: Path, what: str) -> str:
    """Say how to convert a file of format `what` to CSV."""
    if what == "an .npz archive":
        return "or, if these are arrays to train on, give it a name that ends in .npz."
    if what.startswith(("packed", "a zip", "a Parquet", "an Arrow")):
        return "unpack it first. Only gzip is read without unpacking."
    return "open it in a spreadsheet program and save the sheet as CSV in UTF-8."


def _delimiter(path: Path, codec: Encoding, fits: Callable[[Sequence[str]], bool]) -> str:
    """Find the delimiter: the first row fits, and the next rows have equally many fields."""
    starts = {delimiter: _start(path, codec, delimiter) for delimiter in DELIMITERS}
    possible = [d for d, rows in starts.items() if rows and fits(rows[0])]
    possible = possible or [d for d, rows in starts.items() if rows and len(rows[0]) > 1]
    even = [d for d in possible if len({len(row) for row in starts[d]}) == 1]
    chosen = even or possible or [","]
    if len(chosen) > 1:
        ways = (f"{DELIMITERS[d]} ({len(starts[d][0])} columns)" for d in chosen)
        raise DataError(
            f"{path}: fields could be separated by {' or '.join(ways)}. Put quotes around fields "
            "that contain one of these characters, or name the columns in a header."
        )
    return chosen[0]


def _start(path: Path, codec: Encoding, delimiter: str) -> list[list[str]]:
    """Return the first records; a record that is not CSV counts as empty and is the last."""
    rows: list[list[str]] = []
    with _text(path, codec) as (text, _):
        try:
            for _, fields in itertools.islice(_records(path, text, delimiter), SAMPLE):
                rows.append(fields)
        except _BadRecordError:
            rows += [[]] if rows else []
    return rows


def _rows(path: Path, text: io.TextIOBase, delimiter: str) -> Iterator[Row]:
    try:
        yield from _records(path, text, delimiter)
    except _BadRecordError as error:
        raise DataError(
            f"{path} is not a CSV file: in the record that starts on line {error.line}, {error}. A "
            "quote that opens a field must be closed, and quotes inside it doubled."
        ) from None


class _BadRecordError(Exception):
    def __init__(self, line: int, reason: csv.Error) -> None:
        super().__init__(reason)
        self.line = line


def _records(path: Path, text: io.TextIOBase, delimiter: str) -> Iterator[Row]:
    """Yield line numbers and trimmed fields, without blank lines and UCI's `|` comments."""
    left = LONGEST

    def lines() -> Iterator[str]:
        nonlocal left
        while line := text.readline(left + 1):
            left -= len(line)
            if left < 0:
                raise DataError(
                    f"{path}: the record that starts on line {start} has more than {LONGEST:,} "
                    "characters. Is this a table with one record on each line?"
                )
            yield line

    reader = csv.reader(lines(), delimiter=delimiter, skipinitialspace=True, strict=True)
    while True:
        start, left = reader.line_num + 1, LONGEST
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise _BadRecordError(start, error) from None
        comment = delimiter != "|" and fields and fields[0].startswith("|")
        if any(fields) and not comment:
            yield reader.line_num, [field.strip() for field in fields]
