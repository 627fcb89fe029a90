"""Verifies a project's ledger, in the database or in an export, in one pass over its entries.

In constant memory. Nearly all the time goes into reading and hashing entries: what depends only on
fields that many entries share is computed once for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from terrine_server.errors import LedgerCorrupted, NotFound
from terrine_server.ledger.anchors import Anchor
from terrine_server.ledger.chain import KIND_FIELDS, frame, frame_counts, hasher, iso
from terrine_server.ledger.records import VerificationRecord
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import rows
from terrine_server.ledger.store.soundness import UNREADABLE
from terrine_server.ledger.store.tables import projects
from terrine_server.ledger.verifying import archive
from terrine_server.ledger.verifying.checks import (
    Raw,
    Rules,
    check_accounts,
    check_balance,
    check_counted,
    check_entry,
    check_keys,
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
    anchor: Anchor | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> VerificationRecord:
    """See `Ledger.verify`. The connection's transaction must read one snapshot throughout."""
    row = connection.execute(rows.select_projects().where(projects.c.name == name)).one_or_none()
    if row is None:
        raise NotFound(f"There is no project called {name}.")
    project = dict(row._mapping)

    def check_rest(rules: Rules) -> Iterator[str]:
        yield from check_tally(connection, seals, project, rules)
        yield from check_accounts(connection, seals, project, rules)
        yield from check_reservation(connection, project)
        yield from check_keys(connection, seals, project)

    walk = _Walk(project, anchor, resume, progress)
    found = walk.verified(stored(connection, project["id"], walk.after), check_rest)
    if found.ok:
        # An account that every other reader refuses must not be reported as intact.
        try:
            rows.project_record(row, seals)
        except LedgerCorrupted as error:
            problems = [f"account: {error.found} {error.cause}"]
            return replace(found, problems=problems, anchor=None)
    return found


def verify_export(
    path: Path,
    anchors: Mapping[str, Anchor],
    resume: bool = False,
    progress: Progress | None = None,
) -> VerificationRecord:
    """Verify an export from the file alone: all but what is stored outside a project's own ledger.

    Raises ArchiveError when the file is not an export.
    """
    with archive.opened(path) as (project, entries):
        walk = _Walk(project, anchors.get(project["name"]), resume, progress)
        return walk.verified(archive.pages(entries, walk.after), lambda _: ())


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


class _Walk:
    """One pass over a project's ledger, from its start or from an anchor."""

    def __init__(
        self, project: Raw, anchor: Anchor | None, resume: bool, progress: Progress | None
    ) -> None:
        self._project, self._anchor, self._progress = project, anchor, progress
        self._start = anchor if resume and anchor is not None and anchor.entries else None

    @property
    def after(self) -> int | None:
        """Entries up to this number are not read: the signed anchor vouches for them."""
        return self._start.entries - 1 if self._start is not None else None

    def verified(
        self, pages: Pages, check_rest: Callable[[Rules], Iterable[str]]
    ) -> VerificationRecord:
        """Check the entries of `pages`, then call `check_rest` for what is stored outside them."""
        project, rules, found = self._project, None, list[str]()
        try:
            terms = Terms.from_json(json.loads(project["terms"]))
            rules = Rules(terms, json.loads(project["events"]), self._start)
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
        return VerificationRecord(
            project=project["name"],
            charges=whole(project["charges"]),
            head=head.hex() if isinstance(head, bytes) else str(head),
            problems=found,
            vouched=self._start.entries if self._start is not None else 0,
            anchor=None if found or rules is None else self._new_anchor(rules),
        )

    def _new_anchor(self, rules: Rules) -> Anchor:
        return Anchor(
            project=self._project["name"],
            made_at=iso(datetime.now(UTC)),
            genesis=self._project["genesis"].hex(),
            entries=self._project["charges"],
            head=self._project["head"].hex(),
            closed=self._project["status"] == "closed",
            account=rules.account,
            outcomes=dict(sorted(rules.outcomes.items())),
            published=tuple(rules.published),
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
        yield from self._check_anchored_account()
        last = yield from self._check_entries(rules, self._counted(pages))
        if last is not None:
            yield from check_balance(self._project, rules, *last, published)
            yield from check_rest(rules)

    def _check_anchored_account(self) -> Iterator[str]:
        anchor, project = self._anchor, self._project
        if anchor is None:
            return
        if anchor.genesis != project["genesis"].hex():
            yield f"anchor: the terms are not those anchored at {anchor.made_at}"
        if anchor.closed and project["status"] != "closed":
            yield f"anchor: it was closed at {anchor.made_at}, and is {project['status']} now"

    def _check_entries(
        self, rules: Rules, entries: Iterator[StoredEntry]
    ) -> Generator[str, None, tuple[int, bytes] | None]:
        """Yield what is wrong; return the last entry's number and hash.

        Returns None if the anchor's entry is not there: nothing vouches for the skipped entries.
        """
        project, anchor = self._project, self._anchor
        last, head = 0, project["genesis"]
        if self._start is not None:
            first = next(entries, None)
            if first is None or first[0] != self._start.entries:
                yield _gone(self._start)
                return None
            if first[-1].hex() != self._start.head:
                yield _another(self._start)
                return None
            last, head = first[0], first[-1]
        anchored = anchor.entries if anchor is not None else None
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
                if steady:
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
            if steady:
                problems = kind.problems
            else:
                fields = {**kind.fields, "seq": seq, "created_at": created_at}
                problems = [*check_entry(project, rules, classes, fields)]
                problems += rules.follow(fields)
            for problem in problems:
                yield f"entry {seq}: {problem}"
            if counts is not None or kind.fields["outcome"] in rules.counted:
                for problem in check_counted(rules, classes, kind.fields, counts):
                    yield f"entry {seq}: {problem}"
            if seq == anchored and anchor is not None and hash.hex() != anchor.head:
                yield _another(anchor)
            head, last = hash, seq
        if steady:
            _count(rules, kinds)
        if anchor is not None and last < anchor.entries:
            yield _gone(anchor)
        return last, head

    def _counted(self, pages: Pages) -> Iterator[StoredEntry]:
        done, total = self.after or 0, self._project["charges"]
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


def _gone(anchor: Anchor) -> str:
    return (
        f"anchor: entry {anchor.entries}, there at {anchor.made_at}, is gone: "
        "an older backup was restored, or the end was cut off"
    )


def _another(anchor: Anchor) -> str:
    return (
        f"anchor: entry {anchor.entries} is not the one of {anchor.made_at}: "
        "it, or entries before it, were written anew"
    )
