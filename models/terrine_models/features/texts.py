"""Texts among the columns of a table: what is fitted on those of public rows.

A text is hundreds of numbers of which most are 0 (`terrine_tables.texts`), so columns are
not binned one by one. N-grams weigh by how rare they are among public rows, and their principal
components (Deerwester et al., "Indexing by Latent Semantic Analysis", JASIS 1990) are scaled
towards equal variance and to length 1, and so are those of embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.features.arrays import Array, namespace, unit_length

TEXT_COMPONENTS = 150
"""Of the n-grams of a text, and of its embedding, at most."""
MIN_ROWS_PER_COMPONENT = 2
HASHED_LENGTH = 0.7
"""Length of the n-grams' components beside those of an embedding, of length 1."""
Floats = NDArray[np.float32]
Components = Callable[[Floats, int], dict[str, Floats]]
"""Mean [D], basis [D, C] and deviations [C] of rows [N, D]."""


@dataclass(frozen=True)
class TextBlock:
    """Numbers of an input that are alike: n-grams of a text, or its embedding."""

    start: int
    size: int
    hashed: bool

    def of(self, x: Array) -> Array:
        """Its numbers [B, size] of prepared rows [B, d] from −1 to 1: n-grams from 0."""
        own = x[:, self.start : self.start + self.size]
        return (own + 1) / 2 if self.hashed else own


def text_blocks(inputs: InputSpec) -> list[TextBlock]:
    """The blocks of all texts, in the order of their numbers."""
    found = list[TextBlock]()
    for text in inputs.texts or ():
        found.append(TextBlock(text.start, text.hashed, hashed=True))
        if text.embedded:
            found.append(TextBlock(text.start + text.hashed, text.embedded, hashed=False))
    return found


def other_columns(inputs: InputSpec) -> NDArray[np.intp]:
    """The places of the numbers of an input that are of no text."""
    free = np.ones(math.prod(inputs.shape), dtype=bool)
    for block in text_blocks(inputs):
        free[block.start : block.start + block.size] = False
    return np.flatnonzero(free)


def fit_texts(
    x: Floats, inputs: InputSpec, width: int, length: float, components: Components
) -> dict[str, Floats]:
    """The tensors of `text_features` for public rows x [N, d], prepared.

    width: components of each block at most. length: of what a text becomes.
    """
    tensors, blocks, lengths = dict[str, Floats](), text_blocks(inputs), list[float]()
    most = max(1, min(width, TEXT_COMPONENTS, len(x) // MIN_ROWS_PER_COMPONENT))
    embedded = any(not block.hashed for block in blocks)
    for number, block in enumerate(blocks):
        rows, weights = block.of(x), np.ones(block.size, np.float32)
        if block.hashed:
            seen = (rows > 0).sum(0)
            weights = (np.log((1 + len(rows)) / (1 + seen)) + 1).astype(np.float32)
        found = components(_weigh(rows, weights), most)
        lengths.append(length * (HASHED_LENGTH if block.hashed and embedded else 1.0))
        tensors |= {
            f"weights_{number}": weights,
            f"mean_{number}": found["mean"],
            f"basis_{number}": found["basis"] * found["deviations"] ** -0.5,
        }
    return tensors | {"lengths": np.array(lengths, np.float32)}


def text_features(x: Array, inputs: InputSpec, tensors: Mapping[str, Array]) -> Array:
    """Features [B, C] of the texts of prepared rows x [B, d]."""
    found = list[Array]()
    for number, block in enumerate(text_blocks(inputs)):
        rows = _weigh(block.of(x), tensors[f"weights_{number}"])
        points = (rows - tensors[f"mean_{number}"]) @ tensors[f"basis_{number}"]
        found.append(unit_length(points, 1) * tensors["lengths"][number])
    return namespace(x).concatenate(found, 1)


def text_shapes(inputs: InputSpec, components: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of `fit_texts`. components: of each block."""
    shapes: dict[str, tuple[int, ...]] = {"lengths": (len(components),)}
    for number, (block, size) in enumerate(zip(text_blocks(inputs), components, strict=True)):
        shapes[f"weights_{number}"] = shapes[f"mean_{number}"] = (block.size,)
        shapes[f"basis_{number}"] = (block.size, size)
    return shapes


def _weigh(rows: Array, weights: Array) -> Array:
    return unit_length(rows * weights, 1)
