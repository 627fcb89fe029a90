"""Half-sent heads and bodies on the servers of owners, as on the service."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from support.data import DigitsEnsemble
from support.processes import PATIENCE_SECONDS, until
from support.servers import certified
from terrine_addons.federation.inference import encode_request
from terrine_addons.federation.teacher import Teacher
from terrine_server.serving import Limits, bodies, listening
from terrine_server.serving.bodies import limits_for
from terrine_server.serving.connections import SPARE_CONNECTIONS, uvicorn_options

PATH = "/v2/models/digits/infer"
TOKEN = "a-token-of-more-than-twenty-characters"
SHORT = replace(limits_for(4), keep_alive_seconds=1, body_seconds=1)
LONG = replace(limits_for(4), keep_alive_seconds=600, body_seconds=600)
ROWS = 4
HEADS = (b"", b"POST /v2/mod", b"GET / HTTP/1.1\r\nHost: terrine\r\nX-A: ")
"""Of these, none is complete."""


@dataclass(frozen=True)
class Small:
    """An owner's server, and a request with a body that it answers with 200."""

    url: str
    body: bytes
    headers: dict[str, str]
    trusted: ssl.SSLContext | None = None

    def connect(self) -> socket.socket:
        url = urlsplit(self.url)
        made = socket.create_connection((url.hostname, url.port), PATIENCE_SECONDS)
        if self.trusted is None:
            return made
        return self.trusted.wrap_socket(made, server_hostname=url.hostname)

    def head(self, length: int, token: str | None = None) -> bytes:
        lines = [
            f"POST {PATH} HTTP/1.1",
            "Host: terrine",
            f"Content-Length: {length}",
        ]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [] if token is None else [f"Authorization: Bearer {token}"]
        return "\r\n".join([*lines, "", ""]).encode()

    def status(self) -> int:
        """Send the request, and return the status of the reply."""
        headers = {**self.headers, "Authorization": f"Bearer {TOKEN}"}
        verify = True if self.trusted is None else self.trusted
        with httpx.Client(base_url=self.url, verify=verify, timeout=PATIENCE_SECONDS) as http:
            return http.post(PATH, content=self.body, headers=headers).status_code

    def answers(self) -> None:
        assert self.status() == 200


@contextmanager
def listening_on(app: Starlette, limits: Limits, pem: Path | None) -> Iterator[str]:
    """Serve as the commands do, in a thread."""
    (own,) = listening.bind("127.0.0.1", 0)
    key = None if pem is None else pem.with_suffix(".key")
    config = uvicorn.Config(
        app, loop="asyncio", ssl_certfile=pem, ssl_keyfile=key, **uvicorn_options(limits)
    )
    server = listening.ListeningServer(config, lambda url: None)
    thread = threading.Thread(target=server.run, args=([own],))
    thread.start()
    try:
        until(lambda: server.started, bool)
        scheme = "http" if pem is None else "https"
        yield f"{scheme}://127.0.0.1:{own.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def small(kind: str, limits: Limits, directory: Path, ensemble: DigitsEnsemble) -> Iterator[Small]:
    """Run the server of an owner."""
    pem = certified(directory, "tls") if kind.endswith("TLS") else None
    trusted = None if pem is None else ssl.create_default_context(cafile=pem)
    teacher = Teacher(ensemble.directory, "digits", TOKEN)
    body, headers = encode_request(ensemble.public[:ROWS], "input", None, binary=True)
    with listening_on(teacher.app(limits), limits, pem) as url:
        yield Small(url, body, headers, trusted)


KINDS = pytest.mark.parametrize("kind", ["owner", "owner over TLS"])


def closes(one: socket.socket) -> bool:
    """Whether the server ends the connection, whatever it says before."""
    try:
        while one.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


@KINDS
def test_half_sent_heads_are_closed(
    kind: str, tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    with small(kind, SHORT, tmp_path, digits_ensemble) as server, ExitStack() as stack:
        opened = [stack.enter_context(server.connect()) for _ in range(9)]
        for number, one in enumerate(opened):
            one.sendall(HEADS[number % 3])
        assert all(closes(one) for one in opened)
        until(server.status, lambda status: status == 200)  # a busy one may be late too


@KINDS
def test_more_half_sent_heads_than_there_is_room_for_keep_nobody_out(
    kind: str, tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    with small(kind, LONG, tmp_path, digits_ensemble) as server, ExitStack() as stack:
        for number in range(LONG.connections + SPARE_CONNECTIONS + 20):
            one = stack.enter_context(server.connect())
            one.sendall(HEADS[number % 3])
        for _ in range(3):
            server.answers()


@KINDS
def test_half_sent_bodies_are_refused(
    kind: str, tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """Of a stranger before they are read, of others once they are late; then they are closed."""
    with small(kind, SHORT, tmp_path, digits_ensemble) as server, ExitStack() as stack:

        def first_words(token: str | None) -> tuple[socket.socket, bytes]:
            one = stack.enter_context(server.connect())
            with suppress(ConnectionError):  # a busy machine may be late with the head
                one.sendall(server.head(len(server.body), token) + server.body[:-1])
                return one, one.recv(30)
            return one, b""

        for token, status in ((None, b" 401 "), (TOKEN, b" 408 ")):
            one, said = until(partial(first_words, token), lambda found: bool(found[1]))
            assert status in said
            assert closes(one)
        until(server.status, lambda status: status == 200)  # a busy one may be late too


def test_requests_in_progress_of_unauthenticateds_leave_places_for_those_with_a_token(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """Also those whose refusals are on their way, and those of the one token, which has half."""
    with small("owner", LONG, tmp_path, digits_ensemble) as server, ExitStack() as stack:
        for _ in range(LONG.connections + SPARE_CONNECTIONS):
            one = stack.enter_context(server.connect())
            one.sendall(server.head(len(server.body)))
        server.answers()


def test_refusals_that_are_free_to_repeat_are_answered_slowly(
    tmp_path: Path, digits_ensemble: DigitsEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "REFUSAL_SECONDS", 600.0)
    with (
        small("owner", LONG, tmp_path, digits_ensemble) as server,
        closing(server.connect()) as one,
    ):
        one.sendall(server.head(len(server.body)) + server.body)
        server.answers()
        one.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.recv(1)


def test_who_does_not_begin_tls_is_closed(
    tmp_path: Path, digits_ensemble: DigitsEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio alone waits a minute, and counts no such connection."""
    monkeypatch.setattr(listening, "TLS_SECONDS", 1.0)
    with small("owner over TLS", LONG, tmp_path, digits_ensemble) as server:
        with closing(replace(server, trusted=None).connect()) as one:
            one.settimeout(PATIENCE_SECONDS / 2)
            assert closes(one)
        server.answers()
