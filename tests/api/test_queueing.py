"""The queue: grouping, turns between projects, and refusals when it is full."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from support.processes import PATIENCE_SECONDS
from terrine_server.errors import Overloaded
from terrine_server.labeling.queue import GROUP_QUERIES, GROUPS, Queue
from terrine_server.metrics import Metrics
from terrine_server.serving.threads import PerTokenThreads


@dataclass(frozen=True)
class Asked:
    """A request of `queries` queries."""

    queries: int = 1
    number: int = 0

    def __len__(self) -> int:
        return self.queries


class Teachers:
    """Records groups, and answers them once `open` is set."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, list[Asked]]] = []
        self.open = threading.Event()

    def __call__(self, project: str, group: Sequence[Asked]) -> list[int | Exception]:
        self.groups.append((project, list(group)))
        assert self.open.wait(PATIENCE_SECONDS)
        return [KeyError(a.number) if a.number < 0 else a.number for a in group]


async def started(teachers: Teachers, groups: int) -> None:
    while len(teachers.groups) < groups:
        await asyncio.sleep(0.005)


async def occupied(queue: Queue[Asked, int], teachers: Teachers) -> list[asyncio.Task[int]]:
    """Start requests of "study" that keep as many groups busy as it may have at a time."""
    tasks = []
    for number in range(GROUPS):
        tasks.append(asyncio.create_task(queue.ask("study", Asked(number=number))))
        await started(teachers, number + 1)
    return tasks


def run(most_waiting: int = 10**6) -> tuple[Teachers, Queue[Asked, int]]:
    teachers = Teachers()
    return teachers, Queue(teachers, Metrics(), most_waiting)


def test_waiting_requests_are_answered_together_and_none_waits_for_others() -> None:
    async def ask() -> None:
        teachers, queue = run()
        first = await occupied(queue, teachers)
        rest = [asyncio.create_task(queue.ask("study", Asked(number=n))) for n in range(10, 60)]
        await asyncio.sleep(0)
        teachers.open.set()
        assert await asyncio.gather(*first, *rest) == [*range(GROUPS), *range(10, 60)]
        assert len(teachers.groups) <= GROUPS + 2
        assert max(len(group) for _, group in teachers.groups) >= 25

    asyncio.run(ask())


def test_groups_are_limited() -> None:
    async def ask() -> None:
        teachers, queue = run()
        half = GROUP_QUERIES // 2 + 1
        requests = [Asked(1), Asked(1), Asked(half), Asked(half), Asked(3 * GROUP_QUERIES)]
        tasks = []
        for request in requests:
            tasks.append(asyncio.create_task(queue.ask("study", request)))
            await asyncio.sleep(0)
        teachers.open.set()
        await asyncio.gather(*tasks)
        for _, group in teachers.groups:
            assert len(group) == 1 or sum(map(len, group)) <= GROUP_QUERIES
        assert sorted(len(a) for _, group in teachers.groups for a in group) == sorted(
            map(len, requests)
        )

    asyncio.run(ask())


def test_a_busy_project_does_not_keep_another_waiting() -> None:
    async def ask() -> None:
        teachers, queue = run()
        busy = [asyncio.create_task(queue.ask("busy", Asked(GROUP_QUERIES))) for _ in range(200)]
        await started(teachers, GROUPS)
        quiet = asyncio.create_task(queue.ask("quiet", Asked()))
        await started(teachers, GROUPS + 1)
        assert [project for project, _ in teachers.groups] == ["busy"] * GROUPS + ["quiet"]
        teachers.open.set()
        await asyncio.gather(quiet, *busy)

    asyncio.run(ask())


def test_requests_to_a_full_queue_are_refused_at_once() -> None:
    async def ask() -> None:
        teachers, queue = run(most_waiting=10)
        served = await occupied(queue, teachers)
        large = asyncio.create_task(queue.ask("study", Asked(50)))  # alone it may wait
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await queue.ask("study", Asked())
        elsewhere = asyncio.create_task(queue.ask("other", Asked()))
        teachers.open.set()
        await asyncio.gather(*served, large, elsewhere)

    asyncio.run(ask())


def test_an_error_of_one_request_fails_it_alone_and_an_error_of_a_group_all() -> None:
    async def ask() -> None:
        teachers, queue = run()
        teachers.open.set()
        results = await asyncio.gather(
            *(queue.ask("study", Asked(number=n)) for n in (1, -1, 2)), return_exceptions=True
        )
        assert [type(each) for each in results] == [int, KeyError, int]

        def fails(project: str, group: Sequence[Asked]) -> list[int | Exception]:
            raise ConnectionError

        broken: Queue[Asked, int] = Queue(fails, Metrics(), 10)
        results = await asyncio.gather(
            *(broken.ask("study", Asked()) for _ in range(3)), return_exceptions=True
        )
        assert [type(each) for each in results] == [ConnectionError] * 3

    asyncio.run(ask())


def test_a_request_whose_client_disconnects_while_it_waits_is_dropped() -> None:
    async def ask() -> None:
        teachers, queue = run()
        served = await occupied(queue, teachers)
        gone = asyncio.create_task(queue.ask("study", Asked(number=99)))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        teachers.open.set()
        await asyncio.gather(*served)
        await queue.ask("study", Asked())
        assert 99 not in [a.number for _, group in teachers.groups for a in group]

    asyncio.run(ask())


def test_a_request_whose_client_has_gone_when_its_turn_comes_is_dropped() -> None:
    def leave() -> None:
        raise BrokenPipeError

    async def ask() -> None:
        teachers, queue = run()
        served = await occupied(queue, teachers)
        gone = asyncio.create_task(queue.ask("study", Asked(number=99), check_client=leave))
        there = asyncio.create_task(queue.ask("study", Asked(number=98)))
        await asyncio.sleep(0)
        teachers.open.set()
        assert await there == 98
        with pytest.raises(BrokenPipeError):
            await gone
        await asyncio.gather(*served)
        assert [a.number for a in teachers.groups[-1][1]] == [98]

    asyncio.run(ask())


# ---------------------------------------------------------------------------- the real service


def test_who_hangs_up_gains_no_second_thread() -> None:
    """What has begun for an owner ends before the next begins, whether it is waited for or not."""
    turns, released, begun = PerTokenThreads(2), threading.Event(), list[int]()

    def work(number: int) -> int:
        begun.append(number)
        assert released.wait(60)
        return number

    async def hang_up() -> None:
        first = asyncio.create_task(turns.run("a", work, 1))
        while not begun:
            await asyncio.sleep(0.01)
        first.cancel()
        second = asyncio.create_task(turns.run("a", work, 2))
        for _ in range(20):
            assert await turns.run("b", int, "3") == 3, "others have their turns meanwhile"
        assert begun == [1]
        released.set()
        assert await second == 2
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(hang_up())
