"""Rate limits: an allowance per key that refills evenly, in bounded memory."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from terrine_server.errors import RateLimited

MAX_KEYS = 10_000
"""Maximum keys in memory; the least recently used is dropped and later starts afresh."""


class RateLimit:
    """A token bucket for each key: bursts of `per_minute`, refilled at `per_minute` a minute.

    It counts within one process; each replica has its own.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def take(self, key: str) -> None:
        """Use one request of `key`'s allowance. Raises `RateLimited` when none is left."""
        now = self._clock()
        with self._lock:
            left, seen = self._buckets.pop(key, (float(self.per_minute), now))
            left = min(self.per_minute, left + (now - seen) * self.per_minute / 60)
            granted = left >= 1
            self._buckets[key] = (left - 1 if granted else left, now)
            if len(self._buckets) > MAX_KEYS:
                self._buckets.popitem(last=False)
        if not granted:
            wait = max(1, math.ceil((1 - left) * 60 / self.per_minute))
            raise RateLimited(
                f"More than {self.per_minute} requests in a minute. Retry in {wait} s.",
                retry_after=wait,
            )
