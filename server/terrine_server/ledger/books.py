"""All that is read from the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, select

from terrine_protocol import Outcome, ProjectStatus, RequestStatus
from terrine_server.errors import NotFound
from terrine_server.ledger import requests as stored_requests
from terrine_server.ledger import tokens as stored_tokens
from terrine_server.ledger.anchors import Anchor, LogAnchor
from terrine_server.ledger.charging import tallies
from terrine_server.ledger.records import (
    ChargeRecord,
    EnsembleRecord,
    History,
    LogEntry,
    LogVerification,
    ProjectRecord,
    RequestRecord,
    SecretAccount,
    TokenRecord,
    Verification,
)
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import history, log, rows
from terrine_server.ledger.store.database import reading, snapshot
from terrine_server.ledger.store.schema import differences
from terrine_server.ledger.store.tables import administrative_log, charges, ensembles, projects
from terrine_server.ledger.verifying import archive
from terrine_server.ledger.verifying.administration import verify_log
from terrine_server.ledger.verifying.walk import Progress, verify_project

_PAGE = 1000


class Books:
    """What is recorded in one database: ensembles, projects, charges, tokens, the log. Thread-safe.

    `key`: the server's secret key. What is not sealed with it is not believed: any method raises
    LedgerCorrupted for a row that was edited, and DatabaseUnavailable when the database cannot be
    reached or is busy for too long."""

    def __init__(self, engine: Engine, key: bytes) -> None:
        self._engine = engine
        self._seals = Seals(key)
        self._accounts = rows.KnownProjects(self._seals)
        self._histories = history.Histories()

    def check_sealed(self) -> None:
        """Raise NotSealed, with the command to run, unless the ledger is sealed with this key."""
        with snapshot(self._engine) as connection:
            log.check_head(connection, self._seals)

    def ensembles(self) -> list[EnsembleRecord]:
        """Return all ensembles, by name."""
        with reading(self._engine) as connection:
            return [
                rows.ensemble_record(r, self._seals)
                for r in connection.execute(rows.select_ensembles())
            ]

    def ensemble(self, name: str) -> EnsembleRecord:
        """Return one ensemble. Raises NotFound."""
        with reading(self._engine) as connection:
            query = rows.select_ensembles().where(ensembles.c.name == name)
            row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no ensemble called {name}.")
        return rows.ensemble_record(row, self._seals)

    def project(self, name: str) -> ProjectRecord:
        """Return one project. Raises NotFound."""
        with reading(self._engine) as connection:
            return rows.fetch_project(
                connection, self._seals, projects.c.name == name, f"called {name}"
            )

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
            return [rows.project_record(row, self._seals) for row in connection.execute(query)]

    def project_names(self) -> list[str]:
        """Return the names of all projects, even damaged ones, which `verify` can still check."""
        names = select(projects.c.name).order_by(projects.c.name)
        with reading(self._engine) as connection:
            return list(connection.execute(names).scalars())

    def spent_of_caps(self) -> dict[int, int]:
        """Return what all projects on each ensemble have spent of its cap, by the ensemble's id.

        Each project's seal is checked. Raises LedgerCorrupted.
        """
        spent: dict[int, int] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(rows.SPENT):
                with rows.readable(f"The account of project {row.name!r}", str(row.name)):
                    self._seals.check("projects", row._mapping)
                spent[row.ensemble_id] = spent.get(row.ensemble_id, 0) + row.cap_spent
        return spent

    def secret_spend(self, project: str) -> SecretAccount:
        """Return the actual cost of a data-dependent project's queries, given their votes. Secret.

        For the data owner only: no guarantee covers its disclosure. Raises NotFound, and Conflict
        for a project that is priced at the worst case.
        """
        with snapshot(self._engine) as connection:
            condition = projects.c.name == project
            account = rows.fetch_project(connection, self._seals, condition, f"called {project}")
            return tallies.secret_spend(connection, self._seals, account)

    def charges(
        self,
        project: str,
        after_seq: int = 0,
        limit: int = 100,
        outcome: Outcome | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before_seq: int | None = None,
        newest: bool = False,
    ) -> list[ChargeRecord]:
        """Return up to `limit` entries numbered above `after_seq`, and below `before_seq` if given.

        In order, the first of them; or the `newest`, last one first. `since` (inclusive) and
        `until` (exclusive) limit their times, if given. Raises NotFound.
        """
        known = self._histories.known(project)
        with reading(self._engine) as connection:
            condition = projects.c.name == project
            account = rows.fetch_project(connection, self._seals, condition, f"called {project}")
            query = rows.select_charges(account.id)
            if outcome is not None:
                query = query.where(charges.c.outcome == outcome)
            if since is not None:
                query = query.where(charges.c.created_at >= since)
            if until is not None:
                query = query.where(charges.c.created_at < until)
            if newest:
                query = query.order_by(None).order_by(charges.c.seq.desc())
            last = account.charges if before_seq is None else before_seq - 1
            places = [(0, account.charges)]
            if (outcome, since, until) != (None, None, None):
                sums = self._histories.sums(connection, account, known)
                places = sums.ranges(outcome, since, until)
            found: list[ChargeRecord] = []
            for start, end in places[::-1] if newest else places:
                start, end = max(start, after_seq), min(end, last)
                if start < end and len(found) < limit:
                    here = query.where(charges.c.seq > start, charges.c.seq <= end)
                    got = connection.execute(here.limit(limit - len(found)))
                    found += [rows.charge_record(row, account) for row in got]
            return found

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

    def history(self, project: str) -> History:
        """Return how a project's budget was spent, entry by entry and day by day.

        It follows from the entries, of which each is summed once, and LedgerCorrupted is raised
        unless it ends at the balance. Raises NotFound.
        """
        known = self._histories.known(project)
        with reading(self._engine) as connection:
            condition = projects.c.name == project
            account = rows.fetch_project(connection, self._seals, condition, f"called {project}")
            return self._histories.sums(connection, account, known).history(account)

    def export(self, project: str) -> Iterator[dict[str, Any]]:
        """Yield a project's account, then the entries that it counts, in the format of `archive`.

        In constant memory. Raises NotFound.
        """
        with reading(self._engine) as connection:
            query = rows.select_projects().where(projects.c.name == project)
            row = connection.execute(query).one_or_none()
            if row is None:
                raise NotFound(f"There is no project called {project}.")
        last = rows.project_record(row, self._seals).charges
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
            return verify_project(connection, self._seals, project, anchor, resume, progress)

    def find_token(self, id: str) -> TokenRecord | None:
        """Return the token with this id, even if revoked or expired, or None."""
        with reading(self._engine) as connection:
            return stored_tokens.find_token(connection, self._seals, id)

    def list_tokens(
        self, project: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[TokenRecord]:
        """Return up to `limit` tokens, oldest first: all, or those of one project.

        `after`: a token's id; only later tokens are returned. Raises NotFound for an unknown id.
        """
        with reading(self._engine) as connection:
            return stored_tokens.list_tokens(connection, self._seals, project, after, limit)

    def find_request(self, id: str, token: str | None = None) -> RequestRecord:
        """Return a request; with the id of a `token`, only if that made it. Raises NotFound."""
        with reading(self._engine) as connection:
            return stored_requests.find_request(connection, self._seals, id, token)

    def list_requests(
        self,
        token: str | None = None,
        status: RequestStatus | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[RequestRecord]:
        """Return up to `limit` requests, oldest first: all, or those of one token or status.

        `after`: a request's id; only later ones are returned. Raises NotFound for an unknown id.
        """
        with reading(self._engine) as connection:
            return stored_requests.list_requests(
                connection, self._seals, token, status, after, limit
            )

    def log(
        self,
        after_seq: int = 0,
        limit: int = 100,
        newest: bool = False,
        before_seq: int | None = None,
    ) -> list[LogEntry]:
        """Return up to `limit` entries of the administrative log numbered above `after_seq`.

        And below `before_seq`, if given. In order: the first of them, or the `newest`.
        """
        seq = administrative_log.c.seq
        query = log.select_log().where(seq > after_seq).limit(limit)
        if before_seq is not None:
            query = query.where(seq < before_seq)
        if newest:
            query = query.order_by(None).order_by(seq.desc())
        with reading(self._engine) as connection:
            found = [log.entry(row) for row in connection.execute(query)]
        return found[::-1] if newest else found

    def log_before(self, time: datetime) -> int:
        """Return the number of the last entry of the administrative log before a time, or 0."""
        entries = administrative_log.c
        query = select(entries.seq).where(entries.created_at < time)
        with reading(self._engine) as connection:
            last = query.order_by(entries.seq.desc()).limit(1)
            return connection.execute(last).scalar_one_or_none() or 0

    def log_since(self, seq: int, hash: str | None = None) -> list[LogEntry]:
        """Return all entries of the administrative log after the one with this number.

        They are believed because their hashes lead from that entry's to the log's sealed end, so
        that an edit of any of them raises LedgerCorrupted. `hash`: that of the entry, if it is
        known.
        """
        with snapshot(self._engine) as connection:
            return log.followed(connection, self._seals, seq, hash)

    def export_log(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the administrative log, then its entries, in the format of `archive`.

        In constant memory. Raises LedgerCorrupted if the log does not end where it should.
        """
        with snapshot(self._engine) as connection:
            end = log.check_head(connection, self._seals)
        yield archive.log_line(end.entries, end.head)
        after = 0
        while after < end.entries:
            page = self.log(after, min(_PAGE, end.entries - after))
            yield from map(archive.log_entry_line, page)
            after = page[-1].seq

    def verify_log(self, anchor: LogAnchor | None = None) -> LogVerification:
        """Recompute the administrative log, and hold the rows of today against it.

        With an `anchor`, its entry must still exist, unchanged.
        """
        with snapshot(self._engine) as connection:
            return verify_log(connection, self._seals, anchor)

    def verify_schema(self) -> list[str]:
        """Return in what the whole schema is not as this version's migrations make it."""
        return [f"schema: {found}" for found in differences(self._engine)]
