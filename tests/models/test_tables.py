"""Tables: the encoding is public, never taken from private rows; errors name line and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.tables import ADULT
from support.wording import refuses
from terrine_models.data.arrays import DataError
from terrine_models.features.maps import PublicData
from terrine_models.tables.loading import encoded_input, load_table, read_schema
from terrine_models.tables.roles import propose_schema
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.shards import TrainingError
from terrine_models.teachers.training import train_ensemble
from terrine_protocol.tables import TableSchema
from terrine_protocol.tables.encoding import encode_table

PUBLIC = """age,job,person,income
20,nurse,p1,low
60,clerk,p2,high
40,?,p3,low
"""


@pytest.fixture
def schema(tmp_path: Path) -> TableSchema:
    path = tmp_path / "public.csv"
    path.write_text(PUBLIC)
    return propose_schema(path, label="income", group="person").schema


def private(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "private.csv"
    path.write_text(text)
    return path


def test_categories_and_ranges_come_from_the_public_table(schema: TableSchema) -> None:
    roles = {column.name: column.role for column in schema.columns}
    assert roles == {"age": "numeric", "job": "categorical", "person": "group", "income": "label"}
    assert schema.columns[1].values == ("clerk", "nurse")
    assert schema.columns[3].values == ("high", "low")
    assert schema.fitted_on is not None
    assert schema.fitted_on.records == 3


def test_private_values_never_enter_the_schema(tmp_path: Path, schema: TableSchema) -> None:
    path = private(tmp_path, "99,spy,x,low\n?,clerk,y,high.\n")
    data = load_table(path, schema)
    clerk, nurse, other = (1, 0, 0), (0, 1, 0), (0, 0, 1)
    assert nurse not in data.inputs[:, -3:].tolist()
    assert data.inputs[0, -3:].tolist() == list(other)
    assert data.inputs[1, -3:].tolist() == list(clerk)
    assert data.inputs[0, 0] == 1, "a number beyond the range is clipped to it"
    assert data.labels.tolist() == [1, 0]
    assert data.encoding == schema
    assert "spy" not in data.encoding.model_dump_json()
    assert data.inputs.shape == (2, *encoded_input(schema).shape)


def test_a_header_may_order_columns_differently_and_add_some(
    tmp_path: Path, schema: TableSchema
) -> None:
    plain = load_table(private(tmp_path, "30,nurse,a,low\n50,clerk,b,high\n"), schema)
    path = private(tmp_path, "income,note,person,job,age\nlow,-,a,nurse,30\n\nhigh,-,b,clerk,50\n")
    assert np.array_equal(load_table(path, schema).inputs, plain.inputs)
    assert np.array_equal(load_table(path, schema).labels, plain.labels)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("30,nurse,a,low\n31,nurse,a\n", "2 3 4 age job"),
        ("30,nurse,a,low\nold,nurse,a,low\n", "2 age 'old'"),
        ("30,nurse,a,low\ninf,nurse,a,low\n", "2 age 'inf'"),
        ("30,nurse,a,low\n31,nurse,a,middling\n", "2 income 'middling'"),
        ("", "records"),
        ("age,job,person,income\n", "records"),
        ('30,"nurse,a,low\n', "CSV"),
        ("\xff", "1 fields"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, schema: TableSchema, text: str, said: str) -> None:
    with refuses(DataError, *said.split()):
        load_table(private(tmp_path, text), schema)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "schema"),
        ('{"columns": []}', "columns"),
        ('{"columns": [{"name": "a", "role": "numeric"}]}', "label"),
        (
            '{"columns": [{"name": "a", "role": "numeric", "low": 2, "high": 1},'
            ' {"name": "y", "role": "label", "values": ["0", "1"]}]}',
            "low high",
        ),
    ],
)
def test_a_bad_schema_says_where(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(text)
    with refuses(DataError, *said.split()):
        read_schema(path)


def test_a_schema_fitted_on_the_private_table_is_refused(tmp_path: Path) -> None:
    path = private(tmp_path, PUBLIC)
    by_accident = propose_schema(path, label="income", group="person").schema
    with refuses(DataError, "fitted"):
        train_ensemble(load_table(path, by_accident), tmp_path / "out", name="t", teachers=2)


@pytest.mark.nightly
def test_adult_trains_by_the_public_table_end_to_end(tmp_path: Path, shared_data: Path) -> None:
    public_csv = shared_data / "adult" / "adult.test.gz"
    schema = propose_schema(public_csv, label="income", columns=ADULT).schema
    data = load_table(shared_data / "adult" / "adult.data.gz", schema)
    assert len(data) == 32561
    assert data.classes == ("<=50K", ">50K")
    public = PublicData.declare(public_csv.name, encode_table(public_csv, schema))
    train_ensemble(data, tmp_path / "adult", name="adult", teachers=250, public=public)
    ensemble = Ensemble.load(tmp_path / "adult")
    assert ensemble.manifest.encoding == schema
    test = load_table(public_csv, schema)
    plurality = (ensemble.votes(test.inputs).argmax(1) == test.labels).mean()
    assert plurality > 0.825, f"plurality of 250 teachers is {plurality:.4f}"
    with refuses(TrainingError, "exists"):
        train_ensemble(data, tmp_path / "adult", name="adult", teachers=250)
