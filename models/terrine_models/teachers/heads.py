"""Private ridge heads on a shared public feature map: the default kind of teacher."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.augment import ELASTIC, ROTATION, distorted, draws_for
from terrine_models.features.backbones import Backbone
from terrine_models.features.discriminant import MANY, mean_head
from terrine_models.features.maps import (
    BLOCK,
    FEWEST_POINTS,
    MOST_POINTS,
    FeatureMap,
    Kind,
    PublicData,
    public_features,
)
from terrine_models.storage.manifests import CONFIG, Architecture, FeatureSpec, TeacherTraining
from terrine_models.teachers.architectures import match_priors, ridge_head
from terrine_models.teachers.shards import Shards

USUAL, OF_WHITENED = 0.1, 1.0
"""Penalties of heads. On whitened features a strong one does no harm: what it shrinks most is the
shard's own, unreliable view of how features vary together."""
WIDTH, LANDMARKS = 150, 800
"""Features after the public projection, and landmarks of a Nyström map."""


@dataclass(frozen=True, config=CONFIG)
class Heads:
    """Linear heads on public features that all share: fast, and the default."""

    width: Annotated[
        int | None,
        Field(
            ge=3,
            le=4096,
            description="Features of an image, at most: 150. With nystrom its landmarks: 800.",
        ),
    ] = None
    features: Annotated[
        Kind | None,
        Field(
            description="Of images, beside oriented gradients. graph: components and a "
            "neighbourhood graph; the default. nystrom: a Gaussian kernel of public landmarks. "
            "discriminant: directions in which classes differ, and class means for heads; the "
            "default from 30 classes on.",
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
    augmentations: Annotated[
        int,
        Field(
            ge=0,
            description="Distorted copies of each training image. Handwriting gains, clothes lose.",
        ),
    ] = 2
    rotation: Annotated[
        float, Field(ge=0, le=180, description="The largest angle of a copy, in degrees.")
    ] = ROTATION
    elastic: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="The largest elastic displacement in a copy, as a share of half the side.",
        ),
    ] = ELASTIC
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
    backbone: Backbone | None = None
    """A public model whose embeddings replace oriented gradients, or a table's columns."""
    kind = "heads"
    per_file = 50
    packages = ()

    def architecture(self, inputs: InputSpec) -> Architecture:
        """Always ridge regression."""
        return Architecture(name="ridge")

    def training(
        self, data: Dataset, seed: int, features: FeatureSpec | None, public: PublicData | None
    ) -> TeacherTraining:
        """What the manifest records."""
        augmentations = self.augmentations if len(data.spec.shape) > 1 else 0
        whitened = features is not None and features.projection == "whitened"
        means = features is not None and features.projection == "discriminant"
        return TeacherTraining(
            seed=seed,
            augmentations=augmentations,
            rotation=self.rotation if augmentations else None,
            elastic=self.elastic if augmentations else None,
            ridge=None if means else self.ridge or (OF_WHITENED if whitened else USUAL),
            match_prior=(whitened and self.match_prior and len(data.classes) == 2) or None,
        )

    def feature_map(self, data: Dataset, public: PublicData | None) -> FeatureMap:
        """The public feature map that all heads share."""
        fitted_on = public if self.bins or self.backbone or len(data.spec.shape) > 1 else None
        kind = self.features or ("discriminant" if self._many(data, public) else "graph")
        if kind == "discriminant" and self.ridge is not None:
            raise DataError("Heads on discriminant features are class means: leave ridge out.")
        width = self.width or (LANDMARKS if kind == "nystrom" else WIDTH)
        return public_features(
            data.spec, fitted_on, width, kind, whiten=True, backbone=self.backbone
        )

    def _many(self, data: Dataset, public: PublicData | None) -> bool:
        """Whether a shard may lack some of many classes of images."""
        if public is None or self.backbone is not None or self.ridge is not None:
            return False
        images = len(data.spec.shape) > 1 and len(public.inputs) >= FEWEST_POINTS
        return images and len(data.classes) >= MANY

    def train(self, shards: Shards, run: range) -> dict[str, torch.Tensor]:
        """Weights [k, m, width] and biases [k, m] of a run of k heads."""
        plan, features = shards.plan, shards.features
        if features is None:
            raise ValueError("heads need a feature map")
        settings = plan.training
        augmentations, ridge = settings.augmentations or 0, settings.ridge or 0.0
        rotation = ROTATION if settings.rotation is None else settings.rotation
        elastic = ELASTIC if settings.elastic is None else settings.elastic
        between = features.tensors.get("between")

        def train(teacher: int) -> tuple[torch.Tensor, torch.Tensor]:
            x, y = shards.of(teacher)
            if augmentations:
                draws = draws_for(settings.seed or 0, teacher, len(x) * augmentations)
                repeated = x.repeat_interleave(augmentations, 0)
                x = torch.cat([x, distorted(repeated, draws, plan.input, rotation, elastic)])
                y = torch.cat([y, y.repeat_interleave(augmentations)])
            known = torch.cat([features(block) for block in torch.split(x, BLOCK)])
            if between is not None:
                return mean_head(known, y, len(plan.classes), between, 1 + augmentations)
            return ridge_head(known, y, len(plan.classes), ridge)

        trained = side_by_side(train, run)
        weights, biases = (torch.stack(each) for each in zip(*trained, strict=True))
        rows = shards.public_rows(MOST_POINTS)
        if settings.match_prior and rows is not None:
            priors = shards.priors(run)

            def match(_: None) -> torch.Tensor:
                return match_priors(weights, biases, priors, features(rows))

            # With one thread, as all the rest: what it rounds to must not depend on processors.
            (biases,) = side_by_side(match, [None])
        return {"weights": weights, "biases": biases}
