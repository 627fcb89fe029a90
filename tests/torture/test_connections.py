"""A proxy between a program and PostgreSQL that can cut the connection or delay it."""

from __future__ import annotations

import http.client
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import httpx
import pytest
from sqlalchemy import text

from support.clients import Exchange, discrepancies, label_body, read
from support.databases import SECRET_KEY, Database, Postgres
from support.ledgers import answered, charge_one, open_ledger, open_project
from support.processes import PATIENCE_SECONDS
from support.workers import come_between
from terrine_server.errors import DatabaseUnavailable
from terrine_server.ledger import Ledger, connect

if TYPE_CHECKING:
    from support.clients import Witness
    from support.servers import Replicas


class Cable:
    """A Unix socket that forwards to a server's.

    `lose_next_reply_to`: when a program sends these bytes, the server's reply to them is lost.
    """

    def __init__(self, server: Postgres, directory: Path) -> None:
        self.lose_next_reply_to: bytes | None = None
        self._target = server.socket
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / server.socket.name))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                program, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._target))
                for work in (self._ask, self._reply):
                    threading.Thread(target=work, args=(program, server), daemon=True).start()

    def _ask(self, program: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := program.recv(65536):
                if self.lose_next_reply_to is not None and self.lose_next_reply_to in data:
                    self.lose_next_reply_to = None
                    program.shutdown(socket.SHUT_RDWR)
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _reply(self, program: socket.socket, server: socket.socket) -> None:
        with closing(program), closing(server), suppress(OSError):
            while data := server.recv(65536):
                program.sendall(data)


@contextmanager
def cable(server: Postgres) -> Iterator[tuple[Cable, Path]]:
    """A cable to the server, and the directory of its socket: the host to connect to."""
    with tempfile.TemporaryDirectory(prefix="terrine-cable-") as directory:
        made = Cable(server, Path(directory))
        try:
            yield made, Path(directory)
        finally:
            made.close()


@pytest.mark.parametrize("between", [False, True], ids=["alone", "another came between"])
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_retry_replays_a_charge_whose_reply_was_lost(between: bool, database: Database) -> None:
    """The reply to the single charging statement, or to the COMMIT of a transaction."""
    assert database.server
    ledger = open_ledger(database.url)
    project = open_project(ledger, queries=10)
    batch = [answered(i, label=i) for i in range(5)]
    with cable(database.server) as (link, sockets):
        engine = connect(database.server.url(database.name, sockets))
        if between:
            come_between(engine, lambda: charge_one(ledger, project.id, [answered("between")]))
        remote = Ledger(engine, SECRET_KEY)
        assert remote.projects.get("study").charges == 0
        link.lose_next_reply_to = b"COMMIT\0" if between else b"INSERT INTO charges"
        with pytest.raises(DatabaseUnavailable):
            charge_one(remote, project.id, batch)
        assert link.lose_next_reply_to is None, "the cable never saw it"
        voted_anew = [answered(i, label=9) for i in range(5)]
        receipt = charge_one(remote, project.id, voted_anew)
        assert [(r.label, r.seq) for r in receipt.results] == [
            (i, i + 1 + between) for i in range(5)
        ]
    assert ledger.projects.get("study").charges == 5 + between


@pytest.mark.slow
def test_no_answer_is_sent_before_its_slow_commit(witness: Witness) -> None:
    """The response waits for the disk; the server goes on meanwhile."""
    witness.ask()
    with ThreadPoolExecutor(1) as pool:
        with slow_commits(witness.servers.database_url):
            reply = pool.submit(witness.ask_until_answered)  # a server may give up on a disk
            time.sleep(1.5)
            assert not reply.done()
            assert witness.alive()
            witness.ask_again(witness.exchanges[0])
        reply.result()
    witness.judge()


@contextmanager
def slow_commits(url: str) -> Iterator[None]:
    """Block commits: PostgreSQL waits for a missing standby; on SQLite another process writes."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")
        return
    engine = connect(url)
    with (
        engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection,
        ThreadPoolExecutor(1) as pool,
    ):

        def configure(how: str) -> None:
            connection.execute(text(f"ALTER SYSTEM {how}"))
            connection.execute(text("SELECT pg_reload_conf()"))

        def commit() -> None:
            """Commit something that was written: what only has a number waits for nobody."""
            with engine.begin() as other:
                other.execute(text("SELECT pg_logical_emit_message(true, 'trial', '')"))

        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        configure("SET synchronous_standby_names = 'nobody'")
        trial = pool.submit(commit)
        while not connection.execute(waiting).scalar_one():  # the server reads its settings anew
            if trial.done():
                trial = pool.submit(commit)
        try:
            yield
        finally:
            configure("RESET synchronous_standby_names")


def test_a_clock_that_jumps_breaks_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are ordered by number; their times are the clock's, however wrong."""
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=10)
    started = datetime.now(UTC)
    hours = [0, -1, 24, -24, 24 * 365, -24 * 365 * 10]
    for label, jump in enumerate(hours):
        set_clock(monkeypatch, started + timedelta(hours=jump))
        receipt = charge_one(ledger, project.id, [answered(label, label)])
        assert receipt.results[0].seq == label + 1
        assert ledger.verifier.verify_project("study").ok
    for label, jump in enumerate(hours):
        set_clock(monkeypatch, started - timedelta(hours=jump))
        [again] = charge_one(ledger, project.id, [answered(label, 9)]).results
        assert (again.seq, again.label) == (label + 1, label), "never paid or answered anew"
    entries = list(ledger.entries.stream("study"))
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert [entry.created_at - started for entry in entries] == [timedelta(hours=h) for h in hours]
    assert ledger.verifier.verify_project("study").ok


def set_clock(monkeypatch: pytest.MonkeyPatch, instant: datetime) -> None:
    monkeypatch.setattr("terrine_server.ledger.database.now", lambda: instant)


@pytest.mark.slow
def test_a_request_delivered_many_times_is_answered_once(witness: Witness) -> None:
    """The same bytes, pipelined, at once on many connections, late, and after a restart."""
    queries = (1, 2, 3)
    servers = witness.servers
    deliver = delivery(servers, servers.open_project("again", 50), queries)
    replies = deliver(copies=3)
    with ThreadPoolExecutor(8) as pool:
        for more in pool.map(lambda _: deliver(copies=2), range(8)):
            replies += more
    for _ in range(5):
        witness.ask()
    replies += deliver(copies=1)
    servers.kill(0)
    servers.start(0)
    servers.wait_until_ready(0)
    replies += deliver(copies=1)
    exchanges = [Exchange("again", "same", queries, read(reply, queries)) for reply in replies]
    assert len(exchanges) == 3 + 16 + 1 + 1
    assert discrepancies(servers.database_url, "again", exchanges) == []
    assert servers.ledger.projects.get("again").charges == 3
    witness.judge()


def delivery(
    servers: Replicas, token: str, queries: Sequence[int]
) -> Callable[..., list[httpx.Response]]:
    """Return a function that sends one request's bytes `copies` times on a new connection."""
    sent = httpx.Request(
        "POST",
        f"{servers.url(0)}/label",
        headers={"Authorization": f"Bearer {token}"},
        json=label_body(queries),
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.headers.items())
    once = f"POST /label HTTP/1.1\r\n{head}\r\n".encode() + sent.content

    def deliver(copies: int) -> list[httpx.Response]:
        with socket.create_connection(
            ("127.0.0.1", servers.ports[0]), timeout=PATIENCE_SECONDS
        ) as connection:
            connection.sendall(once * copies)
            with connection.makefile("rb") as stream:
                return [_receive(stream) for _ in range(copies)]

    return deliver


def _receive(stream: BinaryIO) -> httpx.Response:
    """Read the next of several responses from one buffer, which may hold more of them."""
    status = int(stream.readline().split()[1])
    headers = http.client.parse_headers(stream)
    content = stream.read(int(headers["Content-Length"]))
    return httpx.Response(status, headers=headers.items(), content=content)
