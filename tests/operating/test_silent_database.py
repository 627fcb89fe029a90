"""PostgreSQL that is stopped, not killed: it accepts what is sent to it and answers nothing."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.databases import Postgres
from support.processes import until
from support.servers import Machine, Serving, question, serving_process

POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
SECONDS = 2
"""What the server allows a statement."""
PATIENCE = 120
"""Nobody waits that long unless a server hangs."""


def problem(reply: httpx.Response) -> str:
    assert reply.status_code == 503, reply.text
    assert int(reply.headers["retry-after"]) > 0
    return str(reply.json()["type"])


def healthy(server: Serving) -> None:
    assert httpx.get(f"{server.url}/healthz", timeout=PATIENCE).status_code == 200


@POSTGRESQL
def test_a_silent_database_is_a_503_in_time_and_afterwards_all_goes_on(
    served_machine: Machine, postgres: Postgres
) -> None:
    """More requests than threads; each is told, and health is answered all the while."""
    headers = served_machine.student("study2", 100)
    with (
        serving_process(served_machine, database_seconds=SECONDS, max_per_token=100) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE) as http,
        ThreadPoolExecutor(60) as pool,
    ):

        def ask(number: int) -> httpx.Response:
            if number % 3 == 1:
                return http.get("/budget")
            if number % 3 == 2:
                return http.get("/readyz")
            return http.post("/label", json=question(number))

        def is_answered(number: int) -> None:
            """A busy machine may have a database that is late."""
            until(lambda: ask(number).status_code, lambda status: status == 200)

        is_answered(0)
        with postgres.silent():
            waiting = [pool.submit(ask, number) for number in range(60)]
            while not all(one.done() for one in waiting):
                healthy(server)
                time.sleep(0.05)
            replies = [one.result() for one in waiting]
            assert {problem(reply) for reply in replies} == {"/problems/database-unavailable"}
        for number in (0, 2, *range(0, 60, 3)):
            is_answered(number)
    ledger = served_machine.ledger
    assert ledger.projects.get("study2").charges == 20
    assert ledger.verifier.verify_project("study2").ok


@POSTGRESQL
def test_charges_that_a_silence_left_uncertain_are_answered_once(
    served_machine: Machine, postgres: Postgres
) -> None:
    """Statements that were sent are carried out once the database goes on, also without us."""
    headers = served_machine.student("study2", 10_000)
    numbers, kept = itertools.count(), dict[int, Any]()
    silence, noticed, stopped = 0, set[int](), False

    def ask_on(server: Serving) -> None:
        """Ask new questions, each until it is answered; note during which silence one was not."""
        with httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE) as http:
            while not stopped:
                number = next(numbers)
                while True:
                    reply = http.post("/label", json=question(number))
                    if reply.status_code == 200:
                        break
                    assert problem(reply) == "/problems/database-unavailable"
                    noticed.add(silence)
                    time.sleep(0.05)
                (kept[number],) = reply.json()["results"]

    with (
        serving_process(served_machine, database_seconds=SECONDS) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        clients = [pool.submit(ask_on, server) for _ in range(4)]
        for _ in range(2):
            answered = len(kept)
            until(lambda: len(kept), lambda now, before=answered: now > before + 10)  # type: ignore[misc]
            silence += 1
            with postgres.silent():
                until(lambda: noticed, lambda found, now=silence: now in found)  # type: ignore[misc]
        answered = len(kept)
        until(lambda: len(kept), lambda now: now > answered + 10)
        stopped = True
        for one in clients:
            one.result()
        # Not by every client: what waited in the project's queue when the first requests were given
        # up may be in the group that tries the database next, and is answered once that goes on.
        assert noticed == {1, 2}
    ledger = served_machine.ledger
    assert ledger.projects.get("study2").charges == len(kept) == next(numbers)
    paid = Counter(entry.label for entry in ledger.entries.stream("study2"))
    assert paid == Counter(result["label"] for result in kept.values())
    assert ledger.verifier.verify_project("study2").ok
