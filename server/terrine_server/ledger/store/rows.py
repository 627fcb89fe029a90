"""Queries of the database, and records from their rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, Row, Select, bindparam, select
from sqlalchemy.sql.elements import ColumnElement

from terrine_protocol import EnsembleFacts, Outcome, ProjectStatus, RequestStatus, Role
from terrine_server.errors import LedgerCorrupted, NotFound
from terrine_server.ledger.administration import facts_text
from terrine_server.ledger.chain import follows, genesis
from terrine_server.ledger.counts import check_counts, counts_of
from terrine_server.ledger.records import (
    ChargeRecord,
    EnsembleRecord,
    Payment,
    PopulationRecord,
    ProjectRecord,
    Publication,
    RequestRecord,
    TokenRecord,
)
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import editions
from terrine_server.ledger.store.log import logged
from terrine_server.ledger.store.searches import ACCOUNT
from terrine_server.ledger.store.soundness import (
    UNREADABLE,
    check_account,
    check_population,
    check_types,
)
from terrine_server.ledger.store.tables import (
    charges,
    ensembles,
    payments,
    populations,
    projects,
    requests,
    tokens,
)
from terrine_server.privacy import Terms

# The tables have columns of the same names, so those of an ensemble and its population get a
# prefix. Those of the cap have the names that they have in a project's terms.
_ENSEMBLE, _POPULATION = "ensemble__", "population__"
_CAP = {"epsilon", "delta", "rdp_order", "cap", "delta_cap"}
_population_labels = {
    column.name: f"{_ENSEMBLE if column.name in _CAP else _POPULATION}{column.name}"
    for column in populations.c
}
_ensemble_columns = [
    *(column.label(f"{_ENSEMBLE}{column.name}") for column in ensembles.c),
    logged("ensemble", ensembles.c.name).label(f"{_ENSEMBLE}logged"),
    *(column.label(_population_labels[column.name]) for column in populations.c),
    logged("population", populations.c.name).label(f"{_POPULATION}logged"),
]

# The columns of a project that may change, and those that identify it.
_ACCOUNT = [projects.c[name] for name in ACCOUNT]

terms_from_text = lru_cache(maxsize=1024)(lambda text: Terms.from_json(json.loads(text)))
"""Terms never change, and every charge needs them."""


@cache  # building a query takes longer than running it
def select_ensembles() -> Select[Any]:
    """Select all ensembles, by name, each with its population."""
    return (
        select(*_ensemble_columns)
        # Outer: an ensemble whose population is gone is not skipped, but refused as damaged.
        .outerjoin(populations, ensembles.c.population_id == populations.c.id)
        .order_by(ensembles.c.name)
    )


@cache
def select_populations() -> Select[Any]:
    """Select all populations, by name."""
    return select(populations, logged("population", populations.c.name).label("logged")).order_by(
        populations.c.name
    )


@cache
def ensemble_by(column: str) -> Select[Any]:
    """Select the ensemble with a value of a column, which is a parameter of that name."""
    return select_ensembles().where(ensembles.c[column] == bindparam(column))


_newest = charges.alias("newest")
_last = [
    select(column)
    .where(_newest.c.project_id == projects.c.id)
    .order_by(_newest.c.seq.desc())
    .limit(1)
    .scalar_subquery()
    .label(f"last_{column.name}")
    for column in (_newest.c.seq, _newest.c.hash)
]
_logged = logged("project", projects.c.name).label("logged")
_before = charges.alias("before")
_previous = (
    select(_before.c.hash)
    .where(_before.c.project_id == charges.c.project_id, _before.c.seq == charges.c.seq - 1)
    .scalar_subquery()
    .label("previous")
)


@cache
def select_projects() -> Select[Any]:
    """Select all projects, by name, each with its ensemble and its last charge.

    Not with FOR UPDATE: after waiting for a lock, PostgreSQL reads the locked row again, but
    everything else as it was before.
    """
    return (
        select(projects, _logged, *_last, *_ensemble_columns)
        # Outer: a project whose ensemble is gone is not skipped, but refused as damaged.
        .outerjoin(ensembles, projects.c.ensemble_id == ensembles.c.id)
        .outerjoin(populations, ensembles.c.population_id == populations.c.id)
        .order_by(projects.c.name)
    )


@cache
def project_by(*columns: str) -> Select[Any]:
    """Select the project with values of some columns, which are parameters of these names."""
    return select_projects().where(*(projects.c[name] == bindparam(name) for name in columns))


def lock_ensemble(connection: Connection, condition: ColumnElement[bool]) -> Row[Any] | None:
    """Fetch an ensemble, and lock its population until the transaction ends.

    To lock a population and a project, lock the population first.
    """
    whose = select(ensembles.c.population_id).where(condition)  # which never changes
    population = connection.execute(whose).scalar_one_or_none()
    lock_population(connection, population)
    return connection.execute(select_ensembles().where(condition)).one_or_none()


def lock_population(connection: Connection, id: int | None) -> None:
    """Lock a population until the transaction ends."""
    locked = select(populations.c.id).where(populations.c.id == id)
    connection.execute(locked.with_for_update(key_share=True))


def fetch_project(connection: Connection, seals: Seals, described: str, **by: Any) -> ProjectRecord:
    """Fetch the project with these values. Raises NotFound."""
    row = connection.execute(project_by(*by), by).one_or_none()
    if row is None:
        raise NotFound(f"There is no project {described}.")
    return living(connection, seals, project_record(row, seals))


def living(connection: Connection, seals: Seals, project: ProjectRecord) -> ProjectRecord:
    """Return a project with its ensemble in its newest edition. Raises LedgerCorrupted."""
    return replace(project, ensemble=editions.living(connection, seals, project.ensemble))


@contextmanager
def readable(what: str, project: str = "all") -> Iterator[None]:
    """Raise LedgerCorrupted if reading fails: `what` was altered or damaged then."""
    try:
        yield
    except UNREADABLE as error:
        raise LedgerCorrupted(f"{what} was altered or damaged.", project, repr(error)) from None


def check_logged(kind: str, row: Mapping[str, Any]) -> None:
    """Raise ValueError unless a row is as the administrative log's last entry about it says."""
    if row["logged"] != facts_text(kind, row):
        raise ValueError("it is not as the administrative log says")


def ensemble_record(row: Row[Any], seals: Seals) -> EnsembleRecord:
    """Return the record of a row of `select_ensembles` or `select_projects`. Raises
    LedgerCorrupted."""
    values = row._mapping
    fields = {name: values[f"{_ENSEMBLE}{name}"] for name in (*ensembles.c.keys(), "logged")}
    of = {name: values[label] for name, label in _population_labels.items()}
    population = population_record({**of, "logged": values[f"{_POPULATION}logged"]}, seals)
    with readable(f"The ensemble {fields['name']!r}"):
        check_types(ensembles.c, fields)
        seals.check("ensembles", fields)
        check_logged("ensemble", {**fields, "population": population.name})
        return EnsembleRecord(
            id=fields["id"],
            name=fields["name"],
            population=population,
            path=fields["path"],
            manifest_sha256=fields["manifest_sha256"].hex(),
            facts=_facts(fields["info"]),
            units=fields["units"],
            registered_at=fields["registered_at"],
        )


def population_record(fields: Mapping[Any, Any], seals: Seals) -> PopulationRecord:
    """Return the record of a row of `select_populations`. Raises LedgerCorrupted."""
    with readable(f"The population {fields['name']!r}"):
        check_types(populations.c, fields)
        seals.check("populations", fields)
        check_logged("population", fields)
        said = fields["disjoint_from"]
        values = {column.name: fields[column.name] for column in populations.c}
        values["disjoint_from"] = None if said is None else tuple(json.loads(said))
        del values["seal"]
        population = PopulationRecord(**values)
        check_population(population)
    return population


def _facts(text: str) -> EnsembleFacts:
    try:
        return EnsembleFacts.model_validate_json(text)
    except ValidationError as error:  # whose message has the whole document
        first = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(f"{first} is not what was registered") from None


def project_record(row: Row[Any], seals: Seals) -> ProjectRecord:
    """Return the record of a row of `select_projects`.

    Raises LedgerCorrupted unless its terms and its ensemble are those that it was opened with, its
    balance is possible for its number of charges, its seal is right, the administrative log says
    the same, and its last charge is as `check_end` requires.
    """
    with readable(f"The account of project {row.name!r}", str(row.name)):
        fields = dict(row._mapping)
        check_types(projects.c, fields)
        project = ProjectRecord(
            id=row.id,
            name=row.name,
            ensemble=ensemble_record(row, seals),
            status=ProjectStatus(row.status),
            mechanism=json.loads(row.mechanism),
            events=json.loads(row.events),
            terms=terms_from_text(row.terms),
            spent=row.spent,
            delta_spent=row.delta_spent,
            cap_spent=row.cap_spent,
            charges=row.charges,
            published=_published(row.published),
            genesis=row.genesis.hex(),
            head=row.head.hex(),
            opened_at=row.opened_at,
            closed_at=row.closed_at,
            seal=row.seal,
            title=row.title,
            purpose=row.purpose,
        )
        if genesis(fields) != row.genesis:
            raise ValueError("the terms are not those that the project was opened with")
        check_account(project)
        seals.check("projects", fields)
        check_logged("project", {**fields, "ensemble": project.ensemble.name})
    check_end(project, [] if row.last_seq is None else [(row.last_seq, row.last_hash)])
    return project


def check_end(project: ProjectRecord, ends: Collection[tuple[int, Any]]) -> None:
    """Raise LedgerCorrupted unless a project's last charge is the one that its account names.

    `ends`: number and hash of the charge with the account's last number, and of any later one.
    """
    genesis, head = bytes.fromhex(project.genesis), bytes.fromhex(project.head)
    if set(ends or [(0, genesis)]) != {(project.charges, head)}:
        raise LedgerCorrupted(
            f"The last charge of project {project.name} is not the one that its balance stands on.",
            project.name,
        )


def publications(entries: Iterable[tuple[int, int]]) -> list[Publication]:
    """Return the records of publications, from the number and figure of each entry."""
    return [
        Publication(seq, seq - number, figure)
        for number, (seq, figure) in enumerate(entries, start=1)
    ]


def _published(text: str) -> list[Publication]:
    entries = json.loads(text)
    if not isinstance(entries, list):
        raise TypeError("published is no list")
    return publications(entries)


SPENT = select(ensembles.c.population_id, *_ACCOUNT).outerjoin(
    ensembles, projects.c.ensemble_id == ensembles.c.id
)
"""Selects what all projects have spent, and what their seals cover. Built once, as `TOKEN`."""

# key_share: rows that only refer to the project, such as a new token, need not wait.
HOLD = select(projects.c.id).where(projects.c.id == bindparam("id")).with_for_update(key_share=True)
"""Locks a project until the transaction ends. What is read next is as the last writer left it."""

MOST_REMEMBERED = 1024
"""How many projects a process keeps in memory."""


class KnownProjects:
    """Current accounts of projects. What is fixed when a project is opened is read only once.

    It is checked against its hash, and kept in memory with the hash. The ensemble is kept, too, so
    what may change in it (how much of its cap is reserved) may be out of date. What may change in
    the account is checked against its seal each time.
    """

    def __init__(self, seals: Seals) -> None:
        self.seals = seals
        self._remembered: dict[str, ProjectRecord] = {}

    def remembered(self, name: str) -> ProjectRecord | None:
        """Return a project as it was when it was read in full, or None."""
        return self._remembered.get(name)

    def remember(self, project: ProjectRecord) -> ProjectRecord:
        """Keep a project that was read in full. It replaces any other of the same name."""
        if len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[project.name] = project
        return project

    def current(self, connection: Connection, row: Any) -> ProjectRecord:
        """Return the current record of a row of `searches.find`. Raises LedgerCorrupted."""
        with readable(f"The account of project {row.name!r}", str(row.name)):
            check_types(_ACCOUNT, row._mapping)
            self.seals.check("projects", row._mapping)
            opened = self._remembered.get(row.name)
            if opened is None or (opened.id, opened.genesis) != (row.id, row.genesis.hex()):
                same = {"id": row.id, "genesis": row.genesis}
                opened = self.remember(
                    fetch_project(connection, self.seals, f"number {row.id}", **same)
                )
            account = replace(
                opened,
                status=ProjectStatus(row.status),
                spent=row.spent,
                delta_spent=row.delta_spent,
                cap_spent=row.cap_spent,
                charges=row.charges,
                published=_published(row.published),
                head=row.head.hex(),
                closed_at=row.closed_at,
                seal=row.seal,
                ensemble=editions.living(connection, self.seals, opened.ensemble),
            )
            check_account(account)
            return account


def select_charges(project_id: int) -> Select[Any]:
    """Select a project's charges in order, each with the previous hash."""
    return (
        select(charges, _previous).where(charges.c.project_id == project_id).order_by(charges.c.seq)
    )


def charge_record(row: Row[Any], project: ProjectRecord) -> ChargeRecord:
    """Return the record of a row of `select_charges`. Raises LedgerCorrupted if its hash is
    wrong."""
    with readable(f"Entry {row.seq} of project {project.name!r}", project.name):
        fields = dict(row._mapping)
        previous = fields.pop("previous")
        check_types(charges.c, fields)
        if not follows(bytes.fromhex(project.genesis) if row.seq == 1 else previous, fields):
            raise ValueError("the hash is not that of its columns and of the entry before")
        counts = counts_of(row.counts)
        check_counts(counts, row.label, project.counts_due(row.outcome))
        return ChargeRecord(
            project=project.name,
            **fields
            | {
                "query_digest": row.query_digest.hex(),
                "input_digest": row.input_digest.hex(),
                "outcome": Outcome(row.outcome),
                "counts": counts,
                "mechanism": json.loads(row.mechanism),
                "event": json.loads(row.event),
                "hash": row.hash.hex(),
            },
        )


_token_logged = logged("token", tokens.c.id).label("logged")


def select_tokens() -> Select[Any]:
    """Select all tokens with the name of their project, oldest first."""
    return (
        select(tokens, projects.c.name.label("project"), _token_logged)
        .outerjoin(projects, tokens.c.project_id == projects.c.id)
        .order_by(tokens.c.created_at, tokens.c.id)
    )


TOKEN = select_tokens().where(tokens.c.id == bindparam("id")).order_by(None)
"""Selects one token. Built once, since every request needs it."""


def token_record(row: Row[Any], seals: Seals) -> TokenRecord:
    """Return the record of a row of `select_tokens`.

    Raises LedgerCorrupted unless its seal is right and the administrative log says the same.
    """
    return _token_record(seals, row._fields, *row)


# Every request needs it. What it says follows from the values alone, and from their types.
@lru_cache(maxsize=1024, typed=True)
def _token_record(seals: Seals, names: tuple[str, ...], *values: Any) -> TokenRecord:
    fields = dict(zip(names, values, strict=True))
    with readable(f"The token {fields['id']!r}"):
        check_types(tokens.c, fields)
        seals.check("tokens", fields)
        check_logged("token", fields)
        del fields["seal"], fields["logged"]
        return TokenRecord(**fields | {"role": Role(fields["role"])})


def payment(row: Row[Any], seals: Seals) -> Payment:
    """Return the record of a row of `payments`. Raises LedgerCorrupted unless its seal is right."""
    with readable(f"Who paid for entry {row.first_seq} of project number {row.project_id}"):
        check_types(payments.c, row._mapping)
        seals.check("payments", row._mapping)
        return Payment(row.first_seq, row.last_seq, row.token_id)


_request_logged = logged("request", requests.c.id).label("logged")
_token_project = projects.alias("token_project")


def select_requests() -> Select[Any]:
    """Select all requests with the names of what they refer to, oldest first."""
    return (
        select(
            requests,
            requests.c.token_id.label("token"),
            _token_project.c.name.label("token_project"),
            ensembles.c.name.label("ensemble"),
            projects.c.name.label("project"),
            _request_logged,
        )
        # Outer: a request that refers to what is gone is not skipped, but refused as damaged.
        .outerjoin(tokens, requests.c.token_id == tokens.c.id)
        .outerjoin(_token_project, tokens.c.project_id == _token_project.c.id)
        .outerjoin(ensembles, requests.c.ensemble_id == ensembles.c.id)
        .outerjoin(projects, requests.c.project_id == projects.c.id)
        .order_by(requests.c.created_at, requests.c.id)
    )


def request_record(row: Row[Any], seals: Seals) -> RequestRecord:
    """Return the record of a row of `select_requests`.

    Raises LedgerCorrupted unless its seal is right and the administrative log says the same.
    """
    with readable(f"The request {row.id!r}"):
        fields = dict(row._mapping)
        check_types(requests.c, fields)
        seals.check("requests", fields)
        check_logged("request", fields)
        for name in ("seal", "logged", "token_id", "ensemble_id", "project_id"):
            del fields[name]
        status = RequestStatus(row.status)
        return RequestRecord(**fields | {"status": status, "asked": json.loads(row.asked)})
