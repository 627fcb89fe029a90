"""The text of CSV files: unpacked, checked and hashed as it is read."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from terrine_models.data.arrays import DataError
from terrine_models.tables.columns import Note
from terrine_protocol.files import opened

BLOCK = 2**20
"""Bytes that are read together."""
SHEET = "Open it in a spreadsheet program and save the sheet as CSV in UTF-8."
UNPACK = "Unpack it first: only gzip is read without unpacking."
OTHERS = (
    (b"PAR1", "a Parquet file", UNPACK),
    (b"ARROW1", "an Arrow file", UNPACK),
    (b"PK\x03\x04", "packed with zip, as .xlsx, .ods and .npz are", f"{SHEET} Arrays end in .npz."),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook or another old Office document", SHEET),
    (b"BZh", "packed with bzip2", UNPACK),
    (b"\xfd7zXZ\0", "packed with xz", UNPACK),
    (b"\x28\xb5\x2f\xfd", "packed with zstd", UNPACK),
    (codecs.BOM_UTF16_LE, "in UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8."),
    (codecs.BOM_UTF16_BE, "in UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8."),
)
"""Starts of files that are no CSV, what they are, and what to do."""
OLD = "windows-1252"
"""Of text that is not UTF-8. What of it is printed is the same in Latin-1."""


class TextFile(io.RawIOBase):
    """The text of a file, plain or gzip, as UTF-8 without a mark. Raises DataError if it is none.

    Text that is not UTF-8 is read as Windows-1252, if all before it was ASCII; `note` is told.
    """

    def __init__(self, path: Path, file: io.BufferedReader, note: Note, digest: bool) -> None:
        self.packed = _Packed(file, digest)
        self._gzip = file.peek(2).startswith(b"\x1f\x8b")
        self._file: Any = gzip.GzipFile(fileobj=self.packed) if self._gzip else self.packed
        self._path, self._note, self._codec = path, note, "utf-8"
        self.ready, self._tail = b"", b""
        """Text that is read next, and bytes of a character whose others are not read yet."""
        self.quotes = 0
        """How many there were: an odd number leaves one open."""
        self._place, self._ascii, self._ended = 0, True, False
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
            text = self._decoded(self._tail + chunk, final=self._ended)
            if not self._place:
                text = text.removeprefix(codecs.BOM_UTF8)
            self._place += len(chunk)
            self.quotes += int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord('"')))
            self.ready += text
        found, self.ready = self.ready[:size], self.ready[size:]
        return found

    def readinto(self, buffer: Any) -> int:
        """As `io.BufferedReader` reads."""
        chunk = self.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def _decoded(self, data: bytes, final: bool) -> bytes:
        if self._codec == "utf-8":
            try:
                used = len(data)
                if not data.isascii():
                    used = codecs.utf_8_decode(data, "strict", final)[1]
                    self._ascii = False
                self._tail = data[used:]
                return data[:used]
            except UnicodeDecodeError as error:
                if not (self._ascii and data[: error.start].isascii()):
                    raise self._undecodable(data, error.start, "UTF-8") from None
                line = self._line(error.start)
                self._note(f"{self._path} is not UTF-8 (line {line}); it is read as {OLD}.")
                self._codec, self._tail = OLD, b""
        try:
            return data.decode(OLD).encode()
        except UnicodeDecodeError as error:
            raise self._undecodable(data, error.start, f"UTF-8, nor {OLD}") from None

    def _line(self, start: int) -> int:
        """The line of a byte of those that are being decoded; the file is read again for it."""
        place = self._place - len(self._tail) + start
        with opened(self._path) as file:
            text: Any = gzip.GzipFile(fileobj=file) if self._gzip else file
            parts = (text.read(min(BLOCK, place - at)) for at in range(0, place, BLOCK))
            before: int = sum(part.count(b"\n") for part in parts)
            return 1 + before

    def _undecodable(self, data: bytes, start: int, codec: str) -> DataError:
        name = self._path.name.removesuffix(".gz")
        return DataError(
            f"{self._path} is not {codec}: line {self._line(start)} holds the byte "
            f"0x{data[start]:02x}. Convert it from what it is: iconv -f ENCODING -t UTF-8 {name} > "
            f"utf8-{name}"
        )


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
