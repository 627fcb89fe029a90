"""How a database fails: how each failure is recognised, and what to tell whom about it.

A driver's error quotes the row, and with it a label not yet paid for, so none is passed on.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, exc
from sqlalchemy.exc import SQLAlchemyError

from terrine_protocol.problems import Reason
from terrine_server.errors import (
    DatabaseStarting,
    DatabaseUnavailable,
    LedgerCorrupted,
    SchemaMismatch,
)

READ_ONLY = "25006"
_NO_RIGHT = "42501"
# Division by zero: how the one statement of a charge fails if a part of it was ignored.
_PARTLY_IGNORED = "22012"
_NO_TABLE = {"42P01", "42703", "3F000"}


@dataclass(frozen=True)
class _Failure:
    """A way in which a database fails: how it is recognised, and what to tell whom about it.

    `states`: PostgreSQL's codes. `words`: of SQLite, and of a connection that PostgreSQL refused,
    of which libpq gives the text alone (in another language than English, it is `_UNKNOWN`).
    `fix` may name the `{place}` of the ledger: a file's path, or PostgreSQL.
    """

    detail: str
    fix: str
    reason: Reason
    states: frozenset[str] = frozenset()
    words: str = "(?!)"

    def explain(self, cause: str = "", path: Path | None = None) -> DatabaseUnavailable:
        """Return the error that says so. `path`: the ledger's file, if it is SQLite's."""
        kind = DatabaseStarting if self.reason == "starting" else DatabaseUnavailable
        fix = self.fix.format(place=f"'{path}'" if path else "PostgreSQL")
        return kind(self.detail, cause, fix=fix, reason=self.reason)


BUSY = _Failure(
    "The ledger is busy.",
    "Retry once what holds it, such as another command of Terrine, has ended; PostgreSQL lists its "
    "sessions in pg_stat_activity.",
    "busy",
    # lock_not_available, query_canceled, deadlock, serialization failure
    states=frozenset({"55P03", "57014", "40P01", "40001"}),
    words="database is locked",
)
SILENT = _Failure(
    "The ledger does not answer.",
    "Look at PostgreSQL's machine and the network; restart it if it hangs.",
    "unreachable",
    words="no reply in time|timeout expired",
)
_FAILURES = (
    BUSY,
    SILENT,
    _Failure(
        "The ledger's database is starting.",
        "Retry in a minute; if it goes on, PostgreSQL's own log says why.",
        "starting",
        states=frozenset({"57P03"}),
        words="the database system is (starting|shutting|in recovery|not (yet )?accepting)",
    ),
    _Failure(
        "PostgreSQL is read-only.",
        "Name the primary in TERRINE_DATABASE_URL; if this is it, RESET "
        "default_transaction_read_only where `\\drds` of psql shows it.",
        "read-only",
        states=frozenset({READ_ONLY}),
    ),
    _Failure(
        "The ledger's disk is full or fails.",
        "Free some space where {place} has its data. What was paid is kept, and answers go on by "
        "themselves.",
        "disk-full",
        states=frozenset({"53100", "58030"}),
        words="disk is full|disk I/O|No space left",
    ),
    _Failure(
        "The ledger is damaged.",
        "Copy {place} as it is, then: terrine restore DIR, with the newest backup.",
        "damaged",
        states=frozenset({"XX001", "XX002"}),
        words="malformed|not a database",
    ),
    _Failure(
        "The ledger's file cannot be opened or written to.",
        "Let this account read and write {place} and its directory, on a disk that is mounted "
        "writable; or correct TERRINE_DATABASE_URL.",
        "misconfigured",
        words="unable to open database file|readonly database",
    ),
    _Failure(
        "PostgreSQL refuses this account's password.",
        "Correct the password file or TERRINE_DATABASE_URL; or as a superuser: ALTER ROLE … "
        "PASSWORD.",
        "misconfigured",
        states=frozenset({"28P01"}),
        words="password authentication failed|no password supplied",
    ),
    _Failure(
        "PostgreSQL does not let this account connect.",
        "Correct the account in TERRINE_DATABASE_URL. If it is right, let pg_hba.conf admit it; if "
        "there is none: CREATE ROLE … LOGIN, then `terrine init --service-role ACCOUNT` as the "
        "owner of the tables.",
        "misconfigured",
        states=frozenset({"28000"}),
        words=r'pg_hba\.conf|role ".*" (does not exist|is not permitted to log in)|'
        "authentication failed",
    ),
    _Failure(
        "PostgreSQL has no such database.",
        "Correct its name in TERRINE_DATABASE_URL. If there is none: CREATE DATABASE … ENCODING "
        "'UTF8' LOCALE 'C' TEMPLATE template0; then run `terrine doctor` again.",
        "misconfigured",
        states=frozenset({"3D000"}),
        words='database ".*" does not exist',
    ),
    _Failure(
        "PostgreSQL lets nobody connect to this database.",
        "As a superuser: ALTER DATABASE … ALLOW_CONNECTIONS true.",
        "unreachable",
        words="is not currently accepting connections",
    ),
    _Failure(
        "PostgreSQL lets this account make no temporary table.",
        "As the owner of the database: GRANT TEMPORARY ON DATABASE … TO ACCOUNT.",
        "misconfigured",
        words="permission denied to create temporary tables",
    ),
    _Failure(
        "PostgreSQL has no connection left.",
        "Run fewer servers (each opens up to 20), or raise PostgreSQL's max_connections or the "
        "CONNECTION LIMIT of this account or database.",
        "busy",
        states=frozenset({"53300"}),
        words="too many (clients|connections)|remaining connection slots",
    ),
    _Failure(
        "PostgreSQL's host is not known.",
        "Correct the host in TERRINE_DATABASE_URL, or start the container of that name.",
        "unreachable",
        words="failed to resolve host|could not translate host name",
    ),
    _Failure(
        "Nothing answers at PostgreSQL's address.",
        "Start PostgreSQL; if it runs, correct host and port in TERRINE_DATABASE_URL.",
        "unreachable",
        words="Connection refused|No such file or directory|No route to host",
    ),
)
_UNKNOWN = _Failure(
    "The ledger cannot be reached.",
    "Check that PostgreSQL runs, TERRINE_DATABASE_URL and the password file.",
    "unreachable",
)


def explain_failure(
    engine: Engine, error: SQLAlchemyError | sqlite3.Error, path: Path | None
) -> DatabaseUnavailable:
    """Return an error that says what to do about the driver's. `path`: of SQLite's file."""
    where = engine.url.render_as_string(hide_password=True)
    if isinstance(error, exc.TimeoutError):
        return DatabaseUnavailable(
            "Every connection to the ledger is in use.", where, fix="Retry.", reason="busy"
        )
    state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    words = _words(error)
    cause = f"{where}: {words}"
    if path is not None and not path.exists():
        return SchemaMismatch("There is no ledger yet. Run `terrine init`.", str(path))
    if state in _NO_TABLE or re.search(r"no such (table|column)", words):
        return SchemaMismatch("The ledger has no tables yet. Run `terrine init`.", cause)
    if state == _PARTLY_IGNORED:
        return LedgerCorrupted("The database ignored what was written to it.", cause=cause)
    if isinstance(error, exc.IntegrityError):
        return LedgerCorrupted("The ledger refused an entry.", cause=cause)
    if isinstance(error, exc.DataError) and not state:
        # Raised by the driver itself: Python cannot represent a value in PostgreSQL.
        return LedgerCorrupted("A value in the ledger is none that was written.", cause=cause)
    for failure in _FAILURES:
        if state in failure.states or re.search(failure.words, words):
            return failure.explain(cause, path)
    if state == _NO_RIGHT:  # in words that name the table, and no row
        return DatabaseUnavailable(
            f"The account that this service has in PostgreSQL lacks a right: {words}.",
            cause,
            fix="Run `terrine init --service-role ACCOUNT` as the owner of the tables, which grants"
            " all that it needs; `terrine doctor` lists what is missing.",
            reason="misconfigured",
        )
    return _UNKNOWN.explain(cause, path)


def _words(error: SQLAlchemyError | sqlite3.Error) -> str:
    original = error if isinstance(error, sqlite3.Error) else getattr(error, "orig", None)
    primary = getattr(getattr(original, "diag", None), "message_primary", None)
    return " ".join(str(primary or original or type(error).__name__).split())
