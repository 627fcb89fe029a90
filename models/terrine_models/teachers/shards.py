"""Disjoint shards: how records are partitioned among teachers, and what one teacher may see of
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, Dataset, RecordSource
from terrine_models.features.maps import FeatureMap, PublicData
from terrine_models.storage.manifests import Partition


class TrainingError(Exception):
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

    def of(self, teacher: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [r, *shape] in float32 and labels [r] of one teacher."""
        rows = self.rows[teacher]
        inputs = torch.from_numpy(self.data.inputs[rows].astype(np.float32))
        return inputs, torch.from_numpy(self.data.labels[rows])

    def only(self, run: range) -> Shards:
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


class GroupedRecords(Protocol):
    """Records to be partitioned: how many there are, and whose they are; as in `Dataset`."""

    @property
    def groups(self) -> NDArray[np.int64] | None:
        """The number of each record's person [N]."""

    @property
    def group_column(self) -> str | None:
        """What names people."""

    def __len__(self) -> int:
        """N."""


def unit_count(data: GroupedRecords) -> int:
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
    data: GroupedRecords, teachers: int, seed: int
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
