"""How the service and the owners' servers meet unauthenticated clients.

Connections that wait forever, bodies that never end, and how many requests each client may have at
a time are handled in one way for all of them.
"""

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
