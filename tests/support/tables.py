"""Tables of many kinds, good and bad; projects of them; and what was read of each."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from support.databases import SECRET_KEY
from terrine_models.data.arrays import DataError, Dataset
from terrine_models.tables.designed import (
    DesignedPool,
    Margins,
    design_pool,
    margin_questions,
    question_widths,
)
from terrine_models.tables.loading import load_table
from terrine_models.tables.proposal import propose_schema
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import (
    Column,
    EnsembleRegister,
    ProjectOpen,
    Role,
    TableSchema,
    TokenCreate,
)
from terrine_server.ledger import Ledger
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.owner.sign_in import Tokens
from terrine_server.settings import Settings
from terrine_tables import formats
from terrine_tables.encoding import encode_table

WARDS = ("cardiology", "geriatrics", "neurology", "surgery")
COLUMNS = (
    "stay_id",
    "patient_id",
    "ward",
    "age",
    "temperature",
    "admitted",
    "discharged",
    "diagnosis",
    "note",
    "smoker",
    "room",
    "readmitted",
)
DEFAULT_ROLES = {
    "stay_id": "ignored",
    "patient_id": "group",
    "ward": "categorical",
    "age": "numeric",
    "temperature": "numeric",
    "admitted": "date",
    "discharged": "date",
    "diagnosis": "categorical",
    "note": "text",
    "smoker": "categorical",
    "room": "categorical",
    "readmitted": "label",
}
"""The roles that a person would choose."""


def stays(
    count: int, patients: int, seed: int = 0, *, delimiter: str = ",", decimal: str = "."
) -> str:
    """A CSV file of `count` stays, with gaps, line breaks within notes and quoted fields."""
    random = np.random.default_rng(seed)
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(COLUMNS)
    ages, wards = random.integers(18, 96, patients), random.integers(0, 4, patients)
    diagnoses = random.integers(10, 22, patients)
    people = [*range(patients), *random.integers(0, patients, count - patients)]
    for stay, person in enumerate(people):
        temperature = f"{36 + 3 * random.random():.1f}".replace(".", decimal)
        admitted = date(2019, 1, 1) + timedelta(days=int(random.integers(0, 2000)))
        ward, old = WARDS[wards[person]], ages[person] > 65
        readmitted = random.random() < 0.1 + 0.3 * old + 0.4 * (ward == "geriatrics")
        row = {
            "stay_id": 700_000 + 3 * stay,
            "patient_id": f"P{100_000 + 37 * person}",
            "ward": ward,
            "age": ages[person] if stay % 50 else "",
            "temperature": temperature if stay % 30 else "NA",
            "admitted": admitted.isoformat(),
            "discharged": f"{admitted + timedelta(days=5):%d.%m.%Y} 11:30",
            "diagnosis": f"{'IEJ'[person % 3]}{diagnoses[person]}",
            "note": f'Stay {stay}: "stable", went home\nwith {person % 9} drugs; Müller, Dr.',
            "smoker": ("yes", "no", "?")[person % 3],
            "room": f"{person % 30:03d}",
            "readmitted": "yes" if readmitted else "no",
        }
        assert tuple(row) == COLUMNS
        writer.writerow(row.values())
    return text.getvalue()


RECORDED = Path(__file__).resolve().parent.parent / "fixtures" / "tables.json"
ADULT = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]
CLINIC = TableSchema.model_validate(
    {
        "columns": [
            {"name": "age", "role": "numeric", "low": 0, "high": 100},
            {"name": "dose", "role": "numeric", "low": 0, "high": 10},
            {"name": "pulse", "role": "numeric", "low": 40, "high": 140, "missing": 60},
            {"name": "ward", "role": "categorical", "values": ["A", "B", "Köln"]},
            {"name": "room", "role": "categorical", "values": ["1", "2.0", "3"]},
            {"name": "smoker", "role": "boolean"},
            {"name": "stage", "role": "ordinal", "values": ["low", "middle", "high"]},
            {
                "name": "day",
                "role": "date",
                "since": "2020-01-01",
                "low": 0,
                "high": 366,
                "order": "day-month-year",
                "parts": ["days", "year", "month", "weekday"],
            },
            {"name": "note", "role": "ignored"},
            {"name": "patient", "role": "group"},
            {"name": "ill", "role": "label", "values": ["no", "yes"]},
        ]
    }
)
NAMES = [column.name for column in CLINIC.columns]
ROWS = (
    ("50", "2.5", "90", "A", "1", "yes", "low", "02.01.2020", "x", "P1", "no"),
    ("-3", "1e1", "", "Köln", "2", "FALSE", "high", "31.12.2099 08:00", "a, b", "P2", "yes"),
    ("?", "NA", "?", "B", "3.0", "", "?", "", "", "P1", "no."),
    ("100.5", "+.5", "140", "Ulm", "9", "1.0", "none", "2020-02-29", 'say "a"', "", "yes"),
    ("007", "5.", "NaN", "", "", "n", "middle", "20200301", "two\nlines", "P3", "no"),
)
NUMBERS = TableSchema.model_validate(
    {
        "columns": [
            {"name": "a", "role": "numeric", "low": 0, "high": 10},
            {"name": "b", "role": "numeric", "low": 0, "high": 10},
            {"name": "y", "role": "label", "values": ["no", "yes"]},
        ]
    }
)


@dataclass(frozen=True)
class Case:
    """A file, and how it is read."""

    name: str
    file: str
    content: bytes
    how: str
    """load, encode or propose."""
    schema: TableSchema | None = None
    options: Any = None
    """Of `propose_schema`."""


def text(
    rows: Sequence[Sequence[str]], header: Sequence[str] | None, delimiter: str = ","
) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerows([header, *rows] if header else rows)
    return file.getvalue().encode()


def flights(count: int, seed: int) -> pd.DataFrame:
    """Departures, as airports publish them."""
    random = np.random.default_rng(seed)
    start = datetime(2013, 1, 1)
    minutes = np.sort(random.integers(0, 365 * 24 * 60, count))
    at = [start + timedelta(minutes=int(each)) for each in minutes]
    air = random.normal(150, 60, count).round()
    air[random.random(count) < 0.03] = np.nan
    return pd.DataFrame(
        {
            "month": [each.month for each in at],
            "hour": [each.hour for each in at],
            "scheduled": at,
            "carrier": random.choice(["9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN"], count),
            "tailnum": [f"N{each}AA" for each in random.integers(100, 999, count)],
            "origin": random.choice(["EWR", "JFK", "LGA"], count),
            "dest": random.choice([f"{a}{b}X" for a in "ABCDEFG" for b in "KLMNO"], count),
            "distance": random.integers(80, 4983, count),
            "air_time": air,
            "wind": random.normal(10, 4, count).round(3),
            "cancelled": random.random(count) < 0.02,
            "late": np.where(random.random(count) < 0.3, "yes", "no"),
        }
    )


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_in_blocks(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Have text files read so many bytes at a time."""
    for module in (formats.csv, formats.text):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)


def parquet(frame: pd.DataFrame | pa.Table, group: int = 1000) -> bytes:
    file = io.BytesIO()
    table = frame if isinstance(frame, pa.Table) else pa.Table.from_pandas(frame)
    pa.parquet.write_table(table, file, row_group_size=group)
    return file.getvalue()


def feather(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    pyarrow.feather.write_feather(frame, file, chunksize=70)
    return file.getvalue()


def zipped(**members: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), content)
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros(3))
    return file.getvalue()


def cases(shared: Path | None) -> Iterator[Case]:
    yield from _hospital()
    yield from _flights()
    yield from _clinic()
    yield from _numbers()
    yield from _columns()
    yield from _bad()
    if shared is not None:
        yield from adult(shared / "adult")


def _proposed(content: bytes, file: str, **options: Any) -> TableSchema:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.write_bytes(content)
        return propose_schema(path, **options).schema


def _hospital() -> Iterator[Case]:
    public, private = (stays(400, 150, seed=seed) for seed in (1, 2))
    label = {"label": "readmitted"}
    schema = _proposed(public.encode(), "public.csv", **label)
    frame = pd.read_csv(io.StringIO(private), dtype={"room": str})
    semicolons = stays(400, 150, seed=2, delimiter=";", decimal=",")
    files = {
        "hospital.csv": private.encode(),
        "hospital-1252.csv": semicolons.encode("windows-1252"),
        "hospital.tsv": stays(400, 150, seed=2, delimiter="\t", decimal=",").encode(),
        "hospital.parquet": parquet(frame, 90),
        "hospital.feather": feather(frame),
        "hospital-text.parquet": parquet(pd.read_csv(io.StringIO(private), dtype=str), 90),
    }
    for name, content in files.items():
        yield Case(name, name, content, "load", schema)
        yield Case(f"propose {name}", name, content, "propose", None, label)
    chosen = {**label, "group": "stay_id", "ignore": ["ward"], "keep": ["admitted"]}
    yield Case("propose chosen", "public.csv", public.encode(), "propose", None, chosen)


def _flights() -> Iterator[Case]:
    public, private = flights(600, 1), flights(500, 2)
    label = {"label": "late"}
    for name, frame in (("dates", private.drop(columns="scheduled")), ("times", private)):
        theirs = public[list(frame.columns)]
        schema = _proposed(theirs.to_csv(index=False).encode(), "public.csv", **label)
        files = {
            f"flights-{name}.csv": frame.to_csv(index=False).encode(),
            f"flights-{name}.tsv": frame.to_csv(index=False, sep="\t").encode(),
            f"flights-{name}.parquet": parquet(frame, 100),
        }
        for file, content in files.items():
            yield Case(file, file, content, "load", schema)
            yield Case(f"pool {file}", file, content, "encode", schema)
            yield Case(f"propose {file}", file, content, "propose", None, label)


def _clinic() -> Iterator[Case]:
    plain = text(ROWS, NAMES)
    turned = [row[::-1] for row in ROWS]
    pool = [row[:8] for row in ROWS]
    files = {
        "plain.csv": plain,
        "bom.csv": b"\xef\xbb\xbf" + plain,
        "turned.csv": text(turned, NAMES[::-1]),
        "more.csv": text([("z", *row) for row in ROWS], ["extra", *NAMES]),
        "bare.csv": text(ROWS, None),
        "unix.csv": plain.replace(b"\r\n", b"\n"),
        "spaced.csv": "\n".join(
            ", ".join(f'"{field}"' if '"' not in field else "z" for field in row)
            for row in (NAMES, *ROWS)
        ).encode(),
        "blank.csv": b"|a comment; of UCI\n\n" + plain + b",,,,,,,,,,\n\n   \n",
        "latin.csv": plain.decode().encode("latin-1"),
        "bars.csv": text(ROWS, NAMES, "|"),
        "semicolons.csv": text(ROWS, NAMES, ";"),
    }
    for name, content in files.items():
        yield Case(f"clinic {name}", name, content, "load", CLINIC)
        yield Case(f"clinic pool {name}", name, content, "encode", CLINIC)
    yield Case("clinic pool features", "pool.csv", text(pool, NAMES[:8]), "encode", CLINIC)
    yield Case("clinic pool bare", "pool.csv", text(pool, None), "encode", CLINIC)
    typed = pd.DataFrame(
        {
            "age": [50, 20, 101],
            "dose": [2.5, np.nan, 1],
            "pulse": pd.array([90, None, 70], dtype="Int64"),
            "ward": pd.Categorical(["Köln", "A", "Ulm"]),
            "room": [1.0, 2.0, np.nan],
            "smoker": [True, False, None],
            "stage": ["low", None, "high"],
            "day": pd.to_datetime(["2020-01-02 00:00", "2099-12-31 08:00", None]),
            "patient": [7, 8, 7],
            "ill": ["no", "yes", "no"],
        }
    )
    yield Case("clinic typed", "typed.parquet", parquet(typed), "load", CLINIC)
    yield Case("clinic typed feather", "typed.arrow", feather(typed), "load", CLINIC)


def _numbers() -> Iterator[Case]:
    bodies = {
        "points": b"a;b;y\n1.5;2;no\n3;4.25;yes\n",
        "commas": b"a;b;y\n1,5;2;no\n3;4,25;yes\n",
        "thousands": b"a;b;y\n1.234,5;2;no\n3;4;yes\n",
        "one column each": b"a;b;y\n1,5;2.5;no\n3;4.25;yes\n",
        "point after comma": b"a;b;y\n1,5;2;no\n3.5;4;yes\n",
        "comma after point": b"a;b;y\n1.5;2;no\n3,5;4;yes\n",
        "comma in commas": b'a,b,y\n1,2,no\n"1,5",2,no\n',
        "tabs": b"a\tb\ty\n1,5\t2\tno\n",
        "signs": b"a,b,y\n+1,-2,no\n1E0,1e-3,yes\n",
        "spaces": b"a, b, y\n 1 , 2 , no\n",
        "infinite": b"a,b,y\n1,2,no\n1,inf,no\n",
        "not a number": b"a,b,y\n1,2,no\nnan,2,no\n",
        "huge": b"a,b,y\n1e300,-1e300,no\n",
        "hexadecimal": b"a,b,y\n0x10,2,no\n",
        "grouped digits": b"a,b,y\n1 000,2,no\n",
    }
    for name, content in bodies.items():
        yield Case(f"numbers {name}", "numbers.csv", content, "load", NUMBERS)


def _columns() -> Iterator[Case]:
    """One column each of what the roles are guessed from."""
    rows = 200
    repeated = [i // 4 for i in range(rows)]
    many: dict[str, Sequence[object]] = {
        "patient": [f"P{i:04d}" for i in repeated],
        "subject": ["maths", "music", "art", "latin"] * 50,
        "case_id": repeated,
        "SampleID": [7 * i for i in range(rows)],
        "x counted": list(range(1, rows + 1)),
        "x code": [f"AB-{1000 + i}" for i in repeated],
        "x padded": [f"{i % 30:03d}" for i in range(rows)],
        "x prose": [f"Patient {i} was well\nand left" for i in range(rows)],
        "x spoilt": [*range(rows - 1), "n/a"],
        "x comma": [f"{i},5" for i in range(rows)],
        "x empty": ["", "?", "NA", "NaN"] * 50,
        "x day": [f"2024-03-{1 + i % 28:02d}" for i in range(rows)],
        "x german": [f"{1 + i % 28:02d}.03.2024" for i in range(rows)],
        "x american": [f"03/{1 + i % 28:02d}/2024" for i in range(rows)],
        "x eight": [f"202403{1 + i % 28:02d}" for i in range(rows)],
        "x time": [f"2024-03-{1 + i % 28:02d}T08:{i % 60:02d}:30Z" for i in range(rows)],
        "x clock": [f"08:{i % 60:02d}" for i in range(rows)],
        "x two orders": [f"{1 + i % 9:02d}/{1 + i % 12:02d}/2024" for i in range(rows)],
        "x boolean": ["True", "False", ""] * 66 + ["TRUE", "false"],
        "x levels": ["mild", "Severe", "moderate", "none"] * 50,
        "x bands": ["65+", "18-64", "<18", "65+"] * 50,
        "x seven": [i / 7 for i in range(rows)],
        "x thousands": [30_000 + i for i in repeated],
        "x gaps": [i % 50 if i % 7 else "NA" for i in range(rows)],
        "x one": [5] * rows,
        "name": [f"Miller {i % 30}" for i in range(rows)],
        "x words": [f"w{i % 150}" for i in range(rows)],
        "x few": ["red", "green", "blue", "red"] * 50,
    }
    for name, values in many.items():
        label = [("no", "yes")[i % 2] for i in range(len(values))]
        content = pd.DataFrame(
            {name: values, "dose": [i % 7 + 0.5 for i in range(rows)], "y": label}
        )
        for delimiter in ",;":
            body = content.to_csv(index=False, sep=delimiter).encode()
            how = {"label": "y"}
            yield Case(f"column {name}{delimiter}", "public.csv", body, "propose", None, how)
    common = [f"w{i % 50 if i % 4 else i}" for i in range(6000)]
    body = pd.DataFrame({"x": common, "y": [i % 2 for i in range(6000)]}).to_csv(index=False)
    yield Case("column common", "public.csv", body.encode(), "propose", None, {"label": "y"})


def _bad() -> Iterator[Case]:
    good = [",".join((*row[:8], "x", *row[9:])) for row in ROWS for _ in range(100)]
    header = ",".join(NAMES)
    ok = "50,2.5,90,A,1,yes,low,02.01.2020,x,P1,no"
    broken = {
        "few fields": "1,2,3",
        "many fields": ok + ",",
        "no number": ok.replace("2.5", "x"),
        "no boolean": ok.replace("yes", "maybe"),
        "no date": ok.replace("02.01.2020", "30.02.2020"),
        "short year": ok.replace("02.01.2020", "02.01.20"),
        "no label": ok.removesuffix("no") + "maybe",
        "unlabelled": ok.removesuffix("no"),
        "open quote": ok.replace("A", '"A'),
        "quote inside": ok.replace("A", '"A"B'),
        "zero byte": ok.replace("A", "A\0"),
        "lines in quotes": ok.replace("x", '"x\ny\nz"').replace("low", "low").replace("2.5", "z"),
        "not utf-8": ok.replace("A", "\udcff\udc81"),
    }
    for name, line in broken.items():
        lines = [header, *good[:300], line, *good[300:]]
        body = ("\n".join(lines) + "\n").encode(errors="surrogateescape")
        yield Case(f"bad {name}", "bad.csv", body, "load", CLINIC)
        yield Case(f"bad pool {name}", "bad.csv", body, "encode", CLINIC)
        yield Case(f"bad public {name}", "bad.csv", body, "propose", None, {"label": "ill"})
    plain = text(ROWS, NAMES)
    files: dict[str, tuple[str, bytes]] = {
        "empty": ("h.csv", b""),
        "header alone": ("h.csv", header.encode()),
        "no column": ("h.csv", plain.replace(b"ward", b"station")),
        "twice": ("h.csv", plain.replace(b"ward", b"room")),
        "parquet": ("h.parquet", b"PAR1\x15\x04\0\xffPAR1"),
        "parquet as csv": ("h.csv", b"PAR1\x15\x04\0\xffPAR1"),
        "packed parquet": ("h.csv.gz", gzip.compress(b"PAR1\x15\x04\0\xffPAR1", mtime=0)),
        "feather": ("h.feather", b"ARROW1\0\0\xff"),
        "excel": ("h.xlsx", zipped(xl__workbook_xml="")),
        "excel as csv": ("h.csv", zipped(xl__workbook_xml="")),
        "named as excel": ("h.XLSX", plain),
        "old excel": ("h.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
        "spreadsheet": ("h.ods", zipped(mimetype="x")),
        "zip": ("h.csv", zipped(h_csv="a,b")),
        "npz": ("h.csv", npz()),
        "bzip2": ("h.csv.bz2", bz2.compress(plain)),
        "xz": ("h.csv", b"\xfd7zXZ\0\0"),
        "utf-16": ("h.csv", plain.decode().encode("utf-16")),
        "cut gzip": ("h.csv.gz", gzip.compress(plain, mtime=0)[:-9]),
        "ends early": ("h.csv", plain[:-12]),
        "two delimiters": ("h.csv", b"1,5;2,5\n3,5;4,5\n"),
        "order": ("h.csv", b"\n".join(b"1,2,3,x,y,yes,low,02.01.2020,,p,no" for _ in range(20))),
    }
    for name, (file, content) in files.items():
        yield Case(f"bad {name}", file, content, "load", CLINIC)
        yield Case(f"bad public {name}", file, content, "propose", None, {"label": "ill"})


def adult(folder: Path) -> Iterator[Case]:
    test, data = (
        gzip.decompress((folder / f"adult.{n}.gz").read_bytes()) for n in ("test", "data")
    )
    options = {"label": "income", "columns": ADULT}
    schema = _proposed(test, "adult.test", **options)
    yield Case("adult propose", "adult.test", test, "propose", None, options)
    yield Case("adult test", "adult.test", test, "load", schema)
    yield Case("adult", "adult.data", data, "load", schema)
    yield Case("adult pool", "adult.data", data, "encode", schema)


def read(case: Case, folder: Path) -> dict[str, Any]:
    """What is read of a case, or why it is refused."""
    path = folder / case.file
    path.write_bytes(case.content)
    said = list[str]()
    try:
        found = READERS[case.how](case, path, said.append)
    except DataError as error:
        return {"refused": str(error).replace(str(path), case.file)}
    return {**found, "said": [line.replace(str(path), case.file) for line in said]}


def _load(case: Case, path: Path, note: Callable[[str], object]) -> dict[str, Any]:
    assert case.schema is not None
    data = load_table(path, case.schema, note, accept_clipped=True)
    groups = None if data.groups is None else _digest(data.groups)
    return {
        "inputs": _digest(data.inputs),
        "shape": list(data.inputs.shape),
        "labels": _digest(data.labels),
        "groups": groups,
    }


def _encode(case: Case, path: Path, note: Callable[[str], object]) -> dict[str, Any]:
    assert case.schema is not None
    encoded = encode_table(path, case.schema, note, accept_clipped=True)
    return {"inputs": _digest(encoded), "shape": list(encoded.shape)}


def _propose(case: Case, path: Path, note: Callable[[str], object]) -> dict[str, Any]:
    found = propose_schema(path, note=note, **case.options)
    source = found.schema.fitted_on
    assert source is not None
    described = found.schema.model_dump_json(include={"columns"}, exclude_none=True)
    return {
        "schema": hashlib.sha256(described.encode()).hexdigest(),
        "rows": source.records,
        "whole": source.sha256 == hashlib.sha256(case.content).hexdigest(),
        "columns": [[each.column.role, each.why, each.doubt] for each in found.guesses],
    }


READERS: dict[str, Callable[..., dict[str, Any]]] = {
    "load": _load,
    "encode": _encode,
    "propose": _propose,
}


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()


def main() -> None:
    shared = os.environ.get("TERRINE_SHARED_DATA")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(shared) if shared else None):
            assert case.name not in found, case.name
            found[case.name] = read(case, Path(folder))
    lines = (
        f"{json.dumps(n)}: {json.dumps(each, ensure_ascii=False)}" for n, each in found.items()
    )
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


SCHEMA = TableSchema(
    columns=(
        Column(name="dose", role="numeric", low=0, high=10, missing=5),
        Column(name="ward", role="categorical", values=("A", "B")),
        Column(name="smokes", role="boolean"),
        Column(name="ill", role="label", values=("no", "yes")),
    )
)


def frame(rows: int) -> pd.DataFrame:
    """Rows of the pool, with a column of its own that the schema does not know."""
    number = np.arange(rows)
    return pd.DataFrame(
        {
            "visit": [f"v{n}" for n in number],
            "ward": np.where(number % 2, "B", "A"),
            "dose": np.where(number % 7 == 6, np.nan, number % 10 + number / 1024),
            "smokes": number % 3 == 0,
        }
    )


def records(settings: Settings) -> Dataset:
    """Private records of the table: who takes more than 5 is ill."""
    private = frame(2400).assign(ill=lambda found: np.where(found["dose"] > 5, "yes", "no"))
    private.to_csv(settings.data_dir / "private.csv", index=False)
    return load_table(settings.data_dir / "private.csv", SCHEMA, lambda sentence: None)


def open_counted(ledger: Ledger, settings: Settings, name: str, data: Dataset) -> str:
    """Train 40 teachers, open a project of noisy counts of them, and return a student's token."""
    train_ensemble(data, settings.ensembles_dir / name, name=name, teachers=40)
    cap: dict[str, Any] = {"epsilon": 100.0, "delta": 1e-4, "population": name, "disjoint": True}
    register_ensemble(ledger, settings, EnsembleRegister.model_validate({"name": name, **cap}))
    terms = {"name": name, "ensemble": name, "epsilon": 90, "delta": 1e-5}
    mechanism = {"name": "noisy_votes", "sigma": 10.0}
    open_project(ledger, ProjectOpen.model_validate({**terms, "mechanism": mechanism}))
    request = TokenCreate(role=Role.STUDENT, project=name)
    return Tokens(ledger, SECRET_KEY).create(request).token


if __name__ == "__main__":
    main()


NUMBERED_LABELS: list[tuple[list[int], tuple[str, ...], list[int] | None]] = [
    ([0, 1, 1], ("no", "yes"), [0, 1, 1]),
    ([0, 1, 1], ("0", "1"), [0, 1, 1]),
    ([0, 1, 1], ("1", "0"), [1, 0, 0]),
    ([5, 7], ("5", "7"), [0, 1]),
    ([-1, 1], ("-1", "1"), [0, 1]),
    ([1, 0], ("1.0", "0.0"), [0, 1]),
    ([7, 10], ("007", "010"), [0, 1]),
    ([0, 1], ("1", "2"), None),
    ([0, 1], ("1", "other"), None),
    ([1, 1], ("1", "1.0"), None),
]
"""Numbers, the names of classes, and which of these each number is; None if it is refused."""


def even_pool(schema: TableSchema, rows: int, seed: int = 0) -> DesignedPool:
    """Rows designed for tables of which nothing was counted: each value is as likely as another."""
    questions = margin_questions(schema)
    widths = [question_widths(each) for each in questions]
    margins = Margins(tuple(questions), tuple(each / each.sum() for each in widths))
    return design_pool(schema, margins, rows=rows, seed=seed)
