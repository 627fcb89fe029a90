"""Tensors of the Open Inference Protocol, version 2: what is asked of a model, and what it says.

The protocol is spoken by Triton, KServe, MLServer, OpenVINO Model Server and others; see "Open
Inference Protocol" at https://github.com/kserve/open-inference-protocol. Inputs are sent as JSON,
or as bytes after it (the binary tensor extension); outputs are read as JSON.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec

HEADER_LENGTH = "Inference-Header-Content-Length"
"""With tensors as bytes: how many bytes of the body are JSON."""
DATATYPES = {"uint8": "UINT8", "float32": "FP32"}
_LABELS = {"INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8"}
_SCORES = {"FP64", "FP32", "FP16"}


class ProtocolError(Exception):
    """A message is not one of the protocol, or does not fit the model. Says what was expected."""


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct):
    inputs: list[_Tensor]
    id: str | None = None


class _Response(msgspec.Struct):
    outputs: list[_Tensor]


_REQUEST, _RESPONSE = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_Response)


def request(
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


def labels(body: bytes, output: str | None, rows: int, classes: int) -> NDArray[np.int64]:
    """Read the labels `[B]` of a response: an output of labels, or of scores by class.

    Of scores, the highest wins, and of equal ones the first, as for every teacher. Raises
    ProtocolError for anything else, such as another shape, a label that is no class, or scores that
    are not finite.
    """
    try:
        found = _RESPONSE.decode(body).outputs
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"no response of the protocol ({error})") from None
    tensors = [tensor for tensor in found if output in (None, tensor.name)]
    if len(tensors) != 1:
        raise ProtocolError(f"{len(tensors)} outputs, expected one" + (f" {output}" * bool(output)))
    tensor = tensors[0]
    if tensor.datatype in _LABELS and tensor.shape in ([rows], [rows, 1]):
        chosen = _array(tensor, np.int64).reshape(rows)
        if not (chosen.min() >= 0 and chosen.max() < classes):
            raise ProtocolError("a label that is no class")
        return chosen
    if tensor.datatype in _SCORES and tensor.shape == [rows, classes]:
        scores = _array(tensor, np.float64)
        if not np.isfinite(scores).all():
            raise ProtocolError("scores that are not finite")
        best: NDArray[np.int64] = scores.argmax(axis=1)
        return best
    raise ProtocolError(
        f"an output of {tensor.datatype[:20]} {tensor.shape[:4]}, expected labels [{rows}] or "
        f"scores [{rows}, {classes}]"
    )


def inputs(body: bytes, header_length: int | None, spec: InputSpec) -> NDArray[np.generic]:
    """Read the inputs `[B, …]` of a request for a model of this kind. Raises ProtocolError."""
    head = body if header_length is None else body[:header_length]
    try:
        given = _REQUEST.decode(head).inputs
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"no request of the protocol ({error})") from None
    expected = f"{DATATYPES[spec.dtype]} [B, {', '.join(map(str, spec.shape))}]"
    if len(given) != 1:
        raise ProtocolError(f"{len(given)} inputs, expected one: {expected}")
    tensor = given[0]
    shape = tensor.shape
    if tensor.datatype != DATATYPES[spec.dtype] or shape[1:] != list(spec.shape) or shape[0] < 1:
        raise ProtocolError(f"{tensor.datatype[:20]} {shape[:5]}, expected {expected}")
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    if header_length is None:
        return _array(tensor, dtype)
    raw = body[header_length:]
    size = math.prod(shape) * dtype.itemsize
    if len(raw) != size or tensor.parameters.get("binary_data_size") != size:
        raise ProtocolError(f"{len(raw)} bytes after the header, expected {size}")
    return np.frombuffer(raw, dtype).reshape(shape)


def response(model: str, found: NDArray[np.int64]) -> bytes:
    """Return a response with labels `[B]`."""
    tensor = {
        "name": "label",
        "shape": [len(found)],
        "datatype": "INT64",
        "data": found.tolist(),
    }
    return msgspec.json.encode({"model_name": model, "outputs": [tensor]})


def _array(tensor: _Tensor, dtype: Any) -> NDArray[Any]:
    try:
        given = np.asarray(tensor.data)
        wrong = given.dtype.kind not in "iuf" or given.size != math.prod(tensor.shape)
        if wrong or (np.dtype(dtype).kind != "f" and given.dtype.kind == "f"):
            raise ValueError("other numbers than it says")
        with np.errstate(over="ignore"):
            converted = given.astype(dtype).reshape(tensor.shape)
        if np.dtype(dtype).kind != "f" and (converted.ravel() != given.ravel()).any():
            raise ValueError("numbers out of range")
    except (ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"the data of {tensor.name[:40]!r}: {error}") from None
    return converted
