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

from sqlalchemy import Column, Connection, Select, func, insert, select, text, update

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
from terrine_server.ledger import locks
from terrine_server.ledger.chain import LOG_START
from terrine_server.ledger.database import Access, write, writing
from terrine_server.ledger.schema import (
    administrative_log,
    charges,
    projects,
    tree_head,
    tree_leaves,
    tree_nodes,
)

# Leaves appended in one transaction. On SQLite, charges wait for it.
MAX_NEW_LEAVES = 1000
# The source of entries of the administrative log. A project's id is larger.
LOG_SOURCE = 0


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


def derive_leaf_key(blinding: bytes, start: bytes) -> bytes:
    """Return the leaf key of a source, from the hash that its chain starts from."""
    return hmac.digest(blinding, b"terrine/leaf-key/1" + start, hashlib.sha256)


def load_head(connection: Connection) -> Any:
    """Return the row of `tree_head`; None before anything was logged."""
    return connection.execute(select(tree_head)).one_or_none()


def count_leaves(connection: Connection) -> int:
    """Return the number of leaves."""
    last = connection.execute(select(func.max(tree_leaves.c.position))).scalar_one()
    return 0 if last is None else int(last) + 1


def load_sources(connection: Connection, with_news: bool = True) -> list[EntrySource]:
    """Return the administrative log and the projects, or those `with_news` for the tree."""
    found = [EntrySource(LOG_SOURCE, LOG_START, _read_last_logged(connection, LOG_SOURCE))]
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


def count_waiting(connection: Connection, source: EntrySource) -> int:
    """Return how many of a source's entries are not in the tree."""
    count = select(func.count()).select_from(_entries_after(source).subquery())
    return int(connection.execute(count).scalar_one())


def compute_growth(connection: Connection) -> TreeGrowth:
    """Return what is to be added next: up to `MAX_NEW_LEAVES` entries, by their sources.

    All hashes are computed here, so that whoever adds it has the database to itself only briefly.
    """
    row, before, runs, left = load_head(connection), count_leaves(connection), [], MAX_NEW_LEAVES
    blinding = secrets.token_bytes(32) if row is None else row.blinding
    for source in load_sources(connection):
        found = connection.execute(_entries_after(source).limit(left)).all()
        key, left = derive_leaf_key(blinding, source.start), left - len(found)
        # An entry that somebody removed is a gap, and stays one.
        whole = not found or found[-1].seq - found[0].seq == len(found) - 1
        for part in [found] if whole and found else [[each] for each in found]:
            runs.append(
                EntryRun(source.number, part[0].seq, [commitment(key, e.hash) for e in part])
            )
        if not left:
            break
    hashes = [transparency.leaf_hash(entry) for run in runs for entry in run.entries]
    nodes = _complete_nodes(connection, before, hashes)
    return TreeGrowth(before, row is None, blinding, runs, nodes)


def append_leaves(connection: Connection, added: TreeGrowth) -> None:
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
    query = _select_entries(source.number)
    return query.where(query.selected_columns.seq > source.logged)


def _select_entries(source: int) -> Select[Any]:
    """Select number, hash and time of a source's entries, in order."""
    if source == LOG_SOURCE:
        entry = administrative_log.c
        return select(entry.seq, entry.hash, entry.created_at).order_by(entry.seq)
    entry = charges.c
    query = select(entry.seq, entry.hash, entry.created_at)
    return query.where(entry.project_id == source).order_by(entry.seq)


def _complete_nodes(
    connection: Connection, start: int, hashes: Sequence[bytes]
) -> list[dict[str, Any]]:
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


def tiles_of(connection: Connection, leaves: int) -> Tiles:
    """Return the tiles of the tree of the first so many leaves."""
    return Tiles(leaves, lambda tile: load_tile(connection, tile))


def load_tile(connection: Connection, tile: Tile) -> bytes:
    """Return a tile, or a bundle of entries; shorter than its width if the tree is too small."""
    if tile.level is None:
        return join_bundle(_load_entries_of_tile(connection, tile))
    return b"".join(_hashes(connection, tile))


def _hashes(connection: Connection, tile: Tile) -> list[bytes]:
    if not tile.level:
        return [transparency.leaf_hash(entry) for entry in _load_entries_of_tile(connection, tile)]
    nodes = select(tree_nodes.c.hash).where(tree_nodes.c.level == tile.level)
    return _load_range(connection, nodes, tree_nodes.c.position, tile)


def _load_entries_of_tile(connection: Connection, tile: Tile) -> list[bytes]:
    return _load_range(connection, select(tree_leaves.c.entry), tree_leaves.c.position, tile)


def _load_range(
    connection: Connection, query: Select[Any], position: Column[Any], tile: Tile
) -> list[bytes]:
    first = tile.index * WIDTH
    here = query.where(position >= first, position < first + tile.width).order_by(position)
    return list(connection.execute(here).scalars())


def load_source(connection: Connection, project: str | None) -> EntrySource:
    """Return a project as a source, or the administrative log for None. Raises NotFound."""
    if project is None:
        return EntrySource(LOG_SOURCE, LOG_START, 0)
    query = select(projects.c.id, projects.c.genesis).where(projects.c.name == project)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"There is no project called {project}.")
    return EntrySource(row.id, row.genesis, 0)


def _read_last_logged(connection: Connection, source: int) -> int:
    query = select(func.max(tree_leaves.c.seq)).where(tree_leaves.c.source == source)
    return connection.execute(query).scalar_one() or 0


_PAGE_LEAVES = 5000
# How far the clocks of owner and witnesses may differ, and how long a charge may take to commit. An
# entry that is older than a cosignature by more should be in the tree that was cosigned.
MAX_CLOCK_DIFFERENCE = timedelta(minutes=5)


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
class _KnownCheckpoint:
    """A checkpoint to compare the tree with. `cosigned`: when a witness first saw it."""

    what: str
    checkpoint: Checkpoint
    cosigned: datetime | None


def check(
    connection: Connection, policy: Policy, current: str | None, earlier: Mapping[str, str]
) -> LogCheck:
    """Check the tree, its `current` checkpoint, and `earlier` ones, by what they are called.

    The connection's transaction must read one snapshot throughout.
    """
    found = LogCheck(size=count_leaves(connection))
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
    found.waiting = sum(count_waiting(connection, each) for each in load_sources(connection))
    return found


def _checkpoints(
    policy: Policy, current: str, earlier: Mapping[str, str], found: LogCheck
) -> Iterator[_KnownCheckpoint]:
    try:
        opened = policy.open(Note.parse(current))
        found.cosigned = opened.cosigned
        yield _KnownCheckpoint("the last checkpoint", opened.checkpoint, _first(opened.cosigned))
    except NoteError as error:
        found.problems.append(f"the last checkpoint: {error}")
    for what, note_text in earlier.items():
        try:
            note = Note.parse(note_text)
            checkpoint = Checkpoint.parse(note.text)
            keys = [log.key for log in policy.logs if log.key.name == checkpoint.origin]
            if not note.signers(keys):
                raise NoteError("no log of the policy signed it")
            yield _KnownCheckpoint(
                f"the checkpoint {what}", checkpoint, _first(policy.cosigned(note))
            )
        except NoteError as error:
            found.problems.append(f"the checkpoint {what}: {error}")


def _first(cosigned: Mapping[str, int]) -> datetime | None:
    first = min(cosigned.values(), default=None)
    return None if first is None else datetime.fromtimestamp(first).astimezone()


def _walk(
    connection: Connection, blinding: bytes, found: LogCheck, seen: Sequence[_KnownCheckpoint]
) -> dict[int, bytes]:
    """Compare every leaf with its entry; return the roots at the sizes of checkpoints."""
    wanted = {each.checkpoint.size for each in seen}
    starts = {source.number: source.start for source in load_sources(connection, with_news=False)}
    named = {LOG_SOURCE: "the administrative log"}
    named |= {
        row.id: row.name for row in connection.execute(select(projects.c.id, projects.c.name))
    }
    last: dict[int, int] = {}
    nodes, grown = _Nodes(connection), transparency.Frontier()
    roots = {0: transparency.EMPTY_ROOT} if 0 in wanted else {}
    while page := load_leaves(connection, grown.size):
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
            elif commitment(derive_leaf_key(blinding, start), entry.hash) != row.entry:
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
    where: str, position: int, created_at: Any, seen: Sequence[_KnownCheckpoint]
) -> Iterator[str]:
    """Yield what is wrong with an entry's time, given when trees were cosigned."""
    if not isinstance(created_at, datetime):
        return
    for each in seen:
        if each.cosigned is None:
            continue
        logged = position < each.checkpoint.size
        if not logged and created_at + MAX_CLOCK_DIFFERENCE < each.cosigned:
            yield (
                f"{where} has the time {created_at:%Y-%m-%d %H:%M:%S}, but {each.what} was "
                "cosigned without it later: it is back-dated"
            )
        if logged and created_at - MAX_CLOCK_DIFFERENCE > each.cosigned:
            yield (
                f"{where} has the time {created_at:%Y-%m-%d %H:%M:%S}, but {each.what} was "
                "cosigned with it before"
            )


def load_leaves(connection: Connection, first: int) -> Sequence[Any]:
    """Return a page of leaves, in order, from position `first` on."""
    query = select(tree_leaves).where(tree_leaves.c.position >= first)
    return connection.execute(query.order_by(tree_leaves.c.position).limit(_PAGE_LEAVES)).all()


def _load_entries_of_page(
    connection: Connection, page: Sequence[Any]
) -> dict[tuple[int, int], Any]:
    """Return number, hash and time of the entries that a page's leaves stand for."""
    found: dict[tuple[int, int], Any] = {}
    by_source = sorted((row.source, row.seq) for row in page)
    for source, group in groupby(by_source, key=lambda pair: pair[0]):
        seqs = [seq for _, seq in group]
        query = _select_entries(source)
        within = query.where(query.selected_columns.seq.between(seqs[0], seqs[-1]))
        for row in connection.execute(within):
            found[source, row.seq] = row
    return found


class _Nodes:
    """Compares the stored nodes with those that the leaves make."""

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


class Tree:
    """The transparency log of a ledger. Thread-safe."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def grow(self) -> int:
        """Append every entry that is not in the tree yet, and return its size.

        Entries that were committed before this began are in it afterwards. Raises
        DatabaseUnavailable.
        """
        while True:
            with self._access.snapshot() as connection:
                added = compute_growth(connection)
            if added.runs:
                with writing(self._access.engine) as connection:
                    locks.lock_tree(connection)
                    if count_leaves(connection) != added.size:  # another was sooner
                        added = compute_growth(connection)
                    append_leaves(connection, added)
            if added.leaves < MAX_NEW_LEAVES:
                return added.size + added.leaves

    def try_lock(self) -> AbstractContextManager[bool]:
        """Return whether this process alone may grow the tree and sign its root now."""
        return locks.try_lock_ledger(self._access.engine)

    def checkpoint(self) -> str | None:
        """Return the last checkpoint that was signed, with its cosignatures, if there is one."""
        with self._access.reading() as connection:
            return connection.execute(select(tree_head.c.checkpoint)).scalar_one_or_none()

    def save_checkpoint(self, note: str, before: str | None) -> None:
        """Store a checkpoint in place of the one `before`.

        Raises DatabaseUnavailable if another process has stored one meanwhile.
        """
        with writing(self._access.engine) as connection:
            stored = tree_head.c.checkpoint
            unchanged = stored.is_(None) if before is None else stored == before
            statement = update(tree_head).where(unchanged).values(checkpoint=note)
            if connection.execute(statement).rowcount != 1:
                raise DatabaseUnavailable("Another process signed a checkpoint. Retry.")

    def root(self, size: int) -> bytes:
        """Return the root over the first `size` leaves. Raises ProofError if there are fewer."""
        with self._access.snapshot() as connection:
            return transparency.subtree_root(0, size, tiles_of(connection, size).perfect)

    def consistency(self, old: int, size: int) -> list[bytes]:
        """Return the proof that the tree of `size` leaves begins with that of `old` leaves.

        Raises ProofError if there are fewer leaves.
        """
        with self._access.snapshot() as connection:
            return transparency.prove_consistency(old, size, tiles_of(connection, size).perfect)

    def tile(self, tile: Tile) -> bytes:
        """Return a tile, or a bundle of entries. Raises NotFound if the tree has no such tile."""
        unit = 1 if tile.level is None else 1 << HEIGHT * tile.level
        with self._access.snapshot() as connection:
            if count_leaves(connection) // unit < tile.index * WIDTH + tile.width:
                raise NotFound("The log has no such tile yet.")
            return load_tile(connection, tile)

    def leaf_key(self, project: str | None) -> bytes | None:
        """Return the leaf key of a project, or of the administrative log for None.

        It is None before anything was logged. Raises NotFound.
        """
        with self._access.reading() as connection:
            head = load_head(connection)
            source = load_source(connection, project)
            return None if head is None else derive_leaf_key(head.blinding, source.start)

    def positions(self, project: str | None, after_seq: int, limit: int) -> list[tuple[int, int]]:
        """Return number and position in the tree of up to `limit` entries after `after_seq`.

        Those of a project, or of the administrative log for None; in order. Raises NotFound.
        """
        with self._access.reading() as connection:
            source = load_source(connection, project)
            leaves = tree_leaves.c
            query = (
                select(leaves.seq, leaves.position)
                .where(leaves.source == source.number, leaves.seq > after_seq)
                .order_by(leaves.seq)
                .limit(limit)
            )
            return [(row.seq, row.position) for row in connection.execute(query)]

    def check(self, policy: Policy, earlier: Mapping[str, str]) -> LogCheck:
        """Compare the tree with the ledger's entries, its checkpoint and `earlier` ones."""
        with self._access.snapshot() as connection:
            head = load_head(connection)
            current = None if head is None else head.checkpoint
            return check(connection, policy, current, earlier)
