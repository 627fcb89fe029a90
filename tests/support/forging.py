"""Forgeries of the project `study` in a ledger without triggers and constraints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from books import digest
from sqlalchemy import Connection, insert, select, update

from terrine_server.ledger.chain import charge_hash
from terrine_server.ledger.schema import charges, projects
from terrine_server.ledger.verifying import ArchiveError, verify_export


def altered(value: Any) -> Any:
    """Return the value with the smallest possible change."""
    match value:
        case None:
            return 0
        case int():
            return value ^ 1
        case float():
            return value * (1 + 2**-52)
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:]
        case datetime():
            return value + timedelta(microseconds=1)
        case str():
            middle = len(value) // 2
            return value[:middle] + ("1" if value[middle] == "0" else "0") + value[middle + 1 :]
    raise TypeError(type(value))


def rows_of(connection: Connection) -> list[dict[str, Any]]:
    """The charges of `study`."""
    query = select(charges).where(charges.c.project_id == 1).order_by(charges.c.seq)
    return [dict(row._mapping) for row in connection.execute(query)]


def write(connection: Connection, seq: int, values: Mapping[str, Any]) -> None:
    connection.execute(
        update(charges).where(charges.c.project_id == 1, charges.c.seq == seq).values(values)
    )


def remove(connection: Connection, *seqs: int) -> None:
    connection.execute(charges.delete().where(charges.c.project_id == 1, charges.c.seq.in_(seqs)))


def swap(connection: Connection) -> None:
    write(connection, 2, {"seq": 99})
    write(connection, 3, {"seq": 2})
    write(connection, 99, {"seq": 3})


def add(connection: Connection, seq: int, entries: list[dict[str, Any]]) -> None:
    """A well-made extra charge, chained to its predecessor."""
    previous = entries[seq - 2]
    new = digest("forged")
    extra = {**previous, "seq": seq, "query_digest": new, "input_digest": new}
    extra["hash"] = charge_hash(previous["hash"], extra)
    connection.execute(insert(charges), extra)


def rehash(connection: Connection, seq: int, **changes: Any) -> None:
    """Alter one charge and recompute its own hash."""
    entries = rows_of(connection)
    previous = entries[seq - 2]["hash"]
    forged = {**entries[seq - 1], **changes}
    write(connection, seq, {**changes, "hash": charge_hash(previous, forged)})


def rewrite(connection: Connection, seq: int, **changes: Any) -> None:
    """Alter one charge and recompute every later hash and the head."""
    entries = rows_of(connection)
    head = entries[seq - 2]["hash"]
    for entry in entries[seq - 1 :]:
        forged = {**entry, **(changes if entry["seq"] == seq else {})}
        head = charge_hash(head, forged)
        write(connection, entry["seq"], {**forged, "hash": head})
    connection.execute(update(projects).where(projects.c.id == 1).values(head=head))


def account(**changes: Any) -> Callable[[Connection], object]:
    return lambda connection: connection.execute(
        update(projects).where(projects.c.id == 1).values(changes)
    )


def cut(connection: Connection, keep: int) -> None:
    """Remove all charges after the first `keep`; set count, head and balances to match."""
    entries = rows_of(connection)
    gone = entries[keep:]
    remove(connection, *[entry["seq"] for entry in gone])
    account(
        head=entries[keep - 1]["hash"],
        charges=keep,
        spent=projects.c.spent - sum(entry["cost"] for entry in gone),
        delta_spent=projects.c.delta_spent - sum(entry["delta"] for entry in gone),
        cap_spent=projects.c.cap_spent - sum(entry["cap_cost"] for entry in gone),
    )(connection)


def rebuild(connection: Connection, entries: Sequence[Mapping[str, Any]]) -> None:
    """Replace all charges with `entries`, numbered and chained consistently."""
    connection.execute(charges.delete().where(charges.c.project_id == 1))
    query = select(projects.c.genesis).where(projects.c.id == 1)
    head = connection.execute(query).scalar_one()
    for seq, entry in enumerate(entries, start=1):
        new = {**entry, "seq": seq}
        head = charge_hash(head, new)
        connection.execute(insert(charges), {**new, "hash": head})
    account(head=head)(connection)


def kind(problem: str) -> str:
    """What a finding is about, and the first word of what is wrong with it."""
    about, _, what = problem.partition(": ")
    return about if about in ("terms", "head") else f"{about}: {what.split()[0].rstrip(',')}"


def first_finding(file: Path, lines: list[Any]) -> str:
    """What is found first in an export of these lines, written to a file; empty if all is well."""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        problems = verify_export(file).problems
    except ArchiveError as error:
        return str(error)
    return problems[0] if problems else ""
