"""Many at once: a budget that affords N answers exactly N; asked by many at once is paid once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import TYPE_CHECKING

import httpx
import pytest
from asking import read, request
from books import open_ledger, open_project
from checker import discrepancies
from crowd import Answer, Told
from ledger_workers import race, start
from mortal_postgres import Database, MortalPostgres

if TYPE_CHECKING:
    from digits import DigitsEnsemble
    from replicas import Replicas


PROCESSES, CLIENTS = 4, 64
"""Clients of each process."""


@pytest.fixture
def draw(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.mark.slow
def test_256_clients_in_4_processes_get_exactly_what_the_budget_affords(
    database: Database, draw: random.Random, kills: int
) -> None:
    """Each client asks one to three new queries at a time, until it is refused."""
    ledger = open_ledger(database.url)
    for round in range(kills // 100):
        queries, name = draw.randint(50, 150), f"study-{round}"
        project = open_project(ledger, queries, name=name)
        pipes, processes = [], []
        for process in range(PROCESSES):
            ours, theirs = Pipe()
            arguments = (database.url, project.id, f"{draw.random()} {process}", CLIENTS, theirs)
            processes.append(start(race, *arguments))
            pipes.append(ours)
            theirs.close()
        assert sum(pipe.recv() for pipe in pipes) == queries
        for ended in processes:
            ended.join()
        account = ledger.project(name)
        assert account.charges == queries
        assert account.spent == account.terms.budget
        assert discrepancies(database.url, name, []) == [
            f"paid, but told to no one who paid: {list(range(1, queries + 1))}"
        ], "the books hold"
        assert ledger.verify(name).ok


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def servers(
    request: pytest.FixtureRequest,
    digits_ensemble: DigitsEnsemble,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Replicas]:
    """Four servers, for the tests of this file."""
    from replicas import replicas

    directory = tmp_path_factory.mktemp("servers")
    url = f"sqlite:///{directory / 'terrine.sqlite'}"
    if request.param == "postgresql":
        server: MortalPostgres = request.getfixturevalue("mortal")
        url = server.url(server.make_database())
    with replicas(directory / "data", url, digits_ensemble, PROCESSES) as started:
        yield started


class Race:
    """Clients of all servers, each with a connection of its own, that start together."""

    def __init__(self, servers: Replicas, project: str, queries: int) -> None:
        self.project = project
        self.told: list[Told] = []
        self._servers = servers
        self._token = servers.open_project(project, queries)

    async def ask(self, http: httpx.AsyncClient, key: str, queries: list[int]) -> Told:
        response = await http.post(
            "/label", json=request(queries), headers={"Idempotency-Key": key}
        )
        told = Told(self.project, key, tuple(queries), read(response, queries))
        self.told.append(told)
        return told

    def client(self, client: int) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._servers.url(client % len(self._servers)),
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=120,
            trust_env=False,
        )

    def answers(self) -> list[Answer]:
        return [a for told in self.told for a in told.answers or () if a.charge is not None]


@pytest.mark.slow
def test_servers_give_256_clients_exactly_what_the_budget_affords(
    servers: Replicas, draw: random.Random, kills: int
) -> None:
    for round in range(kills // 200):
        queries = draw.randint(50, 150)
        race = Race(servers, f"race-{round}", queries)

        async def live(client: int, race: Race = race) -> None:
            rng = random.Random(draw.random())
            async with race.client(client) as http:
                while True:
                    batch = [rng.getrandbits(48) for _ in range(rng.randint(1, 3))]
                    if (await race.ask(http, f"{rng.random()}", batch)).answers is None:
                        return

        async def everyone() -> None:
            await asyncio.gather(*map(live, range(PROCESSES * CLIENTS)))

        asyncio.run(everyone())
        assert len(race.answers()) == queries
        assert discrepancies(servers.database_url, race.project, race.told) == []
        assert servers.ledger.verify(race.project).ok


@pytest.mark.slow
def test_what_servers_are_asked_at_once_is_paid_once(
    servers: Replicas, draw: random.Random
) -> None:
    """Eight clients of four servers ask the same: with keys of their own, then with one key."""
    race = Race(servers, "same", 500)

    async def run() -> None:
        clients = [race.client(i) for i in range(2 * PROCESSES)]
        for round in range(10):
            batch = [draw.getrandbits(48) for _ in range(5)]
            own_keys = (race.ask(c, f"{round}-{i}", batch) for i, c in enumerate(clients))
            told = await asyncio.gather(*own_keys)
            assert len({tuple((a.charge, a.label) for a in t.answers or ()) for t in told}) == 1
            batch = [draw.getrandbits(48) for _ in range(5)]
            told = await asyncio.gather(*(race.ask(c, f"one-{round}", batch) for c in clients))
            assert len({t.answers for t in told}) == 1
        for client in clients:
            await client.aclose()

    asyncio.run(run())
    assert servers.ledger.project("same").charges == 100
    assert discrepancies(servers.database_url, "same", race.told) == []
