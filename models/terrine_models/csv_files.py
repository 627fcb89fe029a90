"""Read delimited text files: recognise the format, the encoding and the delimiter."""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import itertools
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .data import DataError

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
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")

Row = tuple[int, list[str]]
"""Line number (of the record's last line) and fields."""
Note = Callable[[str], object]
"""Receives a sentence for the user about how a file was read."""


def silent(sentence: str) -> None:
    """Discard a note."""


@dataclass(frozen=True)
class Sheet:
    """The rows of a file, including any header."""

    path: Path
    sha256: str
    """Of the file on disk, before unpacking."""
    delimiter: str
    rows: list[Row]

    def decimal_commas(self, values: Sequence[str]) -> bool:
        """Whether a column has decimal commas, as in 3,5; never if commas separate fields."""
        return self.delimiter != "," and any("," in value for value in values)


def read_sheet(
    path: Path,
    fits: Callable[[Sequence[str]], bool],
    note: Note = silent,
    encoding: Encoding = "utf-8",
) -> Sheet:
    """Read the rows of a file with fields separated by commas, semicolons, tabs or bars.

    `fits` says whether a first row is as expected, which resolves most ambiguities. A delimiter
    other than the comma is noted. Blank lines and UCI's `|` comments are skipped; fields are
    trimmed. `encoding` is that of a file that is not UTF-8. Raises DataError if bytes are in
    neither, a record is not CSV, or two delimiters fit.
    """
    path = Path(path)
    text, digest = read_text(path, note, encoding)
    delimiter = _delimiter(path, text, fits)
    if delimiter != ",":
        note(
            f"{path}: fields are separated by {DELIMITERS[delimiter]}; in numbers a comma is read "
            "as the decimal sign."
        )
    return Sheet(path, digest, delimiter, list(_rows(path, text, delimiter)))


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


def read_text(path: Path, note: Note = silent, encoding: Encoding = "utf-8") -> tuple[str, str]:
    """Return the text of a file, plain or gzip, and the file's SHA-256. Raises DataError.

    What is UTF-8 is read as such, whatever `encoding` says: text in another one hardly ever is.
    """
    try:
        packed = Path(path).read_bytes()
        data = gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from None
    _refuse_other_formats(path, data)
    return _decoded(path, data.removeprefix(codecs.BOM_UTF8), note, encoding), digest_of(packed)


def digest_of(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _decoded(path: Path, data: bytes, note: Note, encoding: Encoding) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        first = error
    try:
        text = data.decode("utf-8" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        named = "UTF-8" if encoding == "utf-8" else f"UTF-8, nor {encoding}"
        start = error.start
        line = data.count(b"\n", 0, start) + 1
        raise DataError(
            f"{path} is not {named}: line {line} holds the byte 0x{data[start]:02x}. Older "
            "programs write Windows-1252 (--encoding windows-1252) or Latin-1 (--encoding latin-1)."
        ) from None
    line = data.count(b"\n", 0, first.start) + 1
    note(f"{path} is not UTF-8 (line {line}); it is read as {encoding}.")
    return text


def _refuse_other_formats(path: Path, data: bytes) -> None:
    what = _other_format(data)
    if what is not None:
        raise DataError(f"{path} is {what}. A table must be a CSV file: {_remedy(path, what)}")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = Path(path).name.removesuffix(".gz")
        convert = f"iconv -f UTF-16 -t UTF-8 {name} > utf8-{name}"
        raise DataError(f"{path} is in UTF-16. Convert it: {convert}")
    if b"\0" in data:
        raise DataError(
            f"{path} is not text: byte {data.index(0)} is zero. A table must be a CSV file in "
            "UTF-8."
        )
    suffix = Path(str(path).lower().removesuffix(".gz")).suffix
    if suffix in FOREIGN_SUFFIXES:
        raise DataError(
            f"{path} is named as {FOREIGN_SUFFIXES[suffix]}, but it holds text. If that is CSV, "
            "give it a name that ends in .csv."
        )


def _other_format(data: bytes) -> str | None:
    if data.startswith(b"PK\x03\x04"):
        return _zip_content(data)
    return next((what for start, what in MAGIC.items() if re.match(start, data)), None)


def _zip_content(data: bytes) -> str:
    try:
        names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    except zipfile.BadZipFile:
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


def _delimiter(path: Path, text: str, fits: Callable[[Sequence[str]], bool]) -> str:
    """Find the delimiter: the first row fits, and the next rows have equally many fields."""
    starts = {delimiter: _start(text, delimiter) for delimiter in DELIMITERS}
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


def _start(text: str, delimiter: str) -> list[list[str]]:
    """Return the first records; a record that is not CSV counts as empty and is the last."""
    rows: list[list[str]] = []
    try:
        for _, fields in itertools.islice(_records(text, delimiter), SAMPLE):
            rows.append(fields)
    except _BadRecordError:
        rows += [[]] if rows else []
    return rows


def _rows(path: Path, text: str, delimiter: str) -> Iterator[Row]:
    try:
        yield from _records(text, delimiter)
    except _BadRecordError as error:
        raise DataError(
            f"{path} is not a CSV file: in the record that starts on line {error.line}, {error}. A "
            "quote that opens a field must be closed, and quotes inside it doubled."
        ) from None


class _BadRecordError(Exception):
    def __init__(self, line: int, reason: csv.Error) -> None:
        super().__init__(reason)
        self.line = line


def _records(text: str, delimiter: str) -> Iterator[Row]:
    """Yield line numbers and trimmed fields, without blank lines and UCI's `|` comments."""
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise _BadRecordError(line, error) from None
        comment = delimiter != "|" and fields and fields[0].startswith("|")
        if any(fields) and not comment:
            yield reader.line_num, [field.strip() for field in fields]
