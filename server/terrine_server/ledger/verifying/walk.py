"""Verifies a project's ledger, in the database or in an export, in one pass over its entries.

In constant memory. Nearly all the time goes into reading and hashing entries: what depends only on
fields that many entries share is computed once for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from terrine_protocol import Verification
from terrine_server.errors import LedgerCorrupted, NotFound
from terrine_server.ledger.chain import KIND_FIELDS, frame, frame_counts, hasher
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import rows
from terrine_server.ledger.store.soundness import UNREADABLE
from terrine_server.ledger.verifying import archive
from terrine_server.ledger.verifying.checks import (
    Raw,
    Rules,
    check_accounts,
    check_balance,
    check_counted,
    check_entry,
    check_payments,
    check_reservation,
    check_tally,
    check_terms,
    whole,
)
from terrine_server.ledger.verifying.entries import KIND, Pages, StoredEntry, is_instant, stored
from terrine_server.privacy import Terms

MOST_PROBLEMS = 100
"""The most findings that a report names; the first is the one to look at."""
_KINDS = 10_000

Progress = Callable[[int, int], object]
"""Called with the number of entries read so far, and how many there should be."""


def verify_project(
    connection: Connection,
    seals: Seals,
    name: str,
    progress: Progress | None = None,
) -> Verification:
    """See `Ledger.verify`. The connection's transaction must read one snapshot throughout."""
    row = connection.execute(rows.project_by("name"), {"name": name}).one_or_none()
    if row is None:
        raise NotFound(f"There is no project called {name}.")
    project = dict(row._mapping)

    def check_rest(rules: Rules) -> Iterator[str]:
        yield from check_tally(connection, seals, project, rules)
        yield from check_accounts(connection, seals, project, rules)
        yield from check_payments(connection, seals, project)
        yield from check_reservation(connection, project)

    found = _LedgerWalk(project, progress).verified(stored(connection, project["id"]), check_rest)
    if found.ok:
        # An account that every other reader refuses must not be reported as intact.
        try:
            rows.living(connection, seals, rows.project_record(row, seals))
        except LedgerCorrupted as error:
            problems = [f"account: {error.found} {error.cause}"]
            return found.model_copy(update={"problems": problems})
    return found


def verify_export(path: Path, progress: Progress | None = None) -> Verification:
    """Verify an export from the file alone: all but what is stored outside a project's own ledger.

    Raises ArchiveError when the file is not an export.
    """
    with archive.opened(path) as (project, entries):
        return _LedgerWalk(project, progress).verified(archive.pages(entries), lambda _: ())


class _Kind:
    """Fields that many entries share, and what follows from them."""

    def __init__(self, fields: Sequence[Any]) -> None:
        self.fields = dict(zip(KIND_FIELDS, fields, strict=True))
        try:
            self.framed: bytes | None = frame(*fields)
        except TypeError:
            self.framed = None  # a value of a type that is never written
        self.problems: Sequence[str] = ()
        self.count = 0


class _LedgerWalk:
    """One pass over a project's ledger."""

    def __init__(self, project: Raw, progress: Progress | None) -> None:
        self._project, self._progress = project, progress

    def verified(self, pages: Pages, check_rest: Callable[[Rules], Iterable[str]]) -> Verification:
        """Check the entries of `pages`, then call `check_rest` for what is stored outside them."""
        project, found = self._project, list[str]()
        try:
            terms = Terms.from_json(json.loads(project["terms"]))
            rules = Rules(terms, json.loads(project["events"]))
            published = [tuple(pair) for pair in json.loads(project["published"])]
        except UNREADABLE:
            found.append("terms: they cannot be read")
        else:
            findings = self._findings(pages, terms, rules, published, check_rest)
            try:
                found.extend(islice(findings, MOST_PROBLEMS))
            except UNREADABLE as error:
                found.append(f"account: a value is not of the kind that was written ({error})")
        head = project["head"]
        return Verification(
            project=project["name"],
            charges=whole(project["charges"]),
            head=head.hex() if isinstance(head, bytes) else str(head),
            problems=found,
        )

    def _findings(
        self,
        pages: Pages,
        terms: Terms,
        rules: Rules,
        published: Sequence[tuple[int, ...]],
        check_rest: Callable[[Rules], Iterable[str]],
    ) -> Iterator[str]:
        yield from check_terms(self._project, terms)
        last = yield from self._check_entries(rules, self._counted(pages))
        yield from check_balance(self._project, rules, *last, published)
        yield from check_rest(rules)

    def _check_entries(
        self, rules: Rules, entries: Iterator[StoredEntry]
    ) -> Generator[str, None, tuple[int, bytes]]:
        """Yield what is wrong; return the last entry's number and hash."""
        project = self._project
        last, head = 0, project["genesis"]
        classes = len(json.loads(project["ensemble__info"])["classes"])
        hashed, steady = hasher(project["id"]), rules.steady
        kinds: dict[Sequence[Any], _Kind] = {}
        for entry in entries:
            seq, created_at, query, input = entry[:4]
            shared, counts, hash = entry[KIND], entry[-2], entry[-1]
            if seq != last + 1:
                yield _misnumbered(seq, last)
            kind = kinds.get(shared)
            if kind is None:
                if len(kinds) == _KINDS:
                    _count(rules, kinds)
                kind = kinds[shared] = _Kind(shared)
                kind.problems = list(check_entry(project, rules, classes, kind.fields))
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
                problems = [*problems, *rules.follow({**kind.fields, "seq": seq})]
            for problem in problems:
                yield f"entry {seq}: {problem}"
            if counts is not None or kind.fields["outcome"] in rules.counted:
                for problem in check_counted(rules, classes, kind.fields, counts):
                    yield f"entry {seq}: {problem}"
            head, last = hash, seq
        if steady:
            _count(rules, kinds)
        return last, head

    def _counted(self, pages: Pages) -> Iterator[StoredEntry]:
        done, total = 0, self._project["charges"]
        for page in pages:
            yield from page
            done += len(page)
            if self._progress is not None:
                self._progress(done, total)


def _count(rules: Rules, kinds: dict[Sequence[Any], _Kind]) -> None:
    for kind in kinds.values():
        rules.add(kind.fields, kind.count)
    kinds.clear()


def _misnumbered(seq: int, last: int) -> str:
    if seq <= last:
        return f"entry {seq}: entries are numbered from 1"
    if seq == last + 2:
        return f"entry {last + 1}: missing"
    return f"entries {last + 1} to {seq - 1}: missing"
