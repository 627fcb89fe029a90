"""The transparency log of a ledger: grown, read, and its last checkpoint kept."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Select, Update, func, insert, select, text, update

from terrine_protocol import transparency
from terrine_protocol.transparency import (
    HEIGHT,
    WIDTH,
    Checkpoint,
    Note,
    NoteError,
    Policy,
    Tile,
    Tiles,
    commitment,
    join_bundle,
)
from terrine_server.errors import DatabaseUnavailable, NotFound
from terrine_server.ledger import database
from terrine_server.ledger.chain import START
from terrine_server.ledger.database import reading, snapshot, write, writing
from terrine_server.ledger.rows import DatabaseHandle
from terrine_server.ledger.schema import (
    administrative_log,
    charges,
    projects,
    tree_head,
    tree_leaves,
    tree_nodes,
)

LOG = 0
"""The source of entries of the administrative log. A project's id is larger."""


@dataclass(frozen=True)
class EntrySource:
    """Where entries come from: its number, the hash that its chain starts from, what is logged."""

    number: int
    start: bytes
    logged: int


@dataclass(frozen=True)
class EntryRun:
    """Entries of one source that follow each other: the first one's number, all commitments."""

    source: int
    seq: int
    entries: Sequence[bytes]


@dataclass(frozen=True)
class TreeGrowth:
    """What is to be added to a tree of `size` leaves, and the nodes that it completes.

    `begins`: nothing was ever logged.
    """

    size: int
    begins: bool
    blinding: bytes
    runs: Sequence[EntryRun]
    nodes: Sequence[Mapping[str, Any]]

    @property
    def leaves(self) -> int:
        """How many leaves are added."""
        return sum(len(run.entries) for run in self.runs)


def leaf_key(blinding: bytes, start: bytes) -> bytes:
    """Return the leaf key of a source, from the hash that its chain starts from."""
    return hmac.digest(blinding, b"terrine/leaf-key/1" + start, hashlib.sha256)


def load_head(connection: Connection) -> Any:
    """Return the row of `tree_head`; None before anything was logged."""
    return connection.execute(select(tree_head)).one_or_none()


def size(connection: Connection) -> int:
    """Return the number of leaves."""
    last = connection.execute(select(func.max(tree_leaves.c.position))).scalar_one()
    return 0 if last is None else int(last) + 1


def sources(connection: Connection, with_news: bool = True) -> list[EntrySource]:
    """Return the administrative log and the projects, or those `with_news` for the tree."""
    found = [EntrySource(LOG, START, _logged(connection, LOG))]
    logged = (
        select(func.coalesce(func.max(tree_leaves.c.seq), 0))
        .where(tree_leaves.c.source == projects.c.id)
        .scalar_subquery()
    )
    query = select(projects.c.id, projects.c.genesis, logged.label("logged")).order_by(
        projects.c.id
    )
    if with_news:
        query = query.where(projects.c.charges > logged)
    found += [EntrySource(row.id, row.genesis, row.logged) for row in connection.execute(query)]
    return found


def waiting(connection: Connection, source: EntrySource) -> int:
    """Return how many of a source's entries are not in the tree."""
    count = select(func.count()).select_from(_entries_after(source).subquery())
    return int(connection.execute(count).scalar_one())


def growth(connection: Connection, most: int) -> TreeGrowth:
    """Return what is to be added next: up to so many entries, in the order of their sources.

    All hashes are computed here, so that whoever adds it has the database to itself only briefly.
    """
    row, before, runs, left = load_head(connection), size(connection), [], most
    blinding = secrets.token_bytes(32) if row is None else row.blinding
    for source in sources(connection):
        found = connection.execute(_entries_after(source).limit(left)).all()
        key, left = leaf_key(blinding, source.start), left - len(found)
        # An entry that somebody removed is a gap, and stays one.
        whole = not found or found[-1].seq - found[0].seq == len(found) - 1
        for part in [found] if whole and found else [[each] for each in found]:
            runs.append(
                EntryRun(source.number, part[0].seq, [commitment(key, e.hash) for e in part])
            )
        if not left:
            break
    hashes = [transparency.leaf_hash(entry) for run in runs for entry in run.entries]
    nodes = _completed(connection, before, hashes)
    return TreeGrowth(before, row is None, blinding, runs, nodes)


def grow(connection: Connection, added: TreeGrowth) -> None:
    """Add leaves and nodes."""
    if added.begins:
        write(connection, insert(tree_head).values(id=1, blinding=added.blinding))
    position = added.size
    for run in added.runs:
        count = len(run.entries)
        given = {
            "position": position,
            "source": run.source,
            "seq": run.seq,
            "entries": b"".join(run.entries),
            "count": count,
        }
        write(connection, _ADD, [given], count)
        position += count
    if added.nodes:
        write(connection, insert(tree_nodes), added.nodes, len(added.nodes))


# One statement for a run, not one for each leaf: five times as fast, and threads of this process
# that wait for the interpreter or for SQLite's one writer wait for less.
_ADD = text(
    """
    INSERT INTO tree_leaves (position, source, seq, entry)
    WITH RECURSIVE places (i) AS (
        SELECT 0 UNION ALL SELECT i + 1 FROM places WHERE i + 1 < :count
    )
    SELECT CAST(:position AS bigint) + i, CAST(:source AS bigint), CAST(:seq AS bigint) + i,
        substr(:entries, 1 + 32 * i, 32)
    FROM places
    """
)


def _entries_after(source: EntrySource) -> Select[Any]:
    """Number and hash of a source's entries after those that are logged, in order."""
    if source.number == LOG:
        entry = administrative_log.c
        query = select(entry.seq, entry.hash)
    else:
        entry = charges.c
        query = select(entry.seq, entry.hash).where(entry.project_id == source.number)
    return query.where(entry.seq > source.logged).order_by(entry.seq)


def _completed(connection: Connection, start: int, hashes: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the nodes that leaves with these hashes complete, from position `start` on."""
    nodes: list[dict[str, Any]] = []
    level = 0
    while True:
        # What the last tile of this level held before is needed where it becomes full.
        whole = start - start % WIDTH
        full = (start + len(hashes) - whole) // WIDTH
        if not full:
            return nodes
        hashes = [*_hashes(connection, Tile(level, whole // WIDTH, start - whole)), *hashes]
        hashes = [
            transparency.perfect_root(hashes[i * WIDTH : (i + 1) * WIDTH]) for i in range(full)
        ]
        level, start = level + 1, whole // WIDTH
        nodes += [
            {"level": level, "position": start + place, "hash": node}
            for place, node in enumerate(hashes)
        ]


def root(connection: Connection, leaves: int) -> bytes:
    """Return the root over the first so many leaves."""
    return transparency.subtree_root(0, leaves, tiles(connection, leaves).perfect)


def tiles(connection: Connection, leaves: int) -> Tiles:
    """Return the tiles of the tree of the first so many leaves."""
    return Tiles(leaves, lambda tile: tile_bytes(connection, tile))


def tile_bytes(connection: Connection, tile: Tile) -> bytes:
    """Return a tile, or a bundle of entries; shorter than its width if the tree is too small."""
    if tile.level is None:
        return join_bundle(_load_entries_of_tile(connection, tile))
    return b"".join(_hashes(connection, tile))


def _hashes(connection: Connection, tile: Tile) -> list[bytes]:
    if not tile.level:
        return [transparency.leaf_hash(entry) for entry in _load_entries_of_tile(connection, tile)]
    table, first = tree_nodes.c, tile.index * WIDTH
    query = (
        select(table.hash)
        .where(table.level == tile.level)
        .where(table.position >= first, table.position < first + tile.width)
        .order_by(table.position)
    )
    return list(connection.execute(query).scalars())


def _load_entries_of_tile(connection: Connection, tile: Tile) -> list[bytes]:
    table, first = tree_leaves.c, tile.index * WIDTH
    query = (
        select(table.entry)
        .where(table.position >= first, table.position < first + tile.width)
        .order_by(table.position)
    )
    return list(connection.execute(query).scalars())


def _logged(connection: Connection, source: int) -> int:
    query = select(func.max(tree_leaves.c.seq)).where(tree_leaves.c.source == source)
    return connection.execute(query).scalar_one() or 0


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
    found = LogCheck(size=size(connection))
    head = load_head(connection)
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
    found.waiting = sum(waiting(connection, each) for each in sources(connection))
    return found


def _checkpoints(
    policy: Policy, current: str, earlier: Mapping[str, str], found: LogCheck
) -> Iterator[_Seen]:
    try:
        opened = policy.open(Note.parse(current))
        found.cosigned = opened.cosigned
        yield _Seen("the last checkpoint", opened.checkpoint, _first(opened.cosigned))
    except NoteError as error:
        found.problems.append(f"the last checkpoint: {error}")
    for what, note_text in earlier.items():
        try:
            note = Note.parse(note_text)
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
    starts = {source.number: source.start for source in sources(connection, with_news=False)}
    named = {LOG: "the administrative log"}
    named |= {
        row.id: row.name for row in connection.execute(select(projects.c.id, projects.c.name))
    }
    last: dict[int, int] = {}
    nodes, grown = _Nodes(connection), transparency.Frontier()
    roots = {0: transparency.EMPTY_ROOT} if 0 in wanted else {}
    for page in _pages(connection):
        entries = _load_entries_of_page(connection, page)
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
            elif commitment(leaf_key(blinding, start), entry.hash) != row.entry:
                found.problems.append(f"{where} is not the entry that is in the ledger")
            else:
                found.problems += _out_of_time(where, row.position, entry.created_at, seen)
            last[row.source] = row.seq
            leaf = transparency.leaf_hash(row.entry)
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


def _load_entries_of_page(
    connection: Connection, page: Sequence[Any]
) -> dict[tuple[int, int], Any]:
    """Return number, hash and time of the entries that a page's leaves stand for."""
    found: dict[tuple[int, int], Any] = {}
    by_source = sorted((row.source, row.seq) for row in page)
    for source, group in groupby(by_source, key=lambda pair: pair[0]):
        seqs = [seq for _, seq in group]
        if source == LOG:
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
        node = transparency.perfect_root(self._open[level])
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


BATCH = 1000
"""Leaves appended in one transaction. On SQLite, charges wait for it."""
_PAGE = 5000


class Transparency(DatabaseHandle):
    """The Merkle tree over a ledger's entries: no charge waits for it, and none reads it."""

    def grow_tree(self) -> int:
        """Append every entry that is not in the tree yet, and return its size.

        Entries that were committed before this began are in it afterwards. Raises
        DatabaseUnavailable.
        """
        while True:
            with snapshot(self._engine) as connection:
                added = growth(connection, BATCH)
            if added.runs:
                with writing(self._engine) as connection:
                    database.exclude_others(connection)
                    if size(connection) != added.size:
                        added = growth(connection, BATCH)  # another process was sooner
                    grow(connection, added)
            if added.leaves < BATCH:
                return added.size + added.leaves

    def growing(self) -> AbstractContextManager[bool]:
        """Whether this process may grow the tree and sign its root now: no other does."""
        return database.only_one(self._engine)

    def checkpoint(self) -> str | None:
        """Return the last checkpoint that was signed, with its cosignatures, if there is one."""
        with reading(self._engine) as connection:
            return connection.execute(select(tree_head.c.checkpoint)).scalar_one_or_none()

    def keep_checkpoint(self, note: str, before: str | None) -> None:
        """Keep a checkpoint instead of the one `before`.

        Raises DatabaseUnavailable if another process has kept one meanwhile.
        """
        with writing(self._engine) as connection:
            done = connection.execute(_kept(note, before))
            if done.rowcount != 1:
                raise DatabaseUnavailable("Another process signed a checkpoint. Retry.")

    def tree_root(self, size: int) -> bytes:
        """Return the root over the first `size` leaves. Raises ProofError if there are fewer."""
        with snapshot(self._engine) as connection:
            return root(connection, size)

    def consistency(self, old: int, size: int) -> list[bytes]:
        """Return the proof that the tree of `size` leaves begins with that of `old` leaves.

        Raises ProofError if there are fewer leaves.
        """
        with snapshot(self._engine) as connection:
            return transparency.prove_consistency(old, size, tiles(connection, size).perfect)

    def tile(self, tile: Tile) -> bytes:
        """Return a tile, or a bundle of entries. Raises NotFound if the tree has no such tile."""
        unit = 1 if tile.level is None else 1 << HEIGHT * tile.level
        with snapshot(self._engine) as connection:
            if size(connection) // unit < tile.index * 256 + tile.width:
                raise NotFound("The log has no such tile yet.")
            return tile_bytes(connection, tile)

    def leaf_key(self, project: str | None) -> bytes | None:
        """Return the leaf key of a project, or of the administrative log for None.

        It is None before anything was logged. Raises NotFound.
        """
        with reading(self._engine) as connection:
            head = load_head(connection)
            source = self._source(connection, project)
            return None if head is None else leaf_key(head.blinding, source.start)

    def positions(self, project: str | None, after_seq: int, limit: int) -> list[tuple[int, int]]:
        """Return number and position in the tree of up to `limit` entries after `after_seq`.

        Those of a project, or of the administrative log for None; in order. Raises NotFound.
        """
        with reading(self._engine) as connection:
            source = self._source(connection, project)
            leaves = tree_leaves.c
            query = (
                select(leaves.seq, leaves.position)
                .where(leaves.source == source.number, leaves.seq > after_seq)
                .order_by(leaves.seq)
                .limit(limit)
            )
            return [(row.seq, row.position) for row in connection.execute(query)]

    def leaves(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield source, number and commitment of every leaf, in order, in constant memory."""
        after, table = -1, tree_leaves.c
        while True:
            query = select(tree_leaves).where(table.position > after)
            with reading(self._engine) as connection:
                page = connection.execute(query.order_by(table.position).limit(_PAGE)).all()
            if not page:
                return
            for row in page:
                if row.position != after + 1:
                    raise NotFound(f"Leaf {after + 1} is missing.")
                after = row.position
                yield row.source, row.seq, row.entry

    def check_tree(self, policy: Policy, earlier: Mapping[str, str]) -> LogCheck:
        """Hold the tree against the ledger's entries, its checkpoint and `earlier` ones."""
        with snapshot(self._engine) as connection:
            head = load_head(connection)
            current = None if head is None else head.checkpoint
            return check(connection, policy, current, earlier)

    def _source(self, connection: Connection, project: str | None) -> EntrySource:
        if project is None:
            return EntrySource(LOG, START, 0)
        query = select(projects.c.id, projects.c.genesis).where(projects.c.name == project)
        row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no project called {project}.")
        return EntrySource(row.id, row.genesis, 0)


def _kept(note: str, before: str | None) -> Update:
    was = tree_head.c.checkpoint
    unchanged = was.is_(None) if before is None else was == before
    return update(tree_head).where(unchanged).values(checkpoint=note)
