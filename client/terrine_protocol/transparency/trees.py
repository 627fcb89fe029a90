"""Merkle trees of RFC 6962: hashes, roots, and proofs of inclusion and of consistency.

A tree of n leaves splits at the largest power of two below n; its parts are perfect subtrees. The
algorithms that verify are those of RFC 9162, sections 2.1.3.2 and 2.1.4.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

Perfect = Callable[[int, int], bytes]
"""From a height h and an index i: the hash of the perfect subtree over the 2**h leaves from
i * 2**h. Height 0 is a leaf's own hash."""

EMPTY = hashlib.sha256(b"").digest()
"""The root of no leaves."""
_LEAF, _NODE = b"\x00", b"\x01"


class ProofError(ValueError):
    """A proof does not prove what it should."""


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(_LEAF + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(_NODE + left + right).digest()


class Frontier:
    """A tree that grows: the perfect subtrees that its leaves make up so far, largest first.

    Memory grows with the logarithm of its size.
    """

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        """Add a leaf, by its hash."""
        size = self.size
        while size & 1:
            leaf = node_hash(self._parts.pop(), leaf)
            size >>= 1
        self._parts.append(leaf)
        self.size += 1

    @property
    def root(self) -> bytes:
        """The root of the tree so far."""
        if not self._parts:
            return EMPTY
        root = self._parts[-1]
        for part in self._parts[-2::-1]:
            root = node_hash(part, root)
        return root


def root_of(leaves: Iterable[bytes]) -> bytes:
    """Return the root over leaves, given by their hashes."""
    tree = Frontier()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root


def perfect_root(hashes: Sequence[bytes]) -> bytes:
    """Return the root over a power of two of hashes."""
    while len(hashes) > 1:
        pairs = zip(hashes[::2], hashes[1::2], strict=True)
        hashes = [node_hash(left, right) for left, right in pairs]
    return hashes[0]


def subtree(begin: int, end: int, perfect: Perfect) -> bytes:
    """Return the root over the leaves from `begin` to before `end`, a range that a split makes."""
    count = end - begin
    if count == 0:
        return EMPTY
    split = _split(count)
    if split == 0:
        height = count.bit_length() - 1
        return perfect(height, begin >> height)
    middle = begin + split
    return node_hash(subtree(begin, middle, perfect), subtree(middle, end, perfect))


def prove_inclusion(index: int, size: int, perfect: Perfect) -> list[bytes]:
    """Return the path from a leaf to the root of a tree of this size: the siblings, lowest first.

    Raises ValueError if the tree has no such leaf.
    """
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    path, begin, end = [], 0, size
    while end - begin > 1:
        middle = begin + (_split(end - begin) or (end - begin) // 2)
        if index < middle:
            path.append(subtree(middle, end, perfect))
            end = middle
        else:
            path.append(subtree(begin, middle, perfect))
            begin = middle
    return path[::-1]


def prove_consistency(old: int, size: int, perfect: Perfect) -> list[bytes]:
    """Return the proof that the tree of `size` leaves begins with that of `old` leaves.

    Raises ValueError if `old` is the larger.
    """
    if not 0 <= old <= size:
        raise ValueError(f"a tree of {size} leaves does not begin with one of {old}")
    if old in (0, size):
        return []
    path, begin, end = [], 0, size
    while old < end:
        middle = begin + (_split(end - begin) or (end - begin) // 2)
        if old <= middle:
            path.append(subtree(middle, end, perfect))
            end = middle
        else:
            path.append(subtree(begin, middle, perfect))
            begin = middle
    if begin:
        path.append(subtree(begin, end, perfect))
    return path[::-1]


def check_inclusion(
    leaf: bytes, index: int, size: int, root: bytes, proof: Sequence[bytes]
) -> None:
    """Raise ProofError unless the leaf with this hash is where it should be, below this root."""
    if not 0 <= index < size:
        raise ProofError(f"a tree of {size} leaves has no leaf {index}")
    place, last, found = index, size - 1, leaf
    for sibling in _hashes(proof):
        if last == 0:
            raise ProofError("the proof of inclusion is too long")
        if place & 1 or place == last:
            found = node_hash(sibling, found)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        place, last = place >> 1, last >> 1
    if last or found != root:
        raise ProofError(f"leaf {index} is not in the tree of {size} leaves")


def check_consistency(
    old: int, size: int, old_root: bytes, root: bytes, proof: Sequence[bytes]
) -> None:
    """Raise ProofError unless the tree of `size` leaves begins with that of `old` leaves."""
    wrong = ProofError(f"the tree of {size} leaves does not begin with that of {old}")
    if not 0 <= old <= size or (proof and old in (0, size)):
        raise wrong
    if old == size and old_root != root:
        raise ProofError(f"two trees of {size} leaves differ")
    if old == 0 and old_root != EMPTY:
        raise wrong
    if old in (0, size):
        return
    path = _hashes(proof)
    if old & (old - 1) == 0:
        path = [old_root, *path]
    if not path:
        raise wrong
    place, last = old - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    first = second = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise wrong
        if place & 1 or place == last:
            first, second = node_hash(sibling, first), node_hash(sibling, second)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            second = node_hash(second, sibling)
        place, last = place >> 1, last >> 1
    if last or (first, second) != (old_root, root):
        raise wrong


def _split(count: int) -> int:
    """Return the largest power of two below `count`; 0 if `count` is a power of two itself."""
    return 0 if count & (count - 1) == 0 else 1 << (count.bit_length() - 1)


def _hashes(proof: Sequence[bytes]) -> list[bytes]:
    if any(len(each) != 32 for each in proof):
        raise ProofError("a hash in the proof is not 32 bytes long")
    return list(proof)
