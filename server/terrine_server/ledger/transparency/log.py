"""The transparency log of a ledger: grown, read, and its last checkpoint kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from sqlalchemy import Connection, Update, select, update

from terrine_protocol.transparency import trees
from terrine_protocol.transparency.policies import Policy
from terrine_protocol.transparency.tiles import HEIGHT, Tile
from terrine_server.errors import DatabaseUnavailable, NotFound
from terrine_server.ledger.administration import START
from terrine_server.ledger.handle import DatabaseHandle
from terrine_server.ledger.store import turns
from terrine_server.ledger.store.database import reading, snapshot, writing
from terrine_server.ledger.store.tables import projects, tree_head, tree_leaves
from terrine_server.ledger.transparency import tree
from terrine_server.ledger.transparency.checking import LogCheck, check

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
                added = tree.growth(connection, BATCH)
            if added.runs:
                with writing(self._engine) as connection:
                    turns.exclude_others(connection)
                    if tree.size(connection) != added.size:
                        added = tree.growth(connection, BATCH)  # another process was sooner
                    tree.grow(connection, added)
            if added.leaves < BATCH:
                return added.size + added.leaves

    def growing(self) -> AbstractContextManager[bool]:
        """Whether this process may grow the tree and sign its root now: no other does."""
        return turns.only_one(self._engine)

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
            return tree.root(connection, size)

    def consistency(self, old: int, size: int) -> list[bytes]:
        """Return the proof that the tree of `size` leaves begins with that of `old` leaves.

        Raises ProofError if there are fewer leaves.
        """
        with snapshot(self._engine) as connection:
            return trees.prove_consistency(old, size, tree.tiles(connection, size).perfect)

    def tile(self, tile: Tile) -> bytes:
        """Return a tile, or a bundle of entries. Raises NotFound if the tree has no such tile."""
        unit = 1 if tile.level is None else 1 << HEIGHT * tile.level
        with snapshot(self._engine) as connection:
            if tree.size(connection) // unit < tile.index * 256 + tile.width:
                raise NotFound("The log has no such tile yet.")
            return tree.tile_bytes(connection, tile)

    def leaf_key(self, project: str | None) -> bytes | None:
        """Return the leaf key of a project, or of the administrative log for None.

        It is None before anything was logged. Raises NotFound.
        """
        with reading(self._engine) as connection:
            head = tree.head(connection)
            source = self._source(connection, project)
            return None if head is None else tree.leaf_key(head.blinding, source.start)

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
            head = tree.head(connection)
            current = None if head is None else head.checkpoint
            return check(connection, policy, current, earlier)

    def _source(self, connection: Connection, project: str | None) -> tree.EntrySource:
        if project is None:
            return tree.EntrySource(tree.LOG, START, 0)
        query = select(projects.c.id, projects.c.genesis).where(projects.c.name == project)
        row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"There is no project called {project}.")
        return tree.EntrySource(row.id, row.genesis, 0)


def _kept(note: str, before: str | None) -> Update:
    was = tree_head.c.checkpoint
    unchanged = was.is_(None) if before is None else was == before
    return update(tree_head).where(unchanged).values(checkpoint=note)
