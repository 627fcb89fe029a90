"""Work on a ledger in other processes: each function is all that one process does."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.connection import Connection as PipeConnection
from pathlib import Path
from secrets import randbelow
from typing import Any

import numpy as np
from between import come_between
from books import FACTS, GNMAX, RECORDS, abstained, answered, digest, terms
from migrated import SECRET_KEY
from neighbour_workers import replica
from neighbouring import numbered
from processes import killed_before
from sqlalchemy import Connection, event

from terrine_protocol import ProjectStatus, Role
from terrine_server.errors import BudgetExhausted, CapExceeded, ServiceError
from terrine_server.ledger import (
    ChargedBatch,
    Ledger,
    NewProject,
    NewToken,
    Proposal,
    check_schema,
    connect,
    upgrade,
)
from terrine_server.ledger.database import project_lock
from terrine_server.privacy import cap


def migrate(url: str) -> None:
    engine = connect(url)
    upgrade(engine, SECRET_KEY)
    check_schema(engine)


def ask_and_log(url: str, project_id: int, name: str, log: str) -> None:
    """Pay for new queries without end, and log each answer once it may be sent."""
    ledger = Ledger(connect(url), SECRET_KEY)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for round in range(100_000):
        query = f"{name} {round}"
        [result] = ledger.charge(project_id, [answered(query)]).results
        os.write(descriptor, f"{result.seq} {digest(query).hex()}\n".encode())


def take_turn(url: str, project_id: int, taken: str) -> None:
    """Take a project's turn, make the file `taken`, and keep it."""
    with project_lock(connect(url), project_id):
        Path(taken).touch()
        time.sleep(600)


def open_projects(url: str, names: list[str], terms: Any, mechanism: dict[str, Any]) -> None:
    """Open projects until the ensemble's cap is reached."""
    ledger = Ledger(connect(url), SECRET_KEY)
    for name in names:
        try:
            ledger.open_project(NewProject(name, "mnist", mechanism, terms))
        except CapExceeded:
            return


def die_before(url: str, project_id: int, batch: list[Proposal], step: int, between: bool) -> None:
    """Pay for a batch, but be killed just before the given step: a statement or a COMMIT.

    `between`: another charge comes first, so that this one is retried while holding the lock.
    """
    engine = connect(url)
    if between:
        other = Ledger(connect(url), SECRET_KEY)
        come_between(engine, lambda: other.charge(project_id, [answered(f"between {step}")]))
    killed_before(engine, step)
    Ledger(engine, SECRET_KEY).charge(project_id, batch)


def die_after_commit(url: str, project_id: int, queries: int) -> None:
    """Pay for a batch, and be killed before the answers are sent."""
    receipt: ChargedBatch = Ledger(connect(url), SECRET_KEY).charge(
        project_id, [answered(i) for i in range(queries)]
    )
    assert receipt
    os.kill(os.getpid(), signal.SIGKILL)


def die_approving(url: str, request: str, before: str) -> None:
    """Approve a request, but be killed before a statement that begins so, COMMIT, or the reply."""
    engine = connect(url)

    def come(moment: str) -> None:
        if moment.startswith(before):
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(engine, "before_cursor_execute", lambda *given: come(given[2]))
    event.listen(engine, "commit", lambda _: come("COMMIT"))
    name = f"more-{request}"
    Ledger(engine, SECRET_KEY).approve_request(
        request,
        NewProject(name, "mnist", GNMAX, terms(2), "More", "To learn"),
        NewToken(name, digest(name), Role.STUDENT, name, "", datetime(2100, 1, 1, tzinfo=UTC)),
    )
    come("reply")


def answer_requests(url: str, connection: PipeConnection, flaw: str | None) -> None:
    """Charge the requests from a pipe, one at a time, until it is closed.

    A request is a project's number, queries, and whether people vote on them. Each vote is
    drawn anew, so an answer that is not a replay is noticed. Replies with a list of results, None
    if the budget is spent, or the error's problem. A `flaw` is one of `FLAWS`.
    """
    engine = connect(url)
    ledger = Ledger(engine, SECRET_KEY)
    labeling = replica(ledger)
    if flaw == "loses commits":
        event.listen(engine, "commit", lose)
    while True:
        try:
            project_id, queries, of_people = connection.recv()
        except EOFError:
            return
        names = [
            f"{query} {randbelow(2**40)}" if flaw == "forgets what was paid" else query
            for query in queries
        ]
        batch = [
            abstained(name) if randbelow(3) == 0 else answered(name, randbelow(10))
            for name in names
        ]
        try:
            if of_people:
                ask = labeling.check("people", np.stack([*map(numbered, queries)]))
                (found,) = labeling.answer("people", [ask])
                if isinstance(found, ServiceError):
                    raise found
                receipt = found
            else:
                receipt = ledger.charge(project_id, batch)
        except BudgetExhausted:
            connection.send(None)
        except ServiceError as error:
            connection.send(error.problem)
        else:
            connection.send(_results(receipt))


FLAWS = ("loses commits", "forgets what was paid")
"""Bugs to plant, which the checker must find."""


def lose(connection: Connection) -> None:
    """Undo one commit in five, like a disk that loses what it reported as written."""
    if randbelow(5) == 0:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("BEGIN")


def race(url: str, project_id: int, name: str, clients: int, connection: PipeConnection) -> None:
    """Let `clients` threads pay for new queries, one to three at a time, until refused.

    Sends all results through the pipe, as pairs of queries and results.
    """
    ledger = Ledger(connect(url), SECRET_KEY)
    start = threading.Barrier(clients)

    def ask(client: int) -> list[Any]:
        rng = random.Random(f"{name} {client}")
        results: list[Any] = []
        start.wait()
        while True:
            queries = [rng.getrandbits(48) for _ in range(rng.randint(1, 3))]
            try:
                receipt = ledger.charge(project_id, [answered(query) for query in queries])
            except BudgetExhausted:
                return results
            results.append((tuple(queries), _results(receipt)))

    with ThreadPoolExecutor(clients) as pool:
        connection.send([pair for client in pool.map(ask, range(clients)) for pair in client])


def _results(receipt: ChargedBatch) -> list[tuple[Any, ...]]:
    return [(str(r.outcome), r.label, r.seq, r.replayed, r.counts) for r in receipt.results]


def open_projects_on(url: str, names: list[str], terms: Any, ensemble: str) -> None:
    """Open projects on an ensemble until its cap is reached; close the first and open another."""
    ledger = Ledger(connect(url), SECRET_KEY)
    with suppress(CapExceeded):
        for name in names:
            ledger.open_project(NewProject(name, ensemble, GNMAX, terms))
        ledger.set_status(names[0], ProjectStatus.CLOSED)
        ledger.open_project(NewProject(f"{names[0]}-again", ensemble, GNMAX, terms))


def register_in(url: str, name: str, population: str | None) -> None:
    """Register an ensemble, in this population or the default one, with a cap."""
    Ledger(connect(url), SECRET_KEY).register_ensemble(
        name,
        f"ensembles/{name}",
        digest(name).hex(),
        FACTS,
        RECORDS,
        cap(20.0, 1e-5),
        population=population,
    )
