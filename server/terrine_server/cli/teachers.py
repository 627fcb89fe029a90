"""Options of `terrine ensemble train` that say what one teacher is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli.console import fail

if TYPE_CHECKING:
    from terrine_models.data import InputSpec
    from terrine_models.teachers import Heads, How, Trainer

LANDMARKS = 800
"""Of a Nyström map, if no width is given."""


class Kind(StrEnum):
    """Kind of teacher."""

    HEADS = "heads"
    NETWORKS = "networks"
    FOREST = "forest"


class FeatureKind(StrEnum):
    """What heads have of images, beside oriented gradients."""

    GRAPH = "graph"
    NYSTROM = "nystrom"
    DISCRIMINANT = "discriminant"


class Where(StrEnum):
    """Where teachers are trained."""

    HERE = "here"
    RAY = "ray"


TrainOn = Annotated[
    Where,
    typer.Option(
        help="ray: on the cluster at TERRINE_RAY_ADDRESS, or on one of this machine's processors."
    ),
]
KindOption = Annotated[
    Kind,
    typer.Option(
        help="heads: linear heads on shared public features, fast. networks: one network per "
        "teacher, slow. forest: one random forest per teacher, for tables."
    ),
]
Copies = Annotated[
    int | None,
    typer.Option(
        min=0, help="For heads: distorted copies of each image. Handwriting gains, clothes lose."
    ),
]
Rotation = Annotated[
    float | None, typer.Option(min=0, max=180, help="For copies: the largest angle, in degrees.")
]
Elastic = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="For copies: the largest displacement, as a share of half the side."
    ),
]
Features = Annotated[
    FeatureKind | None,
    typer.Option(
        help="For heads on images. graph: components and a neighbourhood graph. nystrom: a "
        "Gaussian kernel of public landmarks. discriminant: directions in which classes differ, "
        "and class means for heads; the default from 30 classes on."
    ),
]
Width = Annotated[
    int | None,
    typer.Option(min=3, max=4096, help="For heads on images: features; landmarks of nystrom."),
]
Ridge = Annotated[
    float | None,
    typer.Option(
        min=1e-6,
        help="For heads: penalty, relative to the variance of the features. 0.1; 1 with bins.",
    ),
]
Bins = Annotated[
    bool,
    typer.Option(
        help="For heads on a table with --public: bin its columns at the quantiles of the "
        "public rows, or keep them as they are."
    ),
]
BackboneFile = Annotated[
    Path | None,
    typer.Option(
        "--backbone",
        metavar="FILE",
        help="For heads: an ONNX model [batch, …] → [batch, D] whose embeddings are the features. "
        "It must be public: nobody's private records may have trained it.",
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="For networks: passes over a shard.")]
Trees = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="For forests: trees in each. Default: 100.")
]
MatchPrior = Annotated[
    bool,
    typer.Option(
        help="For heads and forests on a table with --public and two classes: each says yes to as "
        "many of the public rows as of its own records, or not."
    ),
]


@dataclass(frozen=True)
class Given:
    """The options as they were given; None where they were not."""

    copies: int | None
    rotation: float | None
    elastic: float | None
    features: FeatureKind | None
    width: int | None
    ridge: float | None
    bins: bool
    match_prior: bool
    backbone: Path | None
    epochs: int | None
    trees: int | None

    def check(self, kind: Kind) -> None:
        """Refuse options of other kinds of teacher."""
        images = "networks distort images anew in every epoch, and forests are for tables"
        of_heads = {
            "--copies": self.copies,
            "--rotation": self.rotation,
            "--elastic": self.elastic,
            "--features": self.features,
            "--width": self.width,
        }
        if self.backbone is not None and kind is not Kind.HEADS:
            fail("--backbone is for --kind heads: other teachers take the inputs themselves.")
        for option, value in of_heads.items():
            if value is not None and kind is not Kind.HEADS:
                fail(f"{option} is for --kind heads: {images}.")
        if self.ridge is not None and kind is not Kind.HEADS:
            fail("--ridge is for --kind heads: other teachers are no ridge regressions.")
        if not self.bins and kind is not Kind.HEADS:
            fail("--no-bins is for --kind heads: other teachers take columns as they are.")
        if not self.match_prior and kind is Kind.NETWORKS:
            fail("--no-match-prior is for --kind heads and forest: networks never match it.")
        if self.epochs is not None and kind is not Kind.NETWORKS:
            fail("--epochs is for --kind networks: heads and forests are not trained in passes.")
        if self.trees is not None and kind is not Kind.FOREST:
            fail("--trees is for --kind forest.")


def chosen(kind: Kind, given: Given, inputs: InputSpec) -> How:
    """The settings that were given, and the defaults of the others."""
    from terrine_models.teachers import Forests, Networks

    given.check(kind)
    match kind:
        case Kind.HEADS:
            return _heads(given, inputs)
        case Kind.NETWORKS:
            return Networks() if given.epochs is None else Networks(epochs=given.epochs)
        case Kind.FOREST:
            trees = Forests().trees if given.trees is None else given.trees
            return Forests(trees=trees, match_prior=given.match_prior)


def _heads(given: Given, inputs: InputSpec) -> Heads:
    from terrine_models.backbones import Backbone
    from terrine_models.teachers import Heads

    usual = Heads()
    landmarks = given.features is FeatureKind.NYSTROM
    return Heads(
        width=given.width or (LANDMARKS if landmarks else usual.width),
        features=given.features.value if given.features else usual.features,
        ridge=given.ridge,
        copies=usual.copies if given.copies is None else given.copies,
        rotation=usual.rotation if given.rotation is None else given.rotation,
        elastic=usual.elastic if given.elastic is None else given.elastic,
        bins=given.bins,
        match_prior=given.match_prior,
        backbone=None if given.backbone is None else Backbone.declare(given.backbone, inputs),
    )


@contextmanager
def trainer(where: Where) -> Iterator[Trainer]:
    """Yield what trains teachers there; a cluster is left at the end."""
    from terrine_models.teachers import here

    if where is Where.HERE:
        yield here
        return
    from terrine_models.ray_training import on_ray
    from terrine_server.settings import Settings

    with on_ray(Settings().ray_address) as on_cluster:
        yield on_cluster
