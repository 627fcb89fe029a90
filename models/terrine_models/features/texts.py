"""Texts among the columns of a table: what is fitted on those of public rows.

A text is hundreds of numbers of which most are 0 (`terrine_tables.texts`), so columns are
not binned one by one. N-grams weigh by how rare they are among public rows, and their principal
components (Deerwester et al., "Indexing by Latent Semantic Analysis", JASIS 1990) are scaled
towards equal variance and to length 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.features.arrays import Array, namespace, unit_length
from terrine_protocol.projects import TextNumbers

# Of the n-grams of a text, at most.
TEXT_COMPONENTS = 150
MIN_ROWS_PER_COMPONENT = 2
Floats = NDArray[np.float32]
# Mean [D], basis [D, C] and deviations [C] of rows [N, D].
Components = Callable[[Floats, int], dict[str, Floats]]


def _n_grams(x: Array, text: TextNumbers) -> Array:
    """The numbers [B, hashed] of a text, from 0 to 1, of prepared rows [B, d] from −1 to 1."""
    return (x[:, text.start : text.start + text.hashed] + 1) / 2


def other_columns(inputs: InputSpec) -> NDArray[np.intp]:
    """The places of the numbers of an input that are of no text."""
    free = np.ones(math.prod(inputs.shape), dtype=bool)
    for text in inputs.texts or ():
        free[text.start : text.start + text.hashed] = False
    return np.flatnonzero(free)


def fit_texts(
    x: Floats, inputs: InputSpec, width: int, length: float, components: Components
) -> dict[str, Floats]:
    """The tensors of `text_features` for public rows x [N, d], prepared.

    width: components of each text at most. length: of what a text becomes.
    """
    tensors, texts = dict[str, Floats](), inputs.texts or ()
    most = max(1, min(width, TEXT_COMPONENTS, len(x) // MIN_ROWS_PER_COMPONENT))
    for number, text in enumerate(texts):
        rows = _n_grams(x, text)
        seen = (rows > 0).sum(0)
        weights = (np.log((1 + len(rows)) / (1 + seen)) + 1).astype(np.float32)
        found = components(_weigh(rows, weights), most)
        tensors |= {
            f"weights_{number}": weights,
            f"mean_{number}": found["mean"],
            f"basis_{number}": found["basis"] * found["deviations"] ** -0.5,
        }
    return tensors | {"lengths": np.full(len(texts), length, np.float32)}


def text_features(x: Array, inputs: InputSpec, tensors: Mapping[str, Array]) -> Array:
    """Features [B, C] of the texts of prepared rows x [B, d]."""
    found = list[Array]()
    for number, text in enumerate(inputs.texts or ()):
        rows = _weigh(_n_grams(x, text), tensors[f"weights_{number}"])
        points = (rows - tensors[f"mean_{number}"]) @ tensors[f"basis_{number}"]
        found.append(unit_length(points, 1) * tensors["lengths"][number])
    return namespace(x).concatenate(found, 1)


def text_shapes(inputs: InputSpec, components: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of `fit_texts`. components: of each text."""
    shapes: dict[str, tuple[int, ...]] = {"lengths": (len(components),)}
    for number, (text, size) in enumerate(zip(inputs.texts or (), components, strict=True)):
        shapes[f"weights_{number}"] = shapes[f"mean_{number}"] = (text.hashed,)
        shapes[f"basis_{number}"] = (text.hashed, size)
    return shapes


def _weigh(rows: Array, weights: Array) -> Array:
    return unit_length(rows * weights, 1)
