"""File descriptors: as many as the system allows, and never more connections than they suffice for.

A process without descriptors cannot accept a connection, open a file or reach its database, and
asyncio logs an error each time that it tries.
"""

from __future__ import annotations

import resource

from terrine_server.api.connection import BACKLOG, SPARE

MOST = 65536
"""Enough. Some systems allow a billion, and there are programs that close each one in turn."""
OTHERS = 256
"""Kept for everything else: files, the database, the log, libraries."""
NEEDED = SPARE + 2 * BACKLOG + OTHERS
"""Descriptors needed besides those of `TERRINE_MAX_CONNECTIONS`. Connections are counted, and those
beyond the limit closed, only after as many as `BACKLOG` were accepted, twice at worst."""
LEAST = 16
"""Connections below which it makes no sense to serve."""


class TooFewDescriptors(Exception):  # noqa: N818 - says what to do
    """The process may open so few files that it cannot serve."""


def raise_limit() -> int:
    """Let this process, and those that it starts, open as many as it may; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return MOST if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def connections_within(limit: int, wanted: int) -> int:
    """Return how many of the connections `wanted` are possible with `limit` descriptors.

    Raises TooFewDescriptors if hardly any are.
    """
    possible = limit - NEEDED
    if possible < min(LEAST, wanted):
        raise TooFewDescriptors(
            f"This process may open {limit} files, and at least {NEEDED + LEAST} are needed. "
            "Allow more (`ulimit -n`)."
        )
    return min(possible, wanted)
