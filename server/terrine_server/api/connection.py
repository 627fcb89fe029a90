"""Limits on every connection: time for headers, number of connections, errors as problems.

uvicorn alone waits for ever for missing headers. At its limit it refuses requests even on the
connections that it already serves, and it answers malformed HTTP in plain text.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from uuid import uuid4

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from terrine_server.api.problems import problem
from terrine_server.settings import Settings

ONE_TOO_MANY = "one_too_many"
"""In the state of requests on a connection beyond the limit; the envelope refuses them."""


class Connection(H11Protocol):
    """One client's connection. h11 limits the size of a request's headers."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        super().connection_made(transport)
        # asyncio leaves Nagle's algorithm on for inherited sockets, which is what workers have: the
        # second segment of a response would wait 40 ms for the first to be acknowledged.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._most is not None and len(self.connections) > self._most:
            self.app_state = {**self.app_state, ONE_TOO_MANY: True}
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop_waiting()

    def data_received(self, data: bytes) -> None:
        """Process bytes; keep waiting while a request's headers are incomplete."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._expect_headers()
        else:
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Respond to malformed HTTP with a problem document, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            request_id = uuid4().hex
            response = problem(
                request_id,
                "",
                "malformed-http",
                "The request line, a header or a chunk is malformed or too long. "
                "Nothing was answered.",
            )
            headers = [
                *response.raw_headers,
                (b"x-request-id", request_id.encode()),
                (b"connection", b"close"),
            ]
            for event in (
                h11.Response(
                    status_code=response.status_code, headers=headers, reason=b"Bad Request"
                ),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def _expect_headers(self) -> None:
        if self._headers_due is None and not self.transport.is_closing():
            self._headers_due = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None


def options(settings: Settings) -> dict[str, Any]:
    """Return the options for `uvicorn.run` and `uvicorn.Config`."""
    return {
        "http": Connection,
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": bool(settings.forwarded_allow_ips),
        "forwarded_allow_ips": settings.forwarded_allow_ips or None,
        "limit_concurrency": settings.max_connections,
        "timeout_keep_alive": settings.keep_alive_seconds,
        "timeout_graceful_shutdown": settings.shutdown_seconds,
    }
