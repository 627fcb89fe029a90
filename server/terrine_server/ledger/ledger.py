"""The ledger: what was promised, and what was paid for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from terrine_protocol import Outcome, ProjectStatus, Role
from terrine_server.errors import BrokenBooks, Conflict, DatabaseUnavailable, NotFound, TerrineError
from terrine_server.ledger import accounts
from terrine_server.ledger.anchors import Anchor
from terrine_server.ledger.charging import charge as charging
from terrine_server.ledger.charging import earlier, tallies
from terrine_server.ledger.records import (
    Batch,
    ChargeRecord,
    EnsembleRecord,
    OnRecord,
    ProjectRecord,
    Proposal,
    QueryDigest,
    Receipt,
    SecretAccount,
    TokenRecord,
    Verification,
)
from terrine_server.ledger.store import rows
from terrine_server.ledger.store.database import appending, reading, snapshot, writing
from terrine_server.ledger.store.tables import charges, ensembles, projects, tokens
from terrine_server.ledger.verifying import archive
from terrine_server.ledger.verifying.walk import Progress, verify_project
from terrine_server.privacy import Cap, Terms

_PAGE = 1000


class Ledger:
    """Ensembles, projects, charges and tokens in one database. Safe to share between threads.

    What a method writes is one transaction. Methods that write lock what they touch, ensemble
    before project, and a charge applies only if nobody changed the account since it was looked up:
    no interleaving of threads, processes or machines overspends a budget or a cap. Any method
    raises DatabaseUnavailable when the database cannot be reached or is busy for too long, and
    BrokenBooks when it contradicts itself; nothing is then half-written."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._accounts = rows.KnownProjects()
        # Charges of a project when one was last paid here: what was read before is out of date.
        self._charged: dict[int, int] = {}

    # ------------------------------------------------------------------ ensembles

    def register_ensemble(
        self,
        name: str,
        path: str,
        manifest_sha256: str,
        info: Mapping[str, Any],
        records: int,
        cap: Cap,
    ) -> EnsembleRecord:
        """Enter an ensemble under a name, with the cap that all its projects will share.

        `info` is what students may know of it (kind, input, classes, teachers); `records` is the
        number of training records. Raises InvalidTerms when the cap's δ is 1/records or more,
        Conflict when the name, or the same manifest under another name, is registered already.
        """
        with writing(self._engine) as connection:
            return accounts.register_ensemble(
                connection, _now(), name, path, manifest_sha256, info, records, cap
            )

    def ensembles(self) -> list[EnsembleRecord]:
        """Return all ensembles, by name."""
        with reading(self._engine) as connection:
            return [rows.ensemble_record(r) for r in connection.execute(rows.select_ensembles())]

    def ensemble(self, name: str) -> EnsembleRecord:
        """Return one ensemble. Raises NotFound."""
        with reading(self._engine) as connection:
            query = rows.select_ensembles().where(ensembles.c.name == name)
            row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no ensemble called {name}.")
        return rows.ensemble_record(row)

    # ------------------------------------------------------------------- projects

    def open_project(
        self, name: str, ensemble_name: str, mechanism: Mapping[str, Any], terms: Terms
    ) -> ProjectRecord:
        """Open a project and reserve its budget from the ensemble's cap.

        `mechanism` is the specification that `terms` were quoted for. Raises NotFound, Conflict
        when the name is taken, InvalidTerms when δ is 1/records or more or the terms are not the
        mechanism's, CapExceeded when the cap does not allow the budget.
        """
        with writing(self._engine) as connection:
            return accounts.open_project(connection, _now(), name, ensemble_name, mechanism, terms)

    def project(self, name: str) -> ProjectRecord:
        """Return one project. Raises NotFound."""
        with reading(self._engine) as connection:
            return rows.fetch_project(connection, projects.c.name == name, f"called {name}")

    def remembered(self, name: str) -> ProjectRecord:
        """Return one project for what is fixed of it: all else is as it was when it was first read.

        Asks the database at most once. Raises NotFound.
        """
        found = self._accounts.remembered(name)
        return self._accounts.remember(self.project(name)) if found is None else found

    def projects(
        self,
        after: str | None = None,
        limit: int = 100,
        ensemble: str | None = None,
        status: ProjectStatus | None = None,
    ) -> list[ProjectRecord]:
        """Return up to `limit` projects by name, those after `after`."""
        query = rows.select_projects().limit(limit)
        if after is not None:
            query = query.where(projects.c.name > after)
        if ensemble is not None:
            query = query.where(ensembles.c.name == ensemble)
        if status is not None:
            query = query.where(projects.c.status == status)
        with reading(self._engine) as connection:
            return [rows.project_record(row) for row in connection.execute(query)]

    def project_names(self) -> list[str]:
        """Return the names of all projects, readable or not: what `verify` can be asked about."""
        names = select(projects.c.name).order_by(projects.c.name)
        with reading(self._engine) as connection:
            return list(connection.execute(names).scalars())

    def set_status(self, name: str, status: ProjectStatus) -> ProjectRecord:
        """Pause, resume or close a project.

        Closing is final and returns to the cap what was not spent. Raises NotFound, and Conflict
        when a closed project would be reopened.
        """
        with writing(self._engine) as connection:
            return accounts.set_status(connection, _now(), name, ProjectStatus(status))

    # -------------------------------------------------------------------- charges

    def consult(
        self,
        project: str,
        keys: Sequence[tuple[str, bytes] | None],
        digests: Sequence[Sequence[QueryDigest]],
    ) -> OnRecord:
        """Return how a project stands and what is on record of requests to it; locks nothing.

        Each request has a key or None, with the digest of what it asks, and the digests of its
        queries. No two may have the same key. Raises NotFound.
        """
        with reading(self._engine) as connection:
            return earlier.look_up(connection, self._accounts, project, keys, digests)

    def charge(
        self,
        project_id: int,
        proposals: Sequence[Proposal],
        idempotency: tuple[str, bytes] | None = None,
    ) -> Receipt:
        """Pay for a batch, all in one transaction; what the receipt says is durable.

        Queries that were paid before, or come twice, are replayed for free. New ones are paid in
        order while one more at the worst price is certain to fit; then all new ones are refused.
        The first query that is paid in each epoch pays for opening it. `idempotency`: the request's
        key and the SHA-256 of its body; a retry gets the earlier receipt. Raises ProjectPaused,
        ProjectClosed, IdempotencyConflict, InvalidQuery (no query, a malformed key), Overtaken (a
        query of an epoch was paid meanwhile), and BudgetExhausted when every query was refused.
        """
        (fate,) = self.charge_group(project_id, [Batch(proposals, idempotency)])
        if isinstance(fate, TerrineError):
            raise fate
        return fate

    def charge_group(
        self, project_id: int, batches: Sequence[Batch], record: OnRecord | None = None
    ) -> list[Receipt | TerrineError]:
        """Pay for the batches of several requests, in order, all in one transaction.

        Each gets its receipt, or what `charge` would have raised for it alone; one that is refused
        does not touch the others. No two may have the same key. `record`: what `consult` said of
        their keys and queries; where nothing was charged since, it is not looked up again. Raises
        what concerns all of them: ProjectPaused, ProjectClosed, DatabaseUnavailable (also where the
        project is another than that of the `record`).
        """
        keys = [batch.key for batch in batches]
        digests = [
            [QueryDigest(p.query_digest, p.input_digest) for p in batch.proposals]
            for batch in batches
        ]
        genesis = None if record is None else record.project.genesis

        def look_up(connection: Connection) -> OnRecord:
            found = earlier.look_up(connection, self._accounts, project_id, keys, digests)
            if genesis not in (None, found.project.genesis):
                # The outcomes were drawn for a project with other terms, of the same number.
                raise DatabaseUnavailable(
                    "The ledger was replaced by another one. Send the request again."
                )
            return found

        if record is None or record.project.charges < self._charged.get(project_id, 0):
            with reading(self._engine) as connection:
                record = look_up(connection)
        paid = None
        if record.project.terms.schedule is None:  # else there is a tally to be counted up
            # What does not fit the books is looked at again while nobody can change them.
            with suppress(charging.Moved, BrokenBooks):
                with appending(self._engine) as connection:
                    tried = charging.charge(connection, _now(), record, batches)
                paid = tried  # not before the commit, which may be what does not fit
        if paid is None:
            with writing(self._engine) as connection:
                connection.execute(rows.HOLD, {"id": project_id})
                record = look_up(connection)
                paid = charging.charge(connection, _now(), record, batches)
        project, fates = paid
        self._charged[project_id] = project.charges
        return fates

    def secret_spend(self, project: str) -> SecretAccount:
        """Return what a data-dependent project's queries cost at their votes. Secret.

        For the data owner's eyes: no promise covers who sees it. Raises NotFound, and Conflict for
        a project that is priced at the worst case.
        """
        with snapshot(self._engine) as connection:
            condition = projects.c.name == project
            account = rows.fetch_project(connection, condition, f"called {project}")
            return tallies.secret_spend(connection, account)

    def charges(
        self,
        project: str,
        after_seq: int = 0,
        limit: int = 100,
        outcome: Outcome | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[ChargeRecord]:
        """Return up to `limit` entries numbered above `after_seq`, in order.

        Those from `since` on and before `until` only, where given. Raises NotFound.
        """
        with reading(self._engine) as connection:
            condition = projects.c.name == project
            account = rows.fetch_project(connection, condition, f"called {project}")
            query = rows.select_charges(account.id).where(charges.c.seq > after_seq).limit(limit)
            if outcome is not None:
                query = query.where(charges.c.outcome == outcome)
            if since is not None:
                query = query.where(charges.c.created_at >= since)
            if until is not None:
                query = query.where(charges.c.created_at < until)
            return [rows.charge_record(row, account) for row in connection.execute(query)]

    def stream_charges(
        self,
        project: str,
        outcome: Outcome | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[ChargeRecord]:
        """Yield all entries in order, in constant memory and one transaction a page.

        Entries never change, and a slow reader must not hold the database.
        """
        after = 0
        while page := self.charges(project, after, _PAGE, outcome, since, until):
            yield from page
            after = page[-1].seq

    def export(self, project: str) -> Iterator[dict[str, Any]]:
        """Yield a project's account, then every entry that it counts, as `archive` keeps them.

        In constant memory. Raises NotFound.
        """
        with reading(self._engine) as connection:
            query = rows.select_projects().where(projects.c.name == project)
            row = connection.execute(query).one_or_none()
            if row is None:
                raise NotFound(f"There is no project called {project}.")
        last = rows.project_record(row).charges
        yield archive.account_line(row._mapping)
        for entry in self.stream_charges(project):
            if entry.seq > last:
                return
            yield archive.entry_line(entry)

    def verify(
        self,
        project: str,
        anchor: Anchor | None = None,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> Verification:
        """Recompute a project's books from its charges, in constant memory. Raises NotFound.

        With an `anchor`, its entry must still be there, the same. To `resume` from it is to take
        its word for all up to that entry: only for an anchor whose signature was checked.
        """
        with snapshot(self._engine) as connection:
            return verify_project(connection, project, anchor, resume, progress)

    # --------------------------------------------------------------------- tokens

    def create_token(
        self,
        *,
        id: str,
        hash: bytes,
        role: Role,
        project: str | None,
        label: str,
        expires_at: datetime,
    ) -> TokenRecord:
        """Remember a token by a keyed hash of its secret (32 bytes).

        A student's token belongs to one project, the others to none. Raises NotFound when the
        project does not exist, Conflict when the id is taken.
        """
        with writing(self._engine) as connection:
            owner = project and rows.fetch_project(
                connection, projects.c.name == project, f"called {project}"
            )
            if (role is Role.STUDENT) != bool(owner):
                raise Conflict("A student's token belongs to one project, any other to none.")
            try:
                connection.execute(
                    insert(tokens).values(
                        id=id,
                        role=role,
                        project_id=owner.id if owner else None,
                        label=label,
                        hash=hash,
                        created_at=_now(),
                        expires_at=expires_at,
                    )
                )
            except IntegrityError as error:
                raise Conflict(f"The token id {id} is taken.") from error
            row = connection.execute(rows.TOKEN, {"id": id}).one()
            return rows.token_record(row)

    def find_token(self, id: str) -> TokenRecord | None:
        """Return the token with this id, revoked and expired ones too, or None."""
        with reading(self._engine) as connection:
            row = connection.execute(rows.TOKEN, {"id": id}).one_or_none()
        return None if row is None else rows.token_record(row)

    def list_tokens(
        self, project: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[TokenRecord]:
        """Return up to `limit` tokens, oldest first: all, or those of one project.

        `after`: the id of a token; only those after it. Raises NotFound when it does not exist.
        """
        query = rows.select_tokens().limit(limit)
        if project is not None:
            query = query.where(projects.c.name == project)
        if after is not None:
            last = self.find_token(after)
            if last is None:
                raise NotFound(f"There is no token {after}.")
            later = tokens.c.created_at > last.created_at
            same = tokens.c.created_at == last.created_at
            query = query.where(later | (same & (tokens.c.id > after)))
        with reading(self._engine) as connection:
            return [rows.token_record(row) for row in connection.execute(query)]

    def revoke_token(self, id: str) -> TokenRecord:
        """Make a token invalid from now on; doing it again changes nothing. Raises NotFound."""
        with writing(self._engine) as connection:
            connection.execute(
                update(tokens)
                .where(tokens.c.id == id, tokens.c.revoked_at.is_(None))
                .values(revoked_at=_now())
            )
            row = connection.execute(rows.TOKEN, {"id": id}).one_or_none()
        if row is None:
            raise NotFound(f"There is no token {id}.")
        return rows.token_record(row)


def _now() -> datetime:
    return datetime.now(UTC)
