"""Ensembles, their populations and editions, and projects: their rows, read and checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from pydantic import ValidationError
from sqlalchemy import (
    Connection,
    Row,
    Select,
    String,
    bindparam,
    case,
    cast,
    func,
    select,
)

from terrine_protocol import EnsembleFacts, ProjectStatus
from terrine_server.errors import LedgerCorrupted, NotFound
from terrine_server.ledger.chain import (
    canonical_json,
    facts_text,
    genesis,
)
from terrine_server.ledger.database import Transaction
from terrine_server.ledger.log import last_detail
from terrine_server.ledger.records import (
    NEIGHBOURS,
    Edition,
    EnsembleRecord,
    PopulationRecord,
    ProjectRecord,
    Publication,
)
from terrine_server.ledger.schema import (
    charges,
    editions,
    ensembles,
    populations,
    projects,
)
from terrine_server.ledger.seals import SEALED, Seals, check_types, readable
from terrine_server.privacy import Terms

# The columns of a project that may change, and those that identify it.
ACCOUNT_COLUMNS = (*SEALED["projects"], "seal")

ACCOUNT = [projects.c[name] for name in ACCOUNT_COLUMNS]

# What the administrative log calls an edition.
EDITION_SUBJECT = ensembles.c.name.concat("/").concat(cast(editions.c.number, String))


def select_editions() -> Select[Any]:
    """Select all editions but the first of each ensemble, in order, each with its `subject`."""
    return (
        select(
            editions,
            EDITION_SUBJECT.label("subject"),
            last_detail("edition", EDITION_SUBJECT).label("logged"),
        )
        .outerjoin(ensembles, editions.c.ensemble_id == ensembles.c.id)
        .order_by(editions.c.ensemble_id, editions.c.number)
    )


# Selects the newest edition of an ensemble. Built once, as every request needs it.
_NEWEST = (
    select_editions()
    .where(editions.c.ensemble_id == bindparam("ensemble"))
    .order_by(None)
    .order_by(editions.c.number.desc())
    .limit(1)
)


def first_edition(ensemble: EnsembleRecord) -> Edition:
    """Return the edition that was registered."""
    return Edition(
        number=1,
        manifest_sha256=ensemble.manifest_sha256,
        units=ensemble.units,
        slots=ensemble.facts.teachers if ensemble.facts.kind == NEIGHBOURS else ensemble.units,
        erased=(),
        begins={},
        made_at=ensemble.registered_at,
    )


def load_newest_edition(
    connection: Connection, seals: Seals, ensemble: EnsembleRecord
) -> EnsembleRecord:
    """Return the ensemble with its newest edition. Raises LedgerCorrupted."""
    row = connection.execute(_NEWEST, {"ensemble": ensemble.id}).one_or_none()
    found = first_edition(ensemble) if row is None else _edition(row, seals, ensemble)
    return replace(ensemble, edition=found)


def load_editions(
    connection: Connection, seals: Seals, ensemble: EnsembleRecord
) -> Iterator[Edition]:
    """Yield all editions of an ensemble, in order. Raises LedgerCorrupted."""
    yield first_edition(ensemble)
    for row in connection.execute(select_editions().where(editions.c.ensemble_id == ensemble.id)):
        yield _edition(row, seals, ensemble)


def edition_row(ensemble: EnsembleRecord, edition: Edition) -> dict[str, Any]:
    """Return the row of an edition, without its seal."""
    return {
        "ensemble_id": ensemble.id,
        "number": edition.number,
        "manifest_sha256": bytes.fromhex(edition.manifest_sha256),
        "units": edition.units,
        "slots": edition.slots,
        "erased": canonical_json(list(edition.erased)),
        "begins": canonical_json({str(project): at for project, at in edition.begins.items()}),
        "made_at": edition.made_at,
    }


def _edition(row: Any, seals: Seals, ensemble: EnsembleRecord) -> Edition:
    fields: Mapping[str, Any] = row._mapping
    with readable(f"An edition of the ensemble {ensemble.name}"):
        check_types(editions.c, fields)
        seals.check("editions", fields)
        check_logged("edition", fields)
        return Edition(
            number=row.number,
            manifest_sha256=row.manifest_sha256.hex(),
            units=row.units,
            slots=row.slots,
            erased=tuple(json.loads(row.erased)),
            begins={int(project): at for project, at in json.loads(row.begins).items()},
            made_at=row.made_at,
        )


# The tables have columns of the same names, so those of an ensemble and its population get a
# prefix. Those of the cap have the names that they have in a project's terms.
_ENSEMBLE = "ensemble__"
_POPULATION = "population__"
_CAP = {"epsilon", "delta", "rdp_order", "cap", "delta_cap"}
_population_labels = {
    column.name: f"{_ENSEMBLE if column.name in _CAP else _POPULATION}{column.name}"
    for column in populations.c
}
_ensemble_columns = [
    *(column.label(f"{_ENSEMBLE}{column.name}") for column in ensembles.c),
    last_detail("ensemble", ensembles.c.name).label(f"{_ENSEMBLE}logged"),
    *(column.label(_population_labels[column.name]) for column in populations.c),
    last_detail("population", populations.c.name).label(f"{_POPULATION}logged"),
]

# Terms never change, and every charge needs them.
terms_from_text = lru_cache(maxsize=1024)(lambda text: Terms.from_json(json.loads(text)))


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
    return select(
        populations, last_detail("population", populations.c.name).label("logged")
    ).order_by(populations.c.name)


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
_logged = last_detail("project", projects.c.name).label("logged")


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


def load_ensembles(connection: Connection, seals: Seals) -> list[EnsembleRecord]:
    """Return all ensembles, by name, as they were registered. Raises LedgerCorrupted."""
    found = connection.execute(select_ensembles()).all()
    return [ensemble_record(row, seals) for row in found]


def load_populations(connection: Connection, seals: Seals) -> list[PopulationRecord]:
    """Return all populations, by name. Raises LedgerCorrupted."""
    found = connection.execute(select_populations()).mappings().all()
    return [population_record(row, seals) for row in found]


def fetch_population(connection: Connection, seals: Seals, name: str) -> PopulationRecord:
    """Return a population that is there. Raises LedgerCorrupted."""
    here = select_populations().where(populations.c.name == name)
    return population_record(connection.execute(here).mappings().one(), seals)


def no_project(project: str | int) -> str:
    """Return what to say where no project has this name or id."""
    called = "called" if isinstance(project, str) else "number"
    return f"There is no project {called} {project}."


def fetch_ensemble(
    connection: Connection, seals: Seals, name: str
) -> tuple[Row[Any], EnsembleRecord]:
    """Fetch an ensemble: its row, and its record in the newest edition. Raises NotFound."""
    here = select_ensembles().where(ensembles.c.name == name)
    row = connection.execute(here).one_or_none()
    if row is None:
        raise NotFound(f"There is no ensemble called {name}.")
    return row, load_newest_edition(connection, seals, ensemble_record(row, seals))


def lock_ensemble(tx: Transaction, name: str) -> tuple[Row[Any], EnsembleRecord]:
    """Like `fetch_ensemble`, but lock its population until the transaction ends.

    To lock a population and a project, lock the population first.
    """
    whose = select(ensembles.c.population_id).where(ensembles.c.name == name)  # never changes
    lock_population(tx.connection, tx.connection.execute(whose).scalar_one_or_none())
    return fetch_ensemble(tx.connection, tx.seals, name)


def lock_population(connection: Connection, id: int | None) -> None:
    """Lock a population until the transaction ends."""
    locked = select(populations.c.id).where(populations.c.id == id)
    connection.execute(locked.with_for_update(key_share=True))


def lock_populations(connection: Connection) -> None:
    """Lock all populations until the transaction ends."""
    every = select(populations.c.id).order_by(populations.c.id)
    connection.execute(every.with_for_update(key_share=True)).all()


def sum_projects(connection: Connection, population_id: int) -> tuple[Any, Any]:
    """Return what its projects take of a population's cap, as cost and δ.

    The budget of each open one, the spend of each closed one, as the database adds them up.
    """
    closed = projects.c.status == ProjectStatus.CLOSED
    sums = (
        func.coalesce(func.sum(case((closed, spent), else_=budget)), 0)
        for spent, budget in [
            (projects.c.cap_spent, projects.c.cap_budget),
            (projects.c.delta_spent, projects.c.delta_budget),
        ]
    )
    query = select(*sums).join_from(projects, ensembles)
    row = connection.execute(query.where(ensembles.c.population_id == population_id)).one()
    return row[0], row[1]


def fetch_project(
    connection: Connection, seals: Seals, project: str | int, **also: Any
) -> ProjectRecord:
    """Fetch the project with this name or id. `also`: other values that it has. Raises NotFound."""
    by = {"name" if isinstance(project, str) else "id": project, **also}
    row = connection.execute(project_by(*by), by).one_or_none()
    if row is None:
        raise NotFound(no_project(project))
    return load_newest_project(connection, seals, project_record(row, seals))


def load_newest_project(
    connection: Connection, seals: Seals, project: ProjectRecord
) -> ProjectRecord:
    """Return a project with its ensemble in its newest edition. Raises LedgerCorrupted."""
    return replace(project, ensemble=load_newest_edition(connection, seals, project.ensemble))


def lock_project(tx: Transaction, id: int) -> ProjectRecord:
    """Lock a project until the transaction ends, and return it as the last writer left it."""
    tx.connection.execute(LOCK_PROJECT, {"id": id})
    return fetch_project(tx.connection, tx.seals, id)


def lock_all_projects(tx: Transaction) -> list[ProjectRecord]:
    """Lock all projects until the transaction ends, before the end of the log is locked."""
    ids = tx.connection.execute(select(projects.c.id).order_by(projects.c.id)).scalars().all()
    return [lock_project(tx, id) for id in ids]


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
        values = {each.name: fields[each.name] for each in populations.c}
        values["disjoint_from"] = None if said is None else tuple(json.loads(said))
        del values["seal"]
        population = PopulationRecord(**values)
        if not 0 <= population.reserved <= population.cap:
            raise ValueError("reserved is not within the cap")
        if not 0 <= population.delta_reserved <= population.delta_cap:
            raise ValueError("delta_reserved is not within the cap")
    return population


def _facts(text: str) -> EnsembleFacts:
    try:
        return EnsembleFacts.model_validate_json(text)
    except ValidationError as error:  # whose message has the whole document
        first = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(f"{first} is not what was registered") from None


def project_record(row: Row[Any], seals: Seals, *, begun: bool = True) -> ProjectRecord:
    """Return the record of a row of `select_projects`.

    `begun`: False of one that is being opened, whose release is not charged yet.
    Raises LedgerCorrupted unless its terms and its ensemble are those that it was opened with, its
    balance is possible for its number of charges, its seal is right, the administrative log says
    the same, and its last charge is as `check_last_charge` requires.
    """
    with readable(f"The account of project {row.name!r}", str(row.name)):
        fields = dict(row._mapping)
        check_types(projects.c, fields)
        terms = terms_from_text(row.terms)
        project = ProjectRecord(
            id=row.id,
            name=row.name,
            ensemble=ensemble_record(row, seals),
            mechanism=json.loads(row.mechanism),
            events=json.loads(row.events),
            terms=terms,
            genesis=row.genesis.hex(),
            opened_at=row.opened_at,
            title=row.title,
            purpose=row.purpose,
            **_account_fields(row, terms),
        )
        if genesis(fields) != row.genesis:
            raise ValueError("the terms are not those that the project was opened with")
        if begun:
            check_account(project)
        seals.check("projects", fields)
        check_logged("project", {**fields, "ensemble": project.ensemble.name})
    check_last_charge(project, [] if row.last_seq is None else [(row.last_seq, row.last_hash)])
    return project


def check_account(project: ProjectRecord) -> None:
    """Check a project's status, and that its balance is possible for its number of entries.

    Each entry debits one of a few prices, which bounds the balance from below and above. If every
    query has the same price, the bounds are equal.
    """
    if (project.status is ProjectStatus.CLOSED) != (project.closed_at is not None):
        raise ValueError("status and closed_at contradict each other")
    _check_publications(project)
    terms, account = project.terms, project.account
    last = project.published[-1] if project.published else None
    figure = last.figure if last else 0
    since = account.queries - last.queries if last else account.queries
    if project.charges < terms.start.charges:
        raise ValueError("what it begins with was not charged")
    # A figure replaces the cost of the queries before it; additive δ is never given back.
    for name, budget, price, queries, figured in [
        ("spent", terms.budget, "cost", since, figure),
        ("cap_spent", terms.cap_budget, "cap_cost", since, figure),
        ("delta_spent", terms.delta_budget, "delta", account.queries, 0),
    ]:
        settled = figured + getattr(terms.start, name)
        if terms.schedule is not None:
            settled += account.published * getattr(terms.schedule.price, price)
        least = settled + queries * getattr(terms.least, price)
        most = settled + queries * getattr(terms.worst, price)
        if name == "cap_spent" and terms.allowance is not None:
            least = min(least, budget)  # which no number of queries exceeds
        if not 0 <= least <= getattr(account, name) <= min(most, budget):
            raise ValueError(f"{name} is not what so many entries debit")


def _check_publications(project: ProjectRecord) -> None:
    """Check that each covers more queries than the last, and that no more exist than scheduled."""
    schedule = project.terms.schedule
    if len(project.published) > (len(schedule.counts) if schedule else 0):
        raise ValueError("published: more figures than are scheduled")
    last = 0
    for publication in project.published:
        if type(publication.seq) is not int or type(publication.figure) is not int:
            raise TypeError("published: not of whole numbers")
        if not last + 1 < publication.seq <= project.charges or publication.figure < 0:
            raise ValueError("published: not what was published")
        last = publication.seq
    if project.charges < 0:
        raise ValueError("charges is negative")


def check_last_charge(project: ProjectRecord, ends: Collection[tuple[int, Any]]) -> None:
    """Raise LedgerCorrupted unless a project's last charge is the one that its account names.

    `ends`: number and hash of the charge with the account's last number, and of any later one.
    """
    start, head = bytes.fromhex(project.genesis), bytes.fromhex(project.head)
    if set(ends or [(0, start)]) != {(project.charges, head)}:
        raise LedgerCorrupted(
            f"The last charge of project {project.name} is not the one that its balance stands on.",
            project.name,
        )


def _account_fields(row: Any, terms: Terms) -> dict[str, Any]:
    """Return what may change in a project's record."""
    return {
        "status": ProjectStatus(row.status),
        "spent": row.spent,
        "delta_spent": row.delta_spent,
        "cap_spent": row.cap_spent,
        "charges": row.charges,
        "published": _parse_published(row.published, terms),
        "head": row.head.hex(),
        "closed_at": row.closed_at,
        "seal": row.seal,
    }


def publications(entries: Iterable[tuple[int, int]], terms: Terms) -> list[Publication]:
    """Return the records of publications, from the number and figure of each entry."""
    return [
        Publication(seq, seq - number, figure)
        for number, (seq, figure) in enumerate(entries, start=1 + terms.start.released)
    ]


def _parse_published(text: str, terms: Terms) -> list[Publication]:
    entries = json.loads(text)
    if not isinstance(entries, list):
        raise TypeError("published is not a list")
    return publications(entries, terms)


# Selects what all projects have spent, and what their seals cover. Built once, as `TOKEN`.
SELECT_SPENT = select(ensembles.c.population_id, *ACCOUNT).outerjoin(
    ensembles, projects.c.ensemble_id == ensembles.c.id
)

# key_share: rows that only refer to the project, such as a new token, need not wait.
# Locks a project until the transaction ends. What is read next is as the last writer left it.
LOCK_PROJECT = (
    select(projects.c.id).where(projects.c.id == bindparam("id")).with_for_update(key_share=True)
)

MAX_CACHED_PROJECTS = 1024


class ProjectCache:
    """Current accounts of projects. What is fixed when a project is opened is read only once.

    It is checked against its hash, and kept in memory with the hash. The ensemble is kept, too, so
    what may change in it (how much of its cap is reserved) may be out of date. What may change in
    the account is checked against its seal each time.
    """

    def __init__(self, seals: Seals) -> None:
        self._seals = seals
        self._opened: dict[str, ProjectRecord] = {}

    def get(self, name: str) -> ProjectRecord | None:
        """Return a project as it was when it was read in full, or None."""
        return self._opened.get(name)

    def add(self, project: ProjectRecord) -> ProjectRecord:
        """Keep a project that was read in full. It replaces any other of the same name."""
        if len(self._opened) >= MAX_CACHED_PROJECTS:
            self._opened.clear()
        self._opened[project.name] = project
        return project

    def current(self, connection: Connection, row: Any) -> ProjectRecord:
        """Return the current record of a row of `find_charges`. Raises LedgerCorrupted."""
        with readable(f"The account of project {row.name!r}", str(row.name)):
            check_types(ACCOUNT, row._mapping)
            self._seals.check("projects", row._mapping)
            opened = self._opened.get(row.name)
            if opened is None or (opened.id, opened.genesis) != (row.id, row.genesis.hex()):
                opened = self.add(
                    fetch_project(connection, self._seals, row.id, genesis=row.genesis)
                )
            ensemble = load_newest_edition(connection, self._seals, opened.ensemble)
            account = replace(opened, ensemble=ensemble, **_account_fields(row, opened.terms))
            check_account(account)
            return account
