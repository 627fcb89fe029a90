"""Whatever is registered, opened, charged and closed: no population has more than one cap."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.databases import SECRET_KEY, migrated
from support.ledgers import CONFIDENT, FACTS, RECORDS, Book, Books, Refused, digest, terms
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
class Population:
    """What is known of a population: its ensembles, and the projects on all of them."""

    name: str
    ensembles: list[str] = field(default_factory=list)
    books: Books = field(default_factory=lambda: Books(CAP.budget))


class Populations(RuleBasedStateMachine):
    """Does the same to a real ledger and to books of one cap for each population."""

    url: str
    ledger: Ledger

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[Population] = []
        self.of_project: dict[str, Population] = {}
        self.run = f"{next(NUMBERS)}"

    @initialize()
    def some(self) -> None:
        self.registered(0, CAP, disjoint=True)

    def group_of(self, ensemble: str) -> Population:
        return next(each for each in self.groups if ensemble in each.ensembles)

    def an_ensemble(self, number: int) -> str:
        names = [name for each in self.groups for name in each.ensembles]
        return names[number % len(names)]

    def a_project(self, number: int) -> str:
        return list(self.of_project)[number % len(self.of_project)]

    @rule(number=st.integers(0, 3), disjoint=st.booleans(), given=st.booleans())
    def register(self, number: int, disjoint: bool, given: bool) -> None:
        """An ensemble of a population that is there, or new; with its cap, or none."""
        self.registered(number, CAP if given else None, disjoint)

    @rule(number=st.integers(0, 3))
    def raise_the_cap(self, number: int) -> None:
        """People who have a cap are registered with a larger one, which is refused."""
        self.registered(number, ANOTHER, disjoint=False)

    def registered(self, number: int, wanted: Cap | None, disjoint: bool) -> None:
        population, name = f"p{self.run}-{number}", f"e{next(NUMBERS)}"
        found = next((each for each in self.groups if each.name == population), None)
        if found is None:
            sound = disjoint and wanted is CAP
        else:
            sound = not disjoint and wanted is not ANOTHER
        try:
            made = self.ledger.register_ensemble(
                name,
                f"ensembles/{name}",
                digest(name).hex(),
                FACTS,
                RECORDS,
                wanted,
                population=population,
                disjoint=disjoint,
            )
        except (errors.Conflict, errors.NotFound, errors.InvalidTerms):
            assert not sound
            return
        assert sound
        if found is None:
            found = Population(population)
            self.groups.append(found)
        assert made.population.name == population
        found.ensembles.append(name)

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
                found = ensemble.population
                assert (found.reserved, found.cap) == (taken, CAP.budget)

    def teardown(self) -> None:
        for name in self.of_project:
            assert self.ledger.verify(name).ok
        found = self.ledger.verify_log()
        assert found.ok, found.problems


@pytest.mark.parametrize("examples", [4, pytest.param(30, marks=pytest.mark.nightly)])
def test_no_population_has_more_than_one_cap(database_url: str, examples: int) -> None:
    class Machine(Populations):
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
