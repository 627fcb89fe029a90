"""Sessions of the pages: a token is shown once, and then a cookie stands for it.

A cookie is `<session>.<token id>.<started>.<seen>.<seal>`, times in seconds since 1970. The seal is
an HMAC-SHA256 under a key that is derived from the server's secret key, so every replica accepts
every cookie and keeps nothing in memory. The administrative log says when a session began and
ended; one that it does not say began, or says ended, is refused. So is one whose token is not valid
any more: the token is looked up for every request.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from terrine_protocol import Role
from terrine_server.errors import Forbidden, Unauthorized
from terrine_server.ledger import Action, Ledger
from terrine_server.owner.tokens import Principal, Tokens

IDLE = timedelta(minutes=30)
"""A session ends when nothing was asked with it for so long."""
LONGEST = timedelta(hours=12)
"""A session ends so long after it began, whatever is asked with it."""
COOKIE = re.compile(r"(([0-9a-f]{16})\.([0-9a-f]{16})\.(\d{1,12})\.(\d{1,12}))\.([0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class Session(Principal):
    """A caller who signed in. `seen`: when it was last asked with, as its cookie says."""

    id: str
    started: datetime
    seen: datetime


class Sessions:
    """Begins, resumes and ends sessions."""

    def __init__(self, ledger: Ledger, tokens: Tokens, key: bytes) -> None:
        self._ledger = ledger
        self._tokens = tokens
        self._key = hmac.digest(key, b"terrine/session/1", "sha256")

    def sign_in(self, token: str, request_id: str) -> Session:
        """Begin a session. Raises Unauthorized, and Forbidden for a student's token."""
        holder = replace(self._tokens.authenticate(token.strip()), request_id=request_id)
        if holder.role is Role.STUDENT:
            raise Forbidden(
                "This is a student's token. These pages are for the data owner and for auditors."
            )
        session, now = secrets.token_hex(8), datetime.now(UTC)
        self._ledger.note(Action.SIGNED_IN, session, {"role": holder.role}, holder.actor)
        return _session(holder, session, now, now)

    def resume(self, cookie: str) -> Session:
        """Return the session of a cookie. Raises Unauthorized when it has ended."""
        match = COOKIE.fullmatch(cookie)
        if match is None or not hmac.compare_digest(match[6], self._seal("cookie", match[1])):
            raise Unauthorized("This is no session of this server. Sign in again.")
        session, token_id = match[2], match[3]
        started, seen = (datetime.fromtimestamp(int(at), UTC) for at in (match[4], match[5]))
        now = datetime.now(UTC)
        if now - seen >= IDLE or now - started >= LONGEST:
            raise Unauthorized("Your session has ended because of its age. Sign in again.")
        holder = self._tokens.recall(token_id)
        last = self._ledger.last_about(session)
        if last is None or (last.action, last.actor) != (Action.SIGNED_IN, holder.actor.who):
            raise Unauthorized("You have signed out.")
        return _session(holder, session, started, seen)

    def sign_out(self, session: Session) -> None:
        """End a session, on every replica."""
        self._ledger.note(Action.SIGNED_OUT, session.id, {"role": session.role}, session.actor)

    def cookie(self, session: Session) -> str:
        """Return the cookie of a session that is used now."""
        started, seen = int(session.started.timestamp()), int(datetime.now(UTC).timestamp())
        content = f"{session.id}.{session.token_id}.{started}.{seen}"
        return f"{content}.{self._seal('cookie', content)}"

    def form_key(self, visit: str) -> str:
        """Return what a form must contain that was made for a session, or for a visit without."""
        return self._seal("form", visit)

    def _seal(self, what: str, content: str) -> str:
        return hmac.digest(self._key, f"{what}:{content}".encode(), "sha256").hex()


def _session(holder: Principal, id: str, started: datetime, seen: datetime) -> Session:
    return Session(
        token_id=holder.token_id,
        role=holder.role,
        project=holder.project,
        expires_at=holder.expires_at,
        request_id=holder.request_id,
        id=id,
        started=started,
        seen=seen,
    )
