"""Any bytes get a valid answer, paid once, or a problem that costs nothing."""

from __future__ import annotations

import http.client
import json
import zipfile
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from caller import npy
from digits import DigitsEnsemble
from fuzzing import BODIES, CUT_OFF, SHARES, answered, examples, tell, tireless_server
from hypothesis import example, given
from hypothesis import strategies as st
from label_bodies import (
    BOMB,
    FAULTS,
    INVALID_OR_NOT,
    MANY,
    NPZ,
    Sent,
    archive,
    damaged,
    images,
    valid,
)
from patience import PATIENCE_SECONDS
from server import RunningServer
from wire import Wire, label

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("fuzzed")
    url = f"sqlite:///{directory / 'terrine.sqlite'}"
    with tireless_server(directory / "data", url, digits_ensemble) as server:
        yield server


class Student:
    """Sends any bytes, and checks every response against the ledger."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.address = urlsplit(server.url).netloc
        self.token = server.token()
        self.connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_SECONDS)
        self.paid = server.ledger.project("study").charges

    def send(self, kind: str, body: bytes, **headers: str) -> int:
        """Send one request and check its response. Returns the status."""
        given = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        self.connection.request("POST", "/label", body, given | headers)
        reply = self.connection.getresponse()
        return self.check(reply.status, reply.headers["Content-Type"], reply.read())

    def check(self, status: int, kind: str, body: bytes) -> int:
        document = json.loads(body)
        if status == 200:
            results = document["results"]
            self.paid += len({r["charge"] for r in results if r["charge"] and not r["replayed"]})
            assert document["budget"]["charges"] == self.paid
        else:
            assert 400 <= status < 500, document
            assert kind == "application/problem+json"
            assert document["status"] == status
            assert document["type"].startswith("/problems/")
        return status

    def settle(self) -> None:
        """Check that the ledger has the charges of the valid responses, and no more."""
        assert self.server.ledger.project("study").charges == self.paid
        assert self.server.ledger.verify("study").ok


@SHARES
def test_no_body_costs_more_than_its_response_says(server: RunningServer, share: int) -> None:
    student, before = Student(server), answered(server)

    @examples(BODIES * 39 // 160 // share)
    @given(INVALID_OR_NOT, FAULTS)
    @example((NPZ, archive([("inputs.npy", BOMB, zipfile.ZIP_DEFLATED)], b"")), [])
    @example(("text/plain", b""), [])
    def any_bytes(sent: Sent, faults: list[tuple[str, int, int]]) -> None:
        kind, body = sent
        student.send(kind, body)
        for fault in faults:
            body = damaged(body, *fault)
            student.send(kind, body)

    @examples(BODIES // 40 // share)
    @given(valid(MANY))
    def valid_bytes(sent: Sent) -> None:
        assert student.send(*sent) == 200

    any_bytes()
    student.settle()
    refused = answered(server) - before
    assert {200, 413, 415, 422} <= set(refused)
    valid_bytes()
    student.settle()
    counts = answered(server) - before
    tell(counts)
    assert counts.total() >= BODIES // share


FRAMES = st.sampled_from(["short", "long", "chunks", "bad chunks", "unended chunks"])
NO_SIZE = st.sampled_from([b"", b"g", b"-1", b"+5", b"0x5", b"1_0", b"5 5", b"1" * 21])


def framed(token: str, body: bytes, frame: str, at: int, size: bytes) -> bytes:
    """Return a request with `body` and a wrong length, or in valid or invalid chunks."""
    chunks = [chunk for chunk in (body[:at], body[at:]) if chunk]
    joined = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    match frame:
        case "short":
            return label(token, body[:at], "Connection: close", f"Content-Length: {len(body)}")
        case "long":
            return label(token, body, "Connection: close", f"Content-Length: {at}")
        case "chunks":
            joined += b"0\r\n\r\n"
        case "bad chunks":
            joined = size + b"\r\n" + joined
    return label(token, joined, "Connection: close", "Transfer-Encoding: chunked")


@SHARES
def test_bodies_that_are_truncated_or_framed_wrongly_cost_nothing(
    server: RunningServer, share: int
) -> None:
    student, before = Student(server), answered(server)

    @examples(CUT_OFF // share)
    @given(images(MANY).map(npy), FRAMES, st.integers(0, 10**6), NO_SIZE)
    def framed_somehow(body: bytes, frame: str, at: int, size: bytes) -> None:
        wire = Wire(server)
        at %= len(body)
        wire.send(framed(student.token, body, frame, at, size))
        if frame in ("short", "unended chunks"):
            wire.close()  # no response can come before the body's end
            return
        reply = wire.reply()
        assert wire.ends()
        wire.close()
        status = student.check(reply.status, reply.headers["content-type"], reply.body)
        assert (status == 200) is (frame == "chunks")

    framed_somehow()
    student.settle()
    tell(answered(server) - before)
