"""Threads, of which each token has one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar, cast
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")


class PerTokenThreads:
    """Runs functions of many tokens in threads, one at a time for each token.

    A token with a thousand to run has one of the threads, or one place among those that wait for
    one. Belongs to one event loop.
    """

    def __init__(self, most: int) -> None:
        self._limiter = CapacityLimiter(most)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, token_id: str, function: Callable[..., T], *given: object) -> T:
        """Return what the function returns, or raise what it raises. It sees the caller's context.

        If the caller is cancelled, a function that has begun still runs to its end, and the token's
        next one waits for it: to hang up gains nobody a second thread.
        """
        lock = self._locks.get(token_id)
        if lock is None:
            lock = self._locks[token_id] = asyncio.Lock()
        async with lock:
            work = asyncio.ensure_future(
                to_thread.run_sync(function, *given, limiter=self._limiter)
            )
            try:
                return await asyncio.shield(work)
            finally:
                await asyncio.wait([work])

    async def stream(self, token_id: str, parts: Iterator[T]) -> AsyncIterator[T]:
        """Yield the parts, each of which is made as by `run`: others have their turn between."""
        end = object()
        while True:
            # A task of its own: who streams cancels again and again, and `run` waits for its end.
            making = asyncio.ensure_future(self.run(token_id, next, parts, end))
            if (part := await asyncio.shield(making)) is end:
                return
            yield cast(T, part)
