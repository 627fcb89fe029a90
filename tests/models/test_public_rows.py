"""Public rows of a table may coincide with private ones by chance, and not by a mix-up of files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from support.processes import Terrine
from support.wording import holds
from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_models.features.public import PublicData
from terrine_models.tables.loading import encoded_input
from terrine_protocol.schema import Column, TableSchema

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


@pytest.mark.parametrize(
    ("values", "rows", "least"),
    [
        pytest.param(5, 1000, 0.5, id="most rows"),
        pytest.param(60, 1000, 0.5, id="many rows"),
        pytest.param(200, 1000, 0.01, id="as public rows among themselves"),
        pytest.param(600, 300, 0.01, id="few that do not repeat"),
    ],
)
def test_rows_that_coincide_by_chance_are_taken(values: int, rows: int, least: float) -> None:
    records, pool = private(20_000, values), private(rows, values, seed=1).inputs
    assert np.isin(pool @ [1000, 1], records.inputs @ [1000, 1]).mean() > least
    PublicData.declare("pool", pool).count_private_rows(records)


def test_a_file_of_private_rows_is_refused() -> None:
    records = private(20_000, 900)
    with pytest.raises(DataError):
        PublicData.declare("pool", records.inputs[:1000]).count_private_rows(records)
    unlike, known = private(1000, 10**6, seed=1).inputs, private(20_000, 10**6)
    some = np.concatenate([unlike, known.inputs[:50]])
    for records in (known, replace(known, encoding=None)):  # a table's rows, and arrays
        with pytest.raises(DataError):
            PublicData.declare("pool", some).count_private_rows(records)
        assert PublicData.declare("pool", some[:1005]).count_private_rows(records) == 5


Random = np.random.Generator
Rows = NDArray[Any]


def whole_years(random: Random, rows: int) -> Rows:
    return np.stack([random.integers(18, 98, rows), random.integers(0, 2, rows)], axis=1)


def uneven(random: Random, rows: int) -> Rows:
    """Some values are very common, and some occur once."""
    parts = random.geometric(0.05, rows), random.integers(0, 2, rows), random.geometric(0.3, rows)
    return np.stack(parts, axis=1)


def measured(random: Random, rows: int) -> Rows:
    return random.random((rows, 2))


def half_measured(random: Random, rows: int) -> Rows:
    """Half of the rows are of nine kinds, and no two of the others are equal."""
    known, rounded = random.random((rows, 2)), random.integers(0, 3, (rows, 2))
    return np.where(random.random((rows, 1)) < 0.5, rounded, known)


def cells(random: Random, rows: int) -> Rows:
    return random.integers(0, 600, (rows, 2))


DRAWS = 5
REFUSED: list[tuple[Callable[[Random, int], Rows], int, int, float, int]] = [
    # how rows are drawn, public, private, the share of public rows that are copies, refusals
    (whole_years, 500, 2_000, 0, 0),
    (whole_years, 40, 2_000, 0, 0),
    (whole_years, 500, 60, 0, 0),
    (uneven, 500, 2_000, 0, 0),
    (uneven, 50, 200, 0, 0),
    (uneven, 2_000, 200, 0, 0),
    (half_measured, 500, 2_000, 0, 0),
    (cells, 300, 20_000, 0, 0),
    (cells, 1_000, 5_000, 0, 0),
    (measured, 60, 60, 1 / 60, 0),
    (measured, 1_000, 5_000, 0.005, 0),  # one in a hundred may be
    (measured, 1_000, 20_000, 0.03, DRAWS),
    (measured, 500, 2_000, 0.06, DRAWS),
    (measured, 60, 60, 0.5, DRAWS),
    (measured, 12, 60, 1, DRAWS),
    (half_measured, 500, 2_000, 0.5, DRAWS),
    (half_measured, 500, 2_000, 1, DRAWS),
    (cells, 300, 20_000, 0.3, DRAWS),
    (cells, 300, 20_000, 1, DRAWS),
    (whole_years, 500, 2_000, 1, 0),  # all are expected among them: nothing tells
]


@pytest.mark.parametrize(("draw", "public", "private", "copied", "refusals"), REFUSED)
def test_copies_are_told_from_rows_that_coincide_by_chance(
    draw: Callable[[Random, int], Rows], public: int, private: int, copied: float, refusals: int
) -> None:
    found = 0
    for seed in range(DRAWS):
        random = np.random.default_rng([seed, public, private])
        records, copies = draw(random, private), round(copied * public)
        pool = np.concatenate([draw(random, public - copies), records[:copies]])
        found += is_refused(random.permutation(pool), records)
    assert found == refusals


def is_refused(pool: Rows, records: Rows, groups: NDArray[np.int64] | None = None) -> bool:
    spec = InputSpec(shape=records.shape[1:], dtype="float32", low=-1e9, high=1e9)
    inputs, labels = records.astype(np.float32), np.zeros(len(records), np.int64)
    data = Dataset(inputs, labels, ("no", "yes"), spec, groups=groups)
    try:
        PublicData.declare("pool", pool.astype(np.float32)).count_private_rows(data)
    except DataError:
        return True
    return False


def test_values_beyond_a_range_count_once_each() -> None:
    """Whole years and halves never coincide, except for those that are read as the range's ends."""
    years = np.arange(20.0, 80)[:, None]
    assert not is_refused(years + 0.5, years.clip(20.5, 79.5))
    assert not is_refused((years + 0.5).clip(30, 70), years.clip(30, 70))
    assert is_refused(years[::2], years)


def test_what_one_person_repeats_makes_no_coincidence_likely() -> None:
    records = np.repeat(measured(np.random.default_rng(1), 300), 4, axis=0)
    groups = np.repeat(np.arange(300), 4)
    assert is_refused(records[::8], records, groups)


SHARED = 4_861_172_300_191_227
"""A count that stands nowhere by chance."""
COMMANDS = {
    "ensemble train": ("--teachers", 20),
    "ensemble train --kind neighbours:near=40": (),
    "quickstart": ("--yes", "--epsilon", 8),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_how_many_public_rows_are_private_is_told_to_the_owner_and_written_nowhere(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terrine: Terrine
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path / "data"))
    images, labels = load_digits(return_X_y=True)
    for name, rows in (("private", slice(1200)), ("pool", slice(1200, None))):
        np.savez(f"{name}.npz", x=images[rows].reshape(-1, 8, 8).astype(np.uint8), y=labels[rows])
    given = (*command.split(), "private.npz", "--public", "pool.npz", "--classes", 10)
    terrine("init").fine  # noqa: B018
    monkeypatch.setattr(PublicData, "count_private_rows", lambda *_: SHARED)
    said = terrine(*given, "--name", "digits", *COMMANDS[command]).fine
    holds(said, "eyes", f"{SHARED:,}", "597")
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        written = path.read_bytes()
        for form in (f"{SHARED:,}".encode(), str(SHARED).encode()):
            assert form not in written, path
        for order in ("little", "big"):
            assert SHARED.to_bytes(8, order) not in written, path
    monkeypatch.undo()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path / "data"))
    mixed_up = ("private.npz" if each == "pool.npz" else each for each in given)
    refused = terrine(*mixed_up, "--name", "other", *COMMANDS[command])
    assert refused.code == 1
    holds(refused.err, "1,200", "private")
    assert not (tmp_path / "data" / "ensembles" / "other").exists()
