"""From rows of the database to records, and the queries that fetch them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, exists, select
from sqlalchemy.sql.elements import ColumnElement

from terrine_protocol import Guarantee, Outcome, ProjectStatus, Role
from terrine_server.errors import BrokenBooks, NotFound
from terrine_server.ledger.records import (
    ChargeRecord,
    EnsembleRecord,
    ProjectRecord,
    Publication,
    TokenRecord,
)
from terrine_server.ledger.store.tables import charges, ensembles, projects, tokens
from terrine_server.privacy import Terms

# The two tables share column names: the ensemble's come under a prefix, the project's as they are.
_ENSEMBLE = "ensemble__"
_on_ensemble = projects.alias("on_ensemble")
_claimed = (
    exists()
    .where(_on_ensemble.c.ensemble_id == ensembles.c.id, _on_ensemble.c.guarantee == "claimed")
    .label(f"{_ENSEMBLE}claimed")
)
_ensemble_columns = [column.label(f"{_ENSEMBLE}{column.name}") for column in ensembles.c]

terms_from_text = lru_cache(maxsize=1024)(lambda text: Terms.from_json(json.loads(text)))
"""Terms never change, and every charge needs them."""


def select_ensembles() -> Select[Any]:
    """All ensembles, by name."""
    return select(*_ensemble_columns, _claimed).order_by(ensembles.c.name)


@cache  # every charge needs it, and making it takes longer than asking
def select_projects() -> Select[Any]:
    """All projects with their ensembles, by name."""
    return (
        select(projects, *_ensemble_columns, _claimed)
        .join(ensembles, projects.c.ensemble_id == ensembles.c.id)
        .order_by(projects.c.name)
    )


def lock_ensemble(connection: Connection, condition: ColumnElement[bool]) -> Row[Any] | None:
    """Fetch an ensemble and hold it until the transaction ends.

    Whoever needs an ensemble and a project locks the ensemble first.
    """
    connection.execute(select(ensembles.c.id).where(condition).with_for_update(key_share=True))
    return connection.execute(select_ensembles().where(condition)).one_or_none()


def lock_project(
    connection: Connection, condition: ColumnElement[bool], described: str
) -> ProjectRecord:
    """Fetch a project and hold it until the transaction ends. Raises NotFound.

    A row that had to be waited for is read as its holder left it (PostgreSQL reads a locked row
    anew); the ensemble's columns are as they were before, and what changes of them is not for here.
    """
    # key_share: rows that merely refer to it (a new token) need not wait.
    locked = select_projects().with_for_update(key_share=True, of=projects)
    row = connection.execute(locked.where(condition)).one_or_none()
    if row is None:
        raise NotFound(f"There is no project {described}.")
    return project_record(row)


def fetch_project(
    connection: Connection, condition: ColumnElement[bool], described: str
) -> ProjectRecord:
    """Fetch a project. Raises NotFound."""
    row = connection.execute(select_projects().where(condition)).one_or_none()
    if row is None:
        raise NotFound(f"There is no project {described}.")
    return project_record(row)


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """A row that cannot be read was altered: say which, and answer nothing."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BrokenBooks(
            f"{what} cannot be read: it was altered. Run `terrine ledger verify all`.", repr(error)
        ) from None


def ensemble_record(row: Row[Any]) -> EnsembleRecord:
    """Record from a row of `select_ensembles` or `select_projects`."""
    fields = {
        name.removeprefix(_ENSEMBLE): value
        for name, value in row._mapping.items()
        if name.startswith(_ENSEMBLE)
    }
    with _readable(f"ensemble {fields['name']!r}"):
        return EnsembleRecord(
            **fields
            | {
                "manifest_sha256": fields["manifest_sha256"].hex(),
                "info": json.loads(fields["info"]),
                "claimed": bool(fields["claimed"]),
            }
        )


def project_record(row: Row[Any]) -> ProjectRecord:
    """Record from a row of `select_projects`."""
    with _readable(f"the account of project {row.name!r}"):
        return ProjectRecord(
            id=row.id,
            name=row.name,
            ensemble=ensemble_record(row),
            status=ProjectStatus(row.status),
            guarantee=Guarantee(row.guarantee),
            mechanism=json.loads(row.mechanism),
            events=json.loads(row.events),
            terms=terms_from_text(row.terms),
            spent=row.spent,
            delta_spent=row.delta_spent,
            cap_spent=row.cap_spent,
            charges=row.charges,
            published=publications(json.loads(row.published)),
            genesis=row.genesis.hex(),
            head=row.head.hex(),
            opened_at=row.opened_at,
            closed_at=row.closed_at,
        )


def publications(entries: Iterable[tuple[int, int]]) -> list[Publication]:
    """Records from the number and figure of each entry that publishes."""
    return [
        Publication(seq, seq - number, figure)
        for number, (seq, figure) in enumerate(entries, start=1)
    ]


# key_share: rows that merely refer to it (a new token) need not wait.
HOLD = select(projects.c.id).where(projects.c.id == bindparam("id")).with_for_update(key_share=True)
"""Holds a project until the transaction ends: what is read then is as its last holder left it."""

MOST_REMEMBERED = 1024
"""Projects whose terms a process keeps at hand."""


class Accounts:
    """Projects' accounts as they stand. What was fixed when one was opened is read once.

    It is remembered under the hash of all of it. Of the ensemble, too, what may change (how much of
    its cap is reserved) is as it was then.
    """

    def __init__(self) -> None:
        self._opened: dict[tuple[int, bytes], ProjectRecord] = {}

    def current(self, connection: Connection, row: Any) -> ProjectRecord:
        """Record from a row of `searches.find`."""
        opened = self._opened.get((row.id, row.genesis))
        if opened is None:
            same = (projects.c.id == row.id) & (projects.c.genesis == row.genesis)
            opened = fetch_project(connection, same, f"number {row.id}")
            if len(self._opened) >= MOST_REMEMBERED:
                self._opened.clear()
            self._opened[row.id, row.genesis] = opened
        with _readable(f"the account of project {opened.name!r}"):
            return replace(
                opened,
                status=ProjectStatus(row.status),
                spent=row.spent,
                delta_spent=row.delta_spent,
                cap_spent=row.cap_spent,
                charges=row.charges,
                published=publications(json.loads(row.published)),
                head=row.head.hex(),
                closed_at=row.closed_at,
            )


def charge_record(row: Row[Any], project: str) -> ChargeRecord:
    """Record from a row of `charges`."""
    with _readable(f"entry {row.seq} of project {project!r}"):
        if not isinstance(row.created_at, datetime):
            raise TypeError(row.created_at)
        return ChargeRecord(
            project=project,
            **dict(row._mapping)
            | {
                "query_digest": row.query_digest.hex(),
                "input_digest": row.input_digest.hex(),
                "outcome": Outcome(row.outcome),
                "guarantee": Guarantee(row.guarantee),
                "mechanism": json.loads(row.mechanism),
                "event": json.loads(row.event),
                "hash": row.hash.hex(),
            },
        )


def select_tokens() -> Select[Any]:
    """All tokens with the name of their project, oldest first."""
    return (
        select(tokens, projects.c.name.label("project"))
        .outerjoin(projects, tokens.c.project_id == projects.c.id)
        .order_by(tokens.c.created_at, tokens.c.id)
    )


TOKEN = select_tokens().where(tokens.c.id == bindparam("id"))
"""One token. Made once, as every request needs it."""


def token_record(row: Row[Any]) -> TokenRecord:
    """Record from a row of `select_tokens`."""
    return TokenRecord(**dict(row._mapping) | {"role": Role(row.role)})


def select_charges(project_id: int) -> Select[Any]:
    """A project's charges, in order."""
    return select(charges).where(charges.c.project_id == project_id).order_by(charges.c.seq)
