"""Votes on the command line: where they come from, and whether they may be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from terrine_server.cli.console import errors, fail

if TYPE_CHECKING:
    from terrine_server.planning.forecast import Votes

LARGEST_COUNT = 2**53
"""Votes for a class: floating point has every whole number up to it."""


class VoteSource(StrEnum):
    """The training data of the teachers that cast votes."""

    PUBLIC = "public"
    SYNTHETIC = "synthetic"
    LEAK = "private-acknowledge-leak"


def check_origin(votes_are: VoteSource | None, option: str) -> None:
    """Refuse votes that may be private, unless it is acknowledged that no budget covers them."""
    if votes_are is None:
        fail(
            f"Say what the teachers that cast these votes were trained on: {option} public or "
            f"{option} synthetic. Votes of teachers trained on private data are private, whatever "
            "they voted on. Parameters chosen by looking at them, and every number of the report, "
            "reveal something about the training data, and no budget accounts for that: use "
            "teachers trained on public data, or `terrine plan --consensus`. If nobody else will "
            f"ever see the report and no project will be based on it, {option} {VoteSource.LEAK}."
        )
    if votes_are is VoteSource.LEAK:
        errors.print(
            "[bold red]WARNING: this report is made from PRIVATE votes.[/] It is not "
            "differentially private. Show it to nobody and open no project with parameters taken "
            "from it: the project's guarantee would not hold.",
            soft_wrap=True,
        )


def load_votes(path: Path, sizes: Sequence[int]) -> Votes:
    """Read votes: counts [B, m] in an .npy, or `counts` and, optionally, `labels` [B] in an .npz.

    Counts that are whole numbers in floating point, as PATE's own files have them, are read.
    """
    import numpy as np

    from terrine_models.data.arrays import read_arrays
    from terrine_server.planning.forecast import Votes

    arrays = read_arrays(path)
    if not isinstance(arrays, dict):
        arrays = {"counts": arrays}
    if "counts" not in arrays:
        fail(
            f"{path} has no array `counts` of shape [queries, classes]; it has "
            f"{', '.join(arrays) or 'none'}."
        )
    counts = arrays["counts"]
    if counts.dtype.kind not in "iuf" or not np.all(counts == np.floor(counts)):
        fail(f"{path}: counts must be whole numbers, how many teachers voted for each class.")
    if counts.ndim != 2 or counts.size == 0:
        fail(
            f"{path}: counts must be [queries, classes], a row for each query; found shape "
            f"{list(counts.shape)}."
        )
    if counts.dtype.kind == "f" and np.abs(counts).max() > LARGEST_COUNT:
        fail(f"{path}: a count is larger than {LARGEST_COUNT:,}.")
    counts = counts.astype(np.int64)
    down, across = counts.sum(axis=0), counts.sum(axis=1)
    if np.ptp(across) and not np.ptp(down):
        fail(
            f"{path}: counts of shape {list(counts.shape)} have one sum in each column, not in "
            "each row. Expected a row for each query and a column for each class: transpose them."
        )
    if not sizes:
        sizes = [int(across[0])]
    if len(sizes) != 1:
        fail("Votes in a file were cast by one ensemble; give its size with --teachers.")
    return Votes.observed(counts, arrays.get("labels"), teachers=sizes[0])
