"""The tree in the database: which entries wait for it, how they are appended, and its tiles.

Entries are numbered without gaps in each source, a project or the administrative log, and a later
one is never committed before an earlier one. So what waits is what is numbered above the source's
last leaf, however late a charge commits. That it is appended once, and at the next position, is up
to the two keys of `tree_leaves`: of two processes that append at a time, one fails as a whole.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, insert, select, text

from terrine_protocol.transparency import trees
from terrine_protocol.transparency.leaves import commitment
from terrine_protocol.transparency.tiles import WIDTH, Tile, Tiles, bundle_of
from terrine_server.ledger.administration import START
from terrine_server.ledger.store.database import write
from terrine_server.ledger.store.tables import (
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


def head(connection: Connection) -> Any:
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
    row, before, runs, left = head(connection), size(connection), [], most
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
    hashes = [trees.leaf_hash(entry) for run in runs for entry in run.entries]
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
        hashes = [trees.perfect_root(hashes[i * WIDTH : (i + 1) * WIDTH]) for i in range(full)]
        level, start = level + 1, whole // WIDTH
        nodes += [
            {"level": level, "position": start + place, "hash": node}
            for place, node in enumerate(hashes)
        ]


def root(connection: Connection, leaves: int) -> bytes:
    """Return the root over the first so many leaves."""
    return trees.subtree(0, leaves, tiles(connection, leaves).perfect)


def tiles(connection: Connection, leaves: int) -> Tiles:
    """Return the tiles of the tree of the first so many leaves."""
    return Tiles(leaves, lambda tile: tile_bytes(connection, tile))


def tile_bytes(connection: Connection, tile: Tile) -> bytes:
    """Return a tile, or a bundle of entries; shorter than its width if the tree is too small."""
    if tile.level is None:
        return bundle_of(_entries(connection, tile))
    return b"".join(_hashes(connection, tile))


def _hashes(connection: Connection, tile: Tile) -> list[bytes]:
    if not tile.level:
        return [trees.leaf_hash(entry) for entry in _entries(connection, tile)]
    table, first = tree_nodes.c, tile.index * WIDTH
    query = (
        select(table.hash)
        .where(table.level == tile.level)
        .where(table.position >= first, table.position < first + tile.width)
        .order_by(table.position)
    )
    return list(connection.execute(query).scalars())


def _entries(connection: Connection, tile: Tile) -> list[bytes]:
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
