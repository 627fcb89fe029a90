"""Roots and proofs against another implementation, for every size of small trees."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymerkle import InmemoryTree

from support.servers import root_of
from terrine_protocol import transparency
from terrine_protocol.transparency import WIDTH, Tile, Tiles, tile_of

ENTRIES = [hashlib.sha256(n.to_bytes(4, "big")).digest() for n in range(70_000)]
LEAVES = [transparency.leaf_hash(entry) for entry in ENTRIES]
SMALL = 70


def tiles_of(size: int) -> Tiles:
    """Tiles made as the specification says, from a tree's leaves: not as the service makes them."""

    def fetch(tile: Tile) -> bytes:
        assert tile.level is not None
        span = WIDTH**tile.level
        starts = [(tile.index * WIDTH + i) * span for i in range(tile.width)]
        assert starts[-1] + span <= size
        return b"".join(root_of(LEAVES[start : start + span]) for start in starts)

    return Tiles(size, fetch)


@pytest.fixture(scope="module")
def other() -> InmemoryTree:
    tree = InmemoryTree(algorithm="sha256")
    tree.append_entries(ENTRIES[:SMALL])
    return tree


def test_roots_are_the_same(other: InmemoryTree) -> None:
    grown = transparency.Frontier()
    for size in range(1, SMALL + 1):
        grown.append(LEAVES[size - 1])
        assert (
            grown.root
            == other.get_root(size)
            == transparency.subtree_root(0, size, tiles_of(size).perfect)
        )


def test_inclusion_proofs_are_the_same(other: InmemoryTree) -> None:
    for size in range(1, SMALL + 1):
        root, perfect = other.get_root(size), tiles_of(size).perfect
        for index in range(size):
            proof = transparency.prove_inclusion(index, size, perfect)
            theirs = list(other.prove_inclusion(index + 1, size).path)
            assert sorted(proof) == sorted(h for h in theirs if h != LEAVES[index])
            transparency.check_inclusion(LEAVES[index], index, size, root, proof)


def test_consistency_proofs_prove_it_and_nothing_else(other: InmemoryTree) -> None:
    roots = {size: other.get_root(size) for size in range(1, SMALL + 1)}
    for size in roots:
        perfect = tiles_of(size).perfect
        for old in range(1, size + 1):
            proof = transparency.prove_consistency(old, size, perfect)
            transparency.check_consistency(old, size, roots[old], roots[size], proof)
            forked = hashlib.sha256(roots[old]).digest()
            with pytest.raises(transparency.ProofError):
                transparency.check_consistency(old, size, forked, roots[size], proof)


def test_a_large_tree_is_proven_from_its_tiles_alone() -> None:
    size, asked = len(LEAVES), []
    tiles = tiles_of(size)
    fetch = tiles._fetch
    tiles._fetch = lambda tile: asked.append(tile) or fetch(tile)  # type: ignore[func-returns-value]
    root = root_of(LEAVES)
    assert transparency.subtree_root(0, size, tiles.perfect) == root
    for index in (0, 255, 256, 65_535, 65_536, 69_999):
        proof = transparency.prove_inclusion(index, size, tiles.perfect)
        transparency.check_inclusion(LEAVES[index], index, size, root, proof)
    for old in (1, 255, 256, 257, 65_535, 65_536, 69_999):
        proof = transparency.prove_consistency(old, size, tiles.perfect)
        transparency.check_consistency(old, size, root_of(LEAVES[:old]), root, proof)
    assert len(set(asked)) == len(asked) < 12
    assert all(tile == tile_of(size, tile.level or 0, tile.index) for tile in asked)


def test_a_tile_that_is_cut_off_proves_nothing() -> None:
    with pytest.raises(transparency.ProofError):
        Tiles(300, lambda tile: bytes(32 * tile.width - 1)).perfect(0, 0)


@given(st.lists(st.integers(0, 2**62), min_size=2, max_size=20, unique=True))
def test_paths_of_tiles_are_read_as_written(indices: list[int]) -> None:
    paths = [Tile(3, index, 7).path for index in indices]
    assert [Tile.parse(path).index for path in paths] == indices
    assert all(one != next_one for one, next_one in pairwise(paths))
