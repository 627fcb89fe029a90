"""A connection of the server: options of its socket, and how slowly a client may read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.responses import Response
from uvicorn.server import ServerState

from terrine_server.serving.connections import MIN_READ_BYTES, Connection, uvicorn_options
from terrine_server.settings import Settings

LARGE = bytes(4_000_000)
"""More than sockets take without a reader, several times."""
WRITE_SECONDS = 30


@asynccontextmanager
async def accepted(directory: Path) -> AsyncIterator[tuple[Connection, socket.socket]]:
    """A connection to a server that responds with `LARGE`, and its client's socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # they take a little at a time
    for end in (client, server):
        end.setblocking(False)
    limits = Settings(data_dir=directory, write_seconds=WRITE_SECONDS).limits
    config = uvicorn.Config(Response(LARGE), **uvicorn_options(limits))
    config.load()
    make: Any = config.http_protocol_class
    _, connection = await asyncio.get_running_loop().connect_accepted_socket(
        lambda: make(config=config, server_state=ServerState(), app_state={}), server
    )
    yield connection, client
    client.close()
    if not connection.transport.is_closing():
        connection.transport.abort()


def test_a_response_does_not_wait_for_its_first_segment_to_be_acknowledged(tmp_path: Path) -> None:
    """asyncio leaves Nagle's algorithm on for sockets that it did not make."""

    async def delays() -> int:
        async with accepted(tmp_path) as (connection, _):
            own = connection.transport.get_extra_info("socket")
            return int(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    assert asyncio.run(delays())


class Reading:
    """A client that reads a large response; the clock of the server is its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now)
        self.read = 0
        self._loop = loop

    async def some(self, client: socket.socket) -> bool:
        """Read what is there; returns whether there may be more."""
        try:
            data = await self._loop.sock_recv(client, 16_384)
        except ConnectionError:
            return False
        self.read += len(data)
        return bool(data)

    async def passes(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(5):  # timers, and what they close
            await asyncio.sleep(0)


async def asked(client: socket.socket, connection: Connection) -> int:
    """Ask, and return how many bytes wait to be read once no more fit into sockets."""
    await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
    while connection._read_due is None:
        await asyncio.sleep(0)
    return connection.transport.get_write_buffer_size()


def run(work: Any) -> Any:
    with asyncio.Runner() as runner:
        return runner.run(work)


def test_a_client_that_reads_slowly_but_steadily_gets_all_of_its_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes many times as long as a client may pause, and just as little as it must."""

    async def read_all() -> tuple[int, float]:
        async with accepted(tmp_path) as (connection, client):
            unsent = await asked(client, connection)
            reading = Reading(asyncio.get_running_loop(), monkeypatch)
            began, waits = reading.now, connection.transport.get_write_buffer_size
            while unsent > MIN_READ_BYTES:
                while unsent - waits() < MIN_READ_BYTES:
                    assert await reading.some(client)
                unsent = waits()
                await reading.passes(WRITE_SECONDS)
            while reading.read < len(LARGE):
                assert await reading.some(client)
            return reading.read, reading.now - began

    read, seconds = run(read_all())
    assert read >= len(LARGE)
    assert seconds > 10 * WRITE_SECONDS


def test_a_client_that_reads_less_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a time in which it read enough."""

    async def read_a_little() -> int:
        async with accepted(tmp_path) as (connection, client):
            unsent = await asked(client, connection)
            reading = Reading(asyncio.get_running_loop(), monkeypatch)
            waits = connection.transport.get_write_buffer_size
            while unsent - waits() < MIN_READ_BYTES:
                assert await reading.some(client)
            unsent = waits()
            await reading.passes(WRITE_SECONDS)
            while unsent == waits():
                assert await reading.some(client)
            assert unsent - waits() < MIN_READ_BYTES
            await reading.passes(WRITE_SECONDS - 1)
            assert waits(), "it was closed too early"
            await reading.passes(1)
            assert not waits(), "it is not closed"
            while await reading.some(client):
                pass
            return reading.read

    assert run(read_a_little()) < len(LARGE)
