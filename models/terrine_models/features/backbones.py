"""Public models that turn inputs into features: what an add-on must offer."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

from terrine_models.addons import load_added
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
    found: type[Backbone] | None = next(load_added("backbones"), None)
    if found is None:
        raise StoreError(
            "A backbone needs an add-on that runs it, and this installation of Terrine has none."
        )
    return found
