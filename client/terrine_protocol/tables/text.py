"""The text of CSV files: unpacked, checked and hashed as it is read."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from terrine_protocol.files import opened
from terrine_protocol.tables import DataError
from terrine_protocol.tables.columns import Note

BLOCK = 2**20
"""Bytes that are read together."""
SHEET = "Open it in a spreadsheet program and save the sheet as CSV in UTF-8."
CONVERTS = "and DataFrame.to_parquet convert it."
UNPACK = "Unpack it first: only gzip is read without unpacking."
OTHERS = (
    (b"PAR1", "a Parquet file", UNPACK),
    (b"ARROW1", "an Arrow file", UNPACK),
    (b"PK\x03\x04", "packed with zip, as .xlsx, .ods and .npz are", f"{SHEET} Arrays end in .npz."),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook or another old Office document", SHEET),
    (b"FEA1", "a Feather file of the first version", "Write it anew: DataFrame.to_parquet."),
    (b"<stata_dta>", "a Stata file", f"pandas.read_stata {CONVERTS}"),
    (b"$FL", "an SPSS file", f"pandas.read_spss {CONVERTS}"),
    (b"\x89HDF", "an HDF5 file", f"pandas.read_hdf {CONVERTS}"),
    (b"SQLite format 3", "an SQLite database", "Export a table: sqlite3 -header -csv."),
    (b"RDX", "data of R", "In R: write.csv(data, 'table.csv', row.names = FALSE)."),
    (b"\x80\x04", "a pickle of Python's", "These are never loaded. Write CSV or Parquet."),
    (b"\x80\x05", "a pickle of Python's", "These are never loaded. Write CSV or Parquet."),
    (b"\x93NUMPY", "an array of NumPy's", "Arrays end in .npy."),
    (b"BZh", "packed with bzip2", UNPACK),
    (b"\xfd7zXZ\0", "packed with xz", UNPACK),
    (b"\x28\xb5\x2f\xfd", "packed with zstd", UNPACK),
    (codecs.BOM_UTF16_LE, "in UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8."),
    (codecs.BOM_UTF16_BE, "in UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8."),
)
"""Starts of files that are no CSV, what they are, and what to do."""
OLD = "windows-1252"
"""Of lines that are not UTF-8. What of it is printed is the same in Latin-1."""


class TextFile(io.RawIOBase):
    """The text of a file, plain or gzip, as UTF-8 without a mark. Raises DataError if it is none.

    A line that is not UTF-8 is read as Windows-1252, and `note` is told of the first. Each line is
    decoded by itself: how one person's record is written must not change what others' say.
    """

    def __init__(self, path: Path, file: io.BufferedReader, note: Note, digest: bool) -> None:
        self.packed = _Packed(file, digest)
        self._gzip = file.peek(2).startswith(b"\x1f\x8b")
        self._file: Any = gzip.GzipFile(fileobj=self.packed) if self._gzip else self.packed
        self._path, self._note, self._noted = path, note, False
        self.ready, self._tail = b"", b""
        """Text that is read next, and bytes of a line whose others are not read yet."""
        self.quotes = 0
        """How many there were: an odd number leaves one open."""
        self._place, self._ended = 0, False
        self._next = self._file.read(BLOCK)
        for start, what, remedy in OTHERS:
            if self._next.startswith(start):
                raise DataError(f"{path} is {what}. A table must be a CSV file. {remedy}")

    def readable(self) -> bool:
        """As files say."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, and fewer only at the end: to pyarrow, what it gets is a block."""
        size = BLOCK if size < 0 else size
        while len(self.ready) < size and not self._ended:
            chunk, self._next = self._next or self._file.read(BLOCK), b""
            self._ended = not chunk
            if b"\0" in chunk:
                raise DataError(
                    f"{self._path} is not text: byte {self._place + chunk.index(0)} is zero. A "
                    "table must be a CSV file in UTF-8."
                )
            first = not self._place
            text = self._decoded(chunk)
            if first:
                text = text.removeprefix(codecs.BOM_UTF8)
            self.quotes += int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord('"')))
            self.ready += text
        found, self.ready = self.ready[:size], self.ready[size:]
        return found

    def readinto(self, buffer: Any) -> int:
        """As `io.BufferedReader` reads."""
        chunk = self.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def _decoded(self, chunk: bytes) -> bytes:
        """The text of the lines that end with this chunk of the file; the rest waits."""
        data, start = self._tail + chunk, self._place - len(self._tail)
        self._place += len(chunk)
        end = len(data)
        if chunk and len(data) <= 2 * BLOCK:  # longer lines are in no table: pyarrow refuses them
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        text, self._tail = data[:end], data[end:]
        if _is_utf_8(text):
            return text
        lines = text.splitlines(keepends=True)
        for number, line in enumerate(lines):
            if not _is_utf_8(line):
                lines[number] = self._of_old(line, start)
            start += len(line)
        return b"".join(lines)

    def _of_old(self, line: bytes, start: int) -> bytes:
        """A line that is not UTF-8, and starts at this byte of the file, as UTF-8."""
        try:
            text = line.decode(OLD).encode()
        except UnicodeDecodeError as error:
            name = self._path.name.removesuffix(".gz")
            raise DataError(
                f"{self._path} is not UTF-8, nor {OLD}: line {self._line(start)} holds the byte "
                f"0x{line[error.start]:02x}. Convert it from what it is: iconv -f ENCODING "
                f"-t UTF-8 {name} > utf8-{name}"
            ) from None
        if not self._noted:
            self._noted = True
            self._note(
                f"{self._path} is not UTF-8 (line {self._line(start)}); such lines are read as "
                f"{OLD}."
            )
        return text

    def _line(self, place: int) -> int:
        """The line that starts at this byte of the file, which is read again for it."""
        with opened(self._path) as file:
            text: Any = gzip.GzipFile(fileobj=file) if self._gzip else file
            parts = (text.read(min(BLOCK, place - at)) for at in range(0, place, BLOCK))
            before: int = sum(part.count(b"\n") for part in parts)
            return 1 + before


def _is_utf_8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        codecs.utf_8_decode(text, "strict", True)
    except UnicodeDecodeError:
        return False
    return True


class _Packed(io.RawIOBase):
    """The bytes of a file, counted as they are read, and hashed if that is wanted."""

    def __init__(self, file: io.BufferedReader, digest: bool) -> None:
        self._file, self.count, self.digest = file, 0, hashlib.sha256() if digest else None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        self.count += len(chunk)
        if self.digest is not None:
            self.digest.update(chunk)
        return chunk
