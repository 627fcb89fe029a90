"""Features are the same of arrays and of tensors, and such as PyTorch itself would compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.features.arrays import count_below, largest
from terrine_models.features.distortions import DRAWS, ELASTIC_SHARE, LATTICE_SIDE, distort
from terrine_models.features.fitting import Kind, public_features
from terrine_models.features.gradients import (
    COLOUR_CELLS,
    ENLARGED_SIDE_PIXELS,
    averaging,
    enlarging,
)
from terrine_models.features.public import PublicData

BY_DAY: list[tuple[int, ...]] = [(6,), (7, 5), (28, 28), (1, 1, 3), (22, 21, 6)]
SHAPES = [
    *BY_DAY,
    *(pytest.param(shape, marks=pytest.mark.nightly) for shape in ((3, 3), (12, 13), (9, 10, 3))),
]


def inputs(shape: tuple[int, ...], count: int = 250) -> NDArray[np.uint8]:
    """Smooth enough that no gradient is noise, but some are even."""
    random = np.random.default_rng(len(shape))
    coarse = random.integers(0, 256, (count, *shape), dtype=np.uint8)
    coarse[:2], coarse[2:4] = 0, 255
    return coarse


@pytest.mark.parametrize("kind", ["graph", "discriminant", None])
@pytest.mark.parametrize("shape", SHAPES)
def test_features_of_arrays_are_those_of_tensors(shape: tuple[int, ...], kind: Kind | None) -> None:
    x = inputs(shape)
    spec = InputSpec(shape=shape, dtype="uint8", low=0, high=255)
    if kind == "discriminant" and len(shape) == 1:
        return
    public = None if kind is None else PublicData.declare("pool", x)
    known = public_features(spec, public, 60, kind or "graph")
    some = x[:40]
    said = known.to("cpu")(torch.from_numpy(some))
    assert said.dtype == torch.float32
    np.testing.assert_allclose(said, known(some), atol=5e-5)
    alone = np.concatenate([known.of_block(some[i : i + 1], 8)[:1] for i in range(5)])
    np.testing.assert_allclose(alone, known(some[:5]), atol=5e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_features_are_computed_where_the_tensors_are(shape: tuple[int, ...]) -> None:
    """On a device that computes nothing, but refuses what lies on another one."""
    spec = InputSpec(shape=shape, dtype="uint8", low=0, high=255)
    known = public_features(spec, PublicData.declare("pool", inputs(shape, 2000)), 20).to("meta")
    some = torch.zeros((3, *shape), device="meta")
    assert known(some).device.type == known.of_block(some, 4).device.type == "meta"
    with pytest.raises(RuntimeError, match="device"):
        known(torch.zeros((3, *shape)))


@pytest.mark.parametrize("size", [(4, 9), (28, 28), (30, 17), (1, 2)])
def test_distortions_are_those_of_pytorch(size: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    images = random.random((5, 2, *size), dtype=np.float32)
    draws = (random.random((5, DRAWS), dtype=np.float32) * 2 - 1).astype(np.float32)
    found = distort(images, draws, 15.0, ELASTIC_SHARE)
    np.testing.assert_allclose(found, distorted_by_pytorch(images, draws), atol=1e-5)
    tensors = distort(torch.from_numpy(images), torch.from_numpy(draws), 15.0, ELASTIC_SHARE)
    np.testing.assert_allclose(tensors, found, atol=1e-5)


def distorted_by_pytorch(images: NDArray[Any], draws: NDArray[Any]) -> NDArray[Any]:
    by = torch.from_numpy(draws)
    angle, across, down = by[:, 0] * np.radians(15), 1 + 0.12 * by[:, 1], 1 + 0.12 * by[:, 2]
    cos, sin, shear = angle.cos(), angle.sin(), 0.15 * by[:, 3]
    affine = torch.stack(
        [
            torch.stack([across * cos, across * (shear * cos - sin), 0.18 * by[:, 4]], 1),
            torch.stack([down * sin, down * (shear * sin + cos), 0.18 * by[:, 5]], 1),
        ],
        1,
    )
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    lattice = by[:, 6:].reshape(-1, 2, LATTICE_SIDE, LATTICE_SIDE) * ELASTIC_SHARE
    size = images.shape[2:]
    bend = F.interpolate(lattice, size=size, mode="bicubic", align_corners=True)
    place = grid + bend.permute(0, 2, 3, 1)
    return F.grid_sample(torch.from_numpy(images), place, align_corners=False).numpy()


@pytest.mark.parametrize("pixels", [1, 2, 5, 13, 19])
def test_pictures_are_enlarged_and_averaged_as_by_pytorch(pixels: int) -> None:
    line = np.random.default_rng(0).random((1, 1, pixels), dtype=np.float32)
    before, after, share = enlarging(pixels)
    found = line[..., before] + (line[..., after] - line[..., before]) * share
    expected = F.interpolate(torch.from_numpy(line), ENLARGED_SIDE_PIXELS, mode="linear")
    np.testing.assert_allclose(found, expected, atol=1e-6)
    means = F.adaptive_avg_pool1d(torch.from_numpy(line), COLOUR_CELLS)
    np.testing.assert_allclose(line @ averaging(pixels).T, means, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_largest_come_first_also_if_all_are_asked_for(count: int) -> None:
    x = np.random.default_rng(0).random((4, 7), dtype=np.float32)
    values, index = largest(x, count)
    expected = torch.from_numpy(x).topk(count, dim=1)
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(index, expected.indices)


def test_ranks_count_knots_below_and_up_to_a_value() -> None:
    knots = np.array([[0, 1, 1, 2], [5, 5, 5, 5]], np.float32)
    x = np.array([[-1, 1, 3], [5, 4, 6]], np.float32)
    for of in (np.asarray, torch.from_numpy):
        below, within = count_below(of(knots), of(x))
        np.testing.assert_array_equal(below, [[0, 1, 4], [0, 0, 4]])
        np.testing.assert_array_equal(within, [[0, 3, 4], [4, 0, 4]])
    nothing = count_below(np.zeros((0, 4), np.float32), np.zeros((0, 3), np.float32))
    assert [each.shape for each in nothing] == [(0, 3)] * 2
