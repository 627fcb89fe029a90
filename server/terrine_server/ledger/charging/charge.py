"""Pays for batches, those of one project at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain, islice
from typing import Any

from terrine_protocol import ProjectStatus
from terrine_server.errors import (
    BudgetExhausted,
    InvalidQuery,
    ProjectClosed,
    ProjectPaused,
    TerrineError,
)
from terrine_server.ledger.administration import Action, Actor
from terrine_server.ledger.chain import (
    frame_counts,
    frame_kind,
    hasher,
    iso,
    publication_digest,
)
from terrine_server.ledger.charging import shadow_accounts, tallies, unit_accounts
from terrine_server.ledger.charging.admission import REFUSED, Admission, admit
from terrine_server.ledger.charging.appending import append
from terrine_server.ledger.counts import check_counts, text_of
from terrine_server.ledger.records import (
    ChargedBatch,
    EntryFields,
    Payment,
    ProjectRecord,
    ProjectSnapshot,
    Proposal,
    Result,
    SpentAccounts,
)
from terrine_server.ledger.store.log import record as record_log
from terrine_server.ledger.store.rows import publications
from terrine_server.ledger.store.transaction import Transaction

SERVICE = Actor("service")
"""Publishes figures when they are due, whoever asked last."""


class StaleRecord(Exception):  # noqa: N818 - not an error: it is tried again
    """Other charges came in between; nothing was written."""


def charge(
    tx: Transaction,
    record: ProjectSnapshot,
    batches: Sequence[Sequence[Proposal]],
    cast: SpentAccounts | None = None,
    payers: Sequence[str | None] | None = None,
) -> tuple[ProjectRecord, list[ChargedBatch | TerrineError]]:
    """Pay for the batches that `record` is about; return the project after them, and the answers.

    See `Payments.charge_group`. Raises StaleRecord if the project is no longer as in `record`. A
    project with a tally must be locked: its tally is read and written separately from its balance.
    One whose units have accounts is paid for only together with what was `cast`, in one
    transaction. `payers`: by batch, the id of the token that asks.
    """
    project = record.project
    check_active(project)
    proposals = list(chain.from_iterable(batches))
    known = record.recorded.find
    new = any(known(p.query_digest, p.input_digest) is None for p in proposals)
    tally = tallies.load_tally(tx.connection, tx.seals, project) if new else None
    admission = admit(project.terms, project.account, record.recorded, proposals, tally)
    after, entries = _entries(tx.now, project, admission)
    if project.terms.allowance is not None and (entries or cast is not None):
        unit_accounts.check_cast(project, len(entries), cast)
    results = _with_hashes(admission.results, entries)
    answers: list[ChargedBatch | TerrineError] = []
    payments: list[Payment] = []
    for batch, payer in zip(batches, payers or [None] * len(batches), strict=True):
        of_batch = list(islice(results, len(batch)))
        if not batch:
            answers.append(InvalidQuery("The batch is empty; at least one query is expected."))
        elif all(result is REFUSED for result in of_batch):
            answers.append(_exhausted(after))
        else:
            answers.append(ChargedBatch(of_batch, after))
        paid = [result.seq for result in of_batch if result.seq and not result.replayed]
        if paid and payer is not None:
            payments.append(Payment(paid[0], paid[-1], payer))
    if entries and not append(tx, project, after, entries, payments):
        raise StaleRecord
    if entries and tally is not None:
        tallies.save_tally(tx.connection, tx.seals, project, tally, after.charges)
    if entries and cast is not None:
        unit_accounts.save(tx, after, cast.accounts)
        shadow_accounts.save(tx, after, cast.shadows)
    for publication in after.published[len(project.published) :]:
        record_log(
            replace(tx, by=SERVICE),
            Action.FIGURE_PUBLISHED,
            project.name,
            {"charge": publication.seq, "figure": publication.figure},
        )
    return after, answers


def check_active(project: ProjectRecord) -> None:
    """Raise ProjectPaused or ProjectClosed unless the project answers."""
    if project.status is ProjectStatus.PAUSED:
        raise ProjectPaused(f"The project {project.name} is paused. Ask the data owner, or later.")
    if project.status is ProjectStatus.CLOSED:
        raise ProjectClosed(f"The project {project.name} is closed and will not answer again.")


def _exhausted(project: ProjectRecord) -> BudgetExhausted:
    budget = project.terms.budget
    if project.terms.allowance is not None:
        return BudgetExhausted(
            f"The project {project.name} answers {project.terms.allowance.queries} new queries, as "
            "its terms say, and they have been asked.",
            spent=project.spent,
            budget=budget,
        )
    return BudgetExhausted(
        f"The project {project.name} cannot pay for a new query: {project.spent / budget:.4%} of "
        f"its budget is spent, and one more costs up to {project.terms.worst.cost / budget:.4%}.",
        spent=project.spent,
        budget=budget,
    )


def _with_hashes(results: Sequence[Result], entries: Sequence[tuple[Any, ...]]) -> Iterator[Result]:
    """Yield the results, those of new entries with their hashes."""
    hashes = {entry[0]: entry[-1].hex() for entry in entries}
    for result in results:
        made = hashes.get(result.seq)
        yield result if made is None else replace(result, hash=made)


def _entries(
    now: datetime, project: ProjectRecord, admission: Admission
) -> tuple[ProjectRecord, list[tuple[Any, ...]]]:
    """Return the project after an admission, and its entries in the form that `append` takes.

    Raises ValueError for noisy counts that are not charged for, or missing where they are.
    """
    if not admission.entries:
        return project, []
    head = bytes.fromhex(project.head)
    kinds, hashed, time = EntryFields(project), hasher(project.id), iso(now)
    entries: list[tuple[Any, ...]] = []
    published: list[tuple[int, Any]] = [(p.seq, p.figure) for p in project.published]
    for new in admission.entries:
        label = counts = None
        if new.proposal is not None:
            query, input = new.proposal.query_digest, new.proposal.input_digest
            label, counts = new.proposal.label, text_of(new.proposal.counts)
            check_counts(new.proposal.counts, label, project.counts_due(new.outcome))
        else:
            query = input = publication_digest(project.genesis, len(published))
            published.append((new.seq, new.figure))
        kind = kinds.fields(new.outcome, new.price, label, new.figure, baseline=new.baseline)
        framed = frame_kind(*kind) + frame_counts(counts)
        head = hashed(head, new.seq, time, query, input, framed)
        entries.append((new.seq, query, input, *kind, counts, head))
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
    return after, entries
