"""Public rows of a table may coincide with private ones by chance, and not by a mix-up of files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.features.maps import PublicData
from terrine_models.tables.loading import encoded_input
from terrine_protocol.tables import Column, TableSchema

SCHEMA = TableSchema(
    columns=(
        Column(name="day", role="numeric", low=0, high=1),
        Column(name="hour", role="numeric", low=0, high=1),
        Column(name="late", role="label", values=("no", "yes")),
    )
)


def private(rows: int, values: int, seed: int = 0) -> Dataset:
    x = np.random.default_rng(seed).integers(0, values, (rows, 2)) / np.float32(values)
    width = encoded_input(SCHEMA).shape[0]
    inputs = np.zeros((rows, width), np.float32)
    inputs[:, :2] = x
    labels = np.zeros(rows, np.int64)
    return Dataset(inputs, labels, ("no", "yes"), encoded_input(SCHEMA), encoding=SCHEMA)


def test_rows_that_coincide_as_public_ones_do_among_themselves_are_chance() -> None:
    records, pool = private(20_000, 200), private(1000, 200, seed=1).inputs
    shared = np.isin(pool @ [1000, 1], records.inputs @ [1000, 1]).mean()
    assert shared > 0.01
    PublicData.declare("pool", pool).check_disjoint(records)


@pytest.mark.parametrize("values", [5, 60])
def test_a_table_of_few_values_is_taken_though_most_public_rows_are_private_ones(
    values: int,
) -> None:
    records, pool = private(20_000, values), private(1000, values, seed=1).inputs
    assert np.isin(pool @ [1000, 1], records.inputs @ [1000, 1]).mean() > 0.5
    PublicData.declare("pool", pool).check_disjoint(records)


def test_a_file_of_private_rows_is_refused() -> None:
    records = private(20_000, 900)
    with pytest.raises(DataError):
        PublicData.declare("pool", records.inputs[:1000]).check_disjoint(records)
    unlike = private(1000, 10**6, seed=1).inputs
    some = np.concatenate([unlike, private(20_000, 10**6).inputs[:50]])
    with pytest.raises(DataError):
        PublicData.declare("pool", some).check_disjoint(private(20_000, 10**6))
    images = replace(private(2000, 900), encoding=None)
    with pytest.raises(DataError):
        PublicData.declare("pool", private(1000, 900, seed=1).inputs).check_disjoint(images)
