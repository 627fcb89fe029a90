"""The one pipeline: check → replay? → vote → mechanism → charge → answer.

Each request is checked alone; a group of requests of one project then shares the rest. Votes exist
only in memory, while `Labeling._drawn` runs, and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from typing import Generic, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread

from terrine_server.errors import (
    ConcurrentUpdate,
    Conflict,
    DatabaseUnavailable,
    EnsembleUnavailable,
    InvalidQuery,
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
from terrine_server.labeling.voters import Neighbourhood, Voters, checked_votes
from terrine_server.ledger import (
    SHARED,
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
from terrine_server.privacy import (
    Account,
    Accounts,
    InteractiveGNMax,
    Mechanism,
    Neighbours,
    NoisyVotes,
    ParameterError,
    Released,
    Terms,
    build_mechanism,
)
from terrine_server.privacy.budget import Allowance


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
class _Drawn:
    """What a group of requests is to be charged for. `exhausted`: queries that nobody is asked."""

    proposals: dict[int, Proposal]
    exhausted: frozenset[bytes] = frozenset()
    cast: SpentAccounts | None = None


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
    ) -> CheckedRequest:
        """Check one request: inputs `[B, …]`, and probabilities `[B, m]` if needed.

        `token`: see `CheckedRequest`. Raises a `ServiceError` that concerns this request only.
        """
        project = self._ledger.remembered(project_name)
        facts, mechanism = project.ensemble.facts, mechanism_of(project)
        queries = canonical_inputs(inputs, facts.input, self._max_batch)
        checked = check_probabilities(
            probabilities, mechanism.needs_probabilities, len(queries), len(facts.classes)
        )
        baselines = None
        if isinstance(mechanism, InteractiveGNMax) and checked is not None:
            baselines = mechanism.canonical_baseline(checked)
        inputs_sha256 = input_digests(queries, project.ensemble.manifest_sha256)
        queries_sha256 = query_digests(inputs_sha256, baselines)
        return CheckedRequest(
            queries,
            checked,
            baselines,
            [QueryDigest(*pair) for pair in zip(queries_sha256, inputs_sha256, strict=True)],
            project.genesis,
            token,
        )

    def used_up(self, project_name: str, inputs: np.ndarray) -> list[float]:
        """Return for each input which share of the public rows near it could not vote any more.

        It is free: a function of the inputs, of public points and of the queries so far. Raises a
        `ServiceError`, also for a project without accounts.
        """
        project, shadows = self._ledger.project_with_shadows(project_name)
        mechanism, allowance = mechanism_of(project), project.terms.allowance
        if shadows is None or allowance is None or not isinstance(mechanism, Neighbours):
            raise InvalidQuery(
                "Only people have accounts that are used up, in projects of neighbours. Here the "
                "budget says how much is left: GET /budget."
            )
        queries = canonical_inputs(inputs, project.ensemble.facts.input, self._max_batch)
        found = self._voters.neighbourhood(project.ensemble)
        shadows = shadows if len(shadows) else np.zeros(found.ensemble.shadows, np.uint32)
        shares = [
            mechanism.used_up(near.around, shadows, allowance.most)
            for near in found.public(found.ensemble.located(queries))
        ]
        return [float(share) for share in np.concatenate(shares)]

    def answer(
        self, project_name: str, asks: Sequence[CheckedRequest]
    ) -> list[ChargedBatch | ServiceError]:
        """Answer a group of requests with one vote and one commit.

        Each gets its receipt, or a refusal that concerns it alone: `TokenChanged` where its token
        is not what it was. Raises a `ServiceError` if nothing was answered; then nothing was
        charged, unless the database died during the commit.

        Where a second server adds up the votes (`SHARED`), it counts each query that it is asked,
        whether it is charged here or not; where units have accounts, the next vote depends on them.
        So one group at a time of such a project is voted on, in all processes, and looked up once
        more before that.
        """
        with ExitStack() as turn:
            return self._answer(project_name, asks, turn)

    def _answer(
        self, project_name: str, asks: Sequence[CheckedRequest], turn: ExitStack
    ) -> list[ChargedBatch | ServiceError]:
        own_turn = False
        answers: dict[int, ChargedBatch | ServiceError] = {}
        waiting = list(range(len(asks)))
        while waiting:
            with self._metrics.stage("replay"):
                group = [asks[index] for index in waiting]
                digests = [digest for ask in group for digest in ask.digests]
                try:
                    record = self._ledger.look_up(
                        project_name,
                        digests,
                        {ask.token for ask in group if ask.token is not None},
                    )
                except TokenChanged as found:
                    answers |= {
                        i: found
                        for i, ask in zip(waiting, group, strict=True)
                        if ask.token is not None and ask.token.id in found.tokens
                    }
                    waiting = [i for i in waiting if i not in answers]
                    continue
                project = record.project
                try:
                    self._check(project, group)
                except EnsembleUnavailable:
                    if not self._overtaken(project.ensemble):
                        raise
                    continue
            chosen = self._payable(project, digests, record.recorded)
            if chosen:
                try:
                    self._ledger.check_history()
                except ServiceError as found:  # for all but those that are paid in full
                    for index, ask in zip(waiting, group, strict=True):
                        if not all(record.recorded.find(d.query, d.input) for d in ask.digests):
                            answers[index] = found
                    waiting = [i for i in waiting if i not in answers]
                    continue
            if chosen and not own_turn and _one_at_a_time(project):
                turn.enter_context(self._ledger.turn(project.id))
                own_turn = True
                continue
            try:
                drawn = self._drawn(project, group, digests, chosen)
            except ConcurrentUpdate:
                continue
            except EnsembleUnavailable:
                if not self._overtaken(project.ensemble):
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
            # If another request came first, the draws are discarded unsent. More is recorded
            # then, so this loop ends.
            with self._metrics.stage("charge"), suppress(ConcurrentUpdate):
                payers = [None if ask.token is None else ask.token.id for ask in group]
                paid = self._ledger.charge_group(project.id, batches, record, drawn.cast, payers)
                answers |= zip(waiting, paid, strict=True)
                waiting = []
        self._count(answers.values())
        return [answers[index] for index in range(len(asks))]

    def _check(self, project: ProjectRecord, asks: Sequence[CheckedRequest]) -> None:
        """Raise the errors that concern all requests of a group."""
        check_active(project)
        self._voters.check(project.ensemble)
        if any(ask.genesis != project.genesis for ask in asks):
            raise DatabaseUnavailable(
                "The ledger was replaced by another one. Send the request again."
            )

    def _overtaken(self, ensemble: EnsembleRecord) -> bool:
        """Whether there is a newer edition: the files of one go as soon as people left it."""
        return self._ledger.ensemble(ensemble.name).current.path != ensemble.current.path

    def _count(self, answers: Iterable[ChargedBatch | ServiceError]) -> None:
        """Count the outcomes that are about to be sent; they are public."""
        results = chain.from_iterable(r.results for r in answers if isinstance(r, ChargedBatch))
        for (outcome, replayed), times in Counter(
            (result.outcome, result.replayed) for result in results
        ).items():
            self._metrics.queries(outcome, str(replayed).lower()).inc(times)

    def _drawn(
        self,
        project: ProjectRecord,
        asks: Sequence[CheckedRequest],
        digests: Sequence[QueryDigest],
        chosen: Sequence[int],
    ) -> _Drawn:
        """Let the teachers vote on the chosen queries of a group, and draw the outcomes.

        They are not paid yet, so they must not be sent yet; where units have accounts, nor are
        these written yet. Raises ConcurrentUpdate if the project has moved on from its accounts.
        """
        if not chosen:
            return _Drawn({})
        mechanism, cast, exhausted = mechanism_of(project), None, frozenset[bytes]()
        queries = _joined([ask.queries for ask in asks])[chosen]
        probabilities = _rows([ask.probabilities for ask in asks], chosen)
        baselines = _rows([ask.baselines for ask in asks], chosen)
        with self._metrics.stage("vote"):
            if isinstance(mechanism, Neighbours):
                found = self._voters.neighbourhood(project.ensemble)
                mechanism = replace(mechanism, teachers=found.units.count)
                points = found.ensemble.located(queries)
                answered, shadows = self._judged(project, mechanism, found, points)
                judged = list(zip(chosen, answered, strict=False))  # not beyond the last paid
                exhausted = frozenset(digests[index].query for index, paid in judged if not paid)
                chosen = [index for index, paid in judged if paid]
                if not chosen:
                    return _Drawn({}, exhausted)
                asked = points[: len(answered)][answered]
                votes, cast = self._cast(project, mechanism, found, asked, shadows)
            else:
                votes = checked_votes(self._voters, project.ensemble, queries)
        with self._metrics.stage("release"):
            if project.ensemble.facts.kind == SHARED:
                released = released_shared(mechanism, votes)
            else:
                released = mechanism.release(votes, probabilities)
            labels = [None if label < 0 else int(label) for label in released.labels]
            places: list[tuple[int, ...]] = [()] * len(queries)
            if project.terms.schedule is not None:
                for outcome in mechanism.events():
                    rows = np.flatnonzero(released.outcomes == outcome)
                    theirs = None if baselines is None else baselines[rows]
                    counted = meter_of(project).places(outcome, votes[rows], theirs)
                    for row, place in zip(rows, counted, strict=True):
                        places[row] = place
            proposals = {
                index: Proposal(
                    query_digest=digests[index].query,
                    input_digest=digests[index].input,
                    outcome=released.outcomes[row],
                    label=labels[row],
                    places=places[row],
                    counts=None
                    if released.counts is None
                    else tuple(released.counts[row].tolist()),
                    baseline=0 if baselines is None else int(baselines[row].min()),
                )
                for row, index in enumerate(chosen)
            }
            return _Drawn(proposals, exhausted, cast)

    def _judged(
        self,
        project: ProjectRecord,
        mechanism: Neighbours,
        found: Neighbourhood,
        points: np.ndarray,
    ) -> tuple[np.ndarray, Accounts]:
        """Return for the first queries, bool, whether they are answered or exhausted; and what the
        shadows have spent after them.

        No private record or account is looked at: it follows from the queries and public rows.
        """
        most, allowance = possible(project.terms, project.account), _allowance(project)
        shadows = self._ledger.shadows(project, found.ensemble.shadows)
        judged = []
        for near in found.public(points):
            if most <= 0:
                break
            answered, shadows = mechanism.judged(
                near.weights, near.around, shadows, allowance.most, most
            )
            most -= answered.sum()
            judged.append(answered)
        return np.concatenate(judged), shadows

    def _cast(
        self,
        project: ProjectRecord,
        mechanism: Neighbours,
        found: Neighbourhood,
        points: np.ndarray,
        shadows: Accounts,
    ) -> tuple[np.ndarray, SpentAccounts]:
        """Return the counts int64 `[B, m]` of the units that take part, and their accounts after.

        Every query is judged by the accounts after the one before. All units are gone through,
        whatever their accounts are, in blocks of a public size.
        """
        allowance, accounts = _allowance(project), self._ledger.accounts(project)
        counts = []
        for weights in found.weighed(points):
            cast, accounts = mechanism.cast(weights, found.units, accounts, allowance.most)
            counts.append(cast)
        after = SpentAccounts(project.charges, project.head, len(points), accounts, shadows)
        return np.concatenate(counts), after

    def _payable(
        self, project: ProjectRecord, digests: list[QueryDigest], recorded: RecordedCharges
    ) -> list[int]:
        """Return the first new queries: as many as the budget can pay for at the lowest prices.

        Inputs are counted, not queries: once an input is answered, it is free with any baseline.
        Where queries can be exhausted, which is free, it is all of them while any can be paid for.
        """
        most = possible(project.terms, project.account)
        if most and project.terms.allowance is not None:
            most = math.inf
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


def _allowance(project: ProjectRecord) -> Allowance:
    if project.terms.allowance is None:
        raise ValueError("units have accounts only where they are allowed something")
    return project.terms.allowance


def _one_at_a_time(project: ProjectRecord) -> bool:
    """Whether one group at a time of a project is voted on, in all processes.

    An aggregator counts what it is asked; and votes follow from accounts, which follow from votes.
    """
    return project.ensemble.facts.kind == SHARED or project.terms.allowance is not None


def released_shared(mechanism: Mechanism, sums: np.ndarray) -> Released:
    """Release sums of votes that two servers added up, `[B, m]`. Raises `EnsembleUnavailable`."""
    if not isinstance(mechanism, NoisyVotes):
        raise EnsembleUnavailable(
            f"{mechanism.name} needs votes, and nobody sees the votes of this ensemble: it answers "
            "projects with noisy_votes alone. Nothing was charged."
        )
    return mechanism.release_shared(sums)


def _rows(arrays: Sequence[np.ndarray | None], chosen: Sequence[int]) -> np.ndarray | None:
    """Return the chosen rows of arrays that all requests of a project have, or None if none do."""
    given = [array for array in arrays if array is not None]
    return _joined(given)[chosen] if given else None


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate; without a copy if it is one, as the largest requests are."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def possible(terms: Terms, account: Account) -> float:
    """Return how many new queries could be admitted if each had its cheapest outcome.

    A query is admitted only if there is room for the most expensive outcome. So the last query
    needs that much, and the others may need as little as the cheapest. A figure still to be
    published may free any amount. Everything used here is public.
    """
    if not terms.admits(account, baseline=terms.baselines[-1]):
        return 0
    if terms.schedule is not None and account.published < len(terms.schedule.counts):
        return math.inf

    def count(left: int, worst: int, least: int) -> float:
        return 1 + (left - worst) // least if least else math.inf

    cost, delta = terms.budget - account.spent, terms.delta_budget - account.delta_spent
    return min(
        count(cost, terms.room.cost, terms.least.cost),
        count(delta, terms.room.delta, terms.least.delta),
    )


def mechanism_of(project: ProjectRecord) -> Mechanism:
    """Return the project's mechanism, with its noise tables built once.

    Raises EnsembleUnavailable without the package that a mechanism from outside is of.
    """
    facts = project.ensemble.facts
    try:
        return _mechanism(json.dumps(dict(project.mechanism)), facts.teachers, len(facts.classes))
    except ParameterError as error:
        raise EnsembleUnavailable(f"Project {project.name}: {error}") from error


@lru_cache(maxsize=64)
def _mechanism(spec: str, teachers: int, classes: int) -> Mechanism:
    return build_mechanism(json.loads(spec), teachers=teachers, classes=classes)


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


@dataclass(frozen=True)
class AccountsCheck:
    """`queries`: how many were charged. `unknown`: how many of them are not among the inputs.

    `same`: whether the accounts are those that the records make; None if any query is unknown.
    """

    queries: int
    unknown: int
    same: bool | None


def recast(ledger: Ledger, voters: Voters, name: str, inputs: np.ndarray) -> AccountsCheck:
    """Cast all votes of a project of `neighbours` again, in the order of its charges.

    Each query is cast by those records that were there then; accounts of people who left are full.
    `inputs`: all that students may have asked, `[B, …]`, such as the public pool. Raises Conflict
    for any other project, and if its accounts count as spent after a restore; ConcurrentUpdate if
    it answers meanwhile; InvalidQuery for inputs that are none of the ensemble's.
    """
    project = ledger.project(name)
    mechanism, allowance = mechanism_of(project), project.terms.allowance
    if not isinstance(mechanism, Neighbours) or allowance is None:
        raise Conflict(f"Nobody has an account in {name}: it is a project of {mechanism.name}.")
    accounts = ledger.accounts(project)
    facts = project.ensemble.facts
    known = canonical_inputs(inputs, facts.input, len(inputs))
    rows = {
        digest.hex(): row
        for row, digest in enumerate(input_digests(known, project.ensemble.manifest_sha256))
    }
    asked = [rows.get(entry.input_digest, -1) for entry in ledger.stream_charges(name)]
    asked = asked[: project.charges]
    unknown = asked.count(-1)
    if unknown:
        return AccountsCheck(len(asked), unknown, None)
    found = voters.neighbourhood(project.ensemble.current)
    mechanism = replace(mechanism, teachers=found.units.count)
    spent = np.zeros(len(accounts), dtype=np.uint32)
    for edition, some in _by_edition(ledger, project, known[asked]):
        there = found.ensemble.since <= edition  # records of people who left are gone
        for weights in found.weighed(found.ensemble.located(some)):
            _, spent = mechanism.cast(weights * there, found.units, spent, allowance.most)
    newest = project.ensemble.edition
    spent[list(newest.erased if newest else ())] = allowance.most
    same = bool(np.array_equal(spent, accounts))
    if not same and bool((accounts == allowance.most).all()):
        raise Conflict(f"All accounts of {name} count as spent: its ledger was restored once.")
    return AccountsCheck(len(asked), 0, same)


def _by_edition(
    ledger: Ledger, project: ProjectRecord, asked: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the inputs that were charged in each edition of the ensemble, with its number."""
    editions = ledger.editions(project.ensemble.name)
    # A project that was opened later began with the newest edition of its time.
    begins = [edition.begins.get(project.id, 0) for edition in editions]
    for edition, start, end in zip(editions, begins, [*begins[1:], len(asked)], strict=True):
        if start < end:
            yield edition.number, asked[start:end]
