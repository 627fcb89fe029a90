"""A thread pool over all processors, in which every task computes with one thread.

A teacher or a block of inputs is too small to be split among several threads: they would spend
their time waiting for each other, above all on a busy machine. So each gets one thread, and torch,
where it is used, runs single-threaded inside it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")

_starting = threading.Lock()
# `works`: whether this thread is at such work.
_here = threading.local()


class _Workers(NamedTuple):
    pool: ThreadPoolExecutor
    turns: threading.Semaphore
    """As many as the pool has threads: so many tasks compute at a time, wherever they run."""


def side_by_side(work: Callable[[Item], T], items: Iterable[Item]) -> list[T]:
    """Run `work` on every item, as many at a time as torch uses threads; results in order.

    Without torch, as many as there are processors.

    Within such work, one after the other: all threads may be waiting for it.
    """
    if getattr(_here, "works", False):
        return [work(item) for item in items]

    def marked(item: Item) -> T:
        _here.works = True
        try:
            return work(item)
        finally:
            _here.works = False

    torch = sys.modules.get("torch")  # a student has none, and need not wait for its import
    with _starting:
        pool, turns = _workers(torch)
    waiting = list(items)
    if len(waiting) == 1 and turns.acquire(blocking=False):
        threads = torch.get_num_threads() if torch else 0
        if torch:
            torch.set_num_threads(1)
        try:  # waking another thread and being woken takes longer than a small task
            return [marked(waiting[0])]
        finally:
            if torch:
                torch.set_num_threads(threads)
            turns.release()

    def in_turn(item: Item) -> T:
        with turns:
            return marked(item)

    return list(pool.map(in_turn, waiting))


@cache
def _workers(torch: Any) -> _Workers:
    if torch is None:
        size = os.cpu_count() or 1
        return _Workers(ThreadPoolExecutor(size, "terrine-worker"), threading.Semaphore(size))
    size = torch.get_num_threads()
    all_here = threading.Barrier(size + 1)

    def compute_alone() -> None:
        torch.get_num_threads()  # otherwise torch resets the number when it first computes here
        torch.set_num_threads(1)  # for this thread, and for every thread started later
        all_here.wait()

    pool = ThreadPoolExecutor(size, "terrine-worker")
    for _ in range(size):
        pool.submit(compute_alone)
    all_here.wait()
    torch.set_num_threads(size)  # undoes the second effect
    return _Workers(pool, threading.Semaphore(size))
