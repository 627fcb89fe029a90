"""Bearer tokens: 256 random bits, shown once, stored as a keyed hash.

A token has the form `terrine_<id>_<secret>`. The id finds it in the database; its HMAC-SHA256 under
the server's secret key proves it. Without that key, a copy of the database gives no access.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from terrine_protocol import Role, TokenCreate, TokenCreated
from terrine_protocol.files import read, write_secret
from terrine_server.errors import Forbidden, LedgerCorrupted, Unauthorized
from terrine_server.ledger import Actor, Ledger, NewToken, TokenRecord

log = structlog.get_logger("terrine")

TOKEN = re.compile(r"terrine_([0-9a-f]{16})_[0-9a-f]{64}")
MIN_KEY_BYTES = 32


class SecretKeyError(Exception):
    """The secret key is missing or too short; the message says how to make one."""


@dataclass(frozen=True)
class Principal:
    """The caller: the token's id, its role and, for a student, its one project.

    `record`: the token's row as it was read, in case what is read next shall show whether it still
    is so (`Ledger.look_up`). None for a session that has no token.
    """

    token_id: str
    role: Role
    project: str | None
    expires_at: datetime
    request_id: str | None = None
    record: TokenRecord | None = field(default=None, repr=False)

    @property
    def actor(self) -> Actor:
        """How the administrative log names the caller."""
        return Actor(f"token:{self.token_id}", self.request_id)


class Tokens:
    """Creates and authenticates tokens."""

    def __init__(self, ledger: Ledger, key: bytes) -> None:
        self._ledger = ledger
        self._key = key

    def create(
        self,
        request: TokenCreate,
        by: Actor | None = None,
        until: datetime | None = None,
        id: str | None = None,
    ) -> TokenCreated:
        """Create a token. Only this response ever contains it.

        until: when it expires at the latest. Raises `Forbidden` if a longer life was asked for,
        and `Conflict` if there is one with this `id` (16 hexadecimal digits) already.
        """
        new, token = self.draw(request, until, id)
        return shown_once(self._ledger.create_token(new, by), token)

    def draw(
        self, request: TokenCreate, until: datetime | None = None, id: str | None = None
    ) -> tuple[NewToken, str]:
        """Return a new token, which is stored nowhere yet, and its secret; see `create`."""
        expires_at = datetime.now(UTC) + timedelta(days=request.expires_in_days)
        if until is not None and expires_at > until:
            if "expires_in_days" in request.model_fields_set:
                raise Forbidden(
                    f"What you signed in with lasts until {until:%Y-%m-%d %H:%M} UTC, and "
                    "makes none that lasts longer. The data owner can, with `terrine token create`."
                )
            expires_at = until
        token_id = secrets.token_hex(8) if id is None else id
        token = f"terrine_{token_id}_{secrets.token_hex(32)}"
        new = NewToken(
            id=token_id,
            hash=self._hash(token),
            role=request.role,
            project=request.project,
            label=request.label,
            expires_at=expires_at,
        )
        return new, token

    def authenticate(self, token: str) -> Principal:
        """Return the token's principal. Raises `Unauthorized` when the token is not valid now.

        A token whose row was edited is not valid; the log says what was found.
        """
        match = TOKEN.fullmatch(token)
        record = self._find(match[1]) if match else None
        if record is None or not hmac.compare_digest(record.hash, self._hash(token)):
            raise Unauthorized("The bearer token is unknown. Ask the data owner for one.")
        return _principal(record)

    def recall(self, token_id: str) -> Principal:
        """Return the principal of a token that was authenticated before.

        Raises `Unauthorized` when the token is not valid now.
        """
        record = self._find(token_id)
        if record is None:
            raise Unauthorized("The token of this session is unknown.")
        return _principal(record)

    def _find(self, token_id: str) -> TokenRecord | None:
        try:
            return self._ledger.find_token(token_id)
        except LedgerCorrupted as error:
            log.error("token refused", cause=str(error))
            return None

    def _hash(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(), "sha256")


def shown_once(record: TokenRecord, token: str) -> TokenCreated:
    """Return a token that was stored just now, with its secret."""
    return TokenCreated(
        id=record.id,
        role=record.role,
        project=record.project,
        label=record.label,
        created_at=record.created_at,
        expires_at=record.expires_at,
        token=token,
    )


def _principal(record: TokenRecord) -> Principal:
    """Return the principal of a token. Raises `Unauthorized` when it is not valid now."""
    if record.revoked_at is not None:
        raise Unauthorized("This token was revoked. Ask the data owner for a new one.")
    if record.expires_at <= datetime.now(UTC):
        raise Unauthorized(
            f"This token expired at {record.expires_at:%Y-%m-%d %H:%M} UTC. "
            "Ask the data owner for a new one."
        )
    return Principal(record.id, record.role, record.project, record.expires_at, record=record)


def load_secret_key(path: Path) -> bytes:
    """Read the secret key. Raises `SecretKeyError`, which says what to do."""
    try:
        key = read(path).strip()
    except OSError as error:
        raise SecretKeyError(
            f"The secret key {path} cannot be read ({error.strerror}). Run `terrine init`."
        ) from None
    if len(key) < MIN_KEY_BYTES:
        raise SecretKeyError(
            f"The secret key {path} holds {len(key)} bytes; at least {MIN_KEY_BYTES} are needed. "
            "Make one with `openssl rand -hex 32`."
        )
    return key


def make_secret_key(path: Path) -> bool:
    """Write a new secret key that only its owner may read; return False if one exists."""
    return write_secret(path, secrets.token_hex(32))
