"""Random forests as teachers of tables: one on each shard, trained by scikit-learn.

What the papers of PATE used on tables. A forest needs nothing public: it votes on the encoded
columns. Voting (`trees.py`) needs no scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from terrine_models.data.arrays import Dataset
from terrine_models.data.workers import side_by_side
from terrine_models.features.maps import FeatureMap, PublicData
from terrine_models.storage.manifests import CONFIG, FeatureSpec
from terrine_models.teachers.architectures import matched_biases
from terrine_models.teachers.manifests import (
    EnsemblePlan,
    ShardTeachers,
    StoredEnsemble,
    Trained,
    Voting,
    VotingLimits,
    check_shapes,
    teacher_kind,
    values_of,
)
from terrine_models.teachers.shards import Shards, TrainingError
from terrine_models.teachers.trees import DEPTH, Trees, check_types, pairs_within
from terrine_protocol.tables import PublicSource

PUBLIC_ROWS = 2000
"""Public rows, at most, on which priors are matched."""


@dataclass(frozen=True, config=CONFIG)
class Forests:
    """A random forest for each teacher, for tables: scikit-learn's, at most `trees.DEPTH` deep."""

    trees: Annotated[int, Field(ge=1, le=10_000, description="Trees in each forest.")] = 100
    match_prior: Annotated[
        bool,
        Field(
            description="Whether forests for two classes, with public rows, say yes to as many of "
            "these as of their own records."
        ),
    ] = True
    kind = "forest"

    def feature_map(self, data: Dataset, public: PublicData | None) -> FeatureMap | None:
        """None: forests have the columns themselves."""
        return None

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
    trees: Annotated[int, Field(ge=1, le=10_000)]
    """Trees in each."""
    matched_on: PublicSource | None = None
    """The public rows to as many of which each says yes as its shard has; None for no such rule."""
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
        each = 2 * 8 * manifest.teachers + 8 * values_of(manifest.input)
        block = VotingLimits(limits.memory - walks, limits.seconds).block(each, 128)

        def choose(x: torch.Tensor) -> torch.Tensor:
            rows: NDArray[np.float32] = x.float().numpy()
            return torch.from_numpy(trees.choices(rows, pairs))

        return Voting(choose, block, "cpu", padded=False)

    def train(self, shards: Shards, run: range) -> Trained:
        """The arrays of a run of k forests, as `trees.Trees` takes them."""
        classes = len(shards.data.classes)

        def train(teacher: int) -> Trained:
            x, y = shards.of(teacher)
            draws = np.random.SeedSequence([shards.seed, teacher])
            return fit_forest(x.numpy(), y.numpy(), classes, self.trees, draws)

        fitted = side_by_side(train, run)
        tensors = {name: torch.cat([each[name] for each in fitted]) for name in fitted[0]}
        rows = shards.public_rows(PUBLIC_ROWS)
        if self.matched_on is not None and rows is not None:
            forests = Trees(tensors, rows.shape[1], classes, "the forests just trained")
            shares = torch.from_numpy(forests.probabilities(rows.numpy()))
            leads = shares[:, :, 1] - shares[:, :, 0]
            priors = shards.priors(run).double()
            tensors["biases"] = matched_biases(leads, priors, tensors["biases"])
        return tensors


def has_scikit_learn() -> bool:
    """Whether forests can be trained here."""
    return find_spec("sklearn") is not None


def require_scikit_learn() -> None:
    """Raise TrainingError if scikit-learn is not installed."""
    if not has_scikit_learn():
        raise TrainingError(
            "Forests are trained by scikit-learn, which is not installed. In a checkout: "
            "pip install '.[forest]'. To use a trained forest it is not needed."
        )


def fit_forest(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    classes: int,
    trees: int,
    seed: np.random.SeedSequence,
) -> Trained:
    """The arrays of a forest on rows [r, columns] with labels [r] of `classes`: `trees.Trees`.

    A function of the arguments alone. Classes that the rows lack have probability 0 in every leaf.
    Raises TrainingError if scikit-learn is not installed.
    """
    require_scikit_learn()
    from sklearn.ensemble import RandomForestClassifier

    state = int(seed.generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few rows for many classes
        forest = RandomForestClassifier(trees, max_depth=DEPTH, n_jobs=1, random_state=state)
        forest.fit(x, y)
    return as_tensors([each.tree_ for each in forest.estimators_], forest.classes_, classes)


def as_tensors(fitted: Sequence[Any], known: NDArray[np.int64], classes: int) -> Trained:
    """The arrays of one forest of scikit-learn's trees, whose classes are `known` of `classes`."""
    sizes = np.array([tree.node_count for tree in fitted])
    first = np.cumsum(sizes) - sizes

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(tree, name) for tree in fitted])

    offsets = np.repeat(first, sizes)
    left, right = joined("children_left") + offsets, joined("children_right") + offsets
    inner = joined("children_left") >= 0
    levels, level = [], first
    while len(level):
        levels.append(level)
        parents = level[inner[level]]
        level = np.stack([left[parents], right[parents]], 1).ravel()
    order = np.concatenate(levels)
    order = order[np.argsort(np.repeat(np.arange(len(sizes)), sizes)[order], kind="stable")]
    inner = inner[order]
    leaves = np.zeros((int((~inner).sum()), classes))
    leaves[:, known] = joined("value")[order][~inner, 0]
    return {
        "nodes": torch.from_numpy(sizes.astype(np.int32)[None]),
        "feature": torch.from_numpy(np.where(inner, joined("feature")[order], -1).astype(np.int32)),
        "threshold": torch.from_numpy(
            np.where(inner, rounded_down(joined("threshold")[order]), np.float32(0))
        ),
        "leaves": torch.from_numpy(leaves / leaves.sum(1, keepdims=True)),
        "biases": torch.zeros((1, classes), dtype=torch.float64),
    }


def rounded_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest float32 not above each threshold: it parts float32 numbers in the same way."""
    nearest = thresholds.astype(np.float32)
    below = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest.astype(np.float64) > thresholds, below, nearest)
