"""Tables: the encoding is public, never taken from private rows; errors name line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.wording import refuses
from terrine_models.data.arrays import DataError
from terrine_models.tables.loading import encoded_input, load_table, read_schema
from terrine_models.tables.proposal import propose_schema
from terrine_protocol.schema import TableSchema

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


def test_private_values_never_enter_the_schema(tmp_path: Path, schema: TableSchema) -> None:
    path = private(tmp_path, "99,spy,x,low\n?,clerk,y,high.\n")
    data = load_table(path, schema, accept_clipped=True)
    clerk, nurse, other = (1, 0, 0), (0, 1, 0), (0, 0, 1)
    assert nurse not in data.inputs[:, -3:].tolist()
    assert data.inputs[0, -3:].tolist() == list(other)
    assert data.inputs[1, -3:].tolist() == list(clerk)
    assert data.inputs[0, 0] == 1, "a number beyond the range is clipped to it"
    assert data.labels.tolist() == [1, 0]
    assert data.encoding == schema
    assert "spy" not in data.encoding.model_dump_json()
    assert data.inputs.shape == (2, *encoded_input(schema).shape)


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
