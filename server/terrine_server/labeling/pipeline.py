"""The one pipeline: check → replay? → vote → mechanism → charge → answer.

Each request is checked alone; a group of requests of one project then shares the rest. Votes exist
only in memory, while `Labeling._draw` runs, and nowhere else.

Queries are identified by digests. Two are the same exactly if their digests are equal, whatever
encoding, byte order or number type they were sent in.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Generic, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread

from terrine_protocol import InputSpec
from terrine_server.errors import (
    ConcurrentUpdate,
    Conflict,
    DatabaseUnavailable,
    EnsembleUnavailable,
    InvalidQuery,
    Overloaded,
    PayloadTooLarge,
    ServiceError,
    TokenChanged,
)
from terrine_server.labeling.strategies import (
    AccountVotes,
    VoteStrategy,
    check_probabilities,
    strategy_of,
)
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
from terrine_server.ledger.tallies import meter_of
from terrine_server.metrics import Metrics


def check_shape(name: str, shape: Sequence[int], row: Sequence[int], max_batch: int) -> None:
    """Check the shape of an array against that of its rows. Raises as `check_batch`."""
    if not shape or tuple(shape[1:]) != tuple(row):
        expected = ", ".join(["B", *map(str, row)])
        raise InvalidQuery(
            f"Expected {name} of shape [{expected}]; these have shape {list(shape)}."
        )
    check_batch(shape[0], max_batch)


def check_batch(rows: int, max_batch: int) -> None:
    """Check the number of queries. Raises `InvalidQuery` or `PayloadTooLarge`."""
    if rows == 0:
        raise InvalidQuery("The batch is empty; expected at least one query.")
    if rows > max_batch:
        raise PayloadTooLarge(
            f"The batch has {rows} queries; at most {max_batch} are allowed. Split it.",
            limit=max_batch,
        )


def canonical_inputs(inputs: np.ndarray, spec: InputSpec, max_batch: int) -> np.ndarray:
    """Check inputs against `spec`; return them as `[B, *shape]` in C order and its dtype.

    Conversions that would change a value beyond its float32 rounding are refused.
    Raises `InvalidQuery` or `PayloadTooLarge`.
    """
    check_shape("inputs", inputs.shape, spec.shape, max_batch)
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        raise InvalidQuery("Inputs must be finite; NaN or infinity was found.")
    if spec.dtype == "uint8":
        if inputs.dtype.kind == "f" and (inputs != np.trunc(inputs)).any():
            raise InvalidQuery("Inputs must be whole numbers: the ensemble takes uint8.")
        _check_range(inputs, spec.low, spec.high)
        return np.ascontiguousarray(inputs, dtype=np.uint8)
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(inputs, dtype=np.dtype("<f4"))
    # Compared as float32, so that 0.1 in float32 does not exceed a limit of 0.1.
    _check_range(converted, np.float32(spec.low), np.float32(spec.high))
    return converted + np.float32(0)  # -0.0 becomes 0.0: one number, one query


def _check_range(inputs: np.ndarray, low: float | np.float32, high: float | np.float32) -> None:
    if inputs.min() < low or inputs.max() > high:
        raise InvalidQuery(f"Inputs must lie between {low:g} and {high:g}.")


def input_digests(inputs: np.ndarray, manifest_sha256: str) -> list[bytes]:
    """Return the SHA-256 of each canonical input, bound to its ensemble."""
    header = json.dumps(
        ["terrine input 1", manifest_sha256, inputs.dtype.str, list(inputs.shape[1:])]
    )
    common = hashlib.sha256(header.encode() + b"\0")
    return [_digest(common, row.tobytes()) for row in inputs]


def query_digests(inputs: list[bytes], baselines: np.ndarray | None) -> list[bytes]:
    """Return the SHA-256 of each query: its input and, for interactive_gnmax, its baseline."""
    common = hashlib.sha256(b"terrine query 1\0")
    if baselines is None:
        return [_digest(common, digest) for digest in inputs]
    rows = np.ascontiguousarray(baselines, dtype="<i8")
    return [
        _digest(common, digest, row.tobytes()) for digest, row in zip(inputs, rows, strict=True)
    ]


def _digest(common: hashlib._Hash, *parts: bytes) -> bytes:
    digest = common.copy()
    for part in parts:
        digest.update(part)
    return digest.digest()


@dataclass(frozen=True, eq=False)
class CheckedRequest:
    """One checked request: canonical inputs `[B, …]`, probabilities and baselines `[B, m]`.

    `genesis`: that of the project that it was checked for. `token`: that by which it came, if its
    row is still to be looked up. `notes`: what is said of its inputs beside their answers.
    `waits_for_others`: see `Voters`.
    """

    queries: np.ndarray
    probabilities: np.ndarray | None
    baselines: np.ndarray | None
    digests: Sequence[QueryDigest]
    genesis: str
    token: TokenRecord | None
    notes: tuple[str, ...] = ()
    waits_for_others: bool = False

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
        project = self._ledger.projects.get_cached(project_name)
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
            self._voters.waits_for_others(project.ensemble),
        )

    def exhausted_shares(self, project_name: str, inputs: np.ndarray) -> list[float]:
        """Return for each input which share of the public rows near it could not vote any more.

        It is free: a function of the inputs, of public points and of the queries so far. Raises a
        `ServiceError`, also for a project without accounts.
        """
        project, shadows = self._ledger.projects.get_with_shadows(project_name)
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
                        record = self._ledger.charging.look_up(project_name, digests, tokens)
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
                        lock.enter_context(self._ledger.projects.lock(project.id))
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
                    paid = self._ledger.charging.charge(
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
        return self._ledger.ensembles.get(ensemble.name).current.path != ensemble.current.path

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


@dataclass(frozen=True)
class AccountsCheck:
    """`queries`: how many were charged. `unknown`: how many of them are not among the inputs.

    `same`: whether the accounts are those that the records make; None if any query is unknown.
    """

    queries: int
    unknown: int
    same: bool | None


def recompute_accounts(
    ledger: Ledger, voters: Voters, name: str, inputs: np.ndarray
) -> AccountsCheck:
    """Cast all votes of a project of `neighbours` again, in the order of its charges.

    Each query is cast by those records that were there then; accounts of people who left are full.
    `inputs`: all that students may have asked, `[B, …]`, such as the public pool. Raises Conflict
    for any other project, and if its accounts count as spent after a restore; ConcurrentUpdate if
    it answers meanwhile; InvalidQuery for inputs that the ensemble does not take.
    """
    project = ledger.projects.get(name)
    strategy = strategy_of(project, ledger, voters)
    if not isinstance(strategy, AccountVotes):
        raise Conflict(
            f"Nobody has an account in {name}: it is a project of {strategy.mechanism.name}."
        )
    accounts = ledger.charging.unit_accounts(project)
    facts = project.ensemble.facts
    known = canonical_inputs(inputs, facts.input, len(inputs))
    rows = {
        digest.hex(): row
        for row, digest in enumerate(input_digests(known, project.ensemble.manifest_sha256))
    }
    asked = [rows.get(entry.input_digest, -1) for entry in ledger.entries.stream(name)]
    asked = asked[: project.charges]
    unknown = asked.count(-1)
    if unknown:
        return AccountsCheck(len(asked), unknown, None)
    found = voters.neighbourhood(project.ensemble.current)
    spent = np.zeros(len(accounts), dtype=np.uint32)
    for edition, some in _by_edition(ledger, project, known[asked]):
        there = found.ensemble.since <= edition  # records of people who left are gone
        for weights in found.record_weights(found.ensemble.to_points(some)):
            given = weights * there, found.units, spent, strategy.allowance
            _, spent = strategy.mechanism.cast(*given)
    newest = project.ensemble.edition
    spent[list(newest.erased if newest else ())] = strategy.allowance
    same = bool(np.array_equal(spent, accounts))
    if not same and bool((accounts == strategy.allowance).all()):
        raise Conflict(f"All accounts of {name} count as spent: its ledger was restored once.")
    return AccountsCheck(len(asked), 0, same)


def _by_edition(
    ledger: Ledger, project: ProjectRecord, asked: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the inputs that were charged in each edition of the ensemble, with its number."""
    editions = ledger.ensembles.list_editions(project.ensemble.name)
    # A project that was opened later began with the newest edition of its time.
    begins = [edition.begins.get(project.id, 0) for edition in editions]
    for edition, start, end in zip(editions, begins, [*begins[1:], len(asked)], strict=True):
        if start < end:
            yield edition.number, asked[start:end]


GROUP_QUERIES = 1024
"""Maximum queries in a group, unless a single request has more."""
GROUPS = 2
"""Groups of one project at the same time: one is voted on while the other is charged."""
THREADS = 16
"""Groups of all projects at the same time, except of those that wait for others."""
WAITING_THREADS = 10
"""Groups of all projects that wait for others at the same time, one of each project: who is silent
keeps one of them. It may hold a project's lock meanwhile, which is one of the connections to the
database; these are half of them."""


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
