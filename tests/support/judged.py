"""The judge of a simulated world: knows what clients sent and saw, and nothing of the ledger."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from terrine_protocol import Outcome, ProjectStatus
from terrine_server import errors
from terrine_server.ledger import ChargedBatch, Ledger, ProjectRecord
from terrine_server.privacy import Terms, VoteOutcome

Query = str
Seen = tuple[int, str, int | None]
"""Number, outcome and label of a charge."""
RECENT = 20


@dataclass
class Study:
    """One project, as its clients know it."""

    terms: Terms
    statuses: list[tuple[str, ProjectStatus]] = field(default_factory=list)
    """What was said to the ledger about its status, and what it acknowledged, in order."""
    drawn: dict[Query, set[tuple[str, int | None]]] = field(default_factory=dict)
    answers: dict[Query, Seen] = field(default_factory=dict)
    payers: dict[int, Query] = field(default_factory=dict)
    requests: list[tuple[Query, ...]] = field(default_factory=list)
    accounts: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By number of charges: the units spent, and the head of the chain."""
    exhausted: bool = False


class Judge:
    """Raises AssertionError as soon as two things that clients saw contradict each other."""

    def __init__(self) -> None:
        self.studies: dict[str, Study] = {}
        self.known: dict[str, dict[bytes, Query]] = defaultdict(dict)
        """Of each project, the queries by their digests."""
        self.replies: dict[str, int] = defaultdict(int)

    def opened(self, name: str, terms: Terms) -> None:
        self.studies[name] = Study(terms)

    def asks(self, name: str, queries: tuple[Query, ...]) -> None:
        self.studies[name].requests.append(queries)

    def recent(self, name: str) -> list[tuple[Query, ...]]:
        return self.studies[name].requests[-RECENT:]

    def knows(self, name: str, digest: bytes, query: Query) -> None:
        self.known[name][digest] = query

    def drew(self, name: str, digest: bytes, outcome: VoteOutcome, label: int | None) -> None:
        query = self.known[name][digest]
        self.studies[name].drawn.setdefault(query, set()).add((str(outcome), label))

    # ------------------------------------------------------------------------------- status

    def about_to_set(self, name: str, status: ProjectStatus) -> None:
        self.studies[name].statuses.append(("asked", status))

    def was_set(self, name: str, status: ProjectStatus) -> None:
        self.studies[name].statuses.append(("done", status))

    def moment(self, name: str) -> int:
        return len(self.studies[name].statuses)

    def _certainly(self, name: str, since: int) -> ProjectStatus | None:
        """The status that the project had all the time since a moment, if clients can know it."""
        said = self.studies[name].statuses
        if not said:
            return ProjectStatus.ACTIVE
        if len(said) != since or said[-1][0] != "done":
            return None
        alone = len(said) >= 2 and said[-2] == ("asked", said[-1][1])
        pending = sum(1 if kind == "asked" else -1 for kind, _ in said)
        return said[-1][1] if alone and pending == 0 else None

    # ------------------------------------------------------------------------------ replies

    def answered(
        self, name: str, queries: tuple[Query, ...], receipt: ChargedBatch, began: int
    ) -> None:
        study = self.studies[name]
        assert self._certainly(name, began) is not ProjectStatus.PAUSED, "a paused project answered"
        assert len(receipt.results) == len(queries)
        self.saw_account(name, receipt.project)
        assert any(r.seq is not None for r in receipt.results), "nothing paid, and no refusal"
        for query, result in zip(queries, receipt.results, strict=True):
            if result.outcome is Outcome.REFUSED:
                assert (result.seq, result.label) == (None, None)
                assert query not in study.answers, "paid once, refused later"
                continue
            assert result.seq is not None
            seen = result.seq, str(result.outcome), result.label
            assert study.answers.setdefault(query, seen) == seen, "the same query, another answer"
            assert study.payers.setdefault(result.seq, query) == query, "one charge, two queries"
            assert seen[1:] in study.drawn[query], "an answer that nobody drew"
            self.replies["replayed" if result.replayed else "paid"] += 1

    def refused(self, name: str, refusal: errors.ServiceError, began: int) -> None:
        study = self.studies[name]
        self.replies[type(refusal).__name__] += 1
        if isinstance(refusal, errors.BudgetExhausted):
            study.exhausted = True
            return
        assert isinstance(refusal, errors.ProjectPaused), repr(refusal)
        assert self._certainly(name, began) is not ProjectStatus.ACTIVE, "an active one refused"

    def saw_account(self, name: str, account: ProjectRecord) -> None:
        study = self.studies[name]
        assert 0 <= account.spent <= study.terms.budget, "overspent"
        seen = account.spent, account.head
        assert study.accounts.setdefault(account.charges, seen) == seen, (
            "two accounts of one length"
        )

    # ---------------------------------------------------------------------------- the books

    def close_books(self, name: str, ledger: Ledger) -> None:
        """Hold the books, as an auditor reads them, against everything that clients saw."""
        study = self.studies[name]
        found = ledger.verify(name)
        assert found.ok, found.problems
        spent, hashes = 0, {}
        written: dict[Query, Seen] = {}
        for entry in ledger.stream_charges(name):
            query = self.known[name][bytes.fromhex(entry.query_digest)]
            assert query not in written, "paid twice"
            written[query] = entry.seq, str(entry.outcome), entry.label
            assert written[query][1:] in study.drawn[query], "a charge that nobody asked for"
            assert entry.seq == len(written), "numbers with a gap"
            spent += study.terms.prices[VoteOutcome(str(entry.outcome))].cost
            hashes[entry.seq] = spent, entry.hash
        assert all(written.get(query) == seen for query, seen in study.answers.items()), "lost"
        for charges, account in study.accounts.items():
            assert charges == 0 or hashes[charges] == account, "another history"
        last = ledger.project(name)
        assert last.spent == spent <= study.terms.budget
        if study.exhausted:
            assert spent + study.terms.worst.cost > study.terms.budget, "refused with money left"
