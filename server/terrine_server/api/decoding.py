"""Decode request bodies of `POST /label` into plain arrays. Lengths and headers are not trusted.

Pickles are never read: object dtypes are refused before any data. Arrays are views of the received
bytes, so a header cannot claim memory that was not sent.
"""

from __future__ import annotations

import ast
import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from terrine_protocol import LabelRequest
from terrine_server.errors import InvalidQuery, PayloadTooLarge, UnsupportedMediaType

MAX_HEADER = 1024
"""Bytes of a .npy header or of a zip directory; ours need about 100."""
MAX_DIMENSIONS = 8
NUMBER = re.compile(r"[<>|=]?(u[1248]|i[1248]|f[248])")
"""Numeric dtypes as a .npy header writes them."""

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


def decode(content_type: str, body: bytes, limit: int) -> Decoded:
    """Decode `body` according to its content type into arrays of at most `limit` bytes.

    Raises `UnsupportedMediaType`, `RequestValidationError` (malformed JSON, unknown fields),
    `InvalidQuery` (not a plain array) or `PayloadTooLarge` (unpacks to more than `limit`).
    """
    kind = content_type.partition(";")[0].strip().lower()
    decoder = DECODERS.get(kind)
    if decoder is None:
        raise UnsupportedMediaType(
            f"The content type {kind or '(none)'!r} is not one of {', '.join(DECODERS)}."
        )
    return decoder(body, limit)


def decode_json(body: bytes, limit: int) -> Decoded:
    """Decode the JSON form of `LabelRequest`."""
    try:
        request = LabelRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False)) from None
    inputs = _nested("inputs", request.inputs)
    if inputs.nbytes > limit:
        raise _too_large(limit)
    if request.probabilities is None:
        return Decoded(inputs)
    return Decoded(inputs, _nested("probabilities", request.probabilities))


def decode_npy(body: bytes, limit: int) -> Decoded:
    """Decode a `.npy` array: the inputs."""
    return Decoded(_array("inputs", body))


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


DECODERS: dict[str, Callable[[bytes, int], Decoded]] = {
    "application/json": decode_json,
    "application/x-npy": decode_npy,
    "application/x-npz": decode_npz,
}


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
    try:
        fields = ast.literal_eval(data[start : start + length].decode("latin-1").strip())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    match fields:
        case {"descr": str(descr), "fortran_order": bool(fortran), "shape": tuple(shape), **rest}:
            if not rest and all(type(side) is int and side >= 0 for side in shape):
                return descr, fortran, shape, start + length
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


def _nested(name: str, value: list[Any]) -> np.ndarray:
    """Turn nested lists of numbers into float64. Refuses ragged lists and anything else."""
    shape: list[int] = []
    level: list[Any] = [value]
    while level and isinstance(level[0], list):
        if len(shape) == MAX_DIMENSIONS:
            raise InvalidQuery(f"{name}: lists are nested more than {MAX_DIMENSIONS} deep.")
        lengths = {len(item) if isinstance(item, list) else -1 for item in level}
        if len(lengths) != 1:
            raise InvalidQuery(
                f"{name}: lists at depth {len(shape) + 1} differ in length. "
                "Every row needs the same shape."
            )
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    if not set(map(type, level)) <= {int, float}:
        raise InvalidQuery(f"{name}: every innermost element must be a number.")
    try:
        return np.array(level, dtype=np.float64).reshape(shape)
    except OverflowError:
        raise InvalidQuery(f"{name}: a number is too large for float64.") from None


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The arrays unpack to more than {limit} bytes. Split the request.", limit=limit
    )
