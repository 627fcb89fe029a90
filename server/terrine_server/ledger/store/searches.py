"""The statements that look up what is on record, many values at a time.

Every value is looked up by itself, by an index. Asked for any of them (`IN`, `= ANY`), both
databases would rather read all rows of a project as long as they lack statistics.
"""

# ruff: noqa: S608 - statements are made of constants
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from sqlalchemy import Connection, Executable, bindparam, column, select, text

from terrine_protocol import Outcome
from terrine_server.ledger.records import QueryDigest
from terrine_server.ledger.store.tables import projects

QUERY, INPUT, LAST, KEY = range(4)
"""Kinds of found rows: a charge by its query's digest; one by its input's; one that is the last its
account knows of, or comes after that; what a request was told under its key."""

ACCOUNT = (
    *("id", "genesis", "status", "spent", "delta_spent", "cap_spent"),
    *("charges", "published", "head", "closed_at"),
)
"""Columns of what may change of a project, and of what tells which one it is."""
FOUND = ("kind", "digest", "seq", "outcome", "label", "key", "results")
"""Columns of a found row; `digest` is the hash of a last charge, or of what a key came with."""

_ACCOUNT = [projects.c[name] for name in ACCOUNT]
_CHUNK = 5000  # a statement of SQLite has at most 32,766 parameters

_By = Literal["id", "name"]


def find(
    connection: Connection, project: str | int, keys: Sequence[str], digests: Sequence[QueryDigest]
) -> tuple[Any, Sequence[Sequence[Any]]]:
    """Return the `ACCOUNT` of the project with this name or number, and what is `FOUND` of it.

    All of one moment. The account is None where there is no such project.
    """
    by: _By = "name" if isinstance(project, str) else "id"
    if connection.dialect.name == "postgresql":
        asked = {"project": project, **_wanted(keys, digests)}
        rows = connection.execute(account_and_found(by, bool(keys)), asked).all()
        beside = (row[len(ACCOUNT) :] for row in rows)
        return (rows[0] if rows else None), [row for row in beside if row[0] is not None]
    account = connection.execute(_account(by), {"project": project}).one_or_none()
    if account is None:
        return None, []
    found: list[Any] = []
    for start in range(0, len(digests) or 1, _CHUNK):
        wanted = _wanted(keys, digests[start : start + _CHUNK])
        values = {name: [(value,) for value in values] for name, values in wanted.items()}
        asked = {"project": account.id, "last": account.charges, **values}
        found += connection.execute(_found(bool(keys)), asked).all()
    return account, found


def numbered(
    connection: Connection, project_id: int, numbers: Sequence[int]
) -> Sequence[Sequence[Any]]:
    """Return number, outcome and label of the charges with these numbers."""
    dialect = connection.dialect.name
    found: list[Any] = []
    for start in range(0, len(numbers), _CHUNK):
        part: list[Any] = list(numbers[start : start + _CHUNK])
        if dialect == "sqlite":
            part = [(number,) for number in part]
        asked = {"project": project_id, "numbers": part}
        found += connection.execute(charges_numbered(dialect), asked).all()
    return found


def _wanted(keys: Sequence[str], digests: Sequence[QueryDigest]) -> dict[str, list[Any]]:
    nothing = [b""]  # no values are no table
    wanted: dict[str, list[Any]] = {
        "queries": sorted({digest.query for digest in digests}) or nothing,
        "inputs": sorted({digest.input for digest in digests}) or nothing,
    }
    return {**wanted, "keys": list(keys)} if keys else wanted


# Made once: SQLAlchemy takes longer to make a statement than a database to answer it.


@cache
def account_and_found(by: _By, keys: bool) -> Executable:
    """PostgreSQL: the account of a `:project`, beside every row found; alone where there is none.

    One statement sees one moment.
    """
    account = ", ".join(f"projects.{name}" for name in ACCOUNT)
    found = f"({_search(False, keys)}) AS found ({', '.join(FOUND)})"
    query = text(
        f"SELECT {account}, found.* FROM projects LEFT JOIN LATERAL {found} ON true "
        f"WHERE projects.{by} = :project"
    )
    return query.columns(*_ACCOUNT, *map(column, FOUND))


@cache
def _account(by: _By) -> Executable:
    return select(*_ACCOUNT).where(projects.c[by] == bindparam("project"))


@cache
def _found(keys: bool) -> Executable:
    """SQLite: what is found in a `:project` whose account knows of charges up to the `:last`."""
    wanted = ("queries", "inputs", "keys") if keys else ("queries", "inputs")
    query = text(_search(True, keys))
    return query.bindparams(*(bindparam(name, expanding=True) for name in wanted))


@cache
def charges_numbered(dialect: str) -> Executable:
    """The charges of a `:project` with `:numbers`."""
    sqlite = dialect == "sqlite"
    wanted = ("numbers", "bigint", "seq = ?")
    query = text(_each(sqlite, "charges", "seq, outcome, label", ":project", *wanted))
    return query.bindparams(bindparam("numbers", expanding=True)) if sqlite else query


def _search(sqlite: bool, keys: bool) -> str:
    """SQL that finds rows: on PostgreSQL beside a row of `projects`."""
    project, last = (":project", ":last") if sqlite else ("projects.id", "projects.charges")
    charge = "seq, outcome, label, NULL, NULL"
    answered = f"input_digest = ? AND outcome = '{Outcome.ANSWERED}'"
    parts = [
        _each(
            *(sqlite, "charges", f"{QUERY}, query_digest, {charge}", project),
            *("queries", "bytea", "query_digest = ?"),
        ),
        _each(
            *(sqlite, "charges", f"{INPUT}, input_digest, {charge}", project),
            *("inputs", "bytea", answered),
        ),
        # A second one is one too many. Unlimited, PostgreSQL reckons with a third of all charges.
        f"SELECT * FROM (SELECT {LAST}, hash, {charge} FROM charges "
        f"WHERE project_id = {project} AND seq >= {last} ORDER BY seq LIMIT 2) AS last",
    ]
    if keys:
        number = "CAST(NULL AS bigint)"  # PostgreSQL would take a NULL for text
        told = f"{KEY}, body_digest, {number}, NULL, {number}, key, results"
        parts.append(_each(sqlite, "idempotency", told, project, "keys", "text", "key = ?"))
    return " UNION ALL ".join(parts)


def _each(
    sqlite: bool, table: str, columns: str, project: str, wanted: str, type: str, condition: str
) -> str:
    """SQL that looks up every one of the `wanted` values by itself."""
    if sqlite:  # which keeps the order of a CROSS JOIN
        condition = condition.replace("?", "column1")
        source = f":{wanted} CROSS JOIN {table} ON project_id = {project} AND {condition}"
        return f"SELECT {columns} FROM {source}"
    condition = condition.replace("?", "value")
    one = f"SELECT {columns} FROM {table} WHERE project_id = {project} AND {condition} LIMIT 1"
    given = f"unnest(CAST(:{wanted} AS {type}[])) AS given (value)"
    return f"SELECT one.* FROM {given} CROSS JOIN LATERAL ({one}) AS one"
