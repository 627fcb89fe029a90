"""How often a token may ask, and how often an address may fail to sign in."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from terrine_server.errors import RateLimited

# Maximum keys in memory; the least recently used is dropped and later starts afresh.
MAX_KEYS = 10_000


class RateLimit:
    """A token bucket for each key: bursts of `per_minute`, refilled at `per_minute` a minute.

    `what`: what is counted, as the refusal says it. Each process counts by itself.
    """

    def __init__(
        self,
        per_minute: int,
        what: str = "requests",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.per_minute = per_minute
        self._what = what
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def take(self, key: str) -> int:
        """Use one of `key`'s allowance; return what is left. Raises `RateLimited` if none was."""
        return self._take(key, 1)

    def check(self, key: str) -> None:
        """Raise `RateLimited` if nothing is left of `key`'s allowance; use none of it."""
        self._take(key, 0)

    def _take(self, key: str, amount: int, least: int = 1) -> int:
        left = self._use(key, amount, least)
        if left < least:
            wait = max(1, math.ceil((1 - left) * 60 / self.per_minute))
            raise RateLimited(
                f"More than {self.per_minute} {self._what} in a minute. Retry in {wait} s.",
                retry_after=wait,
            )
        return int(left) - amount

    def use(self, key: str, amount: int) -> int:
        """Use what was already granted; the next `take` waits until it is made up for.

        Returns what is left: less than nothing if more was used than there was.
        """
        return int(self._use(key, amount, least=-math.inf)) - amount

    def check_made_up(self, key: str) -> None:
        """Raise `RateLimited` if `key` used more than there was; use none of its allowance."""
        self._take(key, 0, least=0)

    def _use(self, key: str, amount: int, least: float) -> float:
        """Use `amount` if at least `least` is left; return what was left."""
        now = self._clock()
        with self._lock:
            left, seen = self._buckets.pop(key, (float(self.per_minute), now))
            left = min(self.per_minute, left + (now - seen) * self.per_minute / 60)
            self._buckets[key] = (left - amount if left >= least else left, now)
            if len(self._buckets) > MAX_KEYS:
                self._buckets.popitem(last=False)
        return left
