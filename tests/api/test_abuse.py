"""Clients that are stuck, lie about what they send, or reach for what is not theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from caller import Caller, npy, npz, slug
from digits import DigitsEnsemble
from server import RunningServer, running_server
from serving import until
from wire import Reply, Wire, label, request

from terrine_server.api import students
from terrine_server.api.decoding import Decoded, decode

SECONDS = 1
"""What the impatient server gives a head, and a body."""
PATIENT = {"keep_alive_seconds": 600, "body_seconds": 600}
"""Of a server that cuts nobody off while a test lasts."""
PATIENCE_SECONDS = 30
"""How long a test waits for a server that ought to cut somebody off."""
CHEAP = {"name": "gnmax", "sigma": 100.0}


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    with impatient(tmp_path_factory.mktemp("abused"), digits_ensemble) as server:
        server.open_project("other", CHEAP)
        yield server


@pytest.fixture
def unpaid(served: RunningServer) -> Iterator[None]:
    """Asserts that the test costs nothing."""
    before = charges(served)
    yield
    assert charges(served) == before


@contextmanager
def impatient(
    directory: Path, ensemble: DigitsEnsemble, **settings: Any
) -> Iterator[RunningServer]:
    """A server with the project "study" that waits a second for anybody."""
    url = f"sqlite:///{directory / 'terrine.sqlite'}"
    short = {"keep_alive_seconds": SECONDS, "body_seconds": SECONDS} | settings
    with running_server(directory / "data", url, ensemble, **short) as server:
        server.open_project("study", CHEAP)
        yield server


def charges(server: RunningServer, project: str = "study") -> int:
    return server.ledger.project(project).charges


def question() -> bytes:
    """A .npy file of an input that nobody has asked before."""
    return npy(np.random.default_rng().integers(0, 17, (1, 8, 8), np.uint8))


def answers(server: RunningServer, count: int = 1) -> None:
    """Another student asks, and is answered."""
    caller = Caller(server, server.token())
    assert caller.label(server.ensemble.public[:count]).status_code == 200


def dribble(wires: list[Wire], data: bytes) -> None:
    """Send on a byte at a time until the server replies or closes.

    One that counts from the last byte never does.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while waiting := [wire for wire in wires if wire.silent()]:
        assert time.monotonic() < deadline, "the server waits for the end of what has none"
        for wire in waiting:
            wire.send(data)
        time.sleep(0.1)


# --------------------------------------------------------------------------- slow clients

HEADS = [b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: terrine\r\nX-A: "]
"""Begun, and not ended."""


def test_a_head_that_never_ends_is_closed(served: RunningServer) -> None:
    silent = [Wire(served) for _ in range(10)]
    talking = [Wire(served) for _ in range(20)]
    for wire, begun in zip(talking, HEADS * 10, strict=True):
        wire.send(begun)
    dribble(talking, b"x")
    assert all(wire.ends() for wire in [*silent, *talking])
    answers(served)


def test_a_second_head_has_no_more_time_than_the_first(served: RunningServer) -> None:
    with closing(Wire(served)) as wire:
        wire.send(request("GET", "/healthz"))
        assert wire.reply().status == 200
        wire.send(HEADS[1])
        dribble([wire], b"x")
        assert wire.ends()


def test_what_never_ends_holds_neither_threads_nor_the_project(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """More bodies than there are threads, all in the project of the student who is answered."""
    with impatient(tmp_path, digits_ensemble, **PATIENT) as server:
        wires = [Wire(server) for _ in range(100)]
        for wire, begun in zip(wires, HEADS * 20, strict=False):
            wire.send(begun)
        endless_bodies(server, wires[40:])
        answers(server)
        assert all(wire.silent() for wire in wires), "somebody was cut off"
        assert charges(server) == 1
        for wire in wires:
            wire.close()


def test_bodies_that_never_end_are_refused_and_cost_nothing(served: RunningServer) -> None:
    wires, before = [Wire(served) for _ in range(60)], charges(served)
    endless_bodies(served, wires)
    dribble(wires[1::2], b"x")
    assert {wire.reply().slug for wire in wires} == {"request-timeout"}
    assert all(wire.ends() for wire in wires)
    assert charges(served) == before
    answers(served, 2)


def endless_bodies(server: RunningServer, wires: list[Wire]) -> None:
    """Ask on every wire with a body whose end does not come; on every other by chunks."""
    token, body = server.token(), question()
    for number, wire in enumerate(wires):
        length = f"Content-Length: {len(body) + 1000}"
        wire.send(label(token, body[:-1], length) if number % 2 else label(token, b"", CHUNKED))


def test_a_stranger_cannot_hold_a_body_open_either(served: RunningServer) -> None:
    wires = [Wire(served) for _ in range(3)]
    for wire, path in zip(wires, ("/projects", "/tokens", "/label/estimate"), strict=True):
        wire.send(request("POST", path, "Content-Length: 100", body=b"{"))
    for wire in wires:
        assert wire.reply().slug == "request-timeout"
        assert wire.ends()


def test_a_slow_body_that_comes_in_time_is_answered_and_paid(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """Once its head is there, what bounds the time of heads does not bound the body."""
    with impatient(tmp_path, digits_ensemble, body_seconds=600) as server:
        body = question()
        with closing(Wire(server)) as wire:
            length = f"Content-Length: {len(body)}"
            wire.send(label(server.token(), b"", length, "Expect: 100-continue"))
            assert wire.reply().status == 100
            for at in range(0, len(body), 100):
                assert Wire(server).ends(), "so the time of a head has passed once more"
                wire.send(body[at : at + 100])
            assert wire.reply().status == 200
        assert charges(server) == 1


def test_at_the_limit_newcomers_are_told_so_and_those_within_go_on(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    with impatient(tmp_path, digits_ensemble, max_connections=5, **PATIENT) as server:
        ask = request("GET", "/budget", f"Authorization: Bearer {server.token()}")
        within = Wire(server)
        within.send(ask)
        assert within.reply().status == 200
        stuck = [Wire(server) for _ in range(4)]
        newcomer = Wire(server)
        newcomer.send(ask)
        told = newcomer.reply()
        assert (told.status, told.slug) == (503, "overloaded")
        assert int(told.headers["retry-after"]) > 0
        assert newcomer.ends()
        within.send(ask)
        assert within.reply().status == 200
        assert all(wire.silent() for wire in stuck)
        stuck.pop().close()
        served = until(lambda: asked_anew(server, ask), lambda reply: reply.status == 200)
        assert served.json()["project"] == "study"
        for wire in [within, *stuck]:
            wire.close()


def asked_anew(server: RunningServer, ask: bytes) -> Reply:
    """The reply on a connection of its own."""
    with closing(Wire(server)) as wire:
        wire.send(ask)
        return wire.reply()


# ------------------------------------------------------------------- two readings of a request

CHUNKED = "Transfer-Encoding: chunked"


@pytest.mark.usefixtures("unpaid")
@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(["Content-Length: 5", CHUNKED], id="a length and chunks"),
        pytest.param([CHUNKED, "Content-Length: 5"], id="chunks and a length"),
        pytest.param(["Content-Length: 5", "Content-Length: 6"], id="two lengths"),
        pytest.param(["Content-Length: 5, 6"], id="two lengths in one"),
        pytest.param(["Content-Length: +5"], id="a signed length"),
        pytest.param(["Content-Length: -5"], id="a negative length"),
        pytest.param(["Content-Length: 5_0"], id="an underscored length"),
        pytest.param(["Content-Length: 0x5"], id="a hexadecimal length"),
        pytest.param(["Content-Length: "], id="no length"),
        pytest.param(["Content-Length : 5"], id="a space before the colon"),
        pytest.param(["Content-Length: 5\rX-A: b"], id="a bare carriage return"),
        pytest.param(["X-A: \0", "Content-Length: 5"], id="a null"),
        pytest.param([CHUNKED, CHUNKED], id="chunked twice"),
        pytest.param(["Transfer-Encoding: xchunked"], id="nearly chunked"),
        pytest.param(["Transfer-Encoding: gzip, chunked"], id="two codings"),
        pytest.param(["Transfer-Encoding: identity", "Content-Length: 5"], id="identity"),
        pytest.param(["Transfer-Encoding\t: chunked"], id="a tab before the colon"),
    ],
)
def test_a_request_that_could_be_read_in_two_ways_is_not_read(
    served: RunningServer, headers: list[str]
) -> None:
    """Nor is the second request that one of the readings would find in its body."""
    body = question()
    hidden = label(served.token(), body, f"Content-Length: {len(body)}")
    with closing(Wire(served)) as wire:
        wire.send(label(served.token(), b"0\r\n\r\n" + hidden, *headers))
        told = wire.reply()
        assert (told.status, told.slug) == (400, "malformed-http")
        assert told.headers["connection"] == "close"
        assert wire.ends()


@pytest.mark.usefixtures("unpaid")
def test_chunks_belong_to_http_1_1(served: RunningServer) -> None:
    body = question()
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with closing(Wire(served)) as wire:
        wire.send(label(served.token(), chunks, CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert wire.reply().slug == "malformed-http"
        assert wire.ends()


@pytest.mark.usefixtures("unpaid")
@pytest.mark.parametrize("size", ["g", "-1", "+5", "0x5", "", "1_0", "1" * 30, "5 5"])
def test_a_chunk_of_no_size_ends_the_request_and_the_connection(
    served: RunningServer, size: str
) -> None:
    with closing(Wire(served)) as wire:
        wire.send(label(served.token(), size.encode() + b"\r\nhello\r\n0\r\n\r\n", CHUNKED))
        assert wire.reply().slug == "malformed-http"
        assert wire.ends()


@pytest.mark.usefixtures("unpaid")
@pytest.mark.parametrize("name", ["Idempotency-Key", "Authorization", "Content-Type"])
def test_a_value_cannot_smuggle_another_header_in(served: RunningServer, name: str) -> None:
    """Where something in front writes a line break through, the header comes twice."""
    body = question()
    length = f"Content-Length: {len(body)}"
    for line_break in ("\r\n", "\n"):
        with closing(Wire(served)) as wire:
            given = f"Idempotency-Key: a{line_break}{name}: b"
            wire.send(label(served.token(), body, given, length))
            assert wire.reply().slug == "invalid-request", (name, line_break)


@pytest.mark.usefixtures("unpaid")
@pytest.mark.parametrize(
    "key",
    [
        pytest.param("", id="empty"),
        pytest.param("a\r\n b", id="folded"),
        pytest.param("a\tb", id="a tab"),
        pytest.param("a b", id="a space"),
        pytest.param("schl\u00fcssel", id="latin-1"),
        pytest.param("k" * 60_000, id="sixty thousand"),
    ],
)
def test_a_key_that_two_programs_could_write_differently_is_refused(
    served: RunningServer, key: str
) -> None:
    body = question()
    with closing(Wire(served)) as wire:
        length = f"Content-Length: {len(body)}"
        wire.send(label(served.token(), body, f"Idempotency-Key: {key}", length))
        assert wire.reply().slug == "invalid-request"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /" + b"a" * 10**6 + b" HTTP/1.1\r\nHost: terrine\r\n\r\n", id="a path"),
        pytest.param(b"GET / HTTP/1.1\r\nX-A: " + b"a" * 10**6 + b"\r\n\r\n", id="a header"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 10**5 + b"\r\n", id="headers"),
        pytest.param(b"a" * 10**6, id="no line at all"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9, id="a TLS handshake"),
        pytest.param(
            b"GET / HTTP/9.9\r\nHost: terrine\r\nConnection: close\r\n\r\n", id="a future version"
        ),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", id="no host"),
    ],
)
def test_what_is_no_request_is_not_read_to_its_end(served: RunningServer, head: bytes) -> None:
    with closing(Wire(served)) as wire:
        wire.send(head)
        # The reset may overtake what was said.
        assert {told.slug for told in wire.rest()} <= {"malformed-http", "not-found"}
    answers(served)


def test_requests_in_one_packet_are_answered_in_order_each_to_its_own_token(
    served: RunningServer,
) -> None:
    """As they come from a proxy that keeps one connection for all of its students."""
    body, before = question(), (charges(served), charges(served, "other"))
    length = f"Content-Length: {len(body)}"
    mine, theirs = served.token(), served.token("student", "other")
    with closing(Wire(served)) as wire:
        wire.send(
            label(mine, body, length)
            + request("GET", "/budget", "Authorization: Bearer terrine_none")
            + label(theirs, body, length)
            + request("GET", "/budget", f"Authorization: Bearer {mine}")
        )
        assert wire.reply().json()["budget"]["project"] == "study"
        assert wire.reply().slug == "unauthorized"
        assert wire.reply().json()["budget"]["project"] == "other"
        assert wire.reply().json()["project"] == "study"
    assert (charges(served), charges(served, "other")) == (before[0] + 1, before[1] + 1)


def test_http_1_0_is_answered_and_closed(served: RunningServer) -> None:
    body, before = question(), charges(served)
    with closing(Wire(served)) as wire:
        ask = label(served.token(), body, f"Content-Length: {len(body)}")
        wire.send(ask.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert wire.reply().status == 200
        assert wire.ends()
    assert charges(served) == before + 1


# ---------------------------------------------------------------------- what is not theirs


def test_no_header_parameter_or_field_leads_into_another_project(served: RunningServer) -> None:
    inputs = served.ensemble.public[5:6]
    before = charges(served), charges(served, "other")
    student = Caller(served, served.token())
    named = {"X-Project": "other", "Idempotency-Key": "k", "X-Forwarded-For": "10.0.0.1"}
    mine = student.http.post("/label", json={"inputs": inputs.tolist()}, headers=named)
    assert mine.json()["budget"]["project"] == "study"
    assert charges(served, "other") == before[1]
    for wrong in (
        student.http.post("/label?project=other", json={"inputs": inputs.tolist()}),
        student.http.post("/label", json={"inputs": inputs.tolist(), "project": "other"}),
        student.http.get("/budget?project=other"),
        student.http.get("/project?name=other"),
    ):
        assert slug(wrong) == "invalid-request"

    # The same question under the same key is another project's own, and tells nothing of this.
    stranger = Caller(served, served.token("student", "other"))
    theirs = stranger.label(inputs, key="k").json()
    assert [result["replayed"] for result in theirs["results"]] == [False]
    assert theirs["budget"]["project"] == "other"
    assert (charges(served), charges(served, "other")) == (before[0] + 1, before[1] + 1)


def test_a_token_revoked_between_two_requests_of_a_connection_opens_nothing_more(
    served: RunningServer,
) -> None:
    token, body, before = served.token(), question(), charges(served)
    ask = label(token, body, f"Content-Length: {len(body)}")
    with closing(Wire(served)) as wire:
        wire.send(ask)
        assert wire.reply().status == 200
        served.ledger.revoke_token(token.split("_")[1])
        wire.send(ask)
        assert wire.reply().slug == "unauthorized"
    assert charges(served) == before + 1


def test_a_request_under_way_when_its_token_is_revoked_is_finished_and_paid(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """The token is judged when the head has come; the body has TERRINE_BODY_SECONDS to follow."""
    with impatient(tmp_path, digits_ensemble, body_seconds=30) as server:
        token, body = server.token(), question()
        with closing(Wire(server)) as wire:
            # The server asks for the body once it has let the token in.
            length = f"Content-Length: {len(body)}"
            wire.send(label(token, b"", length, "Expect: 100-continue"))
            assert wire.reply().status == 100
            server.ledger.revoke_token(token.split("_")[1])
            wire.send(body)
            assert wire.reply().status == 200
        assert charges(server) == 1


@pytest.mark.parametrize(
    "target",
    [
        "/metrics%0A",
        "/healthz%0a",
        "/metrics/",
        "//metrics",
        "/METRICS",
        "/./metrics",
        "/x/../metrics",
        "http://terrine/metrics",
        "/problems/../metrics",
        "/problems/..%2f..%2fsettings.py",
        "/problems/%3Cscript%3E",
        "/static/../../etc/passwd",
        "/docs",
        "/redoc",
    ],
)
def test_a_path_is_one_that_is_listed_or_nothing(served: RunningServer, target: str) -> None:
    """A proxy that keeps /metrics to itself matches paths as they are written."""
    with closing(Wire(served)) as wire:
        wire.send(request("GET", target))
        assert wire.reply().slug == "not-found"


def test_names_that_would_climb_out_of_a_directory_are_refused(served: RunningServer) -> None:
    admin = Caller(served, served.token("admin"))
    terms = {"mechanism": {"name": "gnmax", "sigma": 4.0}, "epsilon": 1.0, "delta": 1e-5}
    for name in ("..", "../../etc/passwd", "/etc/passwd", "digits/../digits", "digits\0", "%2e%2e"):
        for fields in ({"name": name, "ensemble": "digits"}, {"name": "x", "ensemble": name}):
            assert slug(admin.http.post("/projects", json=terms | fields)) == "invalid-request"
    auth = f"Authorization: Bearer {admin.http.headers['Authorization'].split()[1]}"
    for target in ("/projects/..", "/ledger/..%2f..%2fetc", "/ledger/%2e%2e/verify"):
        with closing(Wire(served)) as wire:
            wire.send(request("GET", target, auth))
            assert wire.reply().slug in ("invalid-request", "not-found"), target


# ---------------------------------------------------------------------------------- bombs


def test_a_crowd_of_bombs_holds_nobody_and_costs_nothing(
    tmp_path: Path, digits_ensemble: DigitsEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unpacks to all that is allowed and is no question; there are more than threads.

    Here none is done with before somebody else has been answered.
    """
    limit, bombs, unpack = 4 << 20, 60, decode
    begun, answered = Event(), Event()

    def unpack_for_long(kind: str, body: bytes, most: int) -> Decoded:
        begun.set()
        assert answered.wait(PATIENCE_SECONDS), "they hold somebody else"
        return unpack(kind, body, most)

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
        told = [wire.reply().slug for wire in wires]
        assert told == ["invalid-query", "payload-too-large"] * (bombs // 2)
        answers(server)
        assert charges(server) == 1


def test_beside_bodies_that_fill_the_memory_allowed_another_is_told_so(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """One alone is read, however little is allowed; what was held is free once it is answered."""
    with impatient(tmp_path, digits_ensemble, max_held_bytes=1024, body_seconds=30) as server:
        token, body = server.token(), npy(np.zeros((100, 8, 8), np.uint8))
        length = f"Content-Length: {len(body)}"
        asked = label(token, body, length)
        first = Wire(server)
        first.send(label(token, b"", length, "Expect: 100-continue"))
        assert first.reply().status == 100, "now it is read as it comes"
        first.send(body[:-1])
        second = Wire(server)
        second.send(asked)
        told = second.reply()
        assert (told.status, told.slug) == (503, "overloaded")
        assert int(told.headers["retry-after"]) > 0
        assert charges(server) == 0
        first.send(body[-1:])
        assert first.reply().status == 200
        first.send(asked)
        assert first.reply().status == 200
        assert charges(server) == 1
