"""Guarantees for every request, and what operators see."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from sqlalchemy import make_url

from support.clients import Caller, npy, slug
from support.processes import PATIENCE_SECONDS, until
from support.servers import RunningServer
from terrine_protocol import PROBLEMS
from terrine_server import logs
from terrine_server.api import middleware
from terrine_server.api.rate_limits import MAX_KEYS, RateLimit
from terrine_server.errors import RateLimited
from terrine_server.labeling.local_voters import LocalVoters
from terrine_server.labeling.strategies import VoteStrategy
from terrine_server.ledger.charging import Charging
from terrine_server.privacy.mechanisms.gnmax import GNMax
from terrine_server.privacy.noise import NoiseTable

Call = Callable[..., Caller]


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The process's log, as `terrine serve` would print it."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    logs.configure("info")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the tests' own client
    stream = io.StringIO()
    handler = root.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(stream)
    yield stream
    root.handlers[:], level = before
    root.setLevel(level)


def test_every_response_has_a_request_id(terrine_server: RunningServer, call: Call) -> None:
    http = call("admin").http
    for path in ("/healthz", "/readyz", "/metrics", "/ledger", "/nowhere", "/openapi.json"):
        assert re.fullmatch("[0-9a-f]{32}", http.get(path).headers["x-request-id"])
        ours = http.get(path, headers={"X-Request-Id": "trace-1.a_B"})
        assert ours.headers["x-request-id"] == "trace-1.a_B"
        forged = http.get(path, headers={"X-Request-Id": 'x" injected'})
        assert re.fullmatch("[0-9a-f]{32}", forged.headers["x-request-id"])


def test_every_problem_type_links_to_its_explanation(
    terrine_server: RunningServer, call: Call
) -> None:
    http = httpx.Client(base_url=terrine_server.url)
    assert http.get("/problems").json() == {
        slug: kind.model_dump() for slug, kind in PROBLEMS.items()
    }
    for kind in PROBLEMS:
        assert http.get(f"/problems/{kind}").json()["meaning"]
    assert slug(http.get("/problems/none")) == "not-found"
    assert slug(http.get("/nowhere")) == "not-found"
    wrong = http.put("/label")
    assert slug(wrong) == "method-not-allowed"
    assert "POST" in wrong.headers["Allow"]
    assert "POST" in wrong.json()["detail"]


def test_the_log_names_the_token_that_paid_for_each_charge(
    log: io.StringIO, terrine_server: RunningServer, call: Call
) -> None:
    """Students of one project; the first line that names a charge is that of who paid."""
    terrine_server.open_project()
    tokens = [terrine_server.token() for _ in range(2)]
    ada, bob = (Caller(terrine_server, token) for token in tokens)
    images = terrine_server.ensemble.public
    replies = [
        ada.label(images[:3]),
        bob.label(images[2:5]),
        bob.label(images[2:5]),
        ada.label(images[3:5]),
    ]

    def logged() -> dict[str, dict[str, Any]]:
        lines = [json.loads(line) for line in log.getvalue().splitlines()]
        return {line["request_id"]: line for line in lines if line["event"] == "request"}

    found = until(logged, lambda lines: len(lines) == len(replies))
    lines = [found[reply.headers["x-request-id"]] for reply in replies]
    assert [line.get("charges") for line in lines] == ["1-3", "4-5", None, None]
    first, second = (token.split("_")[1] for token in tokens)
    assert [line["token"] for line in lines] == [first, second, second, first]


def test_the_log_never_holds_inputs_labels_votes_or_tokens(
    log: io.StringIO, terrine_server: RunningServer
) -> None:
    terrine_server.open_project()
    token = terrine_server.token()
    student = Caller(terrine_server, token)
    inputs = terrine_server.ensemble.public[:3]
    student.label(inputs)
    student.label(inputs + 100)
    student.send(npy(inputs)[:-5], "application/x-npy")
    student.http.get("/budget?hidden=in-the-query-string")
    student.http.get("/a-path-that-is-nowhere")
    for line in log.getvalue().splitlines():
        entry = json.loads(line)
        if entry["event"] == "request":
            assert set(entry) - {"problem", "token", "charges"} == {
                "event", "level", "timestamp", "pid", "request_id",
                "method", "route", "status", "seconds",
            }  # fmt: skip
            assert ("problem" in entry) == (entry["status"] >= 400)
    text = log.getvalue()
    assert '"route": "/label"' in text
    assert '"status": 422' in text
    for secret in (token.split("_")[2], "hidden", "nowhere"):
        assert secret not in text
    assert not re.search(r"label\W+\d|counts|votes|inputs|answered|abstained", text)


ON_THE_WAY_OF_VOTES: list[tuple[Any, str]] = [
    (LocalVoters, "votes"),
    (VoteStrategy, "vote"),
    (GNMax, "release"),
    (NoiseTable, "sample"),
    (Charging, "charge"),
]


def test_a_defect_of_a_vote_is_a_problem_and_logged_without_its_text(
    log: io.StringIO, terrine_server: RunningServer, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may quote votes, as may the text of what it was raised from."""
    terrine_server.open_project()
    student = call()

    def broken(*_: Any, **__: Any) -> None:
        try:
            raise KeyError("votes 12, 28")
        except KeyError as cause:
            raise ExceptionGroup("counts [12, 28]", [ValueError("12, 28")]) from cause

    for (owner, name), chosen in product(ON_THE_WAY_OF_VOTES, ("json", "text")):
        logging.getLogger().handlers[0].setFormatter(formatter_of(chosen))
        log.truncate(0)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            reply = student.label(terrine_server.ensemble.public[:2])
        assert (slug(reply), reply.status_code) == ("internal", 500), (owner, name)
        for said in (reply.text, log.getvalue()):
            assert "12, 28" not in said, (owner, name, chosen)
            assert "Traceback" not in said
        assert "ExceptionGroup" in log.getvalue()
        assert "broken" in log.getvalue()
        assert reply.headers["x-request-id"] in log.getvalue()
    assert student.http.get("/budget").json()["charges"] == 0


def formatter_of(chosen: str) -> logging.Formatter:
    """Return how a log of this kind is written."""
    root = logging.getLogger()
    before = root.handlers[:]
    logs.configure("info", chosen)
    formatter, root.handlers[:] = root.handlers[0].formatter, before
    assert formatter is not None
    return formatter


def secret_defect() -> BaseException:
    """Return an exception as it is caught: raised from another, with a note."""
    try:
        try:
            raise KeyError("12, 28")
        except KeyError as cause:
            error = ValueError("counts were 12, 28")
            error.add_note("of 12, 28")
            raise error from cause
    except ValueError as found:
        return found


def forget_task() -> None:
    """Leave an exception that nobody waits for to the event loop, which tells of it."""

    async def fail() -> None:
        raise secret_defect()

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        future = asyncio.get_running_loop().create_future()
        future.set_exception(secret_defect())
        del task, future
        gc.collect()

    asyncio.run(main())


WAYS_TO_LOG: dict[str, Callable[[BaseException], object]] = {
    "ours": lambda error: structlog.get_logger("terrine").error("broken", exc_info=error),
    "a library's": lambda error: logging.getLogger("x").error("broken", exc_info=error),
    "where it is caught": lambda error: structlog.get_logger("terrine").exception("broken"),
    "a task of asyncio": lambda error: forget_task(),
}


@pytest.mark.parametrize("way", WAYS_TO_LOG)
@pytest.mark.parametrize("chosen", ["json", "text"])
def test_an_exception_is_logged_as_its_type_and_place_whoever_logs_it(
    way: str,
    chosen: str,
    log: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger().handlers[0].setFormatter(formatter_of(chosen))
    try:
        raise secret_defect()
    except BaseException as error:
        WAYS_TO_LOG[way](error)
    said = log.getvalue()
    assert "ValueError" in said
    assert "secret_defect" in said
    assert "12, 28" not in said + capfd.readouterr().err


def test_the_log_says_why_the_database_fails_and_the_response_does_not(
    log: io.StringIO, terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project()
    student = call()
    path = Path(str(make_url(terrine_server.settings.database).database))
    path.rename(path.with_suffix(".aside"))
    refused = student.http.get("/budget")
    assert slug(refused) == "database-unavailable"
    entries = map(json.loads, log.getvalue().splitlines())
    (entry,) = [entry for entry in entries if entry["event"] == "unavailable"]
    assert str(path) in entry["cause"]
    assert str(path) not in refused.text


def test_a_bucket_refills_evenly_and_says_when_to_retry() -> None:
    now = 0.0
    limit = RateLimit(6, clock=lambda: now)
    for _ in range(6):
        limit.take("a")
    limit.take("b")
    with pytest.raises(RateLimited) as refused:
        limit.take("a")
    assert refused.value.extras == {"retry_after": 10}
    now = 9.9
    with pytest.raises(RateLimited):
        limit.take("a")
    now = 10.0
    limit.take("a")
    with pytest.raises(RateLimited):
        limit.take("a")
    now = 10_000.0
    for _ in range(6):
        limit.take("a")
    with pytest.raises(RateLimited):
        limit.take("a")


def test_a_rate_limit_remembers_a_limited_number_of_addresses() -> None:
    limit = RateLimit(1)
    for stranger in range(MAX_KEYS + 500):
        limit.take(str(stranger))
    assert len(limit._buckets) == MAX_KEYS


def test_many_threads_never_take_more_than_the_allowance() -> None:
    limit = RateLimit(50, clock=lambda: 0.0)

    def taken(_: int) -> bool:
        try:
            limit.take("a")
        except RateLimited:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(taken, range(400))) == 50


def test_strangers_wait_for_each_other_and_nobody_with_a_token_for_them(
    terrine_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    terrine_server.open_project()
    student = Caller(terrine_server, terrine_server.token())
    waited: list[int] = []
    go_on = threading.Event()

    async def pace(strangers: int) -> None:
        waited.append(strangers)
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(middleware, "pace", pace)
    paths = ("/problems", "/checkpoint", "/tile/0/000", "/readyz", "/admin/sign-in")
    with ThreadPoolExecutor(len(paths)) as strangers:
        for path in paths:
            strangers.submit(httpx.get, f"{terrine_server.url}{path}", timeout=PATIENCE_SECONDS)
        until(lambda: sorted(waited), lambda found: found == [1, 2, 3, 4, 5])
        assert student.label(terrine_server.ensemble.public[:1]).status_code == 200
        assert httpx.get(f"{terrine_server.url}/healthz").status_code == 200
        go_on.set()
    assert len(waited) == len(paths)
