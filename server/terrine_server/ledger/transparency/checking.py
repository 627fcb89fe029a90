"""Checks that the tree holds the ledger's entries and nothing else, and that it never forked.

One walk over the leaves, in constant memory: each is held against the entry that it stands for, and
the root is recomputed at every size of which there is a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, select

from terrine_protocol.transparency import trees
from terrine_protocol.transparency.checkpoints import Checkpoint
from terrine_protocol.transparency.leaves import commitment
from terrine_protocol.transparency.notes import Note, NoteError
from terrine_protocol.transparency.policies import Policy
from terrine_protocol.transparency.tiles import WIDTH
from terrine_server.ledger.store.tables import (
    administrative_log,
    charges,
    projects,
    tree_leaves,
    tree_nodes,
)
from terrine_server.ledger.transparency import tree

PAGE = 5000
SLACK = timedelta(minutes=5)
"""How far the clocks of owner and witnesses may differ, and how long a charge may take to commit.
An entry that is older than a cosignature by more should be in the tree that was cosigned."""


@dataclass
class LogCheck:
    """What was found: leaves, entries that are not logged yet, who cosigned when, what is wrong."""

    size: int = 0
    waiting: int = 0
    cosigned: Mapping[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True)
class _Seen:
    """A checkpoint to hold the tree against. `cosigned`: when a witness first saw it."""

    what: str
    checkpoint: Checkpoint
    cosigned: datetime | None


def check(
    connection: Connection, policy: Policy, current: str | None, earlier: Mapping[str, str]
) -> LogCheck:
    """Check the tree, its `current` checkpoint, and `earlier` ones, by what they are called.

    The connection's transaction must read one snapshot throughout.
    """
    found = LogCheck(size=tree.size(connection))
    head = tree.head(connection)
    if head is None or current is None:
        found.problems.append("no checkpoint was ever signed: does a server with a key run?")
        return found
    if head.id != 1:
        found.problems.append("the row of the tree's head is not the one that was made")
    seen = list(_checkpoints(policy, current, earlier, found))
    for each in seen:
        if each.checkpoint.size > found.size:
            found.problems.append(
                f"{each.what} is of {each.checkpoint.size} leaves, but there are {found.size}: "
                "leaves were removed, or an older backup was restored"
            )
    roots = _walk(connection, head.blinding, found, seen)
    for each in seen:
        root = roots.get(each.checkpoint.size)
        if root is not None and root != each.checkpoint.root:
            found.problems.append(
                f"{each.what} has another root than the first {each.checkpoint.size} leaves: the "
                "log told two histories"
            )
    found.waiting = sum(tree.waiting(connection, each) for each in tree.sources(connection))
    return found


def _checkpoints(
    policy: Policy, current: str, earlier: Mapping[str, str], found: LogCheck
) -> Iterator[_Seen]:
    try:
        opened = policy.opened(Note.parse(current))
        found.cosigned = opened.cosigned
        yield _Seen("the last checkpoint", opened.checkpoint, _first(opened.cosigned))
    except NoteError as error:
        found.problems.append(f"the last checkpoint: {error}")
    for what, text in earlier.items():
        try:
            note = Note.parse(text)
            checkpoint = Checkpoint.parse(note.text)
            keys = [log.key for log in policy.logs if log.key.name == checkpoint.origin]
            if not note.signers(keys):
                raise NoteError("no log of the policy signed it")
            yield _Seen(f"the checkpoint {what}", checkpoint, _first(policy.cosigned(note)))
        except NoteError as error:
            found.problems.append(f"the checkpoint {what}: {error}")


def _first(cosigned: Mapping[str, int]) -> datetime | None:
    first = min(cosigned.values(), default=None)
    return None if first is None else datetime.fromtimestamp(first).astimezone()


def _walk(
    connection: Connection, blinding: bytes, found: LogCheck, seen: Sequence[_Seen]
) -> dict[int, bytes]:
    """Hold every leaf against its entry; return the roots at the sizes of checkpoints."""
    wanted = {each.checkpoint.size for each in seen}
    starts = {source.number: source.start for source in tree.sources(connection, with_news=False)}
    named = {tree.LOG: "the administrative log"}
    named |= {
        row.id: row.name for row in connection.execute(select(projects.c.id, projects.c.name))
    }
    last: dict[int, int] = {}
    nodes, grown = _Nodes(connection), trees.Frontier()
    roots = {0: trees.EMPTY} if 0 in wanted else {}
    for page in _pages(connection):
        entries = _entries(connection, page)
        for row in page:
            if row.position != grown.size:
                found.problems.append(f"leaf {grown.size} is missing")
                return roots
            where = f"leaf {row.position}, entry {row.seq} of {named.get(row.source, 'nobody')},"
            entry = entries.get((row.source, row.seq))
            start = starts.get(row.source)
            if row.seq != last.get(row.source, 0) + 1:
                found.problems.append(f"{where} is out of order")
            elif entry is None or start is None:
                found.problems.append(f"{where} is in the log, but not in the ledger any more")
            elif commitment(tree.leaf_key(blinding, start), entry.hash) != row.entry:
                found.problems.append(f"{where} is not the entry that is in the ledger")
            else:
                found.problems += _out_of_time(where, row.position, entry.created_at, seen)
            last[row.source] = row.seq
            leaf = trees.leaf_hash(row.entry)
            grown.append(leaf)
            found.problems += nodes.push(leaf)
            if grown.size in wanted:
                roots[grown.size] = grown.root
            if len(found.problems) > 100:
                found.problems.append("and more")
                return roots
    return roots


def _out_of_time(
    where: str, position: int, created_at: Any, seen: Sequence[_Seen]
) -> Iterator[str]:
    """Yield what is wrong with an entry's time, given when trees were cosigned."""
    if not isinstance(created_at, datetime):
        return
    for each in seen:
        if each.cosigned is None:
            continue
        logged = position < each.checkpoint.size
        if not logged and created_at + SLACK < each.cosigned:
            yield (
                f"{where} has the time {created_at:%Y-%m-%d %H:%M:%S}, but {each.what} was "
                "cosigned without it later: it is back-dated"
            )
        if logged and created_at - SLACK > each.cosigned:
            yield (
                f"{where} has the time {created_at:%Y-%m-%d %H:%M:%S}, but {each.what} was "
                "cosigned with it before"
            )


def _pages(connection: Connection) -> Iterator[Sequence[Any]]:
    after, table = -1, tree_leaves.c
    while True:
        query = select(tree_leaves).where(table.position > after).order_by(table.position)
        page = connection.execute(query.limit(PAGE)).all()
        if not page:
            return
        yield page
        after = page[-1].position


def _entries(connection: Connection, page: Sequence[Any]) -> dict[tuple[int, int], Any]:
    """Return number, hash and time of the entries that a page's leaves stand for."""
    found: dict[tuple[int, int], Any] = {}
    by_source = sorted((row.source, row.seq) for row in page)
    for source, group in groupby(by_source, key=lambda pair: pair[0]):
        seqs = [seq for _, seq in group]
        if source == tree.LOG:
            entry = administrative_log.c
            query = select(entry.seq, entry.hash, entry.created_at)
        else:
            entry = charges.c
            query = select(entry.seq, entry.hash, entry.created_at)
            query = query.where(entry.project_id == source)
        within = query.where(entry.seq >= seqs[0], entry.seq <= seqs[-1]).order_by(entry.seq)
        for row in connection.execute(within):
            found[source, row.seq] = row
    return found


class _Nodes:
    """Holds the stored nodes against those that the leaves make."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: list[list[bytes]] = [[]]
        self._made = [0]

    def push(self, hash: bytes, level: int = 0) -> Iterator[str]:
        """Add a hash of a level; yield what is wrong with the nodes that it completes."""
        self._open[level].append(hash)
        if len(self._open[level]) < WIDTH:
            return
        node = trees.perfect_root(self._open[level])
        self._open[level].clear()
        if level + 1 == len(self._open):
            self._open.append([])
            self._made.append(0)
        above = level + 1
        place, table = self._made[above], tree_nodes.c
        self._made[above] += 1
        query = select(table.hash).where(table.level == above, table.position == place)
        if self._connection.execute(query).scalar_one_or_none() != node:
            yield f"node {place} of level {above} is not that of its leaves"
        yield from self.push(node, above)
