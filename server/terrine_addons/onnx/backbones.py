"""Public backbones: ONNX models that turn inputs into embeddings, the same for all teachers.

What it makes of one person's record must depend on no other's. Nobody can prove that of foreign
code that is given several rows: a scale may be taken over all of them, as dynamic quantisation
does. So it is never given more than one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from terrine_addons.onnx.checking import CheckRequest, FileFinding, checked
from terrine_addons.onnx.models import ModelError, OnnxModel, pass_on_exhaustion
from terrine_models.data.arrays import InputSpec
from terrine_models.features.arrays import Array, like
from terrine_models.storage.manifests import (
    BACKBONE_FILE,
    PublicModel,
    StoreError,
    read_verified,
    sha256,
)
from terrine_protocol.files import read


@dataclass(frozen=True, eq=False)
class OnnxBackbone:
    """A checked model, with the bytes of its file. Make one with `declare` or `load`."""

    data: bytes
    model: OnnxModel
    source: PublicModel

    @classmethod
    def declare(cls, path: Path, inputs: InputSpec) -> OnnxBackbone:
        """State that the ONNX model at `path` is public, and check it in a process of its own.

        It takes inputs [B, *shape] and has one output [B, D] in floating point. Raises StoreError.
        """
        path = Path(path)
        found = _check_backbone(path, inputs)
        data = read(path, None)
        if sha256(data) != found.sha256:
            raise StoreError(f"{path} changed while it was checked.")
        return cls(
            data,
            OnnxModel(data),
            PublicModel(name=path.name, sha256=found.sha256, width=found.width),
        )

    @classmethod
    def load(cls, directory: Path, source: PublicModel) -> OnnxBackbone:
        """The backbone of a trained ensemble. Raises StoreError if its file is altered."""
        data = read_verified(directory, BACKBONE_FILE, source.sha256)
        try:
            return cls.of_bytes(data, source)
        except ModelError as error:
            raise StoreError(f"{directory / BACKBONE_FILE} cannot be used: {error}.") from None

    @classmethod
    def of_bytes(cls, data: bytes, source: PublicModel) -> OnnxBackbone:
        """A backbone of the bytes of its file, which were verified. Raises ModelError."""
        return cls(data, OnnxModel(data), source)

    @staticmethod
    def check(directory: Path, source: PublicModel, inputs: InputSpec) -> None:
        """Check an ensemble's backbone once more, in a process of its own. Raises StoreError."""
        if _check_backbone(directory / BACKBONE_FILE, inputs).sha256 != source.sha256:
            raise StoreError(
                f"{directory / BACKBONE_FILE} was altered: the manifest has another SHA-256."
            )

    def __call__(self, x: Array) -> Array:
        """Embeddings [B, D] in float32 of inputs [B, *shape], each row by itself.

        0 for what is not finite, and for a row on which the model fails: what one row raises must
        not stop the others. Raises MemoryError.
        """
        rows = x if isinstance(x, np.ndarray) else x.cpu().numpy()
        found = np.zeros((len(rows), self.source.width), np.float32)
        for row, embedding in zip(rows, found, strict=True):
            try:
                values = self.model(row[None])
            except Exception as error:  # onnxruntime's errors have no class in common
                pass_on_exhaustion(error)
                continue
            with np.errstate(over="ignore"):  # of float64
                embedding[:] = values.reshape(self.source.width)
        np.nan_to_num(found, copy=False, posinf=0.0, neginf=0.0)
        return like(found, x)


def _check_backbone(path: Path, inputs: InputSpec) -> FileFinding:
    (found,) = checked(CheckRequest(paths=(str(path),), spec=inputs, role="backbone"))
    return found
