"""The format, encoding and delimiter of a file are recognised, or refused with a clear error."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest

from support.tables import npz, zipped
from support.wording import refuses, says
from terrine_models.data.arrays import DataError
from terrine_models.tables.loading import is_table, load_table
from terrine_protocol.tables import Column, TableSchema
from terrine_protocol.tables.columns import parse_number
from terrine_protocol.tables.encoding import encode_table
from terrine_protocol.tables.files import open_file

SCHEMA = TableSchema(
    columns=(
        Column(name="age", role="numeric", low=0, high=100),
        Column(name="dose", role="numeric", low=0, high=10),
        Column(name="ward", role="categorical", values=("A", "B")),
        Column(name="ill", role="label", values=("no", "yes")),
    )
)
PLAIN = "age,dose,ward,ill\n50,2.5,A,no\n20,10,B,yes\n"


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def delimiter(path: Path, width: int = 0) -> str | None:
    """What separates fields, if records have so many."""
    with open_file(path, lambda first: len(first) == width) as file:
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
        gzip.compress(PLAIN.encode(), mtime=0),
        PLAIN.replace("\n", "\r\n").encode(),
        b"|a comment; of UCI\n\n" + PLAIN.encode() + b",,,\n",
        PLAIN.replace("2.5", "2.50").replace("A", "A  ").encode(),
        PLAIN.encode("utf-16"),
        PLAIN.encode("utf-16-le"),
        PLAIN.encode("utf-16-be"),
        PLAIN.encode("utf-32"),
        gzip.compress(PLAIN.encode("utf-16"), mtime=0),
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


def test_two_possible_delimiters_are_both_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "1,5;2,5\n3,5;4,5\n")
    with refuses(DataError, 3, "commas", 2, "semicolons"):
        delimiter(path)
    assert delimiter(path, width=2) == ";"


def test_a_bad_line_is_named_whatever_the_delimiter(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", PLAIN.replace(",", ";").replace("20;", ""))
    with refuses(DataError, "line", 3, 4):
        load_table(path, SCHEMA)
    path = written(tmp_path / "b.csv", PLAIN + '30,1,"A,yes\n40,1,B,no\n')
    with refuses(DataError, 4, "quote"):
        load_table(path, SCHEMA)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("h.parquet", b"PAR1\x15\x04\0\xffPAR1", "Parquet Arrow"),
        ("h.csv", b"PAR1\x15\x04\0\xffPAR1", "Parquet Arrow"),
        (
            "h.csv.gz",
            gzip.compress(b"PAR1\x15\x04\0\xffPAR1", mtime=0),
            "Parquet Unpack",
        ),
        ("h.feather", b"ARROW1\0\0\xff", "Parquet Arrow"),
        ("h.xlsx", zipped(xl__workbook_xml=""), "zip Excel CSV"),
        ("h.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Excel"),
        ("h.csv", npz(), "zip .npz"),
        ("h.csv.bz2", bz2.compress(PLAIN.encode()), "bzip2 Unpack"),
        ("h.csv", b"\xfd7zXZ\0\0", "xz"),
        ("h.csv", PLAIN.encode("utf-16") + b"\x00\xd8\x00", "UTF-16 UTF-8"),
        ("h.csv", b"a,b\n1,\0\n", "text 6"),
        (
            "h.csv",
            PLAIN.encode().replace(b"A", b"\x81"),
            "windows-1252 2 ward 0x81 iconv ENCODING --ignore",
        ),
        ("h.csv", b"K\x81" + PLAIN.encode(), "windows-1252 header 0x81"),
        ("h.csv.gz", gzip.compress(PLAIN.encode().replace(b"10", b"\x9d"), mtime=0), "3 dose 0x9d"),
        ("h.csv.gz", gzip.compress(PLAIN.encode(), mtime=0)[:-9], "read"),
        ("h.csv", "", "records"),
    ],
)
def test_what_is_no_csv_is_named_with_the_way_on(
    tmp_path: Path, name: str, content: str | bytes, said: str
) -> None:
    path = written(tmp_path / name, content)
    assert is_table(path)
    with refuses(DataError, name, *said.split()):
        load_table(path, SCHEMA)


def test_a_name_says_whether_a_file_is_a_table() -> None:
    tables = ("a.csv", "a.CSV", "a.data.gz", "a.test", "a.tsv", "a.txt", "a.xlsx", "a.csv.bz2")
    assert all(is_table(Path(name)) for name in tables)
    assert not any(is_table(Path(name)) for name in ("a.npz", "a.npy", "mnist", "x-idx3-ubyte.gz"))


@pytest.mark.parametrize(
    ("text", "plain", "with_comma"),
    [
        ("3", 3, 3),
        ("-3.5", -3.5, None),
        ("3,5", None, 3.5),
        ("-3,5", None, -3.5),
        ("1.234,5", None, 1234.5),
        ("1.234.567,8", None, 1234567.8),
        ("1.2,5", None, None),
        ("1,234,567", None, None),
        (",5", None, None),
        ("3,", None, None),
        ("1.234", 1.234, None),
        ("three", None, None),
        ("", None, None),
    ],
)
def test_numbers_with_a_decimal_comma(
    text: str, plain: float | None, with_comma: float | None
) -> None:
    for comma, expected in ((False, plain), (True, with_comma)):
        found = parse_number(text, decimal_comma=comma)
        assert np.isnan(found) if expected is None else found == expected


def test_a_column_is_not_read_both_ways(tmp_path: Path) -> None:
    mixed = PLAIN.replace(",", ";").replace("2.5", "2,5").replace("10", "1.5")
    path = written(tmp_path / "a.csv", mixed)
    with refuses(DataError, 3, "dose", "'1.5'", "comma"):
        load_table(path, SCHEMA)
    path = written(tmp_path / "b.csv", PLAIN.replace("2.5", '"2,5"'))
    with refuses(DataError, 2, "dose", "'2,5'", "thousands", "decimal"):
        load_table(path, SCHEMA)


def test_a_file_is_text_whatever_its_name(tmp_path: Path) -> None:
    plain = load_table(written(tmp_path / "a.csv", PLAIN), SCHEMA)
    named = load_table(written(tmp_path / "a.xlsx", PLAIN), SCHEMA)
    assert np.array_equal(named.inputs, plain.inputs)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('30,1, "A",yes', "4 ward quote space"),
        ('30,1, "A, B",yes', "4 5 fields"),
        ('30,1,A,"yes', "4 end"),
    ],
)
def test_quotes_that_open_no_field_or_close_none_are_refused(
    tmp_path: Path, line: str, said: str
) -> None:
    path = written(tmp_path / "a.csv", PLAIN + line + "\n40,1,B,no\n")
    with refuses(DataError, *said.split()):
        load_table(path, SCHEMA)
    with refuses(DataError, *said.split()):
        encode_table(path, SCHEMA)
