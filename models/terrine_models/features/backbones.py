"""Public backbones: ONNX models that turn inputs into embeddings, the same for all teachers.

A backbone is declared public by its owner: anybody may have it, and no private record trained it.
Then it is like any other public feature map (`maps.py`), and costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from terrine_models.data.arrays import InputSpec
from terrine_models.storage.manifests import (
    BACKBONE,
    PublicModel,
    StoreError,
    sha256,
    verified_bytes,
)
from terrine_models.storage.onnx_check import CheckRequest, FileFinding
from terrine_models.storage.onnx_files import checked
from terrine_models.storage.onnx_models import ModelError, OnnxModel
from terrine_protocol.files import read


@dataclass(frozen=True, eq=False)
class Backbone:
    """A checked model, with the bytes of its file. Make one with `declare` or `load`."""

    data: bytes
    model: OnnxModel
    source: PublicModel

    @classmethod
    def declare(cls, path: Path, inputs: InputSpec) -> Backbone:
        """State that the ONNX model at `path` is public, and check it in a process of its own.

        It takes inputs [B, *shape] and has one output [B, D] in floating point. Raises StoreError.
        """
        path = Path(path)
        found = _checked(path, inputs)
        data = read(path, None)
        if sha256(data) != found.sha256:
            raise StoreError(f"{path} changed while it was checked.")
        return cls(
            data,
            OnnxModel(data),
            PublicModel(name=path.name, sha256=found.sha256, width=found.width),
        )

    @classmethod
    def load(cls, directory: Path, source: PublicModel) -> Backbone:
        """The backbone of a trained ensemble. Raises StoreError if its file is altered."""
        data = verified_bytes(directory, BACKBONE, source.sha256)
        try:
            return cls(data, OnnxModel(data), source)
        except ModelError as error:
            raise StoreError(f"{directory / BACKBONE} cannot be used: {error}.") from None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings [B, D] in float32 of inputs [B, *shape]; 0 for what is not finite."""
        found = np.asarray(self.model(x.cpu().numpy()), np.float32)
        return torch.from_numpy(np.nan_to_num(found, posinf=0.0, neginf=0.0)).to(x.device)


def check_backbone(directory: Path, source: PublicModel, inputs: InputSpec) -> None:
    """Check an ensemble's backbone once more, in a process of its own. Raises StoreError."""
    if _checked(directory / BACKBONE, inputs).sha256 != source.sha256:
        raise StoreError(f"{directory / BACKBONE} was altered: the manifest has another SHA-256.")


def _checked(path: Path, inputs: InputSpec) -> FileFinding:
    (found,) = checked(CheckRequest(paths=(str(path),), spec=inputs, role="backbone"))
    return found
