"""Pays for batches, those of one project at a time."""

# ruff: noqa: S608 - statements are made of constants

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, islice
from typing import Any

from sqlalchemy import Connection, Table, text
from sqlalchemy.dialects import postgresql

from terrine_protocol import Outcome, ProjectStatus
from terrine_server.errors import (
    BudgetExhausted,
    ConcurrentUpdate,
    DatabaseUnavailable,
    InvalidQuery,
    LedgerCorrupted,
    ProjectClosed,
    ProjectPaused,
    ServiceError,
)
from terrine_server.ledger import accounts, log, rows, tallies
from terrine_server.ledger.chain import (
    CHARGE_FIELDS,
    Action,
    Actor,
    canonical_json,
    check_counts,
    counts_as_text,
    frame_counts,
    frame_kind,
    hasher,
    iso,
    publication_digest,
    release_digest,
)
from terrine_server.ledger.database import Access, Transaction, check_written
from terrine_server.ledger.records import (
    ChargedBatch,
    EntryFields,
    Payment,
    ProjectRecord,
    ProjectSnapshot,
    Proposal,
    QueryDigest,
    RecordedCharges,
    Result,
    SpentAccounts,
    TokenRecord,
)
from terrine_server.ledger.replays import look_up
from terrine_server.ledger.rows import ProjectCache, publications
from terrine_server.ledger.schema import charges, payments
from terrine_server.ledger.tokens import check_unchanged
from terrine_server.privacy import Account, Accounts, Price, Terms

REFUSED = Result(Outcome.REFUSED, label=None, seq=None, replayed=False)
EXHAUSTED = Result(Outcome.EXHAUSTED, label=None, seq=None, replayed=False)


@dataclass(frozen=True)
class NewEntry:
    """A new entry, numbered `seq`: the charge for a query's `proposal`, or a published `figure`.

    `baseline`: that of its price list.
    """

    seq: int
    outcome: Outcome
    price: Price
    proposal: Proposal | None = None
    figure: int | None = None
    baseline: int = 0


@dataclass(frozen=True)
class Admission:
    """The decision on a batch: results in order, new entries, and the account after them."""

    results: Sequence[Result]
    entries: Sequence[NewEntry]
    account: Account


def admit(
    terms: Terms,
    account: Account,
    recorded: RecordedCharges,
    proposals: Sequence[Proposal],
    secret: tallies.SecretTally | None = None,
) -> Admission:
    """Decide on each query of a batch, in order.

    A query that is on record, or that came earlier in this batch, is replayed. A new one is paid as
    long as one more with its baseline is certain to fit, at the worst price. From the first new one
    that does not fit, or that was not voted on, all new ones are refused. One that is exhausted
    costs nothing, and is so while another could be paid for. For a data-dependent
    project, a figure of its `secret` spend is published wherever the terms say. Raises ValueError
    for an outcome that is not on the price list: nothing unpriced is ever released.
    """
    queries, answered_inputs = dict(recorded.queries), dict(recorded.answered_inputs)
    known = RecordedCharges(queries, answered_inputs)
    results: list[Result] = []
    entries: list[NewEntry] = []
    refusing = False
    for proposal in proposals:
        earlier = known.find(proposal.query_digest, proposal.input_digest)
        if earlier is not None:
            results.append(replace(earlier, replayed=True))
            continue
        baseline = terms.priced_baseline(proposal.baseline)
        fits = terms.admits(account, baseline)
        if proposal.exhausted and fits:
            results.append(EXHAUSTED)
            continue
        refusing = refusing or proposal.outcome is None or not fits
        if refusing or proposal.outcome is None:
            results.append(REFUSED)
            continue
        if proposal.outcome not in terms.prices:
            raise ValueError(f"{proposal.outcome!r} is not on the project's price list")
        outcome, price = Outcome(proposal.outcome), terms.price(proposal.outcome, baseline)
        account = terms.capped(account.plus(price))
        result = Result(outcome, proposal.label, account.charges, False, proposal.counts)
        queries[proposal.query_digest] = result
        if outcome is Outcome.ANSWERED:
            answered_inputs[proposal.input_digest] = result
        results.append(result)
        entries.append(
            NewEntry(
                account.charges,
                outcome,
                price,
                proposal=proposal,
                baseline=baseline,
            )
        )
        if secret is not None:
            secret.add(proposal.places)
            if terms.schedule is not None and terms.due(account):
                figure = secret.publish(terms.bound(account))
                account = terms.after_publishing(account, figure)
                price = terms.schedule.price
                entries.append(NewEntry(account.charges, Outcome.PUBLISHED, price, figure=figure))
    return Admission(results, entries, account)


# The columns in an entry's tuple; project and time are the same for all entries of a charge.
APPENDED_COLUMNS = ("seq", "query_digest", "input_digest", *CHARGE_FIELDS[5:], "counts", "hash")

PAYMENT_COLUMNS = ("first_seq", "last_seq", "token_id", "seal")

_MOVE = f"""
    UPDATE projects SET spent = :spent, delta_spent = :delta_spent, cap_spent = :cap_spent,
        charges = :charges, published = :published, head = :head, seal = :seal
    WHERE id = :project AND status = '{ProjectStatus.ACTIVE}'
        AND charges = :from_charges AND head = :from_head AND seal = :from_seal
"""


def append(
    tx: Transaction,
    before: ProjectRecord,
    after: ProjectRecord,
    entries: Sequence[Sequence[Any]],
    paid: Sequence[Payment] = (),
) -> bool:
    """Append entries (tuples of `APPENDED_COLUMNS`, at least one) and who paid; update the balance.

    Returns False, and writes nothing, if the project is not active or no longer as `before` because
    of other charges. Raises LedgerCorrupted (on PostgreSQL: DataError) if the database ignored a
    part; nothing is written then either, once the transaction, if there is one, is rolled back.
    """
    balance = {
        "spent": after.spent,
        "delta_spent": after.delta_spent,
        "cap_spent": after.cap_spent,
        "charges": after.charges,
        "published": canonical_json([(p.seq, p.figure) for p in after.published]),
        "head": bytes.fromhex(after.head),
    }
    fixed = {
        "id": before.id,
        "name": before.name,
        "genesis": bytes.fromhex(before.genesis),
        "status": ProjectStatus.ACTIVE,
        "closed_at": None,
    }
    move = {
        **balance,
        "project": before.id,
        "from_charges": before.charges,
        "from_head": bytes.fromhex(before.head),
        "from_seal": before.seal,
        "seal": tx.seals.of("projects", {**fixed, **balance}),
    }
    write = _in_sqlite if tx.connection.dialect.name == "sqlite" else _in_postgresql
    return write(
        tx.connection, tx.now, move, entries, [_seal_payment(tx, before.id, p) for p in paid]
    )


def _seal_payment(tx: Transaction, project_id: int, payment: Payment) -> tuple[Any, ...]:
    """Return a payment as a tuple of `PAYMENT_COLUMNS`."""
    row = payment.first, payment.last, payment.token
    return *row, tx.seals.over("payments", (project_id, *row))


def _in_sqlite(
    connection: Connection,
    now: datetime,
    move: Mapping[str, Any],
    entries: Sequence[Sequence[Any]],
    paid: Sequence[Sequence[Any]],
) -> bool:
    if connection.exec_driver_sql(_MOVE, dict(move)).rowcount != 1:
        return False
    new_charges = [(move["project"], iso(now), *entry) for entry in entries]
    check_written(
        connection.exec_driver_sql(_SQLITE_APPEND, new_charges).rowcount, len(new_charges)
    )
    if paid:
        new_payments = [(move["project"], *payment) for payment in paid]
        check_written(
            connection.exec_driver_sql(_SQLITE_PAYMENTS, new_payments).rowcount, len(paid)
        )
    return True


_NAMES = ", ".join(APPENDED_COLUMNS)
_SQLITE_APPEND = (
    f"INSERT INTO charges (project_id, created_at, {_NAMES}) "
    f"VALUES ({', '.join('?' * (2 + len(APPENDED_COLUMNS)))})"
)
_PAYMENT_NAMES = ", ".join(PAYMENT_COLUMNS)
_SQLITE_PAYMENTS = (
    f"INSERT INTO payments (project_id, {_PAYMENT_NAMES}) "
    f"VALUES ({', '.join('?' * (1 + len(PAYMENT_COLUMNS)))})"
)


def _in_postgresql(
    connection: Connection,
    now: datetime,
    move: Mapping[str, Any],
    entries: Sequence[Sequence[Any]],
    paid: Sequence[Sequence[Any]],
) -> bool:
    given = {
        **move,
        "now": now,
        "entries": len(entries),
        "payments": len(paid),
        **_parameters("", APPENDED_COLUMNS, entries),
        **_parameters("paid_", PAYMENT_COLUMNS, paid),
    }
    return connection.execute(_CHARGE, given).one_or_none() is not None


def _parameters(prefix: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a list of the values of each column. `prefix`: of their names."""
    return {f"{prefix}{name}": [row[at] for row in rows] for at, name in enumerate(names)}


def _source(prefix: str, table: Table, names: Sequence[str]) -> str:
    """Return the rows that are given as arrays, as SQL. `prefix`: of the parameters' names."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    types = {name: table.c[name].type.compile(dialect) for name in names}
    arrays = (f"CAST(:{prefix}{name} AS {type}[])" for name, type in types.items())
    return f"unnest({', '.join(arrays)}) AS given ({', '.join(names)})"


# The statement commits by itself, so it must fail as a whole if a part of it was ignored.
_CHARGE = text(
    f"""WITH moved AS ({_MOVE} RETURNING id),
    appended AS (
        INSERT INTO charges (project_id, created_at, {_NAMES})
        SELECT moved.id, :now, {_NAMES}
        FROM moved CROSS JOIN {_source("", charges, APPENDED_COLUMNS)} RETURNING 1
    ),
    paid AS (
        INSERT INTO payments (project_id, {_PAYMENT_NAMES})
        SELECT moved.id, {_PAYMENT_NAMES}
        FROM moved CROSS JOIN {_source("paid_", payments, PAYMENT_COLUMNS)} RETURNING 1
    )
    SELECT id, 1 / CASE WHEN (SELECT count(*) FROM appended) = CAST(:entries AS bigint)
        AND (SELECT count(*) FROM paid) = CAST(:payments AS bigint) THEN 1 ELSE 0 END
    FROM moved
    """
)


def charge_release(tx: Transaction, project: ProjectRecord) -> None:
    """Charge what a project begins with, in the transaction that opens it.

    Raises ValueError for one that begins with nothing, and LedgerCorrupted if the database ignored
    a part.
    """
    if project.terms.release is None:
        raise ValueError("the project begins with nothing")
    start, query = project.terms.start, release_digest(project.genesis)
    kind = EntryFields(project).fields(Outcome.RELEASED, project.terms.release.price, None)
    head = hasher(project.id)(
        bytes.fromhex(project.genesis), 1, iso(tx.now), query, query, frame_kind(*kind)
    )
    after = _with_account(project, start, head)
    if not append(tx, project, after, [(1, query, query, *kind, None, head)]):
        raise LedgerCorrupted("The database ignored what was written to it.", project.name)


# Publishes figures when they are due, whoever asked last.
SERVICE = Actor("service")


# A project after some batches were paid for, and the answer to each.
_Settlement = tuple[ProjectRecord, list[ChargedBatch | ServiceError]]


def settle(
    tx: Transaction,
    record: ProjectSnapshot,
    batches: Sequence[Sequence[Proposal]],
    cast: SpentAccounts | None = None,
    payers: Sequence[str | None] | None = None,
) -> _Settlement:
    """Pay for the batches that `record` is about; return the project after them, and the answers.

    See `Charging.charge`. Raises ConcurrentUpdate if the project is no longer as in `record`. A
    project with a tally must be locked: its tally is read and written separately from its balance.
    One whose units have accounts is paid for only together with what was `cast`, in one
    transaction. `payers`: by batch, the id of the token that asks.
    """
    project = record.project
    check_active(project)
    proposals = list(chain.from_iterable(batches))
    known = record.recorded.find
    metered = project.terms.schedule is not None
    new = metered and any(known(p.query_digest, p.input_digest) is None for p in proposals)
    tally = tallies.load_tally(tx.connection, tx.seals, project) if new else None
    admission = admit(project.terms, project.account, record.recorded, proposals, tally)
    after, entries = _entries(tx.now, project, admission)
    if project.terms.allowance is not None and (entries or cast is not None):
        accounts.check_cast(project, len(entries), cast)
    results = _with_hashes(admission.results, entries)
    answers: list[ChargedBatch | ServiceError] = []
    new_payments: list[Payment] = []
    for batch, payer in zip(batches, payers or [None] * len(batches), strict=True):
        of_batch = list(islice(results, len(batch)))
        if not batch:
            answers.append(InvalidQuery("The batch is empty; at least one query is expected."))
        elif all(result is REFUSED for result in of_batch):
            answers.append(_make_exhausted_error(after))
        else:
            answers.append(ChargedBatch(of_batch, after))
        paid = [result.seq for result in of_batch if result.seq and not result.replayed]
        if paid and payer is not None:
            new_payments.append(Payment(paid[0], paid[-1], payer))
    if entries and not append(tx, project, after, entries, new_payments):
        raise ConcurrentUpdate
    if entries and tally is not None:
        tallies.save_tally(tx, after, tally)
    if entries and cast is not None:
        accounts.save_unit_accounts(tx, after, cast.accounts)
        accounts.save_shadow_accounts(tx, after, cast.shadows)
    for publication in after.published[len(project.published) :]:
        log.record(
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


def _make_exhausted_error(project: ProjectRecord) -> BudgetExhausted:
    budget = project.terms.budget
    if project.terms.allowance is not None:
        return BudgetExhausted(
            f"The project {project.name} answers {project.terms.allowance.queries} new queries, as "
            "its terms say, and they have been asked.",
            spent=project.spent,
            budget=budget,
        )
    if not project.terms.prices:
        return BudgetExhausted(
            f"The project {project.name} pays for nothing but what it began with, from which its "
            "labels follow.",
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
            label, counts = new.proposal.label, counts_as_text(new.proposal.counts)
            check_counts(new.proposal.counts, label, project.counts_due(new.outcome))
        else:
            query = input = publication_digest(project.genesis, len(published))
            published.append((new.seq, new.figure))
        kind = kinds.fields(new.outcome, new.price, label, new.figure, baseline=new.baseline)
        framed = frame_kind(*kind) + frame_counts(counts)
        head = hashed(head, new.seq, time, query, input, framed)
        entries.append((new.seq, query, input, *kind, counts, head))
    after = _with_account(project, admission.account, head)
    return replace(after, published=publications(published, project.terms)), entries


def _with_account(project: ProjectRecord, account: Account, head: bytes) -> ProjectRecord:
    """Return the project with this balance, after the entry of this hash."""
    return replace(
        project,
        spent=account.spent,
        delta_spent=account.delta_spent,
        cap_spent=account.cap_spent,
        charges=account.charges,
        head=head.hex(),
    )


class Charging:
    """Looks up what is on record for queries, and charges for what is not. Thread-safe."""

    def __init__(self, access: Access, cache: ProjectCache) -> None:
        self._access, self._cache = access, cache
        # By project: its number of charges after the last one made here. Older records are stale.
        self._charged: dict[int, int] = {}

    def look_up(
        self,
        project: str,
        digests: Sequence[QueryDigest],
        tokens: Collection[TokenRecord] = (),
    ) -> ProjectSnapshot:
        """Return a project's account and what is on record for queries to it. Locks nothing.

        `tokens`: those by which they came. Raises TokenChanged if any of these is not as it is in
        the ledger, and NotFound.
        """
        with self._access.reading() as connection:
            check_unchanged(connection, self._access.seals, tokens)
            return look_up(connection, self._cache, project, digests)

    def unit_accounts(self, project: ProjectRecord) -> Accounts:
        """Return what each unit has spent in a project as it was looked up, uint32[U]. Secret.

        Raises ConcurrentUpdate if the project has moved since, and LedgerCorrupted, also if it has
        fewer charges than this process has made: then an older backup was restored.
        """
        made = self._charged.get(project.id, 0)
        with self._access.reading() as connection:
            found = accounts.load_unit_accounts(connection, self._access.seals, project)
        if project.charges < made:
            raise LedgerCorrupted(
                f"The project {project.name} is older than its last charge: a backup was restored. "
                "Run `terrine ledger restored`.",
                project.name,
            )
        return found

    def shadow_accounts(self, project: ProjectRecord, count: int | None = None) -> Accounts:
        """Return what public points would have spent in a project as it was looked up, uint32[S].

        `count`: how many there are, before the first charge. Raises ConcurrentUpdate if the project
        has moved since, and LedgerCorrupted.
        """
        with self._access.reading() as connection:
            seals = self._access.seals
            return accounts.load_shadow_accounts(connection, seals, project, count or 0)

    def charge(
        self,
        project_id: int,
        batches: Sequence[Sequence[Proposal]],
        record: ProjectSnapshot | None = None,
        cast: SpentAccounts | None = None,
        payers: Sequence[str | None] | None = None,
    ) -> list[ChargedBatch | ServiceError]:
        """Pay for the batches of several requests, in order, in one transaction, which is durable
        once this returns.

        A query that was paid before, or that occurs twice, is replayed for free. New ones are paid
        in order while one more at the worst price is certain to fit; then all new ones are refused.
        Returns for each batch its receipt, or the error of that one alone: InvalidQuery (no query),
        or BudgetExhausted when every query was refused. It does not affect the others.

        `record`: what `look_up` returned for them; it is looked up again only if it is out of date.
        `cast`: for a project of `neighbours`, the accounts that belong to its proposals; with
        `record`, which is never looked up again then. `payers`: by batch, the id of the token that
        asks, which is stored with what it pays for. Raises what concerns all of them:
        ProjectPaused, ProjectClosed, ConcurrentUpdate (accounts were cast, and the project has
        moved), DatabaseUnavailable (also if the project is not the one in `record`).
        """
        settled: _Settlement | None
        if cast is not None and record is not None:
            settled = self._charge_cast(batches, record, cast, payers)
        else:
            settled = self._charge_unlocked(project_id, batches, record, payers)
            if settled is None:
                settled = self._charge_locked(project_id, batches, record, payers)
        project, answers = settled
        self._charged[project_id] = project.charges
        return answers

    def _charge_cast(
        self,
        batches: Sequence[Sequence[Proposal]],
        record: ProjectSnapshot,
        cast: SpentAccounts,
        payers: Sequence[str | None] | None,
    ) -> _Settlement:
        """Charge, and save the accounts in the same transaction; all of it, or nothing."""
        with self._access.writing() as tx:
            tx.connection.execute(rows.LOCK_PROJECT, {"id": record.project.id})
            return settle(tx, record, batches, cast, payers)

    def _charge_unlocked(
        self,
        project_id: int,
        batches: Sequence[Sequence[Proposal]],
        record: ProjectSnapshot | None,
        payers: Sequence[str | None] | None,
    ) -> _Settlement | None:
        """Charge by what was read without a lock.

        Returns None, with nothing charged, if that is stale, or contradicts the ledger.
        """
        if record is None or record.project.charges < self._charged.get(project_id, 0):
            with self._access.reading() as connection:
                record = self._look_up_again(connection, project_id, batches, record)
        known = record.recorded.find
        pays = any(
            proposal.outcome is not None
            and known(proposal.query_digest, proposal.input_digest) is None
            for batch in batches
            for proposal in batch
        )
        if pays and record.project.terms.schedule is not None:
            return None  # a tally must be locked first
        with suppress(ConcurrentUpdate, LedgerCorrupted):
            with self._access.appending(writes=pays) as tx:
                settled = settle(tx, record, batches, payers=payers)
            return settled  # only after the commit, which may raise LedgerCorrupted, too
        return None

    def _charge_locked(
        self,
        project_id: int,
        batches: Sequence[Sequence[Proposal]],
        record: ProjectSnapshot | None,
        payers: Sequence[str | None] | None,
    ) -> _Settlement:
        """Lock the project, look it up, and charge."""
        with self._access.writing() as tx:
            tx.connection.execute(rows.LOCK_PROJECT, {"id": project_id})
            current = self._look_up_again(tx.connection, project_id, batches, record)
            try:
                return settle(tx, current, batches, payers=payers)
            except ConcurrentUpdate:  # nobody can have moved it: it is locked
                raise LedgerCorrupted(
                    "The database ignored what was written to it.", current.project.name
                ) from None

    def _look_up_again(
        self,
        connection: Connection,
        project_id: int,
        batches: Sequence[Sequence[Proposal]],
        before: ProjectSnapshot | None,
    ) -> ProjectSnapshot:
        """Look up the project that proposals were made for; `before`: as it was then."""
        digests = [QueryDigest(p.query_digest, p.input_digest) for batch in batches for p in batch]
        found = look_up(connection, self._cache, project_id, digests)
        if before is not None and found.project.genesis != before.project.genesis:
            # The same id, but other terms: the outcomes were drawn for another project.
            raise DatabaseUnavailable(
                "The ledger was replaced by another one. Send the request again."
            )
        return found
