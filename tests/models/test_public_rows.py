"""Public rows of a table may coincide with private ones by chance, and not by a mix-up of files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from support.processes import Terrine
from support.wording import holds
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
