"""The administrative log: its entries, their hashes, and what they say about rows. Pure.

An entry says who did what to which subject, and when. Entry k's hash covers entry k-1's hash and
every other column of entry k, framed as in `chain`. An entry about a population, an ensemble, an
edition of one, a project, a token or a request has all of its `FACTS` as they were then, so the
last entry about it says how it must be now.
"""

from __future__ import annotations

import getpass
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from terrine_server.ledger.chain import canonical_json, frame, iso

LOG_FIELDS = ("seq", "created_at", "actor", "request_id", "action", "subject", "detail")
"""Every column of an entry except its hash, in the order in which they are hashed."""

START = hashlib.sha256(frame("terrine/log-start/1")).digest()
"""The hash before the first entry."""


class Action(StrEnum):
    """What was done."""

    LEDGER_INITIALISED = "ledger-initialised"
    LEDGER_SEALED = "ledger-sealed"
    LEDGER_RESTORED = "ledger-restored"
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
    REQUEST_MADE = "request-made"
    REQUEST_APPROVED = "request-approved"
    REQUEST_REFUSED = "request-refused"
    REQUEST_ADOPTED = "request-adopted"
    FIGURE_PUBLISHED = "figure-published"
    LEDGER_EXPORTED = "ledger-exported"
    SPEND_SHOWN = "spend-shown"
    SIGNED_IN = "signed-in"
    SIGNED_OUT = "signed-out"


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
    "request": (
        "token",
        "token_project",
        "ensemble",
        "title",
        "purpose",
        "asked",
        "status",
        "project",
        "reason",
        "created_at",
        "decided_at",
    ),
}
"""By kind of subject: what an entry about it says. The `subject` of a population, an ensemble and a
project is its name, an edition's `ENSEMBLE/NUMBER`, a token's and a request's its id. How many
slots an edition has, and whose it emptied, is in no entry."""

ABOUT = {
    kind: tuple(str(action) for action in Action if action.startswith(f"{kind}-")) for kind in FACTS
}
"""By kind of subject: the actions whose entries have its facts."""


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
    return {name: _plain(row[name]) for name in FACTS[kind]}


def facts_text(kind: str, row: Mapping[Any, Any]) -> str:
    """Return the `detail` of an entry about a row."""
    return canonical_json(facts(kind, row))


def log_hash(previous: bytes, entry: Mapping[Any, Any]) -> bytes:
    """Return the hash of an entry: that of the previous hash and `LOG_FIELDS`."""
    fields = (entry[name] for name in LOG_FIELDS)
    return hashlib.sha256(frame("terrine/log/1", previous, *fields)).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    return value.hex() if isinstance(value, bytes) else value
