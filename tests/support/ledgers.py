"""Small real ledgers: ensembles, projects of every kind, and teachers whose votes are given."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, Table, delete, insert, inspect, select, update
from sqlalchemy.exc import StatementError

from support.databases import SECRET_KEY, as_owner, migrated
from terrine_models.teachers.neighbours import ShadowPoints
from terrine_protocol import EnsembleFacts, InputSpec
from terrine_server.errors import (
    EnsembleUnavailable,
    ServiceError,
)
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.queries import CheckedRequest, input_digests
from terrine_server.labeling.voters import Neighbourhood, Voters
from terrine_server.ledger import (
    ChargedBatch,
    EnsembleRecord,
    Ledger,
    NewProject,
    ProjectRecord,
    Proposal,
    connect,
    log,
)
from terrine_server.ledger.chain import ACTIONS_ABOUT, LOG_START, facts_text, log_hash
from terrine_server.ledger.schema import administrative_log, metadata, unit_accounts
from terrine_server.ledger.seals import READ_ERRORS, SEALED, Seals
from terrine_server.ledger.tallies import meter_of
from terrine_server.ledger.verifying import rows_of
from terrine_server.metrics import Metrics
from terrine_server.planning.expected import Consensus, Votes
from terrine_server.planning.opening import choose
from terrine_server.planning.publishing import choose_schedule
from terrine_server.privacy import (
    GDP,
    Account,
    Cap,
    Neighbours,
    Rule,
    Terms,
    Units,
    VoteOutcome,
    build_mechanism,
    cap,
    quote,
)

TEACHERS, CLASSES, RECORDS = 250, 10, 60_000
FACTS = EnsembleFacts(
    kind="heads",
    input=InputSpec(shape=(28, 28), dtype="uint8", low=0, high=255),
    classes=[str(digit) for digit in range(CLASSES)],
    teachers=TEACHERS,
)
GNMAX = {"name": "gnmax", "sigma": 40.0}
CONFIDENT = {"name": "confident_gnmax", "threshold": 200, "sigma1": 150.0, "sigma2": 40.0}
NOISY = {"name": "confident_gnmax", "threshold": 200, "sigma1": 1500.0, "sigma2": 400.0}
"""Queries so cheap that tens of thousands fit."""
COUNTED = {"name": "noisy_votes", "sigma": 400.0}
"""Noisy counts, tens of thousands of them."""
LNMAX = {"name": "lnmax", "gamma": 0.05}
STABLE = {"name": "stable", "sigma": 8.0, "delta_per_query": 1e-10}
IMMUTABLE = {"name": "immutable", "c": 1, "gamma": 0.05}


def digest(text: object) -> bytes:
    return hashlib.sha256(str(text).encode()).digest()


def answered(query: object, label: int = 3, given: object = None) -> Proposal:
    """A query that the teachers answered; `given` is its input, if the query has more than that."""
    whole = digest(query if given is None else given)
    return Proposal(digest(query), whole, VoteOutcome.ANSWERED, label)


def counted(query: object, draw: object = "") -> Proposal:
    """A query that was answered with noisy counts. Another `draw` has other counts."""
    counts = tuple(3 * byte - 300 for byte in digest(f"{query} {draw}")[:CLASSES])
    label = counts.index(max(counts))
    whole = digest(query)
    return Proposal(whole, whole, VoteOutcome.ANSWERED, label, counts=counts)


def abstained(query: object, given: object = None) -> Proposal:
    whole = digest(query if given is None else given)
    return Proposal(digest(query), whole, VoteOutcome.ABSTAINED, None)


def unvoted(query: object) -> Proposal:
    return Proposal(digest(query), digest(query), None, None)


def open_ledger(url: str, epsilon: float = 20.0, key: bytes = SECRET_KEY) -> Ledger:
    """A migrated database with one ensemble, `mnist`."""
    ledger = Ledger(migrated(url), key)
    register(ledger, "mnist", epsilon)
    return ledger


def register(
    ledger: Ledger,
    name: str,
    limit: float | Cap | None = 20.0,
    facts: EnsembleFacts = FACTS,
    population: str | None = None,
    units: int = RECORDS,
) -> EnsembleRecord:
    """Register an ensemble, in a population of its own unless one is named; `limit` may be ε."""
    known = {each.name for each in ledger.ensembles.list_populations()}
    return ledger.ensembles.register(
        name,
        f"ensembles/{name}",
        digest(name).hex(),
        facts,
        units,
        limit if isinstance(limit, Cap | None) else cap(limit, 1e-5),
        population=population or name,
        disjoint=(population or name) not in known,
    )


def charge_one(ledger: Ledger, project_id: int, proposals: Sequence[Proposal]) -> ChargedBatch:
    """Pay for one batch. Raises what it alone was answered with, too."""
    (answer,) = ledger.charging.charge(project_id, [proposals])
    if isinstance(answer, ServiceError):
        raise answer
    return answer


@contextmanager
def unguarded(url: str, with_key: bool = True) -> Iterator[Connection]:
    """Open a transaction for a forger, with triggers and CHECK constraints removed for good.

    The forger has the secret key as well, unless told otherwise: only what follows from charges can
    then show what was forged.
    """
    engine = connect(as_owner(url))
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
            names = connection.exec_driver_sql(
                "SELECT name FROM sqlite_master WHERE type='trigger'"
            )
            for name in names.scalars().all():
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            for table in (
                "charges",
                "projects",
                "populations",
                "ensembles",
                "administrative_log",
            ):
                connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
                for check in inspect(connection).get_check_constraints(table):
                    connection.exec_driver_sql(
                        f"ALTER TABLE {table} DROP CONSTRAINT {check['name']}"
                    )
        yield connection
        if with_key:
            reseal(connection)
        connection.commit()
    engine.dispose()


def reseal(connection: Connection) -> Seals:
    """Seal all rows as they are, and write the administrative log anew, as far as they allow."""
    seals = Seals(SECRET_KEY)
    for table in (metadata.tables[name] for name in SEALED if name != "log_head"):
        for row in _readable(connection, select(table)):
            with suppress(*READ_ERRORS):
                found = [column == row[column.name] for column in table.primary_key]
                if (seal := seals.of(table.name, row)) != row["seal"]:
                    connection.execute(update(table).where(*found).values(seal=seal))
    entries, head = list[dict[str, Any]](), LOG_START
    for kind, actions in ACTIONS_ABOUT.items():
        for row in _readable(connection, rows_of(kind)):
            if row["subject"] is None:  # of an edition whose ensemble is not there
                continue
            with suppress(*READ_ERRORS):
                entry = {
                    "seq": len(entries) + 1,
                    "created_at": datetime.now(UTC),
                    "actor": "forger",
                    "request_id": None,
                    "action": actions[0],
                    "subject": row["subject"],
                    "detail": facts_text(kind, row),
                }
                head = log_hash(head, entry)
                entries.append({**entry, "hash": head})
    connection.execute(delete(administrative_log))
    if entries:
        connection.execute(insert(administrative_log), entries)
    log.set_head(connection, seals, len(entries), head)
    return seals


def _readable(connection: Connection, query: Select[Any]) -> list[Any]:
    try:
        return [row._mapping for row in connection.execute(query)]
    except (StatementError, ValueError):  # no row of the table can be read
        return []


def terms(
    queries: int,
    mechanism: Mapping[str, Any] = GNMAX,
    cap_rule: Rule = GDP,
    *,
    epsilon: float = 8.0,
    delta: float = 1e-6,
) -> Terms:
    """Return terms whose budget pays for exactly `queries` at the worst-case price."""
    built = build_mechanism(mechanism, teachers=TEACHERS, classes=CLASSES)
    quoted = quote(built, epsilon, delta, cap_rule=cap_rule)
    assert quoted.affordable(Account()) >= queries, "ask for a larger epsilon"
    worst = quoted.worst
    return replace(quoted, budget=queries * worst.cost, cap_budget=queries * worst.cap_cost)


def open_project(
    ledger: Ledger,
    queries: int,
    mechanism: Mapping[str, Any] = GNMAX,
    name: str = "study",
    ensemble: str = "mnist",
) -> ProjectRecord:
    """Open a project whose budget pays for exactly `queries` at the worst-case price."""
    return ledger.projects.open(NewProject(name, ensemble, mechanism, terms(queries, mechanism)))


PUBLISHING_TEACHERS, PUBLISHING_CLASSES, ORDER = 1000, 10, 10.0
EPSILON, DELTA = 2.0, 1e-6
PUBLISHING_CAP = cap(20.0, 1.5e-5, ORDER)
PUBLISHING_GNMAX = {"name": "gnmax", "sigma": 50.0}
CONSENSUS = (Consensus(0.95, 7), Consensus(0.8, 2), Consensus(0.5, 1))


@lru_cache
def published_terms() -> Terms:
    """Terms of GNMax, with the release and the schedule that suit the expected consensus."""
    votes = Votes.synthetic(CONSENSUS, teachers=PUBLISHING_TEACHERS, classes=PUBLISHING_CLASSES)
    publishing = choose_schedule(PUBLISHING_GNMAX, votes, epsilon=EPSILON, delta=DELTA, order=ORDER)
    return quote(
        build_mechanism(PUBLISHING_GNMAX, teachers=PUBLISHING_TEACHERS, classes=PUBLISHING_CLASSES),
        EPSILON,
        DELTA,
        cap_rule=PUBLISHING_CAP.rule,
        publishing=publishing,
    )


def publishing_ledger(url: str) -> Ledger:
    """A migrated database with one ensemble, `thousand`, whose cap has a Rényi order."""
    ledger = Ledger(migrated(url), SECRET_KEY)
    register_thousand(ledger)
    return ledger


def register_thousand(ledger: Ledger) -> None:
    facts = FACTS.model_copy(update={"teachers": PUBLISHING_TEACHERS})
    register(ledger, "thousand", PUBLISHING_CAP, facts)


def open_published(ledger: Ledger, name: str = "study") -> ProjectRecord:
    return ledger.projects.open(NewProject(name, "thousand", PUBLISHING_GNMAX, published_terms()))


def voted(
    project: ProjectRecord, queries: Sequence[object], agreement: float = 0.95
) -> list[Proposal]:
    """Queries that the teachers answered, a share `agreement` of them with the winner."""
    votes = np.zeros((1, PUBLISHING_CLASSES), dtype=np.int64)
    votes[0, :2] = (
        round(agreement * PUBLISHING_TEACHERS),
        PUBLISHING_TEACHERS - round(agreement * PUBLISHING_TEACHERS),
    )
    (places,) = meter_of(project).places(VoteOutcome.ANSWERED, votes)
    return [
        Proposal(digest(query), digest(query), VoteOutcome.ANSWERED, 0, places) for query in queries
    ]


PEOPLE, NEIGHBOUR_CLASSES = 12, 2
NEIGHBOURS: dict[str, Any] = {"name": "neighbours", "sigma": 15.0, "queries": 40}
NEIGHBOUR_CAP = cap(20.0, 1e-5)


class People:
    """People 0 to 11 with a record each, and a second of another class for every third person.

    An input is twelve numbers, the weight of each person's records, and perhaps some more. Each
    person stands for a public row, too; with `spare`, so many others that no query is exhausted.
    """

    def __init__(self, spare: bool = False) -> None:
        self.spare = spare
        pairs = sorted(
            [(person, person % NEIGHBOUR_CLASSES) for person in range(PEOPLE)]
            + [(person, (person + 1) % NEIGHBOUR_CLASSES) for person in range(0, PEOPLE, 3)]
        )
        self.units = np.array([person for person, _ in pairs], dtype=np.int32)
        self.labels = np.array([label for _, label in pairs], dtype=np.int16)

        self.since = np.ones_like(self.units)

    def to_points(self, x: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """An input says itself who is near it."""
        return x

    def near(self, points: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return points[:, :PEOPLE][:, self.units]

    @property
    def shadows(self) -> int:
        return PEOPLE + self.spare

    def public_neighbours(self, points: NDArray[np.uint8]) -> ShadowPoints:
        weights = points[:, :PEOPLE]
        if not self.spare:
            return ShadowPoints(weights, weights)
        beside = np.full((len(points), 1), 255, np.uint8)
        return ShadowPoints(np.hstack([weights, 0 * beside]), np.hstack([weights, beside]))

    def input(self, *people: int) -> NDArray[np.uint8]:
        """One that these people alone are near."""
        x = np.zeros(PEOPLE, dtype=np.uint8)
        x[list(people)] = 1
        return x


class TheirVoters(Voters):
    """People vote in this process; there is nobody else."""

    def __init__(self, people: People) -> None:
        self.people = people
        self.found = Neighbourhood(people, Units.of(people.units, people.labels, PEOPLE))

    def check(self, record: EnsembleRecord) -> None:
        if record.facts.kind != "neighbours":
            raise EnsembleUnavailable("Only people are here.")

    def votes(self, record: EnsembleRecord, inputs: NDArray[np.generic]) -> NDArray[np.int64]:
        raise EnsembleUnavailable("No teachers are here.")

    def neighbourhood(self, record: EnsembleRecord) -> Neighbourhood:
        return self.found


@dataclass
class Opened:
    """A ledger with one project, `study`, whose units are people."""

    url: str
    ledger: Ledger
    people: People
    voters: TheirVoters
    project: ProjectRecord

    def labeling(self, ledger: Ledger | None = None) -> Labeling:
        return Labeling(ledger or self.ledger, self.voters, Metrics(), max_batch=1000)

    def ask(self, inputs: Sequence[NDArray[np.uint8]]) -> Any:
        """What the service answers to one request, by another replica each time."""
        labeling = self.labeling(Ledger(connect(self.url), SECRET_KEY))
        (answer,) = labeling.answer("study", [labeling.check("study", np.stack(inputs))])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stored(self) -> NDArray[np.uint32]:
        """The accounts, as they are in the database."""
        return stored(self.url, self.project)

    def row(self, table: Table) -> Any:
        """Of `unit_accounts` or `shadow_accounts`."""
        with connect(self.url).connect() as connection:
            return connection.execute(
                select(table).where(table.c.project_id == self.project.id)
            ).one()

    @property
    def allowance(self) -> int:
        found = self.project.terms.allowance
        assert found is not None
        return found.most


def open_people(
    url: str,
    epsilon: float = 1.0,
    spec: dict[str, Any] = NEIGHBOURS,
    spare: bool = False,
) -> Opened:
    ledger = Ledger(migrated(url), SECRET_KEY)
    register_people(ledger)
    people = People(spare)
    return Opened(url, ledger, people, TheirVoters(people), open_study(ledger, epsilon, spec))


def register_people(ledger: Ledger, shape: int = PEOPLE) -> None:
    facts = FACTS.model_copy(
        update={
            "kind": "neighbours",
            "teachers": PEOPLE,
            "classes": ["no", "yes"],
            "group_column": "patient",
            "input": InputSpec(shape=(shape,), dtype="uint8", low=0, high=255),
        }
    )
    register(ledger, "people", NEIGHBOUR_CAP, facts, "patients")


def open_study(
    ledger: Ledger, epsilon: float = 1.0, spec: dict[str, Any] = NEIGHBOURS, name: str = "study"
) -> ProjectRecord:
    return ledger.projects.open(NewProject(name, "people", spec, people_terms(spec, epsilon)))


def people_terms(spec: dict[str, Any], epsilon: float = 1.0) -> Terms:
    mechanism = build_mechanism(spec, teachers=PEOPLE, classes=NEIGHBOUR_CLASSES)
    return choose(mechanism, epsilon, 1e-6, cap_rule=NEIGHBOUR_CAP.rule).terms


def numbered(query: object) -> NDArray[np.uint8]:
    """An input [24] that some people are near, another one for each query."""
    drawn = np.frombuffer(hashlib.sha256(f"{query}".encode()).digest(), np.uint8)
    return np.concatenate([drawn[:PEOPLE] % 2, drawn[-PEOPLE:]])


def recomputed(
    ledger: Ledger, name: str, found: Neighbourhood, inputs: Sequence[NDArray[np.uint8]]
) -> NDArray[np.uint32]:
    """The accounts that follow from the inputs that were charged, in the order of the charges."""
    project = ledger.projects.get(name)
    digests = input_digests(np.stack(inputs), project.ensemble.manifest_sha256)
    known = {digest.hex(): x for digest, x in zip(digests, inputs, strict=True)}
    facts, terms = project.ensemble.facts, project.terms
    mechanism = build_mechanism(
        project.mechanism, teachers=facts.teachers, classes=len(facts.classes)
    )
    assert isinstance(mechanism, Neighbours)
    assert terms.allowance is not None
    accounts = np.zeros(facts.teachers, dtype=np.uint32)
    for entry in ledger.entries.stream(name):
        weights = found.ensemble.near(found.ensemble.to_points(known[entry.input_digest][None]))
        _, accounts = mechanism.cast(weights, found.units, accounts, terms.allowance.most)
    return accounts


def stored(url: str, project: ProjectRecord) -> NDArray[np.uint32]:
    """A project's accounts, as they are in the database."""
    with connect(url).connect() as connection:
        query = select(unit_accounts).where(unit_accounts.c.project_id == project.id)
        return np.frombuffer(connection.execute(query).one().accounts, dtype="<u4")


def many(people: People, count: int, salt: object = "") -> list[NDArray[np.uint8]]:
    """Different inputs that each have some people near, the same for the same arguments."""
    found: list[NDArray[np.uint8]] = []
    seen: set[bytes] = set()
    for number in range(100 * count):
        drawn = np.frombuffer(hashlib.sha256(f"{number} {salt}".encode()).digest(), np.uint8)
        bits: NDArray[np.uint8] = (drawn % 2).astype(np.uint8)
        if bits[:PEOPLE].tobytes() not in seen:
            seen.add(bits[:PEOPLE].tobytes())
            found.append(bits[:PEOPLE])
        if len(found) == count:
            return found
    raise ValueError("there are not so many")


TOLD_CONFIDENT = {"name": "confident_gnmax", "threshold": 200, "sigma1": 8.0, "sigma2": 5.0}
INTERACTIVE = {**TOLD_CONFIDENT, "name": "interactive_gnmax", "threshold": 60, "confidence": 0.9}
SHARP = {"name": "gnmax", "sigma": 8.0}
"""So little noise that an agreement is answered with its label."""
MOST = 20


class Told(Voters):
    """Teachers that agree on the class in the first pixel, or split in halves if it is 99."""

    def __init__(self, teachers: int = TEACHERS) -> None:
        self.teachers = teachers
        self.asked: list[list[int]] = []
        self.missing = False
        self.meanwhile: Callable[[], object] | None = None

    def check(self, record: EnsembleRecord) -> None:
        assert record.facts.teachers == self.teachers
        if self.missing:
            raise EnsembleUnavailable("The teachers are away.")

    def available(self, record: EnsembleRecord) -> bool:
        return not self.missing

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        assert record.facts.teachers == self.teachers
        self.asked.append(inputs[:, 0, 1].tolist())
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return cast_votes(inputs, self.teachers)


def cast_votes(inputs: np.ndarray, teachers: int) -> np.ndarray:
    counts = np.zeros((len(inputs), CLASSES), dtype=np.int64)
    for row, label in enumerate(inputs[:, 0, 0]):
        if label == 99:
            counts[row, :2] = teachers // 2
        else:
            counts[row, label] = teachers
    return counts


def images(*pairs: tuple[int, int]) -> np.ndarray:
    """Inputs with these classes to be voted for, and a number in the second pixel."""
    inputs = np.zeros((len(pairs), 28, 28), dtype=np.uint8)
    inputs[:, 0, :2] = pairs
    return inputs


def study(path: Path, mechanism: Mapping[str, Any], queries: int) -> tuple[Labeling, Told, Ledger]:
    """A project whose budget pays for exactly so many queries at the worst price."""
    ledger = open_ledger(f"sqlite:///{path / 'terrine.sqlite'}", epsilon=90.0)
    ledger.projects.open(
        NewProject("study", "mnist", mechanism, terms(queries, mechanism, epsilon=80.0))
    )
    voters = Told()
    return Labeling(ledger, voters, Metrics(), MOST), voters, ledger


def labels(answer: ChargedBatch | ServiceError) -> list[int | None]:
    assert isinstance(answer, ChargedBatch), answer
    return [result.label for result in answer.results]


def seqs(answer: ChargedBatch | ServiceError) -> list[int | None]:
    assert isinstance(answer, ChargedBatch), answer
    return [result.seq for result in answer.results]


def one(service: Labeling, ask: CheckedRequest) -> ChargedBatch | ServiceError:
    (answer,) = service.answer("study", [ask])
    return answer


Answer = tuple[int, str] | None
"""Number and outcome of the charge that answers a query; None if it is refused."""


class Refused(Exception):  # noqa: N818 - a refusal is no error
    """The ledger refuses; the text says why."""


@dataclass
class Book:
    """One project. Amounts in units; prices are (cost, share of the cap) by outcome."""

    budget: int
    prices: dict[str, tuple[int, int]]
    reserved: int
    status: str = "active"
    paid: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The charge that answers each query, in the order of payment."""

    def total(self, part: int) -> int:
        return sum(self.prices[outcome][part] for _, outcome in self.paid.values())

    def charge(self, queries: list[tuple[str, str]]) -> list[Answer]:
        """Pay for queries, each with the outcome that its votes would give."""
        if self.status != "active":
            raise Refused(self.status)
        worst, full = max(cost for cost, _ in self.prices.values()), False
        answers = []
        for query, outcome in queries:
            fits = outcome != "unvoted" and self.total(0) + worst <= self.budget
            full = full or (query not in self.paid and not fits)
            if not full and query not in self.paid:
                self.paid[query] = len(self.paid) + 1, outcome
            answers.append(self.paid.get(query))
        if not any(answers):
            raise Refused("exhausted")
        return answers


@dataclass
class Books:
    """All projects of one ensemble, which share its cap."""

    cap: int
    projects: dict[str, Book] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        return sum(book.reserved for book in self.projects.values())

    def open(self, name: str, book: Book) -> None:
        if self.reserved + book.reserved > self.cap:
            raise Refused("cap")
        self.projects[name] = book

    def set_status(self, name: str, status: str) -> None:
        book = self.projects[name]
        if book.status == "closed" and status != "closed":
            raise Refused("closed for good")
        if status == "closed" and book.status != "closed":
            book.reserved = book.total(1)
        book.status = status
