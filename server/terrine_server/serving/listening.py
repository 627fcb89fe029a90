"""Listens on an address and serves there, with as many connections as file descriptors allow.

A process without descriptors cannot accept a connection, open a file or reach its database, and
asyncio logs an error each time that it tries.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from terrine_protocol.errors import TerrineError
from terrine_server.serving import Limits
from terrine_server.serving.connections import BACKLOG, SPARE_CONNECTIONS, uvicorn_options

# How long a thread may compute while another waits for Python's interpreter. With Python's own 5
# ms, a request that passes between threads six times waits 30 ms beside one that is decoded.
SWITCH_SECONDS = 0.0001
# How long a client may take to agree on a TLS connection, and to end it: nobody counts these.
TLS_SECONDS = 5.0
# Enough. Some systems allow a billion, and some programs close each of them in turn.
MAX_FILES = 65536
# Kept for everything else: files, the database, the log, libraries.
OTHER_FILES = 256
# Descriptors needed besides those of the limit's connections. Connections are counted, and those
# beyond the limit closed, only after as many as `BACKLOG` were accepted, twice at worst.
NEEDED_FILES = SPARE_CONNECTIONS + 2 * BACKLOG + OTHER_FILES
# Connections below which it makes no sense to serve.
MIN_CONNECTIONS = 16


class CannotListen(TerrineError):  # noqa: N818 - says what to do
    """The address is taken, or none of this machine's. `setting` names what to change."""

    def __init__(self, message: str, setting: str) -> None:
        super().__init__(message)
        self.setting = setting


class TooFewDescriptors(TerrineError):  # noqa: N818 - says what to do
    """The process may open so few files that it cannot serve."""


def raise_limit() -> int:
    """Let this process, and those that it starts, open as many as it may; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return MAX_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def fit_connections(limit: int, wanted: int) -> int:
    """Return how many of the connections `wanted` are possible with `limit` descriptors.

    Raises TooFewDescriptors if hardly any are.
    """
    possible = limit - NEEDED_FILES
    if possible < min(MIN_CONNECTIONS, wanted):
        raise TooFewDescriptors(
            f"This process may open {limit} files, and at least "
            f"{NEEDED_FILES + MIN_CONNECTIONS} are needed. Allow more (`ulimit -n`)."
        )
    return min(possible, wanted)


EVERY_ADDRESS = "*"


def bind(host: str, port: int) -> list[socket.socket]:
    """Bind a socket to each of the host's addresses; none of them listens yet.

    `host`: "*" is every address of IPv4 and of IPv6, whichever of them the machine has. Raises
    CannotListen.
    """
    name = None if host == EVERY_ADDRESS else host
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = list({(each[0], each[4]): None for each in found})
        if name is None and len(addresses) > 1:
            addresses = [each for each in addresses if _has_family(each[0])] or addresses
        return [_bind_socket(family, address) for family, address in addresses]
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _port_taken(port) from error
        if error.errno == errno.EACCES:
            raise CannotListen(
                f"This account may not listen on port {port}. Choose 1024 or more.",
                "TERRINE_PORT",
            ) from error
        raise CannotListen(
            f"{host} is not an address of this machine ({error.strerror}). Choose another.",
            "TERRINE_HOST",
        ) from error


def _has_family(family: int) -> bool:
    """Whether the machine's kernel knows a family of addresses."""
    try:
        socket.socket(family).close()
    except OSError:
        return False
    return True


def _bind_socket(family: int, address: Any) -> socket.socket:
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


class ListeningServer(uvicorn.Server):
    """Says where it listens, and gives nobody long to agree on TLS."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[str], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load, then listen."""
        if self.config.is_ssl:
            loop = asyncio.get_running_loop()
            # uvicorn has no setting for this; asyncio waits 60 s, and 30 s for the end.
            seconds = {"ssl_handshake_timeout": TLS_SECONDS, "ssl_shutdown_timeout": TLS_SECONDS}
            loop.create_server = partial(loop.create_server, **seconds)  # type: ignore[method-assign]
        await super().startup(sockets)
        for own in sockets or []:
            self._announce(_url(own, "https" if self.config.is_ssl else "http"))


def allow_connections(most: int) -> int:
    """Return how many connections can be served at a time, after allowing more descriptors."""
    return fit_connections(raise_limit(), most)


def serve(
    app: Any,
    sockets: list[socket.socket],
    limits: Limits,
    *,
    proxies: str = "",
    certificate: Path | None = None,
    key: Path | None = None,
    announce: Callable[[str], None],
) -> None:
    """Serve an app until interrupted: plainly, or over TLS with a certificate chain and its key.

    `proxies`: who may say from which address a request comes. `announce`: called with each URL once
    it listens there. Raises CannotListen if another listens there by now.
    """
    config = uvicorn.Config(
        app,
        loop="asyncio",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        **uvicorn_options(limits, proxies)
        | {"limit_concurrency": allow_connections(limits.connections)},
    )
    server = ListeningServer(config, announce)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        server.run(sockets)
    except OSError as error:
        if server.started or error.errno != errno.EADDRINUSE:
            raise
        raise _port_taken(sockets[0].getsockname()[1]) from error


def _port_taken(port: int) -> CannotListen:
    return CannotListen(
        f"Port {port} is in use. Stop what listens on it, or choose another.", "TERRINE_PORT"
    )


def _url(own: socket.socket, scheme: str) -> str:
    host, port = own.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
