"""Canonical bytes and the hash chain.

Entry k's hash is SHA-256 over entry k-1's hash and every other column of entry k; the chain starts
from the hash of the project's immutable terms, so neither an entry nor the terms it was priced
under can be altered without every later hash failing.

Bytes are framed, field by field, as one tag byte, the payload's length as eight big-endian bytes,
and the payload; no two different sequences of fields share an encoding.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

Field = str | bytes | int | float | datetime | None

CHARGE_FIELDS = (
    "project_id",
    "seq",
    "created_at",
    "query_digest",
    "input_digest",
    "outcome",
    "label",
    "figure",
    "cost",
    "delta",
    "cap_cost",
    "guarantee",
    "mechanism",
    "event",
)
"""Every column of a charge but its hash, in the order in which they are hashed."""

KIND_FIELDS = CHARGE_FIELDS[5:]
"""Those that many charges share: what came out, what it cost, and why."""

TERMS_FIELDS = (
    "name",
    "guarantee",
    "mechanism",
    "events",
    "terms",
    "budget",
    "delta_budget",
    "cap_budget",
    "opened_at",
    "ensemble__name",
    "ensemble__manifest_sha256",
    "ensemble__info",
    "ensemble__records",
    "ensemble__epsilon",
    "ensemble__delta",
    "ensemble__rdp_order",
    "ensemble__cap",
    "ensemble__delta_cap",
)
"""What is fixed when a project is opened, its ensemble's cap included, as it is hashed."""


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def frame(*fields: Field) -> bytes:
    """The fields' one canonical encoding. TypeError for anything that is not a `Field`."""
    return b"".join(_frame(field) for field in fields)


frame_kind = lru_cache(maxsize=1024, typed=True)(frame)
"""`frame`, for the `KIND_FIELDS` that charge after charge shares."""


def genesis(project: Mapping[str, Any]) -> bytes:
    """Hash before the first charge, from `TERMS_FIELDS`."""
    return _sha256("terrine/terms/1", *(project[name] for name in TERMS_FIELDS))


def charge_hash(previous: bytes, charge: Mapping[str, Any]) -> bytes:
    """Hash of a charge, from `CHARGE_FIELDS` and the hash before it."""
    return _sha256("terrine/charge/1", previous, *(charge[name] for name in CHARGE_FIELDS))


@lru_cache(maxsize=1024)
def hasher(project_id: int) -> Callable[[bytes, int, str, bytes, bytes, bytes], bytes]:
    """Return what hashes one project's charges as `charge_hash` does, in a fraction of the time.

    It takes the hash before, the number, the time as `iso` writes it, both digests (32 bytes each)
    and the frame of `KIND_FIELDS`, which a caller makes once for all charges that share them.
    """
    start = frame("terrine/charge/1") + frame(b"\0" * 32)[:9]
    owner = frame(project_id) + b"i"
    time, digest = frame("0" * 27)[:9].replace(b"s", b"t", 1), frame(b"\0" * 32)[:9]
    lengths = [length.to_bytes(8, "big") for length in range(32)]
    sha256, join = hashlib.sha256, b"".join

    def hashed(
        previous: bytes, seq: int, created_at: str, query: bytes, input: bytes, kind: bytes
    ) -> bytes:
        number, instant = str(seq).encode(), created_at.encode()
        length = lengths[len(number)]
        parts = (
            *(start, previous, owner, length, number, time, instant),
            *(digest, query, digest, input, kind),
        )
        return sha256(join(parts)).digest()

    return hashed


def follows(previous: bytes, charge: Mapping[str, Any]) -> bool:
    """Whether a charge's `hash` is that of its columns and of the hash before it."""
    kind = frame_kind(*(charge[name] for name in KIND_FIELDS))
    digests = charge["query_digest"], charge["input_digest"]
    hashed = hasher(charge["project_id"])
    time = iso(charge["created_at"])
    return bool(hashed(previous, charge["seq"], time, *digests, kind) == charge["hash"])


def publication_digest(genesis: str, number: int) -> bytes:
    """What identifies a project's publication, numbered from 0, where a query's digest stands."""
    return _sha256("terrine/publication/1", bytes.fromhex(genesis), number)


def _sha256(*fields: Field) -> bytes:
    return hashlib.sha256(frame(*fields)).digest()


def _frame(field: Field) -> bytes:
    match field:
        case None:
            tag, payload = b"n", b""
        case bytes():
            tag, payload = b"b", field
        case str():
            # A damaged text of SQLite arrives with its undecodable bytes as surrogates.
            tag, payload = b"s", field.encode("utf-8", "surrogateescape")
        case bool():
            raise TypeError("a boolean has no canonical encoding here")
        case int():
            tag, payload = b"i", str(field).encode()
        case float():
            tag, payload = b"f", field.hex().encode()
        case datetime():
            tag, payload = b"t", iso(field).encode()
        case _:
            raise TypeError(f"{type(field).__name__} has no canonical encoding here")
    return tag + len(payload).to_bytes(8, "big") + payload


def iso(instant: datetime) -> str:
    """`2026-01-31T23:59:59.000000Z`: always UTC, always 27 characters."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
