"""Arrays of NumPy and tensors of PyTorch: the same code computes features of either.

A student has arrays, and needs NumPy alone. Teachers have tensors, which may be on a GPU. What both
call by the same name is written as it is; the rest is here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# An array of NumPy, or a tensor of PyTorch.
Array = Any
# By which a vector that is shorter is divided.
MIN_LENGTH = 1e-12


def namespace(x: Array) -> Any:
    """Return the module whose functions take such arrays."""
    return np if isinstance(x, np.ndarray) else sys.modules["torch"]


def like(values: NDArray[Any], x: Array) -> Array:
    """Return values as an array of the same kind as x, and on its device."""
    return values if isinstance(x, np.ndarray) else namespace(x).as_tensor(values, device=x.device)


def to_float(x: Array) -> Array:
    """Return x in float32."""
    return x.astype(np.float32, copy=False) if isinstance(x, np.ndarray) else x.float()


def to_int(x: Array) -> Array:
    """Return x in int64."""
    return x.astype(np.int64, copy=False) if isinstance(x, np.ndarray) else x.long()


def zeros(shape: Sequence[int], x: Array) -> Array:
    """Return zeros of the kind, the type and the device of x."""
    return np.zeros(shape, x.dtype) if isinstance(x, np.ndarray) else x.new_zeros(tuple(shape))


def unit_length(x: Array, axis: int, least: float = MIN_LENGTH) -> Array:
    """Return vectors along an axis, each divided by its length, or by `least` if it is shorter."""
    length = ((x * x).sum(axis=axis, keepdims=True) ** 0.5).clip(min=least)
    return x / length


def put_last(x: Array, index: Array, values: Array) -> None:
    """Set `x[…, index]` to values, all of one shape but along the last axis."""
    if isinstance(x, np.ndarray):
        np.put_along_axis(x, index, values, axis=-1)
    else:
        x.scatter_(-1, index, values)


def take_last(x: Array, index: Array) -> Array:
    """Return `x[…, index]` along the last axis; the others are broadcast."""
    if isinstance(x, np.ndarray):
        return np.take_along_axis(x, index, axis=-1)
    return namespace(x).take_along_dim(x, index, dim=-1)


def largest(x: Array, count: int) -> tuple[Array, Array]:
    """Return the `count` largest values of each row of x [B, N], the largest first, and where."""
    if not isinstance(x, np.ndarray):
        found = x.topk(count, dim=1)
        return found.values, found.indices
    index = np.arange(x.shape[1])[None].repeat(len(x), 0)
    if count < x.shape[1]:
        index = np.argpartition(x, x.shape[1] - count, axis=1)[:, -count:]
    order = np.argsort(-np.take_along_axis(x, index, 1), axis=1, kind="stable")[:, :count]
    index = np.take_along_axis(index, order, 1)
    return np.take_along_axis(x, index, 1), index


def count_below(knots: Array, x: Array) -> tuple[Array, Array]:
    """Return how many of sorted knots [r, K] are below values [r, B], and how many not above."""
    if isinstance(x, np.ndarray):
        pairs = list(zip(knots, x, strict=True))
        sides: tuple[Any, Any] = ("left", "right")
        counts = [[each.searchsorted(row, side) for each, row in pairs] for side in sides]
        return tuple(np.array(each, dtype=np.int64).reshape(x.shape) for each in counts)  # type: ignore[return-value]
    search, knots, x = namespace(x).searchsorted, knots.contiguous(), x.contiguous()
    return search(knots, x), search(knots, x, right=True)


def between(images: Array, rows: NDArray[np.float32], columns: NDArray[np.float32]) -> Array:
    """Images [..., H, W] as rows · image · columnsᵀ."""
    return like(rows, images) @ images @ like(columns, images).T
