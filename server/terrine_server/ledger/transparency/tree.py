"""The tree in the database: which entries wait for it, how they are appended, and its tiles.

Entries are numbered without gaps in each source, a project or the administrative log, and a later
one is never committed before an earlier one. So what waits is what is numbered above the source's
last leaf, however late a charge commits. That it is appended once, and at the next position, is up
to the two keys of `tree_leaves`: of two processes that append at a time, one fails as a whole.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select

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
class Source:
    """Where entries come from: its number, the hash that its chain starts from, what is logged."""

    number: int
    start: bytes
    logged: int


@dataclass(frozen=True)
class Waiting:
    """An entry that is not in the tree yet: its source, its number there, its commitment."""

    source: int
    seq: int
    entry: bytes


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


def sources(connection: Connection, with_news: bool = True) -> list[Source]:
    """Return the administrative log and the projects, or those `with_news` for the tree."""
    found = [Source(LOG, START, _logged(connection, LOG))]
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
    found += [Source(row.id, row.genesis, row.logged) for row in connection.execute(query)]
    return found


def waiting(connection: Connection, blinding: bytes, most: int) -> list[Waiting]:
    """Return up to so many entries that are not in the tree, in the order of their sources."""
    found: list[Waiting] = []
    for source in sources(connection):
        key = leaf_key(blinding, source.start)
        for seq, entry_hash in entries(connection, source, most - len(found)):
            found.append(Waiting(source.number, seq, commitment(key, entry_hash)))
        if len(found) >= most:
            break
    return found


def entries(connection: Connection, source: Source, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield number and hash of a source's entries after those that are logged."""
    if source.number == LOG:
        table = administrative_log
        query = select(table.c.seq, table.c.hash)
    else:
        table = charges
        query = select(table.c.seq, table.c.hash).where(table.c.project_id == source.number)
    query = query.where(table.c.seq > source.logged).order_by(table.c.seq).limit(most)
    for row in connection.execute(query):
        yield row.seq, row.hash


def append(connection: Connection, before: int, added: Sequence[Waiting]) -> None:
    """Append leaves to a tree of `before` leaves, and the nodes that they complete."""
    rows = [
        {"position": before + place, "source": new.source, "seq": new.seq, "entry": new.entry}
        for place, new in enumerate(added)
    ]
    write(connection, insert(tree_leaves), rows, len(rows))
    hashes = [trees.leaf_hash(new.entry) for new in added]
    level, start = 0, before
    while hashes:
        # What the last tile of this level held before is needed where it becomes full.
        whole = start - start % WIDTH
        if (start + len(hashes)) // WIDTH == whole // WIDTH:
            return
        hashes = [*_hashes(connection, Tile(level, whole // WIDTH, start - whole)), *hashes]
        full = len(hashes) // WIDTH
        nodes = [trees.root_of(hashes[i * WIDTH : (i + 1) * WIDTH]) for i in range(full)]
        level, start, hashes = level + 1, whole // WIDTH, nodes
        rows = [
            {"level": level, "position": start + place, "hash": node}
            for place, node in enumerate(nodes)
        ]
        write(connection, insert(tree_nodes), rows, len(rows))


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
