"""Numbers outside the schema's range, or missing, are said, and confirmed before any is charged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.processes import Terrine
from support.wording import holds, refuses
from terrine_client import Client
from terrine_client.estimator import buy
from terrine_models.tables.loading import load_table
from terrine_protocol.errors import ClippedError, DataError
from terrine_protocol.schema import Column, TableSchema
from terrine_server.app import serving
from terrine_server.settings import Settings
from terrine_tables.encoding import encode_frame, encode_rows, encode_table

SCHEMA = TableSchema.model_validate(
    {
        "columns": [
            {"name": "hour", "role": "numeric", "low": 0, "high": 23},
            {"name": "wind", "role": "numeric", "low": 0, "high": 50, "missing": 10},
            {
                "name": "day",
                "role": "date",
                "since": "2024-01-01",
                "low": 0,
                "high": 365,
                "order": "year-month-day",
                "parts": ["days"],
            },
            {"name": "late", "role": "label", "values": ["no", "yes"]},
        ]
    }
)


def flights(count: int = 100, /, **changed: list[Any]) -> pd.DataFrame:
    """Flights within the schema; of some columns the first values are these."""
    frame = pd.DataFrame(
        {
            "hour": [float(i % 24) for i in range(count)],
            "wind": [float(i % 50) for i in range(count)],
            "day": pd.date_range("2024-01-01", periods=count).strftime("%Y-%m-%d"),
            "late": [("no", "yes")[i % 24 > 12] for i in range(count)],
        }
    )
    for name, values in changed.items():
        frame.loc[: len(values) - 1, name] = values
    return frame


def ways(frame: pd.DataFrame, tmp_path: Path) -> list[tuple[Any, Any]]:
    """The same table in every form that students have."""
    csv, parquet = tmp_path / "pool.csv", tmp_path / "pool.parquet"
    frame.to_csv(csv, index=False)
    frame.to_parquet(parquet)
    return [(encode_table, csv), (encode_table, parquet), (encode_frame, frame)]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("hour", [999.0] * 11, "11 100 outside 0 23"),
        ("hour", [-1.0] * 6 + [np.nan] * 5, "6 95 outside"),
        ("hour", [np.nan] * 11, "11 100 missing 11.5"),
        ("wind", [60.0] * 11, "11 100 outside 0 50"),
        ("day", ["2030-01-01"] * 11, "11 100 outside"),
    ],
)
def test_more_than_a_tenth_of_a_column_must_be_confirmed(
    tmp_path: Path, name: str, values: list[Any], said: str
) -> None:
    for encode, given in ways(flights(**{name: values}), tmp_path):
        notes = list[str]()
        with refuses(ClippedError, name, "--accept-clipped"):
            encode(given, SCHEMA, notes.append)
        holds("\n".join(notes), name, *said.split())
        encoded = encode(given, SCHEMA, notes.append, accept_clipped=True)
        assert len(encoded) == 100
    for encode, given in ways(flights(**{name: values[1:]}), tmp_path):
        notes = list[str]()
        encode(given, SCHEMA, notes.append)
        holds(notes, "column", name)  # a tenth is said, too


SURVEY = TableSchema.model_validate(
    {
        "columns": [
            {"name": "hour", "role": "numeric", "low": 0, "high": 23},
            {"name": "wind", "role": "numeric", "low": 0, "high": 50, "missing": 10},
            {"name": "day", "role": "date", "since": "2024-01-01", "low": 0, "high": 365}
            | {"order": "year-month-day", "parts": ["days", "month"]},
            {"name": "rain", "role": "boolean"},
            {"name": "grade", "role": "ordinal", "values": ["low", "middle", "high"]},
            {"name": "late", "role": "label", "values": ["no", "yes"]},
        ]
    }
)
STRAYS = {
    "hour": ["unknown", "-", "about noon", "<5", "90+", "2020-01-31", "n/a", "12:30"],
    "wind": ["strong", "N/A", "null", ".", "a, b", "5-9", "nan"],
    "day": ["yesterday", "0000-00-00", "2024-02-30", "unknown", "3"],
    "rain": ["perhaps", "2", "-", "unknown"],
    "grade": ["unknown", "very high"],
}
WORDS_OF_NOTHING = {"unknown", "-", "n/a", "N/A", "null", ".", "nan"}


def survey(strays: dict[str, list[str]]) -> pd.DataFrame:
    count = 100
    frame = flights(count).assign(
        rain=["yes", "no"] * (count // 2), grade=["low", "middle", "high", "high"] * (count // 4)
    )
    frame = frame.astype(dict.fromkeys(frame.columns, object))
    for name, values in strays.items():
        frame.loc[: len(values) - 1, name] = values
    return frame


@pytest.mark.parametrize("name", STRAYS)
def test_a_few_values_that_cannot_be_read_count_as_missing_in_every_format(
    tmp_path: Path, name: str
) -> None:
    strays = STRAYS[name]
    plain = survey({name: [""] * len(strays)})
    expected = encode_frame(plain, SURVEY, list[str]().append)
    frame = survey({name: strays})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv", index=False, sep=";")
    texts = frame.astype(str)
    texts.to_parquet(tmp_path / "c.parquet")
    texts.to_feather(tmp_path / "d.feather")
    texts.to_json(tmp_path / "e.jsonl", orient="records", lines=True)
    rows = frame.to_dict(orient="records")
    ways: list[tuple[Any, Any]] = [(encode_table, path) for path in sorted(tmp_path.iterdir())]
    for encode, given in [*ways, (encode_frame, frame), (encode_rows, rows)]:
        notes = list[str]()
        assert np.array_equal(encode(given, SURVEY, notes.append), expected)
        unread = sum(stray not in WORDS_OF_NOTHING for stray in strays)
        if name != "grade":
            holds(notes, name, unread, 100, "missing")
    notes = list[str]()
    loaded = load_table(tmp_path / "a.csv", SURVEY, notes.append).inputs
    assert np.array_equal(loaded, expected)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("hour", ["noon"] * 11, "'noon' number"),
        ("day", ["soon"] * 11, "'soon' year-month-day"),
        ("rain", ["perhaps"] * 11, "'perhaps' true"),
        ("hour", ["12 h"], "'12 h' number"),
        ("hour", ["1 000"], "'1 000' number"),
        ("hour", ["12,5"], "'12,5' number"),
        ("hour", ["£5"], "number"),
        ("hour", ["5 %"], "'5 %' number"),
        ("hour", ["inf"], "'inf' number"),
        ("day", ["31.01.2024"], "'31.01.2024' year-month-day"),
        ("day", ["31.01.24"], "'31.01.24' year-month-day"),
    ],
)
def test_many_such_values_and_those_of_another_form_are_refused(
    tmp_path: Path, name: str, values: list[str], said: str
) -> None:
    frame = survey({name: values})
    frame.to_csv(tmp_path / "a.csv", index=False)
    ways: list[tuple[Any, Any]] = [(encode_table, tmp_path / "a.csv"), (encode_frame, frame)]
    for encode, given in ways:
        with refuses(DataError, name, *said.split()):
            encode(given, SURVEY, list[str]().append, accept_clipped=True)
    frame[SURVEY.features].to_csv(tmp_path / "b.csv", index=False, header=False)
    with refuses(DataError, name):
        encode_table(tmp_path / "b.csv", SURVEY, list[str]().append)


def test_where_columns_have_no_names_every_value_must_be_readable(tmp_path: Path) -> None:
    path, notes = tmp_path / "a.csv", list[str]()
    for value in ("n/a", "noon"):
        frame = survey({"hour": [value]})[SURVEY.features]
        frame.to_csv(path, index=False, header=False)
        if value == "n/a":
            assert len(encode_table(path, SURVEY, notes.append)) == 100
        else:
            with refuses(DataError, "hour", "'noon'", "line", 1):
                encode_table(path, SURVEY, notes.append)


def test_gaps_that_the_schema_knows_are_said_and_need_no_confirmation(tmp_path: Path) -> None:
    for encode, given in ways(flights(wind=[np.nan] * 60), tmp_path):
        with pytest.warns(UserWarning, match="wind") as said:
            encode(given, SCHEMA)
        holds(str(said[0].message), 60, 100, 10)


EVERY_ROLE = TableSchema.model_validate(
    {
        "columns": [
            *SCHEMA.model_dump()["columns"][1:3],
            {"name": "gate", "role": "categorical", "values": ["A", "B"]},
            {"name": "delay", "role": "ordinal", "values": ["none", "short", "long"]},
            {"name": "full", "role": "boolean"},
            {"name": "remark", "role": "text", "width": 64},
            {"name": "late", "role": "label", "values": ["no", "yes"]},
        ]
    }
)
GIVEN = {
    "wind": 5,
    "day": "2024-02-03",
    "gate": "A",
    "delay": "short",
    "full": 1,
    "remark": "on time",
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_column_is_empty_in_all_rows_by_mistake_or_confirmed(tmp_path: Path, name: str) -> None:
    """As where a join found nothing."""
    frame = pd.DataFrame([{**GIVEN, "late": "no"}] * 20)
    frame[name] = frame[name].astype(object)
    frame.loc[1:, name] = None
    for encode, given in ways(frame, tmp_path):
        notes = list[str]()
        encode(given, EVERY_ROLE, notes.append)
        holds("\n".join(notes), name, 19, 20)
    frame[name] = None
    for encode, given in ways(frame, tmp_path):
        notes = list[str]()
        with refuses(ClippedError, name, 20, "--accept-clipped"):
            encode(given, EVERY_ROLE, notes.append)
        holds("\n".join(notes), name, 20)
        assert len(encode(given, EVERY_ROLE, notes.append, accept_clipped=True)) == 20
    for _, path in ways(frame, tmp_path)[:2]:
        with refuses(ClippedError, name, 20, "ignored"):  # of private records, and public ones
            load_table(path, EVERY_ROLE, notes.append)
        left_out = [
            Column(name=name, role="ignored") if column.name == name else column
            for column in EVERY_ROLE.columns
        ]
        without = TableSchema(columns=tuple(left_out))
        assert len(load_table(path, without, notes.append)) == 20
        assert len(load_table(path, EVERY_ROLE, notes.append, accept_empty=True)) == 20
    few = frame[:9]
    assert len(encode_frame(few, EVERY_ROLE, notes.append)) == 9, "a few may all lack it"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("hour", [999.0] * 60),
        ("hour", [np.nan] * 7),
        ("wind", [-1.0] * 7),
        ("day", ["2030-01-01"] * 7),
    ],
)
@pytest.mark.parametrize("wrong", ["private.csv", "pool.csv"])
def test_an_owner_too_is_stopped_before_a_cap_is_fixed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    terrine: Terrine,
    name: str,
    values: list[Any],
    wrong: str,
) -> None:
    """By the rule that stops their students, also with --yes, and until the schema is corrected."""
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text(SCHEMA.model_dump_json())
    for file in ("private.csv", "pool.csv"):
        flights(60, **({name: values} if file == wrong else {})).to_csv(file, index=False)
    known = ("private.csv", "--schema", "schema.json")
    public = ("--public", "pool.csv")
    train = ("ensemble", "train", *known, "--teachers", 4, "--name", "flights")
    quick = ("quickstart", *known, "--yes", "--name", "flights")
    commands = [(*quick, *public), (*train, *public)]
    if wrong == "private.csv":
        commands += [quick, train, ("ensemble", "split", *known, "--teachers", 4, "--out", "out")]
    for command in commands:
        refused = terrine(*command)
        assert refused.code == 1
        holds(refused.err, wrong, name, "low", "missing", "ignored", "--schema")
        assert "--accept-clipped" not in refused.err, "which these commands do not have"
    assert not list(Path("data").glob("ensembles/*"))
    with closing(sqlite3.connect("data/terrine.sqlite")) as ledger:
        assert ledger.execute("SELECT count(*) FROM populations").fetchone() == (0,)


@pytest.mark.slow
def test_nothing_is_charged_before_clipped_numbers_are_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terrine: Terrine
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text(SCHEMA.model_dump_json())
    flights(400, hour=[999.0] * 7).to_csv("private.csv", index=False)
    flights(60, hour=[999.0] * 60).to_csv("pool.csv", index=False)
    train = ("ensemble", "train", "private.csv", "--schema", "schema.json", "--teachers", 20)
    said = terrine(*train, "--name", "flights").fine
    holds(said, "hour", 7, 400, 0, 23)
    terrine("init").fine  # noqa: B018 - raises if it failed
    assert terrine("ensemble", "register", "flights", "--epsilon", 100, "--delta", "1e-5").fine
    opened = ("project", "open", "study", "--ensemble", "flights", "--mechanism", "gnmax:sigma=10")
    assert terrine(*opened, "--epsilon", 90, "--delta", "1e-6").fine
    made = terrine("token", "create", "--role", "student", "--project", "study").fine
    token = next(word for word in made.split() if word.startswith("terrine_"))
    Path("token").write_text(token)
    with serving(Settings()) as url, Client(url, token) as client:
        at = ("student", "--url", url, "--token-file", "token")
        label = (*at, "label", "pool.csv", "--out", "labels.csv")
        learn = (*at, "train", "pool.csv", "--method", "ridge", "--rounds", 1)
        for command in (label, learn, (*learn, "--dry-run")):
            refused = terrine(*command)
            holds(refused.out, 60, 0, 23)
            assert (refused.code, "--accept-clipped" in refused.err) == (1, True)
        with pytest.raises(ClippedError):
            buy(client, pd.read_csv("pool.csv"))
        assert client.budget().charges == 0
        assert terrine(*label, "--accept-clipped").fine
        first = client.budget().charges
        assert first == 60
        bought = buy(client, pd.read_csv("pool.csv"), accept_clipped=True)
        assert len(bought.rows) == 60
        assert client.budget().charges == first, "what was paid before is free"
        assert terrine(*learn, "--accept-clipped").fine


def test_a_date_with_an_hour_keeps_it(tmp_path: Path) -> None:
    times = ["2024-03-01 00:10", "2024-03-01 23:59:59", "2024-03-02T08:00Z", "2024-03-02 8:15 PM"]
    public = tmp_path / "public.csv"
    rows = [f"{time},{'ny'[i % 2]}" for i, time in enumerate(times * 5)]
    public.write_text("\n".join(["at,ill", *rows, ""]))
    from terrine_models.tables.proposal import propose_schema

    schema = propose_schema(public, label="ill").schema
    assert schema.columns[0].parts == ("days", "month", "weekday", "hour")
    hours = [0, 23 / 23, 8 / 23, 20 / 23]
    assert np.allclose(encode_table(public, schema)[:4, 3], hours)
    typed = pd.DataFrame({"at": pd.to_datetime(["2024-03-01 00:10:00", "2024-03-01 23:59:59"])})
    typed.to_parquet(tmp_path / "pool.parquet")
    assert np.allclose(encode_table(tmp_path / "pool.parquet", schema)[:, 3], hours[:2])
    assert np.allclose(encode_frame(typed, schema)[:, 3], hours[:2])
    away = typed["at"].dt.tz_localize("Asia/Tokyo")
    away.to_frame().to_parquet(tmp_path / "away.parquet")
    assert np.allclose(encode_table(tmp_path / "away.parquet", schema)[:, 3], hours[:2])
    assert np.allclose(encode_frame(away.to_frame(), schema)[:, 3], hours[:2])
    date_alone = pd.DataFrame({"at": ["2024-03-01"]})
    assert encode_frame(date_alone, schema)[0, 3] == 0
