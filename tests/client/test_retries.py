"""The network fails; paid answers are neither lost nor paid for twice."""

from __future__ import annotations

import logging
import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pytest

from support.clients import (
    Fault,
    FaultyServer,
    cuts_off,
    hangs_up,
    problem,
    replies,
    stalls,
    works,
    works_but_hangs_up,
)
from support.processes import PATIENCE_SECONDS, until
from support.wording import holds, refuses
from terrine_client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    DatabaseUnavailable,
    Forbidden,
    InternalError,
    LedgerCorrupted,
    ProblemError,
    ProjectPaused,
    RateLimited,
    TimedOut,
    UnexpectedReply,
)
from terrine_protocol import ProjectOpen, Role, TokenCreate
from terrine_protocol.mechanisms import GNMaxSpec

TOKEN = "terrine_id_secret"
X = np.arange(1, 7, dtype=np.uint8).repeat(4).reshape(6, 2, 2)

TEMPORARY = {
    "hangs up": hangs_up,
    "hangs up after charging": works_but_hangs_up,
    "cuts the reply off": cuts_off,
    "stalls": stalls,
    "replies 429": replies(*problem(429, "rate-limited"), Retry_After="0"),
    "replies 502 in HTML": replies(502, b"<h1>Bad gateway</h1>", Content_Type="text/html"),
    "replies 503": replies(*problem(503, "database-unavailable")),
    "replies 503 with Retry-After": replies(*problem(503, "database-unavailable"), Retry_After="0"),
    "replies 504": replies(504),
}


def patience(fault: Fault) -> float:
    """Seconds: short where a time-out is tested, otherwise long enough for a busy machine."""
    return 0.5 if fault is stalls else 20


@pytest.mark.usefixtures("no_backoff")
def test_a_retry_is_logged_in_words(
    faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kept: list[logging.LogRecord] = []
    logger = logging.getLogger("terrine_client")
    # Whatever other tests made of the root's handlers and level:
    monkeypatch.setattr(logger, "handle", kept.append)
    monkeypatch.setattr(logger, "isEnabledFor", lambda level: True)
    faulty.faults.extend([hangs_up, replies(*problem(503, "database-unavailable"))])
    with Client(faulty.url, TOKEN) as client:
        client.label(X)
    warned = [record for record in kept if record.levelname == "WARNING"]
    assert len(warned) == 1, "the first time; the others are of the level INFO"
    said = [record.getMessage() for record in kept]
    holds(said, f"{faulty.url}/label", "again")
    assert TOKEN not in "".join(said)
    assert "stamina" not in "".join([*capfd.readouterr(), *said])


@pytest.mark.parametrize("fault", list(TEMPORARY.values()), ids=list(TEMPORARY))
@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.usefixtures("no_backoff")
async def test_a_temporary_fault_is_retried_with_the_same_body(
    faulty: FaultyServer, fault: Fault, kind: type[Client | AsyncClient]
) -> None:
    faulty.faults.extend([fault, fault])
    seconds = patience(fault)
    options: dict[str, Any] = {"timeout": seconds, "retries": math.ceil(PATIENCE_SECONDS / seconds)}
    if kind is Client:
        with Client(faulty.url, TOKEN, **options) as client:
            labels = client.label(X)
    else:
        async with AsyncClient(faulty.url, TOKEN, **options) as awaited:
            labels = await awaited.label(X)
    assert labels.labels.tolist() == [1, 2, 3, 4, 5, 6]
    # A busy machine may exceed the short time-out once more.
    assert len(faulty.seen) == 3 or (fault is stalls and len(faulty.seen) > 3)
    assert len({seen.body for seen in faulty.seen}) == 1
    assert len(faulty.book) == 6


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.usefixtures("no_backoff")
def test_it_gives_up_after_the_given_number_of_retries(faulty: FaultyServer, retries: int) -> None:
    faulty.faults.extend([replies(*problem(503, "database-unavailable"))] * 9)
    with Client(faulty.url, TOKEN, retries=retries) as client, pytest.raises(DatabaseUnavailable):
        client.budget()
    assert len(faulty.seen) == retries + 1


@pytest.mark.usefixtures("no_backoff")
def test_a_ledger_that_contradicts_itself_is_not_asked_again(faulty: FaultyServer) -> None:
    faulty.faults.extend([replies(*problem(503, "ledger-corrupted"))] * 2)
    with Client(faulty.url, TOKEN) as client, pytest.raises(LedgerCorrupted):
        client.label(X)
    assert len(faulty.seen) == 1


@pytest.mark.usefixtures("no_backoff")
def test_a_server_that_always_stalls_is_a_time_out(faulty: FaultyServer) -> None:
    faulty.faults.extend([stalls] * 2)
    with Client(faulty.url, TOKEN, timeout=0.2, retries=1) as client, refuses(TimedOut, "time"):
        client.budget()


@pytest.mark.usefixtures("no_backoff")
def test_a_server_that_is_not_there_is_named() -> None:
    with (
        Client("http://127.0.0.1:9", TOKEN, retries=2) as client,
        refuses(ConnectionFailed, "http://127.0.0.1:9/budget"),
    ):
        client.budget()


@pytest.mark.parametrize(
    ("status", "slug", "kind"),
    [
        (400, "a-type-of-the-future", ProblemError),
        (403, "forbidden", Forbidden),
        (403, "project-paused", ProjectPaused),
        (500, "internal", InternalError),
    ],
)
@pytest.mark.usefixtures("no_backoff")
def test_other_problems_are_never_retried(
    faulty: FaultyServer, status: int, slug: str, kind: type[ProblemError]
) -> None:
    faulty.faults.append(replies(*problem(status, slug)))
    with Client(faulty.url, TOKEN) as client, pytest.raises(kind) as caught:
        client.label(X)
    assert type(caught.value) is kind
    assert len(faulty.seen) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_waited_for(faulty: FaultyServer, waits: list[float], form: str) -> None:
    at = datetime.now(UTC) + timedelta(seconds=100)
    value = "100" if form == "seconds" else format_datetime(at, usegmt=True)
    faulty.faults.append(replies(*problem(429, "rate-limited"), Retry_After=value))
    with Client(faulty.url, TOKEN) as client:
        client.budget()
    [seconds] = waits
    assert seconds == 100 if form == "seconds" else 50 < seconds <= 100


def test_an_hour_of_retry_after_is_reported_and_not_slept_through(
    faulty: FaultyServer, waits: list[float]
) -> None:
    faulty.faults.append(replies(*problem(429, "rate-limited"), Retry_After="3600"))
    with Client(faulty.url, TOKEN) as client, pytest.raises(RateLimited) as caught:
        client.budget()
    assert caught.value.retry_after == 3600
    assert len(faulty.seen) == 1
    assert waits == []


def test_backoff_is_at_least_a_tenth_of_a_second(faulty: FaultyServer, waits: list[float]) -> None:
    faulty.faults.append(replies(*problem(503, "database-unavailable"), Retry_After="nonsense"))
    with Client(faulty.url, TOKEN) as client:
        client.budget()
    [seconds] = waits
    assert seconds >= 0.1


@pytest.mark.parametrize("fault", [hangs_up, stalls, replies(503)], ids=["drop", "stall", "503"])
@pytest.mark.usefixtures("no_backoff")
def test_a_request_that_would_act_twice_is_not_sent_twice(
    faulty: FaultyServer, fault: Fault
) -> None:
    mechanism = GNMaxSpec(name="gnmax", sigma=40)
    terms = ProjectOpen(name="p", ensemble="e", mechanism=mechanism, epsilon=1, delta=1e-5)
    with Client(faulty.url, TOKEN, timeout=1.0 if fault is stalls else PATIENCE_SECONDS) as client:
        for act in (
            lambda: client.create_token(TokenCreate(role=Role.AUDITOR)),
            lambda: client.open_project(terms),
        ):
            faulty.seen.clear()
            faulty.faults.append(fault)
            with pytest.raises((ConnectionFailed, UnexpectedReply)):
                act()
            until(lambda: faulty.seen)  # also one that is read after the client gave up
            assert len(faulty.seen) == 1


@pytest.mark.usefixtures("no_backoff")
def test_a_failure_half_way_carries_the_paid_answers(faulty: FaultyServer) -> None:
    faulty.faults.extend([works, works, hangs_up, hangs_up])
    with Client(faulty.url, TOKEN, batch_size=2, retries=1) as client:
        with pytest.raises(ConnectionFailed) as caught:
            client.label(X)
        partial = caught.value.partial
        assert partial is not None
        assert partial.labels.tolist() == [1, 2, 3, 4]
        assert partial.charges.tolist() == [1, 2, 3, 4]
        holds(caught.value.__notes__[0], 4, 6)

        again = client.label(X)
    assert again.labels.tolist() == [1, 2, 3, 4, 5, 6]
    assert again.replayed.tolist() == [True] * 4 + [False] * 2


def test_a_failure_before_the_first_answer_carries_none(faulty: FaultyServer) -> None:
    faulty.faults.append(replies(*problem(403, "project-paused")))
    with Client(faulty.url, TOKEN) as client, pytest.raises(ProjectPaused) as caught:
        client.label(X)
    assert caught.value.partial is None


NOT_TERRINE = {
    "a page": (replies(200, b"<html>Welcome</html>"), "read"),
    "another API": (replies(200, {"hello": "world"}), "read"),
    "cut-off JSON": (replies(200, b'{"project": "st'), "read"),
    "bytes that are not text": (replies(404, b"\xff\xfe\x00"), "URL"),
    "an unknown status": (replies(599, b"?"), "599"),
    "a redirect": (replies(307, Location="https://other.example/budget"), "other.example/budget"),
    "broken gzip": (replies(200, b"no gzip", Content_Encoding="gzip"), "decoded"),
}


@pytest.mark.parametrize(("fault", "message"), list(NOT_TERRINE.values()), ids=list(NOT_TERRINE))
def test_a_reply_that_is_not_terrines_is_reported_as_such(
    faulty: FaultyServer, fault: Fault, message: str
) -> None:
    faulty.faults.append(fault)
    with Client(faulty.url, TOKEN) as client, refuses(UnexpectedReply, *message.split()):
        client.budget()
    assert len(faulty.seen) == 1


def test_too_few_results_are_an_unexpected_reply(faulty: FaultyServer) -> None:
    short = {"results": [{"outcome": "answered", "label": 1}], "budget": faulty.budget()}
    faulty.faults.append(replies(200, short))
    with Client(faulty.url, TOKEN) as client, refuses(UnexpectedReply, 1, 6):
        client.label(X)
