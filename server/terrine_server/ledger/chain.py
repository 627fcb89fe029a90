"""Canonical bytes and the hash chain.

Entry k's hash is SHA-256 over entry k-1's hash and every other column of entry k; noisy counts are
hashed by their own SHA-256, and only where there are any. The chain starts from the hash of the
project's immutable terms. So altering an entry, or the terms that it was priced under, invalidates
every later hash.

Each field is encoded as one tag byte, the payload's length as eight big-endian bytes, and the
payload. No two different sequences of fields have the same encoding.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from terrine_server.privacy import GaussianNoisyCounts, NeighbourCounts, event_from_json

Field = str | bytes | int | float | datetime | None

# Every column of a charge except its hash and its noisy counts, in the order in which they are
# hashed. If there are counts, their SHA-256 comes after these.
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

# The columns whose values many charges share: the outcome, its price, and what explains it.
KIND_FIELDS = CHARGE_FIELDS[5:]

# What is fixed when a project is opened, including its ensemble's cap, in hashing order.
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


def canonical_json(value: object) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text.

    It is kept as text, since PostgreSQL's own JSON would give back other bytes than were hashed.
    """
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


# `frame`, cached, for `KIND_FIELDS`.
frame_kind = lru_cache(maxsize=1024, typed=True)(frame)


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


def hash_matches(previous: bytes, charge: Mapping[str, Any]) -> bool:
    """Whether a charge's `hash` matches its other columns and the previous hash."""
    return bool(charge_hash(previous, charge) == charge["hash"])


def publication_digest(genesis: str, number: int) -> bytes:
    """Return the digest that a publication, numbered from 0, has in place of a query's."""
    return _sha256("terrine/publication/1", bytes.fromhex(genesis), number)


def release_digest(genesis: str) -> bytes:
    """Return the digest that what a project begins with has in place of a query's."""
    return _sha256("terrine/release/1", bytes.fromhex(genesis))


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


Counts = tuple[int, ...]


def sigma_of_counts(events: Mapping[str, Any]) -> dict[str, float]:
    """Return, by a project's cost events, the outcomes that come with noisy counts, and the σ of
    the noise in these, in votes."""
    return {
        str(outcome): event.sigma
        for outcome, event in zip(events, map(event_from_json, events.values()), strict=True)
        if isinstance(event, GaussianNoisyCounts | NeighbourCounts)
    }


def check_counts(counts: Counts | None, label: int | None, due: int | None) -> None:
    """Raise ValueError unless an answer with this label may come with these counts.

    `due`: how many counts there must be; None where there must be none.
    """
    if (counts is None) != (due is None):
        raise ValueError("an answer has noisy counts where they are charged for, and only there")
    if counts is not None and len(counts) != due:
        raise ValueError("noisy counts are one for each class")
    if counts is not None and counts.index(max(counts)) != label:
        raise ValueError("the label is not the first class with the largest of its noisy counts")


def counts_as_text(counts: Counts | None) -> str | None:
    """Return the text that counts are kept as."""
    return None if counts is None else canonical_json(list(counts))


def counts_from_text(text: str | None) -> Counts | None:
    """The inverse of `counts_as_text`. ValueError or TypeError for what it never writes."""
    return None if text is None else whole_numbers(json.loads(text))


def whole_numbers(value: object) -> Counts:
    """Return counts from what JSON made of them. TypeError unless it is a list of whole numbers."""
    if not isinstance(value, list) or any(type(count) is not int for count in value):
        raise TypeError("noisy counts are a list of whole numbers")
    return tuple(value)


# Every column of an entry except its hash, in the order in which they are hashed.
LOG_FIELDS = ("seq", "created_at", "actor", "request_id", "action", "subject", "detail")

# The hash before the first entry.
LOG_START = hashlib.sha256(frame("terrine/log-start/1")).digest()


class Action(StrEnum):
    """What was done."""

    LEDGER_INITIALISED = "ledger-initialised"
    LEDGER_SEALED = "ledger-sealed"
    LEDGER_RESTORED = "ledger-restored"
    LEDGER_LOST = "ledger-lost"
    CAP_REDUCED = "cap-reduced"
    CHARGES_LOST = "charges-lost"
    KEY_CHANGED = "key-changed"
    POPULATION_DECLARED = "population-declared"
    POPULATION_ADOPTED = "population-adopted"
    ENSEMBLE_REGISTERED = "ensemble-registered"
    ENSEMBLE_ADOPTED = "ensemble-adopted"
    EDITION_MADE = "edition-made"
    EDITION_ADOPTED = "edition-adopted"
    PROJECT_OPENED = "project-opened"
    PROJECT_RESUMED = "project-resumed"
    PROJECT_PAUSED = "project-paused"
    PROJECT_CLOSED = "project-closed"
    PROJECT_ADOPTED = "project-adopted"
    MAINTENANCE_BEGUN = "maintenance-begun"
    MAINTENANCE_ENDED = "maintenance-ended"
    ACCOUNTS_FILLED = "accounts-filled"
    TOKEN_CREATED = "token-created"  # noqa: S105 - no password
    TOKEN_REVOKED = "token-revoked"  # noqa: S105 - no password
    TOKEN_ADOPTED = "token-adopted"  # noqa: S105 - no password
    FIGURE_PUBLISHED = "figure-published"
    LEDGER_EXPORTED = "ledger-exported"
    SPEND_SHOWN = "spend-shown"
    SIGNED_IN = "signed-in"
    SIGNED_OUT = "signed-out"


# By kind of subject: what an entry about it says. The `subject` of a population, an ensemble and a
# project is its name, an edition's `ENSEMBLE/NUMBER`, a token's its id. How many slots an edition
# has, and whose it emptied, is in no entry.
FACTS: dict[str, tuple[str, ...]] = {
    "population": (
        "epsilon",
        "delta",
        "rdp_order",
        "cap",
        "delta_cap",
        "disjoint_from",
        "declared_at",
    ),
    "ensemble": ("population", "path", "manifest_sha256", "units", "registered_at"),
    "edition": ("manifest_sha256", "units", "made_at"),
    "project": (
        "ensemble",
        "status",
        "title",
        "purpose",
        "budget",
        "delta_budget",
        "cap_budget",
        "genesis",
        "opened_at",
        "closed_at",
    ),
    "token": ("role", "project", "label", "created_at", "expires_at", "revoked_at"),
}

# By kind of subject: the actions whose entries have its facts.
ACTIONS_ABOUT = {
    kind: tuple(str(action) for action in Action if action.startswith(f"{kind}-")) for kind in FACTS
}


@dataclass(frozen=True)
class Actor:
    """Who does something: `token:ID` or `oidc:SUBJECT (NAME)`, with the id of the request, or
    `local:USER`."""

    who: str
    request_id: str | None = None


def local_actor() -> Actor:
    """Return the account that this process runs as."""
    try:
        return Actor(f"local:{getpass.getuser()}")
    except (KeyError, OSError):  # a container's account may have a number only
        return Actor(f"local:{os.getuid()}")


def facts(kind: str, row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what an entry says about a row, as JSON values."""
    return {name: plain_value(row[name]) for name in FACTS[kind]}


def facts_text(kind: str, row: Mapping[Any, Any]) -> str:
    """Return the `detail` of an entry about a row."""
    return canonical_json(facts(kind, row))


def log_hash(previous: bytes, entry: Mapping[Any, Any]) -> bytes:
    """Return the hash of an entry: that of the previous hash and `LOG_FIELDS`."""
    fields = (entry[name] for name in LOG_FIELDS)
    return hashlib.sha256(frame("terrine/log/1", previous, *fields)).digest()


def plain_value(value: Any) -> Any:
    """Return a value of a row as JSON has it: an instant by `iso`, bytes in hex."""
    if isinstance(value, datetime):
        return iso(value)
    return value.hex() if isinstance(value, bytes) else value
