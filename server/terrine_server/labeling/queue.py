"""Requests wait here, a line for each project, and are answered in groups.

While one group of a project votes and pays, the next one gathers: what waits is taken together, so
that it shares one vote of the teachers and one commit, and nothing ever waits for company. Groups
are bounded; so are the lines, beyond which requests are refused at once. Projects take turns: a
group at a time, in the order in which they began to wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from anyio import CapacityLimiter, to_thread

from terrine_server.errors import Overloaded
from terrine_server.metrics import Metrics

GROUP_QUERIES = 1024
"""A group takes requests until it holds so many queries."""
GROUPS = 2
"""Of one project, at a time: one votes while the other is being paid for."""
THREADS = 16
"""Groups of all projects at a time."""


class Request(Protocol):
    """What a group is made of."""

    def __len__(self) -> int:
        """Number of queries."""

    @property
    def name(self) -> str | None:
        """Its idempotency key: two of the same are never in one group."""


R = TypeVar("R", bound=Request)
T = TypeVar("T")


@dataclass
class _Waiting(Generic[R, T]):
    request: R
    told: asyncio.Future[T]


@dataclass
class _Line(Generic[R, T]):
    waiting: deque[_Waiting[R, T]] = field(default_factory=deque)
    queries: int = 0
    groups: int = 0


class Queue(Generic[R, T]):
    """Lines of requests in front of `answer`, which answers a group of one project in a thread.

    `answer` returns for each request its answer, or the exception that concerns it alone; what it
    raises concerns the whole group. Belongs to one event loop.
    """

    def __init__(
        self,
        answer: Callable[[str, Sequence[R]], Sequence[T | Exception]],
        metrics: Metrics,
        most_waiting: int,
    ) -> None:
        self._answer = answer
        self._metrics = metrics
        self._most_waiting = most_waiting
        self._lines: dict[str, _Line[R, T]] = {}
        self._threads = CapacityLimiter(THREADS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, project: str, request: R) -> T:
        """Return the answer. Raises `Overloaded` where too much waits already.

        A request whose asker goes away while it waits is dropped, unasked and unpaid.
        """
        line = self._lines.setdefault(project, _Line())
        if line.waiting and line.queries + len(request) > self._most_waiting:
            raise Overloaded("Too many queries of this project are waiting. Nothing was charged.")
        told: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(request, told)
        line.waiting.append(waiting)
        self._count(line, len(request))
        self._start(project, line)
        try:
            return await told
        except asyncio.CancelledError:
            if waiting in line.waiting:
                line.waiting.remove(waiting)
                self._count(line, -len(request))
            raise

    def _start(self, project: str, line: _Line[R, T]) -> None:
        if line.groups < GROUPS and line.waiting:
            line.groups += 1
            task = asyncio.create_task(self._work(project, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, project: str, line: _Line[R, T]) -> None:
        try:
            async with self._threads:  # first come, first served
                group = self._take(line)
                if group:
                    await self._tell(project, group)
        finally:
            line.groups -= 1
            self._start(project, line)
            if not line.groups and not line.waiting:
                self._lines.pop(project, None)

    def _take(self, line: _Line[R, T]) -> list[_Waiting[R, T]]:
        group: list[_Waiting[R, T]] = []
        names: set[str] = set()
        queries = 0
        while line.waiting:
            request = line.waiting[0].request
            if request.name in names or (group and queries + len(request) > GROUP_QUERIES):
                break
            if request.name is not None:
                names.add(request.name)
            queries += len(request)
            group.append(line.waiting.popleft())
        self._count(line, -queries)
        return group

    async def _tell(self, project: str, group: Sequence[_Waiting[R, T]]) -> None:
        self._metrics.groups.observe(len(group))
        requests = [waiting.request for waiting in group]
        answers: Sequence[T | Exception]
        try:
            answers = await to_thread.run_sync(
                self._answer, project, requests, limiter=CapacityLimiter(1)
            )
        except Exception as error:  # whatever it is: nobody in the group may wait for ever
            answers = [error] * len(group)
        for waiting, answer in zip(group, answers, strict=True):
            if waiting.told.done():
                continue  # its asker went away; what was paid is found again by asking again
            if isinstance(answer, Exception):
                waiting.told.set_exception(answer)
            else:
                waiting.told.set_result(answer)

    def _count(self, line: _Line[R, T], queries: int) -> None:
        line.queries += queries
        self._metrics.waiting.inc(queries)
