"""Public feature maps, as teachers and students use and store them: `fitting` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.arrays import Array, namespace, zeros
from terrine_models.features.backbones import Backbone
from terrine_models.features.bases import BLOCK_IMAGES, base_features
from terrine_models.features.components import project
from terrine_models.features.projections import projection_of
from terrine_models.storage.manifests import BACKBONE_FILE, FEATURES_FILE, FeatureSpec, save_tensors
from terrine_protocol.files import write_atomically


class FeatureMap:
    """Turns inputs [B, *shape] into features [B, width].

    Arrays of NumPy with the map as it is fitted; tensors of PyTorch after `to`.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        inputs: InputSpec,
        tensors: Mapping[str, Array],
        backbone: Backbone | None = None,
    ) -> None:
        self.spec = spec
        self.inputs = inputs
        self.backbone = backbone
        self.tensors = dict(tensors)
        """Named by what was fitted (`projections`)."""
        self._projection = projection_of(spec, inputs, self.tensors)

    def __call__(self, x: Array) -> Array:
        """Features [B, width] in float32 of inputs [B, *shape] in any dtype."""
        return self.of_base(base_features(self.spec.base, x, self.inputs, self.backbone))

    def of_block(self, x: Array, size: int) -> Array:
        """Features [size, width] of inputs [B, *shape] and of rows of zeros after them.

        Products round by their size, so what one person's records round to depends on no other's
        if the size is always the same. A backbone is asked about the B alone: it has no blocks.
        """
        if self.backbone is not None:
            return self.of_base(_fill_up(self.backbone(x), size))
        return self(_fill_up(x, size))

    def of_base(self, base: Array, *, skip: int = 0) -> Array:
        """Features [B, width] of the data-independent ones [B, D] (`base_features`).

        `skip` as in `linear.extend`.
        """
        return self._projection.apply(base, skip)

    def projected(self, base: Array) -> Array:
        """What the basis makes of data-independent features, or bins, [B, D]: [B, components]."""
        return project(base, self.tensors)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes that the tensors must have."""
        return self._projection.shapes()

    def save(self, directory: Path) -> dict[str, str]:
        """Save the tensors and the backbone, if there are any; return the SHA-256 of each file."""
        files = {}
        if self.tensors:
            files[FEATURES_FILE] = save_tensors(directory / FEATURES_FILE, self.tensors)
        if self.backbone is not None:
            write_atomically(directory / BACKBONE_FILE, self.backbone.data)
            files[BACKBONE_FILE] = self.backbone.source.sha256
        return files

    def to(self, device: str) -> FeatureMap:
        """The same map for tensors of PyTorch on a device."""
        from torch import as_tensor

        moved = {name: as_tensor(each, device=device) for name, each in self.tensors.items()}
        return FeatureMap(self.spec, self.inputs, moved, self.backbone)


def compute_features(known: FeatureMap, x: NDArray[Any], skip: int = 0) -> NDArray[np.float64]:
    """Features [N, d] of inputs [N, *shape]; on a graph, leave out the nearest `skip` inputs."""

    def compute(at: int) -> NDArray[np.float32]:
        block = np.asarray(x[at : at + BLOCK_IMAGES], dtype=np.float32)
        base = base_features(known.spec.base, block, known.inputs)
        found: NDArray[np.float32] = known.of_base(base, skip=skip)
        return found

    found = side_by_side(compute, range(0, len(x), BLOCK_IMAGES))
    return np.concatenate(found).astype(np.float64)


def _fill_up(rows: Array, size: int) -> Array:
    more = zeros((size - len(rows), *rows.shape[1:]), rows)
    return namespace(rows).concatenate([rows, more])
