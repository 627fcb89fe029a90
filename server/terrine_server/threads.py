"""Threads to which the event loop gives work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Threads:
    """Runs functions in threads, at most so many at a time; others wait in the order they came.

    It costs a request two turns of the event loop less than AnyIO's `to_thread` with a limiter, and
    one less than the loop's own `run_in_executor`.
    """

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most)

    async def run(self, function: Callable[..., T], *given: object) -> T:
        """Return what the function returns, or raise what it raises. It sees the caller's context.

        If the caller is cancelled, a function that has begun still runs to its end.
        """
        loop, context = asyncio.get_running_loop(), copy_context()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                done = partial(answer.set_result, context.run(function, *given))
            except BaseException as error:
                done = partial(answer.set_exception, error)
            loop.call_soon_threadsafe(_unless_done, answer, done)

        self._pool.submit(work)
        return await answer


class Turns:
    """Runs functions of many owners in threads, of each owner one at a time.

    Whoever has a thousand to run has one of the threads, or one place among those that wait for
    one: so owners take turns. Belongs to one event loop.
    """

    def __init__(self, most: int) -> None:
        self._threads = Threads(most)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, owner: str, function: Callable[..., T], *given: object) -> T:
        """Return what the function returns, or raise what it raises, as `Threads.run` does.

        If the caller is cancelled, the owner's next function still waits for one that has begun:
        to hang up gains nobody a second thread.
        """
        lock = self._locks.get(owner)
        if lock is None:
            lock = self._locks[owner] = asyncio.Lock()
        async with lock:
            work = asyncio.ensure_future(self._threads.run(function, *given))
            try:
                return await asyncio.shield(work)
            finally:
                await asyncio.wait([work])


def _unless_done(answer: asyncio.Future[T], done: Callable[[], None]) -> None:
    if not answer.done():  # the caller may have been cancelled
        done()
