"""Dates, booleans and orders become declared numbers; files of every kind are encoded alike."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from support.tables import stays, written
from support.wording import holds, refuses
from terrine_models.data.arrays import DataError
from terrine_models.tables.loading import load_table, read_schema
from terrine_models.tables.proposal import propose_schema
from terrine_protocol.schema import Column, TableSchema
from terrine_tables import columns
from terrine_tables.encoding import encode_frame, encode_rows, encode_table
from terrine_tables.files import check_table

DAY = {"role": "date", "since": "2020-01-01", "low": 0, "high": 366}
PARTS = ["days", "year", "month", "weekday"]
SCHEMA = TableSchema.model_validate(
    {
        "columns": [
            {"name": "day", **DAY, "order": "day-month-year", "parts": PARTS, "why": "a date"},
            {"name": "smoker", "role": "boolean", "check": "really?"},
            {"name": "stage", "role": "ordinal", "values": ["low", "middle", "high"]},
            {"name": "ort", "role": "categorical", "values": ["Köln", "Ulm"]},
            {"name": "ill", "role": "label", "values": ["no", "yes"]},
        ]
    }
)
EXPECTED = [
    [1 / 366, 0, 0, 3 / 6, 0, 1, 0, 0, 0, 1, 0, 0],
    [1, 1, 1, 3 / 6, 0, 0, 0, 1, 0, 0, 1, 0],
    [0.5, 0.5, 0.5, 0.5, 1, 0.5, 1, 0.5, 1, 0, 0, 1],
]
TEXT = "day,smoker,stage,ort\n02.01.2020,yes,low,Köln\n31.12.2099 08:00,FALSE,high,Ulm\n,,?,Bonn\n"


def test_dates_booleans_and_orders_are_numbers(tmp_path: Path) -> None:
    said = list[str]()
    path = written(tmp_path / "a.csv", TEXT)
    found = encode_table(path, SCHEMA, said.append, accept_clipped=True)
    assert np.allclose(found, EXPECTED)
    assert len(said) == 3
    holds(said[0], "day", 1, 2)
    holds(said[1], "ort", 1, 3)
    holds(said[2], "day", "smoker", "stage", 1, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "date"},
        {**DAY, "order": "day-month-year"},
        {**DAY, "order": "dmy", "parts": PARTS},
        {**DAY, "order": "day-month-year", "parts": ["days", "days"]},
        {**DAY, "order": "day-month-year", "parts": PARTS, "high": 1e9},
        {"role": "ordinal", "values": ["one"]},
        {"role": "boolean", "low": 0, "high": 1},
        {"role": "numeric", "low": 0, "high": 1, "since": "2020-01-01"},
        {"role": "categorical", "edges": [1]},
        {"role": "group", "edges": [1]},
    ],
)
def test_an_incoherent_column_is_refused(wrong: dict[str, Any]) -> None:
    label = {"name": "y", "role": "label", "values": ["0", "1"]}
    with pytest.raises(ValidationError):
        TableSchema.model_validate({"columns": [{"name": "x", **wrong}, label]})


@pytest.mark.parametrize(
    "wrong",
    [
        *({"edges": edges} for edges in ([2, 1], [1, 1], [], [np.nan], [1, np.inf], ["low"])),
        *({"edges": [1], "values": names} for names in (["a"], ["a", "b", "c"], ["a", "a"])),
    ],
)
def test_edges_that_cut_nothing_are_refused(wrong: dict[str, Any]) -> None:
    label = {"name": "y", "role": "label", **wrong}
    with pytest.raises(ValidationError):
        TableSchema.model_validate({"columns": [{"name": "x", "role": "boolean"}, label]})


def test_a_column_of_an_earlier_version_is_written_as_it_was() -> None:
    column = Column(name="age", role="numeric", low=0, high=9)
    assert column.model_dump_json() == (
        '{"name":"age","role":"numeric","low":0.0,"high":9.0,"values":null}'
    )


def test_a_proposal_is_written_with_its_reasons_and_read_without(tmp_path: Path) -> None:
    proposal = propose_schema(written(tmp_path / "a.csv", stays(900, 400)), label="readmitted")
    path = written(tmp_path / "schema.json", proposal.to_json())
    columns = {column["name"]: column for column in json.loads(path.read_text())["columns"]}
    assert all(column["why"] for column in columns.values())
    assert re.search(r"\b2019-\d\d-\d\d\b", columns["admitted"]["why"])
    assert read_schema(path) == proposal.schema
    assert "why" not in proposal.schema.model_dump_json()


# -------------------------------------------------------------------------- files of other kinds


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "ort": pd.Categorical(["Köln", "Ulm", "Bonn"]),
            "stage": ["low", "high", None],
            "smoker": [True, False, None],
            "day": pd.to_datetime(["2020-01-02 00:00", "2099-12-31 08:00", None]),
            "more": [[1], [2], [3]],
        }
    )


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow", "misnamed.csv"])
def test_parquet_and_arrow_files_are_encoded_as_text_is(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "BLOCK_FIELDS", 8)
    monkeypatch.setattr(columns, "MIN_BLOCK_ROWS", 1)
    path, table = tmp_path / name, pa.Table.from_pandas(frame())
    if name.endswith((".parquet", ".csv")):
        pa.parquet.write_table(table, path)
    else:
        pa.feather.write_feather(table, str(path))
    check_table(path)
    said = list[str]()
    assert np.allclose(encode_table(path, SCHEMA, said.append, accept_clipped=True), EXPECTED)
    holds(said[1], 1, 3)
    with refuses(DataError, "ill", "ort", "stage", "smoker", "day", "more"):
        load_table(path, SCHEMA)


def test_types_are_found_as_the_schema_spells_them(tmp_path: Path) -> None:
    schema = TableSchema.model_validate(
        {
            "columns": [
                {"name": "room", "role": "categorical", "values": ["1.0", "2.0"]},
                {"name": "ill", "role": "label", "values": ["False", "True"]},
            ]
        }
    )
    path = tmp_path / "a.parquet"
    pd.DataFrame({"ill": [True, False], "room": [2, 1]}).to_parquet(path)
    found = load_table(path, schema)
    assert found.labels.tolist() == [1, 0]
    assert found.inputs.tolist() == [[0, 1, 0], [1, 0, 0]]
    table = pa.Table.from_pydict({"room": [2.0, 1.0]})
    assert np.array_equal(encode_frame(table, schema), found.inputs)


def test_broken_and_unfit_files_are_refused_with_their_names(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.Table.from_pandas(frame()), path)
    with refuses(DataError, "a.parquet", "more", "list"):
        propose_schema(path, label="smoker", keep=["more"])
    content = path.read_bytes()
    for wrong in (content[:-20], content[:4] + b"\xff" * 2000 + content[-300:], b"PAR1PAR1"):
        with refuses(DataError, "a.parquet"):
            encode_table(written(path, wrong), SCHEMA)


ONE = TableSchema.model_validate(
    {
        "columns": [
            {"name": "age", "role": "numeric", "low": 0, "high": 100},
            {"name": "y", "role": "label", "values": ["a", "b"]},
        ]
    }
)


@pytest.mark.parametrize(
    ("names", "held"),
    [
        (["age", "x", "x"], None),
        ([" age", "x", " x "], None),
        (["x", "a\u030age", "age "], None),
        (["age", "age", "x"], ("two", "'age'")),
        (["age", " age", "x"], ("two", "'age'")),
    ],
)
def test_a_column_is_found_by_one_rule_through_every_door(
    tmp_path: Path, names: list[str], held: tuple[str, ...] | None
) -> None:
    """Spaces around a name do not count, and who needs no column of a name may have two."""
    table = pa.Table.from_arrays([pa.array(["41", "41"])] * 3, names=names)
    pandas = pd.DataFrame([["41"] * 3] * 2, columns=names)
    csv, parquet = tmp_path / "a.csv", tmp_path / "a.parquet"
    pandas.to_csv(csv, index=False)
    pa.parquet.write_table(table, parquet)
    doors: dict[str, Callable[[], np.ndarray]] = {
        "csv": lambda: encode_table(csv, ONE),
        "parquet": lambda: encode_table(parquet, ONE),
        "pandas": lambda: encode_frame(pandas, ONE),
        "arrow": lambda: encode_frame(table, ONE),
    }
    if len(set(names)) == 3:  # else no dictionary has them
        doors["rows"] = lambda: encode_rows([dict.fromkeys(names, "41")] * 2, ONE)
        doors["columns"] = lambda: encode_frame({name: ["41", "41"] for name in names}, ONE)
    for door, encode in doors.items():
        if held is None:
            assert encode().tolist() == [[np.float32(0.41)]] * 2, door
            continue
        with refuses(DataError, *held):
            encode()


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("05/06/2020", 0),
        ("05/06/2020 23:59", 23),
        ("2020-06-05T07:08:09.123Z", 7),
        ("2020-06-05 07:08:09+02:00", 7),
        ("2020-06-05 07:08:60 CEST", 7),
        ("2020-06-05T07:08+02:00[Europe/Berlin]", 7),
        ("20200605T19:00", 19),
        ("5.6.2020 12:30 AM", 0),
        ("5.6.2020 7pm", None),
        ("5.6.2020 7:00pm", 19),
        ("5.6.2020 13:00 PM", None),
        ("5.6.2020 0:30 am", None),
        ("05/06/2020 xx", None),
        ("05/06/2020 ", None),
        ("05/06/2020 10:00 and so on", None),
        ("2020-06-05T", None),
        ("2020-06-05 25:00", None),
        ("2020-06-05 24:00", None),
        ("2020-06-05 10:60", None),
        ("2020-06-05 10:00:61", None),
        ("2020-06-05\n10:00", None),
        ("\u0662\u0660\u0662\u0660-06-05", None),
        ("2020-06-05 1\u0660:00", None),
        ("2020-13-05", None),
    ],
)
def test_dates_are_read_as_strictly_as_numbers(text: str, hour: int | None) -> None:
    expected = None if hour is None else datetime(2020, 6, 5, hour)
    assert columns.read_date(text, "day-month-year") == expected


# ------------------------------------------------------------------------------------ encodings


@pytest.mark.parametrize(
    ("row", "newline"), [(0, b"\n"), (7, b"\r\n"), (29_998, b"\r"), (29_998, b"\n")]
)
def test_how_one_record_is_written_changes_no_other(
    tmp_path: Path, row: int, newline: bytes
) -> None:
    """All are UTF-8, in several blocks; then one is not."""
    rows = ["02.01.2020,yes,low,Köln".encode(), b"03.01.2020,no,high,Ulm"] * 15_000
    rows += [b"04.01.2020,no,low,Bonn" + b" " * 40] * 20_000
    head, said = b"day,smoker,stage,ort", list[str]()
    before = encode_table(written(tmp_path / "a.csv", newline.join([head, *rows])), SCHEMA)
    rows[row] = "05.01.2020,yes,low,Köln".encode("latin-1")
    changed = written(tmp_path / "b.csv", newline.join([head, *rows]))
    after = encode_table(changed, SCHEMA, said.append)
    assert (before != after).any(1).nonzero()[0].tolist() == [row]
    assert (
        after[row].tolist()
        == encode_table(
            written(tmp_path / "c.csv", head + b"\n" + "05.01.2020,yes,low,Köln".encode()), SCHEMA
        )[0].tolist()
    )
    holds(said[0], "b.csv", "windows-1252")


# ---------------------------------------------------------------------------- nothing is shifted


def test_columns_are_matched_by_name_and_never_shifted(tmp_path: Path) -> None:
    wards = TableSchema.model_validate(
        {
            "columns": [
                {"name": "ward", "role": "categorical", "values": ["A", "B"]},
                {"name": "sex", "role": "categorical", "values": ["f", "m"]},
                {"name": "ill", "role": "label", "values": ["no", "yes"]},
            ]
        }
    )
    rows = ["A,f", "B,m"] * 10
    there = encode_table(written(tmp_path / "a.csv", "\n".join(["ward,sex", *rows])), wards)
    turned = [",".join(reversed(row.split(","))) for row in rows]
    back = encode_table(written(tmp_path / "b.csv", "\n".join(["sex,ward", *turned])), wards)
    assert np.array_equal(there, back)
    said = list[str]()
    assert np.array_equal(
        encode_table(written(tmp_path / "c.csv", "\n".join(rows)), wards, said.append), there
    )
    assert len(said) == 1
    holds(said, tmp_path / "c.csv", "header", "ward,", "sex,")
    for wrong, message in (
        (turned, "header 20 ward"),
        (["station,sex", *rows], "ward station sex"),
    ):
        with refuses(DataError, *message.split()):
            encode_table(written(tmp_path / "d.csv", "\n".join(wrong)), wards)
