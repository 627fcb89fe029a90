"""Small files as people have them: each is read, or the fault that it has is named.

A row is what the file holds, how it is read, and what is made of it, or the words of the refusal.
"""

from __future__ import annotations

import bz2
import gzip
import io
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow import feather

from support.wording import holds, refuses
from terrine_models.data.arrays import DataError, load_idx, load_inputs, load_npz
from terrine_models.tables.loading import load_table
from terrine_models.tables.proposal import propose_schema
from terrine_server.cli.console import CommandError
from terrine_server.cli.plan import load_votes
from terrine_server.privacy import ParameterError
from terrine_tables.encoding import encode_table
from terrine_tables.files import check_table, has_column, open_table
from terrine_tables.formats import is_table

PIXELS = np.zeros((2, 4), np.uint8)
OBJECTS = np.array([[{}], [1]], dtype=object)
Y = np.array([0, 1])


def _save(path: Path, content: np.ndarray | Mapping[str, Any] | bytes) -> None:
    with path.open("wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        elif isinstance(content, Mapping):
            np.savez(file, **content)
        else:
            np.save(file, content, allow_pickle=True)


def _archive(path: Path) -> object:
    return load_npz(path, classes=("a", "b")).inputs.shape


def _inputs(path: Path) -> object:
    return load_inputs(path).shape


def _votes(path: Path) -> object:
    votes = load_votes(path, [])
    return votes.counts.shape, votes.teachers


def _declared(**changed: object) -> dict[str, Any]:
    return {"x": np.zeros((2, 4)), "y": Y, "low": 0, "high": 1, **changed}


READ: dict[str, tuple[str, Any, Callable[[Path], object], object]] = {
    "an archive named in capitals": ("X.NPZ", {"x": PIXELS}, _inputs, (2, 4)),
    "an array named in capitals": ("X.NPY", PIXELS, _inputs, (2, 4)),
    "counts in an .npy": ("votes.npy", np.array([[3, 1], [0, 4]]), _votes, ((2, 2), 4)),
    "counts as floats": ("votes.npy", np.array([[3.0, 1.0], [0.0, 4.0]]), _votes, ((2, 2), 4)),
    "the widest range": ("x.npz", _declared(low=-1.5e38, high=1.5e38), _archive, (2, 4)),
}


@pytest.mark.parametrize("what", READ)
def test_it_is_read(what: str, tmp_path: Path) -> None:
    name, content, reader, expected = READ[what]
    _save(tmp_path / name, content)
    assert reader(tmp_path / name) == expected


REFUSED: dict[str, tuple[str, Any, Callable[[Path], object], tuple[object, ...]]] = {
    "no dimension": ("x.npy", np.float64(3), _inputs, ("shape", "[]")),
    "one dimension": ("x.npy", np.zeros(4), _inputs, ("shape", "[4]")),
    "no rows": ("x.npy", np.zeros((0, 4)), _inputs, ("shape", "[0, 4]")),
    "rows of nothing": ("x.npy", np.zeros((4, 0)), _inputs, ("shape", "[4, 0]")),
    "five dimensions": ("x.npz", _declared(x=np.zeros((2, *[1] * 5))), _archive, ("four",)),
    "a scalar in an archive": ("x.npz", _declared(x=np.float32(1)), _archive, ("shape", "[]")),
    "empty rows in an archive": ("x.npz", _declared(x=np.zeros((2, 0))), _archive, ("[2, 0]",)),
    "no rows in an archive": ("x.npz", {"x": PIXELS[:0], "y": Y[:0]}, _archive, ("no", "records")),
    "a range of doubles": ("x.npz", _declared(low=-1e308, high=1e308), _archive, ("float32",)),
    "a range upside down": ("x.npz", _declared(low=1, high=0), _archive, ("low", "high")),
    "a range that is no number": ("x.npz", _declared(high=np.nan), _archive, ("high", "nan")),
    "a range without end": ("x.npz", _declared(high=np.inf), _archive, ("high", "inf")),
    "labels of other records": ("x.npz", {"x": PIXELS, "y": Y[:1]}, _archive, ("uint8",)),
    "labels as floats": ("x.npz", {"x": PIXELS, "y": Y / 1}, _archive, ("integer", "record")),
    "inputs of text": ("x.npz", {"x": np.array(["a"] * 2), "y": Y}, _archive, ("numbers",)),
    "people of other records": (
        "x.npz",
        {"x": PIXELS, "y": Y, "group": Y[:1]},
        _archive,
        ("group", "shape"),
    ),
    "one class": ("x.npz", {"x": PIXELS, "y": Y, "classes": ["one"]}, load_npz, ("two", "classes")),
    "Python objects": ("x.npy", OBJECTS, _inputs, ("x.npy", "objects")),
    "Python objects in an archive": ("x.npz", {"x": OBJECTS, "y": Y}, _archive, ("objects",)),
    "Python objects as votes": ("votes.npz", {"counts": OBJECTS}, _votes, ("objects",)),
    "text as an array": ("x.npy", b"1,2\n3,4\n", _inputs, ("x.npy", "NumPy")),
    "text as an archive": ("x.npz", b"1,2\n3,4\n", _archive, ("x.npz", "NumPy")),
    "an array as an archive": ("x.npz", PIXELS, _archive, ("numpy.savez", "[2, 4]")),
    "an archive without its suffix": ("x.bin", {"x": PIXELS}, load_idx, ("x.bin", "IDX")),
    "votes that are no numbers": (
        "votes.npz",
        {"counts": np.array([[np.nan, 1.0]])},
        _votes,
        ("whole",),
    ),
    "votes without end": ("votes.npy", np.array([[np.inf, 1.0]]), _votes, ("larger",)),
    "shares instead of votes": ("votes.npy", np.array([[0.25, 0.75]]), _votes, ("whole",)),
    "no votes": ("votes.npy", np.zeros((0, 3), int), _votes, ("[0, 3]",)),
    "one row of votes": ("votes.npy", np.array([3, 1]), _votes, ("[2]",)),
    "votes the other way round": (
        "votes.npy",
        np.array([[3, 0, 2], [1, 4, 2]]),
        _votes,
        ("transpose", "[2, 3]"),
    ),
    "labels of each teacher": (
        "votes.npy",
        np.array([[3, 0, 2], [1, 4, 0], [1, 1, 1]]),
        _votes,
        ("[teachers,", "queries]", "bincount"),
    ),
    "labels that are no numbers": (
        "votes.npz",
        {"counts": np.array([[3, 1]]), "labels": np.array([np.nan])},
        _votes,
        ("Labels",),
    ),
    "votes under another name": ("votes.npz", {"votes": Y}, _votes, ("counts", "votes")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_its_own_fault_is_named(what: str, tmp_path: Path) -> None:
    name, content, reader, words = REFUSED[what]
    _save(tmp_path / name, content)
    kind = (
        DataError
        if reader is not _votes or "objects" in words
        else ParameterError
        if "Labels" in words
        else CommandError
    )
    with refuses(kind, *words) as refused:
        reader(tmp_path / name)
    assert "allow_pickle" not in str(refused.value), "NumPy's advice is not safe"


ROWS = {"a": [1, 2], "b": ["x", "y"]}
TABLE = "a,b\n1,x\n2,y\n"


def zipped(name: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, "")
    return packed.getvalue()


def _stream(path: Path) -> None:
    with pa.ipc.new_stream(path, pa.table(ROWS).schema) as writer:
        writer.write_table(pa.table(ROWS))


TABLES: dict[str, tuple[str, str | Callable[[Path], object]]] = {
    "an Arrow stream": ("t.arrow", _stream),
    "Feather": ("t.feather", lambda path: feather.write_feather(pa.table(ROWS), path)),
    "Excel's hint": ("t.csv", "sep=;\na;b\n1;x\n2;y\n"),
    "Excel's hint of commas": ("T.CSV", "SEP=,\r\na,b\r\n1,x\r\n2,y\r\n"),
    "a header of braces": ("t.csv", TABLE.replace("a,b", "{a},[b]")),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_table_is_read(what: str, tmp_path: Path) -> None:
    name, content = TABLES[what]
    path = tmp_path / name
    path.write_text(content) if isinstance(content, str) else content(path)
    assert is_table(path)
    with open_table(path) as file:
        assert [each.strip("{}[]") for each in file.first] == ["a", "b"]
        batches = list(file.batches(file.first, True))
        assert [str(each) for batch in batches for each in batch.column(0).to_pylist()] == [
            "1",
            "2",
        ]
        assert [each for batch in batches for each in batch.column(1).to_pylist()] == ["x", "y"]


NO_TABLES: dict[str, tuple[str, str | bytes, tuple[object, ...]]] = {
    "a space before a delimiter": ("t.csv", '"a" ,"b"\n1,x\n', ("first", "space")),
    "a title": ("t.csv", f"Our survey\n\n{TABLE}", ("title", 3, "+3")),
    "a title of two lines": ("t.csv", f"Our survey\nof 2020\n{TABLE}", ("title", 3)),
    "a header without end": ("t.csv", "a" * 2**20 + ",b\n1,x\n", ("1,048,576",)),
    "Parquet that is broken": ("t.csv", b"PAR1\x15\x04\0\xffPAR1", ("Parquet",)),
    "UTF-16 that breaks off": ("t.csv", TABLE.encode("utf-16") + b"\x00\xd8\x00", ("UTF-16",)),
}


@pytest.mark.parametrize("what", NO_TABLES)
def test_what_is_no_table_is_named(what: str, tmp_path: Path) -> None:
    name, content, words = NO_TABLES[what]
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with refuses(DataError, name, *words):
        check_table(path)


OTHER_FORMATS: dict[str, str | bytes] = {
    "a.json": '[{"a": 1}, {"a": 2}]\n',
    "page.csv": "<!DOCTYPE html>\n<html>\n",
    "packed.csv.gz": gzip.compress(TABLE.encode(), mtime=0),
    "packed.csv.bz2": bz2.compress(TABLE.encode()),
    "packed.csv.xz": b"\xfd7zXZ\0\0",
    "packed.csv": zipped("t.csv"),
    "a.xlsx": zipped("xl/workbook.xml"),
    "a.xls": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    "a.orc": b"ORC\x03\x00",
    "a.dta": b"\x72\x02\x01\0" + bytes(9),
    "a.sav": b"$FL2@(#) SPSS DATA FILE" + bytes(9),
    "a.sqlite": b"SQLite format 3\0",
    "a.pickle": b"\x80\x04\x95" + bytes(9),
}


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_a_table_in_another_format_is_refused_with_a_way_to_convert_it(
    name: str, tmp_path: Path
) -> None:
    content, path = OTHER_FORMATS[name], tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with refuses(DataError, name, "CSV", "JSON", "Parquet", "Arrow", "to_parquet"):
        check_table(path)
    with refuses(DataError, name, "CSV", "JSON", "Parquet", "Arrow", "to_parquet"):
        load_idx(path)


def test_the_way_to_convert_a_table_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my t.dta"
    pd.DataFrame(ROWS).to_stata(path, write_index=False)
    with refuses(DataError, "to_parquet") as refused:
        check_table(path)
    found = re.search(
        r"(pandas\.read_)…(\('my t\.dta'\)\.to_parquet\('table\.parquet'\))", str(refused.value)
    )
    assert found is not None
    monkeypatch.chdir(tmp_path)
    eval(f"{found[1]}stata{found[2]}", {"pandas": pd})
    with open_table(tmp_path / "table.parquet") as file:
        assert file.first == ["a", "b"]


@pytest.mark.parametrize("text", ["ORCID,b\n1,x\n", "PAR,b\n1,x\n"])
def test_a_header_that_starts_as_other_files_do_is_a_header(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with open_table(path) as file:
        assert file.first == text.split("\n")[0].split(",")


HEADED = [f"{i},{i % 7},{('no', 'yes')[i % 2]}" for i in range(1, 31)]
LINES = ["a,b,ill", *HEADED]


def _lines(*lines: str, end: str = "\n") -> str:
    return "".join(f"{line}{end}" for line in lines)


HEADERS: dict[str, tuple[str, tuple[object, ...]]] = {
    "as usual": (_lines(*LINES), ()),
    "returns alone": (_lines(*LINES, end="\r"), ()),
    "returns and line feeds": (_lines(*LINES, end="\r\n"), ()),
    "delimiters at the end": (_lines(*(f"{line}," for line in LINES)), ()),
    "several at the end": (_lines(*(f"{line},,," for line in LINES)), ()),
    "joined files": (_lines(*LINES[:9], *LINES[:1], *LINES[9:]), ()),
    "joined files with marks": (_lines(*LINES[:9], f"\ufeff{LINES[0]}", *LINES[9:]), ()),
    "the mark of DOS": (f"{_lines(*LINES)}\x1a", ()),
    "a name of two lines": (_lines('a,"b', 'c",ill', *HEADED), ("b<U+000A>c", "control")),
    "delimiters below alone": (_lines(LINES[0], *(f"{line}," for line in HEADED)), (2, 4, 3)),
    "delimiters above alone": (_lines("a,b,ill,", *HEADED), (2, 3, 4, "remove")),
    "names of rows": (_lines(LINES[0], *(f"r{line}," for line in HEADED)), (2, 4, 3)),
    "a title with delimiters": (_lines("Survey,,", ",,", *LINES), ("title", 3, "+3")),
    "a title of pieces": (_lines("Survey of 2020,,", "by us,,", *LINES), ("title", 3)),
    "spaces": (_lines(*LINES).replace(",", "  "), ("tr", "spaces", "commas")),
    "carets": (_lines(*LINES).replace(",", "^"), ("'^'", "tr")),
    "a hint of colons": (f"sep=:\n{_lines(*LINES).replace(',', ':')}", ("':'", "first", "tr")),
    "one name twice": (_lines("a,a,ill", *HEADED), ("two", "'a'")),
    "one name with spaces": (_lines("a, a ,ill", *HEADED), ("two", "'a'", "spaces")),
    "one name in both forms": (
        _lines("\u00fc,u\u0308,ill", *HEADED),
        ("two", "'\u00fc'", "Unicode"),
    ),
    "another label": (_lines("a,b,sick", *HEADED), ("ill", "--classes")),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_is_found_or_its_fault_is_named(what: str, tmp_path: Path) -> None:
    content, words = HEADERS[what]
    path = tmp_path / "t.csv"
    path.write_text(content, encoding="utf-8", newline="")
    if words:
        with refuses(DataError, "t.csv", *words):
            propose_schema(path, label="ill")
        return
    schema = propose_schema(path, label="ill", keep=["a"], note=lambda _: None).schema
    assert [(c.role, c.low, c.high) for c in schema.columns[:2]] == [
        ("numeric", 1, 30),
        ("numeric", 0, 6),
    ]
    assert all(column.role == "ignored" for column in schema.columns[3:])
    data = load_table(path, schema, note=lambda _: None)
    assert data.inputs.shape == (30, 2)
    assert np.array_equal(encode_table(path, schema, note=lambda _: None), data.inputs)
    assert data.labels.tolist() == [1, 0] * 15


def test_lines_below_a_repeated_header_are_counted_with_it(tmp_path: Path) -> None:
    path, said = tmp_path / "t.csv", list[str]()
    path.write_text(_lines(*LINES, *LINES))
    schema = propose_schema(path, label="ill", keep=["a"], note=said.append).schema
    holds(said, "t.csv", "repeat")
    path.write_text(_lines(*LINES, LINES[0], "1_2,1,no"))
    with refuses(DataError, "line", 33, "a", "'1_2'"):
        load_table(path, schema, note=said.append)
    path.write_text(_lines("a", "a", "b"))
    with open_table(path) as file:
        assert [each for batch in file.batches(["a"], True) for each in batch[0].to_pylist()] == [
            "a",
            "b",
        ]


def test_a_value_that_is_called_as_the_label_is_no_header(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        _lines("a,b,state", *(f"{i},{i % 7},{('ill', 'well')[i % 2]}" for i in range(30)))
    )
    assert not has_column(path, "ill")


def test_a_wrong_line_below_a_hint_is_counted_from_the_files_beginning(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("sep=;\na;b\n1;x\n2;y;z\n")
    with open_table(path) as file, refuses(DataError, 4, 3, 2):
        list(file.batches(file.first, True))
