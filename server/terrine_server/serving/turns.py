"""Turns of many owners in a few threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")


class Turns:
    """Runs functions of many owners in threads, of each owner one at a time.

    Whoever has a thousand to run has one of the threads, or one place among those that wait for
    one: so owners take turns. Belongs to one event loop.
    """

    def __init__(self, most: int) -> None:
        self._limiter = CapacityLimiter(most)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, owner: str, function: Callable[..., T], *given: object) -> T:
        """Return what the function returns, or raise what it raises. It sees the caller's context.

        If the caller is cancelled, a function that has begun still runs to its end, and the owner's
        next one waits for it: to hang up gains nobody a second thread.
        """
        lock = self._locks.get(owner)
        if lock is None:
            lock = self._locks[owner] = asyncio.Lock()
        async with lock:
            work = asyncio.ensure_future(
                to_thread.run_sync(function, *given, limiter=self._limiter)
            )
            try:
                return await asyncio.shield(work)
            finally:
                await asyncio.wait([work])
