"""Opens the database so that every commit is durable and writes exclude each other.

SQLite: write-ahead log, `synchronous=FULL`, `BEGIN IMMEDIATE` for writes. Connecting never creates
the file. A file that was removed or replaced under a running server is refused, not written to.
PostgreSQL: psycopg 3, `synchronous_commit=on`, limits on every wait, at both ends. A session sets
for itself what its role or database may have set otherwise, and is refused where it cannot.
"""

from __future__ import annotations

import os
import select as selecting
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    closing,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import quote
from weakref import WeakKeyDictionary

import psycopg
from psycopg.types.array import ListBinaryDumper
from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    Table,
    create_engine,
    event,
    exc,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from terrine_server.errors import (
    DatabaseUnavailable,
    LedgerCorrupted,
)
from terrine_server.ledger.chain import Actor
from terrine_server.ledger.failures import BUSY, READ_ONLY, SILENT, explain_failure
from terrine_server.ledger.seals import Seals

# What PostgreSQL has beyond its own time-out to say that it has passed.
GRACE_SECONDS = 2.0
T = TypeVar("T")


class NoReply(psycopg.OperationalError):
    """No reply in time. The statement may still be executed, even a COMMIT."""


class StalledDatabase:
    """Whether a database does not reply. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds + GRACE_SECONDS
        self._since: float | None = None
        self._asking = Lock()

    @contextmanager
    def fail_fast(self) -> Iterator[None]:
        """Around a transaction. Raises DatabaseUnavailable if another already waits in vain."""
        if self._since is None:
            yield
        elif self._asking.acquire(blocking=False):
            try:
                yield
            finally:
                self._asking.release()
        else:
            silent = time.monotonic() - self._since
            raise SILENT.explain(f"silent for {silent:.0f} s")

    def mark_stalled(self) -> None:
        """Note that a reply did not come in time."""
        if self._since is None:
            self._since = time.monotonic()

    def mark_alive(self) -> None:
        """Note that the database has replied."""
        self._since = None

    def connection_class(self) -> type[psycopg.Connection[Any]]:
        """Return a class of connections that wait for no reply longer than this allows."""
        stalled = self

        class Limited(psycopg.Connection[Any]):
            """A connection whose every wait is limited."""

            @classmethod
            def connect(cls, *given: Any, **more: Any) -> Any:
                """Connect within `connect_timeout`."""
                try:
                    return super().connect(*given, **more)
                except psycopg.errors.ConnectionTimeout:
                    stalled.mark_stalled()
                    raise

            def wait(self, gen: Generator[Any, Any, T], *given: Any, **more: Any) -> T:
                """Wait for a reply; close the connection if none comes in time."""
                due = time.monotonic() + stalled.seconds
                try:
                    result = super().wait(_until(due, gen), *given, **more)
                except NoReply:
                    stalled.mark_stalled()
                    self.pgconn.finish()  # a late reply would be taken for that of another question
                    raise
                stalled.mark_alive()
                return result

        return Limited


def _until(due: float, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run psycopg's `steps`, each of which wakes up with nothing if no data has come."""
    ready = None
    try:
        while True:
            ready = yield steps.send(ready)
            if not ready and time.monotonic() > due:
                raise NoReply("no reply in time; the connection was closed")
    except StopIteration as end:
        result: T = end.value
        return result


# Longest wait for another writer.
BUSY_SECONDS = 20.0
# Longest time for a statement of PostgreSQL, unless its caller is less patient.
STATEMENT_SECONDS = 60.0
# hide_parameters: otherwise an error's text would contain a label that was not paid for.
_POOL: dict[str, Any] = {
    "pool_size": 10,
    "max_overflow": 10,
    "pool_timeout": 20,
    "hide_parameters": True,
}
_POSTGRESQL = {
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": "60s",
    "default_transaction_isolation": "read committed",
    # Whose tables, operators and functions are meant: first PostgreSQL's, then those that we made.
    "search_path": "public, pg_temp",
    # How values and definitions are written: as psycopg reads them, and digests of them are made.
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    # PostgreSQL keeps the plans of statements that are sent again and again. While a table is empty
    # or short, to scan or sort it is as quick as its indexes, and a plan that did so would be kept
    # when it is long. There is an index for every order that we ask for.
    "enable_seqscan": "off",
    "enable_sort": "off",
    "jit": "off",  # what cannot but scan or sort seems so dear now that it would be compiled
}
# The `session_replication_role` in which PostgreSQL checks no foreign key and runs no trigger.
_NO_TRIGGERS = "replica"
# A connection that the network dropped is noticed within half a minute, also while it is idle.
_ALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
# SQLite: pages of 4 KiB in the write-ahead log before they are moved to the file. Digests are
# random, so each query changes two pages of indexes: the longer the log, the more changes of a page
# are moved at once.
LOG_PAGES = 10_000
# SQLite: what each connection keeps of the file.
CACHE_KIB = 16 * 1024
_WRITE = "BEGIN IMMEDIATE"
# In the `info` of a connection to SQLite: the statement that begins its next transaction.
BEGIN_STATEMENT = "begin"
# SQLite has no queue for writers; they retry until one succeeds. Those of a process queue here.
_WRITE_LOCKS: WeakKeyDictionary[Engine, threading.Lock] = WeakKeyDictionary()
_STALLED: WeakKeyDictionary[Engine, StalledDatabase] = WeakKeyDictionary()


def connect(
    url: str, password: str | None = None, statement_seconds: float = STATEMENT_SECONDS
) -> Engine:
    """Return an engine for `sqlite:///path` or `postgresql://user@host/name`. Does not connect yet.

    `password` replaces the URL's, so that it can come from a file. `statement_seconds`: how long
    PostgreSQL may take for one statement. Raises DatabaseUnavailable when the URL is not of either
    form.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed)
        if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
            return _postgresql(parsed, password, statement_seconds)
    except (ArgumentError, ValueError):
        pass  # the text may hold a password: say what was expected without repeating it
    raise DatabaseUnavailable(
        "The database URL must be sqlite:///path/to/file or postgresql://user@host/name.",
        fix="Correct TERRINE_DATABASE_URL.",
        reason="misconfigured",
    )


@contextmanager
def _transaction(
    engine: Engine, level: str | None = None, writes: bool = False, rebuilds: bool = False
) -> Iterator[Connection]:
    """A transaction. Any failure of the database is raised as DatabaseUnavailable.

    `level`: PostgreSQL's isolation level. `writes`: on SQLite, it excludes other writers.
    `rebuilds`: SQLite does not enforce foreign keys in it. One context manager, not one for each
    step: every request enters several.
    """
    lock = _WRITE_LOCKS.get(engine) if writes else None
    if lock is not None and not lock.acquire(timeout=BUSY_SECONDS):
        raise BUSY.explain()
    stalled = _STALLED.get(engine)
    replies = nullcontext() if stalled is None else stalled.fail_fast()
    try:
        with replies, engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                connection.info[BEGIN_STATEMENT] = _WRITE if writes else "BEGIN"
                if rebuilds:  # which cannot be said within a transaction
                    _enforce_foreign_keys(connection, False)
            elif level is not None:
                connection = connection.execution_options(isolation_level=level)
            try:
                with connection.begin():
                    yield connection
            finally:
                if rebuilds and engine.dialect.name == "sqlite":
                    _enforce_foreign_keys(connection, True)
    except SQLAlchemyError as error:
        # `from None`: a driver's error quotes the row, and with it a label not yet paid for.
        raise explain_failure(engine, error, sqlite_path(engine)) from None
    finally:
        if lock is not None:
            lock.release()


# A connection that only reads. On SQLite it is one transaction. On PostgreSQL each statement is its
# own transaction: it would read its own snapshot anyway, and a transaction around it costs two more
# round trips.
reading = partial(_transaction, level="AUTOCOMMIT")
# A connection that only reads, all statements from the same snapshot.
snapshot = partial(_transaction, level="REPEATABLE READ")
# A transaction that commits as a whole or not at all. If the connection breaks during COMMIT, the
# outcome is unknown until the same charge is made again: what was paid is replayed.
writing = partial(_transaction, writes=True)
# Like `writing`, but on PostgreSQL for a single statement, which is its own transaction: committed
# as a whole or not at all, without the round trips of BEGIN and COMMIT.
appending = partial(_transaction, level="AUTOCOMMIT", writes=True)


@contextmanager
def migrating_alone(engine: Engine) -> Iterator[Connection]:
    """Like `writing`, but SQLite enforces foreign keys only at the end: tables may be rebuilt."""
    with _transaction(engine, writes=True, rebuilds=True) as connection:
        yield connection
        if engine.dialect.name == "sqlite":
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
            if broken is not None:
                raise LedgerCorrupted(f"A row of {broken[0]} refers to what is not there.")


def _enforce_foreign_keys(connection: Connection, on: bool) -> None:
    driver: Any = connection.connection.driver_connection
    driver.execute(f"PRAGMA foreign_keys = {'ON' if on else 'OFF'}")


def write(
    connection: Connection,
    statement: Executable,
    parameters: Sequence[Mapping[str, Any]] | None = None,
    rows: int = 1,
) -> None:
    """Insert or update exactly so many rows. Raises LedgerCorrupted if it was fewer, or more.

    Every write goes through here, or is counted where it is made: a trigger or a rule that somebody
    added can make the database ignore a write without an error.
    """
    done = connection.execute(statement, parameters, execution_options={"preserve_rowcount": True})
    check_written(done.rowcount, rows)


def check_written(rows: int, expected: int) -> None:
    """Raise LedgerCorrupted unless as many rows were written as should have been."""
    if rows != expected:
        raise LedgerCorrupted("The database ignored what was written to it.")


def use_write_ahead_log(engine: Engine) -> None:
    """Switch a SQLite file to a write-ahead log, which is recorded in the file.

    Not in a transaction, since SQLite cannot switch within one.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with closing(engine.raw_connection()) as raw:
                mode = raw.cursor().execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except SQLAlchemyError as error:
            raise explain_failure(engine, error, sqlite_path(engine)) from None
        except sqlite3.Error as error:
            # If two processes switch at once, SQLite refuses one of them without waiting.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise explain_failure(engine, error, sqlite_path(engine)) from None
            time.sleep(0.02)
    if mode != ("wal",):
        raise DatabaseUnavailable(
            "The ledger's file is on a disk that cannot hold SQLite's write-ahead log.",
            fix="Use a local disk, or PostgreSQL.",
            reason="misconfigured",
        )


def sqlite_path(engine: Engine) -> Path | None:
    """Return the database's file, or None on PostgreSQL."""
    return Path(engine.url.database or "") if engine.dialect.name == "sqlite" else None


def _sqlite(url: URL) -> Engine:
    if not url.database or url.database == ":memory:" or url.query:
        raise ValueError(url.database)
    path = Path(url.database).absolute()
    uri = f"file:{quote(str(path))}?mode=rw"

    def open_file() -> sqlite3.Connection:
        # isolation_level=None: the driver begins no transaction by itself; `begin` below does.
        return sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )

    engine = create_engine(
        url.set(drivername=f"sqlite+{_Dialect.driver}", database=str(path)),
        creator=open_file,
        **_POOL,
    )

    _WRITE_LOCKS[engine] = threading.Lock()

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, record: object) -> None:
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        record.info.update(path=str(path), file=_identity(str(path)))  # type: ignore[attr-defined]

    return engine


class _Dialect(SQLiteDialect_pysqlite):
    """Begins transactions by a statement of their own.

    As a listener to SQLAlchemy's `begin` would, but listeners slow down every statement.
    """

    driver = "terrine"
    supports_statement_cache = True

    def do_begin(self, dbapi_connection: Any) -> None:
        """Begin as `info` says, on the file that was opened."""
        info = dbapi_connection.info
        if info["file"] != _identity(info["path"]):
            dbapi_connection.invalidate()
            raise DatabaseUnavailable(
                "The ledger's file was removed or replaced while it was open.",
                info["path"],
                fix="Put it back, or restart the server.",
                reason="misconfigured",
            )
        dbapi_connection.execute(info.pop(BEGIN_STATEMENT, "BEGIN"))


registry.register(f"sqlite.{_Dialect.driver}", __name__, _Dialect.__name__)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _postgresql(url: URL, password: str | None, statement_seconds: float) -> Engine:
    stalled = StalledDatabase(statement_seconds)
    limited = stalled.connection_class()
    settings = {
        **_POSTGRESQL,
        "lock_timeout": f"{min(BUSY_SECONDS, statement_seconds):g}s",
        "statement_timeout": f"{statement_seconds:g}s",
    }
    url = url.set(drivername="postgresql+psycopg")
    if password is not None:
        url = url.set(password=password)
    engine = create_engine(
        url,
        **_POOL | {"pool_timeout": min(BUSY_SECONDS, statement_seconds)},
        connect_args={
            "connect_timeout": 5,
            **_ALIVE,
            "application_name": "terrine",
            "client_encoding": "utf8",
        },
    )

    _STALLED[engine] = stalled
    known_to_keep_sessions = False

    @event.listens_for(engine, "do_connect")
    def open_session(_: object, __: object, given: Any, more: Any) -> psycopg.Connection[Any]:
        nonlocal known_to_keep_sessions
        connection: psycopg.Connection[Any] = limited.connect(*given, **more)
        try:
            connection.autocommit = True
            backend = _prepare_session(connection, settings)
            # A pooler tells a number of its own. It need not be found out anew each time.
            if backend != connection.info.backend_pid and not known_to_keep_sessions:
                with closing(limited.connect(*given, **more)) as other:
                    _check_keeps_sessions(connection, backend, other)
                known_to_keep_sessions = True
            connection.autocommit = False
        except BaseException:
            connection.close()
            raise
        return connection

    @event.listens_for(engine, "connect")
    def prefer_binary(connection: psycopg.Connection[Any], _: object) -> None:
        connection.adapters.register_dumper(list, ListBinaryDumper)  # lists of digests

    @event.listens_for(engine, "checkout")
    def check_open(connection: psycopg.Connection[Any], *_: object) -> None:
        # An idle connection is readable only if the server closed it. Cheaper than a statement.
        if connection.closed or _readable(connection.fileno()):
            raise exc.InvalidatePoolError("The server closed the connection.")

    @event.listens_for(engine, "handle_error")
    def forget_read_only(context: ExceptionContext) -> None:
        # A session that began while the database was read-only stays read-only. Open a new one.
        if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
            context.is_disconnect = True

    return engine


def _prepare_session(connection: psycopg.Connection[Any], settings: Mapping[str, str]) -> int:
    """Set what a session needs, and return the process that serves it.

    By statements, not as options of the connection, which poolers refuse or drop. Raises
    DatabaseUnavailable where this cannot be: with another encoding, or without triggers.
    """
    chosen = ", ".join(["pg_catalog.set_config(%s, %s, false)"] * len(settings))
    given = [part for setting in settings.items() for part in setting]
    connection.execute(f"SELECT {chosen}".encode(), given)
    return _check_session(connection.execute(_SESSION).fetchone())


_SESSION = (
    "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('session_replication_role'), "
    "pg_catalog.current_setting('search_path'), pg_catalog.current_setting('server_encoding')"
)


def _no_sessions(cause: str = "") -> DatabaseUnavailable:
    return DatabaseUnavailable(
        "A pooler before PostgreSQL lends sessions by the transaction, so that settings and locks "
        "are lost in between.",
        cause,
        fix="Give it `pool_mode = session`, or name PostgreSQL itself in TERRINE_DATABASE_URL.",
        reason="misconfigured",
    )


def _check_session(found: Sequence[Any] | None) -> int:
    """Return the process of a session, of what `_SESSION` found. Raises DatabaseUnavailable."""
    backend, replication, path, encoding = found or (0, "", "", "")
    if encoding != "UTF8":
        raise DatabaseUnavailable(
            f"The ledger's database has the encoding {encoding}, in which not every name can be "
            "written; expected UTF8.",
            fix="Use another one: CREATE DATABASE … ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0;",
            reason="misconfigured",
        )
    if replication == _NO_TRIGGERS:
        raise DatabaseUnavailable(
            "For this account, PostgreSQL's session_replication_role is replica: triggers and "
            "foreign keys, which guard the ledger, are off.",
            fix="`\\drds` of psql lists where that is set. Let a superuser RESET it there, then run"
            " `terrine ledger verify all`.",
            reason="misconfigured",
        )
    if path != _POSTGRESQL["search_path"]:
        raise _no_sessions(f"search_path is {path}")
    return int(backend)


def _check_keeps_sessions(
    connection: psycopg.Connection[Any], backend: int, other: psycopg.Connection[Any]
) -> None:
    """Raise DatabaseUnavailable if a pooler lends sessions by the transaction.

    `other`, in a transaction, then gets the process of `connection`, which is idle, or `connection`
    another one.
    """
    taken = other.execute(_SESSION).fetchone()
    if taken is None or taken[0] == backend:
        raise _no_sessions()
    if _check_session(connection.execute(_SESSION).fetchone()) != backend:
        raise _no_sessions()


def check_guarded(connection: Connection) -> None:
    """Raise DatabaseUnavailable unless triggers, foreign keys and operators are the ledger's own.

    Their definitions may be right, and a setting of the session keep them from what they do.
    """
    if connection.dialect.name != "sqlite":
        _check_session(connection.exec_driver_sql(_SESSION).one())


def _readable(socket: int) -> bool:
    poll = selecting.poll()
    poll.register(socket, selecting.POLLIN)
    return bool(poll.poll(0))


# In the seal of a row whose id is not known yet: no seal is this.
UNSEALED = bytes(32)


@dataclass(frozen=True)
class Transaction:
    """What is done in it is committed as a whole. `by`: None for this process's account."""

    connection: Connection
    seals: Seals
    now: datetime
    by: Actor | None

    def insert(self, table: Table, row: Mapping[str, Any]) -> None:
        """Insert a row, sealed. Raises IntegrityError if its key is taken."""
        write(self.connection, insert(table).values(self.seals.sealed(table.name, row)))

    def insert_named(self, table: Table, row: Mapping[str, Any]) -> None:
        """Insert a row whose id the database chooses, and seal it as it was meant to be.

        Raises IntegrityError if its name is taken.
        """
        write(self.connection, insert(table).values({**row, "seal": UNSEALED}))
        query = select(table.c.id).where(table.c.name == row["name"])
        id = self.connection.execute(query).scalar_one()
        seal = self.seals.of(table.name, {**row, "id": id})
        write(self.connection, update(table).where(table.c.id == id).values(seal=seal))

    def change(self, table: Table, id: int | str, changed: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change a locked row, sealed as it is meant to be afterwards, and return it."""
        row = self.connection.execute(select(table).where(table.c.id == id)).one()._mapping
        sealed = self.seals.sealed(table.name, {**row, **changed})
        new = {**changed, "seal": sealed["seal"]}
        write(self.connection, update(table).where(table.c.id == id).values(new))
        return sealed


def now() -> datetime:
    """Return the time of what is written from now on, in UTC."""
    return datetime.now(UTC)


class Access:
    """How the parts of a ledger reach it: one database, and the seals of its rows.

    `check_history`: raises LedgerRestored or LogNotSigned if nothing may be spent.
    """

    def __init__(self, engine: Engine, seals: Seals) -> None:
        self.engine, self.seals = engine, seals
        self.check_history: Callable[[], None] = lambda: None

    def reading(self) -> AbstractContextManager[Connection]:
        """Return a connection that only reads."""
        return reading(self.engine)

    def snapshot(self) -> AbstractContextManager[Connection]:
        """Return a connection that only reads, all statements from the same snapshot."""
        return snapshot(self.engine)

    @contextmanager
    def writing(self, by: Actor | None = None) -> Iterator[Transaction]:
        """Write in one transaction. `by`: who does it; None for this process's account."""
        with writing(self.engine) as connection:
            yield Transaction(connection, self.seals, now(), by)

    @contextmanager
    def appending(self, writes: bool = True) -> Iterator[Transaction]:
        """Write by a single statement, or, unless it `writes`, wait for nobody who does."""
        with (appending if writes else reading)(self.engine) as connection:
            yield Transaction(connection, self.seals, now(), None)
