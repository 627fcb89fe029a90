"""Small files as people have them: each is read, or the fault that it has is named.

A row is what the file holds, how it is read, and what is made of it, or the words of the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, orc
from refusals import refuses

from terrine_models.data.arrays import DataError, load_idx, load_inputs, load_npz
from terrine_models.tables.loading import check_table, is_table
from terrine_protocol.tables.encoding import opened_table
from terrine_server.cli.console import CommandError
from terrine_server.cli.votes import load_votes
from terrine_server.privacy import ParameterError

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
    "the widest range": (
        "x.npz",
        _declared(low=-1.5e38, high=1.5e38),
        _archive,
        (2, 4),
    ),
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
    "no rows in an archive": (
        "x.npz",
        {"x": PIXELS[:0], "y": Y[:0]},
        _archive,
        ("no", "records"),
    ),
    "a range of doubles": ("x.npz", _declared(low=-1e308, high=1e308), _archive, ("float32",)),
    "a range upside down": ("x.npz", _declared(low=1, high=0), _archive, ("low", "high")),
    "a range that is no number": ("x.npz", _declared(high=np.nan), _archive, ("high", "nan")),
    "a range without end": ("x.npz", _declared(high=np.inf), _archive, ("high", "inf")),
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


def _stream(path: Path) -> None:
    with pa.ipc.new_stream(path, pa.table(ROWS).schema) as writer:
        writer.write_table(pa.table(ROWS))


TABLES: dict[str, tuple[str, str | Callable[[Path], object]]] = {
    "an Arrow stream": ("t.arrow", _stream),
    "ORC": ("t.orc", lambda path: orc.write_table(pa.table(ROWS), path)),
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
    with opened_table(path) as file:
        assert [each.strip("{}[]") for each in file.first] == ["a", "b"]
        batches = list(file.batches(file.first, True))
        assert [str(each) for batch in batches for each in batch.column(0).to_pylist()] == [
            "1",
            "2",
        ]
        assert [each for batch in batches for each in batch.column(1).to_pylist()] == ["x", "y"]


NO_TABLES: dict[str, tuple[str, str | bytes, tuple[object, ...]]] = {
    "a space before a delimiter": ("t.csv", '"a" ,"b"\n1,x\n', ("first", "space")),
    "JSON lines": ("t.jsonl", '{"a": 1, "b": "x"}\n{"a": 2}\n', ("JSON", "lines=True")),
    "JSON": ("t.csv", '[{"a": 1}, {"a": 2}]\n', ("JSON", "pandas.read_json")),
    "a page of the Web": ("t.csv", "<!DOCTYPE html>\n<html>\n", ("Web",)),
    "a title": ("t.csv", f"Our survey\n\n{TABLE}", ("title", 3, "+3")),
    "a title of two lines": ("t.csv", f"Our survey\nof 2020\n{TABLE}", ("title", 3)),
    "a header without end": ("t.csv", "a" * 2**20 + ",b\n1,x\n", ("1,048,576",)),
    "Feather 1": ("t.feather", b"FEA1" + bytes(20), ("Feather", "to_parquet")),
    "Stata": ("t.dta", b"<stata_dta><header>", ("Stata", "pandas.read_stata")),
    "a pickle": ("t.csv", b"\x80\x04\x95" + bytes(9), ("pickle",)),
    "an array": ("t.csv", b"\x93NUMPY" + bytes(9), ("NumPy",)),
}


@pytest.mark.parametrize("what", NO_TABLES)
def test_what_is_no_table_is_named(what: str, tmp_path: Path) -> None:
    name, content, words = NO_TABLES[what]
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert is_table(path)
    with refuses(DataError, name, *words):
        check_table(path)


def test_a_folder_of_parquet_is_told_how_to_become_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "t.parquet"
    folder.mkdir()
    with refuses(DataError, "t.parquet", "folder", "pyarrow.dataset"):
        check_table(folder)


def test_a_wrong_line_below_a_hint_is_counted_from_the_files_beginning(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("sep=;\na;b\n1;x\n2;y;z\n")
    with opened_table(path) as file, refuses(DataError, 4, 3, 2):
        list(file.batches(file.first, True))
