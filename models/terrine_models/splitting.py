"""Splitting private data into disjoint shards, on which teachers are trained with anything.

    split(data, Path("shards"), teachers=250)   # shards/00000.npz, …, shards/partition.json

Each shard is an .npz with `x` [r, *shape], `y` [r] (indices into `classes`) and `classes`. Teacher
i is trained on shard i alone, and imported with `partition.json` (`importing.py`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from terrine_protocol.tables import Record, TableSchema

from .data import DataError, Dataset, InputSpec
from .shards import TrainingError, check_encoding, deal
from .store import Partition, sync_directory, write_atomically

PARTITION = "partition.json"
LARGEST = 16 * 2**20


class Dealt(Record):
    """`partition.json`: into what private data were split. It holds none of the data."""

    format: Literal["terrine-partition-1"] = "terrine-partition-1"
    teachers: Annotated[int, Field(ge=1)]
    records: Annotated[int, Field(ge=1)]
    partition: Partition
    input: InputSpec
    classes: Annotated[tuple[str, ...], Field(min_length=2)]
    encoding: TableSchema | None = None


def split(data: Dataset, out: Path, teachers: int, seed: int = 0) -> Dealt:
    """Write `teachers` disjoint shards of `data` into directory `out`, completely or not at all.

    Records are dealt as `terrine ensemble train` deals them. Raises TrainingError (`out` exists,
    or fewer units than teachers) and DataError (a schema fitted on the private data).
    """
    out = Path(out)
    if out.exists():
        raise TrainingError(f"{out} exists already. Remove it or choose another directory.")
    check_encoding(data)
    rows, partition = deal(data, teachers, seed)
    dealt = Dealt(
        teachers=teachers,
        records=len(data),
        partition=partition,
        input=data.spec,
        classes=data.classes,
        encoding=data.encoding,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))  # closed to others
    try:
        for i, shard in enumerate(rows):
            handle = os.open(work / f"{i:05d}.npz", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                np.savez(file, x=data.inputs[shard], y=data.labels[shard], classes=data.classes)
        write_atomically(work / PARTITION, dealt.model_dump_json(indent=2).encode() + b"\n")
        work.rename(out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return dealt


def read_partition(path: Path) -> Dealt:
    """Read `partition.json`. Raises DataError."""
    try:
        with Path(path).open("rb") as file:
            return Dealt.model_validate_json(file.read(LARGEST))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise DataError(
            f"{path} is not a partition as `terrine ensemble split` writes it: at {where}: "
            f"{first['msg']}."
        ) from None
