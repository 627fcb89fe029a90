"""Clients who want nobody else to be served, against `terrine serve` in a process of its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from support.processes import PATIENCE_SECONDS, until
from support.servers import Machine, Serving, question, serving_process
from support.wording import holds
from terrine_protocol import Role
from terrine_server.serving.connections import SPARE_CONNECTIONS

PAGES = b"GET /openapi.json HTTP/1.1\r\nHost: terrine\r\n\r\n" * 100
"""More than sockets take without a reader."""
SEATS = 32
"""Requests that are served at a time: as few as show who gets them."""


def connection(server: Serving, source: str = "127.0.0.1", buffer: int = 4096) -> socket.socket:
    """Connect from an address of this machine, with a receive buffer of about this many bytes."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    made.settimeout(120)
    made.bind((source, 0))
    url = urlsplit(server.url)
    assert url.hostname is not None
    assert url.port is not None
    made.connect((url.hostname, url.port))
    return made


@contextmanager
def never_reading(
    server: Serving, count: int, sources: int, more: bytes = b""
) -> Iterator[list[socket.socket]]:
    """Open connections from several addresses that ask for pages and never read them."""
    made = [connection(server, f"127.0.1.{number % sources + 1}") for number in range(count)]
    try:
        for one in made:
            one.setblocking(False)
            one.send(PAGES.replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n"))
        yield made
    finally:
        for one in made:
            one.close()


def client(server: Serving, source: str, headers: dict[str, str] | None = None) -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=source)
    return httpx.Client(
        base_url=server.url, transport=transport, headers=headers, timeout=PATIENCE_SECONDS
    )


def take_all(
    server: Serving, open_: ExitStack, refused: Callable[[], bool], sources: int, more: bytes = b""
) -> None:
    """Open connections that are never read until no slot of their share is left.

    While they still ask, one whose slot was taken in between is refused and closed: others follow.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not refused():
        assert time.monotonic() < deadline
        open_.enter_context(never_reading(server, 4, sources, more))


def take_all_of(headers: dict[str, str], server: Serving, open_: ExitStack) -> None:
    """Take all slots of a token."""
    own = open_.enter_context(client(server, "127.0.1.1", headers))
    line = f"Authorization: {headers['Authorization']}\r\n".encode()
    take_all(server, open_, lambda: own.get("/budget").status_code == 503, 4, line)


def test_those_who_never_read_from_many_addresses_keep_no_student_out(
    served_machine: Machine,
) -> None:
    """They have all slots of the unauthenticated until they are closed; health is answered
    meanwhile."""
    headers = served_machine.student("kept", 5)
    with (
        serving_process(served_machine, write_seconds=10, max_connections=SEATS) as server,
        never_reading(server, SEATS, 16),
        client(server, "127.0.2.1") as stranger,
        client(server, "127.0.2.1", headers) as own,
        ExitStack() as open_,
    ):
        take_all(server, open_, lambda: stranger.get("/problems").status_code == 503, 4)
        for _ in range(20):
            assert stranger.get("/healthz").status_code == 200
            assert own.get("/budget").status_code == 200
        assert own.post("/label", json=question(1)).status_code == 200
        until(lambda: stranger.get("/problems").status_code, lambda status: status == 200)


def test_colluding_students_who_never_read_keep_no_other_student_out(
    served_machine: Machine,
) -> None:
    """Each takes half of the slots that are left, and no more."""
    others = served_machine.student("kept", 5)
    league = [served_machine.student(name, 5) for name in ("greedy", "grasping")]
    league.append(served_machine.bearer(Role.STUDENT, "greedy"))
    with (
        serving_process(served_machine, write_seconds=60, max_connections=SEATS) as server,
        ExitStack() as open_,
        client(server, "127.0.2.1", others) as other,
    ):
        for headers in league:
            take_all_of(headers, server, open_)
        for number in range(20):
            assert other.post("/label", json=question(number % 5)).status_code == 200


def test_a_proxy_that_is_trusted_says_whose_share_a_request_counts_in(
    served_machine: Machine,
) -> None:
    """Those of one client of the proxy; and a client that only claims to be a proxy is none."""
    forwarded = b"X-Forwarded-For: 10.0.0.9\r\n"
    with (
        serving_process(
            served_machine, forwarded_allow_ips="127.0.1.1", max_connections=12, write_seconds=60
        ) as server,
        never_reading(server, 3, 1, forwarded),
        client(server, "127.0.1.1") as proxy,
        client(server, "127.0.2.1") as liar,
    ):

        def seen(by: httpx.Client, address: str) -> int:
            return by.get("/problems", headers={"X-Forwarded-For": address}).status_code

        until(lambda: seen(proxy, "10.0.0.9"), lambda status: status == 503)
        assert seen(proxy, "10.0.0.8") == 200
        assert seen(liar, "10.0.0.9") == 200


def test_idle_connections_give_way_to_new_ones(served_machine: Machine) -> None:
    """Those of whoever has most of them; the connections of others stay."""
    headers = served_machine.student("kept", 5)
    with serving_process(served_machine, max_connections=16, keep_alive_seconds=60) as server:
        host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
        assert host is not None
        own, stranger = (
            HTTPConnection(host, port, source_address=(source, 0), timeout=PATIENCE_SECONDS)
            for source in ("127.0.2.1", "127.0.2.2")
        )
        for one in (own, stranger):
            one.connect()
            one.auto_open = 0  # it stays the same connection

        def check() -> None:
            own.request("GET", "/budget", headers=headers)
            stranger.request("GET", "/healthz")
            for reply in (own.getresponse(), stranger.getresponse()):
                assert reply.status == 200
                reply.read()

        check()
        idle = [connection(server, "127.0.1.1") for _ in range(300)]
        check()
        with client(server, "127.0.1.1") as newcomer:
            assert newcomer.get("/healthz").status_code == 200
        assert sum(not ended(one) for one in idle) <= 16 + SPARE_CONNECTIONS
        check()
        for done in idle:
            done.close()
        for one in (own, stranger):
            one.close()


def ended(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_more_connections_than_descriptors_are_refused_and_do_not_fill_the_log(
    served_machine: Machine,
) -> None:
    """`ulimit -n 1024` and 1,100 idle connections: others are served as if they were not there."""
    headers = served_machine.student("kept", 5)
    with serving_process(served_machine, descriptors=(1024, 1024), max_connections=5000) as server:
        (warned,) = server.entries("may be a mistake")
        assert warned["setting"] == "TERRINE_MAX_CONNECTIONS"
        idle = [connection(server, f"127.0.1.{number % 50 + 1}") for number in range(1100)]
        with client(server, "127.0.2.1", headers) as own:
            for number in range(5):
                assert own.get("/healthz").status_code == 200
                assert own.post("/label", json=question(number)).status_code == 200
        files = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        assert files < 1024
        assert not server.entries("out of system resource")
        assert sum(map(len, server.lines)) < 100_000
        for one in idle:
            one.close()


def test_a_server_allows_itself_as_many_descriptors_as_it_may(served_machine: Machine) -> None:
    with serving_process(served_machine, descriptors=(256, 4096)) as server:
        limits = Path(f"/proc/{server.pid}/limits").read_text()
        holds(limits, "Max", "open", "files", 4096)
        assert not server.entries("may be a mistake")
