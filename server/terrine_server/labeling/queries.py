"""What a request asks: its inputs checked, and identified by digests.

Two queries are the same exactly if their digests are equal, whatever encoding, byte order or number
type they were sent in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from terrine_protocol import InputSpec
from terrine_server.errors import (
    InvalidQuery,
    PayloadTooLarge,
)
from terrine_server.ledger import (
    QueryDigest,
    TokenRecord,
)


def check_shape(name: str, shape: Sequence[int], row: Sequence[int], max_batch: int) -> None:
    """Check the shape of an array against that of its rows. Raises as `check_batch`."""
    if not shape or tuple(shape[1:]) != tuple(row):
        expected = ", ".join(["B", *map(str, row)])
        raise InvalidQuery(
            f"Expected {name} of shape [{expected}]; these have shape {list(shape)}."
        )
    check_batch(shape[0], max_batch)


def check_batch(rows: int, max_batch: int) -> None:
    """Check the number of queries. Raises `InvalidQuery` or `PayloadTooLarge`."""
    if rows == 0:
        raise InvalidQuery("The batch is empty; expected at least one query.")
    if rows > max_batch:
        raise PayloadTooLarge(
            f"The batch has {rows} queries; at most {max_batch} are allowed. Split it.",
            limit=max_batch,
        )


def canonical_inputs(inputs: np.ndarray, spec: InputSpec, max_batch: int) -> np.ndarray:
    """Check inputs against `spec`; return them as `[B, *shape]` in C order and its dtype.

    Conversions that would change a value beyond its float32 rounding are refused.
    Raises `InvalidQuery` or `PayloadTooLarge`.
    """
    check_shape("inputs", inputs.shape, spec.shape, max_batch)
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        raise InvalidQuery("Inputs must be finite; NaN or infinity was found.")
    if spec.dtype == "uint8":
        if inputs.dtype.kind == "f" and (inputs != np.trunc(inputs)).any():
            raise InvalidQuery("Inputs must be whole numbers: the ensemble takes uint8.")
        _check_range(inputs, spec.low, spec.high)
        return np.ascontiguousarray(inputs, dtype=np.uint8)
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(inputs, dtype=np.dtype("<f4"))
    # Compared as float32, so that 0.1 in float32 does not exceed a limit of 0.1.
    _check_range(converted, np.float32(spec.low), np.float32(spec.high))
    return converted + np.float32(0)  # -0.0 becomes 0.0: one number, one query


def _check_range(inputs: np.ndarray, low: float | np.float32, high: float | np.float32) -> None:
    if inputs.min() < low or inputs.max() > high:
        raise InvalidQuery(f"Inputs must lie between {low:g} and {high:g}.")


def input_digests(inputs: np.ndarray, manifest_sha256: str) -> list[bytes]:
    """Return the SHA-256 of each canonical input, bound to its ensemble."""
    header = json.dumps(
        ["terrine input 1", manifest_sha256, inputs.dtype.str, list(inputs.shape[1:])]
    )
    common = hashlib.sha256(header.encode() + b"\0")
    return [_digest(common, row.tobytes()) for row in inputs]


def query_digests(inputs: list[bytes], baselines: np.ndarray | None) -> list[bytes]:
    """Return the SHA-256 of each query: its input and, for `interactive_gnmax`, its baseline."""
    common = hashlib.sha256(b"terrine query 1\0")
    if baselines is None:
        return [_digest(common, digest) for digest in inputs]
    rows = np.ascontiguousarray(baselines, dtype="<i8")
    return [
        _digest(common, digest, row.tobytes()) for digest, row in zip(inputs, rows, strict=True)
    ]


def _digest(common: hashlib._Hash, *parts: bytes) -> bytes:
    digest = common.copy()
    for part in parts:
        digest.update(part)
    return digest.digest()


@dataclass(frozen=True, eq=False)
class CheckedRequest:
    """One checked request: canonical inputs `[B, …]`, probabilities and baselines `[B, m]`.

    `genesis`: that of the project that it was checked for. `token`: that by which it came, if its
    row is still to be looked up. `notes`: what is said of its inputs beside their answers.
    `waits_for_others`: see `Voters`.
    """

    queries: np.ndarray
    probabilities: np.ndarray | None
    baselines: np.ndarray | None
    digests: Sequence[QueryDigest]
    genesis: str
    token: TokenRecord | None
    notes: tuple[str, ...] = ()
    waits_for_others: bool = False

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def token_id(self) -> str | None:
        """Who pays, if that is to be recorded."""
        return None if self.token is None else self.token.id
