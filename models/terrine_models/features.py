"""Public feature maps: data-independent, or fitted on data that its owner named as public.

Nothing in this module accepts a private data set. The only thing a map can be fitted on is a
`PublicData`, and the only way to one is to give public data a name: `PublicData.declare`.
Teachers' heads on top of such a map are private; the map is not, and so it costs no privacy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from .data import DataError, Dataset, row_digests
from .store import FeatureSpec, InputSpec, PublicSource
from .workers import side_by_side

Base = Literal["oriented_gradients", "identity"]
BINS = 9
BLOCK = 128
"""Images turned into features at a time: few enough to stay in a processor's cache."""
SMALL, ENLARGED = 20, 28  # images with a side under SMALL pixels are enlarged first


@dataclass(frozen=True)
class PublicData:
    """Inputs [N, *shape] that anyone may see. Make one with `declare`."""

    inputs: NDArray[Any]
    source: PublicSource

    @classmethod
    def declare(cls, name: str, inputs: NDArray[np.generic]) -> PublicData:
        """State that `inputs` [N, *shape] are public, under a name that the manifest will show."""
        if not name.strip():
            raise DataError("public data needs a name, so that its use can be checked later")
        if inputs.ndim < 2 or len(inputs) == 0:
            raise DataError(f"public data {name!r} holds no inputs; its shape is {inputs.shape}")
        inputs = np.ascontiguousarray(inputs)
        head = f"{inputs.dtype.str}{inputs.shape}".encode()
        digest = hashlib.sha256(head + inputs.tobytes()).hexdigest()
        return cls(inputs, PublicSource(name=name, sha256=digest, records=len(inputs)))

    def check_disjoint(self, private: Dataset) -> None:
        """Refuse public data that contains private rows: somebody mixed up two files.

        Rows of a table may coincide by chance, so 1 % is let pass there; images may not.
        """
        if self.inputs.shape[1:] != private.inputs.shape[1:]:
            raise DataError(
                f"public data {self.source.name!r} has inputs of shape {self.inputs.shape[1:]}, "
                f"the private data of shape {private.inputs.shape[1:]}"
            )
        if self.inputs.dtype != private.inputs.dtype:
            raise DataError(
                f"public data {self.source.name!r} has dtype {self.inputs.dtype}, the private "
                f"data {private.inputs.dtype}"
            )
        outside = (self.inputs < private.spec.low) | (self.inputs > private.spec.high)
        if outside.any() or not np.isfinite(self.inputs).all():
            raise DataError(
                f"public data {self.source.name!r} has values outside the declared range "
                f"[{private.spec.low:g}, {private.spec.high:g}]"
            )
        shared = int(np.isin(row_digests(self.inputs), row_digests(private.inputs)).sum())
        by_chance = len(self.inputs) // 100 if private.encoding is not None else 0
        if shared > by_chance:
            raise DataError(
                f"{shared} of {len(self.inputs)} rows of the public data {self.source.name!r} "
                "are rows of the private data. Nothing may be fitted on private rows: name data "
                "that is really public, or none"
            )


class FeatureMap:
    """Turns inputs [B, *shape] into features [B, width]."""

    def __init__(
        self, spec: FeatureSpec, inputs: InputSpec, tensors: dict[str, torch.Tensor]
    ) -> None:
        self.spec = spec
        self.inputs = inputs
        self.tensors = tensors
        """`mean` [D] and `basis` [D, width] of the projection; empty without one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Features [B, width] in float32 of inputs [B, *shape] in any dtype."""
        base = base_features(self.spec.base, x, self.inputs)
        if self.spec.projection == "none":
            return base
        return (base - self.tensors["mean"]) @ self.tensors["basis"]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes that the tensors must have."""
        if self.spec.projection == "none":
            return {}
        size = _base_size(self.spec.base, self.inputs)
        return {"mean": (size,), "basis": (size, self.spec.width)}

    def to(self, device: str) -> FeatureMap:
        """The same map on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return FeatureMap(self.spec, self.inputs, moved)


def base_features(base: Base, x: torch.Tensor, inputs: InputSpec) -> torch.Tensor:
    """The part of a map that looks at no data: [B, *shape] to [B, D]."""
    unit = to_unit(x, inputs)
    if base == "identity":
        return unit.flatten(1) * 2 - 1
    return oriented_gradients(to_images(unit).mean(1))


def _base_size(base: Base, inputs: InputSpec) -> int:
    return base_features(base, torch.zeros((1, *inputs.shape)), inputs).shape[1]


def to_unit(x: torch.Tensor, inputs: InputSpec) -> torch.Tensor:
    """Scale inputs from their declared range to [0, 1]."""
    return (x.float() - inputs.low) / (inputs.high - inputs.low)


def to_images(x: torch.Tensor) -> torch.Tensor:
    """[B, H, W] or [B, H, W, C] to [B, C, H, W]."""
    return x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()


def oriented_gradients(images: torch.Tensor) -> torch.Tensor:
    """Histograms of gradient orientation on two scales, of grey images [B, H, W] in [0, 1].

    Each pixel adds the length of its gradient to the two nearest of BINS orientations; cells of
    4 x 4 pixels every 2 and of 8 x 8 pixels every 4 sum them; each cell is scaled to unit length
    and square-rooted, which makes dot products of features Hellinger kernels. After Dalal and
    Triggs, "Histograms of Oriented Gradients for Human Detection", CVPR 2005.
    """
    if min(images.shape[1:]) < SMALL:
        images = F.interpolate(
            images.unsqueeze(1), size=(ENLARGED, ENLARGED), mode="bilinear", align_corners=False
        ).squeeze(1)
    padded = F.pad(images.unsqueeze(1), (1, 1, 1, 1), mode="replicate").squeeze(1)
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    length = torch.sqrt(across * across + down * down).unsqueeze(3)
    turn = torch.atan2(down, across).unsqueeze(3) * (BINS / torch.pi) + BINS
    lower = turn.floor()
    upper_share = (turn - lower) * length
    lower_bin = lower.long() % BINS  # opposite directions agree
    votes = images.new_zeros((*images.shape, BINS))
    votes.scatter_(3, lower_bin, length - upper_share)
    votes.scatter_(3, (lower_bin + 1) % BINS, upper_share)
    height, width = (side // 2 * 2 for side in images.shape[1:])
    tall = votes[:, 0:height:2] + votes[:, 1:height:2]
    squares = tall[:, :, 0:width:2] + tall[:, :, 1:width:2]
    fine = _overlapping(squares)
    coarse = _overlapping(fine[:, 0::2, 0::2])
    return torch.cat(
        [torch.sqrt(F.normalize(cells, dim=3, eps=1e-3)).flatten(1) for cells in (fine, coarse)], 1
    )


def _overlapping(blocks: torch.Tensor) -> torch.Tensor:
    """Sums [B, h - 1, w - 1, BINS] over all 2 x 2 neighbourhoods."""
    tall = blocks[:, 1:] + blocks[:, :-1]
    return tall[:, :, 1:] + tall[:, :, :-1]


def public_features(inputs: InputSpec, public: PublicData | None, width: int) -> FeatureMap:
    """The feature map for inputs of this kind: at most `width` numbers an input.

    Images get oriented gradients, and then a PCA of `public`; without public data a random
    orthogonal projection, which looks at no data. Tables keep their encoded columns.
    """
    if len(inputs.shape) == 1:
        spec = FeatureSpec(base="identity", projection="none", width=inputs.shape[0])
        return FeatureMap(spec, inputs, {})
    if public is not None:
        return _principal_components(inputs, public, width)
    return _random_projection(inputs, width)


def _principal_components(inputs: InputSpec, public: PublicData, width: int) -> FeatureMap:
    blocks = np.array_split(public.inputs, -(-len(public.inputs) // BLOCK))
    base = torch.cat(
        side_by_side(
            lambda block: base_features("oriented_gradients", torch.tensor(block), inputs), blocks
        )
    )
    mean = base.mean(0)
    centred = base - mean
    covariance = (centred.T @ centred / len(base)).double()
    _, vectors = torch.linalg.eigh(covariance)
    basis = vectors.flip(1)[:, : min(width, *base.shape)].float()
    spec = FeatureSpec(
        base="oriented_gradients",
        projection="pca",
        width=basis.shape[1],
        fitted_on=public.source,
    )
    return FeatureMap(spec, inputs, {"mean": mean, "basis": basis.contiguous()})


def _random_projection(inputs: InputSpec, width: int, seed: int = 0) -> FeatureMap:
    size = _base_size("oriented_gradients", inputs)
    random = np.random.Generator(np.random.Philox(seed))
    directions = torch.from_numpy(random.standard_normal((size, min(width, size))))
    basis, _ = torch.linalg.qr(directions)
    spec = FeatureSpec(
        base="oriented_gradients", projection="random", width=basis.shape[1], seed=seed
    )
    return FeatureMap(spec, inputs, {"mean": torch.zeros(size), "basis": basis.float()})
