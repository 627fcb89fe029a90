"""`terrine serve` as a process: its start, its log and its end."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import httpx
import pytest

from support.databases import POSTGRESQL_BY_DAY
from support.processes import PATIENCE_SECONDS, until
from support.servers import Machine, Serving, question, serving_process


@POSTGRESQL_BY_DAY
@pytest.mark.slow
@pytest.mark.usefixtures("each_database_url")
def test_a_server_that_is_stopped_answers_every_request_that_it_charges(
    served_machine: Machine,
) -> None:
    """Clients without an answer retry on the next server, and pay once."""
    headers, clients = served_machine.student("ending", 20_000), 8
    results: dict[int, dict[str, Any]] = {}
    numbers = itertools.count()

    def ask(http: httpx.Client, number: int) -> int | None:
        with suppress(httpx.TransportError):
            reply = http.post("/label", json=question(number))
            if reply.status_code == 200:
                (results[number],) = reply.json()["results"]
            return reply.status_code
        return None

    def ask_on(http: httpx.Client) -> set[int | None]:
        """Ask new questions until the server is gone; return the statuses of all."""
        statuses: set[int | None] = set()
        while None not in statuses:
            statuses.add(ask(http, next(numbers)))
        return statuses

    @contextmanager
    def asking() -> Iterator[tuple[Serving, httpx.Client, ThreadPoolExecutor]]:
        with (
            serving_process(served_machine) as server,
            httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_SECONDS) as http,
            ThreadPoolExecutor(clients) as pool,
        ):
            yield server, http, pool

    with asking() as (server, http, pool):
        lives = [pool.submit(ask_on, http) for _ in range(clients)]
        until(lambda: len(results), lambda answered: answered >= 10)
        assert server.stop() in (0, -signal.SIGTERM)
        statuses = set().union(*(life.result() for life in lives))
    assert statuses <= {200, 503, None}
    before, asked = dict(results), next(numbers)
    ledger = served_machine.ledger
    assert ledger.projects.get("ending").charges == len(before), "charged, but never sent"
    with asking() as (_, http, pool):
        assert set(pool.map(partial(ask, http), range(asked))) == {200}
    again = {number: {**found, "replayed": True} for number, found in before.items()}
    assert {number: results[number] for number in before} == again
    assert ledger.projects.get("ending").charges == asked
    assert ledger.verifier.verify_project("ending").ok


@pytest.mark.slow
def test_every_line_of_the_log_is_json_with_time_level_and_process(served_machine: Machine) -> None:
    headers = served_machine.student("logged", 1)
    with serving_process(served_machine) as server:
        named = {**headers, "X-Request-Id": "trace-1"}
        assert httpx.post(f"{server.url}/label", json=question(1), headers=named).status_code == 200
        named["X-Request-Id"] = "trace-2"
        assert httpx.post(f"{server.url}/label", json=question(2), headers=named).status_code == 403
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        served_machine.ensemble.joinpath("manifest.json").write_text("{}")
        named["X-Request-Id"] = "trace-3"
        assert httpx.post(f"{server.url}/label", json=question(3), headers=named).status_code == 503
        server.stop()
    for entry in server.entries(""):
        assert {"event", "level", "timestamp", "pid"} <= set(entry), entry
        assert entry["pid"] == server.pid
        assert entry.get("route") != "/healthz", "probes would fill the log"
    by_request: dict[str, list[dict[str, Any]]] = {}
    for entry in server.entries(""):
        if "request_id" in entry:
            by_request.setdefault(entry["request_id"], []).append(entry)
    assert [entry["event"] for entry in by_request["trace-1"]] == ["request"]
    assert by_request["trace-2"][-1]["problem"] == "budget-exhausted"
    unavailable, request = by_request["trace-3"]
    assert unavailable["event"] == "unavailable"
    assert "manifest.json" in unavailable["cause"]
    assert request["problem"] == "ensemble-unavailable"
