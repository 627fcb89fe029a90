"""A server that is asked more than any student may, and its own count of what it answered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from digits import DigitsEnsemble
from hypothesis import HealthCheck, settings
from server import RunningServer, running_server

DOCUMENTED, BODIES, CUT_OFF = 700, 8_000, 600
"""Requests of each kind: by the OpenAPI document (on each of two databases), bodies of any bytes,
and requests whose length or framing is wrong."""
assert 2 * DOCUMENTED + BODIES + CUT_OFF >= 10_000
NO_LIMIT = 10**9
CHEAP = {"name": "gnmax", "sigma": 500.0}
"""Noise so large that the budget outlasts thousands of valid questions."""
COUNTED = re.compile(r'^terrine_requests_total\{.*status="(\d+)"\} (\S+)$', re.MULTILINE)


def examples(count: int) -> settings:
    """Hypothesis' settings for `count` requests, each of which may take its time."""
    return settings(
        max_examples=count,
        derandomize=True,  # the same inputs each time: a failure is seen again
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


@contextmanager
def tireless_server(
    directory: Path, database_url: str, ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    """Serve without rate limits; in the end, no request may have met a defect."""
    with running_server(
        directory,
        database_url,
        ensemble,
        requests_per_minute=NO_LIMIT,
        failed_logins_per_minute=NO_LIMIT,
        max_body_bytes=1 << 20,
        body_seconds=2,
    ) as server:
        server.open_project("study", CHEAP, epsilon=20.0)
        yield server
        assert not [status for status in answered(server) if status >= 500]


def answered(server: RunningServer) -> Counter[int]:
    """Return how many requests of each status the server says that it has answered."""
    counts: Counter[int] = Counter()
    auditor = {"Authorization": f"Bearer {server.token('auditor')}"}
    for status, count in COUNTED.findall(httpx.get(f"{server.url}/metrics", headers=auditor).text):
        counts[int(status)] += int(float(count))
    return counts


def tell(counts: Counter[int]) -> None:
    """Print how many requests were sent (seen with `pytest -s`)."""
    print(f"{counts.total()} requests, by status {dict(sorted(counts.items()))}")  # noqa: T201
