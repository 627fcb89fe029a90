"""Private ridge heads on a shared public feature map: the default kind of teacher."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.data.workers import side_by_side
from terrine_models.features.backbones import backbones
from terrine_models.features.bases import BLOCK_IMAGES, check_channels_last
from terrine_models.features.distortions import (
    ELASTIC_SHARE,
    ROTATION_DEGREES,
    distorted,
    draws_for,
)
from terrine_models.features.fitting import public_features
from terrine_models.features.gradients import ENLARGED_SIDE_PIXELS, MAX_BANDS
from terrine_models.features.linear import MANY_CLASSES, mean_head
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.features.views import MAX_GRAPH_POINTS, MIN_GRAPH_POINTS
from terrine_models.storage.manifests import FEATURES_FILE, SETTINGS_CONFIG, FeatureSpec
from terrine_models.teachers.manifests import (
    SCRATCH_BYTES_PER_VALUE,
    Choose,
    Manifest,
    ShardTeachers,
    StoredEnsemble,
    TeacherSettings,
    Trained,
    Voting,
    VotingLimits,
    check_shapes,
    teacher_kind,
)
from terrine_models.teachers.networks import level_biases, match_priors, ridge_head
from terrine_models.teachers.shards import Shards

# Penalty of a head.
DEFAULT_RIDGE = 0.1
# Penalty on whitened features, where a strong one does no harm: what it shrinks most is the shard's
# own, unreliable view of how features vary together.
WHITENED_RIDGE = 1.0
# Features after the public projection.
DEFAULT_WIDTH = 150
# Inputs in a block, at most: what it computes with stays in a processor's cache then. 128 on other
# devices; it is not slower per row.
MAX_BLOCK_INPUTS = {"cpu": 32}


Augmentations = Annotated[
    int,
    Field(
        ge=0,
        description="Distorted copies of each training image. Handwriting gains, clothes lose.",
    ),
]
Rotation = Annotated[
    float, Field(ge=0, le=180, description="The largest angle of a copy, in degrees.")
]
Elastic = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="The largest elastic displacement in a copy, as a share of half the side.",
    ),
]


@dataclass(frozen=True, config=SETTINGS_CONFIG)
class Heads(TeacherSettings):
    """Linear heads on public features that all share: fast, and the default."""

    width: Annotated[int, Field(ge=3, le=4096, description="Features of an image, at most.")] = (
        DEFAULT_WIDTH
    )
    features: Annotated[
        Literal["graph", "discriminant"] | None,
        Field(
            description="Of images, beside oriented gradients. graph: components and a "
            "neighbourhood graph; the default. discriminant: directions in which classes differ, "
            "and class means for heads; the default from 30 classes on.",
        ),
    ] = None
    ridge: Annotated[
        float | None,
        Field(
            ge=1e-6,
            description="Penalty, relative to the mean variance of a shard's features: 0.1, or 1 "
            "on the whitened features of a table with public rows. Class means have none.",
        ),
    ] = None
    augmentations: Augmentations = 2
    rotation: Rotation = ROTATION_DEGREES
    elastic: Elastic = ELASTIC_SHARE
    bins: Annotated[
        bool,
        Field(description="Whether a table's columns are binned at the quantiles of public rows."),
    ] = True
    match_prior: Annotated[
        bool,
        Field(
            description="Whether heads for two classes, with public rows of a table, say yes to as "
            "many of these as of their own records. It lets much smaller shards do."
        ),
    ] = True
    even: Annotated[
        bool,
        Field(
            description="Whether heads say each class of as many public rows as any other, instead "
            "of as many as of their own records. For public rows that were designed, whose classes "
            "are not as common as those of natural rows: so their votes divide most."
        ),
    ] = False
    backbone: Annotated[
        Path | None,
        Field(
            description="An ONNX model [batch, …] → [batch, D] whose embeddings are the features. "
            "It must be public: nobody's private records may have trained it.",
        ),
    ] = None
    kind = "heads"

    def teacher(
        self, data: Dataset, features: FeatureSpec | None, public: PublicData | None
    ) -> HeadTeachers:
        """What the manifest will say."""
        if features is None:
            raise ValueError("heads need a feature map")
        pictures = len(data.spec.shape) > 1 and features.base not in ("identity", "bins", "texts")
        augmentations = self.augmentations if pictures else 0
        whitened = features.projection == "whitened"
        means = features.projection == "discriminant"
        return HeadTeachers(
            features=features,
            augmentations=augmentations,
            rotation=self.rotation if augmentations else None,
            elastic=self.elastic if augmentations else None,
            ridge=None if means else self.ridge or (WHITENED_RIDGE if whitened else DEFAULT_RIDGE),
            match_prior=whitened and self.match_prior and not self.even and len(data.classes) == 2,
            even=self.even and public is not None,
        )

    def feature_map(self, data: Dataset, public: PublicData | None) -> FeatureMap:
        """The public feature map that all heads share."""
        fitted_on = public if self.bins or self.backbone or len(data.spec.shape) > 1 else None
        kind = self.features or (
            "discriminant" if self._has_many_classes(data, public) else "graph"
        )
        if kind == "discriminant" and self.ridge is not None:
            raise DataError("Heads on discriminant features are class means: leave ridge out.")
        backbone = None if self.backbone is None else backbones().declare(self.backbone, data.spec)
        if backbone is None:
            check_channels_last(data.spec)
        return public_features(
            data.spec, fitted_on, self.width, kind, whiten=True, backbone=backbone
        )

    def _has_many_classes(self, data: Dataset, public: PublicData | None) -> bool:
        """Whether a shard may lack some of many classes of images."""
        if public is None or self.backbone is not None or self.ridge is not None:
            return False
        images = len(data.spec.shape) > 1 and len(public.inputs) >= MIN_GRAPH_POINTS
        return images and len(data.classes) >= MANY_CLASSES


@teacher_kind
class HeadTeachers(ShardTeachers):
    """Heads, as the manifest describes them."""

    kind: Literal["heads"] = "heads"
    features: FeatureSpec
    augmentations: Augmentations
    rotation: Rotation | None = None
    """With augmentations."""
    elastic: Elastic | None = None
    """With augmentations."""
    ridge: Annotated[float, Field(gt=0)] | None = None
    """None for class means."""
    match_prior: bool = False
    """Whether each says yes to the share of public rows that its shard does."""
    even: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether each says every class that it knows of as many public rows."""
    settings = Heads
    divisible = False
    """They share the work on features, and one product, whose rounding depends on its size."""

    @property
    def matches_prior(self) -> bool:
        """As the settings say."""
        return self.match_prior

    @property
    def levelled(self) -> bool:
        """As the settings say."""
        return self.even

    def voting(self, stored: StoredEnsemble, limits: VotingLimits, device: str) -> Voting:
        """One matrix product for all teachers. Raises StoreError."""
        manifest, spec = stored.manifest, self.features
        features = load_feature_map(stored, spec)
        classes = len(manifest.classes)
        shapes = {"weights": (classes, spec.width), "biases": (classes,)}
        teachers = {name: each.to(device) for name, each in stored.stacked(shapes).items()}
        values = manifest.input.size
        if spec.base == "oriented_gradients":
            values = max(values, ENLARGED_SIDE_PIXELS**2)
        if spec.base == "coloured_gradients":
            values = max(values, MAX_BANDS * ENLARGED_SIDE_PIXELS**2)
        each = (
            (2 * 8 + 4 * classes) * manifest.teachers  # choices, counts, and scores
            + 2 * 4 * spec.points  # distances
            + values * SCRATCH_BYTES_PER_VALUE
        )
        block = limits.block(each, MAX_BLOCK_INPUTS.get(device, 128))
        return Voting(_product(features.to(device), **teachers), block, device)

    def inspect(self, directory: Path, manifest: Manifest) -> None:
        """Check a backbone in a process of its own."""
        if self.features.backbone is not None:
            backbones().check(directory, self.features.backbone, manifest.input)

    def train(self, shards: Shards, run: range) -> Trained:
        """Weights [k, m, width] and biases [k, m] of a run of k heads."""
        features, spec, classes = shards.features, shards.data.spec, len(shards.data.classes)
        if features is None:
            raise ValueError("heads need a feature map")
        augmentations, ridge = self.augmentations, self.ridge or 0.0
        rotation, elastic = self.rotation or 0.0, self.elastic or 0.0
        between = features.tensors.get("between")

        def train(teacher: int) -> tuple[torch.Tensor, torch.Tensor]:
            x, y = shards.records_of(teacher)
            if augmentations:
                draws = torch.from_numpy(draws_for(shards.seed, teacher, len(x) * augmentations))
                repeated = x.repeat_interleave(augmentations, 0)
                x = torch.cat([x, distorted(repeated, draws, spec, rotation, elastic)])
                y = torch.cat([y, y.repeat_interleave(augmentations)])
            known = torch.cat([features(block) for block in torch.split(x, BLOCK_IMAGES)])
            if between is not None:
                return mean_head(known, y, classes, between, 1 + augmentations)
            return ridge_head(known, y, classes, ridge)

        trained = side_by_side(train, run)
        weights, biases = (torch.stack(each) for each in zip(*trained, strict=True))
        rows = shards.public_rows(MAX_GRAPH_POINTS)
        if self.match_prior and rows is not None:
            priors = shards.priors(run)

            def match(_: None) -> torch.Tensor:
                return match_priors(weights, biases, priors, features(rows))

            # With one thread, as all the rest: what it rounds to must not depend on processors.
            (biases,) = side_by_side(match, [None])
        elif self.even and rows is not None:
            known = torch.stack([shards.has_classes(i, classes) for i in run])

            def level(_: None) -> torch.Tensor:
                return level_biases(weights, biases, known, features(rows))

            (biases,) = side_by_side(level, [None])
        return {"weights": weights, "biases": biases}


def load_feature_map(stored: StoredEnsemble, spec: FeatureSpec) -> FeatureMap:
    """The public map of an ensemble, verified. Raises StoreError."""
    tensors = stored.tensors(FEATURES_FILE) if FEATURES_FILE in stored.manifest.files else {}
    backbone = None if spec.backbone is None else backbones().load(stored.directory, spec.backbone)
    features = FeatureMap(spec, stored.manifest.input, tensors, backbone)
    check_shapes(str(stored.directory / FEATURES_FILE), features.tensors, features.shapes())
    return features


def _product(features: FeatureMap, weights: torch.Tensor, biases: torch.Tensor) -> Choose:
    n, m, _ = weights.shape
    matrix, offset = weights.flatten(0, 1).T, biases.flatten()

    def choose(x: torch.Tensor) -> torch.Tensor:
        scores = torch.addmm(offset, features(x), matrix)
        return scores.view(len(x), n, m).argmax(2)

    return choose
