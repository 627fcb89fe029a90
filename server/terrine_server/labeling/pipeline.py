"""The one pipeline: check → replay? → vote → mechanism → charge → answer.

Each request is checked alone; a group of requests of one project then shares the rest. Votes exist
only in memory, while `Labeling._draw` runs, and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from terrine_server.errors import (
    ConcurrentUpdate,
    DatabaseUnavailable,
    EnsembleUnavailable,
    ServiceError,
    TokenChanged,
)
from terrine_server.labeling.queries import (
    CheckedRequest,
    canonical_inputs,
    input_digests,
    query_digests,
)
from terrine_server.labeling.strategies import (
    VoteStrategy,
    canonical_baselines,
    check_probabilities,
    mechanism_of,
    strategy_of,
)
from terrine_server.labeling.voters import Voters, get_full_tallies
from terrine_server.ledger import (
    ChargedBatch,
    EnsembleRecord,
    Ledger,
    ProjectRecord,
    ProjectSnapshot,
    Proposal,
    QueryDigest,
    RecordedCharges,
    Result,
    SpentAccounts,
    TokenRecord,
    check_active,
)
from terrine_server.ledger.tallies import meter_of
from terrine_server.metrics import Metrics


@dataclass(frozen=True)
class _GroupDraw:
    """What a group of requests is to be charged for, by the index of its query.

    `exhausted`: digests of queries on which no vote is taken.
    """

    proposals: dict[int, Proposal]
    exhausted: frozenset[bytes] = frozenset()
    accounts: SpentAccounts | None = None

    def batches(self, asks: Sequence[CheckedRequest]) -> list[list[Proposal]]:
        """Return what each request is to be charged for, or else replayed or refused."""
        found, index = list[list[Proposal]](), 0
        for ask in asks:
            batch = []
            for digest in ask.digests:
                exhausted = digest.query in self.exhausted
                batch.append(
                    self.proposals.get(index)
                    or Proposal(digest.query, digest.input, None, None, exhausted=exhausted)
                )
                index += 1
            found.append(batch)
        return found


@dataclass
class _Group:
    """Requests of one project that are answered together, and what they were answered so far."""

    everybody: Sequence[CheckedRequest]
    answers: dict[int, ChargedBatch | ServiceError] = field(default_factory=dict)
    lock: ExitStack = field(default_factory=ExitStack)
    locked: bool = False

    def __post_init__(self) -> None:
        self._select_waiting()

    def _select_waiting(self) -> None:
        self.waiting = [each for each in range(len(self.everybody)) if each not in self.answers]
        self.asks = [self.everybody[index] for index in self.waiting]
        self.digests = [digest for ask in self.asks for digest in ask.digests]
        self.tokens = {ask.token for ask in self.asks if ask.token is not None}

    def refuse(self, error: ServiceError, concerns: Callable[[CheckedRequest], bool]) -> bool:
        """Refuse those requests that this concerns; return whether it concerns any."""
        refused = {index: error for index in self.waiting if concerns(self.everybody[index])}
        self.answers |= refused
        self._select_waiting()
        return bool(refused)

    def settle(self, paid: Sequence[ChargedBatch | ServiceError]) -> None:
        """Note what became of the requests that wait, in order."""
        self.answers |= zip(self.waiting, paid, strict=True)
        self._select_waiting()

    def take(self, lock: AbstractContextManager[object]) -> None:
        """Take the project's lock until the whole group is answered."""
        self.lock.enter_context(lock)
        self.locked = True


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
        mechanism = mechanism_of(project)
        queries = canonical_inputs(inputs, facts.input, self._max_batch)
        needed = mechanism.needs_probabilities
        checked = check_probabilities(probabilities, needed, len(queries), len(facts.classes))
        baselines = canonical_baselines(mechanism, checked)
        if project.free:  # nothing is on record of what costs nothing
            return CheckedRequest(queries, None, None, [], project.genesis, token, notes)
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
        group = _Group(asks)
        with group.lock:
            while group.waiting:
                # If another request came first, what was drawn is discarded unsent. More is
                # recorded then, so this loop ends.
                with suppress(ConcurrentUpdate):
                    self._answer_waiting(project_name, group)
        self._count(group.answers.values())
        return [group.answers[index] for index in range(len(asks))]

    def _answer_waiting(self, project_name: str, group: _Group) -> None:
        """Look up, vote, draw and charge once, as far as nothing comes between.

        Requests that are neither answered nor refused then still wait. Raises ConcurrentUpdate if
        another request came first: nothing was charged.
        """
        try:
            with self._metrics.stage("replay"):
                found = self._ledger.charging.look_up(project_name, group.digests, group.tokens)
        except TokenChanged as changed:
            ids = changed.tokens
            group.refuse(changed, lambda ask: ask.token_id in ids)
            return
        try:
            if found.project.free:
                group.settle(self._answer_free(found.project, group.asks))
                return
            drawn = self._draw_payable(found, group)
        except EnsembleUnavailable:
            # The files of an edition go as soon as people left it: then the next one answers.
            if not self._has_newer_edition(found.project.ensemble):
                raise
            return
        if drawn is not None:
            batches, payers = drawn.batches(group.asks), [ask.token_id for ask in group.asks]
            with self._metrics.stage("charge"):
                paid = self._ledger.charging.charge(
                    found.project.id, batches, found, drawn.accounts, payers
                )
            group.settle(paid)

    def _answer_free(
        self, project: ProjectRecord, asks: Sequence[CheckedRequest]
    ) -> list[ChargedBatch]:
        """Answer all queries of requests by what the project began with. Nothing is charged.

        It was paid for when the project was opened, and what follows from it tells no more than it
        does: nobody votes on a query, and there is no noise to draw.
        """
        self._check_group(project, asks)
        with self._metrics.stage("vote"):
            queries = _concatenate([ask.queries for ask in asks])
            said = get_full_tallies(self._voters, project.ensemble, queries).argmax(axis=1)
        labels = iter(said.tolist())
        return [
            ChargedBatch([Result.of_sums(next(labels)) for _ in range(len(ask))], project)
            for ask in asks
        ]

    def _draw_payable(self, found: ProjectSnapshot, group: _Group) -> _GroupDraw | None:
        """Draw outcomes for the new queries that can be paid for, or return None to look up again.

        That is when requests were refused, or when the lock of the project was taken just now.
        """
        project = found.project
        self._check_group(project, group.asks)
        strategy = strategy_of(project, self._ledger, self._voters)
        chosen = _choose_payable(strategy.most_queries, group.digests, found.recorded)
        if chosen:
            if self._refuse_unsigned(group, found.recorded):
                return None
            if strategy.exclusive and not group.locked:
                group.take(self._ledger.projects.lock(project.id))
                return None
        return self._draw(project, strategy, group.asks, group.digests, chosen)

    def _check_group(self, project: ProjectRecord, asks: Sequence[CheckedRequest]) -> None:
        """Raise the errors that concern all requests of a group."""
        check_active(project)
        self._voters.check(project.ensemble)
        if any(ask.genesis != project.genesis for ask in asks):
            raise DatabaseUnavailable(
                "The ledger was replaced by another one. Send the request again."
            )

    def _refuse_unsigned(self, group: _Group, recorded: RecordedCharges) -> bool:
        """Refuse all requests that are not paid in full, if the ledger does not continue what was
        signed of it. Return whether any was refused."""
        try:
            self._ledger.check_history()
        except ServiceError as error:
            return group.refuse(
                error,
                lambda ask: not all(recorded.find(each.query, each.input) for each in ask.digests),
            )
        return False

    def _has_newer_edition(self, ensemble: EnsembleRecord) -> bool:
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
            released = strategy.mechanism.release(vote.counts, probabilities)
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
