"""Votes on the command line: where they come from, and whether they may be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from terrine_protocol.files import opened
from terrine_server.cli.console import errors, fail

if TYPE_CHECKING:
    from terrine_server.planning.forecast import Votes


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
    """Read votes from an .npz with counts [B, m] and, optionally, labels [B]."""
    import zipfile

    import numpy as np

    from terrine_server.planning.forecast import Votes

    try:
        with opened(path) as stored, np.load(stored, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("counts", "labels") if name in file}
    except (ValueError, TypeError, zipfile.BadZipFile) as error:
        fail(f"{path} is not an .npz file of plain arrays: {error}")
    if "counts" not in arrays:
        fail(f"{path} has no array `counts` of shape [queries, classes].")
    counts = arrays["counts"]
    if not sizes and counts.ndim == 2 and len(counts):
        sizes = [int(counts[0].sum())]
    if len(sizes) != 1:
        fail("Votes in a file were cast by one ensemble; give its size with --teachers.")
    return Votes.observed(counts, arrays.get("labels"), teachers=sizes[0])
