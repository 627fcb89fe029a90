"""Whatever is done to a ledger, in whatever order, it is as a few obvious lines say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeVar

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
from sqlalchemy import Connection, event

from support.databases import SECRET_KEY, Copies, migrated
from support.ledgers import (
    CONFIDENT,
    FACTS,
    RECORDS,
    Answer,
    Book,
    Books,
    Refused,
    charge_one,
    digest,
    terms,
)
from support.servers import policy_of, publisher
from terrine_protocol import ProjectStatus
from terrine_server import errors
from terrine_server.ledger import Ledger, NewProject, Proposal, connect
from terrine_server.privacy import Cap, VoteOutcome, cap

REFUSALS: dict[type[errors.ServiceError], str] = {
    errors.ProjectPaused: "paused",
    errors.ProjectClosed: "closed",
    errors.BudgetExhausted: "exhausted",
    errors.CapExceeded: "cap",
    errors.Conflict: "closed for good",
}
CAP, ANOTHER = cap(0.6, 1e-5), cap(0.7, 1e-5)
"""Two or three of the projects that are opened here, and a larger one."""
NUMBERS = count()
STEPS = 40

T = TypeVar("T")
U = TypeVar("U")

queries = st.lists(
    st.tuples(
        st.sampled_from([f"q{i}" for i in range(9)]),
        st.sampled_from(["answered", "answered", "abstained", "unvoted"]),
    ),
    min_size=1,
    max_size=4,
)
pick = st.integers(0, 10)


@dataclass
class Population:
    """What is known of a population: its ensembles, and the projects on all of them."""

    name: str
    ensembles: list[str] = field(default_factory=list)
    books: Books = field(default_factory=lambda: Books(CAP.budget))


@dataclass
class State:
    """What a backup holds: the books, and every charge's hash as it was when it was made."""

    populations: list[Population] = field(default_factory=list)
    hashes: dict[str, list[str]] = field(default_factory=dict)


def size_of(note: str | None) -> int:
    """The number of leaves that a checkpoint is of."""
    return 0 if note is None else int(note.splitlines()[1])


class LedgerMachine(RuleBasedStateMachine):
    """Does the same to a real ledger and to the reference; both must agree at every step."""

    url: str
    copies: Copies

    def __init__(self) -> None:
        super().__init__()
        self.ledger = self.connected()
        self.run = f"{next(NUMBERS)}"
        self.state = State()
        self.kept: tuple[str, State] | None = None
        self.checkpoints: dict[str, bool] = {}
        self.cut_off = False

    def connected(self) -> Ledger:
        self.engine = connect(self.url)

        @event.listens_for(self.engine, "before_cursor_execute")
        def cut(connection: Connection, _: object, statement: str, *__: object) -> None:
            if self.cut_off and "UPDATE projects" in statement:
                self.cut_off = False
                driver = connection.connection.driver_connection
                assert driver is not None
                driver.close()

        return Ledger(self.engine, SECRET_KEY)

    def a_project(self, number: int) -> str:
        names = sorted(self.state.hashes)
        return names[number % len(names)]

    def books_of(self, project: str) -> Books:
        populations = self.state.populations
        return next(each.books for each in populations if project in each.books.projects)

    @initialize()
    def some(self) -> None:
        self.registered(0, CAP, disjoint=True)

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
        found = next((each for each in self.state.populations if each.name == population), None)
        sound = disjoint and wanted is CAP if found is None else not disjoint and wanted != ANOTHER
        try:
            made = self.ledger.ensembles.register(
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
        assert made.population.name == population
        if found is None:
            found = Population(population)
            self.state.populations.append(found)
        found.ensembles.append(name)

    def both(self, expected: Callable[[], T], done: Callable[[], U]) -> tuple[T, U] | None:
        """Do the same to both; return what they say, or None where both refuse alike."""
        refusal = refused = None
        try:
            wanted = expected()
        except Refused as no:
            refusal = str(no)
        try:
            got = done()
        except tuple(REFUSALS) as error:
            refused = REFUSALS[type(error)]
        assert refused == refusal
        return None if refusal else (wanted, got)

    @rule(number=pick, affords=st.integers(1, 6))
    def open(self, number: int, affords: int) -> None:
        choices = [(each, name) for each in self.state.populations for name in each.ensembles]
        people, ensemble = choices[number % len(choices)]
        name, agreed = f"project{next(NUMBERS)}", terms(affords, CONFIDENT)
        prices = {str(o): (p.cost, p.cap_cost) for o, p in agreed.prices.items()}
        opened = self.both(
            lambda: people.books.open(name, Book(agreed.budget, prices, agreed.cap_budget)),
            lambda: self.ledger.projects.open(NewProject(name, ensemble, CONFIDENT, agreed)),
        )
        if opened:
            self.state.hashes[name] = []

    @precondition(lambda self: self.state.hashes)
    @rule(number=pick, batch=queries)
    def charge(self, number: int, batch: list[tuple[str, str]]) -> None:
        name = self.a_project(number)
        answers = self.both(
            lambda: self.books_of(name).projects[name].charge(batch),
            lambda: self.asked(name, batch),
        )
        if answers:
            assert answers[0] == answers[1]
            self.note_hashes(name)

    @precondition(lambda self: self.state.hashes)
    @rule(number=pick, batch=queries)
    def charge_on_a_connection_that_is_lost(
        self, number: int, batch: list[tuple[str, str]]
    ) -> None:
        """Before anything is written, so nothing happened; where nothing is, the refusal stands."""
        name = self.a_project(number)
        self.cut_off = True
        with contextlib.suppress(*REFUSALS, errors.DatabaseUnavailable):
            self.asked(name, batch)
        self.cut_off = False

    @precondition(lambda self: self.state.hashes)
    @rule(number=pick, status=st.sampled_from(["active", "active", "paused", "closed"]))
    def set_status(self, number: int, status: str) -> None:
        name = self.a_project(number)
        self.both(
            lambda: self.books_of(name).set_status(name, status),
            lambda: self.ledger.projects.set_status(name, ProjectStatus(status)),
        )

    @precondition(lambda self: self.kept is None and any(self.state.hashes.values()))
    @rule()
    def back_up(self) -> None:
        self.checkpoint()
        self.engine.dispose()
        self.kept = self.copies.make(), deepcopy(self.state)

    @precondition(lambda self: self.kept)
    @rule()
    def restore(self) -> None:
        assert self.kept is not None
        self.checkpoint()
        self.engine.dispose()
        self.copies.restore(self.kept[0])
        self.state = deepcopy(self.kept[1])
        self.ledger = self.connected()
        size = size_of(self.ledger.tree.checkpoint())
        for note, holds in self.checkpoints.items():
            self.checkpoints[note] = holds and size_of(note) <= size
        self.compare_with_checkpoints()

    @rule()
    def checkpoint(self) -> None:
        publisher(self.ledger).round()
        note = self.ledger.tree.checkpoint()
        assert note is not None
        self.checkpoints[note] = True

    @precondition(lambda self: self.checkpoints)
    @rule()
    def compare_with_checkpoints(self) -> None:
        """A checkpoint holds exactly as long as the entries that it was made of are there."""
        found = self.ledger.tree.check(policy_of(), {note: note for note in self.checkpoints})
        assert found.ok == all(self.checkpoints.values()), found.problems
        for note, holds in self.checkpoints.items():
            assert self.ledger.tree.check(policy_of(), {"kept": note}).ok == holds, note

    @invariant()
    def the_books_are_those_of_the_reference(self) -> None:
        """What people reserve and have spent, on all of their ensembles, is within their cap."""
        for people in self.state.populations:
            taken = 0
            for name, book in people.books.projects.items():
                project = self.ledger.projects.get(name)
                said = (project.spent, project.cap_spent, project.charges, str(project.status))
                assert said == (book.total(0), book.total(1), len(book.paid), book.status)
                assert project.spent <= project.terms.budget
                assert project.cap_spent <= project.terms.cap_budget
                closed = project.status is ProjectStatus.CLOSED
                taken += project.cap_spent if closed else project.terms.cap_budget
            assert taken == people.books.reserved <= CAP.budget
            for ensemble in people.ensembles:
                found = self.ledger.ensembles.get(ensemble).population
                assert (found.reserved, found.cap) == (taken, CAP.budget)

    def teardown(self) -> None:
        for name in self.state.hashes:
            found = self.ledger.verifier.verify_project(name)
            assert found.ok, found.problems
        assert self.ledger.verifier.verify_log().problems == []
        self.engine.dispose()
        if self.kept:
            self.copies.drop(self.kept[0])

    def asked(self, name: str, batch: list[tuple[str, str]]) -> list[Answer]:
        proposals = [
            Proposal(
                digest(query),
                digest(query),
                None if outcome == "unvoted" else VoteOutcome(outcome),
                3 if outcome == "answered" else None,
            )
            for query, outcome in batch
        ]
        project = self.ledger.projects.get(name).id
        receipt = charge_one(self.ledger, project, proposals)
        return [
            None if result.seq is None else (result.seq, str(result.outcome))
            for result in receipt.results
        ]

    def note_hashes(self, name: str) -> None:
        known = self.state.hashes[name]
        known += [entry.hash for entry in self.ledger.entries.list(name, after_seq=len(known))]


# A PostgreSQL database takes a tenth of a second to copy.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("each_database_url", "examples"),
    [
        ("sqlite", 8),
        ("postgresql", 2),
        pytest.param("sqlite", 60, marks=pytest.mark.nightly),
        pytest.param("postgresql", 20, marks=pytest.mark.nightly),
    ],
    indirect=["each_database_url"],
)
def test_a_ledger_does_as_the_reference_does(
    each_database_url: str, examples: int, tmp_path: Path
) -> None:
    migrated(each_database_url).dispose()
    made = Copies(each_database_url, tmp_path)

    class Machine(LedgerMachine):
        url, copies = each_database_url, made

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
