"""Decode request bodies of `POST /label` into plain arrays. Lengths and headers are not trusted.

Pickles are never read: object dtypes are refused before any data. What a header says is compared
with what the ensemble takes before anything is unpacked, and no more than it says is unpacked
after that. Arrays are views of the received bytes.
"""

from __future__ import annotations

import csv
import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi.exceptions import RequestValidationError
from numpy.typing import NDArray

from terrine_protocol import EnsembleFacts, TableSchema
from terrine_protocol.base import column_name, quantity
from terrine_protocol.errors import DataError
from terrine_server.errors import InvalidQuery, PayloadTooLarge, UnsupportedMediaType
from terrine_server.labeling.queries import check_batch, check_shape
from terrine_tables.columns import check_names, encoded_width
from terrine_tables.encoding import columns_of, encode_columns

# Bytes of a .npy header or of a zip directory; ours need about 100.
MAX_HEADER_BYTES = 1024
# Bytes of a request in JSON or CSV: a number takes some 50 times as long to read as from .npy.
MAX_TEXT_BYTES = 2**20
# Bytes of the widest number.
MAX_ITEM_BYTES = 8
# How an error of msgspec names a member of an object.
MEMBER = re.compile(r"field `([^`]*)`")
QUOTE_MARKS = "'\""
_FIELD = (
    r"""('descr'|'fortran_order'|'shape'|"descr"|"fortran_order"|"shape")\s*:\s*"""
    r"""('[^'"\\]*'|"[^'"\\]*"|True|False|\(\s*(?:\d{1,18}\s*,\s*)*(?:\d{1,18}\s*)?\))"""
)
FIELD = re.compile(_FIELD)
# A .npy header: a literal dictionary of three fields, in any order, as NEP 1 has it.
HEADER = re.compile(rf"\{{\s*(?:{_FIELD}\s*,\s*){{2}}{_FIELD}\s*,?\s*\}}")
# Numeric dtypes as a .npy header writes them.
NUMBER = re.compile(r"[<>|=]?(u[1248]|i[1248]|f[248])")

JSON = "application/json"
CSV = "text/csv"
# Of any project; those of tables also take CSV.
CONTENT_TYPES = (JSON, "application/x-npy", "application/x-npz")

CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\";\s]*)", re.IGNORECASE)
# Names of the encoding of JSON and CSV, in small letters; ASCII is a part of it.
UTF_8 = {"utf-8", "utf8", "us-ascii", "ascii"}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Where an error of msgspec says that the syntax is wrong.
FAULTY_BYTE = re.compile(r"\(byte (\d+)\)")
# What languages write into JSON for numbers that it does not have.
NOT_FINITE = re.compile(rb"-?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
csv.field_size_limit(max(csv.field_size_limit(), MAX_TEXT_BYTES))  # a body's own limit holds

# What `zipfile` raises for bytes that are not an archive.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
)


@dataclass(frozen=True)
class DecodedQueries:
    """What a student sent: inputs `[B, …]` and, if given, probabilities `[B, m]`.

    `notes`: what the project's schema has no place for in rows by name.
    """

    inputs: np.ndarray
    probabilities: np.ndarray | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BodyLimits:
    """`body`: the most bytes of a request's arrays, unpacked and as used. `batch`: of inputs."""

    body: int
    batch: int


RawRows = Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1)]


class RawRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The texts of a request's rows in JSON, by member: arrays of numbers, or objects by name."""

    inputs: RawRows | msgspec.UnsetType = msgspec.UNSET
    rows: RawRows | msgspec.UnsetType = msgspec.UNSET
    probabilities: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET


# Also checks the syntax of all the rest.
REQUEST_DECODER = msgspec.json.Decoder(RawRequest)


def check_length(content_type: str, size: int, expected: EnsembleFacts, limits: BodyLimits) -> None:
    """Refuse a body by its length alone, before it is there. Raises `PayloadTooLarge`."""
    kind = media_type(content_type)
    if kind in (JSON, CSV):
        if size > MAX_TEXT_BYTES:
            raise PayloadTooLarge(
                f"A request in {kind} has at most {MAX_TEXT_BYTES} bytes; this one has more. Send "
                "application/x-npy or application/x-npz, or split the request.",
                limit=MAX_TEXT_BYTES,
            )
        return
    values = limits.batch * (math.prod(expected.input.shape) + len(expected.classes))
    data_bytes = values * MAX_ITEM_BYTES
    most = data_bytes + data_bytes // 1000 + 4 * MAX_HEADER_BYTES  # deflate may add a little
    if size > most:
        raise PayloadTooLarge(
            f"{limits.batch} inputs, the most in a request, have at most {most} bytes; this body "
            "has more. Split the request.",
            limit=most,
        )


def decode(
    content_type: str,
    body: bytes,
    expected: EnsembleFacts,
    limits: BodyLimits,
    accept_clipped: bool = False,
    check_client: Callable[[], object] = lambda: None,
) -> DecodedQueries:
    """Decode `body` according to its content type into arrays of the shapes that are `expected`.

    `accept_clipped`: whether much of a column of rows by name may be outside the schema's range.
    `check_client`: called between rows of JSON; raises if nobody waits for them any more.

    Raises what these raise, `UnsupportedMediaType`, `RequestValidationError` (malformed JSON,
    unknown fields), `InvalidQuery` (not the arrays that the ensemble takes) or `PayloadTooLarge`.
    """
    check_length(content_type, len(body), expected, limits)
    _check_charset(content_type)
    schema, named = expected.encoding, None
    if schema is not None:
        named = NamedRows(schema, limits, accept_clipped, check_client)
    match kind := media_type(content_type):
        case "application/json":
            return decode_json(body, expected, limits, named, check_client)
        case "text/csv" if named is not None:
            return named.of_csv(body)
        case "application/x-npy":
            header = _check_header("inputs", body, expected, limits)
            return DecodedQueries(_view_array("inputs", header, body[header.offset :]))
        case "application/x-npz":
            return decode_npz(body, expected, limits)
        case _:
            taken = CONTENT_TYPES if named is None else (*CONTENT_TYPES, CSV)
            raise UnsupportedMediaType(
                f"The content type {kind or '(none)'!r} is not one of {', '.join(taken)}."
                + _describe_named_rows(expected)
            )


def _describe_named_rows(expected: EnsembleFacts) -> str:
    """Return how rows of a table are sent by name; nothing for other inputs."""
    if expected.encoding is None:
        return ""
    return (
        ' Rows of a table are sent by name, in JSON as {"rows": [{"column": value, …}, …]}, or as '
        "text/csv with a header. `inputs` are their numbers, encoded by `ensemble.encoding` of GET "
        "/project, as `Client.label` of terrine_client encodes data frames and files."
    )


def media_type(content_type: str) -> str:
    """Return the media type of a Content-Type, without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def _find_not_finite(body: bytes, error: str) -> int | None:
    """Return where a number that JSON does not have made its syntax wrong; None if that is right.

    Of `-Infinity` and `nan`, msgspec names the second character: n could begin null.
    """
    named = FAULTY_BYTE.search(error)
    places = () if named is None else (int(named[1]) - 1, int(named[1]))
    return next((place for place in places if NOT_FINITE.match(body, place)), None)


def _check_charset(content_type: str) -> None:
    named = CHARSET.search(content_type)
    if named is not None and named[1].lower() not in UTF_8:
        raise UnsupportedMediaType(
            f"The charset is {named[1]!r}; JSON and CSV are read as UTF-8. Send the text in UTF-8, "
            "with this charset or without one."
        )


def decode_json(
    body: bytes,
    expected: EnsembleFacts,
    limits: BodyLimits,
    named: NamedRows | None,
    check_client: Callable[[], object],
) -> DecodedQueries:
    """Decode `LabelRequest` or `RowsRequest`, a row at a time: other threads run in between.

    `named`: how rows by name are read, if the project takes some. `check_client`: as `decode`.
    """
    shape = expected.input.shape
    arrays = (
        f"Inputs are numbers of shape [{', '.join(map(str, ['B', *shape]))}], "
        f"probabilities of shape [B, {len(expected.classes)}].{_describe_named_rows(expected)}"
    )
    if body.startswith(UTF_16_MARKS):
        raise _malformed("JSON is malformed: it is UTF-16; expected UTF-8")
    body = body.removeprefix(BYTE_ORDER_MARK)
    try:
        sent = REQUEST_DECODER.decode(body)
    except UnicodeDecodeError:
        raise _malformed("JSON is malformed: not UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        found = "Lists are nested too deep" if isinstance(error, RecursionError) else str(error)
        if (place := _find_not_finite(body, found)) is not None:
            instead = "" if named is None else " What is missing in a row by name is null."
            raise InvalidQuery(
                f"Inputs must be finite; NaN or infinity was found at byte {place}.{instead}"
            ) from None
        if isinstance(error, msgspec.ValidationError) and "`$." not in found:
            envelope = '{"inputs": [[…], …]}' if named is None else '{"rows": [{"column": …}, …]}'
            raise _malformed(f"{found}. Expected an object such as {envelope}") from None
        if isinstance(error, msgspec.DecodeError) and "`$." not in found:
            raise _malformed(found) from None
        raise InvalidQuery(f"{found}. {arrays}") from None
    quotes, probabilities, notes = body.count(b'"'), None, tuple[str, ...]()
    if sent.inputs is not msgspec.UNSET and sent.rows is not msgspec.UNSET:
        raise _malformed("Object has both `inputs` and `rows`")
    if sent.inputs is not msgspec.UNSET:
        check_batch(len(sent.inputs), limits.batch)
        inputs = _decode_rows("inputs", sent.inputs, shape, arrays, check_client)
    elif sent.rows is msgspec.UNSET:
        raise _malformed("Object missing required field `inputs`")
    elif named is None:
        raise InvalidQuery(f"The project takes no rows of a table by name. {arrays}")
    else:
        rows = named.of_objects(sent.rows)
        inputs, notes = rows.inputs, rows.notes
        quotes -= sum(bytes(text).count(b'"') for text in sent.rows)
    if sent.probabilities is not msgspec.UNSET and sent.probabilities is not None:
        check_batch(len(sent.probabilities), limits.batch)
        classes = (len(expected.classes),)
        given = sent.probabilities, classes, arrays, check_client
        probabilities = _decode_rows("probabilities", *given)
    members = 1 + (sent.probabilities is not msgspec.UNSET)
    if quotes != 2 * members:  # the only texts beside rows are the members' names
        raise _malformed("A member is given twice.")
    return DecodedQueries(inputs, probabilities, notes)


def _decode_rows(
    name: str,
    texts: Sequence[msgspec.Raw],
    shape: tuple[int, ...],
    arrays: str,
    check_client: Callable[[], object],
) -> np.ndarray:
    decoder, rows = _row_decoder(shape), []
    for index, text in enumerate(texts):
        check_client()
        try:
            rows.append(np.array(decoder.decode(text), np.float64))
        except msgspec.DecodeError as error:
            what, _, place = str(error).partition(" - at `$")
            place = place.removesuffix("`")
            raise InvalidQuery(f"{what} - at `$.{name}[{index}]{place}`. {arrays}") from None
    return np.stack(rows)


@lru_cache(maxsize=64)
def _row_decoder(shape: tuple[int, ...]) -> msgspec.json.Decoder[Any]:
    kind: Any = float
    for side in reversed(shape):
        kind = Annotated[list[kind], msgspec.Meta(min_length=side, max_length=side)]
    return msgspec.json.Decoder(kind)


def _malformed(problem: str) -> RequestValidationError:
    member = MEMBER.search(problem)
    place = (member[1] if member else "body",)
    return RequestValidationError([{"type": "json_invalid", "loc": place, "msg": problem}])


def decode_npz(body: bytes, expected: EnsembleFacts, limits: BodyLimits) -> DecodedQueries:
    """Decode an `.npz` archive of `inputs` and, for Interactive, `probabilities`.

    Of each member, its start is unpacked first; the rest if its header is of an array that the
    ensemble takes, and then as many bytes as that says.
    """
    _check_directory(body)
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive, ExitStack() as stack:
            members = archive.infolist()
            names = sorted(member.filename for member in members)
            if names not in (["inputs.npy"], ["inputs.npy", "probabilities.npy"]):
                raise InvalidQuery(
                    "The archive must hold the arrays `inputs` and, optionally, `probabilities`, "
                    "each once, and nothing else."
                )
            if any(member.flag_bits & 0x1 for member in members):
                raise InvalidQuery("Encrypted archives are not accepted.")
            if any(
                member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                for member in members
            ):
                raise InvalidQuery(
                    "The archive must be stored or deflated, as numpy writes archives."
                )
            if sum(member.file_size for member in members) > limits.body:
                raise _too_large(limits.body)
            started = []
            for member in members:
                file = stack.enter_context(archive.open(member))
                name, start = member.filename.removesuffix(".npy"), file.read(12 + MAX_HEADER_BYTES)
                header = _check_header(name, start, expected, limits)
                if member.file_size != header.offset + header.size:
                    raise _size_error(name, header, member.file_size - header.offset)
                started.append((name, header, start[header.offset :], file))
            arrays = {
                # Not read() alone: it unpacks all there is, whatever size the directory declares.
                name: _view_array(name, header, first + file.read(header.size - len(first)))
                for name, header, first, file in started
            }
    except ZIP_ERRORS:
        raise InvalidQuery("The body is not a complete .npz archive.") from None
    return DecodedQueries(arrays["inputs"], arrays.get("probabilities"))


@dataclass(frozen=True)
class Header:
    """What the start of a `.npy` file says of its array, and where the data begins."""

    dtype: np.dtype[Any]
    fortran: bool
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * self.dtype.itemsize


def _check_header(name: str, start: bytes, expected: EnsembleFacts, limits: BodyLimits) -> Header:
    """Read the header at the start of a `.npy` file, and compare it with what is taken.

    Raises `InvalidQuery` or `PayloadTooLarge`.
    """
    found = _parse_header(start)
    if found is None:
        raise InvalidQuery(f"{name}: the bytes are not a plain .npy array (format 1.0 or 2.0).")
    descr, fortran, shape, offset = found
    if not NUMBER.fullmatch(descr):
        # Objects would be pickles; structured, string and complex arrays are not inputs.
        raise InvalidQuery(
            f"{name}: the dtype must be an integer or float of at most 8 bytes. "
            "Pickled objects are never read."
        )
    row, used = (
        (expected.input.shape, np.dtype(expected.input.dtype))
        if name == "inputs"
        else ((len(expected.classes),), np.dtype(np.float64))
    )
    check_shape(name, shape, row, limits.batch)
    if math.prod(shape) * used.itemsize > limits.body:
        raise _too_large(limits.body)
    return Header(np.dtype(descr), fortran, shape, offset)


def _view_array(name: str, header: Header, data: bytes) -> np.ndarray:
    """View the data of a `.npy` file as an array. Raises `InvalidQuery`."""
    if len(data) != header.size:
        raise _size_error(name, header, len(data))
    flat = np.frombuffer(data, header.dtype)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _size_error(name: str, header: Header, size: int) -> InvalidQuery:
    return InvalidQuery(f"{name}: the header declares {header.size} bytes of data, {size} follow.")


def _parse_header(data: bytes) -> tuple[str, bool, tuple[int, ...], int] | None:
    """Return dtype, Fortran order, shape and offset of the data; None if it is not a `.npy` file.

    The format is numpy's NEP 1. numpy's own parser also accepts headers of Python 2 and of any
    dtype, and lets exceptions of a tokenizer escape.
    """
    size, format_ = {b"\x01\x00": (2, "<H"), b"\x02\x00": (4, "<I")}.get(data[6:8], (0, ""))
    start = 8 + size
    if data[:6] != b"\x93NUMPY" or not size or len(data) < start:
        return None
    length = struct.unpack(format_, data[8:start])[0]
    if length > MAX_HEADER_BYTES or len(data) < start + length:
        return None
    # Not by ast.literal_eval: in Python 3.11, threads that call it make each other fail at times
    # (github.com/python/cpython/issues/106905).
    found = HEADER.fullmatch(data[start : start + length].decode("latin-1").strip())
    if found is None:
        return None
    fields: dict[str, str] = {}
    for name, value in FIELD.findall(found[0]):
        if fields.setdefault(name[1:-1], value) is not value:
            return None  # given twice
    match fields:
        case {"descr": descr, "fortran_order": "True" | "False" as fortran, "shape": shape}:
            sides = shape[1:-1].replace(",", " ").split() if shape[0] == "(" else None
            if sides is not None and descr[0] in QUOTE_MARKS and (len(sides) != 1 or "," in shape):
                return descr[1:-1], fortran == "True", tuple(map(int, sides)), start + length
    return None


def _check_directory(body: bytes) -> None:
    """Refuse an archive whose directory could hold more than the two expected members.

    A zip file ends in a 22-byte record (PKWARE APPNOTE 4.3.16). Its counts are checked first:
    a directory with a million entries is never parsed.
    """
    end = body[-22:]
    if len(end) < 22 or end[:4] != b"PK\x05\x06" or body[-42:-38] == b"PK\x06\x07":
        raise InvalidQuery("The body is not a complete .npz archive.")
    entries, size = struct.unpack("<HI", end[10:16])
    if entries > 2 or size > MAX_HEADER_BYTES:
        raise InvalidQuery("The archive must hold `inputs` and, optionally, `probabilities`.")


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The arrays unpack to more than {limit} bytes. Split the request.", limit=limit
    )


# Characters of a column's name, or of a value that is used, except free text: to normalize a text
# in Unicode may take time that grows with the square of its length. Free text is normalized a part
# at a time (`texts.clean_text`), and cut where it is longer than is read.
MAX_TEXT_CHARACTERS = 200
ROW_DECODER = msgspec.json.Decoder(dict[str, str | int | float | bool | None])
ESCAPED = re.compile(rb"\\.", re.DOTALL)


@dataclass(frozen=True)
class NamedRows:
    """Decodes rows of a table that are sent by name: objects of JSON, or CSV with a header.

    They are encoded by the project's public schema, with the code that clients encode them with:
    the same rows are the same queries, in whichever form they come.

    accept_clipped: whether much of a column may be clipped to the schema's range, or missing.
    check_client: as `decode`.
    """

    schema: TableSchema
    limits: BodyLimits
    accept_clipped: bool
    check_client: Callable[[], object]

    def of_objects(self, texts: Sequence[msgspec.Raw]) -> DecodedQueries:
        """Encode objects of JSON, each with a value for every feature: a row at a time.

        Raises `InvalidQuery` or `PayloadTooLarge`.
        """
        check_batch(len(texts), self.limits.batch)
        rows = (self._decode_row(index, bytes(text)) for index, text in enumerate(texts))
        try:
            columns = columns_of(rows, self.schema.features)
        except DataError as error:
            raise InvalidQuery(str(error)) from None
        return self._encoded(columns, "row {}".format)

    def of_csv(self, body: bytes) -> DecodedQueries:
        """Encode CSV: UTF-8, fields separated by commas, and a header that names every feature.

        Raises `InvalidQuery` or `PayloadTooLarge`.
        """
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidQuery(
                f"The CSV is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}."
            ) from None
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        features, lines, rows, count = self.schema.features, list[int](), list[list[str]](), 0
        try:
            header = next(reader, [])
            _check_lengths("the header", header)
            names = list(map(column_name, header))
            check_names(names, features, "The header")
            place_of = {name: place for place, name in enumerate(names)}
            places = [place_of[name] for name in features]
            for record in reader:
                if not record:
                    continue  # a blank line
                if len(record) != len(names):
                    raise InvalidQuery(
                        f"line {reader.line_num}: found {quantity(len(record), 'field')}, expected "
                        f"{len(names)}, as the header has."
                    )
                count += 1
                if count <= self.limits.batch:
                    rows.append([record[place] for place in places])
                    lines.append(reader.line_num)
        except csv.Error as error:
            raise InvalidQuery(
                f"line {reader.line_num}: {error}. A quote that opens a field must be closed, and "
                "quotes inside it doubled."
            ) from None
        except DataError as error:
            raise InvalidQuery(f"{error} Fields are separated by commas.") from None
        check_batch(count, self.limits.batch)
        columns = {
            name: np.fromiter((row[place] for row in rows), dtype=object, count=len(rows))
            for place, name in enumerate(features)
        }
        return self._encoded(columns, lambda row: f"line {lines[row]}")

    def _encoded(
        self, columns: Mapping[str, NDArray[np.object_]], where: Callable[[int], str]
    ) -> DecodedQueries:
        rows, most = len(next(iter(columns.values()))), self.limits.body
        if rows * sum(map(encoded_width, self.schema.columns)) * np.float32().itemsize > most:
            raise PayloadTooLarge(
                f"The rows become more than {most} bytes of numbers. Split the request.",
                limit=most,
            )
        prose = {column.name for column in self.schema.columns if column.role == "text"}
        for name, column in columns.items():
            for row, value in enumerate(() if name in prose else column):
                if isinstance(value, str):
                    _check_lengths(f"{where(row)}: column {name}", [value])
        notes: list[str] = []
        try:
            inputs = encode_columns(
                columns,
                self.schema,
                "The rows",
                notes.append,
                self.accept_clipped,
                lambda start, row: where(start + row),
            )
        except DataError as error:
            raise InvalidQuery(str(error)) from None
        return DecodedQueries(inputs, notes=tuple(notes))

    def _decode_row(self, index: int, text: bytes) -> dict[str, Any]:
        self.check_client()
        return _decode_row(index, text)


def _decode_row(index: int, text: bytes) -> dict[str, Any]:
    """Decode a row. What it holds is no deeper than its type, and no column is given twice."""
    try:
        row: dict[str, Any] = ROW_DECODER.decode(text)
    except UnicodeDecodeError:
        raise InvalidQuery(f"row {index}: the JSON is not UTF-8.") from None
    except msgspec.DecodeError as error:
        what, _, _ = str(error).partition(" - at `$")
        raise InvalidQuery(
            f"row {index}: {what}. Expected an object that names columns, each with a text, a "
            "number, true, false or null."
        ) from None
    _check_lengths(f"row {index}", row)
    given = len(row) + sum(isinstance(value, str) for value in row.values())
    if ESCAPED.sub(b"", text).count(b'"') != 2 * given:
        raise InvalidQuery(f"row {index}: a column is given twice.")
    return row


def _check_lengths(where: str, texts: Iterable[str]) -> None:
    longest = max(map(len, texts), default=0)
    if longest > MAX_TEXT_CHARACTERS:
        raise InvalidQuery(
            f"{where}: a text has {longest} characters; expected at most {MAX_TEXT_CHARACTERS}."
        )
