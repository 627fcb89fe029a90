"""The text of CSV files: unpacked, checked and hashed as it is read."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from terrine_protocol.files import opened
from terrine_protocol.tables import DataError
from terrine_protocol.tables.columns import Note

BLOCK = 2**20
"""Bytes that are read together."""
_MARKED_LINE = re.compile(rb"(^|[\r\n])(?:\xef\xbb\xbf)+")
SHEET = "Open it in a spreadsheet program and save the sheet as CSV in UTF-8"
UNPACK = "Unpack it first: only gzip is read without unpacking."
PICKLE = "These are never loaded. Write CSV or Parquet."


def _by_pandas(call: str, needs: str = "") -> str:
    """How pandas converts a file, in one line."""
    return (
        f"""python -c "import pandas; pandas.{call}.to_parquet('table.parquet')" converts it """
        f"(pip install pandas pyarrow{needs})."
    )


def _by_r(call: str) -> str:
    return f"""Rscript -e "write.csv({call}, 'table.csv', row.names = FALSE)" converts it."""


OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (rb"PAR1", "a Parquet file, packed", UNPACK),
    (rb"ARROW1", "an Arrow file, packed", UNPACK),
    (
        rb"PK\x03\x04.*(\[Content_Types\]|xl/|spreadsheet)",
        "a workbook of Excel or another spreadsheet program (a zip file)",
        f"{SHEET}; or: {_by_pandas('read_excel(FILE)', ' openpyxl odfpy')}",
    ),
    (
        rb"PK\x03\x04.*\.npy",
        "an archive of NumPy's arrays (a zip file)",
        "It ends in .npz.",
    ),
    (rb"PK\x03\x04", "packed with zip", UNPACK),
    (
        rb"\xd0\xcf\x11\xe0",
        "an Excel workbook or another old Office document",
        f"{SHEET}; or: {_by_pandas('read_excel(FILE)', ' xlrd')}",
    ),
    (rb"FEA1", "a Feather file of the first version", _by_pandas("read_feather(FILE)")),
    (rb"<stata_dta>|[\x66-\x73][\x01\x02]\x01\0", "a Stata file", _by_pandas("read_stata(FILE)")),
    (
        rb"\0{12}\xc2\xea\x81\x60",
        "a SAS data set",
        _by_pandas("read_sas(FILE, format='sas7bdat', encoding='infer')"),
    ),
    (
        rb"HEADER RECORD\*+LIB",
        "a transport file of SAS",
        _by_pandas("read_sas(FILE, format='xport', encoding='latin-1')"),
    ),
    (rb"\$FL[23]", "an SPSS file", _by_pandas("read_spss(FILE)", " pyreadstat")),
    (
        rb".{0,200}SPSS PORT FILE",
        "a portable file of SPSS",
        """python -c "import pyreadstat; """
        """pyreadstat.read_por(FILE)[0].to_parquet('table.parquet')" converts it """
        "(pip install pyreadstat pyarrow).",
    ),
    (rb"\x89HDF", "an HDF5 file", _by_pandas("read_hdf(FILE)", " tables")),
    (
        rb"SQLite format 3",
        "an SQLite database",
        "sqlite3 -header -csv FILE 'SELECT * FROM its_table' > table.csv writes one of its tables.",
    ),
    (
        rb"RD[AX]\d\n",
        "a workspace of R",
        _by_r("get(load(FILE))"),
    ),
    (
        rb"[XA]\n\0\0\0[\x02\x03]|A\n[23]\n\d{6}\n\d{6}\n",
        "an object of R (RDS)",
        _by_r("readRDS(FILE)"),
    ),
    (
        rb"MATLAB \d\.\d MAT-file",
        "a file of MATLAB",
        "In MATLAB: writetable(its_table, 'table.csv').",
    ),
    (rb"Obj\x01", "an Avro file", "Convert it to Parquet with what wrote it."),
    (rb"%PDF", "a PDF", "Ask for the table itself, as CSV."),
    (rb"\x80[\x02-\x05]", "a pickle of Python's", PICKLE),
    (rb"\x93NUMPY", "an array of NumPy's", "Arrays end in .npy."),
    (rb"BZh[1-9](1AY&SY|\x17)", "packed with bzip2", UNPACK),
    (rb"\xfd7zXZ\0", "packed with xz", UNPACK),
    (rb"\x28\xb5\x2f\xfd", "packed with zstd", UNPACK),
    (rb".{257}ustar[\0 ]", "packed with tar", "Unpack it first: tar -xf FILE"),
    (
        rb"\s*(%[^\n]*\n\s*)*@(?i:relation)\s",
        "an ARFF file of Weka",
        "In Weka, save it as CSV; or: "
        "sed -n '/^@data/I,$p' FILE | tail -n +2 > table.csv leaves its rows, and --columns "
        "names its attributes.",
    ),
)
"""How files start that are no CSV (a pattern), what they are, and what to do with FILE."""
WIDE_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""How text in other encodings starts that say what they are."""
OLD = "windows-1252"
"""Of lines that are not UTF-8. What of it is printed is the same in Latin-1."""

UNUSED = b"\x81\x8d\x8f\x90\x9d"
"""Bytes that mean nothing in it."""
ODD = re.compile(f"[{UNUSED.decode('latin-1')}]")


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
        self.odd = False
        """Whether a byte is neither UTF-8 nor Windows-1252; it is read as the control character of
        its number, for whoever needs its column to refuse."""
        self.ready, self._tail = b"", b""
        """Text that is read next, and bytes of a line whose others are not read yet."""
        self.quotes = 0
        """How many there were: an odd number leaves one open."""
        self._place, self._ended = 0, False
        self._next = self._file.read(BLOCK)
        marks = (encoding for mark, encoding in WIDE_MARKS if self._next.startswith(mark))
        wide = next(marks, None) or _unmarked(self._next)
        self._wide = None if wide is None else codecs.getincrementaldecoder(wide)()
        for start, what, remedy in OTHERS:
            if re.match(start, self._next, re.DOTALL):
                remedy = re.sub(r"\bFILE\b", lambda _: _quoted(path), remedy)
                raise DataError(f"{path} is {what}, which is not read. {remedy}")

    def readable(self) -> bool:
        """As files say."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, and fewer only at the end: to pyarrow, what it gets is a block."""
        size = BLOCK if size < 0 else size
        while len(self.ready) < size and not self._ended:
            chunk, self._next = self._next or self._file.read(BLOCK), b""
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

    def _narrowed(self, chunk: bytes) -> bytes:
        """A chunk of the file in UTF-8, if it says that it is UTF-16 or UTF-32."""
        if self._wide is None:
            return chunk
        try:
            return self._wide.decode(chunk, final=not chunk).encode()
        except UnicodeError as error:
            reason = getattr(error, "reason", None) or str(error)
            raise DataError(
                f"{self._path} starts as text in UTF-16 or UTF-32 does, and is none: {reason}. "
                "Save it in UTF-8."
            ) from None

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
        except UnicodeDecodeError:
            self.odd = True
            text = "".join(_of_old(byte) for byte in line).encode()
        if not self._noted:
            self._noted = True
            self._note(
                f"{self._path} is not UTF-8 (line {self._line(start)}); such lines are read as "
                f"{OLD}."
            )
        return text

    def check(self, text: str, where: str, column: str | None = None) -> None:
        """Raise DataError for a text with a byte that is neither UTF-8 nor Windows-1252."""
        found = ODD.search(text) if self.odd else None
        if found is not None:
            name = self._path.name.removesuffix(".gz")
            beside = "." if column is None else f", or leave the column out: --ignore {column}."
            raise DataError(
                f"{where}{'' if column is None else f': column {column}'} holds the byte "
                f"0x{ord(found[0]):02x}, which is neither UTF-8 nor {OLD}. Convert the file from "
                f"what it is, iconv -f ENCODING -t UTF-8 {name} > utf8-{name}{beside}"
            )

    def _line(self, place: int) -> int:
        """The line that starts at this byte of the file, which is read again for it."""
        with opened(self._path) as file:
            text: Any = gzip.GzipFile(fileobj=file) if self._gzip else file
            parts = (text.read(min(BLOCK, place - at)) for at in range(0, place, BLOCK))
            before: int = sum(part.count(b"\n") for part in parts)
            return 1 + before


def _of_old(byte: int) -> str:
    """A byte of Windows-1252 as text; one that it has not got, as a control character."""
    return bytes([byte]).decode(OLD) if byte not in UNUSED else chr(byte)


def _quoted(path: Path) -> str:
    """A path in a command that stands in double quotes, or in none."""
    return "'" + str(path).replace("'", "'\\''") + "'"


def _unmarked(start: bytes) -> str | None:
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
