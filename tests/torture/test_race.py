"""Concurrent clients get exactly the N answers of the budget; shared queries are paid once."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from support.clients import Exchange, Lost, Student, discrepancies, until_answered

if TYPE_CHECKING:
    from support.servers import Replicas

REPLICAS = 4
CLIENTS = 16
"""Clients of each server."""
ROUNDS = 2
"""How often they send the same."""


@pytest.fixture
def draw(seed: int) -> random.Random:
    return random.Random(seed)


class Race:
    """Clients of all servers that start together, each with its own connections."""

    def __init__(self, servers: Replicas, queries: int, clients: int) -> None:
        self.project = f"race-{uuid.uuid4().hex[:8]}"
        self.exchanges: list[Exchange] = []
        self.lost: list[Lost] = []
        self._servers = servers
        token = servers.open_project(self.project, queries)
        self._students = [Student(servers, token, seed=i) for i in range(clients)]

    def run(self, live: Callable[[int], None]) -> None:
        """Run all clients at once, then check the ledger."""
        start = threading.Barrier(len(self._students))

        def wait_and_live(client: int) -> None:
            start.wait()
            live(client)

        with ThreadPoolExecutor(len(self._students)) as pool:
            list(pool.map(wait_and_live, range(len(self._students))))
        assert discrepancies(self._servers.database_url, self.project, self.exchanges) == []
        assert self._servers.ledger.verifier.verify_project(self.project).ok

    def ask(self, client: int, key: str, queries: Sequence[int]) -> Exchange:
        student = self._students[client]
        exchange = until_answered(student, self.project, key, tuple(queries), self.lost)
        self.exchanges.append(exchange)
        return exchange

    def close(self) -> None:
        for student in self._students:
            student.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_servers_give_64_clients_exactly_the_answers_of_the_budget(
    servers: Replicas, draw: random.Random, kills: Callable[[float], int]
) -> None:
    for _ in range(kills(1 / 100)):
        queries, seed = draw.randint(50, 150), draw.random()
        with closing(Race(servers, queries, REPLICAS * CLIENTS)) as race:

            def live(client: int, race: Race = race, seed: float = seed) -> None:
                """Send one to three new queries at a time, until refused."""
                rng, refused = random.Random(f"{seed} {client}"), False
                while not refused:
                    batch = [rng.getrandbits(48) for _ in range(rng.randint(1, 3))]
                    refused = race.ask(client, f"{rng.random()}", batch).answers is None

            race.run(live)
            received = [a for exchange in race.exchanges for a in exchange.answers or ()]
            assert sum(a.charge is not None for a in received) == queries


@pytest.mark.slow
def test_queries_sent_to_several_servers_at_once_are_paid_once(
    servers: Replicas, seed: int
) -> None:
    """Eight clients of four servers send the same queries: as eight requests, then as one."""
    with closing(Race(servers, queries=500, clients=2 * REPLICAS)) as race:

        def live(client: int) -> None:
            rng = random.Random(seed)
            for round in range(ROUNDS):
                for key in (f"{round}-{client}", f"one-{round}"):
                    race.ask(client, key, [rng.getrandbits(48) for _ in range(5)])

        race.run(live)
        assert servers.ledger.projects.get(race.project).charges == 10 * ROUNDS
        seen: dict[tuple[int, ...], set[tuple[tuple[int | None, int | None], ...]]] = {}
        for exchange in race.exchanges:
            same = tuple((a.charge, a.label) for a in exchange.answers or ())
            seen.setdefault(exchange.queries, set()).add(same)
        assert len(race.exchanges) == ROUNDS * 2 * 2 * REPLICAS
        assert all(len(replies) == 1 for replies in seen.values())
