"""Decision trees as arrays: what scikit-learn fitted, evaluated without it.

    arrays = forest_arrays(forest.estimators_)
    nodes = TreeNodes(arrays.sizes, arrays.feature, arrays.threshold, columns, "here")
    arrays.values[nodes.leaves(x, nodes.roots)]                      # [trees · b, …]

Teachers and students have them from files that are not trusted: a walk through them always ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from terrine_models.storage.manifests import StoreError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
# Questions from the root to a leaf, at most.
MAX_DEPTH = 16


class TreeArrays(NamedTuple):
    """The nodes of some trees, one tree after the other, each in breadth-first order."""

    sizes: NDArray[np.int32]
    """[T], the number of nodes of each tree."""
    feature: NDArray[np.int32]
    """[N], the column that a node asks about; -1 of a leaf."""
    threshold: NDArray[np.float32]
    """[N]; what exceeds it goes to the second child. 0 of a leaf."""
    leaves: Floats
    """[L, …], what scikit-learn says in each leaf, in the order of the nodes."""


class TreeNodes:
    """T trees for rows of `columns` numbers: `sizes` [T], `feature` [N] and `threshold` [N].

    As `TreeArrays` has them. Raises StoreError, which begins with `where`, for anything else.
    """

    def __init__(
        self,
        sizes: NDArray[np.int32],
        feature: NDArray[np.int32],
        threshold: NDArray[np.float32],
        columns: int,
        where: str,
    ) -> None:
        counts: Ints = sizes.astype(np.int64)
        if (counts < 1).any() or counts.sum() != len(feature):
            raise StoreError(f"{where}: the numbers of nodes do not add up to {len(feature)}.")
        if not ((feature >= -1) & (feature < columns)).all():
            raise StoreError(f"{where}: a feature is not one of 0 to {columns - 1}, or -1.")
        if not np.isfinite(threshold).all():
            raise StoreError(f"{where}: a threshold is not finite.")
        self.columns = columns
        self.inner = feature >= 0
        """[N], whether a node is no leaf."""
        child = _children(self.inner, counts, where)
        self.roots: Ints = np.cumsum(counts) - counts
        """[T], the node at which each tree begins."""
        # A leaf leads to itself: nothing exceeds infinity.
        self.child: Ints = np.where(self.inner, child, np.arange(len(feature)))
        """[N], the first child of a node, whose sister is next to it; of a leaf, itself."""
        self._feature: Ints = np.where(self.inner, feature, 0).astype(np.int64)
        self._threshold = np.where(self.inner, threshold, np.float32(np.inf))

    def leaves(self, x: NDArray[np.float32], roots: Ints) -> Ints:
        """The node [trees · b] in which each row [b, columns] ends in each tree of `roots`.

        Raises ValueError for NaN and infinite numbers.
        """
        if x.ndim != 2 or x.shape[1] != self.columns or x.dtype != np.float32:
            raise ValueError(f"rows are {x.dtype} {x.shape}, expected float32 [b, {self.columns}]")
        if not np.isfinite(x).all():
            raise ValueError("trees take no NaN and no infinite number")
        # mode="clip" skips a second check of indices, which the constructor made.
        flat, row = x.ravel(), np.tile(np.arange(len(x)) * self.columns, len(roots))
        node = roots.repeat(len(x))
        for _ in range(MAX_DEPTH):
            at = self._feature.take(node, mode="clip")
            at += row
            second = flat.take(at, mode="clip") > self._threshold.take(node, mode="clip")
            node = self.child.take(node, mode="clip")
            node += second
        return node


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
    for _ in range(MAX_DEPTH):
        level = child[level[inner[level]]]
        level = np.concatenate([level, level + 1])
    if inner[level].any():
        raise StoreError(f"{where}: a tree is more than {MAX_DEPTH} levels deep.")
    return child


def forest_arrays(fitted: Sequence[Any]) -> TreeArrays:
    """The arrays of trees of scikit-learn's forests (`estimators_`), at most MAX_DEPTH deep.

    leaves: [L, outputs, classes], as `tree_.value` has them.
    """
    trees = [each.tree_ for each in fitted]
    sizes = np.array([tree.node_count for tree in trees])

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(tree, name) for tree in trees])

    left, right = joined("children_left"), joined("children_right")
    return _arranged(sizes, left, right, joined("feature"), joined("threshold"), joined("value"))


def boosting_arrays(fitted: Any) -> TreeArrays:
    """The arrays of scikit-learn's histogram boosting, round by round, and in a round by class.

    leaves: [L]. scikit-learn has no public names for these trees: whoever takes them compares what
    they say with what the model says.
    """
    trees = [tree.nodes for each in fitted._predictors for tree in each]
    sizes = np.array([len(nodes) for nodes in trees])
    nodes = np.concatenate(trees)
    leaf = nodes["is_leaf"].astype(bool)
    left, right = (np.where(leaf, -1, nodes[name].astype(np.int64)) for name in ("left", "right"))
    return _arranged(
        sizes, left, right, nodes["feature_idx"], nodes["num_threshold"], nodes["value"]
    )


def _arranged(
    sizes: Ints,
    left: Ints,
    right: Ints,
    feature: NDArray[np.integer[Any]],
    threshold: Floats,
    values: Floats,
) -> TreeArrays:
    """Trees whose nodes [N] name their children within their tree, -1 of leaves, breadth first."""
    first = np.cumsum(sizes) - sizes
    offsets = np.repeat(first, sizes)
    inner = left >= 0
    left, right = left + offsets, right + offsets
    levels, level = [], first
    while len(level):
        levels.append(level)
        parents = level[inner[level]]
        level = np.stack([left[parents], right[parents]], 1).ravel()
    order = np.concatenate(levels)
    order = order[np.argsort(np.repeat(np.arange(len(sizes)), sizes)[order], kind="stable")]
    inner = inner[order]
    return TreeArrays(
        sizes=sizes.astype(np.int32),
        feature=np.where(inner, feature[order], -1).astype(np.int32),
        threshold=np.where(inner, round_down(threshold[order]), np.float32(0)),
        leaves=values[order][~inner],
    )


def round_down(thresholds: Floats) -> NDArray[np.float32]:
    """The largest float32 not above each threshold: it parts float32 numbers in the same way."""
    nearest = thresholds.astype(np.float32)
    below = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest.astype(np.float64) > thresholds, below, nearest)
