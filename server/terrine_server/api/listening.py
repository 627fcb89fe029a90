"""Listens on the address of the settings, and serves there."""

from __future__ import annotations

import errno
import socket
from typing import Any

import structlog
import uvicorn
from uvicorn.supervisors import Multiprocess

from terrine_server.api import connection, descriptors
from terrine_server.settings import Settings

log = structlog.get_logger("terrine")

WORKER_SECONDS = 20
"""A worker that does not respond for this long is replaced."""


class CannotListen(Exception):  # noqa: N818 - says what to do
    """The address is taken, or none of this machine's. `setting` names what to change."""

    def __init__(self, message: str, setting: str) -> None:
        super().__init__(message)
        self.setting = setting


def bind(settings: Settings) -> list[socket.socket]:
    """Bind a socket to each of the host's addresses; none of them listens yet.

    Raises CannotListen.
    """
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return [_bound(family, address) for family, address in {(a[0], a[4]): None for a in found}]
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _taken(port) from error
        if error.errno == errno.EACCES:
            raise CannotListen(
                f"This account may not listen on port {port}. Set TERRINE_PORT to 1024 or more.",
                "TERRINE_PORT",
            ) from error
        raise CannotListen(
            f"{host} is no address of this machine ({error.strerror}). Set TERRINE_HOST.",
            "TERRINE_HOST",
        ) from error


def _bound(family: int, address: Any) -> socket.socket:
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    made.set_inheritable(True)
    return made


class Server(uvicorn.Server):
    """A server that says where it listens, also if it was given sockets."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load, then listen."""
        await super().startup(sockets)
        _announce(sockets or [])


def connections(settings: Settings) -> int:
    """Return how many connections can be served at a time, after allowing more descriptors."""
    return descriptors.connections_within(descriptors.raise_limit(), settings.max_connections)


def serve(app: Any, sockets: list[socket.socket], settings: Settings) -> None:
    """Serve an app until interrupted. Raises CannotListen if another listens there by now."""
    server = Server(uvicorn.Config(app, **_options(settings)))
    try:
        server.run(sockets)
    except OSError as error:
        if server.started or error.errno != errno.EADDRINUSE:
            raise
        raise _taken(sockets[0].getsockname()[1]) from error


def serve_with_workers(
    app: str, sockets: list[socket.socket], settings: Settings, workers: int
) -> None:
    """Serve in processes that share the sockets; `app` names the function that makes the app."""
    config = uvicorn.Config(
        app,
        factory=True,
        workers=workers,
        timeout_worker_healthcheck=WORKER_SECONDS,
        **_options(settings),
    )
    _announce(sockets)
    Multiprocess(config, sockets).run()


def _options(settings: Settings) -> dict[str, Any]:
    return connection.options(settings) | {"limit_concurrency": connections(settings)}


def _taken(port: int) -> CannotListen:
    return CannotListen(
        f"Port {port} is in use. Stop what listens on it, or set TERRINE_PORT.", "TERRINE_PORT"
    )


def _announce(sockets: list[socket.socket]) -> None:
    for own in sockets:
        host, port = own.getsockname()[:2]
        log.info(f"Terrine running on http://{f'[{host}]' if ':' in host else host}:{port}")
