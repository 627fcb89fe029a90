"""Splitting private data into disjoint shards, on which teachers are trained with anything.

    split(data, Path("shards"), teachers=250)   # shards/00000.npz, …, shards/partition.json

Each shard is an .npz with `x` [r, *shape], `y` [r] (indices into `classes`) and `classes`. Teacher
i is trained on shard i alone, and imported with `partition.json` (`importing.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from terrine_models.data.arrays import DataError, InputSpec, RecordSource
from terrine_models.storage.manifests import Partition
from terrine_models.teachers.shards import (
    check_encoding,
    check_new,
    partition_records,
    unit_count,
)
from terrine_protocol.files import new_directory, opened, write_atomically
from terrine_protocol.tables import Record, TableSchema, first_problem
from terrine_protocol.tables.reading import GrowingArray, Progress, unseen

PARTITION = "partition.json"
LARGEST = 16 * 2**20
HELD = 16 * 2**20
"""Bytes of inputs that are written at a time."""


class PartitionFile(Record):
    """`partition.json`: into what private data were split. It holds none of the data."""

    format: Literal["terrine-partition-1"] = "terrine-partition-1"
    teachers: Annotated[int, Field(ge=1)]
    units: Annotated[int, Field(ge=1)]
    """Rows, or people where the data has groups."""
    partition: Partition
    input: InputSpec
    classes: Annotated[tuple[str, ...], Field(min_length=2)]
    encoding: TableSchema | None = None


def split(
    data: RecordSource, out: Path, teachers: int, seed: int = 0, progress: Progress = unseen
) -> PartitionFile:
    """Write `teachers` disjoint shards of `data` into directory `out`, completely or not at all.

    Records are partitioned as by `terrine ensemble train`. They are read once, and wait in a file
    beside `out` until it is known how many there are. What is held is a block of them, one shard
    and some 60 bytes a record. `progress` is told how many shards are written. Raises TrainingError
    (`out` exists, or fewer units than teachers) and DataError (a schema fitted on the private data,
    or what `data` raises).
    """
    out = Path(out)
    check_new(out)
    with new_directory(out) as work:
        waiting = _read(data, work / "waiting")
        check_encoding(data)
        rows, partition = partition_records(waiting, teachers, seed)
        sharded = PartitionFile(
            teachers=teachers,
            units=unit_count(waiting),
            partition=partition,
            input=data.spec,
            classes=data.classes,
            encoding=data.encoding,
        )
        _hand_out(waiting, rows, work)
        for i, shard in enumerate(rows):
            inputs = _take(work / f"{i:05d}.x", waiting.spec)
            with _private(work / f"{i:05d}.npz", "xb") as file:
                np.savez(file, x=inputs, y=waiting.labels[shard], classes=data.classes)
            progress(i + 1, teachers)
        write_atomically(work / PARTITION, sharded.model_dump_json(indent=2).encode() + b"\n")
    return sharded


@dataclass(frozen=True)
class _PendingRecords:
    """Records that were read: inputs in a file, the rest in memory."""

    path: Path
    spec: InputSpec
    labels: NDArray[np.int64]
    groups: NDArray[np.int64] | None
    group_column: str | None

    def __len__(self) -> int:
        return len(self.labels)


def _read(data: RecordSource, path: Path) -> _PendingRecords:
    labels, groups = GrowingArray((), np.int64), GrowingArray((), np.int64)
    with _private(path, "xb") as file:
        for block in data.blocks():
            file.write(np.ascontiguousarray(block.inputs).data)
            labels.add(block.labels)
            if block.groups is not None:
                groups.add(block.groups)
    people = None if data.group_column is None else groups.array()
    return _PendingRecords(path, data.spec, labels.array(), people, data.group_column)


def _hand_out(waiting: _PendingRecords, rows: Sequence[NDArray[np.int64]], work: Path) -> None:
    """Append each record's inputs to the file of its shard, and remove those that waited."""
    shard_of = np.empty(len(waiting), np.int32)
    for i, shard in enumerate(rows):
        shard_of[shard] = i
    shape, dtype = waiting.spec.shape, np.dtype(waiting.spec.dtype)
    size = math.prod(shape) * dtype.itemsize
    some = max(1, HELD // size)
    with waiting.path.open("rb") as file:
        for start in range(0, len(waiting), some):
            shards = shard_of[start : start + some]
            block = np.frombuffer(file.read(len(shards) * size), dtype).reshape(-1, *shape)
            order = np.argsort(shards, kind="stable")
            starts = np.flatnonzero(np.diff(shards[order], prepend=-1))
            for part in np.split(order, starts[1:]):
                with _private(work / f"{shards[part[0]]:05d}.x", "ab") as own:
                    own.write(block[part].data)
    waiting.path.unlink()


def _take(path: Path, spec: InputSpec) -> NDArray[np.generic]:
    inputs = np.fromfile(path, spec.dtype).reshape(-1, *spec.shape)
    path.unlink()
    return inputs


def _private(path: Path, mode: Literal["xb", "ab"]) -> IO[bytes]:
    """Open a file that others cannot read."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def read_partition(path: Path) -> PartitionFile:
    """Read `partition.json`. Raises DataError."""
    try:
        with opened(path) as file:
            return PartitionFile.model_validate_json(file.read(LARGEST))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise DataError(
            f"{path} is not a partition as `terrine ensemble split` writes it: "
            f"{first_problem(error)}."
        ) from None
