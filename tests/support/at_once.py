"""Threads that start together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(clients: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` … `work(clients - 1)` in threads that start together."""
    barrier = threading.Barrier(clients)

    def start(client: int) -> T:
        barrier.wait()
        return work(client)

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(start, range(clients)))
