"""A student's table: without a label, as a file or a data frame, encoded as the teachers' rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from support.tables import written
from support.wording import holds, refuses
from terrine_models.data.arrays import DataError
from terrine_models.tables.loading import load_table
from terrine_models.tables.proposal import propose_schema
from terrine_protocol.schema import TableSchema
from terrine_server.labeling.queries import input_digests
from terrine_tables.encoding import encode_frame, encode_rows, encode_table

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


# --------------------------------------------------------- one column, however it is held

ROOMS = {"name": "x", "role": "categorical", "values": ["A", "B"]}
STAGES = {"name": "x", "role": "ordinal", "values": ["1", "2", "3"]}
SMOKES = {"name": "x", "role": "boolean"}
DOSES = {"name": "x", "role": "numeric", "low": 35, "high": 42, "missing": 36.65}
DAY = {"role": "date", "order": "day-month-year", "since": "2020-01-01", "low": 0, "high": 366}
DAYS = {"name": "x", **DAY, "parts": ["days", "weekday", "hour"]}
SHARES = {"name": "x", "role": "categorical", "values": ["0.1", "2.5"]}
NOTES = {"name": "x", "role": "text", "width": 64}

TEMPERATURES = [37.2, 36.65, 41.999999, None, 35.1, 38.123456789]
NIGHTS = [datetime(2020, 3, 1), datetime(2020, 7, 1, 23, 59), None]
"""As they are written in Berlin, where either is another day in UTC."""


def arrow(kind: Any, values: list[Any]) -> pa.Table:
    return pa.table({"x": pa.array(values, kind)})


def zoned(values: list[Any]) -> pd.Series:
    return pd.Series(pd.to_datetime(values)).dt.tz_localize("Europe/Berlin")


def in_chunks(first: list[Any], second: list[Any]) -> pa.Table:
    """A column of categories in two chunks, whose codes mean different ones."""
    chunks = [pa.array(some).dictionary_encode() for some in (first, second)]
    return pa.table({"x": pa.chunked_array(chunks)})


def of_codes(codes: list[int | None], categories: list[str | None]) -> pa.Table:
    return pa.table({"x": pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(categories))})


HELD: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any]]] = {
    "categories": (
        ROOMS,
        ["A", None, "B", "other"],
        {
            "Arrow's codes": of_codes([0, None, 2, 1], ["A", "other", "B"]),
            "a null among Arrow's categories": of_codes([1, 0, 2, 3], [None, "A", "B", "other"]),
            "two chunks": in_chunks(["A", None], ["B", "other"]),
            "runs": pa.table(
                {
                    "x": pa.RunEndEncodedArray.from_arrays(
                        [1, 2, 3, 4], pa.array(["A", None, "B", "other"])
                    )
                }
            ),
            "views": arrow(pa.string_view(), ["A", None, "B", "other"]),
            "large texts": arrow(pa.large_string(), ["A", None, "B", "other"]),
            "pandas' categories": {"x": pd.Categorical(["A", None, "B", "other"])},
            "pandas' texts": pd.DataFrame({"x": ["A", pd.NA, "B", "other"]}, dtype="string"),
            "Arrow in pandas": pd.DataFrame({"x": ["A", None, "B", "other"]}).astype(
                pd.ArrowDtype(pa.string())
            ),
            "an index": {"x": pd.Index(["A", None, "B", "other"])},
            "Polars' categories": pl.DataFrame(
                {"x": pl.Series(["A", None, "B", "other"], dtype=pl.Categorical)}
            ),
            "Polars' enum": pl.DataFrame(
                {"x": pl.Series(["A", None, "B", "other"], dtype=pl.Enum(["other", "B", "A"]))}
            ),
            "a masked array": {
                "x": np.ma.array(["A", "B", "B", "other"], mask=[False, True, False, False])
            },
        },
    ),
    "levels": (
        STAGES,
        [3, 1, None, 2],
        {
            "Int64": pd.DataFrame({"x": [3, 1, None, 2]}, dtype="Int64"),
            "floats": pd.DataFrame({"x": [3, 1, None, 2]}),
            "float32": pd.DataFrame({"x": [3, 1, None, 2]}, dtype="float32"),
            "Float32": pd.DataFrame({"x": [3, 1, None, 2]}, dtype="Float32"),
            "numbers of pandas' categories": {"x": pd.Categorical([3, 1, None, 2])},
            "Polars' integers": pl.DataFrame({"x": [3, 1, None, 2]}),
            "Arrow's integers": arrow(pa.int8(), [3, 1, None, 2]),
            "decimals": arrow(pa.decimal128(5, 2), [Decimal(3), Decimal(1), None, Decimal(2)]),
            "a masked array": {"x": np.ma.array([3, 1, 9, 2], mask=[False, False, True, False])},
        },
    ),
    "booleans": (
        SMOKES,
        [True, None, False],
        {
            "boolean": pd.DataFrame({"x": [True, None, False]}, dtype="boolean"),
            "objects": pd.DataFrame({"x": [True, np.nan, False]}),
            "Polars": pl.DataFrame({"x": [True, None, False]}),
            "Arrow": arrow(pa.bool_(), [True, None, False]),
            "a masked array": {"x": np.ma.array([True, True, False], mask=[False, True, False])},
            "mixed": {"x": np.array([1, None, np.False_], dtype=object)},
        },
    ),
    "numbers": (
        DOSES,
        TEMPERATURES,
        {
            "float32": pd.DataFrame({"x": TEMPERATURES}, dtype="float32"),
            "rows of float32": pl.DataFrame({"x": TEMPERATURES}, {"x": pl.Float32}).to_dicts(),
            "Float64": pd.DataFrame({"x": TEMPERATURES}, dtype="Float64"),
            "Float32": pd.DataFrame({"x": TEMPERATURES}, dtype="Float32"),
            "Polars' Float32": pl.DataFrame({"x": TEMPERATURES}, {"x": pl.Float32}),
            "Polars' decimals": pl.DataFrame({"x": TEMPERATURES}, {"x": pl.Decimal(12, 9)}),
            "Arrow's float": arrow(pa.float32(), TEMPERATURES),
            "Arrow's decimals": arrow(
                pa.decimal128(12, 9),
                [None if t is None else Decimal(str(t)) for t in TEMPERATURES],
            ),
            "Arrow's codes": pa.table({"x": pa.array(TEMPERATURES).dictionary_encode()}),
            "pandas' categories": {"x": pd.Categorical(TEMPERATURES)},
            "Arrow in pandas": pd.DataFrame({"x": TEMPERATURES}).astype(
                pd.ArrowDtype(pa.float32())
            ),
            "a masked array": {
                "x": np.ma.masked_equal([0.0 if t is None else t for t in TEMPERATURES], 0)
            },
            "objects": {"x": np.array([t and np.float32(t) for t in TEMPERATURES], object)},
        },
    ),
    "dates": (
        DAYS,
        NIGHTS,
        {
            "pandas": pd.DataFrame({"x": pd.to_datetime(NIGHTS)}),
            "pandas in a zone": pd.DataFrame({"x": zoned(NIGHTS)}),
            "objects in a zone": pd.DataFrame({"x": zoned(NIGHTS).astype(object)}),
            "pandas' categories": {"x": pd.Categorical(zoned(NIGHTS))},
            "Polars": pl.DataFrame({"x": NIGHTS}),
            "Polars in a zone": pl.DataFrame({"x": NIGHTS}).with_columns(
                pl.col("x").dt.replace_time_zone("Europe/Berlin")
            ),
            "Arrow in a zone": pa.Table.from_pandas(pd.DataFrame({"x": zoned(NIGHTS)})),
            "Arrow in pandas": pa.Table.from_pandas(pd.DataFrame({"x": zoned(NIGHTS)})).to_pandas(
                types_mapper=pd.ArrowDtype
            ),
            "NumPy": {"x": np.array(NIGHTS, "datetime64[ns]")},
            "a masked array": {
                "x": np.ma.array(
                    np.array([*NIGHTS[:2], NIGHTS[0]], "M8[m]"), mask=[False, False, True]
                )
            },
        },
    ),
    "days": (
        DAYS,
        ["02.01.2020", None, "31.12.2020"],
        {
            "date32": arrow(pa.date32(), [date(2020, 1, 2), None, date(2020, 12, 31)]),
            "date64": arrow(pa.date64(), [date(2020, 1, 2), None, date(2020, 12, 31)]),
            "Polars": pl.DataFrame({"x": [date(2020, 1, 2), None, date(2020, 12, 31)]}),
            "objects": pd.DataFrame({"x": [date(2020, 1, 2), None, date(2020, 12, 31)]}),
            "periods": pd.DataFrame(
                {"x": pd.PeriodIndex(["2020-01-02", None, "2020-12-31"], freq="D")}
            ),
        },
    ),
    "numbers that name categories": (
        SHARES,
        ["0.1", "2.5", None],
        {
            "float32": pd.DataFrame({"x": [0.1, 2.5, None]}, dtype="float32"),
            "Polars' Float32": pl.DataFrame({"x": [0.1, 2.5, None]}, {"x": pl.Float32}),
            "Arrow's float": arrow(pa.float32(), [0.1, 2.5, None]),
            "decimals": arrow(pa.decimal128(5, 3), [Decimal("0.1"), Decimal("2.5"), None]),
        },
    ),
    "texts": (
        NOTES,
        ["no fever", None, "coughs"],
        {
            "Arrow's codes": of_codes([1, None, 0], ["coughs", "no fever"]),
            "pandas": pd.DataFrame({"x": ["no fever", None, "coughs"]}),
            "Polars": pl.DataFrame({"x": ["no fever", None, "coughs"]}),
        },
    ),
}


def held() -> Iterator[Any]:
    for name, (column, values, ways) in HELD.items():
        for way, given in ways.items():
            yield pytest.param(column, values, given, id=f"{name}: {way}")


@pytest.mark.parametrize(("column", "values", "given"), held())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_column_is_the_same_queries_however_it_is_held(
    tmp_path: Path, column: dict[str, Any], values: list[Any], given: Any
) -> None:
    """As rows of JSON are, a list, and what pandas, Polars and Arrow write of it."""
    label = {"name": "y", "role": "label", "values": ["no", "yes"]}
    schema = TableSchema.model_validate({"columns": [column, label]})
    rows = [{"x": value} for value in values]
    found = encode_rows(rows, schema, accept_clipped=True)
    expected = input_digests(found, "0" * 64)
    if isinstance(given, list):
        assert input_digests(encode_rows(given, schema, accept_clipped=True), "0" * 64) == expected
        return
    for each in (given, {"x": values}):
        found = encode_frame(each, schema, accept_clipped=True)
        assert input_digests(found, "0" * 64) == expected
    if isinstance(given, pa.Table):
        path = tmp_path / "a.arrow"
        with pa.ipc.new_file(path, given.schema) as file:
            file.write_table(given.unify_dictionaries())
    elif isinstance(given, pl.DataFrame):
        path = tmp_path / "a.parquet"
        given.write_parquet(path)
    else:
        path = tmp_path / "a.csv"
        pd.DataFrame(given).to_csv(path)  # with the number of the row: an empty line is none
    found = encode_table(path, schema, accept_clipped=True)
    assert input_digests(found, "0" * 64) == expected


@pytest.mark.parametrize(
    "values",
    [
        np.array([b"A"]),
        pd.Series([(1, 2)]),
        pl.Series([b"A"]),
        pa.array([b"A"]),
        pa.array([[1]]),
        pl.Series([[1]]),
        np.zeros((1, 2)),
        np.zeros(1, dtype="i4,i4"),
        [{"a": 1}],
        "A",
        5,
    ],
    ids=lambda values: f"{type(values).__name__} {getattr(values, 'dtype', '')}",
)
def test_what_is_no_value_of_a_table_is_refused(values: Any) -> None:
    schema = TableSchema.model_validate(
        {"columns": [ROOMS, {"name": "y", "role": "label", "values": ["no", "yes"]}]}
    )
    with refuses(DataError, "x"):
        encode_frame({"x": values}, schema)


@pytest.mark.parametrize("values", [np.array([5], "m8[ns]"), pl.Series([timedelta(days=1)])])
def test_a_duration_is_no_number(values: Any) -> None:
    schema = TableSchema.model_validate(
        {"columns": [DOSES, {"name": "y", "role": "label", "values": ["no", "yes"]}]}
    )
    with refuses(DataError, "row", 0, "x", "number"):
        encode_frame({"x": values}, schema)


@pytest.mark.parametrize("numbers", [[1_600_000_001, 1_600_000_002], [0.25, 0.5]])
def test_numbers_that_the_range_tells_apart_stay_apart(numbers: list[float]) -> None:
    """Seconds since 1970 in float32 would be two minutes wide."""
    of_range = {"low": min(numbers) - 100, "high": max(numbers) + 100}
    schema = TableSchema.model_validate(
        {
            "columns": [
                {"name": "x", "role": "numeric", **of_range},
                {"name": "y", "role": "label", "values": ["no", "yes"]},
            ]
        }
    )
    first, second = encode_frame({"x": numbers}, schema).ravel()
    assert first == np.float32(
        (numbers[0] - of_range["low"]) / (of_range["high"] - of_range["low"])
    )
    assert first != second


def test_the_ends_of_a_range_are_within_it_in_float32() -> None:
    schema = TableSchema.model_validate(
        {
            "columns": [
                {"name": "x", "role": "numeric", "low": 0.1, "high": 0.7},
                {"name": "y", "role": "label", "values": ["no", "yes"]},
            ]
        }
    )
    said = list[str]()
    ends = pd.DataFrame({"x": [0.1, 0.7]}, dtype="float32")
    assert encode_frame(ends, schema, said.append).tolist() == [[0], [1]]
    assert not said
