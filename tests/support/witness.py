"""A student of one server, for tests in which a fault begins and ends."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress

import httpx
import pytest
from asking import Student
from checker import discrepancies
from crowd import Exchange, Lost
from replicas import Replicas


class Witness:
    """Records its answers, and retries requests that were not answered."""

    def __init__(self, servers: Replicas) -> None:
        self.servers = servers
        self.exchanges: list[Exchange] = []
        self.project = f"study-{uuid.uuid4().hex[:8]}"
        self._student = Student(servers, servers.open_project(self.project, 5000))
        self._asked = 0

    def ask(self) -> None:
        """Send a new query. Raises `Lost` on a 503; the next call then retries the request."""
        key, queries = f"request-{self._asked}", (self._asked,)
        answers = self._student(self.project, key, queries)
        self.exchanges.append(Exchange(self.project, key, queries, answers))
        self._asked += 1

    def ask_again(self, earlier: Exchange) -> None:
        """Repeat a request that was answered; the answers must be the same."""
        again = self._student(self.project, earlier.key, earlier.queries)
        told = [(a.charge, a.label, a.counts) for a in earlier.answers or ()]
        assert [(a.charge, a.label, a.counts) for a in again or ()] == told

    def ask_until_lost(self, most: int) -> None:
        with suppress(Lost):
            for _ in range(most):
                self.ask()
            pytest.fail("the fault had no effect")

    def ask_until_answered(self) -> None:
        """Ask until the service has recovered; only the test's own time limit ends it."""
        while True:
            with suppress(Lost):
                return self.ask()
            time.sleep(0.1)

    def alive(self) -> bool:
        return httpx.get(f"{self.servers.url(0)}/healthz").status_code == 200

    def judge(self) -> None:
        assert discrepancies(self.servers.database_url, self.project, self.exchanges) == []
        assert self.servers.ledger.verify(self.project).ok
