"""The transparency log as everybody may read it: from memory, so that strangers cost little."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from anyio import CapacityLimiter, to_thread

from terrine_protocol.transparency.tiles import ENTRY_BYTES, HASH_BYTES, Tile
from terrine_server.errors import TerrineError
from terrine_server.ledger import Ledger

CHECKPOINT_SECONDS = 1.0
"""How long a checkpoint is told without a look at the database."""
MOST_TILES = 1024
"""Tiles that are kept in memory, of 8 KiB at most."""


class PublishedLog:
    """What everybody may read of a ledger's log, from memory. Belongs to one event loop.

    Nobody needs a token for it, so it takes nothing that students wait for: what is not in memory
    is read by one thread of its own, one at a time.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._thread = CapacityLimiter(1)
        self._looking: asyncio.Task[str | TerrineError | None] | None = None
        self._until = 0.0
        self._tiles = OrderedDict[tuple[int | None, int], bytes]()

    async def checkpoint(self) -> str | None:
        """Return the last checkpoint, as of a second ago at most. Raises DatabaseUnavailable."""
        now = asyncio.get_running_loop().time()
        if self._looking is None or (self._looking.done() and now > self._until):
            self._looking = asyncio.create_task(self._look())
        found = await asyncio.shield(self._looking)
        if isinstance(found, TerrineError):
            raise found.with_traceback(None)
        return found

    async def tile(self, tile: Tile) -> bytes:
        """Return a tile, or a bundle of entries. Raises NotFound and DatabaseUnavailable."""
        place = tile.level, tile.index
        size = tile.width * (ENTRY_BYTES if tile.level is None else HASH_BYTES)
        kept = self._tiles.get(place, b"")
        if len(kept) < size:  # the tree grows: what was read is the beginning of what is there now
            kept = await to_thread.run_sync(self._ledger.tile, tile, limiter=self._thread)
            self._tiles[place] = max(kept, self._tiles.get(place, b""), key=len)
            if len(self._tiles) > MOST_TILES:
                self._tiles.popitem(last=False)
        self._tiles.move_to_end(place)
        return kept[:size]

    async def _look(self) -> str | TerrineError | None:
        try:
            return await to_thread.run_sync(self._ledger.checkpoint, limiter=self._thread)
        except TerrineError as error:
            return error
        finally:
            self._until = asyncio.get_running_loop().time() + CHECKPOINT_SECONDS
