"""Random forests as arrays: how they are stored, checked and evaluated. No pickle, no scikit-learn.

The nodes of a tree are in breadth-first order, two children side by side, so its j-th inner node
has the children 2j + 1 and 2j + 2 and no index needs storing. A row goes to the second child where
its column exceeds the threshold. Every tree is walked to the same depth on every row, so the time
that votes take says nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.storage.manifests import StoreError

DEPTH = 16
"""Questions from the root to a leaf, at most."""
MOST_TREES = 10_000
"""In one forest."""
UNIT = 2.0**40
"""Probabilities are added as whole numbers of 1 / UNIT: their sum is the same in any order."""
PAIRS = 2**15
"""Rows times trees that are walked side by side: few enough to stay in a processor's cache."""
PAIR_BYTES = 64
"""Scratch memory for each of them, beside 8 bytes for each class."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Trees:
    """n forests of t trees each, for rows of `columns` numbers and m classes.

    `tensors`, in this order: `nodes` int32[n, t], the nodes of each tree. `feature` int32[N] and
    `threshold` float32[N], of all nodes of all trees of all forests; the feature of a leaf is -1.
    `leaves` float64[L, m], the class probabilities in each leaf. `biases` float64[n, m], added to
    the mean over a forest's trees. Raises StoreError, which begins with `where`, for anything else:
    a walk through these trees always ends.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], columns: int, classes: int, where: str
    ) -> None:
        check_types(tensors, classes, where)
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        sizes: Ints = arrays["nodes"].ravel().astype(np.int64)
        feature, leaves, biases = arrays["feature"], arrays["leaves"], arrays["biases"]
        if (sizes < 1).any() or sizes.sum() != len(feature):
            raise StoreError(f"{where}: the numbers of nodes do not add up to {len(feature)}.")
        if not ((feature >= -1) & (feature < columns)).all():
            raise StoreError(f"{where}: a feature is not one of 0 to {columns - 1}, or -1.")
        if not np.isfinite(arrays["threshold"]).all():
            raise StoreError(f"{where}: a threshold is not finite.")
        inner = feature >= 0
        child = _children(inner, sizes, where)
        if len(leaves) != (~inner).sum():
            raise StoreError(f"{where}: {len(leaves)} leaves, expected {(~inner).sum()}.")
        if not ((leaves >= 0) & (leaves <= 1)).all() or (abs(leaves.sum(1) - 1) > 1e-6).any():
            raise StoreError(f"{where}: the probabilities in a leaf do not sum to 1.")
        if not (abs(biases) <= 1).all():
            raise StoreError(f"{where}: a bias is not between -1 and 1.")
        self.forests, self.trees = arrays["nodes"].shape
        self.columns, self.classes = columns, classes
        self._roots: Ints = (np.cumsum(sizes) - sizes).reshape(self.forests, self.trees)
        # A leaf leads to itself: nothing exceeds infinity.
        self._child: Ints = np.where(inner, child, np.arange(len(inner)))
        self._feature: Ints = np.where(inner, feature, 0).astype(np.int64)
        self._threshold = np.where(inner, arrays["threshold"], np.float32(np.inf))
        self._values: Ints = np.zeros((len(inner), classes), dtype=np.int64)
        self._values[~inner] = np.round(leaves * UNIT)
        self._biases: Ints = np.round(biases * UNIT * self.trees).astype(np.int64)

    def choices(self, x: NDArray[np.float32], pairs: int = PAIRS) -> Ints:
        """The class that each forest chooses, [b, n], for rows [b, columns].

        It is the one of the highest mean probability plus bias, the lowest of equals. Raises
        ValueError for NaN and infinite numbers.
        """
        found = np.empty((len(x), self.forests), dtype=np.int64)
        for forests, sums in self._sums(x, pairs):
            sums += self._biases[forests, None]
            # Each probability was rounded to a whole number: what is that close is equal.
            highest = sums >= sums.max(axis=2, keepdims=True) - self.trees - 1
            found[:, forests] = highest.argmax(2).T
        return found

    def probabilities(self, x: NDArray[np.float32], pairs: int = PAIRS) -> Floats:
        """The mean class probabilities [n, b, m], without biases, for rows [b, columns].

        Raises ValueError for NaN and infinite numbers.
        """
        found = np.empty((self.forests, len(x), self.classes))
        for forests, sums in self._sums(x, pairs):
            found[forests] = sums / (UNIT * self.trees)
        return found

    def _sums(self, x: NDArray[np.float32], pairs: int) -> Iterator[tuple[slice, Ints]]:
        """Sums over the trees of some forests, [k, b, m] in units, with which forests they are."""
        if x.ndim != 2 or x.shape[1] != self.columns or x.dtype != np.float32:
            raise ValueError(f"rows are {x.dtype} {x.shape}, expected float32 [b, {self.columns}]")
        if not np.isfinite(x).all():
            raise ValueError("forests take no NaN and no infinite number")
        b = len(x)
        together = min(self.forests, max(1, pairs // max(1, b)))
        trees = max(1, pairs // max(1, b * together))
        for at in range(0, self.forests, together):
            forests = slice(at, min(at + together, self.forests))
            sums = np.zeros((forests.stop - at, b, self.classes), dtype=np.int64)
            for t in range(0, self.trees, trees):
                roots = self._roots[forests, t : t + trees]
                leaves = self._values.take(self._walk(x, roots.ravel()), axis=0, mode="clip")
                sums += leaves.reshape(*roots.shape, b, self.classes).sum(axis=1)
            yield forests, sums

    def _walk(self, x: NDArray[np.float32], roots: Ints) -> Ints:
        """The leaf in which each row ends in each tree, [trees · b]."""
        # mode="clip" skips a second check of indices, which the constructor made.
        flat, row = x.ravel(), np.tile(np.arange(len(x)) * self.columns, len(roots))
        node = roots.repeat(len(x))
        for _ in range(DEPTH):
            at = self._feature.take(node, mode="clip")
            at += row
            second = flat.take(at, mode="clip") > self._threshold.take(node, mode="clip")
            node = self._child.take(node, mode="clip")
            node += second
        return node


def pairs_within(memory: int, classes: int) -> int:
    """How many rows times trees may be walked at a time in so many bytes."""
    return max(1, min(PAIRS, memory // (PAIR_BYTES + 24 * classes)))


def check_types(tensors: Mapping[str, torch.Tensor], classes: int, where: str) -> None:
    """Raise StoreError unless these are arrays as `Trees` takes them, by name, type and shape."""
    expected = {
        "nodes": (torch.int32, (None, None)),
        "feature": (torch.int32, (None,)),
        "threshold": (torch.float32, (None,)),
        "leaves": (torch.float64, (None, classes)),
        "biases": (torch.float64, (None, classes)),
    }
    if set(tensors) != set(expected):
        raise StoreError(f"{where} holds {sorted(tensors)}, expected {sorted(expected)}.")
    for name, (dtype, shape) in expected.items():
        found = tensors[name]
        fits = found.ndim == len(shape) and all(
            size in (None, got) for size, got in zip(shape, found.shape, strict=True)
        )
        if found.dtype != dtype or not fits or found.numel() == 0:
            raise StoreError(f"{where}: {name} is {found.dtype} {tuple(found.shape)}.")
    forests, trees = tensors["nodes"].shape
    if len(tensors["biases"]) != forests or trees > MOST_TREES:
        raise StoreError(f"{where}: {forests} forests of {trees} trees do not fit the rest.")
    if len(tensors["threshold"]) != len(tensors["feature"]):
        raise StoreError(f"{where}: features and thresholds differ in number.")


def _children(inner: NDArray[np.bool_], sizes: Ints, where: str) -> Ints:
    """The first child of every inner node, whose sister is next to it; of leaves, anything.

    Raises StoreError unless every tree is one: each node but the root has one parent, before it.
    """
    starts = np.cumsum(sizes) - sizes
    before: Ints = np.cumsum(inner) - inner
    child: Ints = np.repeat(starts, sizes) + 2 * (before - np.repeat(before[starts], sizes)) + 1
    parents = np.add.reduceat(inner, starts, dtype=np.int64)
    if (2 * parents + 1 != sizes).any() or (child <= np.arange(len(inner)))[inner].any():
        raise StoreError(f"{where}: the nodes of a tree are not in breadth-first order.")
    level = starts
    for _ in range(DEPTH):
        level = child[level[inner[level]]]
        level = np.concatenate([level, level + 1])
    if inner[level].any():
        raise StoreError(f"{where}: a tree is more than {DEPTH} levels deep.")
    return child
