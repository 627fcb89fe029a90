"""A server without rate limits, and its own count of the requests it answered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from digits import DigitsEnsemble
from hypothesis import HealthCheck, settings
from server import RunningServer, running_server

DOCUMENTED, BODIES, CUT_OFF = 1_400, 8_000, 600
"""Requests of each kind, at night: generated from the OpenAPI document, with arbitrary bodies, and
with a wrong length or framing."""
assert DOCUMENTED + BODIES + CUT_OFF >= 10_000
SHARES = pytest.mark.parametrize("share", [32, pytest.param(1, marks=pytest.mark.nightly)])
"""By day one request in thirty-two is sent."""
NO_LIMIT = 10**9
CHEAP = {"name": "gnmax", "sigma": 500.0}
"""Noise so large that the budget lasts for thousands of valid queries."""
COUNTED = re.compile(r'^terrine_requests_total\{.*status="(\d+)"\} (\S+)$', re.MULTILINE)


def examples(count: int) -> settings:
    """Hypothesis settings for `count` requests, without a deadline."""
    return settings(
        max_examples=count,
        derandomize=True,  # the same inputs each time, so that failures repeat
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


@contextmanager
def tireless_server(
    directory: Path, database_url: str, ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    """Serve without rate limits; fail at the end if any response had status 500 or above."""
    with running_server(
        directory,
        database_url,
        ensemble,
        requests_per_minute=NO_LIMIT,
        failed_logins_per_minute=NO_LIMIT,
        max_body_bytes=1 << 20,
    ) as server:
        server.open_project("study", CHEAP, epsilon=20.0)
        yield server
        assert not [status for status in answered(server) if status >= 500]


def answered(server: RunningServer) -> Counter[int]:
    """Return how many requests of each status the server has counted."""
    counts: Counter[int] = Counter()
    auditor = {"Authorization": f"Bearer {server.token('auditor')}"}
    for status, count in COUNTED.findall(httpx.get(f"{server.url}/metrics", headers=auditor).text):
        counts[int(status)] += int(float(count))
    return counts


def tell(counts: Counter[int]) -> None:
    """Print how many requests were sent (seen with `pytest -s`)."""
    print(f"{counts.total()} requests, by status {dict(sorted(counts.items()))}")  # noqa: T201
