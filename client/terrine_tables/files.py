"""Read tables in files with pyarrow: CSV, JSON lines, Parquet, Arrow and ORC, some rows at a time.

A file is read once from beginning to end, and hashed on the way (one of the others before,
if its digest is wanted). Only where something is wrong a CSV file is read again, to find the line.
"""

from __future__ import annotations

import bisect
import codecs
import csv
import gzip
import hashlib
import io
import itertools
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute, parquet
from pyarrow import csv as arrow_csv

from terrine_protocol.base import column_name, list_names, quantity, quote_text
from terrine_protocol.errors import DataError
from terrine_protocol.files import open_regular_file
from terrine_protocol.schema import Column, TableSchema
from terrine_tables.arrow import code_array, read_typed
from terrine_tables.columns import (
    DECIMAL_COMMA,
    MISSING_TEXTS,
    THOUSANDS,
    CodedValues,
    Note,
    Progress,
    RowBlock,
    Values,
    check_names,
    files_within,
    ignore_note,
    ignore_progress,
    rows_at_a_time,
    rows_at_least,
)

BLOCK_BYTES = 2**20
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


FOREIGN_FORMATS: tuple[tuple[bytes, str, str], ...] = (
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
"""How files that are not CSV start (a pattern), what they are, and what to do with FILE."""
WIDE_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""How text in other encodings starts that say what they are."""
OLD_ENCODING = "windows-1252"
"""Of lines that are not UTF-8. What of it is printed is the same in Latin-1."""

UNUSED_BYTES = b"\x81\x8d\x8f\x90\x9d"
"""Bytes that mean nothing in it."""
UNUSED_CHARACTER = re.compile(f"[{UNUSED_BYTES.decode('latin-1')}]")


class TextFile(io.RawIOBase):
    """The text of a file, plain or gzip, as UTF-8 without a mark. Raises DataError for binary data.

    A line that is not UTF-8 is read as Windows-1252, and `note` hears about the first. Each line is
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
        self._next = self._file.read(BLOCK_BYTES)
        marks = (encoding for mark, encoding in WIDE_MARKS if self._next.startswith(mark))
        wide = next(marks, None) or _detect_unmarked_utf16(self._next)
        self._wide = None if wide is None else codecs.getincrementaldecoder(wide)()
        for start, what, remedy in FOREIGN_FORMATS:
            if re.match(start, self._next, re.DOTALL):
                remedy = re.sub(r"\bFILE\b", lambda _: _quote_path(path), remedy)
                raise DataError(f"{path} is {what}, which is not read. {remedy}")

    def readable(self) -> bool:
        """As files say."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, and fewer only at the end: to pyarrow, what it gets is a block."""
        size = BLOCK_BYTES if size < 0 else size
        while len(self.ready) < size and not self._ended:
            chunk, self._next = self._next or self._file.read(BLOCK_BYTES), b""
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
            name = self._path.name.removesuffix(".gz")
            beside = "." if column is None else f", or leave the column out: --ignore {column}."
            raise DataError(
                f"{where}{'' if column is None else f': column {column}'} holds the byte "
                f"0x{ord(found[0]):02x}, which is neither UTF-8 nor {OLD_ENCODING}. Convert the "
                f"file from what it is, iconv -f ENCODING -t UTF-8 {name} > utf8-{name}{beside}"
            )

    def _line(self, place: int) -> int:
        """The line that starts at this byte of the file, which is read again for it."""
        with open_regular_file(self._path) as file:
            text: Any = gzip.GzipFile(fileobj=file) if self._gzip else file
            parts = (text.read(min(BLOCK_BYTES, place - at)) for at in range(0, place, BLOCK_BYTES))
            before: int = sum(part.count(b"\n") for part in parts)
            return 1 + before


def _of_old(byte: int) -> str:
    """A byte of Windows-1252 as text; one that it lacks, as a control character."""
    return bytes([byte]).decode(OLD_ENCODING) if byte not in UNUSED_BYTES else chr(byte)


def _quote_path(path: Path) -> str:
    """A path in a command that stands in double quotes, or in none."""
    return "'" + str(path).replace("'", "'\\''") + "'"


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


SAMPLE_RECORDS = 100
"""Records that are read to find the delimiter."""
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
OTHER_DELIMITERS = (" ", ":", "^", "~", "\x01")
MAX_TITLE_LINES = 20
SEPARATOR_HINT = re.compile(r"sep=(.?)", re.IGNORECASE)
"""A first line that tells Excel the delimiter, and is not a record."""

TYPED_FORMATS = {
    "Parquet": b"PAR1",
    "Arrow": b"ARROW1",
    "Arrow stream": b"\xff\xff\xff\xff",
    "ORC": b"ORC",
}
"""Kinds of files whose columns have types, and how they start."""

Fits = Callable[[Sequence[str]], bool]
"""Whether a first record is as expected, which resolves most ambiguities."""


class TableFile(ABC):
    """A table in a file, read some rows at a time. Made by `open_file`."""

    path: Path
    first: list[str]
    """The names of columns; of a text file its first record, empty if there is none."""
    types: Mapping[str, Any]
    """Of columns, as pyarrow names them; of a text file, none."""
    delimiter: str | None = None
    """What separates fields, of a text file."""
    sha256: str
    """Empty if it is not wanted, or until a text file has been read."""

    @abstractmethod
    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = ignore_progress
    ) -> Iterator[Any]:
        """Record batches with these columns. Raises DataError, and what pyarrow does.

        Of a text file, `names` are those of all columns, and `header` is whether the first record
        is one.
        """

    @abstractmethod
    def where(self, record: int) -> str:
        """Name a record (from 0, without the header) in an error.

        Raises DataError if another before it in a text file is wrong.
        """

    def check_header(self) -> None:
        """Raise DataError if a column's name is in no known encoding."""
        return  # typed files have one encoding

    def check(self, texts: Sequence[str], where: Callable[[int], str], name: str) -> None:
        """Raise DataError for the first text of a column that cannot be read.

        where: names the one of this place.
        """
        return  # typed files have one encoding

    def has_header(self, schema: TableSchema) -> bool:
        """Whether columns are named: in a text file, by a first row that names more than half of
        the features, or any column other than by a value."""
        if self.delimiter is None:
            return True
        values = {value for column in schema.columns for value in column.values or ()}
        names = {column.name for column in schema.columns}
        many = 2 * len(set(self.first) & set(schema.features)) > len(schema.features)
        return many or bool(set(self.first) & names - values)

    def read_blocks(
        self, schema: TableSchema, needed: Sequence[str], note: Note, progress: Progress
    ) -> Iterator[RowBlock]:
        """Read the columns that are needed, some rows at a time. Raises DataError.

        A column with decimal commas in some rows and points in others is refused, in whichever rows
        they come first.
        """
        names, every = self.first, [column.name for column in schema.columns]
        named = self.has_header(schema)
        if named:
            self.check_header()
            check_names(names, needed, str(self.path))
        else:
            names = list({len(order): order for order in (needed, every)}.get(len(names), every))
        wanted = frozenset(needed)
        described = [column for column in schema.columns if column.name in wanted]
        numeric = [column for column in described if column.role == "numeric" or column.edges]
        other = self.delimiter not in (None, ",")
        mixed = [column.name for column in numeric if other and column.commas != "thousands"]
        start, commas, points = 0, set[str](), dict[str, tuple[int, str]]()
        for batch in self.batches(names if self.delimiter else needed, named, progress):
            if not start and not named:
                note(
                    f"{self.path} has no header; its columns are taken to be {', '.join(names)}, "
                    "in this order."
                )
            for name in mixed:
                texts = batch.column(name)
                if name not in commas and _first(texts, ",") is not None:
                    commas.add(name)
                    if name in points:
                        record, text = points[name]
                        raise DataError(
                            f"{self.where(record)}: column {name} holds {quote_text(text)}, "
                            f"expected a finite number. {_hint(self.delimiter, commas, name, text)}"
                        )
                elif name not in {*commas, *points} and (row := _first(texts, ".")) is not None:
                    points[name] = (start + row, texts[row].as_py().strip())
            columns = {
                c.name: self._values(c, batch.column(c.name), start, commas) for c in described
            }
            where = partial(lambda start, row: self.where(start + row), start)
            hint = partial(_hint, self.delimiter, commas)
            yield RowBlock(columns, batch.num_rows, where, named, frozenset(commas), hint)
            start += batch.num_rows
        if not start:
            raise DataError(f"{self.path} holds no records.")

    def coded(self, name: str, array: Any, start: int) -> CodedValues:
        """The values of a column, each once, of rows from `start` on. Raises DataError."""
        try:
            coded = code_array(array, f"{self.path}: column {name}")
        except DataError as error:
            raise DataError(f"{error} To leave it out: --ignore {name}.") from None

        def where(place: int) -> str:
            return self.where(start + int(np.flatnonzero(coded.places == place)[0]))

        self.check(coded.values, where, name)
        return coded

    def _values(self, column: Column, array: Any, start: int, commas: Collection[str]) -> Values:
        text = self.delimiter is not None
        if column.role == "numeric" and text and column.name not in commas:
            for trimmed in (False, True):
                numbers = array
                if trimmed:
                    numbers = compute.utf8_trim_whitespace(array)
                    missing = compute.is_in(numbers, value_set=pa.array(sorted(MISSING_TEXTS)))
                    numbers = compute.if_else(missing, None, numbers)
                try:
                    numbers = numbers.cast(pa.float64())
                except pa.ArrowInvalid:
                    continue
                found: NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
                if len(found) - np.count_nonzero(np.isfinite(found)) == numbers.null_count:
                    return found
            # Otherwise one is not finite, or written so that only `columns.parse_number` reads it.
        elif not text and (typed := read_typed(array, column)) is not None:
            return typed
        return self.coded(column.name, array, start)


class ArrowFile(TableFile):
    """A file that pyarrow reads, whose columns have types."""

    def __init__(self, path: Path, file: io.BufferedReader, digest: bool) -> None:
        self.path = path
        self.sha256 = hashlib.file_digest(file, "sha256").hexdigest() if digest else ""
        file.seek(0)
        self._file: Any
        self._kind = _detect_typed_format(file)
        if self._kind == "Parquet":
            # A buffer: otherwise all of a row group's columns would be read at once.
            self._file = parquet.ParquetFile(file, buffer_size=BLOCK_BYTES)
            schema = self._file.schema_arrow
        elif self._kind == "ORC":
            from pyarrow import orc

            self._file = orc.ORCFile(file)
            schema = self._file.schema
        else:
            stream = self._kind == "Arrow stream"
            self._file = pa.ipc.open_stream(file) if stream else pa.ipc.open_file(file)
            schema = self._file.schema
        self.first = list(map(column_name, schema.names))
        self._stored = dict(zip(self.first, schema.names, strict=True))
        self.types = dict(zip(self.first, schema.types, strict=True))
        """Of its columns, as pyarrow names them."""

    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = ignore_progress
    ) -> Iterator[Any]:
        """Record batches with these columns. Raises what pyarrow does."""
        rows, columns, done = rows_at_a_time(len(names)), [self._stored[n] for n in names], 0
        file = self._file
        if self._kind == "Parquet":
            batches = file.iter_batches(batch_size=rows, columns=columns)
            total = file.metadata.num_rows
        elif self._kind == "ORC":
            total = file.nrows
            stripes = (file.read_stripe(i, columns=columns) for i in range(file.nstripes))
            batches = (stripe.select(columns) for stripe in stripes)
        elif self._kind == "Arrow stream":
            total = 0  # which it does not say
            batches = (batch.select(columns) for batch in file)
        else:
            total = file.num_record_batches
            batches = (file.get_batch(i).select(columns) for i in range(total))
        for batch in batches:
            named = list(map(column_name, batch.schema.names))
            batch = pa.RecordBatch.from_arrays(batch.columns, names=named)
            done += 1 if self._kind == "Arrow" else batch.num_rows
            progress(done, total or done)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def where(self, record: int) -> str:
        """Name a record (from 0) in an error."""
        return f"{self.path} row {record + 1}"


def _detect_typed_format(file: io.BufferedReader) -> str:
    """Which kind of `TYPED_FORMATS` a file is, or nothing. An ORC file ends as it starts, `ORCID,a`
    not."""
    start, end = file.peek(8)[:8], b""
    kind = next((kind for kind, begins in TYPED_FORMATS.items() if start.startswith(begins)), "")
    if kind == "ORC":
        file.seek(max(0, file.seek(0, io.SEEK_END) - 4))
        end = file.read()
        file.seek(0)
    return kind if kind != "ORC" or TYPED_FORMATS["ORC"] in end else ""


class ArrowFolder(TableFile):
    """A folder of files that pyarrow reads, with the same columns, as one table.

    Folders within it may say a column's value for all their rows, as year=2020 does (Hive). The
    files are read in the order of their paths; those that start with . or _ are left out.
    """

    def __init__(self, path: Path, kind: str, digest: bool) -> None:
        from pyarrow import dataset

        self.path, form = path, {"Parquet": "parquet", "ORC": "orc"}.get(kind, "ipc")
        pieces = dataset.dataset(str(path), format=form, partitioning="hive").get_fragments()
        self._parts = [
            (Path(piece.path), dataset.get_partition_keys(piece.partition_expression))
            for piece in sorted(pieces, key=lambda piece: piece.path)
        ]
        self.types: dict[str, Any] = {}
        lines, known = list[str](), list[set[str]]()
        for place, keys in self._parts:
            with _broken(place), open_regular_file(place) as file:
                part = ArrowFile(place, file, digest)
            lines.append(f"{part.sha256}  {place.relative_to(path)}\n")
            folders = {column_name(name): pa.scalar(value).type for name, value in keys.items()}
            known.append({*part.types, *folders})
            self.types = {**folders, **part.types, **self.types}
        for (place, _), names in zip(self._parts, known, strict=True):
            check_names(list(names), list(self.types), str(place))
        self.first = list(self.types)
        self.sha256 = hashlib.sha256("".join(lines).encode()).hexdigest() if digest else ""
        """As `sha256sum` prints it of all files in this order, hashed again."""
        self._starts = list[int]()

    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = ignore_progress
    ) -> Iterator[Any]:
        """Record batches with these columns, as `ArrowFile` does."""
        self._starts, rows = [], 0
        for done, (place, keys) in enumerate(self._parts, 1):
            self._starts.append(rows)
            folders = {column_name(name): value for name, value in keys.items()}
            with _broken(place), open_regular_file(place) as file:
                part = ArrowFile(place, file, digest=False)
                own = [name for name in names if name in part.types]
                # Of a file of which no column is needed, the rows count all the same
                for batch in part.batches(own or part.first[:1]):
                    arrays = [
                        batch.column(name)
                        if name in part.types
                        else pa.array([folders[name]] * batch.num_rows)
                        for name in names
                    ]
                    rows += batch.num_rows
                    yield pa.RecordBatch.from_arrays(arrays, names=list(names))
            progress(done, len(self._parts))

    def where(self, record: int) -> str:
        """Name a record (from 0) in an error: by its file, and its row there."""
        part = bisect.bisect_right(self._starts, record) - 1
        return f"{self._parts[part][0]} row {record - self._starts[part] + 1}"


class JsonLinesFile(TableFile):
    """A file with an object of JSON on each line, plain or gzip: a row, by the names of columns.

    `first` are the names in its first objects. A column that an object lacks is empty there. Values
    are read as they are written: 1.50 is the text 1.50.
    """

    def __init__(self, path: Path, file: io.BufferedReader, note: Note, digest: bool) -> None:
        self.path, self.sha256, self.types = path, "", dict[str, Any]()
        self._size, self._text = path.stat().st_size, TextFile(path, file, note, digest)
        self._objects = self._read(self._text)
        self._head = list(itertools.islice(self._objects, SAMPLE_RECORDS))
        self.first = list(dict.fromkeys(name for _, row in self._head for name in row))

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
                progress(self._text.packed.count, self._size)
                yield batch()
                waiting = []
        if waiting:
            yield batch()
        if self._text.packed.digest is not None:
            self.sha256 = self._text.packed.digest.hexdigest()

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


def _is_json_lines(path: Path, file: io.BufferedReader) -> bool:
    """Whether the first line of a file, plain or gzip, is an object of JSON."""
    start = file.peek(1)
    if start.startswith(b"\x1f\x8b"):
        start = zlib.decompressobj(wbits=31).decompress(start, BLOCK_BYTES)
    if not start.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
        return False
    head = TextFile(path, file, ignore_note, digest=False).read(BLOCK_BYTES)
    file.seek(0)
    first = next((line.strip() for line in head.splitlines() if line.strip()), b"")
    if not first.startswith(b"{"):
        return False
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        # A text too long for a line is said so, by name
        return path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson"))
    return True


class CsvFile(TableFile):
    """A CSV file, plain or gzip. `first` is its first record, empty if there is none.

    Fields are separated by commas, semicolons, tabs or bars; a delimiter other than the comma is
    noted. Blank lines and UCI's `|` comments are skipped.
    """

    delimiter: str

    def __init__(
        self, path: Path, file: io.BufferedReader, fits: Fits, note: Note, digest: bool
    ) -> None:
        self.path, self.sha256, self.types = path, "", dict[str, Any]()
        self._size, self._text = path.stat().st_size, TextFile(path, file, note, digest)
        self._head = self._text.read(BLOCK_BYTES)
        whole = len(self._head) < BLOCK_BYTES
        lines = io.StringIO(self._head.decode(errors="ignore"), newline="").readlines()
        if lines and not whole and not lines[0].endswith(("\n", "\r")):
            raise DataError(
                f"{path}: its first line has more than {BLOCK_BYTES:,} bytes. Is this a table with "
                "one record on each line? If so, it has too many columns: keep those that count."
            )
        _check_text(path, lines)
        self._hinted = SEPARATOR_HINT.fullmatch(lines[0].strip("\r\n ")) if lines else None
        skipped, delimiters = 0, tuple(DELIMITERS)
        if self._hinted is not None:
            skipped, told = 1, self._hinted[1]
            if told and told not in DELIMITERS:
                raise DataError(_other_delimiter(path, "as its first line says", told))
            delimiters = (told,) if told else delimiters
        self.delimiter, self._header_fields, header = _sniff_delimiter(
            path, lines[skipped:], fits, whole, delimiters
        )
        nameless = self._header_fields.count("") > 1  # are called as pandas does
        self.first = [
            name or (f"Unnamed: {place}" if nameless else "")
            for place, name in enumerate(self._header_fields)
        ]
        self._noted, self._note = False, note
        self._hint = len("".join(lines[:skipped]).encode())
        self._header = len("".join(lines[: skipped + header]).encode())
        if self.delimiter != ",":
            note(
                f"{path}: fields are separated by {DELIMITERS[self.delimiter]}; in numbers a comma "
                "is read as the decimal sign."
            )

    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = ignore_progress
    ) -> Iterator[Any]:
        """Record batches of text with columns of these names. Raises DataError.

        header: whether the first record is one; `names` are those of all columns.
        """
        self._names, self._after_header = list(names), header
        self._text.ready = self._head[self._header if header else self._hint :] + self._text.ready
        del self._head
        records, delimiter = 0, self.delimiter
        some, waiting = rows_at_least(len(names)), list[Any]()
        reading = arrow_csv.ReadOptions(
            column_names=self._names, block_size=BLOCK_BYTES, use_threads=False
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
                if header and len(names) > 1:
                    gone = compute.or_(gone, self._repeats_header(batch, first))
                if compute.any(gone).as_py():
                    batch = batch.filter(compute.invert(gone))
                records += batch.num_rows
                progress(self._text.packed.count, self._size)
                waiting += [batch] if batch.num_rows else []
                if sum(each.num_rows for each in waiting) >= some:
                    yield _join_batches(waiting)
                    waiting = []
        except pa.ArrowInvalid as error:
            if self._look() or records:  # else nothing but blank lines
                reason = str(error).splitlines()[0]
                raise DataError(f"{self.path} cannot be read as CSV: {reason}") from None
        if waiting:
            yield _join_batches(waiting)
        if self._text.quotes % 2:  # one is open: pyarrow does not mind at the end
            self._look()
        if self._text.packed.digest is not None:
            self.sha256 = self._text.packed.digest.hexdigest()

    def _repeats_header(self, batch: Any, first: Any) -> Any:
        """Which rows are the header again, as where files were joined."""
        same = compute.equal(first, self._header_fields[0])
        for name, column in zip(self._header_fields[1:], batch.columns[1:], strict=True):
            if not compute.any(same).as_py():
                return same
            same = compute.and_(same, compute.equal(compute.utf8_trim_whitespace(column), name))
        if compute.any(same).as_py() and not self._noted:
            self._noted = True
            self._note(f"{self.path}: lines that repeat the header are left out.")
        return same

    def check_header(self) -> None:
        """Raise DataError if a column's name is in no known encoding."""
        self._text.check("".join(self.first), f"{self.path}: its header")

    def check(self, texts: Sequence[str], where: Callable[[int], str], name: str) -> None:
        """Raise DataError for a text in no known encoding, or with a quote that opens no field."""
        for place, text in enumerate(texts):
            if self._text.odd and UNUSED_CHARACTER.search(text):
                self._text.check(text, where(place), name)
            if text[:1] == " " and text.lstrip()[:1] == '"':
                raise DataError(
                    f"{where(place)}: column {name} starts with a space and a quote, which does "
                    f"not open a field. Leave out the space, or the column: --ignore {name}."
                )

    def where(self, record: int) -> str:
        """Name a record (from 0, without the header) in an error.

        Raises DataError if another before it is wrong.
        """
        return f"{self.path} line {self._look(record)}"

    def _why_uneven(self, fields: Sequence[str]) -> str:
        """What may be the cause of a record of one field too many or too few."""
        more = len(fields) - len(self._names) if self._after_header else 0
        if more == 1 and not fields[-1].strip():
            return " Records end with a delimiter, and the header does not: add one to it."
        if more == 1:
            return (
                " If records start with the name of a row, as R writes them, add a name for that "
                "column to the start of the header; if a field contains the delimiter, quote it."
            )
        if more == -1 and not self._names[-1]:
            return " The header ends with a delimiter, and records do not: remove it."
        return ""

    def _look(self, record: int | None = None) -> int:
        """Read the file again: the line on which a record ends, or how many records there are.

        Raises DataError for the first record, up to this one, that is wrong.
        """
        start, left = 1, BLOCK_BYTES

        def lines(file: io.TextIOWrapper) -> Iterator[str]:
            nonlocal left
            while line := file.readline(left + 1):
                left -= len(line.encode())
                if left < 0:
                    raise DataError(
                        f"{self.path}: the record that starts on line {start} has more than "
                        f"{BLOCK_BYTES:,} bytes. Is this a table with one record on each line?"
                    )
                yield line

        with open_regular_file(self.path) as file:
            again = io.BufferedReader(TextFile(self.path, file, ignore_note, digest=False))
            plain = io.TextIOWrapper(again, "utf-8", newline="")
            reader = csv.reader(lines(plain), delimiter=self.delimiter, strict=True)
            found = -1 if self._after_header else 0
            try:
                for fields in reader:
                    line, start, left = reader.line_num, reader.line_num + 1, BLOCK_BYTES
                    hint = self._hinted is not None and line == 1
                    if hint or _is_nothing(fields, self.delimiter):
                        continue
                    may_repeat = found >= 0 and self._after_header and len(fields) > 1
                    if may_repeat and [column_name(each) for each in fields] == self._header_fields:
                        continue
                    if found >= 0 and len(fields) != len(self._names):
                        raise DataError(
                            f"{self.path} line {line}: found {quantity(len(fields), 'field')}, "
                            f"expected {len(self._names)}: {list_names(self._names)}."
                            f"{self._why_uneven(fields)}"
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


@contextmanager
def open_file(
    path: Path, fits: Fits = bool, note: Note = ignore_note, digest: bool = True
) -> Iterator[TableFile]:
    """Open a table's file, whatever its name. Raises DataError for what is not a table, and if two
    delimiters fit.

    digest: whether `sha256` is wanted, which a CSV file has once it has been read.
    """
    if path.is_dir():
        with _broken(path):
            yield _folder(path, digest)
        return
    with _broken(path), open_regular_file(path) as file:
        if _detect_typed_format(file):
            with _broken(path, " as an ORC, Parquet or Arrow file"):
                yield ArrowFile(path, file, digest)
        elif _is_json_lines(path, file):
            yield JsonLinesFile(path, file, note, digest)
        else:
            yield CsvFile(path, file, fits, note, digest)


@contextmanager
def _broken(path: Path, kind: str = "") -> Iterator[None]:
    """Raise DataError for what is wrong with a file."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or (str(error) or "it is broken").splitlines()[0]
        raise DataError(f"{path} cannot be read{kind}: {reason.rstrip('.')}.") from None


def _folder(path: Path, digest: bool) -> ArrowFolder:
    """Open a folder of files that pyarrow reads. Raises DataError for one of others."""
    files = files_within(path)
    first = next(files, None)
    if first is None:
        raise DataError(f"{path} is a folder without a file; expected one of Parquet files.")
    with _broken(first), open_regular_file(first) as file:
        kind = _detect_typed_format(file)
    if kind and kind != "Arrow stream":
        with _broken(path, f" as a folder of {kind} files"):
            return ArrowFolder(path, kind, digest)
    raise DataError(
        f"{path} is a folder of {1 + sum(1 for _ in files):,} files, such as {first.name}, and "
        "only folders of Parquet, Arrow or ORC files are one table. If they are CSV files, each "
        f"with the same header: awk 'FNR > 1 || NR == 1' {path}/*.csv > table.csv"
    )


def _join_batches(batches: Sequence[Any]) -> Any:
    """Record batches as one."""
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _check_text(path: Path, lines: Sequence[str]) -> None:
    """Raise DataError for text of another kind: JSON, or a page of the Web."""
    first = next((line.strip() for line in lines if line.strip()), "")
    what = ""
    if first in ("{", "[") or first.startswith(("[{", "[[")):
        what = "JSON"
    elif first.lower().startswith(("<!doctype", "<html", "<?xml")):
        what = "a page of the Web or XML"
    if what:
        remedy = (
            f"pandas.read_json('{path.name}').to_csv('table.csv', index=False) converts it"
            if what == "JSON"
            else "Download the file itself"
        )
        raise DataError(f"{path} holds {what}, not a table in CSV. {remedy}.")


def _check_title(path: Path, starts: dict[str, list[tuple[int, list[str]]]]) -> None:
    """Raise DataError if lines of one field stand above a table, such as its title."""
    for rows in starts.values():
        sizes = [len(fields) for _, fields in rows]
        above = next((i for i, size in enumerate(sizes) if size > 1), 0)
        below = sizes[above:]
        if above and len(below) > 1 and set(below) == {below[0]}:
            raise DataError(_below_title(path, below[0], rows[above][0]))


def _check_first(
    path: Path, rows: Sequence[tuple[int, list[str]]], lines: Sequence[str], fits: Fits
) -> None:
    """Raise DataError if a first record that does not fit is a title, or has other delimiters."""
    given = [sum(map(bool, fields)) for _, fields in rows]
    for place, (line, fields) in enumerate(rows[:MAX_TITLE_LINES]):
        if 2 * max(given[:place], default=len(fields)) <= len(fields) == given[place]:
            if fits(fields):
                raise DataError(_below_title(path, len(fields), line))
            break
    full = [line.strip() for line in lines if line.strip()][:SAMPLE_RECORDS]
    if len(rows) > 2 and all(len(fields) == 1 for _, fields in rows):
        for delimiter in OTHER_DELIMITERS:
            sizes = {len([part for part in line.split(delimiter) if part]) for line in full[:-1]}
            if len(sizes) == 1 and sizes != {1}:
                raise DataError(_other_delimiter(path, "as it seems", delimiter))


def _below_title(path: Path, columns: int, line: int) -> str:
    return (
        f"{path}: the table of {quantity(columns, 'column')} seems to start on line {line}, below "
        f"a title. Remove the lines above it: tail -n +{line} {path.name} > table.csv"
    )


def _other_delimiter(path: Path, says: str, delimiter: str) -> str:
    return (
        f"{path}: fields are separated by {'spaces' if delimiter == ' ' else repr(delimiter)}, "
        f"{says}; expected one of "
        f"{', '.join(DELIMITERS.values())}. If no field contains a comma: "
        f"tr {'-s ' if delimiter == ' ' else ''}'{delimiter}' ',' < {path.name} > table.csv"
    )


def _is_nothing(fields: Sequence[str], delimiter: str) -> bool:
    """Whether a line is blank, one of UCI's comments, or the mark at the end of files of DOS."""
    comment = delimiter != "|" and bool(fields) and fields[0].lstrip().startswith("|")
    return comment or not "".join(fields).strip().strip("\x1a")


def _sniff_delimiter(
    path: Path, lines: list[str], fits: Fits, whole: bool, delimiters: Sequence[str]
) -> tuple[str, list[str], int]:
    """Find the delimiter: the first record fits, and the next have equally many fields.

    Returns it, the first record, and on which line that ends. `lines` is the file's beginning, or
    the `whole` of it.
    """
    starts, broken = {}, None
    for delimiter in delimiters:
        rows: list[tuple[int, list[str]]] = []
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            for fields in reader:
                if not _is_nothing(fields, delimiter):
                    rows.append((reader.line_num, [column_name(field) for field in fields]))
                if len(rows) > SAMPLE_RECORDS:
                    break
        except csv.Error as error:  # counts as an empty record, and is the last
            broken = broken or error
            rows += [(reader.line_num, [])] if rows else []
        starts[delimiter] = rows if whole or len(rows) <= 1 else rows[:-1]
    possible = [d for d, rows in starts.items() if rows and fits(rows[0][1])]
    possible = possible or [d for d, rows in starts.items() if rows and len(rows[0][1]) > 1]
    if broken is not None and not any(starts.values()):
        raise DataError(
            f"{path} is not a CSV file: in its first record, {broken}. After the quote that closes "
            "a field, the next delimiter follows at once, without a space."
        )
    if all(len(starts[d][0][1]) == 1 for d in possible):
        _check_title(path, starts)
    even = [d for d in possible if len({len(fields) for _, fields in starts[d]}) == 1]
    chosen = [d for d in even or possible if len(starts[d][0][1]) > 1] or [delimiters[0]]
    if len(chosen) > 1:
        ways = (f"{DELIMITERS[d]} ({quantity(len(starts[d][0][1]), 'column')})" for d in chosen)
        raise DataError(
            f"{path}: fields could be separated by {' or '.join(ways)}. Put quotes around fields "
            "that contain one of these characters, or name the columns in a header."
        )
    line, first = starts[chosen[0]][0] if starts[chosen[0]] else (0, [])
    if not fits(first):
        _check_first(path, starts[chosen[0]], lines, fits)
    return chosen[0], first, line


def _first(texts: Any, character: str) -> int | None:
    """The first row with this character."""
    row = compute.index(compute.match_substring(texts, character), True).as_py()
    return None if row < 0 else row


def _hint(delimiter: str | None, commas: Collection[str], name: str, text: str) -> str:
    if name in commas and "." in text:
        return "Other rows of this column have a decimal comma: use the same format in all rows."
    if "," in text and (DECIMAL_COMMA.fullmatch(text) or THOUSANDS.fullmatch(text)):
        return (
            f'If its commas separate thousands, as in 1,234, write "commas": "thousands" at column '
            f'{name} of the schema; if they are decimal signs, "commas": "decimal".'
        )
    if delimiter is None:
        return ""
    return "If this line is a header, it must name every column that is needed."
