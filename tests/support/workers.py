"""Work in other processes: each function is all that one process does, and many are killed."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection as PipeConnection
from pathlib import Path
from secrets import randbelow
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, event, text

from support.databases import SECRET_KEY
from support.ledgers import (
    FACTS,
    GNMAX,
    RECORDS,
    People,
    TheirVoters,
    abstained,
    answered,
    charge_one,
    digest,
    many,
    numbered,
)
from support.processes import PATIENCE_SECONDS, killed_before
from terrine_protocol import ProjectStatus
from terrine_server.errors import BudgetExhausted, CapExceeded, ServiceError
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import (
    ChargedBatch,
    Ledger,
    NewProject,
    Proposal,
    check_schema,
    connect,
    database,
    transparency,
    upgrade,
)
from terrine_server.ledger.database import BEGIN_STATEMENT
from terrine_server.ledger.locks import project_lock
from terrine_server.metrics import Metrics
from terrine_server.owner import backup as backups
from terrine_server.privacy import cap
from terrine_server.settings import Settings


def replica(ledger: Ledger) -> Labeling:
    """Whose queries are never exhausted, however many they are."""
    voters = TheirVoters(People(spare=True))
    return Labeling(ledger, voters, Metrics(), max_batch=1000)


def ask_and_tell(url: str, inputs: int, seed: int, log: str) -> None:
    """Ask some of the inputs again and again, and tell the charge of each answer once it is out."""
    labeling, draw = replica(Ledger(connect(url), SECRET_KEY)), random.Random(seed)
    every = many(People(), inputs)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(60):
        some = draw.sample(range(inputs), draw.randint(1, 3))
        ask = labeling.check("study", np.stack([every[i] for i in some]))
        (answer,) = labeling.answer("study", [ask])
        assert isinstance(answer, ChargedBatch), answer
        for index, result in zip(some, answer.results, strict=True):
            os.write(descriptor, f"{index} {result.seq}\n".encode())


def grow_until(url: str, stop: str, batch: int) -> None:
    """Grow the tree, a few leaves at a time, until a file is there, and once more then."""
    transparency.MAX_NEW_LEAVES = batch
    ledger, last = Ledger(connect(url), SECRET_KEY), False
    while not last:
        last = Path(stop).exists()
        ledger.tree.grow()


def come_between(engine: Engine, act: Callable[[], object]) -> None:
    """Act once: after the next charge has read, just before it writes."""
    acted = False

    def act_once() -> None:
        nonlocal acted
        if not acted:
            acted = True
            act()

    @event.listens_for(engine, "begin")
    def before_sqlite_writes(connection: Connection) -> None:
        if connection.info.get(BEGIN_STATEMENT) == "BEGIN IMMEDIATE":
            act_once()

    @event.listens_for(engine, "before_cursor_execute")
    def before_postgresql_writes(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("WITH moved"):
            act_once()


def come_first(engine: Engine, act: Callable[[], object], then: Callable[[], object]) -> None:
    """Run `act`, and `then` so that it waits for what `act` has written but not yet committed.

    PostgreSQL only. Each update of a project waits at its end for a lock that is held here.
    """
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER wait_here AFTER UPDATE ON projects "
                "FOR EACH ROW EXECUTE FUNCTION wait_here()"
            )
        )
    with ThreadPoolExecutor(2) as pool:
        with engine.begin() as holder:
            holder.execute(text("SELECT pg_advisory_xact_lock(1)"))
            first = pool.submit(act)
            _until_waiting(engine, 1)
            second = pool.submit(then)
            _until_waiting(engine, 2)
        first.result()
        second.result()


def _until_waiting(engine: Engine, sessions: int) -> None:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with engine.connect() as connection:
            if connection.execute(waiting).scalar_one() == sessions:
                return
        assert time.monotonic() < deadline, "it did not wait"
        time.sleep(0.01)


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
        [result] = charge_one(ledger, project_id, [answered(query)]).results
        os.write(descriptor, f"{result.seq} {digest(query).hex()}\n".encode())


def take_turn(url: str, project_id: int, taken: str) -> None:
    """Take a project's turn, make the file `taken`, and keep it."""
    with project_lock(connect(url), project_id):
        Path(taken).touch()
        time.sleep(600)


def die_before(url: str, project_id: int, batch: list[Proposal], step: int, between: bool) -> None:
    """Pay for a batch, but be killed just before the given step: a statement or a COMMIT.

    `between`: another charge comes first, so that this one is retried while holding the lock.
    """
    engine = connect(url)
    if between:
        other = Ledger(connect(url), SECRET_KEY)
        come_between(engine, lambda: charge_one(other, project_id, [answered(f"between {step}")]))
    killed_before(engine, step)
    charge_one(Ledger(engine, SECRET_KEY), project_id, batch)


def die_opening(url: str, new: NewProject, step: int) -> None:
    """Open a project, but be killed just before the given step: a statement or a COMMIT."""
    engine = connect(url)
    killed_before(engine, step)
    Ledger(engine, SECRET_KEY).projects.open(new)


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
                receipt = charge_one(ledger, project_id, batch)
        except BudgetExhausted:
            connection.send(None)
        except ServiceError as error:
            connection.send(error.problem)
        else:
            connection.send(
                [(str(r.outcome), r.label, r.seq, r.replayed, r.counts) for r in receipt.results]
            )


FLAWS = ("loses commits", "forgets what was paid")
"""Bugs to plant, which the checker must find."""


def lose(connection: Connection) -> None:
    """Undo one commit in five, like a disk that loses what it reported as written."""
    if randbelow(5) == 0:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("BEGIN")


def open_projects_on(url: str, names: list[str], terms: Any, ensemble: str) -> None:
    """Open projects on an ensemble until its cap is reached; close the first and open another."""
    ledger = Ledger(connect(url), SECRET_KEY)
    with suppress(CapExceeded):
        for name in names:
            ledger.projects.open(NewProject(name, ensemble, GNMAX, terms))
        ledger.projects.set_status(names[0], ProjectStatus.CLOSED)
        ledger.projects.open(NewProject(f"{names[0]}-again", ensemble, GNMAX, terms))


def register_in(url: str, name: str, population: str | None) -> None:
    """Register an ensemble, in this population or the default one, with a cap."""
    Ledger(connect(url), SECRET_KEY).ensembles.register(
        name,
        f"ensembles/{name}",
        digest(name).hex(),
        FACTS,
        RECORDS,
        cap(20.0, 1e-5),
        population=population,
    )


WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}


def restore_but_die(data_dir: str, url: str, backup: str, step: int, counted: str) -> None:
    """Restore, and be killed before this step; else write to `counted` how many there are.

    Steps are writes to files, and commits of PostgreSQL.
    """
    seen = 0

    def count() -> None:
        nonlocal seen
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    def reads(mode: object, flags: object) -> bool:
        if mode is None:
            return not int(str(flags)) & (os.O_WRONLY | os.O_RDWR)
        return str(mode).startswith("r") and "+" not in str(mode)

    def audit(name: str, given: tuple[Any, ...]) -> None:
        written = name == "open" and data_dir in str(given[0]) and not reads(*given[1:])
        if name in WRITES or written:
            count()

    sys.addaudithook(audit)
    connected = vars(database)["create_engine"]

    def watched(*given: Any, **named: Any) -> Engine:
        engine: Engine = connected(*given, **named)
        if engine.dialect.name == "postgresql":
            event.listen(engine, "commit", lambda *_: count())
        return engine

    vars(database)["create_engine"] = watched
    settings = Settings(data_dir=Path(data_dir), database_url=url)
    backups.restore(settings, Path(backup), replace=True)
    Path(counted).write_text(str(seen))


def train_until_killed(out: Path, seed: int) -> None:
    """Train 60 teachers of digits, which are kept 50 to a file."""
    import torch

    from support.data import known_digits
    from terrine_models.teachers.kinds import Heads
    from terrine_models.teachers.training import train_ensemble

    torch.set_num_threads(1)

    def die(done: int) -> None:
        if done:
            os.kill(os.getpid(), signal.SIGKILL)

    config = Heads(width=40, augmentations=1)
    train_ensemble(
        known_digits(), out, name="a", teachers=60, config=config, seed=seed, on_trained=die
    )
