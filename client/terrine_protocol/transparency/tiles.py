"""A tree as tiles: files of up to 256 hashes, which never change (c2sp.org/tlog-tiles).

A hash in a tile of level l is that of the perfect subtree over 256**l leaves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from terrine_protocol.transparency.notes import NoteError
from terrine_protocol.transparency.trees import ProofError, perfect_root

HEIGHT = 8
WIDTH = 1 << HEIGHT
HASH_BYTES = 32
ENTRY_BYTES = 2 + 32
"""Of an entry in a bundle: its length, and the commitment that it is."""
_PATH = re.compile(
    r"(?P<level>entries|0|[1-9][0-9]?)/(?P<high>(?:x[0-9]{3}/)*)(?P<low>[0-9]{3})"
    r"(?:\.p/(?P<width>[1-9][0-9]{0,2}))?",
    re.ASCII,
)


@dataclass(frozen=True)
class Tile:
    """Which hashes: of a level (None: the entries themselves), the tile's index, how many."""

    level: int | None
    index: int
    width: int = WIDTH

    @property
    def path(self) -> str:
        """Its path below `tile/`."""
        groups = [f"{self.index % 1000:03}"]
        rest = self.index // 1000
        while rest:
            groups.insert(0, f"x{rest % 1000:03}")
            rest //= 1000
        level = "entries" if self.level is None else str(self.level)
        partial = "" if self.width == WIDTH else f".p/{self.width}"
        return f"{level}/{'/'.join(groups)}{partial}"

    @classmethod
    def parse(cls, path: str) -> Tile:
        """Read a path below `tile/`. Raises NoteError unless it is what `path` writes."""
        found = _PATH.fullmatch(path)
        if found is None or len(found["high"]) > 5 * 6:
            raise NoteError("no tile: its path is level/index or level/index.p/width")
        index = int(found["high"].replace("x", "").replace("/", "") + found["low"])
        level = None if found["level"] == "entries" else int(found["level"])
        tile = cls(level, index, int(found["width"] or WIDTH))
        if tile.path != path or (level or 0) > 63 or tile.width > WIDTH:
            raise NoteError("no tile: its path is level/index or level/index.p/width")
        return tile


class Tiles:
    """The perfect subtrees of a tree of `size` leaves, read from its tiles.

    `fetch` returns a tile's bytes, which must be `width` hashes. Each tile is fetched once.
    """

    def __init__(self, size: int, fetch: Callable[[Tile], bytes]) -> None:
        self.size = size
        self._fetch = fetch
        self._kept: dict[tuple[int, int], bytes] = {}

    def perfect(self, height: int, index: int) -> bytes:
        """See `trees.Perfect`. Raises ProofError if a tile is not whole."""
        level, above = divmod(height, HEIGHT)
        first = index << above
        data = self._tile(level, first // WIDTH)
        start = first % WIDTH * HASH_BYTES
        hashes = [
            data[at : at + HASH_BYTES]
            for at in range(start, start + (HASH_BYTES << above), HASH_BYTES)
        ]
        if len(hashes[-1]) != HASH_BYTES:
            raise ProofError(f"the tree of {self.size} leaves has no such part")
        return perfect_root(hashes)

    def _tile(self, level: int, index: int) -> bytes:
        data = self._kept.get((level, index))
        if data is None:
            tile = tile_of(self.size, level, index)
            data = self._fetch(tile)
            if len(data) != tile.width * HASH_BYTES:
                raise ProofError(f"the tile {tile.path} is not whole")
            self._kept[level, index] = data
        return data


def tile_of(size: int, level: int, index: int) -> Tile:
    """Return the widest tile of this level and index in a tree of this size.

    Raises ProofError if there is none.
    """
    width = min(WIDTH, (size >> HEIGHT * level) - index * WIDTH)
    if width < 1:
        raise ProofError(f"the tree of {size} leaves has no such tile")
    return Tile(level, index, width)


def entries_in(bundle: bytes) -> list[bytes]:
    """Return the entries in a bundle: each with its length before it. Raises NoteError."""
    entries, at = [], 0
    while at < len(bundle):
        end = at + 2 + int.from_bytes(bundle[at : at + 2], "big")
        if end > len(bundle):
            raise NoteError("a bundle of entries is cut off")
        entries.append(bundle[at + 2 : end])
        at = end
    return entries


def bundle_of(entries: list[bytes]) -> bytes:
    """Return what `entries_in` reads."""
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)
