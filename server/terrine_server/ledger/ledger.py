"""The ledger's interface: everything that is read from it or written to it."""

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
    """Ensembles, projects, charges and tokens in one database. Thread-safe.

    Each write is one transaction. It locks the rows that it changes, the ensemble before the
    project, and a charge is written only if the account has not changed since it was looked up. So
    no interleaving of threads, processes or machines overspends a budget or a cap. Any method
    raises DatabaseUnavailable when the database cannot be reached or is busy for too long, and
    BrokenBooks when its contents contradict each other; nothing is half-written then."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._accounts = rows.KnownProjects()
        # By project: its number of charges after the last one made here. Older records are stale.
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
        """Register an ensemble under a name, with the cap that all its projects share.

        `info`: its public facts (kind, input, classes, teachers). `records`: the number of training
        records. Raises InvalidTerms when the cap's δ is 1/records or more, Conflict when the name,
        or the same manifest under another name, is registered already.
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

        `mechanism`: the specification that `terms` were quoted for. Raises NotFound, Conflict when
        the name is taken, InvalidTerms when δ is 1/records or more or the terms were quoted for
        another mechanism, CapExceeded when the budget does not fit in what is left of the cap.
        """
        with writing(self._engine) as connection:
            return accounts.open_project(connection, _now(), name, ensemble_name, mechanism, terms)

    def project(self, name: str) -> ProjectRecord:
        """Return one project. Raises NotFound."""
        with reading(self._engine) as connection:
            return rows.fetch_project(connection, projects.c.name == name, f"called {name}")

    def remembered(self, name: str) -> ProjectRecord:
        """Return one project for its fixed fields; all others may be out of date.

        Reads the database only if the project is not in memory. Raises NotFound.
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
        """Return up to `limit` projects in order of their names, starting after `after`."""
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
        """Return the names of all projects, even damaged ones, which `verify` can still check."""
        names = select(projects.c.name).order_by(projects.c.name)
        with reading(self._engine) as connection:
            return list(connection.execute(names).scalars())

    def set_status(self, name: str, status: ProjectStatus) -> ProjectRecord:
        """Pause, resume or close a project.

        Closing is final and returns the unspent budget to the cap. Raises NotFound, and Conflict
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
        """Return a project's account and what is on record for requests to it. Locks nothing.

        `keys`: for each request, its idempotency key and the SHA-256 of its body, or None.
        `digests`: those of its queries. No two may have the same key. Raises NotFound.
        """
        with reading(self._engine) as connection:
            return earlier.look_up(connection, self._accounts, project, keys, digests)

    def charge(
        self,
        project_id: int,
        proposals: Sequence[Proposal],
        idempotency: tuple[str, bytes] | None = None,
    ) -> Receipt:
        """Pay for a batch in one transaction, which is durable once the receipt is returned.

        A query that was paid before, or that occurs twice, is replayed for free. New ones are paid
        in order while one more at the worst price is certain to fit; then all new ones are refused.
        The first paid query of each epoch also pays for opening it. `idempotency`: the request's
        key and the SHA-256 of its body; a retry gets the earlier receipt. Raises ProjectPaused,
        ProjectClosed, IdempotencyConflict, InvalidQuery (no query, a malformed key), Overtaken (a
        query of an epoch was paid meanwhile), and BudgetExhausted when every query was refused.
        """
        (answer,) = self.charge_group(project_id, [Batch(proposals, idempotency)])
        if isinstance(answer, TerrineError):
            raise answer
        return answer

    def charge_group(
        self, project_id: int, batches: Sequence[Batch], record: OnRecord | None = None
    ) -> list[Receipt | TerrineError]:
        """Pay for the batches of several requests, in order, in one transaction.

        Returns for each its receipt, or the error that `charge` would have raised for it alone. A
        refused one does not affect the others. No two may have the same key. `record`: what
        `consult` returned for them; it is looked up again only if it is out of date. Raises what
        concerns all of them: ProjectPaused, ProjectClosed, Overtaken, DatabaseUnavailable (also if
        the project is not the one in `record`).
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
                # The same id, but other terms: the outcomes were drawn for another project.
                raise DatabaseUnavailable(
                    "The ledger was replaced by another one. Send the request again."
                )
            return found

        if record is None or record.project.charges < self._charged.get(project_id, 0):
            with reading(self._engine) as connection:
                record = look_up(connection)
        paid = None
        if record.project.terms.schedule is None:  # a project with a tally must be locked first
            # If the record is stale, or contradicts the ledger, look it up again under the lock.
            with suppress(charging.Moved, BrokenBooks):
                with appending(self._engine) as connection:
                    tried = charging.charge(connection, _now(), record, batches)
                paid = tried  # only after the commit, which may raise BrokenBooks, too
        if paid is None:
            with writing(self._engine) as connection:
                connection.execute(rows.HOLD, {"id": project_id})
                record = look_up(connection)
                paid = charging.charge(connection, _now(), record, batches)
        project, answers = paid
        self._charged[project_id] = project.charges
        return answers

    def secret_spend(self, project: str) -> SecretAccount:
        """Return the actual cost of a data-dependent project's queries, given their votes. Secret.

        For the data owner only: no guarantee covers its disclosure. Raises NotFound, and Conflict
        for a project that is priced at the worst case.
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

        `since` (inclusive) and `until` (exclusive) limit their times, if given. Raises NotFound.
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
        """Yield all entries in order, in constant memory.

        Each page is one transaction: entries never change, and a slow reader must not hold one.
        """
        after = 0
        while page := self.charges(project, after, _PAGE, outcome, since, until):
            yield from page
            after = page[-1].seq

    def export(self, project: str) -> Iterator[dict[str, Any]]:
        """Yield a project's account, then the entries that it counts, in the format of `archive`.

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
        """Recompute a project's ledger from its charges, in constant memory. Raises NotFound.

        With an `anchor`, its entry must still exist, unchanged. `resume` trusts the anchor for all
        entries up to its own, so its signature must have been checked.
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
        """Store a token, with a keyed hash of its secret (32 bytes).

        A student's token belongs to one project, any other to none. Raises NotFound when the
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
        """Return the token with this id, even if revoked or expired, or None."""
        with reading(self._engine) as connection:
            row = connection.execute(rows.TOKEN, {"id": id}).one_or_none()
        return None if row is None else rows.token_record(row)

    def list_tokens(
        self, project: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[TokenRecord]:
        """Return up to `limit` tokens, oldest first: all, or those of one project.

        `after`: a token's id; only later tokens are returned. Raises NotFound for an unknown id.
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
        """Revoke a token, from now on. Doing it again changes nothing. Raises NotFound."""
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
