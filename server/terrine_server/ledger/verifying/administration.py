"""Verifies the administrative log, and holds today's rows against what it says.

The log's hashes can be checked by anyone. That it has not been cut or written anew is what the seal
of its end shows, and, for whoever has the secret key as well, a checkpoint of the transparency log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Select, select

from terrine_protocol import LogVerification
from terrine_server.errors import LedgerCorrupted, NotSealed
from terrine_server.ledger.administration import ABOUT, START, facts, log_hash
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import log, rows
from terrine_server.ledger.store.editions import select_editions
from terrine_server.ledger.store.soundness import UNREADABLE, check_types
from terrine_server.ledger.store.tables import (
    administrative_log,
    editions,
    ensembles,
    payments,
    populations,
    projects,
    requests,
    tokens,
)

MOST_PROBLEMS = 100
"""The most findings that a report names."""

TABLES = {
    "population": populations,
    "ensemble": ensembles,
    "edition": editions,
    "project": projects,
    "token": tokens,
    "request": requests,
}
_KIND = {action: kind for kind, actions in ABOUT.items() for action in actions}


def rows_of(kind: str) -> Select[Any]:
    """Select all rows of a kind of subject, each with its `subject` and all of its facts."""
    match kind:
        case "population":
            subject = populations.c.name.label("subject")
            return select(populations, subject).order_by(populations.c.id)
        case "ensemble":
            return (
                select(
                    ensembles,
                    ensembles.c.name.label("subject"),
                    populations.c.name.label("population"),
                )
                .outerjoin(populations, ensembles.c.population_id == populations.c.id)
                .order_by(ensembles.c.id)
            )
        case "edition":
            return select_editions()
        case "project":
            return (
                select(
                    projects,
                    projects.c.name.label("subject"),
                    ensembles.c.name.label("ensemble"),
                )
                .outerjoin(ensembles, projects.c.ensemble_id == ensembles.c.id)
                .order_by(projects.c.id)
            )
        case "request":
            return rows.select_requests().add_columns(requests.c.id.label("subject"))
        case _:
            return (
                select(tokens, tokens.c.id.label("subject"), projects.c.name.label("project"))
                .outerjoin(projects, tokens.c.project_id == projects.c.id)
                .order_by(tokens.c.id)
            )


def verify_log(connection: Connection, seals: Seals) -> LogVerification:
    """See `Log.verify_log`. The connection's transaction must read one snapshot throughout."""
    walk = _LogWalk()
    problems = list(islice(_findings(connection, seals, walk), MOST_PROBLEMS))
    return LogVerification(entries=walk.last, head=walk.head.hex(), problems=problems)


def _findings(connection: Connection, seals: Seals, walk: _LogWalk) -> Iterator[str]:
    entries = connection.execute(log.select_log(), execution_options={"yield_per": 1000})
    for row in entries:
        yield from walk.follow(row._mapping)
    try:
        log.check_head(connection, seals)
    except (LedgerCorrupted, NotSealed) as error:
        yield f"log: {error.found if isinstance(error, LedgerCorrupted) else error.detail}"
    for kind, said in walk.said.items():
        yield from _check_rows(connection, seals, kind, said)
    there = select(projects.c.id)
    lost = select(payments.c.project_id).where(payments.c.project_id.not_in(there)).distinct()
    for id in connection.execute(lost).scalars():
        yield f"payments: some are of project number {id}, which is not there"


class _LogWalk:
    """One pass over the log. `said`: by kind and subject, the last entry about it."""

    def __init__(self) -> None:
        self.last, self.head = 0, START
        self.said: dict[str, dict[str, str]] = {kind: {} for kind in ABOUT}

    def follow(self, entry: Mapping[Any, Any]) -> Iterator[str]:
        """Check the next entry."""
        seq = entry["seq"]
        if seq != self.last + 1:
            yield f"log entry {seq}: not the one after {self.last}; entries are missing"
        try:
            check_types(administrative_log.c, entry)
            intact = log_hash(self.head, entry) == entry["hash"]
        except UNREADABLE:
            intact = False
        if not intact:
            yield f"log entry {seq}: altered, or not the one that followed the entry before it"
        kind = _KIND.get(entry["action"])
        if kind is not None:
            self.said[kind][entry["subject"]] = entry["detail"]
            if entry["detail"] == log.GONE:
                del self.said[kind][entry["subject"]]
        self.last, self.head = seq, entry["hash"]


def _check_rows(
    connection: Connection, seals: Seals, kind: str, said: Mapping[str, str]
) -> Iterator[str]:
    left = dict(said)
    for row in connection.execute(rows_of(kind)):
        what = f"{kind} {row.subject}"
        detail = left.pop(row.subject, None)
        if detail is None:
            yield f"{what}: it is there, but the log does not say so"
        else:
            yield from (f"{what}: {found}" for found in _differences(kind, row._mapping, detail))
        try:
            seals.check(TABLES[kind].name, row._mapping)
        except UNREADABLE:
            yield f"{what}: its row was edited; its seal does not match"
    yield from (f"{kind} {subject}: the log says it is there, but it is gone" for subject in left)


def _differences(kind: str, row: Mapping[Any, Any], detail: str) -> Iterator[str]:
    try:
        then, now = json.loads(detail), facts(kind, row)
        if canonical_json(now) == detail:
            return
        for name in sorted(now.keys() | then.keys()):
            if now.get(name) != then.get(name):
                yield f"{name} is {now.get(name)!r}, but the log says {then.get(name)!r}"
    except UNREADABLE:
        yield "what the log or its row says cannot be read"
