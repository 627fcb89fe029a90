"""Clients that send malformed or ambiguous requests, or try to reach other projects."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from support.clients import (
    PATIENT,
    Caller,
    Wire,
    answers,
    charges,
    impatient,
    label,
    question,
    raw_request,
    slug,
)
from support.data import DigitsEnsemble
from support.servers import RunningServer

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
def test_an_ambiguous_request_is_refused(served: RunningServer, headers: list[str]) -> None:
    """So is the second request that one of the readings would find in its body."""
    body = question()
    hidden = label(served.token(), body, f"Content-Length: {len(body)}")
    with closing(Wire(served)) as wire:
        wire.send(label(served.token(), b"0\r\n\r\n" + hidden, *headers))
        reply = wire.reply()
        assert (reply.status, reply.slug) == (400, "malformed-http")
        assert reply.headers["connection"] == "close"
        assert wire.ends()


def test_chunks_require_http_1_1(served: RunningServer) -> None:
    body, before = question(), charges(served)
    halves = b"".join(b"%x\r\n%s\r\n" % (len(half), half) for half in (body[:99], body[99:]))
    asked = label(served.token(), halves + b"0\r\n\r\n", CHUNKED)
    with closing(Wire(served)) as wire:
        wire.send(asked.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert wire.reply().slug == "malformed-http"
        assert wire.ends()
    assert charges(served) == before
    with closing(Wire(served)) as wire:
        wire.send(asked)
        assert wire.reply().status == 200
    assert charges(served) == before + 1


@pytest.mark.usefixtures("unpaid")
@pytest.mark.parametrize("size", ["g", "-1", "+5", "0x5", "", "1_0", "1" * 30, "5 5"])
def test_a_chunk_without_a_size_ends_the_request_and_the_connection(
    served: RunningServer, size: str
) -> None:
    with closing(Wire(served)) as wire:
        wire.send(label(served.token(), size.encode() + b"\r\nhello\r\n0\r\n\r\n", CHUNKED))
        assert wire.reply().slug == "malformed-http"
        assert wire.ends()


@pytest.mark.usefixtures("unpaid")
@pytest.mark.parametrize("name", ["Authorization", "Content-Type"])
def test_a_value_cannot_smuggle_in_another_header(served: RunningServer, name: str) -> None:
    """If a proxy passes a line break through, the header appears twice."""
    body = question()
    length = f"Content-Length: {len(body)}"
    for line_break in ("\r\n", "\n"):
        with closing(Wire(served)) as wire:
            given = f"X-Any: a{line_break}{name}: b"
            wire.send(label(served.token(), body, given, length))
            assert wire.reply().slug == "invalid-request", (name, line_break)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /" + b"a" * 10**6 + b" HTTP/1.1\r\nHost: terrine\r\n\r\n", id="a path"),
        pytest.param(b"GET / HTTP/1.1\r\nX-A: " + b"a" * 10**6 + b"\r\n\r\n", id="a header"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 10**5 + b"\r\n", id="headers"),
        pytest.param(b"a" * 10**6, id="no line at all"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9, id="a TLS handshake"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", id="no host"),
    ],
)
def test_a_malformed_request_is_not_read_to_its_end(served: RunningServer, head: bytes) -> None:
    with closing(Wire(served)) as wire:
        wire.send(head)
        # The reset may overtake the response.
        assert {reply.slug for reply in wire.rest()} <= {"malformed-http", "not-found"}
    answers(served)


def test_requests_in_one_packet_are_answered_in_order_each_to_its_own_token(
    served: RunningServer,
) -> None:
    """As from a proxy that uses one connection for all of its students."""
    body, before = question(), (charges(served), charges(served, "other"))
    length = f"Content-Length: {len(body)}"
    mine, theirs = served.token(), served.token("student", "other")
    with closing(Wire(served)) as wire:
        wire.send(
            label(mine, body, length)
            + raw_request("GET", "/budget", "Authorization: Bearer terrine_none")
            + label(theirs, body, length)
            + raw_request("GET", "/budget", f"Authorization: Bearer {mine}")
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


# ------------------------------------------------------------------------- other projects


def test_no_header_parameter_or_field_reaches_another_project(served: RunningServer) -> None:
    inputs = served.ensemble.public[5:6]
    before = charges(served), charges(served, "other")
    student = Caller(served, served.token())
    named = {"X-Project": "other", "X-Forwarded-For": "10.0.0.1"}
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

    # The same query in another project is a new request, and reveals nothing.
    stranger = Caller(served, served.token("student", "other"))
    theirs = stranger.label(inputs).json()
    assert [result["replayed"] for result in theirs["results"]] == [False]
    assert theirs["budget"]["project"] == "other"
    assert (charges(served), charges(served, "other")) == (before[0] + 1, before[1] + 1)


def test_a_token_revoked_between_two_requests_of_a_connection_is_refused(
    served: RunningServer,
) -> None:
    token, body, before = served.token(), question(), charges(served)
    ask = label(token, body, f"Content-Length: {len(body)}")
    with closing(Wire(served)) as wire:
        wire.send(ask)
        assert wire.reply().status == 200
        served.ledger.tokens.revoke(token.split("_")[1])
        wire.send(ask)
        revoked = wire.reply()
        assert (revoked.status, revoked.slug) == (401, "unauthorized")
        assert b"revoked" in revoked.body
    assert charges(served) == before + 1


def test_a_token_revoked_while_a_request_is_sent_is_refused(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """It is checked after the head and again when the request's turn comes."""
    with impatient(tmp_path, digits_ensemble, **PATIENT) as server:
        token, body = server.token(), question()
        with closing(Wire(server)) as wire:
            # The server asks for the body once it has accepted the token.
            length = f"Content-Length: {len(body)}"
            wire.send(label(token, b"", length, "Expect: 100-continue"))
            assert wire.reply().status == 100
            server.ledger.tokens.revoke(token.split("_")[1])
            wire.send(body)
            assert wire.reply().slug == "unauthorized"
        assert charges(server) == 0


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
        "/problems/../metrics",
        "/problems/..%2f..%2fsettings.py",
        "/problems/%3Cscript%3E",
        "/static/../../etc/passwd",
        "/docs",
        "/redoc",
    ],
)
def test_paths_match_only_as_they_are_listed(served: RunningServer, target: str) -> None:
    """A proxy that blocks /metrics matches paths literally."""
    with closing(Wire(served)) as wire:
        wire.send(raw_request("GET", target))
        assert wire.reply().slug == "not-found"


def test_names_with_directory_traversal_are_refused(served: RunningServer) -> None:
    admin = Caller(served, served.token("admin"))
    terms = {"mechanism": {"name": "gnmax", "sigma": 4.0}, "epsilon": 1.0, "delta": 1e-5}
    for name in ("..", "../../etc/passwd", "/etc/passwd", "digits/../digits", "digits\0", "%2e%2e"):
        for fields in ({"name": name, "ensemble": "digits"}, {"name": "x", "ensemble": name}):
            assert slug(admin.http.post("/projects", json=terms | fields)) == "invalid-request"
    auth = f"Authorization: Bearer {admin.http.headers['Authorization'].split()[1]}"
    for target in ("/projects/..", "/ledger/..%2f..%2fetc", "/ledger/%2e%2e/verify"):
        with closing(Wire(served)) as wire:
            wire.send(raw_request("GET", target, auth))
            assert wire.reply().slug in ("invalid-request", "not-found"), target
