"""Paying for answers: one transaction for the batches of one project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Connection, bindparam, update

from terrine_client.protocol import Outcome, ProjectStatus
from terrine_server.errors import (
    BrokenBooks,
    BudgetExhausted,
    InvalidQuery,
    Overtaken,
    ProjectClosed,
    ProjectPaused,
    TerrineError,
)
from terrine_server.ledger import secrets
from terrine_server.ledger.admission import REFUSED, Admission, admit
from terrine_server.ledger.chain import canonical_json, frame, hasher, publication_digest
from terrine_server.ledger.earlier import find, recall, remember
from terrine_server.ledger.entries import append
from terrine_server.ledger.events import entry_event
from terrine_server.ledger.records import Batch, ProjectRecord, QueryDigest, Receipt
from terrine_server.ledger.rows import publications
from terrine_server.ledger.tables import iso, projects

# From exactly what was read under the lock.
_MOVE = (
    update(projects)
    .where(
        projects.c.id == bindparam("project"),
        projects.c.charges == bindparam("from_charges"),
        projects.c.head == bindparam("from_head"),
    )
    .values(
        {
            name: bindparam(f"to_{name}")
            for name in ("spent", "delta_spent", "cap_spent", "charges", "published", "head")
        }
    )
)


def charge(
    connection: Connection, now: datetime, project: ProjectRecord, batches: Sequence[Batch]
) -> list[Receipt | TerrineError]:
    """See `Ledger.charge_group`. The transaction must hold the project."""
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

    proposals = [proposal for index in fresh for proposal in batches[index].proposals]
    digests = [QueryDigest(p.query_digest, p.input_digest) for p in proposals]
    recorded = find(connection, project, digests, held=True)
    tally = secrets.load_tally(connection, project)
    admission = admit(project.terms, project.account, recorded, proposals, tally)
    after = project
    if admission.entries:
        after = _append(connection, now, project, admission)
        if tally is not None:
            secrets.save_tally(connection, project, tally, after.charges)
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
        remember(connection, now, project.id, remembered)
    return [fate for fate in fates if fate is not None]


def check_active(project: ProjectRecord) -> None:
    """Raise ProjectPaused or ProjectClosed unless the project answers."""
    if project.status is ProjectStatus.PAUSED:
        raise ProjectPaused(f"The project {project.name} is paused. Ask the data owner, or later.")
    if project.status is ProjectStatus.CLOSED:
        raise ProjectClosed(f"The project {project.name} is closed and will not answer again.")


def _exhausted(project: ProjectRecord) -> BudgetExhausted:
    return BudgetExhausted(
        f"The project {project.name} cannot pay for a new query: it has spent {project.spent} "
        f"of {project.terms.budget} units and one more costs up to {project.terms.worst.cost}.",
        spent=project.spent,
        budget=project.terms.budget,
    )


def _append(
    connection: Connection, now: datetime, project: ProjectRecord, admission: Admission
) -> ProjectRecord:
    """Append the entries of an admission, move the balance, and return the project after that."""
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
    entries: list[tuple[Any, ...]] = []
    published: list[tuple[int, Any]] = [(p.seq, p.figure) for p in project.published]
    for new in admission.entries:
        label = None
        if new.proposal is not None:
            query, input = new.proposal.query_digest, new.proposal.input_digest
            label = new.proposal.label
        else:
            query = input = publication_digest(project.genesis, len(published))
            published.append((new.seq, new.figure))
        kind = (
            *(str(new.outcome), label, new.figure),
            *(new.price.cost, new.price.delta, new.price.cap_cost),
            *(str(project.guarantee), mechanism, recorded[new.outcome, new.opens]),
        )
        if kind not in framed:
            framed[kind] = frame(*kind)
        head = hashed(head, new.seq, time, query, input, framed[kind])
        entries.append((project.id, new.seq, now, query, input, *kind, head))
    append(connection, entries)
    account = admission.account
    after = replace(
        project,
        spent=account.spent,
        delta_spent=account.delta_spent,
        cap_spent=account.cap_spent,
        charges=account.charges,
        published=publications(published),
        head=head.hex(),
    )
    moved = connection.execute(
        _MOVE,
        {
            "project": project.id,
            "from_charges": project.charges,
            "from_head": bytes.fromhex(project.head),
            "to_spent": after.spent,
            "to_delta_spent": after.delta_spent,
            "to_cap_spent": after.cap_spent,
            "to_charges": after.charges,
            "to_published": canonical_json(published),
            "to_head": head,
        },
    )
    if moved.rowcount != 1:
        raise BrokenBooks(f"The project {project.name} was changed while it was locked.")
    return after
