"""Settings of a student's training, as users state them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from terrine_models.storage.manifests import SETTINGS_CONFIG

Threshold = Literal["prior", "accuracy"] | Annotated[float, Field(gt=0, lt=1)]
"""How shares of two classes become labels; see `models.choose_threshold`."""


@dataclass(frozen=True, config=SETTINGS_CONFIG)
class Training:
    """How a student is trained."""

    method: str = "auto"
    """`auto`, or one of `models.METHODS`."""
    threshold: Threshold = "prior"
    """From which probability of the second of two classes it is the label."""
