"""Decode request bodies of `POST /label` into plain arrays. Lengths and headers are not trusted.

Pickles are never read: object dtypes are refused before any data. Arrays are views of the received
bytes, so a header cannot claim memory that was not sent.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from fastapi.exceptions import RequestValidationError

from terrine_protocol import InputSpec
from terrine_server.api.json_arrays import numbers
from terrine_server.errors import InvalidQuery, PayloadTooLarge, UnsupportedMediaType
from terrine_server.labeling.queries import canonical_numbers

MAX_HEADER = 1024
"""Bytes of a .npy header or of a zip directory; ours need about 100."""
MAX_DIMENSIONS = 8
MEMBER = re.compile(r"field `([^`]*)`")
"""How an error of msgspec names a member of an object."""
QUOTES = "'\""
_FIELD = (
    r"""('descr'|'fortran_order'|'shape'|"descr"|"fortran_order"|"shape")\s*:\s*"""
    r"""('[^'"\\]*'|"[^'"\\]*"|True|False|\(\s*(?:\d{1,18}\s*,\s*)*(?:\d{1,18}\s*)?\))"""
)
FIELD = re.compile(_FIELD)
HEADER = re.compile(rf"\{{\s*(?:{_FIELD}\s*,\s*){{2}}{_FIELD}\s*,?\s*\}}")
"""A .npy header: a literal dictionary of three fields, in any order, as NEP 1 has it."""
NUMBER = re.compile(r"[<>|=]?(u[1248]|i[1248]|f[248])")
"""Numeric dtypes as a .npy header writes them."""

CONTENT_TYPES = ("application/json", "application/x-npy", "application/x-npz")

ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
)
"""What `zipfile` raises for bytes that are not an archive."""


@dataclass(frozen=True)
class Decoded:
    """What a student sent: inputs `[B, …]` and, if given, probabilities `[B, m]`."""

    inputs: np.ndarray
    probabilities: np.ndarray | None = None


@dataclass(frozen=True)
class Expected:
    """What a project takes: inputs of this format, probabilities of so many classes."""

    input: InputSpec
    classes: int


@dataclass(frozen=True)
class Limits:
    """The most bytes of a request's arrays, unpacked and as they are used, and of a request in
    JSON; the most inputs."""

    body: int
    json: int
    batch: int


class Members(msgspec.Struct, forbid_unknown_fields=True):
    """The texts of a request's members in JSON."""

    inputs: msgspec.Raw
    probabilities: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


MEMBERS = msgspec.json.Decoder(Members)
"""Also checks the syntax of all the rest."""
NULL = msgspec.Raw(b"null")


def decode(content_type: str, body: bytes, expected: Expected, limits: Limits) -> Decoded:
    """Decode `body` according to its content type into arrays within `limits`.

    Raises `UnsupportedMediaType`, `RequestValidationError` (malformed JSON, unknown fields),
    `InvalidQuery` (not a plain array, or JSON that the ensemble does not take) or
    `PayloadTooLarge`.
    """
    match content_type.partition(";")[0].strip().lower():
        case "application/json":
            sent = decode_json(body, expected, limits)
        case "application/x-npy":
            sent = Decoded(_array("inputs", body))
        case "application/x-npz":
            sent = decode_npz(body, limits.body)
        case kind:
            raise UnsupportedMediaType(
                f"The content type {kind or '(none)'!r} is not one of {', '.join(CONTENT_TYPES)}."
            )
    unpacked = [sent.inputs.size * np.dtype(expected.input.dtype).itemsize]
    if sent.probabilities is not None:
        unpacked.append(sent.probabilities.size * np.dtype(np.float64).itemsize)
    if max(unpacked) > limits.body:
        raise _too_large(limits.body)
    return sent


def decode_json(body: bytes, expected: Expected, limits: Limits) -> Decoded:
    """Decode the JSON form of `LabelRequest`, inputs to what the ensemble takes.

    A number of two bytes may become one of eight, hence a limit of its own.
    """
    if len(body) > limits.json:
        raise PayloadTooLarge(
            f"A request in JSON has at most {limits.json} bytes; this one has {len(body)}. Send "
            "application/x-npy or application/x-npz, or split the request.",
            limit=limits.json,
        )
    spec, classes, commas = expected.input, expected.classes, body.count(b",")
    # Every number but the first of a list follows a comma: so many there are at most.
    if commas > limits.batch * (math.prod(spec.shape) + classes):
        raise PayloadTooLarge(
            f"These are more numbers than {limits.batch} inputs have. Split the request.",
            limit=limits.batch,
        )

    def array(name: str, text: msgspec.Raw, shape: Sequence[int], dtype: str) -> np.ndarray:
        flat, count = np.empty(commas + 1, dtype), 0
        for block in numbers(memoryview(text), tuple(shape), f"$.{name}"):
            kept = canonical_numbers(block, spec) if name == "inputs" else block
            flat[count : count + len(block)] = kept
            count += len(block)
        return flat[:count].reshape(-1, *shape)

    try:
        sent = MEMBERS.decode(body)
        inputs = array("inputs", sent.inputs, spec.shape, spec.dtype)
        probabilities = None
        if sent.probabilities is not msgspec.UNSET and sent.probabilities != NULL:
            probabilities = array("probabilities", sent.probabilities, [classes], "float64")
    except UnicodeDecodeError:
        raise _malformed("JSON is malformed: not UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        if b"NaN" in body or b"Infinity" in body:  # which Python's json writes
            raise InvalidQuery("Inputs must be finite; NaN or infinity was found.") from None
        found = "Lists are nested too deep" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, msgspec.DecodeError) and "`$." not in found:
            raise _malformed(found) from None
        raise InvalidQuery(
            f"{found}. Inputs are numbers of shape [{', '.join(map(str, ['B', *spec.shape]))}], "
            f"probabilities of shape [B, {classes}]."
        ) from None
    members = 1 + (sent.probabilities is not msgspec.UNSET)
    if body.count(b'"') != 2 * members:  # the only texts in it are the members' names
        raise _malformed("A member is given twice.")
    if probabilities is not None and probabilities.nbytes > limits.json:
        raise _too_large(limits.json)  # they are copied more than once
    return Decoded(inputs, probabilities)


def _malformed(problem: str) -> RequestValidationError:
    member = MEMBER.search(problem)
    place = (member[1] if member else "body",)
    return RequestValidationError([{"type": "json_invalid", "loc": place, "msg": problem}])


def decode_npz(body: bytes, limit: int) -> Decoded:
    """Decode an `.npz` archive of `inputs` and, for Interactive, `probabilities`."""
    _check_directory(body)
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
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
            if sum(member.file_size for member in members) > limit:
                raise _too_large(limit)
            arrays = {
                # Reading a member returns at most the size that its directory entry declares.
                member.filename.removesuffix(".npy"): _array(member.filename, archive.read(member))
                for member in members
            }
    except ZIP_ERRORS:
        raise InvalidQuery("The body is not a complete .npz archive.") from None
    return Decoded(**arrays)


def _array(name: str, data: bytes) -> np.ndarray:
    """View the bytes of a `.npy` file as an array. Raises `InvalidQuery`."""
    header = _header(data)
    if header is None:
        raise InvalidQuery(f"{name}: the bytes are not a plain .npy array (format 1.0 or 2.0).")
    descr, fortran, shape, offset = header
    if not NUMBER.fullmatch(descr):
        # Objects would be pickles; structured, string and complex arrays are not inputs.
        raise InvalidQuery(
            f"{name}: the dtype must be an integer or float of at most 8 bytes. "
            "Pickled objects are never read."
        )
    if len(shape) > MAX_DIMENSIONS or 0 in shape:
        raise InvalidQuery(
            f"{name}: expected at most {MAX_DIMENSIONS} dimensions, none of them empty."
        )
    dtype = np.dtype(descr)
    expected = math.prod(shape) * dtype.itemsize
    if len(data) - offset != expected:
        raise InvalidQuery(
            f"{name}: the header declares {expected} bytes of data, {len(data) - offset} follow."
        )
    flat = np.frombuffer(data, dtype, offset=offset)
    return flat.reshape(shape, order="F" if fortran else "C")


def _header(data: bytes) -> tuple[str, bool, tuple[int, ...], int] | None:
    """Return dtype, Fortran order, shape and offset of the data; None if it is not a `.npy` file.

    The format is numpy's NEP 1. numpy's own parser also accepts headers of Python 2 and of any
    dtype, and lets exceptions of a tokenizer escape.
    """
    size, format_ = {b"\x01\x00": (2, "<H"), b"\x02\x00": (4, "<I")}.get(data[6:8], (0, ""))
    start = 8 + size
    if data[:6] != b"\x93NUMPY" or not size or len(data) < start:
        return None
    length = struct.unpack(format_, data[8:start])[0]
    if length > MAX_HEADER or len(data) < start + length:
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
            if sides is not None and descr[0] in QUOTES and (len(sides) != 1 or "," in shape):
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
    if entries > 2 or size > MAX_HEADER:
        raise InvalidQuery("The archive must hold `inputs` and, optionally, `probabilities`.")


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The arrays unpack to more than {limit} bytes. Split the request.", limit=limit
    )
