"""The format, encoding and delimiter of a file are recognised, or refused with a clear error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.tables import written
from support.wording import says
from terrine_models.tables.loading import load_table
from terrine_protocol.schema import Column, TableSchema
from terrine_tables.encoding import encode_table
from terrine_tables.files import open_table
from terrine_tables.formats import is_table

SCHEMA = TableSchema(
    columns=(
        Column(name="age", role="numeric", low=0, high=100),
        Column(name="dose", role="numeric", low=0, high=10),
        Column(name="ward", role="categorical", values=("A", "B")),
        Column(name="ill", role="label", values=("no", "yes")),
    )
)
PLAIN = "age,dose,ward,ill\n50,2.5,A,no\n20,10,B,yes\n"


def delimiter(path: Path, width: int = 0) -> str | None:
    """What separates fields, if records have so many."""
    with open_table(path, lambda first: len(first) == width) as file:
        return file.delimiter


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", ";").replace("2.5", "2,5"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", "\t").replace("2.5", "2,5"),
        PLAIN.replace(",", "|"),
        PLAIN.replace(",", " ; "),
        PLAIN.replace(",", ";").partition("\n")[2].replace("2.5", "2,5").replace("10", "10,0"),
        "note;" + PLAIN.replace(",", ";").replace("\n5", '\n"a,b;c\nd";5').replace("\n2", "\n;2"),
    ],
)
def test_other_delimiters_are_read_alike_and_stated(tmp_path: Path, text: str) -> None:
    plain = load_table(written(tmp_path / "plain.csv", PLAIN), SCHEMA)
    path, said = written(tmp_path / "other.csv", text), list[str]()
    other = load_table(path, SCHEMA, said.append)
    assert np.array_equal(other.inputs, plain.inputs)
    assert np.array_equal(other.labels, plain.labels)
    assert sum(says(line, "other.csv", "separated") for line in said) == 1
    assert says(said, "other.csv", "header") == (not text.startswith(("age", "note")))
    assert np.array_equal(encode_table(path, SCHEMA), plain.inputs)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + PLAIN.encode(),
        PLAIN.replace("\n", "\r\n").encode(),
        b"|a comment; of UCI\n\n" + PLAIN.encode() + b",,,\n",
        PLAIN.replace("2.5", "2.50").replace("A", "A  ").encode(),
        PLAIN.encode("utf-16"),
        PLAIN.encode("utf-16-le"),
        PLAIN.encode("utf-16-be"),
        PLAIN.encode("utf-32"),
        "\ufeff\ufeff{}\n\ufeff{}\n\ufeff{}\n".format(*PLAIN.split()).encode(),
    ],
)
def test_commas_are_read_without_a_word(tmp_path: Path, content: bytes) -> None:
    plain = load_table(written(tmp_path / "plain.csv", PLAIN), SCHEMA)
    said = list[str]()
    other = load_table(written(tmp_path / "other.csv", content), SCHEMA, said.append)
    assert np.array_equal(other.inputs, plain.inputs)
    assert not said


def test_commas_within_fields_do_not_make_a_file_comma_separated(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "who;note\nx;a, b\ny;c, d\n")
    assert delimiter(path) == ";"
    path = written(tmp_path / "b.csv", "who,note\nx,a; b\ny,c; d\n")
    assert delimiter(path) == ","


def test_a_name_says_whether_a_file_is_a_table() -> None:
    tables = ("a.csv", "a.CSV", "a.data.gz", "a.test", "a.tsv", "a.txt", "a.jsonl", "a.csv.bz2")
    assert all(is_table(Path(name)) for name in tables)
    assert not any(is_table(Path(name)) for name in ("a.npz", "a.npy", "mnist", "x-idx3-ubyte.gz"))
