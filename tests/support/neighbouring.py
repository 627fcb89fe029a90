"""Small projects whose units vote, on a ledger without a server: people in two classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from books import FACTS, RECORDS, digest
from migrated import SECRET_KEY, migrated
from numpy.typing import NDArray
from sqlalchemy import select

from terrine_models.teachers.neighbours import ShadowPoints
from terrine_protocol import InputSpec
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.queries import input_digests
from terrine_server.labeling.voters import Neighbourhood, Voters
from terrine_server.ledger import EnsembleRecord, Ledger, NewProject, ProjectRecord, connect
from terrine_server.ledger.schema import unit_accounts
from terrine_server.metrics import Metrics
from terrine_server.planning.opening import choose
from terrine_server.privacy import Neighbours, Terms, Units, build_mechanism, cap

PEOPLE, CLASSES = 12, 2
NEIGHBOURS: dict[str, Any] = {"name": "neighbours", "sigma": 15.0, "queries": 40}
CAP = cap(20.0, 1e-5)


class People:
    """People 0 to 11 with a record each, and a second of another class for every third person.

    An input is twelve numbers, the weight of each person's records, and perhaps some more. Each
    person stands for a public row, too; with `spare`, so many others that no query is exhausted.
    """

    def __init__(self, spare: bool = False) -> None:
        self.spare = spare
        pairs = sorted(
            [(person, person % CLASSES) for person in range(PEOPLE)]
            + [(person, (person + 1) % CLASSES) for person in range(0, PEOPLE, 3)]
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
        return np.frombuffer(self.row().accounts, dtype="<u4")

    def row(self) -> Any:
        with connect(self.url).connect() as connection:
            return connection.execute(
                select(unit_accounts).where(unit_accounts.c.project_id == self.project.id)
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
    shape: int = PEOPLE,
    spare: bool = False,
) -> Opened:
    ledger = Ledger(migrated(url), SECRET_KEY)
    register_people(ledger, shape)
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
    ledger.register_ensemble(
        "people",
        "ensembles/people",
        digest("people").hex(),
        facts,
        RECORDS,
        CAP,
        population="patients",
        disjoint=True,
    )


def open_study(
    ledger: Ledger, epsilon: float = 1.0, spec: dict[str, Any] = NEIGHBOURS, name: str = "study"
) -> ProjectRecord:
    return ledger.open_project(NewProject(name, "people", spec, people_terms(spec, epsilon)))


def people_terms(spec: dict[str, Any], epsilon: float = 1.0) -> Terms:
    mechanism = build_mechanism(spec, teachers=PEOPLE, classes=CLASSES)
    return choose(mechanism, epsilon, 1e-6, cap_rule=CAP.rule).terms


def numbered(query: object) -> NDArray[np.uint8]:
    """An input [24] that some people are near, another one for each query."""
    drawn = np.frombuffer(hashlib.sha256(f"{query}".encode()).digest(), np.uint8)
    return np.concatenate([drawn[:PEOPLE] % 2, drawn[-PEOPLE:]])


def recomputed(
    ledger: Ledger, name: str, found: Neighbourhood, inputs: Sequence[NDArray[np.uint8]]
) -> NDArray[np.uint32]:
    """The accounts that follow from the inputs that were charged, in the order of the charges."""
    project = ledger.project(name)
    digests = input_digests(np.stack(inputs), project.ensemble.manifest_sha256)
    known = {digest.hex(): x for digest, x in zip(digests, inputs, strict=True)}
    facts, terms = project.ensemble.facts, project.terms
    mechanism = build_mechanism(
        project.mechanism, teachers=facts.teachers, classes=len(facts.classes)
    )
    assert isinstance(mechanism, Neighbours)
    assert terms.allowance is not None
    accounts = np.zeros(facts.teachers, dtype=np.uint32)
    for entry in ledger.stream_charges(name):
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
