"""Connections: one of a client, how long it may be silent, and the slot that it has."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import h11
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from terrine_server.serving import Limits
from terrine_server.serving.slots import Slot, client_network

# In the state of requests: the `Connection` that they came on.
CONNECTION = "connection"
# Connections beyond those of the limits, for refusals and for `/healthz`.
SPARE_CONNECTIONS = 32
# Connections that the system queues, and that are accepted before any is looked at.
BACKLOG = 128
# Bytes that a client must read within `write_seconds`, unless it reads all there are.
MIN_READ_BYTES = 64 * 1024


class Connection(H11Protocol):
    """One client's connection. h11 limits the size of a request's headers."""

    def __init__(self, *given: Any, write_seconds: float = 30, **more: Any) -> None:
        super().__init__(*given, **more)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._write_seconds = write_seconds
        self._headers_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None
        self._handling = False
        self._since = self.loop.time()
        self.lost = False
        """Whether the client has closed it."""
        self.slot = Slot()
        self.stopping = False
        self.app_state = {**self.app_state, CONNECTION: self}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        super().connection_made(transport)
        own: socket.socket = transport.get_extra_info("socket")
        # asyncio leaves Nagle's algorithm on for sockets that it did not make: the second segment
        # of a response would wait 40 ms for the first to be acknowledged.
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Otherwise the system takes megabytes from us before we notice that nobody reads them.
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MIN_READ_BYTES)
        # pause_writing: something could not be sent yet. With 0, TLS pauses when nothing waits.
        transport.set_write_buffer_limits(high=1, low=0)
        self.slot.owner = client_network(self.client[0]) if self.client else ""
        if self._most is not None and len(self.connections) > self._most + SPARE_CONNECTIONS:
            self._evict_idle(self._most + SPARE_CONNECTIONS)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self.lost = True
        super().connection_lost(exc)
        self._stop_waiting()
        self._stop_expecting_reading()
        if not self._handling:
            self.slot.leave()

    def data_received(self, data: bytes) -> None:
        """Process bytes; keep waiting while a request's headers are incomplete."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._expect_headers()
        else:
            self._stop_waiting()

    def pause_writing(self) -> None:
        """Something could not be sent yet: expect the client to read."""
        super().pause_writing()
        if self._read_due is None:
            self._expect_reading()

    def resume_writing(self) -> None:
        """Everything is sent."""
        super().resume_writing()
        self._stop_expecting_reading()
        self._finish_if_sent()

    def shutdown(self) -> None:
        """Close once the request in progress, if there is one, is answered."""
        self.stopping = True
        super().shutdown()

    def begin(self) -> None:
        """Note that a request is being handled."""
        self._handling = True

    def finish(self) -> None:
        """Note that it has been handled. Its slot is free once all of its response is sent."""
        self._handling, self._since = False, self.loop.time()
        self._finish_if_sent()

    def send_400_response(self, msg: str) -> None:
        """Respond to malformed HTTP as the app's `state.malformed` says, and close."""
        app: Any = self.app
        while not hasattr(app, "state"):  # uvicorn's own middleware is around it
            app = app.app
        response: Response = getattr(app.state, "malformed", _malformed)()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(
                    status_code=response.status_code,
                    headers=[*response.raw_headers, (b"connection", b"close")],
                    reason=b"Bad Request",
                ),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def _evict_idle(self, most: int) -> None:
        """Close a connection without a request: the oldest of whoever has most of them."""
        others = [other for other in self.connections if not other.transport.is_closing()]
        if len(others) <= most:
            return
        free = [
            other
            for other in others
            if isinstance(other, Connection) and other is not self and not other.slot.taken
        ]
        of = Counter(other.slot.owner for other in free)
        first = min(free, key=lambda other: (-of[other.slot.owner], other._since), default=self)
        first.transport.abort()

    def _expect_headers(self) -> None:
        if self._headers_due is None and not self.transport.is_closing():
            self._headers_due = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _expect_reading(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._read_due = self.loop.call_later(self._write_seconds, self._check_reading, unsent)

    def _stop_expecting_reading(self) -> None:
        if self._read_due is not None:
            self._read_due.cancel()
            self._read_due = None

    def _check_reading(self, unsent: int) -> None:
        if unsent - self.transport.get_write_buffer_size() < MIN_READ_BYTES:
            self.transport.abort()
        else:
            self._expect_reading()

    def _finish_if_sent(self) -> None:
        sent = self.transport.is_closing() or not self.transport.get_write_buffer_size()
        if sent and not self._handling:
            self.slot.leave()


@contextmanager
def request_slot(scope: Scope) -> Iterator[Slot]:
    """Yield the slot of the connection that a request came on, while the request is handled."""
    connection: Connection | None = scope.get("state", {}).get(CONNECTION)
    if connection is None:
        slot = Slot()
        try:
            yield slot
        finally:
            slot.leave()
    else:
        connection.begin()
        try:
            yield connection.slot
        finally:
            connection.finish()


def client_check(scope: Scope) -> Callable[[], None]:
    """Return a function that raises ClientDisconnect once the client of a request has hung up.

    Any thread may call it.
    """
    connection: Connection | None = scope.get("state", {}).get(CONNECTION)

    def check() -> None:
        if connection is not None and connection.lost:
            raise ClientDisconnect

    return check


def _malformed() -> Response:
    return JSONResponse({"error": "This is not an HTTP request that can be read."}, status_code=400)


def uvicorn_options(limits: Limits, proxies: str = "") -> dict[str, Any]:
    """Return the options of `uvicorn.Config` with which connections keep the limits.

    `proxies`: addresses of those who may say from which address a request comes.
    """
    return {
        "http": partial(Connection, write_seconds=limits.write_seconds),
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": bool(proxies),
        "forwarded_allow_ips": proxies or None,
        "limit_concurrency": limits.connections,
        "backlog": BACKLOG,
        "timeout_keep_alive": limits.keep_alive_seconds,
        "timeout_graceful_shutdown": limits.shutdown_seconds,
    }
