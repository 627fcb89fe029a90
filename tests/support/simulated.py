"""A whole world around a real ledger, of which one seed decides everything; and its judge."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from greenlet import getcurrent, greenlet
from sqlalchemy import Connection, Engine, event, exc

from support.databases import SECRET_KEY, migrated
from support.ledgers import (
    CONFIDENT,
    NEIGHBOURS,
    PEOPLE,
    People,
    TheirVoters,
    digest,
    numbered,
    people_terms,
    recomputed,
    register,
    register_people,
    stored,
    terms,
)
from support.processes import seed_noise
from terrine_protocol import Outcome, ProjectStatus
from terrine_server import errors
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import (
    ChargedBatch,
    Ledger,
    NewProject,
    ProjectRecord,
    Proposal,
    QueryDigest,
    connect,
)
from terrine_server.ledger.database import BEGIN_STATEMENT
from terrine_server.ledger.projects import Projects
from terrine_server.metrics import Metrics
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
        found = ledger.verifier.verify_project(name)
        assert found.ok, found.problems
        spent, hashes = 0, {}
        written: dict[Query, Seen] = {}
        for entry in ledger.entries.stream(name):
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
        last = ledger.projects.get(name)
        assert last.spent == spent <= study.terms.budget
        if study.exhausted:
            assert spent + study.terms.worst.cost > study.terms.budget, "refused with money left"


SERVERS, AT_ONCE, PROJECTS = 3, 6, 4
QUERIES = 60
"""Different queries to a project: few, so that most requests meet an earlier one."""
AFFORDS = (5, 40)
"""Queries that a project's budget pays for, at least."""
SECONDS = 30.0
"""Mean time between two requests."""
CHANCES = {"switch": 0.5, "error": 0.004, "crash": 0.002, "lost": 0.01}
"""Of each statement, and the last of each commit: that its reply is lost."""
ATTEMPTS = 4


class Crash(BaseException):
    """The server's process is gone. Whoever waits for it gets no reply."""


@dataclass(eq=False)
class Server:
    """One process: its connections, and what it remembers."""

    engine: Engine
    ledger: Ledger
    dead: bool = False


class World:
    """Runs `operations` requests against a ledger at `path`, which must not exist yet."""

    def __init__(self, path: Path, seed: int, operations: int, patch: pytest.MonkeyPatch) -> None:
        self.url, self.operations = f"sqlite:///{path}", operations
        self.random = random.Random(seed)
        self.began = self.now = datetime(2030, 1, 1, tzinfo=UTC)
        self.judge = Judge()
        self.trace = hashlib.sha256()
        self.counts = dict.fromkeys(("done", *CHANCES), 0)
        self.hub = getcurrent()
        self.waiting: list[greenlet] = []
        self.calm = True
        self.voters, self.metrics = TheirVoters(People(spare=True)), Metrics()
        self.taken: set[int] = set()
        """Projects whose turn somebody has."""
        patch.setattr("terrine_server.ledger.database.now", lambda: self.now)
        patch.setattr(
            Projects, "lock", lambda projects, project_id: self.turn(projects, project_id)
        )
        patch.setattr(Labeling, "_draw", self.witnessed(Labeling._draw))
        seed_noise(patch, seed)
        migrated(self.url).dispose()
        self.servers = [self.started() for _ in range(SERVERS)]
        register(self.servers[0].ledger, "mnist", 100.0)
        register_people(self.servers[0].ledger, 2 * PEOPLE)
        self.names: list[str] = []
        self.of_people: set[str] = set()

    # ---------------------------------------------------------------------------- machinery

    def started(self) -> Server:
        """A server that has just been started."""
        engine = connect(self.url)
        server = Server(engine, Ledger(engine, SECRET_KEY))
        writing: set[greenlet] = set()  # nobody else can go on meanwhile: they would wait for ever
        begin, commit = engine.dialect.do_begin, engine.dialect.do_commit

        @event.listens_for(engine, "connect")
        def hurry(connection: sqlite3.Connection, _: object) -> None:
            connection.execute("PRAGMA synchronous = OFF")  # processes die here, not the machine

        @event.listens_for(engine, "before_cursor_execute")
        def statement(*_: object) -> None:
            self.step(server, "statement", switch=getcurrent() not in writing)

        def do_begin(dbapi: Any) -> None:
            if dbapi.info.get(BEGIN_STATEMENT) == "BEGIN IMMEDIATE":
                writing.add(getcurrent())
            statement()
            begin(dbapi)

        def do_commit(dbapi: Any) -> None:
            wrote = getcurrent() in writing
            self.step(server, "commit", switch=not wrote)
            commit(dbapi)
            writing.discard(getcurrent())
            if wrote and not self.calm and not server.dead and self.happens("lost"):
                raise sqlite3.OperationalError("connection lost")
            self.step(server, "committed", switch=False)

        @event.listens_for(engine, "rollback")
        def rollback(_: Connection) -> None:
            writing.discard(getcurrent())

        engine.dialect.do_begin = do_begin  # type: ignore[method-assign, assignment]
        engine.dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]
        return server

    def happens(self, what: str) -> bool:
        found = self.random.random() < CHANCES[what]
        self.counts[what] += found
        return found

    def step(self, server: Server, what: str, *, switch: bool) -> None:
        """Between two statements: another request may go on, or something fails."""
        if self.calm or server.dead or getcurrent() is self.hub:
            return
        if switch and self.happens("switch"):
            self.waiting.append(getcurrent())
            self.hub.switch()
            if server.dead:
                raise Crash
        if self.happens("crash"):
            raise Crash
        if what != "committed" and self.happens("error"):
            original = sqlite3.OperationalError("disk I/O error")
            if what == "commit":
                raise original
            raise exc.OperationalError("", {}, original)

    @contextmanager
    def turn(self, projects: Projects, project_id: int) -> Iterator[None]:
        """In place of a lock that all processes see: everybody here is one."""
        while project_id in self.taken:
            self.waiting.append(getcurrent())
            self.hub.switch()
            if all(server.ledger.projects is not projects for server in self.servers):
                raise Crash
        self.taken.add(project_id)
        try:
            yield
        finally:
            self.taken.remove(project_id)

    def witnessed(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        """The judge is told what a pipeline draws."""

        def drawn(labeling: Labeling, project: Any, *given: Any) -> Any:
            found = draw(labeling, project, *given)
            for each in found.proposals.values():
                self.judge.drew(project.name, each.query_digest, each.outcome, each.label)
            return found

        return drawn

    def bury(self, server: Server) -> None:
        """End a process, with all that it works on; a new one takes its place."""
        server.dead = True
        server.engine.dispose()
        self.servers[self.servers.index(server)] = self.started()

    def say(self, *words: object) -> None:
        self.trace.update(repr(words).encode())

    # ----------------------------------------------------------------------------- requests

    def run(self) -> None:
        """Run all requests, then let the judge look at the books."""
        for number in range(PROJECTS):
            self.open(number)
        self.calm = False
        begun = 0
        while begun < self.operations or self.waiting:
            if begun < self.operations and len(self.waiting) < AT_ONCE:
                begun += 1
                self.now += timedelta(seconds=self.random.expovariate(1 / SECONDS))
                self.waiting.append(greenlet(self.operation(begun)))
            at = self.random.randrange(len(self.waiting))
            self.waiting.pop(at).switch()
        self.calm = True
        for server in self.servers:
            server.engine.dispose()
        last = self.started()
        for name in self.names:
            self.judge.close_books(name, last.ledger)
            if name in self.of_people:
                self.close_accounts(name, last.ledger)
        last.engine.dispose()

    def close_accounts(self, name: str, ledger: Ledger) -> None:
        """Nobody voted for more, or less, than the queries that were charged, in their order."""
        project = ledger.projects.get(name)
        if project.charges:
            asked = [numbered(query) for query in self.judge.known[name].values()]
            accounts = recomputed(ledger, name, self.voters.found, asked)
            assert (stored(self.url, project) == accounts).all(), "accounts of other queries"

    def new(self, name: str, number: int) -> NewProject:
        """What is opened next."""
        affords = self.random.randint(*AFFORDS)
        if number % PROJECTS:
            new = NewProject(name, "mnist", CONFIDENT, terms(affords, CONFIDENT))
        else:
            spec = {**NEIGHBOURS, "queries": affords}
            new = NewProject(name, "people", spec, people_terms(spec))
            self.of_people.add(name)
        self.judge.opened(name, new.terms)
        return new

    def open(self, number: int) -> None:
        new = self.new(f"p{number}", number)
        self.servers[0].ledger.projects.open(new)
        self.names.append(new.name)

    def operation(self, number: int) -> Callable[[], None]:
        """What somebody does next."""
        chance = self.random.random()
        name = self.random.choice(self.names[-PROJECTS:])
        if chance < 0.01:
            return lambda: self.attempted(lambda: self.renew(number))
        if chance < 0.03:
            status = ProjectStatus.PAUSED if chance < 0.015 else ProjectStatus.ACTIVE
            return lambda: self.attempted(lambda: self.set_status(name, status))
        if chance < 0.04:
            return lambda: self.attempted(lambda: self.look(name))
        earlier = self.judge.recent(name)
        if earlier and chance < 0.2:  # a duplicate, perhaps while the first is on its way
            queries = self.random.choice(earlier)
        else:
            count = self.random.randint(1, 5)
            queries = tuple(f"{name}-{self.random.randrange(QUERIES)}" for _ in range(count))
        return lambda: self.ask(name, queries)

    def served(self, work: Callable[[Ledger], Any]) -> Any:
        """Have a server do it. Raises what the ledger raises, and Crash if the server dies."""
        server = self.random.choice(self.servers)
        try:
            return work(server.ledger)
        except Crash:
            if not server.dead:
                self.bury(server)
            raise

    def attempted(self, work: Callable[[], None]) -> None:
        with suppress(Crash, errors.DatabaseUnavailable, errors.CapExceeded):
            work()
        self.counts["done"] += 1

    def renew(self, number: int) -> None:
        """Open another project, which takes the place of the oldest."""
        new = self.new(f"p-{number}", number)
        self.served(lambda ledger: ledger.projects.open(new))
        self.names.append(new.name)  # without a reply it may be open, but nobody will ever ask it

    def set_status(self, name: str, status: ProjectStatus) -> None:
        self.judge.about_to_set(name, status)
        self.served(lambda ledger: ledger.projects.set_status(name, status))
        self.judge.was_set(name, status)
        self.say("status", name, status)

    def look(self, name: str) -> None:
        account = self.served(lambda ledger: ledger.projects.get(name))
        self.judge.saw_account(name, account)

    def ask(self, name: str, queries: tuple[Query, ...]) -> None:
        """A client's request, sent again until there is a reply, as the client library does."""
        self.judge.asks(name, queries)
        for _ in range(ATTEMPTS):
            began = self.judge.moment(name)
            try:
                receipt = self.served(lambda ledger: self.answer(ledger, name, queries))
            except (Crash, errors.DatabaseUnavailable, errors.ConcurrentUpdate) as error:
                self.say(name, queries, type(error).__name__)
                continue
            except errors.ServiceError as refusal:
                self.say(name, queries, type(refusal).__name__)
                self.judge.refused(name, refusal, began)
            else:
                self.say(name, queries, [(r.seq, r.outcome, r.label) for r in receipt.results])
                self.judge.answered(name, queries, receipt, began)
            break
        self.counts["done"] += 1

    def answer(self, ledger: Ledger, name: str, queries: tuple[str, ...]) -> Any:
        """By the labeling pipeline, or as it does: look up, draw for what is new, charge."""
        if name in self.of_people:
            labeling = Labeling(ledger, self.voters, self.metrics, max_batch=100)
            ask = labeling.check(name, np.stack([numbered(query) for query in queries]))
            for query, both in zip(queries, ask.digests, strict=True):
                self.judge.knows(name, both.query, query)
            (found,) = labeling.answer(name, [ask])
        else:
            found = self.answer_by_chance(ledger, name, queries)
        if isinstance(found, errors.ServiceError):
            raise found
        return found

    def answer_by_chance(self, ledger: Ledger, name: str, queries: tuple[str, ...]) -> Any:
        digests = [QueryDigest(digest(query), digest(query)) for query in queries]
        record = ledger.charging.look_up(name, digests)
        proposals = []
        for query, both in zip(queries, digests, strict=True):
            self.judge.knows(name, both.query, query)
            outcome, label = None, None
            if record.recorded.find(both.query, both.input) is None:
                outcome = self.random.choice([VoteOutcome.ANSWERED, VoteOutcome.ABSTAINED])
                label = self.random.randrange(10) if outcome is VoteOutcome.ANSWERED else None
                self.judge.drew(name, both.query, outcome, label)
            proposals.append(Proposal(both.query, both.input, outcome, label))
        (found,) = ledger.charging.charge(record.project.id, [proposals], record)
        return found


def simulate(path: Path, seed: int, operations: int) -> World:
    """Run one world. Raises AssertionError, with the seed, if anything is not as it must be."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(path, seed, operations, patch)
        try:
            world.run()
        except (AssertionError, errors.ServiceError, exc.SQLAlchemyError) as error:
            raise AssertionError(f"seed {seed}, {operations} operations: {error!r}") from error
        return world
