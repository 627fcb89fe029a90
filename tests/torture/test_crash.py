"""SIGKILL at random instants under load: every answer sent is paid once, every charge is sent.

Clients retry until they get answers, and record them. Victims are the processes that charge,
PostgreSQL's backends and its postmaster. At the end a checker compares the clients' records with
the ledger, by plain SQL.

The instants come from a seed, which is reported; `make torture ARGS="--seed N"` repeats them. What
a victim is doing at that instant still varies from run to run.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from support.clients import Crowd, Student, Worker, discrepancies, image
from support.databases import SECRET_KEY, Database
from support.ledgers import (
    NOISY,
    People,
    TheirVoters,
    numbered,
    open_ledger,
    open_project,
    open_study,
    recomputed,
    register_people,
    stored,
)
from terrine_server.labeling.voters import Neighbourhood
from terrine_server.ledger import Ledger, connect
from terrine_server.privacy import Units

if TYPE_CHECKING:
    from support.data import DigitsEnsemble


PROJECTS = {"small": 20, "wide": 20_000, "people": 20_000}
"""Queries that each project pays for: the first is exhausted, the others never. In the last, people
vote, each of whom has an account."""
Inputs = Callable[[Sequence[int]], Sequence[NDArray[np.uint8]]]
OF_WORKERS, OF_SERVERS = 0.38, 0.12
"""Each test's share of all kills: half on SQLite and half on PostgreSQL."""
ON_POSTGRESQL = pytest.mark.parametrize(
    "database", [pytest.param("sqlite", marks=pytest.mark.nightly), "postgresql"], indirect=True
)
"""By day: on SQLite, processes are killed in tests/ledger/test_crash.py."""


@dataclass(frozen=True)
class Kill:
    """After `answers` answers and then `seconds`, kill a victim; `which` in [0, 1) selects it."""

    answers: int
    seconds: float
    victim: str
    which: float


def schedule(seed: int, kills: int, pause: float, databases: float) -> list[Kill]:
    """Draw the kills; a share of `databases` of them hits PostgreSQL itself."""
    rng = random.Random(seed)
    return [
        Kill(
            rng.randint(1, 4),
            rng.uniform(0, pause),
            rng.choice(["backend", "postmaster"]) if rng.random() < databases else "process",
            rng.random(),
        )
        for _ in range(kills)
    ]


def strike(database: Database, kill: Kill, process: Callable[[], None]) -> None:
    """Carry out a kill. A killed PostgreSQL process recovers before the next kill."""
    if kill.victim == "process" or database.server is None:
        process()
    elif kill.victim == "backend":
        database.server.kill_backend(random.Random(kill.which), database.name)
    else:
        database.server.kill()
        database.server.start()


@contextmanager
def judged(
    database: Database,
    crowd: Crowd,
    kills: Sequence[Kill],
    what: str,
    tally: Callable[[str], None],
    people: Neighbourhood,
    inputs: Inputs,
) -> Iterator[None]:
    """Let the crowd send requests during the block, then check the ledger.

    `people` vote on the `inputs` that queries stand for: their accounts must be those of the
    answers, in the order of the charges.
    """
    began = time.monotonic()
    try:
        with crowd.asking():
            yield
            # With few kills, this may take a little longer than the kills.
            crowd.wait_until(
                lambda: len(crowd.lost) >= len(kills) / 2, "the kills interrupted no request"
            )
            crowd.wait_until(
                lambda: any(exchange.answers is None for exchange in crowd.exchanges),
                "the small budget was never spent",
            )
    finally:
        victims = Counter(kill.victim if database.server else "process" for kill in kills)
        tally(
            f"{database.url.partition(':')[0]}, {what}: {len(kills)} kills ({dict(victims)}),"
            f" {len(crowd.exchanges)} replies, {len(crowd.lost)} lost,"
            f" {time.monotonic() - began:.0f} s"
        )
    ledger = Ledger(connect(database.url), SECRET_KEY)
    for project in PROJECTS:
        assert discrepancies(database.url, project, crowd.exchanges) == []
        assert ledger.verifier.verify_project(project).ok
    asked = {q for each in crowd.exchanges if each.project == "people" for q in each.queries}
    accounts = recomputed(ledger, "people", people, inputs(sorted(asked)))
    assert stored(database.url, ledger.projects.get("people")).tolist() == accounts.tolist()
    assert accounts.any()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_workers_killed_under_load(
    database: Database, kills: Callable[[float], int], seed: int, tally: Callable[[str], None]
) -> None:
    """Six clients, each with its own worker process; the workers are killed."""
    ledger = open_ledger(database.url)
    register_people(ledger, len(numbered(0)))
    spec = {"name": "neighbours", "sigma": 400.0, "queries": PROJECTS["people"]}
    ids = {name: open_project(ledger, PROJECTS[name], NOISY, name).id for name in ("small", "wide")}
    ids["people"] = open_study(ledger, 8.0, spec, "people").id
    workers = [Worker(database.url, ids) for _ in range(6)]
    crowd = Crowd(seed, [([*PROJECTS][i % 3], worker) for i, worker in enumerate(workers)])
    plan = schedule(seed, kills(OF_WORKERS), 0.05, databases=0.25)
    people = TheirVoters(People()).found
    inputs: Inputs = lambda queries: [*map(numbered, queries)]  # noqa: E731
    with judged(database, crowd, plan, "workers", tally, people, inputs):
        for kill in plan:
            crowd.wait_for_answers(kill.answers)
            time.sleep(kill.seconds)
            strike(database, kill, workers[int(kill.which * len(workers))].kill)
    for worker in workers:
        worker.stop()


@ON_POSTGRESQL
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_servers_killed_under_load(
    database: Database,
    digits_ensemble: DigitsEnsemble,
    kills: Callable[[float], int],
    seed: int,
    tally: Callable[[str], None],
    tmp_path: Path,
) -> None:
    """Five students of three servers. Servers are killed once they listen, and restarted."""
    from support.data import build_people
    from support.servers import replicas
    from terrine_models.teachers.neighbours import NeighbourEnsemble

    built = build_people(tmp_path / "people", digits_ensemble)
    with replicas(tmp_path / "data", database.url, digits_ensemble, 3) as servers:
        servers.register(built)
        ensemble = NeighbourEnsemble.load(built.directory)
        units = Units.of(ensemble.units, ensemble.labels, built.manifest.units)
        people = Neighbourhood(ensemble, units)
        tokens = {name: servers.open_project(name, n) for name, n in PROJECTS.items()}
        clients = ["small", "wide", "people", "wide", "people"]
        students = [Student(servers, tokens[name], (seed, i)) for i, name in enumerate(clients)]
        crowd = Crowd(seed, list(zip(clients, students, strict=True)))
        plan = schedule(seed, kills(OF_SERVERS), 0.2, databases=0.3)
        inputs: Inputs = lambda queries: [*map(image, queries)]  # noqa: E731
        with judged(database, crowd, plan, "servers", tally, people, inputs):
            for kill in plan:
                server = int(kill.which * len(servers))
                servers.wait_until_ready(server)
                crowd.wait_for_answers(kill.answers)
                time.sleep(kill.seconds)

                def restart(server: int = server) -> None:
                    servers.kill(server)
                    servers.start(server)

                strike(database, kill, restart)
            for server in range(len(servers)):
                servers.wait_until_ready(server)
        for student in students:
            student.stop()
