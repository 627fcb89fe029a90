"""What many ask for at once is looked up once: the log, readiness, metrics; verified in turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread
from sqlalchemy import Engine

from terrine_protocol import LogState
from terrine_protocol.transparency import ENTRY_BYTES, HASH_BYTES, Policy, Tile
from terrine_server.errors import ServiceError
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import (
    Ledger,
    check_definitions,
    check_rights,
    check_schema,
    check_writable,
)
from terrine_server.owner.checkpoints import log_state
from terrine_server.serving.threads import PerTokenThreads

Found = TypeVar("Found")

# How long what was looked up is still true. Strangers may ask as often as they like.
LOOKUP_SECONDS = 1.0
# Tiles that are kept in memory, of 8 KiB at most.
MAX_TILES = 1024


class SharedLookup(Generic[Found]):
    """Looks something up in a thread, once a second at most, for everybody who asks.

    Belongs to one event loop.
    """

    def __init__(self, function: Callable[[], Found], thread: CapacityLimiter) -> None:
        self._function = function
        self._thread = thread
        self._task: asyncio.Task[Found | ServiceError] | None = None
        self._until = 0.0

    async def __call__(self) -> Found:
        """Return what the function returned a second ago at most. Raises its `ServiceError`."""
        now = asyncio.get_running_loop().time()
        if self._task is None or (self._task.done() and now > self._until):
            self._task = asyncio.create_task(self._look_up())
        found = await asyncio.shield(self._task)
        if isinstance(found, ServiceError):
            raise found.with_traceback(None)
        return found

    async def _look_up(self) -> Found | ServiceError:
        try:
            return await to_thread.run_sync(self._function, limiter=self._thread)
        except ServiceError as error:
            return error
        finally:
            self._until = asyncio.get_running_loop().time() + LOOKUP_SECONDS


class SharedScrape:
    """Builds the metrics once a second at most, for all who asked before it began.

    Whoever asks again and again waits: to build them takes what answers to students are made with.
    Belongs to one event loop.
    """

    def __init__(self, build: Callable[[], Awaitable[bytes]]) -> None:
        self._build = build
        self._building = asyncio.Lock()
        self._next: asyncio.Task[bytes | ServiceError] | None = None
        self._from = 0.0

    async def __call__(self) -> bytes:
        """Return them as they are now, or soon. Raises `ServiceError`."""
        if self._next is None:
            self._next = asyncio.create_task(self._build_next())
        found = await asyncio.shield(self._next)
        if isinstance(found, ServiceError):
            raise found.with_traceback(None)
        return found

    async def _build_next(self) -> bytes | ServiceError:
        clock = asyncio.get_running_loop().time
        async with self._building:
            await asyncio.sleep(max(0.0, self._from - clock()))
            self._next = None  # what happens from here on may be in it or not
            try:
                return await self._build()
            except ServiceError as error:
                return error
            finally:
                self._from = clock() + LOOKUP_SECONDS


# Verifications of the ledger at a time; others wait, of each token one. They read all of it.
VERIFYING = PerTokenThreads(1)
# Pages of exports that are read at a time, of each token one. Between two of them, those of others
# have their turn, and whoever takes them slowly has no thread.
EXPORTING = PerTokenThreads(1)


class PublishedLog:
    """What everybody may read of a ledger's log, from memory. Belongs to one event loop.

    Nobody needs a token for it, so it takes nothing that students wait for: what is not in memory
    is read by one thread of its own, one at a time.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._thread = CapacityLimiter(1)
        self._tiles = OrderedDict[tuple[int | None, int], bytes]()
        self.checkpoint = SharedLookup(ledger.tree.checkpoint, self._thread)
        """The last checkpoint."""

    async def tile(self, tile: Tile) -> bytes:
        """Return a tile, or a bundle of entries. Raises NotFound and DatabaseUnavailable."""
        place = tile.level, tile.index
        size = tile.width * (ENTRY_BYTES if tile.level is None else HASH_BYTES)
        kept = self._tiles.get(place, b"")
        if len(kept) < size:  # the tree grows: what was read is the beginning of what is there now
            kept = await to_thread.run_sync(self._ledger.tree.tile, tile, limiter=self._thread)
            self._tiles[place] = max(kept, self._tiles.get(place, b""), key=len)
            if len(self._tiles) > MAX_TILES:
                self._tiles.popitem(last=False)
        self._tiles.move_to_end(place)
        return kept[:size]


class Readiness:
    """Whether queries can be answered. Belongs to one event loop."""

    def __init__(
        self, engine: Engine, ledger: Ledger, voters: Voters, policy: Policy | None
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._voters = voters
        self.policy = policy
        self.check = SharedLookup(self._check, CapacityLimiter(1))
        """Raises what keeps queries from being answered, if anything does; else returns the state
        of the transparency log, which keeps none."""

    def _check(self) -> LogState | None:
        check_schema(self._engine)
        check_definitions(self._engine)
        check_rights(self._engine)
        self._ledger.log.check_sealed()
        self._ledger.check_history()
        check_writable(self._engine)
        for ensemble in self._ledger.ensembles.list():
            self._voters.check(ensemble)
        return log_state(self._ledger.tree.checkpoint(), self.policy)
