"""Principal components and random directions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from terrine_models.features.arrays import Array

Floats = NDArray[np.float32]
# Principal components among which a kernel measures distances.
KERNEL_COMPONENTS = 150
# Of a subspace, towards principal components.
ITERATIONS = 6
# Features for each row from which rows are so few that their products are iterated.
FEATURES_PER_ROW_OF_FEW = 4


def principal_components(
    base: Floats, width: int, weights: Floats | None = None
) -> dict[str, Floats]:
    """Mean [D], basis [D, C] and the components' standard deviations [C].

    The basis is orthonormal, or of features times `weights` [D].
    """
    mean = base.mean(axis=0)
    centred = base - mean
    if weights is not None:
        centred *= weights
    keep = min(width, *base.shape)
    # Subspace iteration (Halko, Martinsson and Tropp, SIAM Review 2011): exact to far below what
    # matters to a teacher, and many times faster than a full decomposition.
    subspace = random_directions(base.shape[1], min(keep + 20, *base.shape))
    if FEATURES_PER_ROW_OF_FEW * len(base) <= base.shape[1]:
        # Products of rows are fewer than features. They have squares of what they are made of, so
        # in double precision.
        products, rows = centred.astype(np.float64), centred @ subspace
        products = products @ products.T
        for _ in range(ITERATIONS - 1):
            rows = _orthonormal(products @ rows)
        subspace = _orthonormal(centred.T @ rows.astype(np.float32))
    else:
        for _ in range(ITERATIONS):
            subspace = _orthonormal(centred.T @ (centred @ subspace))
    _, deviations, directions = np.linalg.svd(centred @ subspace, full_matrices=False)
    variances = deviations[:keep] ** 2 / np.float32(len(base))
    basis = subspace @ directions[:keep].T
    return {
        "mean": mean,
        "basis": basis if weights is None else weights[:, None] * basis,
        "deviations": np.sqrt(np.maximum(variances, 1e-9)),
    }


def project(base: Array, tensors: Mapping[str, Array]) -> Array:
    """What the `basis` [D, C] makes of rows [B, D], less their `mean`."""
    return (base - tensors["mean"]) @ tensors["basis"]


def _orthonormal(columns: NDArray[Any]) -> NDArray[Any]:
    """Return an orthonormal basis of what columns span, in their precision. NumPy's is double."""
    basis: NDArray[Any] = qr(columns, mode="economic", check_finite=False)[0]
    return basis


@lru_cache(maxsize=8)
def random_directions(size: int, count: int) -> Floats:
    """An orthonormal basis [size, count] of a uniformly random subspace."""
    random = np.random.Generator(np.random.Philox(0))
    basis: Floats = np.linalg.qr(random.standard_normal((size, count), dtype=np.float32))[0]
    basis.flags.writeable = False
    return basis
