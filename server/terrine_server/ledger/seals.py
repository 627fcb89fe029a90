"""Seals: keyed hashes of rows. Whoever lacks the server's secret key cannot write a valid one.

Charges are chained by hashes that anyone can compute, so that anyone can check them. What else the
service believes (balances, statuses, tokens, requests, caps, tallies, accounts of units and
shadows, editions, who paid for what, the end of the administrative log) has a seal in its row:
HMAC-SHA256 over the row's other columns, framed as in `chain`, under a key that is derived from the
secret key. A project's seal covers the hash of its terms and that of its last charge, and thereby
all of its charges.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from terrine_server.ledger.chain import frame, iso

SEALED: dict[str, tuple[str, ...]] = {
    "populations": (
        "id",
        "name",
        "epsilon",
        "delta",
        "rdp_order",
        "cap",
        "delta_cap",
        "reserved",
        "delta_reserved",
        "disjoint_from",
        "declared_at",
    ),
    "ensembles": (
        "id",
        "name",
        "population_id",
        "path",
        "manifest_sha256",
        "info",
        "units",
        "registered_at",
    ),
    # The terms are in `genesis`, and every charge is in `head`. Title and purpose are in the log.
    "projects": (
        "id",
        "name",
        "genesis",
        "status",
        "closed_at",
        "spent",
        "delta_spent",
        "cap_spent",
        "charges",
        "published",
        "head",
    ),
    "payments": ("project_id", "first_seq", "last_seq", "token_id"),
    "secret_spends": ("project_id", "charges", "tally"),
    "unit_accounts": ("project_id", "charges", "head", "filled", "accounts"),
    "shadow_accounts": ("project_id", "charges", "head", "accounts"),
    "editions": (
        "ensemble_id",
        "number",
        "manifest_sha256",
        "units",
        "slots",
        "erased",
        "begins",
        "made_at",
    ),
    "tokens": (
        "id",
        "role",
        "project_id",
        "label",
        "hash",
        "created_at",
        "expires_at",
        "revoked_at",
    ),
    "requests": (
        "id",
        "token_id",
        "ensemble_id",
        "title",
        "purpose",
        "asked",
        "status",
        "project_id",
        "reason",
        "created_at",
        "decided_at",
    ),
    "log_head": ("key_check", "entries", "head"),
}
"""By table: the columns that a row's seal covers, in order."""


class Seals:
    """Makes and checks seals under the server's secret key."""

    def __init__(self, secret_key: bytes) -> None:
        self._key = hmac.digest(secret_key, b"terrine/seals/1", "sha256")
        self.key_check = hmac.digest(self._key, b"terrine/key-check/1", "sha256")
        """Tells whether a ledger is sealed with this key; reveals nothing about it."""

    def of(self, table: str, row: Mapping[Any, Any]) -> bytes:
        """Return the seal of a row of a table. Raises TypeError for a value never written."""
        return self.over(table, [row[name] for name in SEALED[table]])

    def over(self, table: str, values: Sequence[Any]) -> bytes:
        """Return the seal of a row by the values that it covers, in order. Raises TypeError."""
        # A time may come as SQLite's text.
        fields = [iso(value) if isinstance(value, datetime) else value for value in values]
        return hmac.digest(self._key, frame(f"terrine/seal/{table}/1", *fields), "sha256")

    def sealed(self, table: str, row: Mapping[Any, Any]) -> dict[str, Any]:
        """Return a row with its seal."""
        return {**row, "seal": self.of(table, row)}

    def check(self, table: str, row: Mapping[Any, Any]) -> None:
        """Raise ValueError or TypeError unless a row has its seal."""
        if not hmac.compare_digest(row["seal"], self.of(table, row)):
            raise ValueError("its seal is not the one that this server's key makes")
