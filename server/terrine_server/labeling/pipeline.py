"""The one pipeline: check → replay? → vote → mechanism → charge → answer.

Each request is checked alone; a group of requests of one project then shares the rest. Votes exist
only in memory, while `Labeling._draw` runs, and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Generic, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread

from terrine_server.errors import (
    ConcurrentUpdate,
    DatabaseUnavailable,
    EnsembleUnavailable,
    Overloaded,
    ServiceError,
    TokenChanged,
)
from terrine_server.labeling.queries import (
    canonical_inputs,
    check_probabilities,
    input_digests,
    query_digests,
)
from terrine_server.labeling.strategies import VoteStrategy, strategy_of
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import (
    ChargedBatch,
    EnsembleRecord,
    Ledger,
    ProjectRecord,
    Proposal,
    QueryDigest,
    RecordedCharges,
    SpentAccounts,
    TokenRecord,
    check_active,
)
from terrine_server.ledger.accounts import meter_of
from terrine_server.metrics import Metrics


@dataclass(frozen=True, eq=False)
class CheckedRequest:
    """One checked request: canonical inputs `[B, …]`, probabilities and baselines `[B, m]`.

    `genesis`: that of the project that it was checked for. `token`: that by which it came, if its
    row is still to be looked up. `notes`: what is said of its inputs beside their answers.
    """

    queries: np.ndarray
    probabilities: np.ndarray | None
    baselines: np.ndarray | None
    digests: Sequence[QueryDigest]
    genesis: str
    token: TokenRecord | None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.queries)


@dataclass(frozen=True)
class _GroupDraw:
    """What a group of requests is to be charged for, by the index of its query.

    `exhausted`: digests of queries on which no vote is taken.
    """

    proposals: dict[int, Proposal]
    exhausted: frozenset[bytes] = frozenset()
    accounts: SpentAccounts | None = None


class Labeling:
    """Answers queries of projects. Each answer is paid before it is sent."""

    def __init__(self, ledger: Ledger, voters: Voters, metrics: Metrics, max_batch: int) -> None:
        self._ledger = ledger
        self._voters = voters
        self._metrics = metrics
        self._max_batch = max_batch

    def check(
        self,
        project_name: str,
        inputs: np.ndarray,
        probabilities: np.ndarray | None = None,
        token: TokenRecord | None = None,
        notes: tuple[str, ...] = (),
    ) -> CheckedRequest:
        """Check one request: inputs `[B, …]`, and probabilities `[B, m]` if needed.

        `token`, `notes`: see `CheckedRequest`. Raises a `ServiceError` that concerns this request
        only.
        """
        project = self._ledger.cached_project(project_name)
        facts = project.ensemble.facts
        strategy = strategy_of(project, self._ledger, self._voters)
        queries = canonical_inputs(inputs, facts.input, self._max_batch)
        needed = strategy.mechanism.needs_probabilities
        checked = check_probabilities(probabilities, needed, len(queries), len(facts.classes))
        baselines = strategy.baselines(checked)
        inputs_sha256 = input_digests(queries, project.ensemble.manifest_sha256)
        queries_sha256 = query_digests(inputs_sha256, baselines)
        return CheckedRequest(
            queries,
            checked,
            baselines,
            [QueryDigest(*pair) for pair in zip(queries_sha256, inputs_sha256, strict=True)],
            project.genesis,
            token,
            notes,
        )

    def exhausted_shares(self, project_name: str, inputs: np.ndarray) -> list[float]:
        """Return for each input which share of the public rows near it could not vote any more.

        It is free: a function of the inputs, of public points and of the queries so far. Raises a
        `ServiceError`, also for a project without accounts.
        """
        project, shadows = self._ledger.project_with_shadows(project_name)
        queries = canonical_inputs(inputs, project.ensemble.facts.input, self._max_batch)
        strategy = strategy_of(project, self._ledger, self._voters)
        return strategy.exhausted_shares(queries, shadows)

    def answer(
        self, project_name: str, asks: Sequence[CheckedRequest]
    ) -> list[ChargedBatch | ServiceError]:
        """Answer a group of requests with one vote and one commit.

        Each gets its receipt, or a refusal that concerns it alone: `TokenChanged` where its token
        is not what it was. Raises a `ServiceError` if nothing was answered; then nothing was
        charged, unless the database died during the commit.

        Where votes are exclusive (`VoteStrategy.exclusive`), the lock of the project is taken
        first, and all is looked up once more.
        """
        answers: dict[int, ChargedBatch | ServiceError] = {}
        with ExitStack() as lock:
            locked = False
            while len(answers) < len(asks):
                waiting = {index: ask for index, ask in enumerate(asks) if index not in answers}
                group = list(waiting.values())
                digests = [digest for ask in group for digest in ask.digests]
                tokens = {ask.token for ask in group if ask.token is not None}
                try:
                    with self._metrics.stage("replay"):
                        record = self._ledger.look_up(project_name, digests, tokens)
                        project = record.project
                        self._check_group(project, group)
                    strategy = strategy_of(project, self._ledger, self._voters)
                    chosen = _choose_payable(strategy.most_queries, digests, record.recorded)
                    if chosen:
                        refused = self._refuse_unsigned(waiting, record.recorded)
                        if refused:
                            answers |= refused
                            continue
                    if chosen and strategy.exclusive and not locked:
                        lock.enter_context(self._ledger.project_lock(project.id))
                        locked = True
                        continue
                    drawn = self._draw(project, strategy, group, digests, chosen)
                except TokenChanged as changed:
                    answers |= {
                        index: changed
                        for index, ask in waiting.items()
                        if ask.token is not None and ask.token.id in changed.tokens
                    }
                    continue
                except ConcurrentUpdate:
                    continue
                except EnsembleUnavailable:
                    if not self._has_newer_edition(project.ensemble):
                        raise
                    continue
                proposals = iter(
                    drawn.proposals.get(index)
                    or Proposal(
                        digest.query,
                        digest.input,
                        None,
                        None,
                        exhausted=digest.query in drawn.exhausted,
                    )
                    for index, digest in enumerate(digests)
                )
                batches = [list(islice(proposals, len(ask))) for ask in group]
                payers = [None if ask.token is None else ask.token.id for ask in group]
                # If another request came first, the draws are discarded unsent. More is recorded
                # then, so this loop ends.
                with self._metrics.stage("charge"), suppress(ConcurrentUpdate):
                    paid = self._ledger.charge_group(
                        project.id, batches, record, drawn.accounts, payers
                    )
                    answers |= zip(waiting, paid, strict=True)
        self._count(answers.values())
        return [answers[index] for index in range(len(asks))]

    def _check_group(self, project: ProjectRecord, asks: Sequence[CheckedRequest]) -> None:
        """Raise the errors that concern all requests of a group."""
        check_active(project)
        self._voters.check(project.ensemble)
        if any(ask.genesis != project.genesis for ask in asks):
            raise DatabaseUnavailable(
                "The ledger was replaced by another one. Send the request again."
            )

    def _refuse_unsigned(
        self, waiting: Mapping[int, CheckedRequest], recorded: RecordedCharges
    ) -> dict[int, ChargedBatch | ServiceError]:
        """Return refusals of all requests that are not paid in full, if the ledger does not
        continue what was signed of it."""
        try:
            self._ledger.check_history()
        except ServiceError as error:
            return {
                index: error
                for index, ask in waiting.items()
                if not all(recorded.find(each.query, each.input) for each in ask.digests)
            }
        return {}

    def _has_newer_edition(self, ensemble: EnsembleRecord) -> bool:
        """Whether there is one: the files of an edition go as soon as people left it."""
        return self._ledger.ensemble(ensemble.name).current.path != ensemble.current.path

    def _count(self, answers: Iterable[ChargedBatch | ServiceError]) -> None:
        """Count the outcomes that are about to be sent; they are public."""
        results = chain.from_iterable(r.results for r in answers if isinstance(r, ChargedBatch))
        for (outcome, replayed), times in Counter(
            (result.outcome, result.replayed) for result in results
        ).items():
            self._metrics.queries(outcome, str(replayed).lower()).inc(times)

    def _draw(
        self,
        project: ProjectRecord,
        strategy: VoteStrategy,
        asks: Sequence[CheckedRequest],
        digests: Sequence[QueryDigest],
        chosen: Sequence[int],
    ) -> _GroupDraw:
        """Take the votes on the chosen queries of a group, and draw the outcomes.

        They are not paid yet, so they must not be sent yet; where units have accounts, nor are
        these written yet. Raises ConcurrentUpdate if the project has moved on from its accounts.
        """
        if not chosen:
            return _GroupDraw({})
        with self._metrics.stage("vote"):
            vote = strategy.vote(_concatenate([ask.queries for ask in asks])[chosen])
        exhausted = frozenset(digests[chosen[place]].query for place in vote.exhausted)
        voted = [chosen[place] for place in vote.voted]
        if not voted:
            return _GroupDraw({}, exhausted)
        probabilities = _select_rows([ask.probabilities for ask in asks], voted)
        baselines = _select_rows([ask.baselines for ask in asks], voted)
        with self._metrics.stage("release"):
            released = strategy.release(vote.counts, probabilities)
            places: list[tuple[int, ...]] = [()] * len(voted)
            if project.terms.schedule is not None:
                for outcome in strategy.mechanism.events():
                    rows = np.flatnonzero(released.outcomes == outcome)
                    theirs = None if baselines is None else baselines[rows]
                    counted = meter_of(project).places(outcome, vote.counts[rows], theirs)
                    for row, place in zip(rows, counted, strict=True):
                        places[row] = place
            proposals = {
                index: Proposal(
                    query_digest=digests[index].query,
                    input_digest=digests[index].input,
                    outcome=released.outcomes[row],
                    label=None if released.labels[row] < 0 else int(released.labels[row]),
                    places=places[row],
                    counts=None
                    if released.counts is None
                    else tuple(released.counts[row].tolist()),
                    baseline=0 if baselines is None else int(baselines[row].min()),
                )
                for row, index in enumerate(voted)
            }
            return _GroupDraw(proposals, exhausted, vote.accounts)


def _choose_payable(
    most: float, digests: Sequence[QueryDigest], recorded: RecordedCharges
) -> list[int]:
    """Return the first new queries: as many as the budget can pay for at the lowest prices.

    Inputs are counted, not queries: once an input is answered, it is free with any baseline.
    """
    chosen: list[int] = []
    seen, inputs = set[bytes](), set[bytes]()
    for index, digest in enumerate(digests):
        if digest.query in seen or recorded.find(digest.query, digest.input):
            continue
        if len(inputs) >= most and digest.input not in inputs:
            break
        seen.add(digest.query)
        inputs.add(digest.input)
        chosen.append(index)
    return chosen


def _select_rows(arrays: Sequence[np.ndarray | None], chosen: Sequence[int]) -> np.ndarray | None:
    """Return the chosen rows of arrays that all requests of a project have, or None if none do."""
    given = [array for array in arrays if array is not None]
    return _concatenate(given)[chosen] if given else None


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return one array; without a copy if it is one, as the largest requests are."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


GROUP_QUERIES = 1024
"""Maximum queries in a group, unless a single request has more."""
GROUPS = 2
"""Groups of one project at the same time: one is voted on while the other is charged."""
THREADS = 16
"""Groups of all projects at the same time."""


R = TypeVar("R", bound=Sized)
T = TypeVar("T")


@dataclass
class _WaitingRequest(Generic[R, T]):
    request: R
    answer: asyncio.Future[T]


@dataclass
class _Line(Generic[R, T]):
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
        self._threads = CapacityLimiter(THREADS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, project: str, request: R) -> T:
        """Queue a request, and return its answer. Raises `Overloaded` if too many queries wait.

        If the client disconnects while its request waits, the request is dropped and not charged.
        """
        line = self._lines.setdefault(project, _Line())
        if line.waiting and line.queries + len(request) > self._most_waiting:
            raise Overloaded("Too many queries of this project are waiting. Nothing was charged.")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiting = _WaitingRequest(request, answer)
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
        if line.groups < GROUPS and line.waiting:
            line.groups += 1
            task = asyncio.create_task(self._work(project, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, project: str, line: _Line[R, T]) -> None:
        try:
            async with self._free:  # first come, first served
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
            request = line.waiting[0].request
            if group and queries + len(request) > GROUP_QUERIES:
                break
            queries += len(request)
            group.append(line.waiting.popleft())
        self._count(line, -queries)
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
