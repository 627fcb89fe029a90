"""Clients that would use up connections, threads, time or memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.cookies import SimpleCookie
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import httpx
import numpy as np
import pytest

from support.browser import KEY
from support.clients import (
    PATIENT,
    SECONDS,
    Caller,
    Reply,
    Wire,
    answers,
    charges,
    impatient,
    label,
    npy,
    npz,
    question,
    raw_request,
)
from support.data import DigitsEnsemble
from support.processes import PATIENCE_SECONDS, until
from support.servers import RunningServer
from terrine_server.api import students
from terrine_server.api.decoding import DecodedQueries, decode
from terrine_server.ledger import ChargeRecord
from terrine_server.ledger.entries import Entries
from terrine_server.owner import operations

CHUNKED = "Transfer-Encoding: chunked"
CLOSE = "Connection: close"
HEADS = [b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: terrine\r\nX-A: "]
"""Incomplete heads."""


@pytest.fixture(scope="module")
def hasty(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    """A server that waits a second for heads and for bodies."""
    with impatient(tmp_path_factory.mktemp("hasty"), digits_ensemble) as server:
        yield server


@pytest.fixture(scope="module")
def hasty_with_bodies(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    """A server that waits a second for bodies, and for heads as long as a busy machine needs."""
    patient = PATIENT | {"body_seconds": SECONDS}
    with impatient(tmp_path_factory.mktemp("bodies"), digits_ensemble, **patient) as server:
        yield server


def first_reply(server: RunningServer, head: bytes) -> tuple[Wire, Reply]:
    """Send a head on a new connection, and return what the server says first.

    Again, if it closes a connection whose head comes too late, from a machine that is busy.
    """

    def asked() -> tuple[Wire, Reply] | None:
        wire = Wire(server)
        wire.send(head)
        with suppress(EOFError):
            return wire, wire.reply()
        wire.close()
        return None

    found = until(asked)
    assert found is not None
    return found


@pytest.mark.slow
def test_a_head_that_never_ends_is_closed(hasty: RunningServer) -> None:
    silent = [Wire(hasty) for _ in range(10)]
    talking = [Wire(hasty) for _ in range(20)]
    for wire, begun in zip(talking, HEADS * 10, strict=True):
        wire.send(begun)
    dribble(talking)
    assert all(wire.ends() for wire in [*silent, *talking])
    body = question()
    wire, reply = first_reply(hasty, label(hasty.token(), body, f"Content-Length: {len(body)}"))
    assert reply.status == 200, "another student is answered"
    wire.close()


@pytest.mark.slow
def test_a_second_head_has_the_same_time_limit_as_the_first(hasty: RunningServer) -> None:
    wire, reply = first_reply(hasty, raw_request("GET", "/healthz"))
    with closing(wire):
        assert reply.status == 200
        wire.send(HEADS[1])
        dribble([wire])
        assert wire.ends()


def test_endless_bodies_block_neither_threads_nor_the_project(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """More bodies than threads, all in the project of the student who is answered."""
    with impatient(tmp_path, digits_ensemble, **PATIENT) as server:
        wires = [Wire(server) for _ in range(100)]
        for wire, begun in zip(wires, HEADS * 20, strict=False):
            wire.send(begun)
        endless_bodies(server, wires[40:])
        answers(server)
        assert all(wire.silent() for wire in wires), "a connection was closed"
        assert charges(server) == 1
        for wire in wires:
            wire.close()


@pytest.mark.slow
def test_endless_bodies_are_refused_and_cost_nothing(hasty_with_bodies: RunningServer) -> None:
    server = hasty_with_bodies
    wires, before = [Wire(server) for _ in range(60)], charges(server)
    endless_bodies(server, wires)
    dribble(wires[1::2])
    assert {wire.reply().slug for wire in wires} == {"request-timeout"}
    assert all(wire.ends() for wire in wires)
    assert charges(server) == before
    answers(server, 2)


def dribble(wires: list[Wire]) -> None:
    """Send a byte again and again until the server responds or closes.

    A server that measures the time since the last byte would never do so.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while waiting := [wire for wire in wires if wire.silent()]:
        assert time.monotonic() < deadline, "the server waits for the end of an endless request"
        for wire in waiting:
            wire.send(b"x")
        time.sleep(0.1)


def endless_bodies(server: RunningServer, wires: list[Wire]) -> None:
    """Send an incomplete body on every wire; on every second one in chunks."""
    token, body = server.token(), question()
    for number, wire in enumerate(wires):
        length = f"Content-Length: {len(body) + 1000}"
        wire.send(label(token, body[:-1], length) if number % 2 else label(token, b"", CHUNKED))


@pytest.mark.slow
def test_bodies_without_a_valid_token_have_the_same_time_limit(
    hasty_with_bodies: RunningServer,
) -> None:
    wires = [Wire(hasty_with_bodies) for _ in range(2)]
    for wire, path in zip(wires, ("/projects", "/tokens"), strict=True):
        wire.send(raw_request("POST", path, "Content-Length: 100", body=b"{"))
    for wire in wires:
        assert wire.reply().slug == "request-timeout"
        assert wire.ends()


@pytest.mark.slow
def test_a_slow_body_that_ends_in_time_is_answered_and_paid(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """The time limit for heads does not apply to the body."""
    with impatient(tmp_path, digits_ensemble, body_seconds=600) as server:
        body = question()
        head = label(server.token(), b"", f"Content-Length: {len(body)}", "Expect: 100-continue")
        wire, reply = first_reply(server, head)
        with closing(wire):
            assert reply.status == 100
            for at in range(0, len(body), 100):
                assert Wire(server).ends(), "the time limit for a head has passed again"
                wire.send(body[at : at + 100])
            assert wire.reply().status == 200
        assert charges(server) == 1


def test_beyond_the_limit_new_requests_get_a_503_and_others_go_on(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """Connections without a request in progress count for nothing."""
    limits = {"max_connections": 5, "max_per_token": 4}
    with impatient(tmp_path, digits_ensemble, **limits, **PATIENT) as server:
        ask = raw_request("GET", "/budget", f"Authorization: Bearer {server.token()}")
        within, idle = Wire(server), [Wire(server) for _ in range(10)]
        within.send(ask)
        assert within.reply().status == 200
        stuck = take_all(server, ask, 5)
        newcomer = Wire(server)
        newcomer.send(ask)
        reply = newcomer.reply()
        assert (reply.status, reply.slug) == (503, "overloaded")
        assert int(reply.headers["retry-after"]) > 0
        assert newcomer.ends()
        alive = Wire(server)
        alive.send(raw_request("GET", "/healthz"))
        assert alive.reply().status == 200
        assert all(wire.silent() for wire in [within, *idle, *stuck])
        stuck.pop().close()
        served = until(lambda: asked_anew(server, ask), lambda reply: reply.status == 200)
        assert served.json()["project"] == "study"
        within.send(ask)
        assert within.reply().status == 200
        for wire in [within, alive, *idle, *stuck]:
            wire.close()


def take_all(server: RunningServer, ask: bytes, slots: int) -> list[Wire]:
    """Take all slots with endless bodies of several students, until `ask` is refused.

    A body whose slot `ask` has just then is refused itself: another one follows.
    """
    stuck: list[Wire] = []

    def asked() -> int:
        for wire in [wire for wire in stuck if not wire.silent()]:
            wire.close()
            stuck.remove(wire)
        more = [Wire(server) for _ in range(min(3, slots - len(stuck)))]
        endless_bodies(server, more)
        stuck.extend(more)
        return asked_anew(server, ask).status

    until(asked, lambda status: status == 503)
    return stuck


def asked_anew(server: RunningServer, ask: bytes) -> Reply:
    """Send a request on a new connection; return the response."""
    with closing(Wire(server)) as wire:
        wire.send(ask)
        return wire.reply()


def test_many_decompression_bombs_block_nobody_and_cost_nothing(
    tmp_path: Path, digits_ensemble: DigitsEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unpacks to the limit or beyond and is not a valid query; there are more than threads.

    None is finished before another client has been answered.
    """
    limit, bombs, unpack = 4 << 20, 60, decode
    begun, answered = Event(), Event()

    def unpack_for_long(*sent: Any) -> DecodedQueries:
        begun.set()
        assert answered.wait(PATIENCE_SECONDS), "they block another client"
        return unpack(*sent)

    monkeypatch.setattr(students, "decode", unpack_for_long)
    with impatient(tmp_path, digits_ensemble, max_body_bytes=limit, **PATIENT) as server:
        within = npz(inputs=np.zeros(limit - 1000, np.uint8))
        beyond = npz(inputs=np.zeros(8 * limit, np.uint8))
        assert len(within) < limit / 100
        token, wires = server.token(), [Wire(server) for _ in range(bombs)]
        for wire, body in zip(wires, [within, beyond] * (bombs // 2), strict=True):
            length = f"Content-Length: {len(body)}"
            wire.send(label(token, body, length).replace(b"x-npy", b"x-npz"))
        assert begun.wait(PATIENCE_SECONDS)
        try:
            assert Caller(server, token).http.get("/budget").status_code == 200
            assert all(wire.silent() for wire in wires)
        finally:
            answered.set()
        slugs = [wire.reply().slug for wire in wires]
        assert slugs == ["invalid-query", "payload-too-large"] * (bombs // 2)
        answers(server)
        assert charges(server) == 1


def test_when_bodies_fill_the_memory_limit_another_gets_a_503(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """A single body is always read; its memory is free again once it is answered."""
    with impatient(tmp_path, digits_ensemble, max_held_bytes=1024, **PATIENT) as server:
        token, body = server.token(), npy(np.zeros((100, 8, 8), np.uint8))
        length = f"Content-Length: {len(body)}"
        asked = label(token, body, length)
        first = Wire(server)
        first.send(label(token, b"", length, "Expect: 100-continue"))
        assert first.reply().status == 100, "the body is being read"
        first.send(body[:-1])
        second = Wire(server)
        second.send(asked)
        reply = second.reply()
        assert (reply.status, reply.slug) == (503, "overloaded")
        assert int(reply.headers["retry-after"]) > 0
        assert charges(server) == 0
        first.send(body[-1:])
        assert first.reply().status == 200
        first.send(asked)
        assert first.reply().status == 200
        assert charges(server) == 1


def test_decoding_takes_turns_by_token(
    tmp_path: Path, digits_ensemble: DigitsEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token's bodies, more than there are threads, may take long: those of others do not."""
    bodies, begun, answered = 16, list[int](), Event()

    def long_for_large(kind: str, body: bytes, *given: Any) -> DecodedQueries:
        if len(body) > 5000:
            begun.append(len(body))
            assert answered.wait(PATIENCE_SECONDS), "they block another token"
        return decode(kind, body, *given)

    monkeypatch.setattr(students, "decode", long_for_large)
    with impatient(tmp_path, digits_ensemble, **PATIENT) as server:
        greedy, other = server.token(), Caller(server, server.token())
        large, wires = npy(np.zeros((100, 8, 8), np.uint8)), [Wire(server) for _ in range(bodies)]
        for wire in wires:
            wire.send(label(greedy, large, f"Content-Length: {len(large)}"))
        until(lambda: begun, bool, PATIENCE_SECONDS)
        try:
            reply = other.send(npz(inputs=digits_ensemble.public[:2]), "application/x-npz")
            assert reply.status_code == 200
            assert len(begun) == 1, "one of each token at a time"
        finally:
            answered.set()
        assert [wire.reply().status for wire in wires] == [200] * bodies


def test_a_body_longer_than_the_largest_batch_is_refused_by_its_head(served: RunningServer) -> None:
    """4,096 inputs of 8 by 8 in doubles, with 10 probabilities each, have 2.4 MB."""
    token = served.token()
    for kind, length, limit in ((b"x-npz", 5_000_000, "Split"), (b"json", 2**20 + 1, "x-npy")):
        with closing(Wire(served)) as wire:
            asked = label(token, b"", f"Content-Length: {length}").replace(b"x-npy", kind)
            wire.send(asked)
            reply = wire.reply()
            assert (reply.status, reply.slug) == (413, "payload-too-large")
            assert limit in reply.json()["detail"]
    with closing(Wire(served)) as wire:  # of no declared length
        wire.send(label(token, b"", CHUNKED) + b"500000\r\n" + b"x" * 0x480000)
        assert wire.reply().slug == "payload-too-large"


def test_bodies_of_one_token_leave_memory_for_those_of_others(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """Of 64 KiB, one token has half of what others leave."""
    with impatient(tmp_path, digits_ensemble, max_held_bytes=1 << 16, **PATIENT) as server:
        greedy = server.token()
        head = label(greedy, b"", "Content-Length: 40000")
        wires = [Wire(server) for _ in range(2)]
        for wire in wires:
            wire.send(head + b"x" * 30_000)
        refused = until(lambda: [wire for wire in wires if not wire.silent()], bool)
        assert [wire.reply().slug for wire in refused] == ["overloaded"]
        answers(server, 8)
        for wire in wires:
            wire.close()


def session_of(server: RunningServer, token: str) -> str:
    """Sign in on the pages; return the cookies."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as http:
        screen = http.get("/admin/sign-in")
        key = KEY.search(screen.text)
        assert key is not None
        cookies = SimpleCookie(screen.headers["set-cookie"])

        def sent() -> str:
            return "; ".join(f"{name}={each.value}" for name, each in cookies.items())

        headers = {"Origin": server.url, "Cookie": sent()}
        form = {"form_key": key[1], "token": token}
        done = http.post("/admin/sign-in", data=form, headers=headers)
    for line in done.headers.get_list("set-cookie"):
        cookies.load(line)
    return sent()


@pytest.mark.parametrize("what", ["verifications", "exports"])
def test_verifications_and_exports_take_turns_and_no_student_waits_for_them(
    what: str, terrine_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than threads that students' reads are served by."""
    begin, running, most, at_once = Event(), Semaphore(0), list[bool](), Semaphore(1)

    def wait_for_others() -> None:
        most.append(at_once.acquire(blocking=False))
        running.release()
        begin.wait(PATIENCE_SECONDS)
        at_once.release()

    verify, stream = operations.verify_project, Entries.stream

    def verify_slowly(*given: Any) -> Any:
        wait_for_others()
        return verify(*given)

    def stream_slowly(*given: Any) -> Iterator[ChargeRecord]:
        wait_for_others()
        yield from stream(*given)

    monkeypatch.setattr(operations, "verify_project", verify_slowly)
    monkeypatch.setattr(Entries, "stream", stream_slowly)
    terrine_server.open_project()
    student = Caller(terrine_server, terrine_server.token())
    tokens = [terrine_server.token("auditor") for _ in range(3)]
    verifying = [
        raw_request("GET", "/ledger/study/verify", f"Authorization: Bearer {token}", CLOSE)
        for token in tokens
    ]
    exporting = [
        raw_request("GET", "/admin/projects/study/charges.csv", f"Cookie: {cookie}", CLOSE)
        for cookie in [session_of(terrine_server, tokens[0])]
    ] + [
        raw_request(
            "GET", "/ledger/study", f"Authorization: Bearer {token}", "Accept: text/csv", CLOSE
        )
        for token in tokens[1:]
    ]
    wires = [Wire(terrine_server) for _ in range(45)]
    asked = {"verifications": verifying, "exports": exporting}[what] * 15
    for wire, sent in zip(wires, asked, strict=True):
        wire.send(sent)
    try:
        assert running.acquire(timeout=PATIENCE_SECONDS)
        assert student.http.get("/budget").status_code == 200
        assert most == [True]
    finally:
        begin.set()
    for wire in wires:
        assert wire.reply().status == 200
        while wire.socket.recv(65536):
            pass
        wire.close()
    assert most == [True] * len(wires)
