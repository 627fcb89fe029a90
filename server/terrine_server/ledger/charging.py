"""Paying for answers: one transaction for a batch, and the records that make a repeat free."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    bindparam,
    delete,
    insert,
    literal,
    select,
    union_all,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from terrine_client.protocol import Outcome, ProjectStatus
from terrine_server.errors import (
    BrokenBooks,
    BudgetExhausted,
    IdempotencyConflict,
    InvalidQuery,
    Overtaken,
    ProjectClosed,
    ProjectPaused,
    TerrineError,
)
from terrine_server.ledger import rows, secrets
from terrine_server.ledger.admission import REFUSED, Admission, Recorded, admit
from terrine_server.ledger.chain import (
    KIND_FIELDS,
    canonical_json,
    frame,
    hasher,
    publication_digest,
)
from terrine_server.ledger.events import entry_event
from terrine_server.ledger.records import (
    Batch,
    ProjectRecord,
    QueryDigest,
    Receipt,
    Result,
)
from terrine_server.ledger.tables import charges, idempotency, iso, projects

KEYS_KEPT = timedelta(days=7)
"""How long an idempotency key is remembered. The charges behind it are for ever, so a later retry
is still free; what is forgotten is only that the key was used."""
_CHUNK = 500


def _charged(
    kind: int, digest: ColumnElement[bytes], wanted: str, *also: ColumnElement[bool]
) -> Select[Any]:
    return select(
        literal(kind).label("kind"), digest, charges.c.seq, charges.c.outcome, charges.c.label
    ).where(
        charges.c.project_id == bindparam("project"),
        digest.in_(bindparam(wanted, expanding=True)),
        *also,
    )


# Made once: SQLAlchemy takes longer to make such statements than databases to answer them.
_ANSWERING = union_all(
    _charged(0, charges.c.query_digest, "queries"),
    _charged(
        1,
        charges.c.input_digest,
        "inputs",
        # Spelled out, not bound: that is how the index of answered inputs is recognised.
        charges.c.outcome == literal(str(Outcome.ANSWERED), literal_execute=True),
    ),
)
_LAST = (
    select(charges.c.seq, charges.c.hash)
    .where(charges.c.project_id == bindparam("project"))
    .order_by(charges.c.seq.desc())
    .limit(1)
)


def charge(
    connection: Connection, now: datetime, project_id: int, batches: Sequence[Batch]
) -> list[Receipt | TerrineError]:
    """See `Ledger.charge_group`. The connection's transaction must be able to write."""
    condition = projects.c.id == project_id
    project = rows.lock_project(connection, condition, f"number {project_id}")
    check_active(project)
    fates = recall(connection, project, [batch.key for batch in batches])
    for index, batch in enumerate(batches):
        if not batch.proposals:
            fates[index] = InvalidQuery("The batch is empty; at least one query is expected.")
        elif fates[index] is not None and any(p.epoch is not None for p in batch.proposals):
            # What was drawn for it decides where later epochs of the group start.
            raise Overtaken("Another request came first with one of these keys. Ask again.")
    fresh = [index for index, fate in enumerate(fates) if fate is None]
    if not fresh:
        return [fate for fate in fates if fate is not None]

    _check_head(connection, project)
    proposals = [proposal for index in fresh for proposal in batches[index].proposals]
    recorded = find(
        connection, project_id, [QueryDigest(p.query_digest, p.input_digest) for p in proposals]
    )
    tally = secrets.load_tally(connection, project)
    admission = admit(project.terms, project.account, recorded, proposals, tally)
    after = project
    if admission.entries:
        _append(connection, now, project, admission)
        if tally is not None:
            secrets.save_tally(connection, project, tally, admission.account.charges)
        after = rows.fetch_project(connection, condition, f"number {project_id}")
    if after.account != admission.account:
        raise BrokenBooks(f"The balance of project {project.name} did not come out as reckoned.")
    results = iter(admission.results)
    remembered = []
    for index in fresh:
        told = list(islice(results, len(batches[index].proposals)))
        if all(result is REFUSED for result in told):
            fates[index] = _exhausted(project)
            continue
        fates[index] = Receipt(told, after)
        key = batches[index].key
        if key is not None:
            remembered.append((*key, told))
    if remembered:
        _remember(connection, now, project_id, remembered)
    return [fate for fate in fates if fate is not None]


def check_active(project: ProjectRecord) -> None:
    """Raise ProjectPaused or ProjectClosed unless the project answers."""
    if project.status is ProjectStatus.PAUSED:
        raise ProjectPaused(f"The project {project.name} is paused. Ask the data owner, or later.")
    if project.status is ProjectStatus.CLOSED:
        raise ProjectClosed(f"The project {project.name} is closed and will not answer again.")


def find(connection: Connection, project_id: int, digests: Sequence[QueryDigest]) -> Recorded:
    """The project's charges that answer these queries."""
    queries, inputs = sorted({d.query for d in digests}), sorted({d.input for d in digests})
    by_query: dict[bytes, Result] = {}
    by_input: dict[bytes, Result] = {}
    for start in range(0, max(len(queries), len(inputs)), _CHUNK):
        part = slice(start, start + _CHUNK)
        given = {"project": project_id, "queries": queries[part], "inputs": inputs[part]}
        for kind, digest, seq, outcome, label in connection.execute(_ANSWERING, given):
            result = Result(Outcome(outcome), label, seq, replayed=True)
            (by_input if kind else by_query)[digest] = result
    return Recorded(by_query, by_input)


def recall(
    connection: Connection, project: ProjectRecord, keys: Sequence[tuple[str, bytes] | None]
) -> list[Receipt | TerrineError | None]:
    """See `Ledger.recall`."""
    names = [key[0] for key in keys if key is not None]
    if len(set(names)) < len(names):
        raise ValueError("requests with the same key go into groups of their own")
    known: dict[str, Any] = {}
    for start in range(0, len(names), _CHUNK):
        for row in connection.execute(
            select(idempotency).where(
                idempotency.c.project_id == project.id,
                idempotency.c.key.in_(names[start : start + _CHUNK]),
            )
        ):
            known[row.key] = row
    return [key and _recall(connection, project, *key, known.get(key[0])) for key in keys]


def _recall(
    connection: Connection, project: ProjectRecord, key: str, body_digest: bytes, row: Any
) -> Receipt | TerrineError | None:
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        return InvalidQuery("An Idempotency-Key is 1 to 255 printable ASCII characters.")
    if row is None:
        return None
    if row.body_digest != body_digest:
        return IdempotencyConflict(
            "This Idempotency-Key came before with a different request. "
            "Use a fresh key for every new request."
        )
    return Receipt(_recalled(connection, project.id, json.loads(row.results)), project)


def _exhausted(project: ProjectRecord) -> BudgetExhausted:
    return BudgetExhausted(
        f"The project {project.name} cannot pay for a new query: it has spent {project.spent} "
        f"of {project.terms.budget} units and one more costs up to {project.terms.worst.cost}.",
        spent=project.spent,
        budget=project.terms.budget,
    )


def _check_head(connection: Connection, project: ProjectRecord) -> None:
    """The last charge must be the one that the project's balance was reckoned with."""
    last = connection.execute(_LAST, {"project": project.id}).one_or_none()
    number, head = (last.seq, last.hash.hex()) if last else (0, project.genesis)
    if (number, head) != (project.charges, project.head):
        raise BrokenBooks(
            f"The last charge of project {project.name} is not the one its balance stands on; "
            f"nothing is answered. The server's operator should run "
            f"`terrine ledger verify {project.name}`."
        )


def _append(
    connection: Connection, now: datetime, project: ProjectRecord, admission: Admission
) -> None:
    head = bytes.fromhex(project.head)
    mechanism = canonical_json(project.mechanism)
    events = dict(project.events)
    if project.terms.schedule is not None:
        events[Outcome.PUBLISHED] = project.terms.schedule.publication.event.to_json()
    recorded = {
        (outcome, opens): canonical_json(entry_event(events, outcome, opens))
        for outcome, opens in {(new.outcome, new.opens) for new in admission.entries}
    }
    hashed, time, framed = hasher(project.id), iso(now), dict[tuple[Any, ...], bytes]()
    entries: list[dict[str, Any]] = []
    published: list[list[int | None]] = [[p.seq, p.figure] for p in project.published]
    for new in admission.entries:
        label = None
        if new.proposal is not None:
            query, input = new.proposal.query_digest, new.proposal.input_digest
            label = new.proposal.label
        else:
            query = input = publication_digest(project.genesis, len(published))
            published.append([new.seq, new.figure])
        kind = (
            *(str(new.outcome), label, new.figure),
            *(new.price.cost, new.price.delta, new.price.cap_cost),
            *(str(project.guarantee), mechanism, recorded[new.outcome, new.opens]),
        )
        if kind not in framed:
            framed[kind] = frame(*kind)
        head = hashed(head, new.seq, time, query, input, framed[kind])
        entries.append(
            {
                "project_id": project.id,
                "seq": new.seq,
                "created_at": now,
                "query_digest": query,
                "input_digest": input,
                "hash": head,
                **dict(zip(KIND_FIELDS, kind, strict=True)),
            }
        )
    connection.execute(insert(charges), entries)
    # The balance moves from exactly what was read under the lock.
    updated = connection.execute(
        update(projects)
        .where(projects.c.id == project.id, projects.c.charges == project.charges)
        .values(
            spent=projects.c.spent + admission.account.spent - project.spent,
            delta_spent=projects.c.delta_spent
            + admission.account.delta_spent
            - project.delta_spent,
            cap_spent=projects.c.cap_spent + admission.account.cap_spent - project.cap_spent,
            charges=projects.c.charges + len(entries),
            published=canonical_json(published),
            head=head,
        )
    )
    if updated.rowcount != 1:
        raise BrokenBooks(f"The project {project.name} was changed while it was locked.")


def _remember(
    connection: Connection,
    now: datetime,
    project_id: int,
    requests: Sequence[tuple[str, bytes, Sequence[Result]]],
) -> None:
    connection.execute(
        delete(idempotency).where(
            idempotency.c.project_id == project_id, idempotency.c.created_at < now - KEYS_KEPT
        )
    )

    def numbers(results: Sequence[Result]) -> list[int]:
        """A charge's number where it was paid, its negative where replayed, 0 where refused."""
        return [0 if r.seq is None else -r.seq if r.replayed else r.seq for r in results]

    connection.execute(
        insert(idempotency),
        [
            {
                "project_id": project_id,
                "key": key,
                "body_digest": body_digest,
                "results": canonical_json(numbers(results)),
                "created_at": now,
            }
            for key, body_digest, results in requests
        ],
    )


def _recalled(connection: Connection, project_id: int, numbers: Sequence[int]) -> list[Result]:
    wanted = sorted({abs(number) for number in numbers} - {0})
    by_seq: dict[int, Result] = {}
    for start in range(0, len(wanted), _CHUNK):
        for row in connection.execute(
            select(charges.c.seq, charges.c.outcome, charges.c.label).where(
                charges.c.project_id == project_id,
                charges.c.seq.in_(wanted[start : start + _CHUNK]),
            )
        ):
            by_seq[row.seq] = Result(Outcome(row.outcome), row.label, row.seq, replayed=False)
    return [
        replace(by_seq[abs(number)], replayed=number < 0) if number else REFUSED
        for number in numbers
    ]
