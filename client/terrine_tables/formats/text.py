"""The text of a file in UTF-8, whatever its encoding is."""

from __future__ import annotations

import codecs
import hashlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from terrine_protocol.errors import DataError
from terrine_protocol.files import open_regular_file
from terrine_tables.columns import Note
from terrine_tables.formats import unread_format
from terrine_tables.formats.table import BLOCK_BYTES

_MARKED_LINE = re.compile(rb"(^|[\r\n])(?:\xef\xbb\xbf)+")
# How text in other encodings starts that say what they are.
WIDE_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Of lines that are not UTF-8. What of it is printed is the same in Latin-1.
OLD_ENCODING = "windows-1252"

# Bytes that mean nothing in it.
UNUSED_BYTES = b"\x81\x8d\x8f\x90\x9d"
UNUSED_CHARACTER = re.compile(f"[{UNUSED_BYTES.decode('latin-1')}]")
HEAD_BYTES = 1024
# What no text has among its first bytes, and packed files and those of other programs do. Text may
# have what terminals act on (bell, backspace, escape): a name with such a character is refused by
# itself.
NO_TEXT = re.compile(rb"[\x00\x02-\x06\x0e-\x19\x1c-\x1f]")


class TextFile(io.RawIOBase):
    """The text of a file as UTF-8 without a mark. Raises DataError for binary data.

    A line that is not UTF-8 is read as Windows-1252, and `note` hears about the first. Each line is
    decoded by itself: how one person's record is written must not change what others' say.
    """

    def __init__(self, path: Path, file: io.BufferedReader, note: Note, digest: bool) -> None:
        self._path, self._file, self._note, self._noted = path, file, note, False
        self._digest = hashlib.sha256() if digest else None
        self.size, self.count = path.stat().st_size, 0
        """Bytes of the file, and how many of them were read."""
        self.odd = False
        """Whether a byte is neither UTF-8 nor Windows-1252; it is read as the control character of
        its number, for whoever needs its column to refuse."""
        self.ready, self._tail = b"", b""
        """Text that is read next, and bytes of a line whose others are not read yet."""
        self.quotes = 0
        """How many there were: an odd number leaves one open."""
        self._place, self._ended = 0, False
        self._next = self._read_file()
        marks = (encoding for mark, encoding in WIDE_MARKS if self._next.startswith(mark))
        wide = next(marks, None) or _detect_unmarked_utf16(self._next)
        self._wide = None if wide is None else codecs.getincrementaldecoder(wide)()
        if wide is None and NO_TEXT.search(self._next[:HEAD_BYTES]):
            raise unread_format(path)

    @property
    def sha256(self) -> str:
        """Of the file, once it has been read; empty if it is not wanted."""
        return "" if self._digest is None else self._digest.hexdigest()

    def readable(self) -> bool:
        """As files say."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, and fewer only at the end: to pyarrow, what it gets is a block."""
        size = BLOCK_BYTES if size < 0 else size
        while len(self.ready) < size and not self._ended:
            chunk, self._next = self._next or self._read_file(), b""
            self._ended = not chunk
            chunk = self._narrowed(chunk)
            if b"\0" in chunk:
                raise DataError(
                    f"{self._path} is not text: byte {self._place + chunk.index(0)} is zero. A "
                    "table must be a CSV file in UTF-8."
                )
            first = not self._place
            text = self._decoded(chunk)
            if first:
                text = text.removeprefix(codecs.BOM_UTF8)
            if codecs.BOM_UTF8 in text:  # as where files were joined
                text = _MARKED_LINE.sub(rb"\1", text)
            self.quotes += int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord('"')))
            self.ready += text
        found, self.ready = self.ready[:size], self.ready[size:]
        return found

    def readinto(self, buffer: Any) -> int:
        """As `io.BufferedReader` reads."""
        chunk = self.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def _read_file(self) -> bytes:
        chunk = self._file.read(BLOCK_BYTES)
        self.count += len(chunk)
        if self._digest is not None:
            self._digest.update(chunk)
        return chunk

    def _narrowed(self, chunk: bytes) -> bytes:
        """A chunk of the file in UTF-8, if it says that it is UTF-16 or UTF-32."""
        if self._wide is None:
            return chunk
        try:
            return self._wide.decode(chunk, final=not chunk).encode()
        except UnicodeError as error:
            reason = getattr(error, "reason", None) or str(error)
            raise DataError(
                f"{self._path} starts as text in UTF-16 or UTF-32 does, but is not such text: "
                f"{reason}. Save it in UTF-8."
            ) from None

    def _decoded(self, chunk: bytes) -> bytes:
        """The text of the lines that end with this chunk of the file; the rest waits."""
        data, start = self._tail + chunk, self._place - len(self._tail)
        self._place += len(chunk)
        end = len(data)
        if (
            chunk and len(data) <= 2 * BLOCK_BYTES
        ):  # longer lines are in no table: pyarrow refuses them
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
            text = line.decode(OLD_ENCODING).encode()
        except UnicodeDecodeError:
            self.odd = True
            text = "".join(_of_old(byte) for byte in line).encode()
        if not self._noted:
            self._noted = True
            self._note(
                f"{self._path} is not UTF-8 (line {self._line(start)}); such lines are read as "
                f"{OLD_ENCODING}."
            )
        return text

    def check(self, text: str, where: str, column: str | None = None) -> None:
        """Raise DataError for a text with a byte that is neither UTF-8 nor Windows-1252."""
        found = UNUSED_CHARACTER.search(text) if self.odd else None
        if found is not None:
            name = self._path.name
            beside = "." if column is None else f", or leave the column out: --ignore {column}."
            raise DataError(
                f"{where}{'' if column is None else f': column {column}'} holds the byte "
                f"0x{ord(found[0]):02x}, which is neither UTF-8 nor {OLD_ENCODING}. Convert the "
                f"file from what it is, iconv -f ENCODING -t UTF-8 {name} > utf8-{name}{beside}"
            )

    def _line(self, place: int) -> int:
        """The line that starts at this byte of the file, which is read again for it."""
        with open_regular_file(self._path) as file:
            parts = (file.read(min(BLOCK_BYTES, place - at)) for at in range(0, place, BLOCK_BYTES))
            return 1 + sum(part.count(b"\n") for part in parts)


def _of_old(byte: int) -> str:
    """A byte of Windows-1252 as text; one that it lacks, as a control character."""
    return bytes([byte]).decode(OLD_ENCODING) if byte not in UNUSED_BYTES else chr(byte)


def _detect_unmarked_utf16(start: bytes) -> str | None:
    """UTF-16 without a mark, if text starts so: every second byte of its first is zero."""
    first = start[: min(64, len(start) // 2 * 2)]
    for encoding, zeros, letters in (
        ("utf-16-le", first[1::2], first[::2]),
        ("utf-16-be", first[::2], first[1::2]),
    ):
        if first and not any(zeros) and all(letters):
            return encoding
    return None


def _is_utf_8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        codecs.utf_8_decode(text, "strict", True)
    except UnicodeDecodeError:
        return False
    return True
