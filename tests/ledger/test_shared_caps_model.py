"""Whatever is registered, opened, charged and closed: no private data give more than one cap."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import hypothesis.strategies as st
import pytest
from books import CONFIDENT, FACTS, RECORDS, digest, private, terms
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from migrated import SECRET_KEY, migrated
from reference_ledger import Book, Books, Refused

from terrine_protocol import ProjectStatus
from terrine_server import errors
from terrine_server.ledger import Ledger, NewProject, Proposal
from terrine_server.privacy import Cap, VoteOutcome, cap

CAP, ANOTHER = cap(0.6, 1e-5), cap(0.7, 1e-5)
"""Two or three of the projects that are opened here, and a larger one."""
NUMBERS = count()
pick = st.integers(0, 20)
outcomes = st.sampled_from([VoteOutcome.ANSWERED, VoteOutcome.ABSTAINED])


@dataclass(eq=False)
class People:
    """Some private data with one cap: what they are known by, and the projects of all ensembles."""

    parts: set[str] = field(default_factory=set)
    ensembles: list[str] = field(default_factory=list)
    books: Books = field(default_factory=lambda: Books(CAP.budget))


class SharedCaps(RuleBasedStateMachine):
    """Does the same to a real ledger and to books of one cap for each group of people."""

    url: str
    ledger: Ledger

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[People] = []
        self.of_project: dict[str, People] = {}
        self.run = f"{next(NUMBERS)}"

    @initialize()
    def some(self) -> None:
        self.register({0, 1}, None)

    def group_of(self, ensemble: str) -> People:
        return next(each for each in self.groups if ensemble in each.ensembles)

    def an_ensemble(self, number: int) -> str:
        names = [name for each in self.groups for name in each.ensembles]
        return names[number % len(names)]

    def a_project(self, number: int) -> str:
        return list(self.of_project)[number % len(self.of_project)]

    @rule(parts=st.sets(st.integers(0, 5), max_size=2), shares=st.none() | pick)
    def register(self, parts: set[int], shares: int | None) -> None:
        """An ensemble of data that may be known in part, or of whom the owner says whose they are.

        Data of two caps are refused.
        """
        self.registered(parts, shares, CAP)

    @rule(number=pick, part=st.integers(0, 5))
    def raise_the_cap(self, number: int, part: int) -> None:
        """The same people are registered with a larger cap, which is refused."""
        self.registered({part}, number, ANOTHER)

    def registered(self, parts: set[int], shares: int | None, wanted: Cap) -> None:
        stated = None if shares is None else self.an_ensemble(shares)
        known = {f"{self.run} {part}" for part in parts}
        found = [each for each in self.groups if each.parts & known]
        if stated is not None and self.group_of(stated) not in found:
            found.append(self.group_of(stated))
        name = f"e{next(NUMBERS)}"
        try:
            made = self.ledger.register_ensemble(
                name,
                f"ensembles/{name}",
                digest(name).hex(),
                FACTS,
                RECORDS,
                wanted,
                data=private(*known) if known else None,
                shares_cap_of=stated,
            )
        except errors.Conflict:
            assert len(found) > 1 or (found and wanted is ANOTHER)
            return
        assert len(found) < 2
        if not found:
            self.groups.append(People())
            found = self.groups[-1:]
        assert set(made.shares_with) == set(found[0].ensembles)
        found[0].parts |= known
        found[0].ensembles.append(name)

    @rule(number=pick, affords=st.integers(1, 6))
    def open(self, number: int, affords: int) -> None:
        ensemble, name = self.an_ensemble(number), f"p{next(NUMBERS)}"
        people, agreed = self.group_of(ensemble), terms(affords, CONFIDENT)
        prices = {str(o): (p.cost, p.cap_cost) for o, p in agreed.prices.items()}
        wanted = Book(agreed.budget, prices, agreed.cap_budget)
        try:
            people.books.open(name, wanted)
        except Refused:
            try:
                self.ledger.open_project(NewProject(name, ensemble, CONFIDENT, agreed))
            except errors.CapExceeded:
                return
            raise AssertionError("more was opened than the cap holds") from None
        self.ledger.open_project(NewProject(name, ensemble, CONFIDENT, agreed))
        self.of_project[name] = people

    @precondition(lambda self: self.of_project)
    @rule(
        number=pick, batch=st.lists(st.tuples(st.integers(0, 8), outcomes), max_size=4, min_size=1)
    )
    def charge(self, number: int, batch: list[tuple[int, VoteOutcome]]) -> None:
        name = self.a_project(number)
        book = self.of_project[name].books.projects[name]
        try:
            wanted = book.charge([(f"{query}", str(how)) for query, how in batch])
        except Refused:
            wanted = None
        proposals = [
            Proposal(digest(query), digest(query), how, 3 if how == "answered" else None)
            for query, how in batch
        ]
        try:
            receipt = self.ledger.charge(self.ledger.project(name).id, proposals)
        except (errors.BudgetExhausted, errors.ProjectClosed, errors.ProjectPaused):
            assert wanted is None
        else:
            paid = [None if r.seq is None else (r.seq, str(r.outcome)) for r in receipt.results]
            assert paid == wanted

    @precondition(lambda self: self.of_project)
    @rule(number=pick, status=st.sampled_from(["active", "paused", "closed", "closed"]))
    def set_status(self, number: int, status: str) -> None:
        name = self.a_project(number)
        try:
            self.of_project[name].books.set_status(name, status)
        except Refused:
            try:
                self.ledger.set_status(name, ProjectStatus(status))
            except errors.Conflict:
                return
            raise AssertionError("what is closed was opened again") from None
        self.ledger.set_status(name, ProjectStatus(status))

    @invariant()
    def what_people_have_spent_and_reserved_never_exceeds_their_cap(self) -> None:
        """Of all projects on any of their ensembles; every ensemble says the same of it."""
        for people in self.groups:
            taken = 0
            for name in people.books.projects:
                project = self.ledger.project(name)
                closed = project.status is ProjectStatus.CLOSED
                taken += project.cap_spent if closed else project.terms.cap_budget
                assert project.cap_spent <= project.terms.cap_budget
            assert taken == people.books.reserved <= CAP.budget
            for name in people.ensembles:
                ensemble = self.ledger.ensemble(name)
                assert (ensemble.reserved, ensemble.cap) == (taken, CAP.budget)

    def teardown(self) -> None:
        for name in self.of_project:
            assert self.ledger.verify(name).ok
        found = self.ledger.verify_log()
        assert found.ok, found.problems


@pytest.mark.parametrize("examples", [4, pytest.param(30, marks=pytest.mark.nightly)])
def test_no_private_data_give_more_than_one_cap(database_url: str, examples: int) -> None:
    class Machine(SharedCaps):
        url, ledger = database_url, Ledger(migrated(database_url), SECRET_KEY)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
