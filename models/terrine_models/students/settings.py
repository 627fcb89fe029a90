"""Settings of a student's training, as users state them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from terrine_models.storage.manifests import CONFIG

Threshold = Literal["prior", "accuracy"] | Annotated[float, Field(gt=0, lt=1)]
"""How shares of two classes become labels; see `thresholds.py`."""


@dataclass(frozen=True, config=CONFIG)
class Training:
    """Settings of the training; the defaults suit tens to hundreds of labels.

    All but `method` and `threshold` are of networks.
    """

    method: str = "auto"
    """`auto`, or one of `methods.METHODS`."""
    steps: Annotated[int, Field(ge=1, description="Training steps of a network.")] = 600
    batch: Annotated[int, Field(ge=1, description="Labelled inputs per step.")] = 64
    unlabelled_batch: Annotated[int, Field(ge=1, description="Unlabelled inputs per step.")] = 128
    learning_rate: Annotated[float, Field(gt=0, description="The highest, of AdamW.")] = 4e-3
    weight_decay: Annotated[float, Field(ge=0, description="Of AdamW.")] = 5e-4
    warm_up: Annotated[
        float, Field(ge=0, le=1, description="Share of the steps that use labels alone.")
    ] = 0.25
    confidence: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="fixmatch: the student's own label is used from this probability on.",
        ),
    ] = 0.8
    radius: Annotated[
        float,
        Field(
            gt=0,
            description="vat: length of the adversarial step, in units of the prepared input.",
        ),
    ] = 1.5
    threshold: Threshold = "prior"
    """From which probability of the second of two classes it is the label."""
