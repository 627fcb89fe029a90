"""Small files as people write them, each with its right value: names, numbers, dates, labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from support.tables import NUMBERED_LABELS
from support.wording import holds, refuses, says
from terrine_models.data.arrays import DataError, load_groups, load_idx, load_npz
from terrine_models.data.images import class_folders, load_image_classes
from terrine_models.tables.loading import load_people, load_table, read_schema
from terrine_models.tables.proposal import propose_schema
from terrine_models.tables.roles import RoleGuess
from terrine_models.teachers.people import name_digests
from terrine_protocol.base import fold, map_class_numbers
from terrine_protocol.projects import ImageFormat
from terrine_protocol.schema import TableSchema
from terrine_tables.columns import parse_number
from terrine_tables.encoding import encode_frame, encode_table

ONE, TWO = "M\u00fcller", "Mu\u0308ller"
"""Müller with one character for ü, and with two."""
DOSE = {"name": "dose", "role": "numeric", "low": 0, "high": 100}


def schema(*columns: dict[str, Any], label: tuple[str, ...] = ("no", "yes")) -> TableSchema:
    ill = {"name": "ill", "role": "label", "values": label}
    return TableSchema.model_validate({"columns": [*columns, ill]})


def table(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# ------------------------------------------------------------------ numbers as labels are names


@pytest.mark.parametrize(("labels", "classes", "expected"), NUMBERED_LABELS)
def test_a_number_is_an_index_only_where_it_cannot_be_a_name(
    tmp_path: Path, labels: list[int], classes: tuple[str, ...], expected: list[int] | None
) -> None:
    y, x = np.array(labels), np.zeros((len(labels), 2), np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    idx = b"\0\0\x08\x01" + len(y).to_bytes(4, "big") + bytes(abs(label) for label in labels)
    pixels = (
        b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (len(y), 1, 2)) + bytes(2 * len(y))
    )
    (tmp_path / "train-labels.idx").write_bytes(idx)
    (tmp_path / "train-images.idx").write_bytes(pixels)
    if expected is None:
        with refuses(DataError, classes[0]):
            load_npz(tmp_path / "a.npz", classes=classes)
        with refuses(DataError, classes[0]):
            load_idx(tmp_path, classes=classes)
        return
    assert load_npz(tmp_path / "a.npz", classes=classes).labels.tolist() == expected
    if min(labels) >= 0:
        assert load_idx(tmp_path, classes=classes).labels.tolist() == expected


def test_an_archive_that_lists_its_classes_is_read_by_them(tmp_path: Path) -> None:
    x, y, path = np.zeros((3, 2), np.uint8), np.array([0, 1, 1]), tmp_path / "a.npz"
    listed: list[tuple[Any, tuple[str, ...] | None, list[int]]] = [
        (["1", "0"], None, [0, 1, 1]),  # as `terrine ensemble split` writes it
        (np.array([1, 0]), None, [1, 0, 0]),
        (["b", "a"], ("a", "b"), [1, 0, 0]),
        ([TWO, "b"], ("b", ONE), [1, 0, 0]),
    ]
    for own, classes, expected in listed:
        np.savez(path, x=x, y=y, classes=np.array(own))
        assert load_npz(path, classes=classes).labels.tolist() == expected
    np.savez(path, x=x, y=y, classes=np.array(["a", "c"]))
    with refuses(DataError, "'c'", "record", "1"):
        load_npz(path, classes=("a", "b"))
    np.savez(path, x=x, y=y + 1, classes=np.array(["a", "b"]))
    with refuses(DataError, "2", "record", "1"):
        load_npz(path, classes=("a", "b", "c"))


# ------------------------------------------------------------------------ names in either form

PERSON = {"name": "person", "role": "group"}


def test_names_are_compared_in_one_form(tmp_path: Path) -> None:
    described = schema(
        DOSE,
        {"name": "gr\u00f6\u00dfe", "role": "categorical", "values": [ONE, "Mayer"]},
        PERSON,
        label=(f"{TWO}s", "no"),
    )
    rows = [f"1,{ONE},{TWO},no", f"2,{TWO},{ONE},{ONE}s", f"3,Mayer,Ada,{TWO}s"]
    path = table(tmp_path / "t.csv", "dose,gro\u0308\u00dfe,person,ill", *rows)
    data = load_table(path, described)
    assert data.people == (ONE, "Ada")
    assert data.groups is not None
    assert data.groups.tolist() == [0, 0, 1]
    assert data.labels.tolist() == [1, 0, 0]
    assert data.inputs[:, 1:].tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert load_people(path, described) == [ONE, "Ada"]
    frame = pd.read_csv(path)
    assert encode_frame(frame, described).tolist() == data.inputs.tolist()
    pa.parquet.write_table(pa.Table.from_pandas(frame), tmp_path / "t.parquet")
    assert load_table(tmp_path / "t.parquet", described).people == data.people
    assert encode_table(tmp_path / "t.parquet", described).tolist() == data.inputs.tolist()
    assert name_digests([ONE], b"key").tolist() == name_digests([TWO], b"key").tolist()


def test_a_schema_is_proposed_with_one_form(tmp_path: Path) -> None:
    rows = [f"{name},{i},{i % 2}" for i, name in enumerate([ONE, TWO, "Mayer"] * 4)]
    path = table(tmp_path / "t.csv", "gro\u0308\u00dfe,dose,ill", *rows)
    found = propose_schema(path, label="ill", keep=["gr\u00f6\u00dfe"]).schema.columns[0]
    assert (found.name, found.values) == ("gr\u00f6\u00dfe", ("Mayer", ONE))


def test_people_of_arrays_and_folders_of_pictures_have_one_form(tmp_path: Path) -> None:
    from PIL import Image

    group = np.array([ONE, TWO, "Ada"])
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2), np.uint8), y=np.array([0, 1, 1]), group=group)
    data = load_npz(tmp_path / "a.npz", classes=("a", "b"))
    assert data.people == (ONE, "Ada")
    assert load_groups(tmp_path / "a.npz") == [ONE, "Ada"]
    pictures = tmp_path / "pictures"
    for name in (TWO, "Ada"):
        (pictures / name).mkdir(parents=True)
        Image.new("L", (2, 2)).save(pictures / name / "1.png")
    assert class_folders(pictures) == ["Ada", ONE]
    image = ImageFormat(height=2, width=2, grey=True)
    assert load_image_classes(pictures, image, classes=["Ada", ONE]).labels.tolist() == [0, 1]
    (pictures / ONE).mkdir()
    with refuses(DataError, repr(ONE)):
        load_image_classes(pictures, image, classes=["Ada", ONE])


PEOPLE: list[tuple[list[str], tuple[int, int] | None]] = [
    (["ada", "bob", "Eve"], None),
    (["7", "8", "70"], None),
    (["7", "7.0", "007", "8"], (3, 1)),
    (["Ada", "ADA", "bob", "b\u200bob", "eve"], (4, 2)),
    (["Ada  Lovelace", "ada lovelace"], (2, 1)),
]
"""Names in a column of people; how many would coincide, and as how many people."""


@pytest.mark.parametrize(("names", "expected"), PEOPLE)
def test_people_who_may_be_one_are_counted_and_kept_apart(
    tmp_path: Path, names: list[str], expected: tuple[int, int] | None
) -> None:
    path = table(tmp_path / "t.csv", "dose,person,ill", *(f"1,{name},no" for name in names))
    said = list[str]()
    data = load_table(path, schema(DOSE, PERSON), said.append)
    assert data.people == tuple(names)
    assert (said == []) == (expected is None)
    if expected:
        holds(said, "person", *expected)
        assert not any(name in " ".join(said) for name in names if name.isalpha())


# ----------------------------------------------------------------------------- numbers and dates

NUMBERS = {
    "12": 12.0,
    "-1.5": -1.5,
    "+.5": 0.5,
    "5.": 5.0,
    "1e3": 1000.0,
    "2E-1": 0.2,
    "1_2": None,
    "1_000.5": None,
    "\u0661\u0662": None,
    "\uff11": None,
    "infinity": None,
    "0x10": None,
    "1 2": None,
    "": None,
}


@pytest.mark.parametrize(("text", "expected"), NUMBERS.items())
def test_numbers_have_a_strict_grammar(tmp_path: Path, text: str, expected: float | None) -> None:
    found = parse_number(text)
    assert np.isnan(found) if expected is None else found == expected
    wide = {**DOSE, "low": -2000, "high": 2000}
    path = table(tmp_path / "t.csv", "dose,ill", "0,no", f'"{text}",yes')
    if expected is not None:
        assert encode_table(path, schema(wide))[1, 0] == pytest.approx((expected + 2000) / 4000)
    elif text:
        with refuses(DataError, "dose", "3"):
            encode_table(path, schema(wide))


def proposed(folder: Path, name: str, values: list[str]) -> RoleGuess:
    """What is proposed for a column of these values."""
    rows = (f"{value},{i % 7},{'ab'[i % 2]}" for i, value in enumerate(values))
    path = table(folder / "t.csv", f"{name},dose,ill", *rows)
    return propose_schema(path, label="ill", keep=[name], note=lambda _: None).guesses[0]


MARKED: list[tuple[str, list[str], dict[str, Any], tuple[str, ...] | None]] = [
    (",", ["950", "1,234", "12,500"], {"commas": "thousands", "high": 12500}, ("1234", "decimal")),
    (",", ["950", "1,234,567"], {"commas": "thousands", "high": 1234567}, None),
    (",", ["950", "1,234.5"], {"commas": "thousands", "high": 1234.5}, None),
    (",", ["3,14", "2", "0,125"], {"commas": "decimal", "high": 3.14}, ("0.125", "--ignore")),
    (",", ["3,14", "2.5"], {"role": "categorical"}, None),
    (",", ["a, b", "c"], {"role": "categorical"}, None),
    (";", ["3,14", "2"], {"commas": None, "high": 3.14}, None),
    (";", ["1,125", "2"], {"commas": None, "high": 2}, ("1.125", "thousands")),
    (";", ["1,234,567", "2"], {"commas": "thousands", "high": 1234567}, None),
    (";", ["1.234", "950"], {"commas": None, "high": 950}, ("points", "1.234")),
    (";", ["1.234,5", "950"], {"commas": None, "high": 1234.5}, None),
    (",", [f"1 {n}" for n in range(100, 130)], {"role": "ignored"}, ("1234.5",)),
    (",", [f"1'{n}" for n in range(100, 130)], {"role": "ignored"}, ("1234.5",)),
    (",", [f"${n}" for n in range(100, 130)], {"role": "ignored"}, ("1234.5",)),
    (",", [f"{n} %" for n in range(30)], {"role": "ignored"}, ("1234.5",)),
    (",", ["10%", "50%"], {"role": "categorical"}, None),
]
"""What separates fields, a column's values, what is proposed for it, and what is asked."""


@pytest.mark.parametrize(("delimiter", "values", "expected", "asked"), MARKED)
def test_commas_in_numbers_are_read_where_it_is_clear_and_asked_about_where_not(
    tmp_path: Path,
    delimiter: str,
    values: list[str],
    expected: dict[str, Any],
    asked: tuple[str, ...] | None,
) -> None:
    rows = [
        f'"{value}"{delimiter}{i % 7}{delimiter}{"ab"[i % 2]}'
        for i, value in enumerate(values * (40 // len(values)))
    ]
    path = table(tmp_path / "t.csv", delimiter.join(("sum", "dose", "ill")), *rows)
    proposal = propose_schema(path, label="ill", note=lambda _: None)
    guess = proposal.guesses[0]
    expected = {"role": "numeric", **expected}
    assert {key: getattr(guess.column, key) for key in expected} == expected
    assert (guess.doubt is None) == (asked is None), guess.doubt
    if asked:
        holds(guess.doubt or "", *asked)
    encoded = load_table(path, proposal.schema, lambda _: None).inputs
    frame = pd.read_csv(path, sep=delimiter, dtype=str)
    if delimiter == "," and guess.column.role == "numeric":
        assert encoded[:, 0].max() == 1
        assert np.array_equal(encode_frame(frame, proposal.schema), encoded)
        pa.parquet.write_table(pa.Table.from_pandas(frame), tmp_path / "t.parquet")
        assert np.array_equal(encode_table(tmp_path / "t.parquet", proposal.schema), encoded)


def test_commas_that_the_schema_does_not_know_are_named_with_both_meanings(tmp_path: Path) -> None:
    for text in ("1,234", "3,14", "1,234,567"):
        path = table(tmp_path / "t.csv", "dose,ill", "1,no", f'"{text}",no')
        with refuses(DataError, 3, "dose", repr(text), "thousands", "decimal"):
            load_table(path, schema(DOSE))
    wide = {**DOSE, "high": 2000, "commas": "thousands"}
    path = table(tmp_path / "t.csv", "dose;ill", "1,000;no", "500;no")
    assert load_table(path, schema(wide), lambda _: None).inputs[:, 0].tolist() == [0.5, 0.25]
    for text in ("1,23", "01,234", "1,2345"):
        path = table(tmp_path / "t.csv", "dose,ill", f'"{text}",no')
        with refuses(DataError, 2, "dose", repr(text)):
            load_table(path, schema(wide))


WEEK = [f"2020-01-0{day}" for day in range(1, 8)]
ASKED: list[tuple[str, list[str], tuple[str, ...] | None]] = [
    ("age", ["18", "44", "80", "61"] * 3, None),
    ("age", ["18", "44", "80", "-999"] * 3, ("-999",)),
    ("age", ["18", "44", "80", "999"] * 3, ("999",)),
    ("age", ["18", "44", "80", "99", "30"] * 3, None),
    ("age", ["18", "44", "80", "-99", "-999"] * 3, ("-99", "-999")),
    ("heat", ["-20.5", "3", "30", "-9999.0"] * 3, ("-9999",)),
    ("heat", ["-20", "-9", "30", "12"] * 3, None),
    ("count", ["0", "600", "900", "999", "30"] * 3, None),
    ("end", [*WEEK], None),
    ("end", [*WEEK, "9999-12-31"], ("9999-12-31",)),
    ("end", [*WEEK, "1900-01-01", "2999-12-31"], ("1900-01-01", "2999-12-31")),
    ("born", ["1931-02-03", "1950-05-01", "1999-07-03", "2020-01-02"] * 2, None),
    ("answer", ["Yes", "yes", "YES", "no"] * 3, ("'Yes'", "'yes'", "'YES'")),
    ("answer", ["yes", "no"] * 3, None),
    ("answer", ["yes", "ye\u200bs", "no"] * 3, ("'yes'", "'ye<U+200B>s'")),
    ("country", ["DE", "FR", "NA", "ZA"] * 3, ("NA", "3")),
    ("code", ["DE", "FR", "NA", "ZA"] * 3, ("NA", "3")),
    ("ward", ["east", "west", "NA", "north"] * 3, None),
]
"""A column of a public table, and what is asked of it."""


@pytest.mark.parametrize(("name", "values", "asked"), ASKED)
def test_what_may_be_meant_otherwise_is_asked(
    tmp_path: Path, name: str, values: list[str], asked: tuple[str, ...] | None
) -> None:
    doubt = proposed(tmp_path, name, values).doubt
    if asked is None:
        assert doubt is None or "?" not in doubt or not says(doubt, "stand")
        assert doubt is None
    else:
        holds(doubt or "", *asked)


# ------------------------------------------------------------------- columns that cannot be read

LISTS = pa.table(
    {
        "scan": [[1, 2], [3]] * 20,
        "raw": [b"\x00", b"\x01"] * 20,
        "dose": list(range(40)),
        "at": [{"x": 1}, None] * 20,
        "ill": ["no", "yes"] * 20,
    }
)


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_columns_of_lists_and_bytes_are_left_out_and_stop_no_other(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    if name == "t.parquet":
        pa.parquet.write_table(LISTS, path)
    else:
        with pa.ipc.new_file(path, LISTS.schema) as writer:
            writer.write_table(LISTS)
    for ignore in ([], ["scan", "raw", "at", "dose"], ["scan", "at"]):
        kept = ["dose"] if "dose" not in ignore else []
        if not kept:
            with refuses(DataError, "dose", "specified"):
                propose_schema(path, label="ill", ignore=ignore)
            continue
        found = propose_schema(path, label="ill", ignore=ignore, keep=kept)
        roles = {column.name: column.role for column in found.schema.columns}
        assert roles == {
            **dict.fromkeys(("scan", "raw", "at"), "ignored"),
            "dose": "numeric",
            "ill": "label",
        }
        holds(next(g.why for g in found.guesses if g.column.name == "raw"), "binary")
        assert load_table(path, found.schema).inputs.shape == (40, 1)
    for kept in (["scan"], ["at"]):
        with refuses(DataError, kept[0], "holds"):
            propose_schema(path, label="ill", keep=kept)
    with refuses(DataError, "raw", "binary", "--ignore"):
        load_table(path, schema({**DOSE, "name": "raw"}))


def test_bytes_in_no_known_encoding_stop_their_own_column_alone(tmp_path: Path) -> None:
    path, said = tmp_path / "t.csv", list[str]()
    rows = (b"%d,M\x81ller,%s" % (i, b"no" if i % 2 else b"yes") for i in range(30))
    path.write_bytes(b"\n".join([b"dose,who,ill", *rows, b""]))
    with refuses(DataError, 2, "who", "0x81", "iconv", "--ignore"):
        propose_schema(path, label="ill", note=said.append)
    found = propose_schema(path, label="ill", ignore=["who"], keep=["dose"], note=said.append)
    encoded = load_table(path, found.schema, said.append).inputs
    assert encoded.shape == (30, 1)
    assert np.array_equal(encode_table(path, found.schema, said.append), encoded)
    with refuses(DataError, 2, "who", "0x81"):
        load_table(path, schema(DOSE, {"name": "who", "role": "group"}), said.append)
    path.write_bytes(b"dose,w\x81,ill\n1,a,no\n")
    with refuses(DataError, "header", "0x81"):
        propose_schema(path, label="ill", ignore=["w"], note=said.append)


def test_a_quote_after_a_space_stops_its_own_column_alone(tmp_path: Path) -> None:
    rows = [f'{i}, "x",{"ab"[i % 2]}' for i in range(30)]
    path = table(tmp_path / "t.csv", "dose,who,ill", *rows)
    with refuses(DataError, 2, "who", "quote", "--ignore"):
        propose_schema(path, label="ill")
    found = propose_schema(path, label="ill", ignore=["who"], keep=["dose"])
    assert load_table(path, found.schema).inputs.shape == (30, 1)


# ------------------------------------------------------------------------------------- labels

PRICES = [str(3 * price + 1000) for price in range(352)]


@pytest.mark.parametrize(
    ("prices", "kept"),
    [
        (PRICES, False),
        ([f"{price}.5" for price in PRICES[:30]], False),
        ([str(digit) for digit in range(10)], True),
        ([f"c{price}" for price in PRICES], True),
    ],
)
def test_a_quantity_is_no_label(tmp_path: Path, prices: list[str], kept: bool) -> None:
    path = table(
        tmp_path / "t.csv", "dose,price", *(f"{i % 9},{p}" for i, p in enumerate(prices * 2))
    )
    if kept:
        assert len(propose_schema(path, label="price").schema.columns[1].values or ()) == len(
            prices
        )
        return
    with refuses(DataError, "price", str(len(prices)), "ranges", "--bins") as refused:
        propose_schema(path, label="price")
    assert len(str(refused.value)) < 600


LABELLED: list[tuple[tuple[str, ...], list[str], list[int] | tuple[str, ...]]] = [
    (("0", "1"), ["0.0", "1.0"], [0, 1]),
    (("0.0", "1.0"), ["1", "0"], [1, 0]),
    (("no", "yes"), ["yes", "no."], [1, 0]),
    (("no", "yes"), ["no", ""], ("3", "''", "Leave")),
    (("no", "yes"), ["no", "NA"], ("3", "'NA'", "Leave")),
    (("no", "yes"), ["no", "YES"], ("3", "'YES'", "capitals")),
    (("no", "yes"), ["no", "maybe"], ("3", "'maybe'")),
    (tuple(PRICES), ["1000", "1001"], ("3", "'1001'", "332", "quantity", "--bins")),
]
"""The classes of a schema, labels of a file, and which they are, or what a refusal says."""


@pytest.mark.parametrize(("classes", "labels", "expected"), LABELLED)
def test_labels_are_found_however_they_are_written(
    tmp_path: Path,
    classes: tuple[str, ...],
    labels: list[str],
    expected: list[int] | tuple[str, ...],
) -> None:
    path = table(tmp_path / "t.csv", "dose,ill", *(f"1,{label}" for label in labels))
    described = schema(DOSE, label=classes)
    if isinstance(expected, list):
        assert load_table(path, described).labels.tolist() == expected
        return
    with refuses(DataError, "ill", *expected) as refused:
        load_table(path, described)
    assert len(str(refused.value)) < 600


CUT: list[tuple[list[str], str, list[int] | tuple[str, ...]]] = [
    (["99.99", "100", "249", "250", "1e3", "-5", "+100.0", "007"], ",", [0, 1, 1, 2, 2, 0, 1, 0]),
    (["99,99", "100,0", "1.250,5"], ";", [0, 1, 2]),
    (["under 100", "250 and more", "100 to 250", "100"], ",", [0, 2, 1, 1]),
    (["7", ""], ",", ("3", "''", "Leave")),
    (["7", "NA"], ",", ("3", "'NA'", "Leave")),
    (["7", "cheap"], ",", ("3", "'cheap'", "number")),
    (["7", "1_000"], ",", ("3", "'1_000'", "number")),
    (["7", "1e999"], ",", ("3", "'1e999'", "number")),
    (["7", "inf"], ",", ("3", "'inf'", "number")),
    (["99,99", "100.5"], ";", ("3", "'100.5'", "number")),
]
"""Prices of a file, what separates its fields, and their classes or what a refusal says."""


@pytest.mark.parametrize(("prices", "delimiter", "expected"), CUT)
def test_a_quantity_is_cut_into_classes_by_the_edges_of_a_schema(
    tmp_path: Path, prices: list[str], delimiter: str, expected: list[int] | tuple[str, ...]
) -> None:
    label = {"name": "price", "role": "label", "edges": [100, 250]}
    described = TableSchema.model_validate({"columns": [DOSE, label]})
    lines = [delimiter.join(("dose", "price")), *(delimiter.join(("1", each)) for each in prices)]
    path = table(tmp_path / "t.csv", *lines)
    if isinstance(expected, tuple):
        with refuses(DataError, "price", *expected):
            load_table(path, described)
        return
    found = load_table(path, described)
    assert found.classes == ("under 100", "100 to 250", "250 and more")
    assert found.labels.tolist() == expected
    typed = tmp_path / "t.parquet"
    numbers = [parse_number(each) for each in prices]
    if np.isfinite(numbers).all():
        pd.DataFrame({"dose": 1.5, "price": numbers}).to_parquet(typed)
        assert load_table(typed, described).labels.tolist() == expected


def test_a_schema_is_proposed_with_edges(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "dose,price", *(f"{i % 9},{p}" for i, p in enumerate(PRICES)))
    found = propose_schema(path, label="price", bins=[1500, 1800.5])
    column = found.schema.columns[1]
    assert column.values == ("under 1500", "1500 to 1800.5", "1800.5 and more")
    holds(found.guesses[1].why, "167", "100", "85")
    assert found.guesses[1].doubt is None
    assert found.declared, "the classes were not taken from the table"
    (tmp_path / "s.json").write_text(found.to_json())
    assert read_schema(tmp_path / "s.json") == found.schema
    binary = propose_schema(path, label="price", bins=[1500]).schema.columns[1]
    assert binary.values == ("under 1500", "1500 and more")
    empty = propose_schema(path, label="price", bins=[10, 1500]).guesses[1]
    holds(empty.doubt or "", "under", 10)
    with refuses(DataError, "--classes", "--bins"):
        propose_schema(path, label="price", bins=[1500], classes=["a", "b"])
    path = table(tmp_path / "u.csv", "dose", "1", "2")
    absent = propose_schema(path, label="price", bins=[1500]).schema.columns[1]
    assert absent == binary
    path = table(tmp_path / "w.csv", "dose,price", "1,cheap", "2,7")
    with refuses(DataError, "price", "'cheap'", "--bins"):
        propose_schema(path, label="price", bins=[1500])
    path = table(tmp_path / "g.csv", "dose,price", "1,", "2,7", "3,9")
    holds(propose_schema(path, label="price", bins=[8]).guesses[1].doubt or "", 1, "label", "row")


def test_a_category_is_found_with_and_without_a_point(tmp_path: Path) -> None:
    described = schema({"name": "floor", "role": "categorical", "values": ["1", "2.0", "03"]})
    path = table(tmp_path / "t.csv", "floor,ill", "1.0,no", "2,no", "03,no", "3,no")
    assert encode_table(path, described).argmax(axis=1).tolist() == [0, 1, 2, 3]


def test_a_column_that_only_the_private_file_has_is_said(tmp_path: Path) -> None:
    said = list[str]()
    path = table(tmp_path / "t.csv", "dose,weight,height,ill", "1,2,3,no")
    load_table(path, schema(DOSE), said.append)
    holds(said, "weight", "height")
    said.clear()
    load_table(table(tmp_path / "same.csv", "dose,ill", "1,no"), schema(DOSE), said.append)
    assert not said


def test_a_missing_column_that_is_written_otherwise_is_named(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "Do\u200bse,weight,ill", "1,2,no")
    with refuses(DataError, "dose", "'Do<U+200B>se'"):
        load_table(path, schema(DOSE))


FOLDED: list[tuple[Callable[[str], object], str, object]] = [
    (fold, "007", "7"),
    (fold, "-0", "0"),
    (fold, "7.50", "7.50"),
    (fold, "\uff37ard\u00a01", "ward 1"),
    (lambda text: map_class_numbers(json.loads(text)), '["a", "b"]', None),
    (lambda text: map_class_numbers(json.loads(text)), '["1", "0"]', {1: 0, 0: 1}),
]


@pytest.mark.parametrize(("function", "given", "expected"), FOLDED)
def test_spellings_are_folded(
    function: Callable[[str], object], given: str, expected: object
) -> None:
    assert function(given) == expected
