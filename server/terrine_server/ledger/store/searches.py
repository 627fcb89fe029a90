"""The statements that look up what is on record, for many values at a time.

Each value is looked up separately, by an index. With `IN` or `= ANY`, both databases would read all
rows of a project as long as they have no statistics.
"""

# ruff: noqa: S608 - statements are made of constants
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, Literal

from sqlalchemy import Connection, Executable, bindparam, column, select, text

from terrine_protocol import Outcome
from terrine_server.ledger.records import QueryDigest
from terrine_server.ledger.seals import SEALED
from terrine_server.ledger.store.tables import projects

QUERY, INPUT, LAST = range(3)
"""Kinds of rows found: a charge, by its query digest; a charge, by its input digest; the last
charge that the account counts, or a later one."""

ACCOUNT = (*SEALED["projects"], "seal")
"""The columns of a project that may change, and those that identify it."""
_FOUND = {
    "kind": "int",
    "seq": "bigint",
    "hash": "bytea",
    "query_digest": "bytea",
    "input_digest": "bytea",
    "created_at": "timestamptz",
    "outcome": "text",
    "label": "bigint",
    "counts": "text",
    "previous": "bytea",
}
FOUND = tuple(_FOUND)
"""Columns of the rows found. Of the last charge, only number and hash are looked up. `previous`:
the hash before."""

_ACCOUNT = [projects.c[name] for name in ACCOUNT]
_CHUNK = 5000  # a statement of SQLite has at most 32,766 parameters

_By = Literal["id", "name"]
_Form = Literal["sqlite", "many", "one"]
"""How values come: to SQLite, as a table; to PostgreSQL, as arrays, or one of each. PostgreSQL
plans the last once and for all, and arrays only if it likes."""


def find(
    connection: Connection, project: str | int, digests: Sequence[QueryDigest]
) -> tuple[Any, Sequence[Any]]:
    """Return the `ACCOUNT` of the project with this name or id, and rows of `FOUND`.

    Everything is as of one moment. The account is None if there is no such project.
    """
    by: _By = "name" if isinstance(project, str) else "id"
    if connection.dialect.name == "postgresql":
        wanted: dict[str, Any] = _wanted(digests)
        form: _Form = "many"
        if all(len(values) == 1 for values in wanted.values()):
            form, wanted = "one", {name: value for name, (value,) in wanted.items()}
        found_by = account_and_found(by, form)
        rows = connection.execute(found_by, {"project": project, **wanted}).all()
        return (rows[0] if rows else None), [row for row in rows if row.kind is not None]
    account = connection.execute(_account(by), {"project": project}).one_or_none()
    if account is None:
        return None, []
    found: list[Any] = []
    for start in range(0, len(digests) or 1, _CHUNK):
        wanted = _wanted(digests[start : start + _CHUNK])
        given = (account.id, account.charges, *chain.from_iterable(wanted.values()))
        query = _found({name: len(values) for name, values in wanted.items()})
        found += connection.exec_driver_sql(query, given).all()
    return account, found


def _wanted(digests: Sequence[QueryDigest]) -> dict[str, list[Any]]:
    nothing = [b""]  # an empty list of values is not a valid table
    return {
        "queries": sorted({digest.query for digest in digests}) or nothing,
        "inputs": sorted({digest.input for digest in digests}) or nothing,
    }


# Cached: SQLAlchemy takes longer to build a statement than a database to run it.


@cache
def account_and_found(by: _By, form: _Form) -> Executable:
    """PostgreSQL: the account of a `:project`, repeated in each row found; alone if there is none.

    One statement reads one snapshot.
    """
    account = ", ".join(f"projects.{name}" for name in ACCOUNT)
    found = f"({_search(form)}) AS found ({', '.join(FOUND)})"
    query = text(
        f"SELECT {account}, found.* FROM projects LEFT JOIN LATERAL {found} ON true "
        f"WHERE projects.{by} = :project"
    )
    return query.columns(*_ACCOUNT, *map(column, FOUND))


@cache
def _account(by: _By) -> Executable:
    return select(*_ACCOUNT).where(projects.c[by] == bindparam("project"))


def _found(wanted: Mapping[str, int]) -> str:
    """SQLite: the rows found in a project, the first parameter, that counts as many charges as the
    second says. Those wanted come after these: so many of each name.

    Not by SQLAlchemy's expanding parameters, which take longer than the search.
    """
    query, first = _search("sqlite"), 3
    for name, count in wanted.items():
        values = ", ".join(f"(?{number})" for number in range(first, first + count))
        query, first = query.replace(f":{name}", f"(VALUES {values})"), first + count
    return query


@cache
def _search(form: _Form) -> str:
    """Return the SQL that finds rows; on PostgreSQL, it is joined to a row of `projects`."""
    sqlite = form == "sqlite"
    project, last = ("?1", "?2") if sqlite else ("projects.id", "projects.charges")
    previous = (
        "(SELECT hash FROM charges AS before WHERE before.project_id = charges.project_id "
        "AND before.seq < charges.seq ORDER BY before.seq DESC LIMIT 1)"
    )
    charge = {name: name for name in FOUND[1:-1]} | {"previous": previous}
    by_query, by_input = _columns(QUERY, charge), _columns(INPUT, charge)
    answered = f"AND outcome = '{Outcome.ANSWERED}'"
    each = partial(_each, form, project)
    parts = [
        each(by_query, "queries", "query_digest"),
        each(by_input, "inputs", "input_digest", answered),
        # Two rows are already wrong. Without LIMIT, PostgreSQL expects a third of all charges.
        f"SELECT * FROM (SELECT {_columns(LAST, {'seq': 'seq', 'hash': 'hash'})} FROM charges "
        f"WHERE project_id = {project} AND seq >= {last} ORDER BY seq LIMIT 2) AS last",
    ]
    return " UNION ALL ".join(parts)


def _columns(kind: int, given: dict[str, str]) -> str:
    """Return the columns `FOUND`, in order. PostgreSQL would take an untyped NULL for text."""
    values = {name: f"CAST(NULL AS {type})" for name, type in _FOUND.items()}
    values |= {"kind": str(kind)} | given
    return ", ".join(f"{value} AS {name}" for name, value in values.items())


def _each(form: _Form, project: str, columns: str, wanted: str, column: str, only: str = "") -> str:
    """Return the SQL that looks up each of the `wanted` values of a column separately."""
    if form == "sqlite":  # which keeps the order of a CROSS JOIN
        condition = f"project_id = {project} AND {column} = column1 {only}"
        return f"SELECT {columns} FROM :{wanted} CROSS JOIN charges ON {condition}"
    value = f"CAST(:{wanted} AS bytea)" if form == "one" else "value"
    # The order is that of one index. For an equality alone, PostgreSQL might as well take another,
    # and read all rows of the project, as long as it has no statistics.
    first = (
        f"SELECT * FROM charges WHERE project_id = {project} AND {column} >= {value} {only} "
        f"ORDER BY {column} LIMIT 1"
    )
    found = f"SELECT {columns} FROM ({first}) AS charges WHERE {column} = {value}"
    if form == "one":
        return found
    given = f"unnest(CAST(:{wanted} AS bytea[])) AS given (value)"
    return f"SELECT found.* FROM {given} CROSS JOIN LATERAL ({found}) AS found"
