"""Options of `terrine ensemble train` for heads: distortions and features of images."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from terrine_models.teachers import Heads

LANDMARKS = 800
"""Of a Nyström map, if no width is given."""


class FeatureKind(StrEnum):
    """What heads have of images, beside oriented gradients."""

    GRAPH = "graph"
    NYSTROM = "nystrom"


Copies = Annotated[
    int | None,
    typer.Option(
        min=0, help="For heads: distorted copies of each image. Handwriting gains, clothes lose."
    ),
]
Turning = Annotated[
    float | None, typer.Option(min=0, max=180, help="For copies: the largest angle, in degrees.")
]
Bending = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="For copies: the largest displacement, as a share of half the side."
    ),
]
Features = Annotated[
    FeatureKind | None,
    typer.Option(
        help="For heads on images. graph: components and a neighbourhood graph. nystrom: a "
        "Gaussian kernel of public landmarks."
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


def chosen_heads(
    copies: int | None,
    turning: float | None,
    bending: float | None,
    features: FeatureKind | None,
    width: int | None,
    ridge: float | None,
    bins: bool,
) -> Heads:
    """The settings that were given, and the defaults of the others."""
    from terrine_models.teachers import Heads

    usual = Heads()
    landmarks = features is FeatureKind.NYSTROM
    return Heads(
        width=width or (LANDMARKS if landmarks else usual.width),
        features=features.value if features else usual.features,
        ridge=ridge,
        copies=usual.copies if copies is None else copies,
        turning=usual.turning if turning is None else turning,
        bending=usual.bending if bending is None else bending,
        bins=bins,
    )
