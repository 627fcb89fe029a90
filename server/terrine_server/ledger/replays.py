"""What is on record for queries: one look-up, as of one moment; each entry found is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from itertools import chain
from typing import Any, Literal

from sqlalchemy import Connection, Executable, bindparam, column, select, text

from terrine_protocol import Outcome
from terrine_server.errors import LedgerCorrupted, NotFound
from terrine_server.ledger.chain import (
    check_counts,
    counts_from_text,
    frame_counts,
    frame_kind,
    hasher,
    iso,
)
from terrine_server.ledger.records import (
    EntryFields,
    ProjectRecord,
    ProjectSnapshot,
    QueryDigest,
    RecordedCharges,
    Result,
)
from terrine_server.ledger.rows import (
    ACCOUNT,
    ACCOUNT_COLUMNS,
    ProjectCache,
    check_last_charge,
    no_project,
)
from terrine_server.ledger.schema import projects
from terrine_server.ledger.seals import READ_ERRORS
from terrine_server.privacy import VoteOutcome

# ruff: noqa: S608 - statements are made of constants


# A row that was found: a charge, by its query digest.
BY_QUERY = 0
# A charge, by its input digest.
BY_INPUT = 1
# The last charge that the account counts, or a later one.
LAST_CHARGE = 2
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
# Columns of the rows found. Of the last charge, only number and hash are looked up. `previous`: the
# hash before.
FOUND_COLUMNS = tuple(_FOUND)
_MAX_DIGESTS = 5000  # in a statement of SQLite, which has at most 32,766 parameters
_By = Literal["id", "name"]


def find_charges(
    connection: Connection, project: str | int, digests: Sequence[QueryDigest]
) -> tuple[Any, Sequence[Any]]:
    """Return the account of the project with this name or id, and the rows found.

    Everything is as of one moment. The account is None if there is no such project.
    """
    by: _By = "name" if isinstance(project, str) else "id"
    if connection.dialect.name == "postgresql":
        given = {"project": project, **_group_digests(digests)}
        rows = connection.execute(_account_and_found(by), given).all()
        return (rows[0] if rows else None), [row for row in rows if row.kind is not None]
    account = connection.execute(_account(by), {"project": project}).one_or_none()
    if account is None:
        return None, []
    found: list[Any] = []
    for start in range(0, len(digests) or 1, _MAX_DIGESTS):
        wanted = _group_digests(digests[start : start + _MAX_DIGESTS])
        values = (account.id, account.charges, *chain.from_iterable(wanted.values()))
        query = _select_found({name: len(values) for name, values in wanted.items()})
        found += connection.exec_driver_sql(query, values).all()
    return account, found


def _group_digests(digests: Sequence[QueryDigest]) -> dict[str, list[Any]]:
    nothing = [b""]  # an empty list of values is not a valid table
    return {
        "queries": sorted({digest.query for digest in digests}) or nothing,
        "inputs": sorted({digest.input for digest in digests}) or nothing,
    }


@cache
def _account_and_found(by: _By) -> Executable:
    """PostgreSQL: the account of a `:project`, repeated in each row found; alone if there is none.

    One statement reads one snapshot.
    """
    account = ", ".join(f"projects.{name}" for name in ACCOUNT_COLUMNS)
    found = f"({_search(sqlite=False)}) AS found ({', '.join(FOUND_COLUMNS)})"
    query = text(
        f"SELECT {account}, found.* FROM projects LEFT JOIN LATERAL {found} ON true "
        f"WHERE projects.{by} = :project"
    )
    return query.columns(*ACCOUNT, *map(column, FOUND_COLUMNS))


@cache
def _account(by: _By) -> Executable:
    return select(*ACCOUNT).where(projects.c[by] == bindparam("project"))


def _select_found(wanted: Mapping[str, int]) -> str:
    """Return SQLite's query for what is wanted: so many values of each name.

    Its parameters are the project, how many charges it counts, and the values.
    Not by SQLAlchemy's expanding parameters, which take longer than the search.
    """
    query, first = _search(sqlite=True), 3
    for name, count in wanted.items():
        values = ", ".join(f"(?{number})" for number in range(first, first + count))
        query, first = query.replace(f":{name}", f"(VALUES {values})"), first + count
    return query


@cache
def _search(sqlite: bool) -> str:
    """Return the SQL that finds rows; on PostgreSQL, it is joined to a row of `projects`.

    Values are looked up one by one: asked for a list, both databases may read all charges.
    """
    project, last = ("?1", "?2") if sqlite else ("projects.id", "projects.charges")
    previous = (
        "(SELECT hash FROM charges AS before WHERE before.project_id = charges.project_id "
        "AND before.seq < charges.seq ORDER BY before.seq DESC LIMIT 1)"
    )
    charge = {name: name for name in FOUND_COLUMNS[1:-1]} | {"previous": previous}
    by_query, by_input = _columns(BY_QUERY, charge), _columns(BY_INPUT, charge)
    last_columns = _columns(LAST_CHARGE, {"seq": "seq", "hash": "hash"})
    answered = f"AND outcome = '{Outcome.ANSWERED}'"
    each = partial(_each, sqlite, project)
    parts = [
        each(by_query, "queries", "query_digest"),
        each(by_input, "inputs", "input_digest", answered),
        # Two rows are already wrong. Without LIMIT, PostgreSQL expects a third of all charges.
        f"SELECT * FROM (SELECT {last_columns} FROM charges "
        f"WHERE project_id = {project} AND seq >= {last} ORDER BY seq LIMIT 2) AS last",
    ]
    return " UNION ALL ".join(parts)


def _columns(kind: int, given: dict[str, str]) -> str:
    """Return `FOUND_COLUMNS`, in order. PostgreSQL would take an untyped NULL for text."""
    values = {name: f"CAST(NULL AS {type})" for name, type in _FOUND.items()}
    values |= {"kind": str(kind)} | given
    return ", ".join(f"{value} AS {name}" for name, value in values.items())


def _each(
    sqlite: bool, project: str, columns: str, wanted: str, column: str, only: str = ""
) -> str:
    """Return the SQL that looks up each of the `wanted` values of a column separately."""
    if sqlite:  # which keeps the order of a CROSS JOIN
        condition = f"project_id = {project} AND {column} = column1 {only}"
        return f"SELECT {columns} FROM :{wanted} CROSS JOIN charges ON {condition}"
    # The order is that of one index. For an equality alone, PostgreSQL might as well take another,
    # and read all rows of the project, as long as it has no statistics.
    first = (
        f"SELECT * FROM charges WHERE project_id = {project} AND {column} >= value {only} "
        f"ORDER BY {column} LIMIT 1"
    )
    found = f"SELECT {columns} FROM ({first}) AS charges WHERE {column} = value"
    given = f"unnest(CAST(:{wanted} AS bytea[])) AS given (value)"
    return f"SELECT found.* FROM {given} CROSS JOIN LATERAL ({found}) AS found"


def look_up(
    connection: Connection,
    cache: ProjectCache,
    project: str | int,
    digests: Sequence[QueryDigest],
) -> ProjectSnapshot:
    """Return the project with this name or id, and what is on record for queries to it.

    Everything is as of one moment; see `Charging.look_up`. Raises NotFound, and LedgerCorrupted if
    the last charge is not the one that the account names as its last, or if a charge that answers a
    query was altered.
    """
    row, found = find_charges(connection, project, digests)
    if row is None:
        raise NotFound(no_project(project))
    account = cache.current(connection, row)
    paid = _EntryReader(account)
    by_query: dict[bytes, Result] = {}
    by_input: dict[bytes, Result] = {}
    ends: set[tuple[int, bytes]] = set()
    for entry in found:
        if entry.kind == LAST_CHARGE:
            ends.add((entry.seq, entry.hash))
        elif entry.kind == BY_QUERY:
            by_query[entry.query_digest] = paid.result(entry)
        else:
            by_input[entry.input_digest] = paid.result(entry)
    check_last_charge(account, ends)
    return ProjectSnapshot(account, RecordedCharges(by_query, by_input))


class _EntryReader:
    """Reads charges of a project that answer queries, and checks the hash of each.

    The hash covers the price and the cost event. Both are taken from the terms, not from the entry,
    so the hash of an entry that was charged at any other price does not match.
    """

    def __init__(self, project: ProjectRecord) -> None:
        self._project = project
        self._genesis = bytes.fromhex(project.genesis)
        self._hashed = hasher(project.id)
        self._framed: dict[tuple[str, int | None], list[bytes]] = {}

    def result(self, entry: Any) -> Result:
        """Return the result in a row of `find_charges`. Raises LedgerCorrupted if it was
        altered."""
        counts = None
        try:
            seq, time = entry.seq, entry.created_at
            fields = (
                self._genesis if seq == 1 else entry.previous,
                seq,
                iso(time) if isinstance(time, datetime) else time,
                entry.query_digest,
                entry.input_digest,
            )
            kinds = self._kinds(entry.outcome, entry.label)
            framed = frame_counts(entry.counts)
            intact = any(self._hashed(*fields, kind + framed) == entry.hash for kind in kinds)
            counts = counts_from_text(entry.counts)
            check_counts(counts, entry.label, self._project.counts_due(entry.outcome))
        except READ_ERRORS:
            intact = False
        if not intact:
            name = self._project.name
            raise LedgerCorrupted(f"Entry {entry.seq} of project {name} was altered.", name)
        return Result(Outcome(entry.outcome), entry.label, seq, True, counts, entry.hash.hex())

    def _kinds(self, outcome: str, label: int | None) -> list[bytes]:
        """Return the frames of an entry with this outcome: one for each baseline that is priced."""
        framed = self._framed.get((outcome, label))
        if framed is None:
            terms, kinds = self._project.terms, EntryFields(self._project)
            framed = [
                frame_kind(
                    *kinds.fields(
                        outcome,
                        terms.price(VoteOutcome(outcome), baseline),
                        label,
                        baseline=baseline,
                    )
                )
                for baseline in terms.baselines
            ]
            self._framed[outcome, label] = framed
        return framed
