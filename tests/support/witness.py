"""A student of one server, who sees a fault come and go."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress

import httpx
import pytest
from asking import Student
from checker import discrepancies
from crowd import Lost, Told
from replicas import Replicas

RECOVERY_SECONDS = 10
"""After a fault, the service answers within this."""


class Witness:
    """Keeps what it is told, and asks again what it was not told."""

    def __init__(self, servers: Replicas) -> None:
        self.servers = servers
        self.told: list[Told] = []
        self.project = f"study-{uuid.uuid4().hex[:8]}"
        self._student = Student(servers, servers.open_project(self.project, 5000))
        self._asked = 0

    def ask(self) -> None:
        """Ask a new query. Raises `Lost` on a 503, and then the next call repeats the request."""
        key, queries = f"request-{self._asked}", (self._asked,)
        answers = self._student(self.project, key, queries)
        self.told.append(Told(self.project, key, queries, answers))
        self._asked += 1

    def ask_again(self, told: Told) -> None:
        """Repeat a request that was answered."""
        assert self._student(self.project, told.key, told.queries) == told.answers

    def ask_until_lost(self, most: int) -> None:
        with suppress(Lost):
            for _ in range(most):
                self.ask()
            pytest.fail("the fault was never felt")

    def ask_until_told(self) -> None:
        deadline = time.monotonic() + RECOVERY_SECONDS
        while True:
            with suppress(Lost):
                return self.ask()
            assert time.monotonic() < deadline, "the fault is gone, the service is not back"
            time.sleep(0.1)

    def alive(self) -> bool:
        return httpx.get(f"{self.servers.url(0)}/healthz").status_code == 200

    def judge(self) -> None:
        assert discrepancies(self.servers.database_url, self.project, self.told) == []
        assert self.servers.ledger.verify(self.project).ok
