"""Canonical bytes and the hash chain.

Entry k's hash is SHA-256 over entry k-1's hash and every other column of entry k; noisy counts are
hashed by their own SHA-256, and only where there are any. The chain starts from the hash of the
project's immutable terms. So altering an entry, or the terms that it was priced under, invalidates
every later hash.

Each field is encoded as one tag byte, the payload's length as eight big-endian bytes, and the
payload. No two different sequences of fields have the same encoding.
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
    "mechanism",
    "event",
)
"""Every column of a charge except its hash and its noisy counts, in the order in which they are
hashed. If there are counts, their SHA-256 comes after these."""

KIND_FIELDS = CHARGE_FIELDS[5:]
"""The columns whose values many charges share: the outcome, its price, and what explains it."""

TERMS_FIELDS = (
    "name",
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
    "ensemble__units",
    "ensemble__epsilon",
    "ensemble__delta",
    "ensemble__rdp_order",
    "ensemble__cap",
    "ensemble__delta_cap",
)
"""What is fixed when a project is opened, including its ensemble's cap, in hashing order."""


def canonical_json(value: object) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def frame(*fields: Field) -> bytes:
    """Return the canonical encoding of the fields. Raises TypeError unless each is a `Field`."""
    return b"".join(map(_frame, fields))


def frame_counts(counts: str | None) -> bytes:
    """The frame of what is hashed of noisy counts, as they are kept; of no counts it is nothing.

    So entries without counts have the hash that they had before there were any. TypeError for
    anything that is not text.
    """
    if counts is None:
        return b""
    if not isinstance(counts, str):
        raise TypeError("noisy counts are kept as text")
    return frame(hashlib.sha256(counts.encode("utf-8", "surrogateescape")).digest())


frame_kind = lru_cache(maxsize=1024, typed=True)(frame)
"""`frame`, cached, for `KIND_FIELDS`."""


def genesis(project: Mapping[str, Any]) -> bytes:
    """Return the hash before the first charge: that of `TERMS_FIELDS`."""
    return _sha256("terrine/terms/1", *(project[name] for name in TERMS_FIELDS))


def charge_hash(previous: bytes, charge: Mapping[str, Any]) -> bytes:
    """Return the hash of a charge: that of the previous hash, `CHARGE_FIELDS` and any counts."""
    fields = frame("terrine/charge/1", previous, *(charge[name] for name in CHARGE_FIELDS))
    return hashlib.sha256(fields + frame_counts(charge.get("counts"))).digest()


@lru_cache(maxsize=1024)
def hasher(project_id: int) -> Callable[[bytes, int, str, bytes, bytes, bytes], bytes]:
    """Return a function that hashes one project's charges like `charge_hash`, but much faster.

    It takes the previous hash, the number, the time in the format of `iso`, both digests (32 bytes
    each) and the frame of `KIND_FIELDS`, which callers compute once for all charges that share it,
    followed by `frame_counts`.
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
            start,
            previous,
            owner,
            length,
            number,
            time,
            instant,
            digest,
            query,
            digest,
            input,
            kind,
        )
        return sha256(join(parts)).digest()

    return hashed


def follows(previous: bytes, charge: Mapping[str, Any]) -> bool:
    """Whether a charge's `hash` matches its other columns and the previous hash."""
    kind = frame_kind(*(charge[name] for name in KIND_FIELDS))
    digests = charge["query_digest"], charge["input_digest"]
    hashed = hasher(charge["project_id"])
    time = iso(charge["created_at"])
    kind += frame_counts(charge["counts"])
    return bool(hashed(previous, charge["seq"], time, *digests, kind) == charge["hash"])


def publication_digest(genesis: str, number: int) -> bytes:
    """Return the digest that a publication, numbered from 0, has in place of a query's."""
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
            # Damaged text from SQLite has surrogates in place of the bytes that cannot be decoded.
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
