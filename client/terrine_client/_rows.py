"""Rows of a table as a project takes them: data frames, dictionaries and files become arrays."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from terrine_protocol import ProjectInfo
    from terrine_protocol.tables.encoding import Frame

Inputs: TypeAlias = (
    "npt.ArrayLike | Frame | Mapping[str, Any] | Sequence[Mapping[str, Any]] | os.PathLike[str]"
)
"""What `label` takes: numbers [B, …], or what has columns."""


def has_columns(x: Any) -> bool:
    """Whether x names its columns, or is the path of a file: whether it is no plain array.

    A data frame, a dictionary of columns, a list of dictionaries with a row each, or a path.
    """
    if isinstance(x, str | os.PathLike | Mapping):
        return True
    if isinstance(x, Sequence):
        return len(x) > 0 and isinstance(x[0], Mapping)
    return hasattr(x, "columns") or hasattr(x, "column_names")


def index_of(x: Any) -> Any:
    """The index of a data frame of pandas; of others None."""
    return getattr(x, "index", None) if hasattr(x, "columns") else None


def encode_columns(
    x: Any, project: ProjectInfo, accept_clipped: bool, *, stacklevel: int = 4
) -> Any:
    """Return what has columns as inputs [N, width], by the project's schema.

    Columns that the schema does not use are left out. What it does not expect is listed in one
    warning, whose place is `stacklevel` calls up. Raises DataError, ClippedError of more than a
    tenth of a column unless that is accepted, and ValueError if the project takes no tables.
    """
    from terrine_protocol.tables.encoding import encode_frame, encode_rows, encode_table

    schema = project.ensemble.encoding
    if schema is None:
        if hasattr(x, "to_numpy"):  # a frame of numbers, such as pixels
            return x.to_numpy()
        expected = project.ensemble.input
        raise ValueError(
            f"The project {project.name} takes no tables, but arrays of {expected.dtype} "
            f"[B, {', '.join(map(str, expected.shape))}]; got a {type(x).__name__}."
        )
    notes: list[str] = []
    try:
        if isinstance(x, str | os.PathLike):
            path = Path(x)
            return encode_table(path, schema, notes.append, accept_clipped=accept_clipped)
        encode: Any = encode_rows if isinstance(x, Sequence) else encode_frame
        return encode(x, schema, notes.append, accept_clipped=accept_clipped)
    finally:
        if notes:
            warnings.warn("\n".join(notes), stacklevel=stacklevel)


def as_array(x: Any, project: ProjectInfo, accept_clipped: bool) -> npt.NDArray[Any]:
    """Return any inputs as an array; see `encode_columns`."""
    return np.asarray(encode_columns(x, project, accept_clipped) if has_columns(x) else x)
