"""What those who connect may take of a server's process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one process. Seconds are whole, as those who set them think of them."""

    connections: int
    """Requests that are served at a time; at most half of them without a valid token, and of these
    half from one address."""
    held_bytes: int
    """Of the bodies of all requests that are being handled."""
    keep_alive_seconds: float
    """How long a connection may be idle, and a request's head may take."""
    body_seconds: float
    """How long a body may take to arrive."""
    write_seconds: float
    """How long a client may take to read 64 KiB of a response, or its rest."""
    shutdown_seconds: int
    """How long running requests may take to finish at shutdown."""
    per_token: int | None = None
    """Requests with one token, as a part of those that others leave. By default half."""


def few_callers(callers: int) -> Limits:
    """Return the limits of a server that so many others ask, each several things at a time."""
    return Limits(
        connections=2 * callers + 64,
        held_bytes=2**28,
        keep_alive_seconds=40,  # longer than those who ask keep an idle connection
        body_seconds=30,
        write_seconds=30,
        shutdown_seconds=1,  # peers keep connections open that they do not read from
    )
