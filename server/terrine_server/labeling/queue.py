"""The queues of requests: those of one project that wait together are answered together.

A durable commit takes as long for one query as for a thousand, and teachers vote faster on large
batches. Requests of one project are one transcript, whoever sent them, so the proofs are about a
group as about a request. What was drawn is never withheld for a reason that depends on the draw:
where another request paid for a query first, its recorded answer is given, whatever was drawn.
Where people vote, accounts have moved then: the whole draw is made again (`ConcurrentUpdate`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread

from terrine_server.errors import Overloaded
from terrine_server.metrics import Metrics

# Maximum queries in a group, unless a single request has more.
GROUP_QUERIES = 1024
# Groups of one project at the same time: one is voted on while the other is charged.
GROUPS = 2
# Groups of all projects at the same time, except of those that wait for others.
THREADS = 16
# Groups of all projects that wait for others at the same time, one of each project: who is silent
# keeps one of them. It may hold a project's lock meanwhile, which is one of the connections to the
# database; these are half of them.
WAITING_THREADS = 10


R = TypeVar("R", bound=Sized)
T = TypeVar("T")


@dataclass
class _WaitingRequest(Generic[R, T]):
    request: R
    answer: asyncio.Future[T]
    check_client: Callable[[], object]


@dataclass
class _Line(Generic[R, T]):
    most_groups: int
    free: asyncio.Semaphore
    waiting: deque[_WaitingRequest[R, T]] = field(default_factory=deque)
    queries: int = 0
    groups: int = 0


class Queue(Generic[R, T]):
    """Queues requests for `answer`, which answers a group of one project in a thread.

    The length of a request is its number of queries. `answer` returns for each request its answer,
    or an exception that concerns it alone. An exception that it raises concerns the whole group.
    Belongs to one event loop.
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
        self._free = asyncio.Semaphore(THREADS)
        self._free_to_wait = asyncio.Semaphore(WAITING_THREADS)
        self._threads = CapacityLimiter(THREADS + WAITING_THREADS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(
        self,
        project: str,
        request: R,
        waits_for_others: bool = False,
        check_client: Callable[[], object] = lambda: None,
    ) -> T:
        """Queue a request, and return its answer. Raises `Overloaded` if too many queries wait.

        `waits_for_others`: whether answers of this project do, who may be silent.
        If this is cancelled while the request waits, or `check_client` raises as its turn comes,
        the request is dropped and not charged; what that raises is raised here.
        """
        line = self._lines.get(project)
        if line is None:
            line = self._lines[project] = (
                _Line(1, self._free_to_wait) if waits_for_others else _Line(GROUPS, self._free)
            )
        if line.waiting and line.queries + len(request) > self._most_waiting:
            raise Overloaded("Too many queries of this project are waiting. Nothing was charged.")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiting = _WaitingRequest(request, answer, check_client)
        line.waiting.append(waiting)
        self._count(line, len(request))
        self._start(project, line)
        try:
            return await answer
        except asyncio.CancelledError:
            if waiting in line.waiting:
                line.waiting.remove(waiting)
                self._count(line, -len(request))
            raise

    def _start(self, project: str, line: _Line[R, T]) -> None:
        if line.groups < line.most_groups and line.waiting:
            line.groups += 1
            task = asyncio.create_task(self._work(project, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, project: str, line: _Line[R, T]) -> None:
        try:
            async with line.free:  # first come, first served
                group = self._take(line)
                if group:
                    await self._answer_group(project, group)
        finally:
            line.groups -= 1
            self._start(project, line)
            if not line.groups and not line.waiting:
                self._lines.pop(project, None)

    def _take(self, line: _Line[R, T]) -> list[_WaitingRequest[R, T]]:
        group: list[_WaitingRequest[R, T]] = []
        queries = 0
        while line.waiting:
            first = line.waiting[0]
            request = first.request
            if group and queries + len(request) > GROUP_QUERIES:
                break
            line.waiting.popleft()
            self._count(line, -len(request))
            try:
                first.check_client()
            except Exception as error:
                if not first.answer.done():
                    first.answer.set_exception(error)
                continue
            queries += len(request)
            group.append(first)
        return group

    async def _answer_group(self, project: str, group: Sequence[_WaitingRequest[R, T]]) -> None:
        self._metrics.groups.observe(len(group))
        requests = [waiting.request for waiting in group]
        answers: Sequence[T | Exception]
        try:
            answers = await to_thread.run_sync(
                self._answer, project, requests, limiter=self._threads
            )
        except Exception as error:  # a defect as well: no request of the group may wait for ever
            answers = [error] * len(group)
        for waiting, answer in zip(group, answers, strict=True):
            if waiting.answer.done():
                continue  # the client disconnected; a retry replays what was paid
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)

    def _count(self, line: _Line[R, T], queries: int) -> None:
        line.queries += queries
        self._metrics.waiting.inc(queries)
