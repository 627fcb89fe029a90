"""Messages of the Open Inference Protocol: written and read by those who ask and who answer."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec

# With tensors as bytes: how many bytes of the body are JSON.
HEADER_LENGTH = "Inference-Header-Content-Length"
DATATYPES = {"uint8": "UINT8", "float32": "FP32"}
_LABELS = {"INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8"}
_SCORES = {"FP64", "FP32", "FP16"}


class InferenceError(Exception):
    """A message is not one of the protocol, or does not fit the model. Says what was expected."""


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] = {}


class _InferenceRequest(msgspec.Struct):
    inputs: list[_Tensor]
    id: str | None = None


class _InferenceResponse(msgspec.Struct):
    outputs: list[_Tensor]


_REQUEST, _RESPONSE = (
    msgspec.json.Decoder(_InferenceRequest),
    msgspec.json.Decoder(_InferenceResponse),
)


def encode_request(
    x: NDArray[np.generic], name: str, output: str | None, binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of an inference request for inputs `[B, …]`, uint8 or float32."""
    tensor: dict[str, Any] = {
        "name": name,
        "shape": list(x.shape),
        "datatype": DATATYPES[x.dtype.name],
    }
    document: dict[str, Any] = {"inputs": [tensor]}
    if output is not None:
        document["outputs"] = [{"name": output}]
    if not binary:
        tensor["data"] = x.ravel().tolist()
        return msgspec.json.encode(document), {"Content-Type": "application/json"}
    raw = np.ascontiguousarray(x, x.dtype.newbyteorder("<")).tobytes()
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = msgspec.json.encode(document)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
    return head + raw, headers


# Stands for an output that chooses none.
NO_CLASS = -1


def decode_labels(body: bytes, output: str | None, rows: int, classes: int) -> NDArray[np.int64]:
    """Read the labels `[B]` of a response: an output of labels, or of scores by class.

    Of scores, the highest wins, and of equal ones the first, as for every teacher. `NO_CLASS` where
    a label is not a class, or a score not finite. Raises InferenceError for a message of another
    form, such as another shape, and for no value.
    """
    try:
        found = _decode_response(body).outputs
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise InferenceError("no response of the protocol") from None
    tensors = [tensor for tensor in found if output in (None, tensor.name)]
    if len(tensors) != 1:
        raise InferenceError(
            f"{len(tensors)} outputs, expected one" + (f" {output}" * bool(output))
        )
    tensor = tensors[0]
    if tensor.datatype in _LABELS and tensor.shape in ([rows], [rows, 1]):
        given = _numbers(tensor).reshape(rows)
        known = (given >= 0) & (given < classes) & (given == np.floor(given))
        return np.where(known, given, NO_CLASS).astype(np.int64)
    if tensor.datatype in _SCORES and tensor.shape == [rows, classes]:
        scores = _numbers(tensor).reshape(rows, classes)
        known = np.isfinite(scores).all(axis=1)
        return np.where(known, scores.argmax(axis=1), NO_CLASS)
    raise InferenceError(
        f"an output of {tensor.datatype[:20]} {tensor.shape[:4]}, expected labels [{rows}] or "
        f"scores [{rows}, {classes}]"
    )


def _decode_response(body: bytes) -> _InferenceResponse:
    """Read a response. Raises MsgspecError, RecursionError and ValueError."""
    try:
        return _RESPONSE.decode(body)
    except msgspec.MsgspecError:
        # Servers in Python write NaN and Infinity, which JSON has not, for what is not finite.
        return msgspec.convert(json.loads(body), _InferenceResponse)


def _numbers(tensor: _Tensor) -> NDArray[Any]:
    """Return the numbers of a tensor. Raises InferenceError if they are others than it says."""
    try:
        given = np.asarray(tensor.data)
        if given.dtype.kind == "O":  # null, where a number is not finite, or numbers of any size
            known = (math.nan if each is None else each for each in tensor.data or ())
            given = np.array([*known], dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        given = np.empty(0, dtype=np.object_)
    if given.dtype.kind not in "iuf" or given.size != math.prod(tensor.shape):
        raise InferenceError(f"the data of {tensor.name[:40]!r}: not the numbers that it says")
    return given


def decode_inputs(body: bytes, header_length: int | None, spec: InputSpec) -> NDArray[np.generic]:
    """Read the inputs `[B, …]` of a request for a model of this kind. Raises InferenceError."""
    head = body if header_length is None else body[:header_length]
    try:
        given = _REQUEST.decode(head).inputs
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InferenceError(f"no request of the protocol ({error})") from None
    expected = f"{DATATYPES[spec.dtype]} [B, {', '.join(map(str, spec.shape))}]"
    if len(given) != 1:
        raise InferenceError(f"{len(given)} inputs, expected one: {expected}")
    tensor = given[0]
    shape = tensor.shape
    if tensor.datatype != DATATYPES[spec.dtype] or shape[1:] != list(spec.shape) or shape[0] < 1:
        raise InferenceError(f"{tensor.datatype[:20]} {shape[:5]}, expected {expected}")
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    if header_length is None:
        return _array(tensor, dtype)
    raw = body[header_length:]
    size = math.prod(shape) * dtype.itemsize
    if len(raw) != size or tensor.parameters.get("binary_data_size") != size:
        raise InferenceError(f"{len(raw)} bytes after the header, expected {size}")
    return np.frombuffer(raw, dtype).reshape(shape)


def encode_response(model: str, found: NDArray[np.int64]) -> bytes:
    """Return a response with labels `[B]`."""
    tensor = {
        "name": "label",
        "shape": [len(found)],
        "datatype": "INT64",
        "data": found.tolist(),
    }
    return msgspec.json.encode({"model_name": model, "outputs": [tensor]})


def _array(tensor: _Tensor, dtype: Any) -> NDArray[Any]:
    given, name = _numbers(tensor), tensor.name[:40]
    if np.dtype(dtype).kind != "f" and given.dtype.kind == "f":
        raise InferenceError(f"the data of {name!r}: fractions, expected whole numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        converted = given.astype(dtype).reshape(tensor.shape)
    if np.dtype(dtype).kind != "f" and (converted.ravel() != given.ravel()).any():
        raise InferenceError(f"the data of {name!r}: numbers out of range")
    return converted
