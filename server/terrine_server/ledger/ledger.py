"""The ledger's interface: everything that is written to it, and, by `Books`, read from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine

from terrine_protocol import ProjectStatus, Role
from terrine_server.errors import DatabaseUnavailable, LedgerCorrupted, TerrineError
from terrine_server.ledger import accounts, requests, tokens
from terrine_server.ledger.administration import Action, Actor
from terrine_server.ledger.books import Books
from terrine_server.ledger.charging import charge as charging
from terrine_server.ledger.charging import lookup
from terrine_server.ledger.records import (
    Batch,
    EnsembleRecord,
    OnRecord,
    ProjectRecord,
    Proposal,
    QueryDigest,
    Receipt,
    RequestRecord,
    TokenRecord,
)
from terrine_server.ledger.store import log, rows, turns
from terrine_server.ledger.store.database import appending, reading, writing
from terrine_server.ledger.tokens import NewToken
from terrine_server.privacy import Cap, Terms


class Ledger(Books):
    """Ensembles, projects, charges, tokens and requests in one database. Thread-safe.

    Reads are those of `Books`. Each write is one transaction. It locks the rows that it changes,
    a request first, the ensemble before the project and the end of the administrative log last, and
    a charge is written only if the account has not changed since it was looked up. So no
    interleaving of threads, processes or machines overspends a budget or a cap. Any method raises
    DatabaseUnavailable when the database cannot be reached or is busy for too long, and
    LedgerCorrupted when its contents contradict each other; nothing is half-written then.

    What the data owner does is recorded in the administrative log, in the same transaction. `by`:
    who does it; by default the account that this process runs as."""

    def __init__(self, engine: Engine, key: bytes) -> None:
        super().__init__(engine, key)
        # By project: its number of charges after the last one made here. Older records are stale.
        self._charged: dict[int, int] = {}

    # ------------------------------------------------------------------ ensembles

    def register_ensemble(
        self,
        name: str,
        path: str,
        manifest_sha256: str,
        info: Mapping[str, Any],
        units: int,
        cap: Cap,
        by: Actor | None = None,
    ) -> EnsembleRecord:
        """Register an ensemble under a name, with the cap that all its projects share.

        `info`: its public facts (kind, input, classes, teachers). `units`: the number of training
        records, or of people where they are grouped. Raises InvalidTerms when the cap's δ is
        1/units or more, Conflict when the name, or the same manifest under another name, is
        registered already.
        """
        with writing(self._engine) as connection:
            return accounts.register_ensemble(
                *(connection, self._seals, _now(), by, name, path),
                manifest_sha256=manifest_sha256,
                info=info,
                units=units,
                cap=cap,
            )

    # ------------------------------------------------------------------- projects

    def open_project(
        self,
        name: str,
        ensemble_name: str,
        mechanism: Mapping[str, Any],
        terms: Terms,
        by: Actor | None = None,
        title: str | None = None,
        purpose: str | None = None,
    ) -> ProjectRecord:
        """Open a project and reserve its budget from the ensemble's cap.

        `mechanism`: the specification that `terms` were quoted for. `title` and `purpose`: words
        for people, which decide nothing. Raises NotFound, Conflict when
        the name is taken, InvalidTerms when δ is 1/units or more or the terms were quoted for
        another mechanism, CapExceeded when the budget does not fit in what is left of the cap.
        """
        with writing(self._engine) as connection:
            return accounts.open_project(
                *(connection, self._seals, _now(), by, name, ensemble_name, mechanism, terms),
                *(title, purpose),
            )

    def set_status(
        self, name: str, status: ProjectStatus, by: Actor | None = None
    ) -> ProjectRecord:
        """Pause, resume or close a project.

        Closing is final and returns the unspent budget to the cap. Raises NotFound, and Conflict
        when a closed project would be reopened.
        """
        with writing(self._engine) as connection:
            return accounts.set_status(
                connection, self._seals, _now(), by, name, ProjectStatus(status)
            )

    # -------------------------------------------------------------------- charges

    def look_up(
        self,
        project: str,
        keys: Sequence[tuple[str, bytes] | None],
        digests: Sequence[Sequence[QueryDigest]],
        held: Collection[TokenRecord] = (),
    ) -> OnRecord:
        """Return a project's account and what is on record for requests to it. Locks nothing.

        `keys`: for each request, its idempotency key and the SHA-256 of its body, or None.
        `digests`: those of its queries. No two may have the same key. `held`: tokens by which they
        came. Raises TokenChanged if any of these is not as it is in the ledger, and NotFound.
        """
        with reading(self._engine) as connection:
            tokens.check_unchanged(connection, self._seals, held)
            return lookup.look_up(connection, self._accounts, project, keys, digests)

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
        ProjectClosed, IdempotencyConflict, InvalidQuery (no query, a malformed key),
        ConcurrentUpdate (a query of an epoch was paid meanwhile), and BudgetExhausted when every
        query was refused.
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
        `look_up` returned for them; it is looked up again only if it is out of date. Raises what
        concerns all of them: ProjectPaused, ProjectClosed, ConcurrentUpdate, DatabaseUnavailable
        (also if the project is not the one in `record`).
        """
        genesis = None if record is None else record.project.genesis

        def look_up(connection: Connection) -> OnRecord:
            keys = [batch.key for batch in batches]
            digests = [
                [QueryDigest(p.query_digest, p.input_digest) for p in batch.proposals]
                for batch in batches
            ]
            found = lookup.look_up(connection, self._accounts, project_id, keys, digests)
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
            with suppress(charging.StaleRecord, LedgerCorrupted):
                with appending(self._engine) as connection:
                    tried = charging.charge(connection, self._seals, _now(), record, batches)
                paid = tried  # only after the commit, which may raise LedgerCorrupted, too
        if paid is None:
            with writing(self._engine) as connection:
                connection.execute(rows.HOLD, {"id": project_id})
                record = look_up(connection)
                try:
                    paid = charging.charge(connection, self._seals, _now(), record, batches)
                except charging.StaleRecord:  # nobody can have moved it: it is locked
                    raise LedgerCorrupted(
                        "The database ignored what was written to it.", record.project.name
                    ) from None
        project, answers = paid
        self._charged[project_id] = project.charges
        return answers

    def turn(self, project_id: int) -> AbstractContextManager[None]:
        """Hold the turn of a project among all processes: see `store/turns.py`."""
        return turns.turn(self._engine, project_id)

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
        by: Actor | None = None,
    ) -> TokenRecord:
        """Store a token, with a keyed hash of its secret (32 bytes).

        A student's token belongs to one project, any other to none. Raises NotFound when the
        project does not exist, Conflict when the id is taken.
        """
        with writing(self._engine) as connection:
            return tokens.create_token(
                *(connection, self._seals, _now(), by),
                id=id,
                hash=hash,
                role=role,
                project=project,
                label=label,
                expires_at=expires_at,
            )

    def revoke_token(self, id: str, by: Actor | None = None) -> TokenRecord:
        """Revoke a token, from now on. Doing it again changes nothing. Raises NotFound."""
        with writing(self._engine) as connection:
            return tokens.revoke_token(connection, self._seals, _now(), by, id)

    # ------------------------------------------------------------------- requests

    def make_request(
        self,
        *,
        id: str,
        token: str,
        title: str,
        purpose: str,
        asked: Mapping[str, Any],
        by: Actor | None = None,
    ) -> RequestRecord:
        """Store what the holder of a student's token asks for, on the ensemble of its project.

        `asked`: mechanism, epsilon and delta. If the same is open already, that one is returned.
        Raises NotFound for an unknown token, Conflict when too many of its requests are open.
        """
        with writing(self._engine) as connection:
            return requests.make_request(
                *(connection, self._seals, _now(), by),
                id=id,
                token=token,
                title=title,
                purpose=purpose,
                asked=asked,
            )

    def approve_request(
        self,
        id: str,
        *,
        name: str,
        mechanism: Mapping[str, Any],
        terms: Terms,
        title: str,
        purpose: str,
        token: NewToken | None = None,
        by: Actor | None = None,
    ) -> tuple[RequestRecord, ProjectRecord, TokenRecord | None]:
        """Open the project that was asked for, and make a `token` of it if one is given.

        All of it, and what the log says of it, is one transaction. Raises NotFound, Conflict when
        it was decided already, and what `open_project` raises.
        """
        with writing(self._engine) as connection:
            return requests.approve_request(
                *(connection, self._seals, _now(), by, id),
                name=name,
                mechanism=mechanism,
                terms=terms,
                title=title,
                purpose=purpose,
                token=token,
            )

    def refuse_request(self, id: str, reason: str, by: Actor | None = None) -> RequestRecord:
        """Refuse a request. Raises NotFound, and Conflict when it was decided already."""
        with writing(self._engine) as connection:
            return requests.refuse_request(connection, self._seals, _now(), by, id, reason)

    # ------------------------------------------------------------------------ log

    def note(
        self,
        action: Action,
        subject: str,
        detail: Mapping[str, Any] | None = None,
        by: Actor | None = None,
    ) -> None:
        """Append an entry to the administrative log about something that changes no row."""
        with writing(self._engine) as connection:
            log.record(connection, self._seals, _now(), by, action, subject, detail or {})


def _now() -> datetime:
    return datetime.now(UTC)
