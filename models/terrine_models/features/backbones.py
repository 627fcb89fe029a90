"""Public backbones: models that turn inputs into embeddings, the same for all teachers.

A backbone is declared public by its owner: anybody may have it, and no private record trained it.
Then it is like any other public feature map (`maps.py`), and costs no privacy, as long as what it
makes of one person's record depends on no other's. An add-on runs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

from terrine_models.addons import added
from terrine_models.data.arrays import InputSpec
from terrine_models.features.arrays import Array
from terrine_models.storage.manifests import PublicModel, StoreError


class Backbone(Protocol):
    """A checked model, with the bytes of its file."""

    @property
    def data(self) -> bytes:
        """The bytes of its file."""

    @property
    def source(self) -> PublicModel:
        """What a manifest says of it."""

    @classmethod
    def declare(cls, path: Path, inputs: InputSpec) -> Self:
        """State that the model at `path` is public, and check it. Raises StoreError."""

    @classmethod
    def load(cls, directory: Path, source: PublicModel) -> Self:
        """The backbone of a trained ensemble. Raises StoreError if its file is altered."""

    @classmethod
    def of_bytes(cls, data: bytes, source: PublicModel) -> Self:
        """A backbone of the bytes of its file, which were verified."""

    @staticmethod
    def check(directory: Path, source: PublicModel, inputs: InputSpec) -> None:
        """Check an ensemble's backbone once more, in a process of its own. Raises StoreError."""

    def __call__(self, x: Array) -> Array:
        """Embeddings [B, D] in float32 of inputs [B, *shape], each row by itself."""


def backbones() -> type[Backbone]:
    """The class of backbones. Raises StoreError if no add-on has one."""
    found: type[Backbone] | None = next(added("backbones"), None)
    if found is None:
        raise StoreError(
            "A backbone is run by the add-on `onnx`, which this installation of Terrine lacks."
        )
    return found
