"""Bearer tokens: 256 random bits, shown once, stored as a keyed hash.

A token has the form `terrine_<id>_<secret>`. The id finds it in the database; its HMAC-SHA256 under
the server's secret key proves it. Without that key, a copy of the database gives no access.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Protocol

import structlog

from terrine_protocol import LogEntry, Role, TokenCreate, TokenCreated
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import read, write_secret
from terrine_server.errors import (
    DatabaseUnavailable,
    Forbidden,
    InvalidQuery,
    LedgerCorrupted,
    NotFound,
    Unauthorized,
)
from terrine_server.ledger import Action, Actor, Ledger, NewToken, TokenRecord
from terrine_server.settings import Settings

log = structlog.get_logger("terrine")

TOKEN = re.compile(r"terrine_([0-9a-f]{16})_[0-9a-f]{64}")
# How long a token for metrics is remembered that the database has confirmed.
MAX_SCRAPER_AGE_SECONDS = 86_400.0
# Tokens for metrics that are remembered.
MAX_SCRAPERS = 16
MIN_KEY_BYTES = 32


class SecretKeyError(TerrineError):
    """The secret key is missing or too short; the message says what to do."""


@dataclass(frozen=True)
class Principal:
    """The caller: the token's id, its role and, for a student, its one project.

    `record`: the token's row as it was read, so that what is read next can show whether it still
    is so (`Charging.look_up`). None for a session that has no token.
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
        self._scrapers: dict[bytes, tuple[Principal, float]] = {}

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
        record = self._ledger.tokens.create(new, by)
        return TokenCreated.model_validate({**vars(record), "token": token})

    def authenticate(self, token: str) -> Principal:
        """Return the token's principal. Raises `Unauthorized` when the token is not valid now.

        A token whose row was edited is not valid; the log says what was found.
        """
        match = TOKEN.fullmatch(token)
        record = self._find(match[1]) if match else None
        if record is None or not hmac.compare_digest(record.hash, self._hash(token)):
            raise Unauthorized("The bearer token is unknown. Ask the data owner for one.")
        return _principal(record)

    def authenticate_scraper(self, token: str) -> Principal:
        """Like `authenticate`, for metrics; without the database, from what it said before.

        Otherwise metrics could not tell that there is no database. What is kept, for a day at most,
        is the token's keyed hash, and only if its role is `metrics`, which opens nothing else. A
        token that has expired meanwhile is not valid; that it was revoked only the database knows.
        """
        hash = self._hash(token)
        try:
            found = self.authenticate(token)
        except DatabaseUnavailable:
            known, confirmed = self._scrapers.get(hash, (None, 0.0))
            old = time.monotonic() - confirmed > MAX_SCRAPER_AGE_SECONDS
            if known is None or old or known.expires_at <= datetime.now(UTC):
                raise
            return known
        except Unauthorized:
            self._scrapers.pop(hash, None)
            raise
        if found.role is Role.METRICS:
            kept = {**self._scrapers, hash: (found, time.monotonic())}
            newest = sorted(kept, key=lambda each: kept[each][1])[-MAX_SCRAPERS:]
            self._scrapers = {each: kept[each] for each in newest}
        return found

    def principal_of(self, token_id: str) -> Principal:
        """Return the principal of a token that was authenticated before.

        Raises `Unauthorized` when the token is not valid now.
        """
        record = self._find(token_id)
        if record is None:
            raise Unauthorized("The token of this session is unknown.")
        return _principal(record)

    def _find(self, token_id: str) -> TokenRecord | None:
        try:
            return self._ledger.tokens.find(token_id)
        except LedgerCorrupted as error:
            log.error("token refused", cause=str(error))
            return None

    def _hash(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(), "sha256")


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
        raise _lost_key(path, f"cannot be read ({error.strerror})", "") from None
    if len(key) < MIN_KEY_BYTES:
        holds = f"holds {len(key)} bytes; at least {MIN_KEY_BYTES} are needed"
        raise _lost_key(path, holds, "remove that file, then ")
    return key


def _lost_key(path: Path, what: str, first: str) -> SecretKeyError:
    return SecretKeyError(
        f"The secret key {path} {what}. Put back the key that the ledger was sealed with: without "
        "it every token is void, no backup can be restored, and the ledger opens only to who takes "
        "it as it is (docs/ledger.md, Seals). Where there is no ledger yet, "
        f"{first}run `terrine init`."
    )


def load_token_key(settings: Settings) -> bytes:
    """Read the key of token hashes: the first secret key that there was. Raises `SecretKeyError`.

    A hash cannot be made anew without its token, so tokens would be void with every new secret key.
    Their rows are sealed with the secret key of now: who knows the first one can make no token.
    """
    first = settings.token_key_path
    if not first.exists():
        return load_secret_key(settings.secret_key_path)
    try:
        return bytes.fromhex(read(first).decode())
    except (OSError, ValueError):
        raise SecretKeyError(
            f"{first}, the key of tokens from before the secret key was replaced, cannot be read. "
            "Put it back from a backup, or remove it and make new tokens."
        ) from None


def keep_token_key(settings: Settings, old_key: bytes) -> None:
    """Keep the secret key that is about to be replaced for the hashes of tokens: the first one."""
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_secret(settings.token_key_path, old_key.hex())


def make_secret_key(path: Path) -> bool:
    """Write a new secret key that only its owner may read; return False if one exists."""
    return write_secret(path, secrets.token_hex(32))


# A session ends when nothing was asked with it for so long.
MAX_IDLE = timedelta(minutes=30)
# A session ends so long after it began, whatever is asked with it.
MAX_SESSION_LIFE = timedelta(hours=12)
# A time of ten digits is in the year 2286 at the latest: any is an instant.
COOKIE = re.compile(
    r"(([0-9a-f]{16})\.((?:admin-|auditor-)?[0-9a-f]{16})\.([0-9]{1,10})\.([0-9]{1,10}))\.([0-9a-f]{64})"
)
FLOW = re.compile(r"([0-9a-f]{32})\.([0-9]{1,10})")
# What is in a form that makes something, and in no other.
ONCE = re.compile(r"[0-9a-f]{32}")
# How long somebody may take to sign in at the issuer.
MAX_FLOW_LIFE = timedelta(minutes=10)
# How long tokens last at the most that are made by somebody who signed in through an issuer.
MAX_TOKEN_LIFE = timedelta(days=90)


@dataclass(frozen=True, kw_only=True)
class Session(Principal):
    """A caller who signed in. `seen`: when it was last asked with, as its cookie says.

    `who`: how the administrative log names the caller. `holder`: what the cookie stands for.
    """

    id: str
    started: datetime
    seen: datetime
    who: str
    holder: str

    @property
    def actor(self) -> Actor:
        """How the administrative log names the caller."""
        return Actor(self.who, self.request_id)

    @property
    def shown(self) -> str:
        """How a page names the caller."""
        kind, _, name = self.who.partition(":")
        return f"{name[:6]}…" if kind == "token" else name.partition(" (")[2][:-1] or name


@dataclass(frozen=True)
class SignInAttempt:
    """One attempt to sign in: what the issuer must repeat, and what it must not know yet."""

    state: str
    nonce: str
    verifier: str


@dataclass(frozen=True)
class Identity:
    """Who signed in, as what.

    `who`: how the administrative log names them, as `KIND:SUBJECT (NAME)`: what kind of issuer it
    is, its own, permanent name of them, and a name that is shown, if there is one.
    """

    who: str
    role: Role


class Issuer(Protocol):
    """Who says who signs in. An add-on has one."""

    url: str
    """By which it is known."""
    host: str
    """By which pages name it."""
    start: str
    """The path of the page, below those of admins, that sends a browser there."""

    def address(self, flow: SignInAttempt) -> str:
        """Return where to send the browser."""

    def identify(self, flow: SignInAttempt, code: str, said: str | None) -> Identity:
        """Return who signed in, of the answer to an attempt. Raises Unauthorized, Forbidden."""


@dataclass(frozen=True)
class OpenSession:
    """A session that has not been ended: as its sign-in was recorded."""

    id: str
    who: str
    role: str
    started: datetime


class _SessionLog:
    """What the administrative log says last of each session that may go on.

    Entries are trusted once their hashes lead to the log's sealed end
    (`AdministrativeLog.list_since`), and are then kept: an edit of one that was read changes
    nothing, and of another is an error.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = Lock()
        self._read: tuple[int, str | None] | None = None
        self._last: dict[str, LogEntry] = {}

    def last_entries(self) -> dict[str, LogEntry]:
        """Return the last entry about each session, by id, in order. Raises LedgerCorrupted."""
        since = datetime.now(UTC) - MAX_SESSION_LIFE
        with self._lock:
            place = self._read or (self._ledger.log.last_before(since), None)
            try:
                entries = self._ledger.log.list_since(*place)
            except LedgerCorrupted:
                self._read, self._last = None, {}  # the ledger may have been replaced
                raise
            last = {id: entry for id, entry in self._last.items() if entry.created_at >= since}
            for entry in entries:
                place = entry.seq, entry.hash
                if entry.action in (Action.SIGNED_IN, Action.SIGNED_OUT):
                    last.pop(entry.subject, None)
                    last[entry.subject] = entry
            self._read, self._last = place, last
            return last


class Sessions:
    """Begins, resumes and ends sessions."""

    def __init__(
        self, ledger: Ledger, tokens: Tokens, key: bytes, issuer: Issuer | None = None
    ) -> None:
        self.issuer = issuer
        self._ledger = ledger
        self._tokens = tokens
        self._key = hmac.digest(key, b"terrine/session/1", "sha256")
        self._log = _SessionLog(ledger)

    def sign_in(self, token: str, request_id: str) -> Session:
        """Begin a session. Raises Unauthorized, and Forbidden for a token of another role than
        admin or auditor.
        """
        holder = replace(self._tokens.authenticate(token.strip()), request_id=request_id)
        if holder.role not in (Role.ADMIN, Role.AUDITOR):
            raise Forbidden(
                f"This is a token of role {holder.role}. These pages are for the data owner and "
                "for auditors."
            )
        session, now = secrets.token_hex(8), datetime.now(UTC)
        self._ledger.log.record(Action.SIGNED_IN, session, {"role": holder.role}, holder.actor)
        return _of_token(holder, session, now, now)

    def begin_flow(self) -> tuple[str, SignInAttempt]:
        """Begin a sign-in through the issuer: what the browser keeps, and what the issuer gets."""
        cookie = f"{secrets.token_hex(16)}.{int(datetime.now(UTC).timestamp())}"
        return cookie, self._flow(cookie)

    def sign_in_through_issuer(
        self, issuer: Issuer, cookie: str | None, answer: Mapping[str, str], request_id: str
    ) -> Session:
        """Begin the session of whom the issuer's answer is about. See `Issuer.identify`.

        `cookie`: what `begin_flow` gave the browser. A flow is good for one session, on every
        replica: the session's id follows from it. Raises Unauthorized, Forbidden and
        IssuerError.
        """
        match, now = FLOW.fullmatch(cookie or ""), datetime.now(UTC)
        if cookie is None or match is None:
            raise Unauthorized("This sign-in was not begun in this browser. Start again.")
        if now - datetime.fromtimestamp(int(match[2]), UTC) >= MAX_FLOW_LIFE:
            raise Unauthorized("This sign-in took too long. Start again.")
        flow, session = self._flow(cookie), self._seal("session", cookie)[:16]
        if not hmac.compare_digest(answer.get("state", "").encode(), flow.state.encode()):
            raise Unauthorized("This is the answer to another sign-in. Start again.")
        if "code" not in answer:
            raise Unauthorized(f"{issuer.host} did not sign you in. Start again, or use a token.")
        if session in self._log.last_entries():
            raise Unauthorized("This sign-in was used before. Start again.")
        found = issuer.identify(flow, answer["code"], answer.get("iss"))
        detail = {"role": found.role, "issuer": issuer.url}
        self._ledger.log.record(Action.SIGNED_IN, session, detail, Actor(found.who, request_id))
        holder = f"{found.role}-{_digest(issuer.url, found.who)}"
        return _of_issuer(holder, found.who, session, now, now)

    def _flow(self, cookie: str) -> SignInAttempt:
        """Only who has the secret key can say what belongs to a cookie, so it has no seal."""
        return SignInAttempt(*(self._seal(part, cookie) for part in ("state", "nonce", "verifier")))

    def resume(self, cookie: str) -> Session:
        """Return the session of a cookie. Raises Unauthorized when it has ended."""
        match = COOKIE.fullmatch(cookie)
        if match is None or not hmac.compare_digest(match[6], self._seal("cookie", match[1])):
            raise Unauthorized("This is not a session of this server. Sign in again.")
        session, holder = match[2], match[3]
        started, seen = (datetime.fromtimestamp(int(at), UTC) for at in (match[4], match[5]))
        now = datetime.now(UTC)
        if now - seen >= MAX_IDLE or now - started >= MAX_SESSION_LIFE:
            raise Unauthorized("Your session has ended because of its age. Sign in again.")
        last = self._log.last_entries().get(session)
        if last is not None and last.action != Action.SIGNED_IN:
            last = None
        if "-" in holder:
            url = "" if self.issuer is None else self.issuer.url
            if last is None or holder.partition("-")[2] != _digest(url, last.actor):
                raise Unauthorized("Your session was ended.")
            return _of_issuer(holder, last.actor, session, started, seen)
        principal = self._tokens.principal_of(holder)
        if last is None or last.actor != principal.actor.who:
            raise Unauthorized("You have signed out.")
        return _of_token(principal, session, started, seen)

    def open_sessions(self) -> list[OpenSession]:
        """Return the sessions that have not been ended and are not too old, the newest first.

        Whether they were used lately, or their tokens are valid, only their next request shows.
        """
        return [
            OpenSession(each.subject, each.actor, str(each.detail.get("role")), each.created_at)
            for each in reversed(self._log.last_entries().values())
            if each.action == Action.SIGNED_IN
        ]

    def end(self, id: str, by: Actor) -> None:
        """End a session of anyone's, on every replica. Raises NotFound if there is none."""
        for each in self.open_sessions():
            if each.id == id:
                self._ledger.log.record(Action.SIGNED_OUT, id, {"role": each.role}, by)
                return
        raise NotFound(f"No session {id} is open.")

    def sign_out(self, session: Session) -> None:
        """End a session, on every replica."""
        self._ledger.log.record(
            Action.SIGNED_OUT, session.id, {"role": session.role}, session.actor
        )

    def cookie(self, session: Session) -> str:
        """Return the cookie of a session that is used now."""
        started, seen = int(session.started.timestamp()), int(datetime.now(UTC).timestamp())
        content = f"{session.id}.{session.holder}.{started}.{seen}"
        return f"{content}.{self._seal('cookie', content)}"

    def form_key(self, visit: str) -> str:
        """Return what a form must contain that was made for a session, or for a visit without."""
        return self._seal("form", visit)

    def idempotency_id(self, session: Session, once: str) -> str:
        """Return the id of what a form makes, which was sent in a session and is good `once`.

        The database takes an id once, so a form that is sent again makes nothing, on any replica.
        Raises InvalidQuery unless `once` is what a page of ours put into the form.
        """
        if not ONCE.fullmatch(once):
            raise InvalidQuery("The form is not complete. Load the page again, and retry.")
        return self._seal("made", f"{session.id}.{once}")[:16]

    def _seal(self, what: str, content: str) -> str:
        return hmac.digest(self._key, f"{what}:{content}".encode(), "sha256").hex()


def _of_token(holder: Principal, id: str, started: datetime, seen: datetime) -> Session:
    return Session(
        token_id=holder.token_id,
        role=holder.role,
        project=holder.project,
        expires_at=holder.expires_at,
        request_id=holder.request_id,
        id=id,
        started=started,
        seen=seen,
        who=holder.actor.who,
        holder=holder.token_id,
    )


def _of_issuer(holder: str, who: str, id: str, started: datetime, seen: datetime) -> Session:
    role, _, digest = holder.partition("-")
    return Session(
        token_id=digest,  # of which requests are counted
        role=Role(role),
        project=None,
        expires_at=started + MAX_TOKEN_LIFE,
        id=id,
        started=started,
        seen=seen,
        who=who,
        holder=holder,
    )


def _digest(issuer: str, who: str) -> str:
    """Return a digest of issuer and subject, whatever the name that is shown with it."""
    subject = who.partition(" ")[0]
    return hashlib.sha256(f"{issuer} {subject}".encode()).hexdigest()[:16]
