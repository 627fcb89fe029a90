"""Random forests as teachers of tables: one on each shard, trained by scikit-learn.

What the papers of PATE used on tables. A forest needs nothing public: it votes on the encoded
columns. Voting needs no scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from terrine_models.data.arrays import Dataset
from terrine_models.data.workers import side_by_side
from terrine_models.features.public import PublicData
from terrine_models.features.trees import MAX_DEPTH, Floats, Ints, TreeNodes, forest_arrays
from terrine_models.storage.manifests import SETTINGS_CONFIG, FeatureSpec, StoreError
from terrine_models.teachers.manifests import (
    EnsemblePlan,
    ShardTeachers,
    StoredEnsemble,
    TeacherSettings,
    Trained,
    Voting,
    VotingLimits,
    check_shapes,
    teacher_kind,
)
from terrine_models.teachers.networks import match_biases
from terrine_models.teachers.shards import Shards, TrainingError
from terrine_protocol.schema import PublicSource

# In one forest.
MAX_TREES = 10_000
# Probabilities are added as whole numbers of 1 / PROBABILITY_UNIT: their sum is the same in any
# order.
PROBABILITY_UNIT = 2.0**40
# Rows times trees that are walked side by side: few enough to stay in a processor's cache.
MAX_PAIRS = 2**15
# Scratch memory for each of them, beside 8 bytes for each class.
PAIR_BYTES = 64


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
        leaves, biases = arrays["leaves"], arrays["biases"]
        self._nodes = TreeNodes(
            arrays["nodes"].ravel(), arrays["feature"], arrays["threshold"], columns, where
        )
        inner = self._nodes.inner
        if len(leaves) != (~inner).sum():
            raise StoreError(f"{where}: {len(leaves)} leaves, expected {(~inner).sum()}.")
        if not ((leaves >= 0) & (leaves <= 1)).all() or (abs(leaves.sum(1) - 1) > 1e-6).any():
            raise StoreError(f"{where}: the probabilities in a leaf do not sum to 1.")
        if not (abs(biases) <= 1).all():
            raise StoreError(f"{where}: a bias is not between -1 and 1.")
        self.forests, self.trees = arrays["nodes"].shape
        self.columns, self.classes = columns, classes
        self._roots: Ints = self._nodes.roots.reshape(self.forests, self.trees)
        self._values: Ints = np.zeros((len(inner), classes), dtype=np.int64)
        self._values[~inner] = np.round(leaves * PROBABILITY_UNIT)
        self._biases: Ints = np.round(biases * PROBABILITY_UNIT * self.trees).astype(np.int64)

    def choices(self, x: NDArray[np.float32], pairs: int = MAX_PAIRS) -> Ints:
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

    def probabilities(self, x: NDArray[np.float32], pairs: int = MAX_PAIRS) -> Floats:
        """The mean class probabilities [n, b, m], without biases, for rows [b, columns].

        Raises ValueError for NaN and infinite numbers.
        """
        found = np.empty((self.forests, len(x), self.classes))
        for forests, sums in self._sums(x, pairs):
            found[forests] = sums / (PROBABILITY_UNIT * self.trees)
        return found

    def _sums(self, x: NDArray[np.float32], pairs: int) -> Iterator[tuple[slice, Ints]]:
        """Sums over the trees of some forests, [k, b, m] in units, with which forests they are."""
        b = len(x)
        together = min(self.forests, max(1, pairs // max(1, b)))
        trees = max(1, pairs // max(1, b * together))
        for at in range(0, self.forests, together):
            forests = slice(at, min(at + together, self.forests))
            sums = np.zeros((forests.stop - at, b, self.classes), dtype=np.int64)
            for t in range(0, self.trees, trees):
                roots = self._roots[forests, t : t + trees]
                leaves = self._values.take(
                    self._nodes.leaves(x, roots.ravel()), axis=0, mode="clip"
                )
                sums += leaves.reshape(*roots.shape, b, self.classes).sum(axis=1)
            yield forests, sums


def pairs_within(memory: int, classes: int) -> int:
    """How many rows times trees may be walked at a time in so many bytes."""
    return max(1, min(MAX_PAIRS, memory // (PAIR_BYTES + 24 * classes)))


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
    if len(tensors["biases"]) != forests or trees > MAX_TREES:
        raise StoreError(f"{where}: {forests} forests of {trees} trees do not fit the rest.")
    if len(tensors["threshold"]) != len(tensors["feature"]):
        raise StoreError(f"{where}: features and thresholds differ in number.")


# Public rows, at most, on which priors are matched.
MAX_PUBLIC_ROWS = 2000


TreeCount = Annotated[int, Field(ge=1, le=MAX_TREES, description="Trees in each forest.")]


@dataclass(frozen=True, config=SETTINGS_CONFIG)
class Forests(TeacherSettings):
    """A random forest for each teacher, for tables: scikit-learn's, at most `MAX_DEPTH` deep."""

    trees: TreeCount = 100
    match_prior: Annotated[
        bool,
        Field(
            description="Whether forests for two classes, with public rows, say yes to as many of "
            "these as of their own records."
        ),
    ] = True
    kind = "forest"

    def teacher(
        self, data: Dataset, features: FeatureSpec | None, public: PublicData | None
    ) -> ForestTeachers:
        """What the manifest will say. Raises TrainingError for images, or without scikit-learn."""
        require_scikit_learn()
        if len(data.spec.shape) != 1:
            raise TrainingError(
                f"A forest learns from the columns of a table, and these inputs are images of "
                f"shape {list(data.spec.shape)}. Train heads or networks."
            )
        matches = self.match_prior and public is not None and len(data.classes) == 2
        matched_on = public.source if public is not None and matches else None
        return ForestTeachers(trees=self.trees, matched_on=matched_on)


@teacher_kind
class ForestTeachers(ShardTeachers):
    """Forests, as the manifest describes them."""

    kind: Literal["forest"] = "forest"
    features: None = None
    trees: TreeCount
    matched_on: PublicSource | None = None
    """The public rows on which each predicts class 1 as often as it occurs in its shard; None if it
    does not."""
    settings = Forests
    packages = ("scikit-learn",)

    def check(self, plan: EnsemblePlan) -> None:
        """Raise ValueError unless it is about a table."""
        super().check(plan)
        if len(plan.input.shape) != 1:
            raise ValueError("forests are for the rows of a table")

    @property
    def matches_prior(self) -> bool:
        """With public rows."""
        return self.matched_on is not None

    @property
    def public_rows(self) -> PublicSource | None:
        """As the manifest says."""
        return self.matched_on

    def described(self) -> dict[str, str]:
        """The public rows."""
        return {"matched on": self.matched_on.name} if self.matched_on is not None else {}

    def voting(self, stored: StoredEnsemble, limits: VotingLimits, device: str) -> Voting:
        """Walks through the trees, on the CPU whatever the device. Raises StoreError."""
        manifest, parts = stored.manifest, stored.parts()
        classes = len(manifest.classes)
        for where, part in parts:
            check_types(part, classes, where)
            nodes = {"nodes": part["nodes"]}
            check_shapes(where, nodes, {"nodes": (len(part["nodes"]), self.trees)})
        tensors = {name: torch.cat([part[name] for _, part in parts]) for name in parts[0][1]}
        stored.check_number(len(tensors["nodes"]))
        trees = Trees(tensors, manifest.input.shape[0], classes, manifest.name)
        walks = limits.memory // 2  # the other half is for blocks
        pairs = pairs_within(walks // torch.get_num_threads(), classes)
        each = 2 * 8 * manifest.teachers + 8 * manifest.input.size
        block = VotingLimits(limits.memory - walks, limits.seconds).block(each, 128)

        def choose(x: torch.Tensor) -> torch.Tensor:
            rows: NDArray[np.float32] = x.float().numpy()
            return torch.from_numpy(trees.choices(rows, pairs))

        return Voting(choose, block, "cpu", padded=False)

    def train(self, shards: Shards, run: range) -> Trained:
        """The arrays of a run of k forests, as `Trees` takes them."""
        classes = len(shards.data.classes)

        def train(teacher: int) -> Trained:
            x, y = shards.records_of(teacher)
            draws = np.random.SeedSequence([shards.seed, teacher])
            return fit_forest(x.numpy(), y.numpy(), classes, self.trees, draws)

        fitted = side_by_side(train, run)
        tensors = {name: torch.cat([each[name] for each in fitted]) for name in fitted[0]}
        rows = shards.public_rows(MAX_PUBLIC_ROWS)
        if self.matched_on is not None and rows is not None:
            forests = Trees(tensors, rows.shape[1], classes, "the forests just trained")
            shares = torch.from_numpy(forests.probabilities(rows.numpy()))
            leads = shares[:, :, 1] - shares[:, :, 0]
            priors = shards.priors(run).double()
            tensors["biases"] = match_biases(leads, priors, tensors["biases"])
        return tensors


def require_scikit_learn() -> None:
    """Raise TrainingError if scikit-learn is not installed."""
    if find_spec("sklearn") is None:
        raise TrainingError(
            "Forests are trained by scikit-learn, which is not installed. In a checkout: "
            "pip install '.[server]'. To use a trained forest it is not needed."
        )


def fit_forest(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    classes: int,
    trees: int,
    seed: np.random.SeedSequence,
) -> Trained:
    """The arrays of a forest on rows [r, columns] with labels [r] of `classes`: see `Trees`.

    A function of the arguments alone. Classes that the rows lack have probability 0 in every leaf.
    Raises TrainingError if scikit-learn is not installed.
    """
    require_scikit_learn()
    from sklearn.ensemble import RandomForestClassifier

    state = int(seed.generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few rows for many classes
        forest = RandomForestClassifier(trees, max_depth=MAX_DEPTH, n_jobs=1, random_state=state)
        forest.fit(x, y)
    return as_tensors(forest.estimators_, forest.classes_, classes)


def as_tensors(fitted: Sequence[Any], known: NDArray[np.int64], classes: int) -> Trained:
    """The arrays of one forest of scikit-learn's trees, whose classes are `known` of `classes`."""
    arrays = forest_arrays(fitted)
    leaves = np.zeros((len(arrays.leaves), classes))
    leaves[:, known] = arrays.leaves[:, 0]
    return {
        "nodes": torch.from_numpy(arrays.sizes[None]),
        "feature": torch.from_numpy(arrays.feature),
        "threshold": torch.from_numpy(arrays.threshold),
        "leaves": torch.from_numpy(leaves / leaves.sum(1, keepdims=True)),
        "biases": torch.zeros((1, classes), dtype=torch.float64),
    }
