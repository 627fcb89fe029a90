"""Verifies a project's ledger, in the database or in an export, and the administrative log.

In one pass over the entries, in constant memory. Nearly all the time goes into reading and hashing
them: what depends only on fields that many entries share is computed once for all of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import date
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, select
from sqlalchemy.exc import DBAPIError

from terrine_protocol import LogVerification, Outcome, Verification
from terrine_server.errors import LedgerCorrupted, NotFound, NotSealed
from terrine_server.ledger import accounts, log, losses, rows, tallies
from terrine_server.ledger.chain import (
    ACTIONS_ABOUT,
    KIND_FIELDS,
    LOG_START,
    canonical_json,
    facts,
    frame,
    frame_counts,
    hasher,
    log_hash,
    release_digest,
)
from terrine_server.ledger.checks import (
    NO_QUERIES,
    Raw,
    TermsChecker,
    check_balance,
    check_counted,
    check_entry,
    check_terms,
    int_or_zero,
)
from terrine_server.ledger.database import Access
from terrine_server.ledger.definitions import schema_differences
from terrine_server.ledger.entries import PAGE_ENTRIES, payment_record
from terrine_server.ledger.exports import ENTRY_COLUMNS, StoredEntry, open_export
from terrine_server.ledger.rows import select_editions
from terrine_server.ledger.schema import (
    administrative_log,
    editions,
    ensembles,
    payments,
    populations,
    projects,
    tokens,
)
from terrine_server.ledger.seals import READ_ERRORS, Seals, check_types
from terrine_server.ledger.tokens import select_tokens
from terrine_server.privacy import Terms, VoteOutcome


def check_secrets(
    connection: Connection, seals: Seals, project: Raw, checker: TermsChecker
) -> Iterator[str]:
    """Check that a tally, or the accounts of units, can be those of the charges.

    The votes that they follow from are not stored.
    """
    if checker.terms.schedule is None and checker.terms.allowance is None:
        return
    try:
        record = rows.fetch_project(connection, seals, project["id"])
    except LedgerCorrupted:
        return  # the account itself is wrong, which another check reports
    try:
        tally = tallies.load_tally(connection, seals, record)
        outcomes = {VoteOutcome(o): n for o, n in checker.outcomes.items() if o not in NO_QUERIES}
        if tally is not None and not tally.counts(outcomes):
            yield "tally: it does not count as many queries as were charged"
    except LedgerCorrupted as error:
        yield f"tally: {error.found}"
    if checker.terms.allowance is None:
        return
    for what, load in [
        ("accounts", accounts.load_unit_accounts),
        ("shadows", accounts.load_shadow_accounts),
    ]:
        try:
            load(connection, seals, record)
        except LedgerCorrupted as error:
            yield f"{what}: {error.found}"


def check_payments(connection: Connection, seals: Seals, project: Raw) -> Iterator[str]:
    """Check that who paid is as it was written, of entries that are there, each by one at most."""
    of = select(payments).where(payments.c.project_id == project["id"])
    in_order = of.order_by(payments.c.first_seq)
    last = 0
    for row in connection.execute(in_order, execution_options={"yield_per": 1000}):
        try:
            paid = payment_record(row, seals)
        except LedgerCorrupted as error:
            yield f"payments: {error.found}"
            continue
        if paid.first <= last:
            yield f"payments: two of entry {paid.first}"
        if paid.last > int_or_zero(project["charges"]):
            yield f"payments: one of entry {paid.last}, which is not there"
        last = paid.last


def check_reservation(connection: Connection, project: Raw) -> Iterator[str]:
    """Check what is reserved of the cap: budgets of open projects, the spend of closed ones.

    Of all ensembles of the population. That these are the right ones is for the log to say.
    """
    of = select(ensembles.c.population_id).where(ensembles.c.id == project["ensemble_id"])
    id = connection.execute(of).scalar()
    cap = connection.execute(select(populations).where(populations.c.id == id)).mappings().first()
    if cap is None:
        yield f"ensemble {project['ensemble__name']}: the population whose cap it has is gone"
        return
    made = rows.sum_projects(connection, cap["id"])
    try:
        lost = losses.sum_lost(connection, cap["name"])
    except (KeyError, TypeError, ValueError):
        yield f"population {cap['name']}: what the log says of its losses cannot be read"
        return
    for name, of_projects, of_losses in zip(
        ("reserved", "delta_reserved"), made, lost, strict=True
    ):
        if cap[name] != of_projects + of_losses:
            and_lost = f", and losses {of_losses}" if of_losses else ""
            yield (
                f"population {cap['name']}: {name} is {cap[name]}, but its projects make "
                f"{of_projects}{and_lost}"
            )
    for name, most in [("reserved", "cap"), ("delta_reserved", "delta_cap")]:
        if cap[name] > cap[most]:
            yield f"population {cap['name']}: {name} exceeds {most}"


# The positions of the `KIND_FIELDS` in a stored entry.
KIND_POSITIONS = slice(len(ENTRY_COLUMNS) - 2 - len(KIND_FIELDS), len(ENTRY_COLUMNS) - 2)

Pages = Iterable[Sequence[StoredEntry]]

# SQLite stores this text as it is.
_POSTGRESQL_ISO = """to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{6}Z", re.ASCII
).fullmatch


def load_stored_pages(connection: Connection, project_id: int) -> Pages:
    """Yield the entries in order, page by page.

    The project is written into the query, since the two drivers mark parameters differently.
    """
    on_postgresql = connection.dialect.name == "postgresql"
    columns = ", ".join(ENTRY_COLUMNS)
    if on_postgresql:
        columns = columns.replace("created_at", _POSTGRESQL_ISO)
    wanted = f"project_id = {int(project_id)}"
    query = f"SELECT {columns} FROM charges WHERE {wanted} ORDER BY seq"  # noqa: S608 - see above
    driver: Any = connection.connection.driver_connection
    try:
        # A named cursor stays in PostgreSQL; any other would fetch all entries at once.
        named = {"name": "entries", "scrollable": False} if on_postgresql else {}
        with closing(driver.cursor(**named)) as cursor:
            cursor.execute(query)
            while page := cursor.fetchmany(PAGE_ENTRIES):
                yield page
    except connection.dialect.loaded_dbapi.Error as error:
        raise DBAPIError(query, None, error) from error


def is_instant(text: str) -> bool:
    """Whether `chain.iso` could have written this. Raises TypeError for anything but text."""
    found = _INSTANT(text)
    return found is not None and _is_date(found[1])


@lru_cache(maxsize=64)
def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def group_pages(entries: Iterator[StoredEntry]) -> Pages:
    """Group the entries into pages."""
    while page := list(islice(entries, PAGE_ENTRIES)):
        yield page


# The most findings that a report names; the first is the one to look at.
MAX_PROBLEMS = 100
_MAX_KINDS = 10_000

# Called with the number of entries read so far, and how many there should be.
Progress = Callable[[int, int], object]


def verify_project(
    connection: Connection,
    seals: Seals,
    name: str,
    progress: Progress | None = None,
) -> Verification:
    """See `Verifier.verify_project`. The connection must read one snapshot throughout."""
    row = connection.execute(rows.project_by("name"), {"name": name}).one_or_none()
    if row is None:
        raise NotFound(f"There is no project called {name}.")
    project = dict(row._mapping)

    def check_rest(checker: TermsChecker) -> Iterator[str]:
        yield from check_secrets(connection, seals, project, checker)
        yield from check_payments(connection, seals, project)
        yield from check_reservation(connection, project)

    found = _LedgerWalk(project, progress).verify(
        load_stored_pages(connection, project["id"]), check_rest
    )
    if found.ok:
        # An account that every other reader refuses must not be reported as intact.
        try:
            rows.load_newest_project(connection, seals, rows.project_record(row, seals))
        except LedgerCorrupted as error:
            problems = [f"account: {error.found} {error.cause}"]
            return found.model_copy(update={"problems": problems})
    return found


def verify_export(path: Path, progress: Progress | None = None) -> Verification:
    """Verify an export from the file alone: all but what is stored outside a project's own ledger.

    Raises ArchiveError when the file is not an export.
    """
    with open_export(path) as (project, entries):
        return _LedgerWalk(project, progress).verify(group_pages(entries), lambda _: ())


class _SharedFields:
    """Fields that many entries share, and what follows from them."""

    def __init__(self, fields: Sequence[Any]) -> None:
        self.fields = dict(zip(KIND_FIELDS, fields, strict=True))
        try:
            self.framed: bytes | None = frame(*fields)
        except TypeError:
            self.framed = None  # a value of a type that is never written
        self.problems: Sequence[str] = ()
        self.count = 0
        self.released = self.fields["outcome"] == Outcome.RELEASED


class _LedgerWalk:
    """One pass over a project's ledger."""

    def __init__(self, project: Raw, progress: Progress | None) -> None:
        self._project, self._progress = project, progress

    def verify(
        self, pages: Pages, check_rest: Callable[[TermsChecker], Iterable[str]]
    ) -> Verification:
        """Check the entries of `pages`, then call `check_rest` for what is stored outside them."""
        project, found = self._project, list[str]()
        try:
            terms = Terms.from_json(json.loads(project["terms"]))
            checker = TermsChecker(terms, json.loads(project["events"]))
            published = [tuple(pair) for pair in json.loads(project["published"])]
        except READ_ERRORS:
            found.append("terms: they cannot be read")
        else:
            findings = self._findings(pages, terms, checker, published, check_rest)
            try:
                found.extend(islice(findings, MAX_PROBLEMS))
            except READ_ERRORS as error:
                found.append(f"account: a value is not of the kind that was written ({error})")
        head = project["head"]
        return Verification(
            project=project["name"],
            charges=int_or_zero(project["charges"]),
            head=head.hex() if isinstance(head, bytes) else str(head),
            problems=found,
        )

    def _findings(
        self,
        pages: Pages,
        terms: Terms,
        checker: TermsChecker,
        published: Sequence[tuple[int, ...]],
        check_rest: Callable[[TermsChecker], Iterable[str]],
    ) -> Iterator[str]:
        yield from check_terms(self._project, terms)
        last = yield from self._check_entries(checker, self._with_progress(pages))
        yield from check_balance(self._project, checker, *last, published)
        yield from check_rest(checker)

    def _check_entries(
        self, checker: TermsChecker, entries: Iterator[StoredEntry]
    ) -> Generator[str, None, tuple[int, bytes]]:
        """Yield what is wrong; return the last entry's number and hash."""
        project = self._project
        last, head = 0, project["genesis"]
        classes = len(json.loads(project["ensemble__info"])["classes"])
        hashed, steady = hasher(project["id"]), checker.steady
        kinds: dict[Sequence[Any], _SharedFields] = {}
        begins = checker.terms.start.charges  # the number of the entry for its release, or 0
        for entry in entries:
            seq, created_at, query, input = entry[:4]
            shared, counts, hash = entry[KIND_POSITIONS], entry[-2], entry[-1]
            if seq != last + 1:
                yield _explain_misnumbered(seq, last)
            kind = kinds.get(shared)
            if kind is None:
                if len(kinds) == _MAX_KINDS:
                    _count(checker, kinds)
                kind = kinds[shared] = _SharedFields(shared)
                kind.problems = list(check_entry(project, checker, classes, kind.fields))
            kind.count += 1
            try:
                intact = (
                    is_instant(created_at)
                    and len(query) == len(input) == 32
                    and kind.framed is not None
                    and hashed(
                        head,
                        seq,
                        created_at,
                        query,
                        input,
                        kind.framed + frame_counts(counts),
                    )
                    == hash
                )
            except (TypeError, AttributeError):
                intact = False  # a value of a type that is never written
            if not intact:
                yield f"entry {seq}: altered, or not the one that followed the entry before it"
            problems = kind.problems
            if not steady:
                problems = [*problems, *checker.apply({**kind.fields, "seq": seq})]
            for problem in problems:
                yield f"entry {seq}: {problem}"
            if kind.released != (seq == begins) or (
                kind.released and {query, input} != {release_digest(project["genesis"].hex())}
            ):
                yield f"entry {seq}: not what the project begins with, which is its first charge"
            if counts is not None or kind.fields["outcome"] in checker.counted:
                for problem in check_counted(checker, classes, kind.fields, counts):
                    yield f"entry {seq}: {problem}"
            head, last = hash, seq
        if steady:
            _count(checker, kinds)
        if last < begins:
            yield "entries: what the project begins with was not charged"
        return last, head

    def _with_progress(self, pages: Pages) -> Iterator[StoredEntry]:
        done, total = 0, self._project["charges"]
        for page in pages:
            yield from page
            done += len(page)
            if self._progress is not None:
                self._progress(done, total)


def _count(checker: TermsChecker, kinds: dict[Sequence[Any], _SharedFields]) -> None:
    for kind in kinds.values():
        checker.add(kind.fields, kind.count)
    kinds.clear()


def _explain_misnumbered(seq: int, last: int) -> str:
    if seq <= last:
        return f"entry {seq}: entries are numbered from 1"
    if seq == last + 2:
        return f"entry {last + 1}: missing"
    return f"entries {last + 1} to {seq - 1}: missing"


TABLE_OF_KIND = {
    "population": populations,
    "ensemble": ensembles,
    "edition": editions,
    "project": projects,
    "token": tokens,
}
_KIND = {action: kind for kind, actions in ACTIONS_ABOUT.items() for action in actions}


def rows_of(kind: str) -> Select[Any]:
    """Select all rows of a kind of subject, each with its `subject` and all of its facts."""
    match kind:
        case "population":
            return rows.select_populations().add_columns(populations.c.name.label("subject"))
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
        case _:
            return select_tokens().add_columns(tokens.c.id.label("subject"))


def verify_log(connection: Connection, seals: Seals) -> LogVerification:
    """See `Verifier.verify_log`. The connection must read one snapshot throughout."""
    walk = _LogWalk()
    problems = list(islice(_findings(connection, seals, walk), MAX_PROBLEMS))
    return LogVerification(entries=walk.last, head=walk.head.hex(), problems=problems)


def _findings(connection: Connection, seals: Seals, walk: _LogWalk) -> Iterator[str]:
    entries = connection.execute(log.select_log(), execution_options={"yield_per": 1000})
    for row in entries:
        yield from walk.apply(row._mapping)
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
        self.last, self.head = 0, LOG_START
        self.said: dict[str, dict[str, str]] = {kind: {} for kind in ACTIONS_ABOUT}

    def apply(self, entry: Mapping[Any, Any]) -> Iterator[str]:
        """Check the next entry."""
        seq = entry["seq"]
        if seq != self.last + 1:
            yield f"log entry {seq}: not the one after {self.last}; entries are missing"
        try:
            check_types(administrative_log.c, entry)
            intact = log_hash(self.head, entry) == entry["hash"]
        except READ_ERRORS:
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
            seals.check(TABLE_OF_KIND[kind].name, row._mapping)
        except READ_ERRORS:
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
    except READ_ERRORS:
        yield "what the log or its row says cannot be read"


class Verifier:
    """Recomputes a ledger. Thread-safe."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def verify_project(self, project: str, progress: Progress | None = None) -> Verification:
        """Recompute a project's ledger from its charges, in constant memory. Raises NotFound."""
        with self._access.snapshot() as connection:
            return verify_project(connection, self._access.seals, project, progress)

    def verify_log(self) -> LogVerification:
        """Recompute the administrative log, and compare the rows of today with it."""
        with self._access.snapshot() as connection:
            return verify_log(connection, self._access.seals)

    def verify_schema(self) -> list[str]:
        """Return in what the whole schema is not as this version's migrations make it."""
        return [f"schema: {found}" for found in schema_differences(self._access.engine)]
