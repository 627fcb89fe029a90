"""A student's table: without a label, as a file or a data frame, encoded as the teachers' rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from support.tables import written
from support.wording import holds, refuses
from terrine_models.data.arrays import DataError
from terrine_models.tables.loading import load_table
from terrine_models.tables.roles import propose_schema
from terrine_protocol.tables import TableSchema
from terrine_protocol.tables.encoding import encode_frame, encode_table

SCHEMA = TableSchema.model_validate(
    {
        "columns": [
            {"name": "patient", "role": "group"},
            {"name": "age", "role": "numeric", "low": 0, "high": 100, "missing": 60},
            {"name": "pulse", "role": "numeric", "low": 40, "high": 140},
            {"name": "ward", "role": "categorical", "values": ["1", "2", "surgery"]},
            {"name": "smoker", "role": "categorical", "values": ["false", "true"]},
            {"name": "note", "role": "ignored"},
            {"name": "readmitted", "role": "label", "values": ["no", "yes"]},
        ]
    }
)
ROWS: list[list[Any]] = [[50, 90, "1", True], [None, 40, "surgery", False], [100, None, "9", True]]
FEATURES = ["age", "pulse", "ward", "smoker"]
ONES: dict[str, list[object]] = {name: [1] for name in FEATURES}
EXPECTED = [
    [0.5, 0, 0.5, 1, 0, 0, 0, 0, 1, 0],
    [0.6, 1, 0.0, 0, 0, 1, 0, 1, 0, 0],
    [1.0, 0, 0.5, 0, 0, 0, 1, 0, 1, 0],
]
"""Age and its indicator, pulse (the middle of its range where it is missing), wards, smokers."""


@pytest.mark.parametrize(
    "text",
    [
        "age,pulse,ward,smoker\n50,90,1,true\n,40,surgery,false\n100,NA,9,true\n",
        "50,90,1,true\n,40,surgery,false\n100,NA,9,true\n",
        "smoker;extra;ward;pulse;age\ntrue;x;1;90;50\nfalse;x;surgery;40;?\ntrue;x;9;;100\n",
        "p,50,90,1,true,,\np,,40,surgery,false,,\np,100,NA,9,true,,no\n",
    ],
)
def test_a_pool_needs_no_label_no_group_and_no_ignored_column(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "pool.csv", text)
    assert np.allclose(encode_table(path, SCHEMA, accept_clipped=True), EXPECTED)


def of_dict(rows: dict[str, list[Any]]) -> Any:
    return rows


@pytest.mark.parametrize("library", [of_dict, pd.DataFrame, pl.DataFrame])
def test_a_data_frame_is_encoded_as_the_file_would_be(library: Callable[..., Any]) -> None:
    columns = {name: [row[i] for row in ROWS] for i, name in enumerate(FEATURES)}
    assert np.allclose(encode_frame(library(columns), SCHEMA, accept_clipped=True), EXPECTED)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"age": [1], "pulse": [2], "ward": ["1"]}, "smoker age pulse ward"),
        ({**ONES, "pulse": ["fast"]}, "0 pulse 'fast'"),
        ({**ONES, "pulse": [1, 2]}, "long"),
        (pd.DataFrame({**ONES, "ward": [{"a": 1}]}), "ward lists"),
        ({name: [] for name in FEATURES}, "rows"),
        ([1, 2], "list frame"),
        (pd.DataFrame([[1, 1, 1, 1, 1]], columns=[*FEATURES, "age"]), "two 'age'"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(frame: Any, message: str) -> None:
    with refuses(DataError, *message.split()):
        encode_frame(frame, SCHEMA)


def test_a_header_that_lacks_a_feature_is_not_taken_for_a_row(tmp_path: Path) -> None:
    path = written(tmp_path / "pool.csv", "age,pulse,smoker,ward_id\n1,50,true,1\n")
    with refuses(DataError, "pool.csv", "ward", "age", "pulse"):
        encode_table(path, SCHEMA)


def test_ignored_columns_may_be_absent_from_records_too_but_labels_may_not(tmp_path: Path) -> None:
    text = "patient,age,pulse,ward,smoker,readmitted\na,50,90,1,true,yes\na,,40,2,false,no\n"
    data = load_table(written(tmp_path / "private.csv", text), SCHEMA)
    assert data.labels.tolist() == [1, 0]
    assert data.groups is not None
    assert data.groups.tolist() == [0, 0]
    with refuses(DataError, "readmitted", "patient"):
        load_table(written(tmp_path / "pool.csv", "age,pulse,ward,smoker\n1,2,1,true\n"), SCHEMA)


def test_a_column_with_gaps_is_proposed_with_an_indicator(tmp_path: Path) -> None:
    text = "age,pulse,ill\n10,60,no\n,70,yes\n20,80,no\n90,90,no\n"
    path = written(tmp_path / "public.csv", text)
    proposal = propose_schema(path, label="ill")
    age, pulse, _ = proposal.guesses
    assert age.column.missing == 20
    holds(age.why, 1, "row", "indicator", 20)
    assert pulse.column.missing is None
    assert "missing" not in json.loads(pulse.column.model_dump_json())
    ages = encode_table(path, proposal.schema)[:, :2]
    assert ages.tolist() == [[0, 0], [0.125, 1], [0.125, 0], [1, 0]]


LIGHT = """
import sys
gone = ("pyarrow", "torch", "pandas", "terrine_models")
sys.modules |= dict.fromkeys(gone)  # as if they were not installed
from terrine_protocol.tables import DataError, TableSchema
from terrine_protocol.tables.encoding import encode_frame, encode_table
schema = TableSchema.model_validate_json(sys.argv[1])
print(encode_frame({"age": [50], "pulse": [90], "ward": ["1"], "smoker": [True]}, schema).shape)
try:
    encode_table("pool.csv", schema)
except DataError as error:
    print(error)
"""


def test_frames_need_numpy_alone_and_files_say_that_they_need_pyarrow() -> None:
    command = [sys.executable, "-c", LIGHT, SCHEMA.model_dump_json()]
    shape, refused = subprocess.check_output(command, text=True).splitlines()
    assert shape == "(1, 10)"
    holds(refused, "pool.csv", "pyarrow")
    assert "pip install '.[arrow]'" in refused
