"""Disjoint shards: how records are partitioned among teachers, and what one teacher may see of
them.

    split(data, Path("shards"), teachers=250)   # shards/00000.npz, …, shards/partition.json

writes them for teachers that are trained elsewhere: teacher i on shard i alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from terrine_models.data.arrays import DataError, Dataset, InputSpec, RecordSource
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import Partition
from terrine_protocol.base import Record, first_problem
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import new_directory, open_regular_file, write_atomically
from terrine_protocol.schema import TableSchema
from terrine_tables.columns import GrowingArray, Progress, ignore_progress


class TrainingError(TerrineError):
    """Training cannot start or continue; the message says why and what to do."""


def check_new(out: Path) -> None:
    """Raise TrainingError if there is something at `out` already."""
    if out.exists():
        raise TrainingError(f"{out} exists already. Remove it or choose another directory.")


@dataclass(frozen=True, eq=False)
class Shards:
    """What teachers are trained on. Each may use `of` its own number, and what is public."""

    data: Dataset
    rows: Mapping[int, NDArray[np.int64]]
    """The row numbers of each teacher's records."""
    seed: int
    features: FeatureMap | None
    public: PublicData | None

    def records_of(self, teacher: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [r, *shape] in float32 and labels [r] of one teacher."""
        rows = self.rows[teacher]
        inputs = torch.from_numpy(self.data.inputs[rows].astype(np.float32))
        return inputs, torch.from_numpy(self.data.labels[rows])

    def of_run(self, run: range) -> Shards:
        """The shards of a run of teachers, without anybody else's records."""
        rows = np.concatenate([self.rows[i] for i in run])
        ends = np.cumsum([len(self.rows[i]) for i in run])
        data = replace(
            self.data,
            inputs=self.data.inputs[rows],
            labels=self.data.labels[rows],
            groups=None,
            group_column=None,
        )
        own = np.split(np.arange(len(rows)), ends[:-1])
        return replace(self, data=data, rows=dict(zip(run, own, strict=True)))

    def priors(self, run: range) -> torch.Tensor:
        """The share of class 1 of two in each shard of a run, [k]."""
        return torch.tensor([float(self.data.labels[self.rows[i]].mean()) for i in run])

    def has_classes(self, teacher: int, classes: int) -> torch.Tensor:
        """Which classes the records of a teacher have, bool [m]."""
        found = torch.zeros(classes, dtype=torch.bool)
        found[torch.from_numpy(self.data.labels[self.rows[teacher]])] = True
        return found

    def public_rows(self, most: int) -> torch.Tensor | None:
        """At most `most` of the public inputs [P, *shape], in float32; None without any."""
        if self.public is None:
            return None
        every = -(-len(self.public.inputs) // most)
        return torch.from_numpy(self.public.inputs[::every].astype(np.float32))


def check_encoding(data: RecordSource) -> None:
    """Raise DataError if a table's schema, which becomes public, was fitted on its own rows."""
    if data.encoding and data.encoding.fitted_on and data.encoding.fitted_on.sha256 == data.sha256:
        raise DataError(
            f"The schema of {data.name} was fitted on the private data itself. Its categories and "
            "ranges become public: take them from a table that is public or invented, or write "
            "them by hand."
        )


def unit_count(data: Dataset | _PendingRecords) -> int:
    """Return how many rows, or people where the data has groups, are partitioned.

    This is published in place of the number of rows, which tells how many rows one person has.
    """
    return len(data) if data.groups is None else int(data.groups.max()) + 1


def teacher_of(units: int, teachers: int, seed: int) -> NDArray[np.int64]:
    """Return whose shard each unit is in [U]."""
    order = np.random.Generator(np.random.Philox(seed)).permutation(units)
    found = np.empty(units, dtype=np.int64)
    found[order] = np.arange(units) * teachers // units
    return found


def partition_records(
    data: Dataset | _PendingRecords, teachers: int, seed: int
) -> tuple[list[NDArray[np.int64]], Partition]:
    """Partition records into disjoint shards: the row numbers of each, and the recipe.

    Units (rows, or people where the data has groups) are shuffled by `seed` and cut into runs
    whose lengths differ by at most one. Units are numbered by where they first appear, and each
    person is one unit however many rows they have: so replacing one person's rows by any others, in
    place, changes one shard and never moves anybody else. Raises TrainingError.
    """
    unit_of = np.arange(len(data)) if data.groups is None else data.groups
    what = "records" if data.groups is None else f"people (values of {data.group_column})"
    units = unit_count(data)
    if not 1 <= teachers <= units:
        raise TrainingError(
            f"{teachers} teachers cannot be trained on {units} {what}: each needs at least one "
            "of its own."
        )
    owner = teacher_of(units, teachers, seed)[unit_of]
    rows = np.argsort(owner, kind="stable")
    shards = np.split(rows, np.searchsorted(owner[rows], np.arange(1, teachers)))
    partition = Partition(
        recipe="rows" if data.groups is None else "groups",
        seed=seed,
        group_column=data.group_column,
        smallest=units // teachers,
        largest=-(-units // teachers),
    )
    return shards, partition


PARTITION_FILE = "partition.json"
MAX_PARTITION_BYTES = 16 * 2**20
# Bytes of inputs that are written at a time.
BLOCK_BYTES = 16 * 2**20


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
    data: RecordSource,
    out: Path,
    teachers: int,
    seed: int = 0,
    progress: Progress = ignore_progress,
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
        _distribute_inputs(waiting, rows, work)
        for i, shard in enumerate(rows):
            inputs = _take_inputs(work / f"{i:05d}.x", waiting.spec)
            with _open_private(work / f"{i:05d}.npz", "xb") as file:
                np.savez(file, x=inputs, y=waiting.labels[shard], classes=data.classes)
            progress(i + 1, teachers)
        write_atomically(work / PARTITION_FILE, sharded.model_dump_json(indent=2).encode() + b"\n")
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
    with _open_private(path, "xb") as file:
        for block in data.blocks():
            file.write(np.ascontiguousarray(block.inputs).data)
            labels.add(block.labels)
            if block.groups is not None:
                groups.add(block.groups)
    people = None if data.group_column is None else groups.array()
    return _PendingRecords(path, data.spec, labels.array(), people, data.group_column)


def _distribute_inputs(
    waiting: _PendingRecords, rows: Sequence[NDArray[np.int64]], work: Path
) -> None:
    """Append each record's inputs to the file of its shard, and remove those that waited."""
    shard_of = np.empty(len(waiting), np.int32)
    for i, shard in enumerate(rows):
        shard_of[shard] = i
    shape, dtype = waiting.spec.shape, np.dtype(waiting.spec.dtype)
    size = math.prod(shape) * dtype.itemsize
    some = max(1, BLOCK_BYTES // size)
    with waiting.path.open("rb") as file:
        for start in range(0, len(waiting), some):
            shards = shard_of[start : start + some]
            block = np.frombuffer(file.read(len(shards) * size), dtype).reshape(-1, *shape)
            order = np.argsort(shards, kind="stable")
            starts = np.flatnonzero(np.diff(shards[order], prepend=-1))
            for part in np.split(order, starts[1:]):
                with _open_private(work / f"{shards[part[0]]:05d}.x", "ab") as own:
                    own.write(block[part].data)
    waiting.path.unlink()


def _take_inputs(path: Path, spec: InputSpec) -> NDArray[np.generic]:
    inputs = np.fromfile(path, spec.dtype).reshape(-1, *spec.shape)
    path.unlink()
    return inputs


def _open_private(path: Path, mode: Literal["xb", "ab"]) -> IO[bytes]:
    """Open a file that others cannot read."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def read_partition(path: Path) -> PartitionFile:
    """Read `partition.json`. Raises DataError."""
    try:
        with open_regular_file(path) as file:
            return PartitionFile.model_validate_json(file.read(MAX_PARTITION_BYTES))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise DataError(
            f"{path} is not a partition as `terrine ensemble split` writes it: "
            f"{first_problem(error)}."
        ) from None


@dataclass(frozen=True)
class ShardSummary:
    """What each teacher would be trained on: private, for the eyes of the owner alone."""

    records: int
    people: int | None
    """None if each record counts as one person."""
    rows: tuple[int, int, int]
    """In the smallest, the middle and the largest shard."""
    classes: tuple[int, int, int]
    """Classes that occur, likewise."""
    lacking: dict[str, int]
    """Teachers without a record of a class, where there are any."""

    @classmethod
    def of(cls, data: Dataset, teachers: int, seed: int) -> ShardSummary:
        """Deal the records as training will. Raises TrainingError, as it does."""
        shards, _ = partition_records(data, teachers, seed)
        seen = np.array([np.bincount(data.labels[s], minlength=len(data.classes)) for s in shards])
        lacking = (seen == 0).sum(axis=0).tolist()
        return cls(
            records=len(data),
            people=None if data.groups is None else unit_count(data),
            rows=_spread(seen.sum(axis=1)),
            classes=_spread((seen > 0).sum(axis=1)),
            lacking={name: n for name, n in zip(data.classes, lacking, strict=True) if n},
        )


def _spread(values: NDArray[np.int64]) -> tuple[int, int, int]:
    return int(values.min()), int(np.median(values)), int(values.max())
