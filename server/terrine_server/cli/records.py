"""Private records on the command line: arrays and tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from terrine_server.cli.console import fail
from terrine_server.cli.tables import split

if TYPE_CHECKING:
    from terrine_models.data import Dataset
    from terrine_models.features import PublicData


def class_names(classes: str | None) -> list[str] | None:
    """The classes that --classes names, or numbers."""
    names = split(classes)
    if names and len(names) == 1 and names[0].isdigit():
        return [str(i) for i in range(int(names[0]))]
    return names


def load_arrays(
    data: Path, labels: Path | None, classes: str | None, public: Path | None
) -> tuple[Dataset, PublicData | None]:
    """Return private records of IDX or .npz files, and the public inputs if they are given."""
    from terrine_models.data import DIGITS, load_idx, load_inputs, load_npz
    from terrine_models.features import PublicData

    names = class_names(classes)
    if data.suffix == ".npz":
        if labels is not None:
            fail("--labels is for IDX images; an .npz has its labels in y.")
        private = load_npz(data, classes=names)
    else:
        private = load_idx(data, labels, classes=names or DIGITS)
    if public is None:
        return private, None
    return private, PublicData.declare(public.name, load_inputs(public))
