"""Tables larger than memory: read a block at a time, with the same result, and whole."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.feather
import pytest

from support.tables import read_in_blocks, stays
from support.wording import holds, refuses
from terrine_models.data.arrays import DataError
from terrine_models.tables import statistics
from terrine_models.tables.loading import Table, encoded_input, load_table
from terrine_models.tables.proposal import propose_schema
from terrine_models.teachers.shards import split
from terrine_protocol.schema import Column, TableSchema
from terrine_tables import columns
from terrine_tables.encoding import encode_frame, encode_table
from terrine_tables.files import open_table

SCHEMA = TableSchema(
    columns=(
        *(Column(name=f"dose{i}", role="numeric", low=0, high=100) for i in range(6)),
        Column(name="ward", role="categorical", values=("A", "B", "C")),
        Column(name="patient", role="group"),
        Column(name="ill", role="label", values=("no", "yes")),
    )
)
HEADER = "dose0,dose1,dose2,dose3,dose4,dose5,ward,patient,ill\n"


def table(rows: int) -> Iterator[str]:
    """Rows of `SCHEMA`, by number."""
    yield HEADER
    for i in range(rows):
        doses = ",".join(f"{(7 * i + k) % 1000 / 10}" for k in range(6))
        yield f"{doses},{'ABC'[i % 3]},P{i % (rows // 4 + 1)},{('no', 'yes')[i % 2]}\n"


def written(path: Path, lines: Iterator[str] | Sequence[str]) -> Path:
    with path.open("w") as file:
        file.writelines(lines)
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows at a time."""
    monkeypatch.setattr(columns, "BLOCK_FIELDS", 64)
    monkeypatch.setattr(columns, "MIN_BLOCK_ROWS", 1)
    read_in_blocks(monkeypatch, 2**10)


# ----------------------------------------------------------------------------- the same result


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same stays in every format."""
    folder = tmp_path_factory.mktemp("exports")
    plain = stays(200, 80, seed=2)
    (folder / "a.csv").write_text(plain, newline="")
    frame = pd.read_csv(folder / "a.csv", dtype=str)
    frame.to_json(folder / "b.jsonl", orient="records", lines=True)
    (folder / "c.csv").write_text(
        stays(200, 80, seed=2, delimiter=";", decimal=","), newline="", encoding="windows-1252"
    )
    frame.to_parquet(folder / "d.parquet", row_group_size=45)
    pyarrow.feather.write_feather(frame, str(folder / "e.feather"), chunksize=35)
    return {path.name[0]: path for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("name", list("abcde"))
def test_blocks_change_nothing(
    exports: dict[str, Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = exports[name]

    def everything(out: Path) -> tuple[Any, ...]:
        schema = propose_schema(path, label="readmitted")
        data = load_table(path, schema.schema)
        written_by_hand = schema.schema.model_copy(update={"fitted_on": None})
        split(Table(path, written_by_hand), out, 7)
        shards = {file.name: file.read_bytes() for file in out.iterdir()}
        return schema.to_json(), data.digest(), shards

    whole = everything(tmp_path / "whole")
    monkeypatch.setattr(columns, "BLOCK_FIELDS", 40)
    monkeypatch.setattr(columns, "MIN_BLOCK_ROWS", 1)
    read_in_blocks(monkeypatch, 2**9)
    assert everything(tmp_path / "blocks") == whole


def test_formats_are_alike_and_a_frame_is_encoded_as_its_file(exports: dict[str, Path]) -> None:
    schema = propose_schema(exports["a"], label="readmitted").schema
    plain = encode_table(exports["a"], schema)
    for name in "bde":
        assert np.array_equal(encode_table(exports[name], schema), plain)
    frame = pd.read_csv(exports["a"], dtype=str, keep_default_na=False)
    assert np.array_equal(encode_frame(frame, schema), plain)


def test_shards_of_a_file_are_those_of_its_records(tmp_path: Path, small_blocks: None) -> None:
    path = written(tmp_path / "a.csv", table(200))
    steps = list[tuple[int, int]]()
    split(Table(path, SCHEMA), tmp_path / "file", 9, 4, lambda *step: steps.append(step))
    split(load_table(path, SCHEMA), tmp_path / "held", 9, 4)
    for file in (tmp_path / "held").iterdir():
        assert file.read_bytes() == (tmp_path / "file" / file.name).read_bytes()
    assert len(list((tmp_path / "file").iterdir())) == 9 + 1
    assert steps == [(i, 9) for i in range(1, 10)]


def test_progress_is_of_the_file(tmp_path: Path, small_blocks: None) -> None:
    plain = "".join(table(1000))
    parquet = tmp_path / "a.parquet"
    pd.read_csv(written(tmp_path / "a.csv", [plain])).to_parquet(parquet)
    for path in (tmp_path / "a.csv", parquet):
        steps = list[tuple[int, int]]()
        load_table(path, SCHEMA, progress=lambda *step, to=steps: to.append(step))
        done, totals = zip(*steps, strict=True)
        assert len(steps) > 30
        assert list(done) == sorted(done)
        assert set(totals) == {1000 if path is parquet else path.stat().st_size}
        assert done[-1] == totals[0]


# --------------------------------------------------------------------------------- wide tables


def test_a_wide_table_is_read_in_few_steps_for_each_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, records = 200, 120
    header = ",".join(f"gene{i}" for i in range(columns)) + ",ill\n"
    lines = (
        ",".join(f"{(i + k) % 97}.123456" for i in range(columns)) + f",{'ab'[k % 2]}\n"
        for k in range(records)
    )
    path = written(tmp_path / "t.csv", [header, *lines])
    read_in_blocks(monkeypatch, 2**11)
    assert path.stat().st_size > 100 * 2**11, "of one record or two each"
    calls = list[str]()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "terrine_models" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        schema = propose_schema(path, label="ill").schema
        inputs = load_table(path, schema).inputs
    finally:
        sys.setprofile(None)
    assert inputs.shape == (records, columns)
    assert calls.count("coded") <= 5 * (columns + 1)
    assert calls.count("_numbers") <= 6 * (columns + 1)
    assert calls.count("number") <= 2, "only the label's are no plain numbers"
    frame = pd.read_csv(path)
    assert np.array_equal(encode_frame(frame, schema), inputs)


# --------------------------------------------------------------------------------- what is held


def peak(work: Callable[[Path], None], path: Path) -> int:
    """The most bytes that were held at once, as Python and NumPy count them."""
    tracemalloc.start()
    try:
        work(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_encoded_rows_and_never_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "BLOCK_FIELDS", 2**9)
    monkeypatch.setattr(columns, "MIN_BLOCK_ROWS", 1)
    read_in_blocks(monkeypatch, 2**10)
    monkeypatch.setattr(statistics, "MAX_VALUES", 100)
    few, many = 1_500, 3_000  # both more than is read ahead
    short, long = (written(tmp_path / f"{n}.csv", table(n)) for n in (few, many))
    encoded = 4 * encoded_input(SCHEMA).shape[0]

    def load(path: Path) -> None:
        load_table(path, SCHEMA)

    def deal(path: Path) -> None:
        split(Table(path, SCHEMA), path.with_suffix(".shards"), 10)

    def propose(path: Path) -> None:
        propose_schema(path, label="ill")

    # A record's text is nine strings of more than 50 bytes. A person, one in four rows, is 160.
    for work, most in ((load, 1.125 * encoded + 60), (deal, 115), (propose, 5)):
        held = [peak(work, path) for path in (short, long)]
        assert (held[1] - held[0]) / (many - few) < most, work


LIMITED = """
import resource, sys
import pyarrow
pyarrow.set_cpu_count(1)  # every thread has a stack of megabytes
pyarrow.set_io_thread_count(1)
from pathlib import Path
from terrine_models.tables.proposal import propose_schema
from terrine_models.tables.loading import load_table
from terrine_tables.formats import csv, text
csv.BLOCK_BYTES = text.BLOCK_BYTES = 2**14
propose_schema(Path(sys.argv[2]), label="ill")
status = Path("/proc/self/status").read_text()
now = int(status.partition("VmData:")[2].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (now + 24 * 2**20,) * 2)
schema = propose_schema(Path(sys.argv[1]), label="ill").schema
print(len(load_table(Path(sys.argv[1]), schema)))
"""


@pytest.mark.nightly
def test_a_process_with_little_memory_reads_a_table_that_would_not_fit(tmp_path: Path) -> None:
    path, small = (written(tmp_path / f"{n}.csv", table(n)) for n in (100_000, 100))
    found = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(small)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    assert found.stdout == "100000\n", found.stderr[-2000:]


# ------------------------------------------------------------------------------------- bad files


def lines_with(broken: str, at: int = 500) -> list[str]:
    lines = list(table(1000))
    lines[at] = broken
    return lines


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("1,2,3\n", "501 3 9"),
        ("1,2,1_2,4,5,6,A,P1,no\n", "501 dose2 '1_2' number"),
        ("1,2,3,4,5,6,A,P1,maybe\n", "501 ill 'maybe' no yes"),
        ('1,2,"3"4",5,6,A,P1,no\n', "CSV 501"),
        ("1,2,3,4,5,6,A,P\0,no\n", "text byte zero"),
        ("1,2,3,4,5,6,A," + "P" * 9_000 + ",no\n", "501 1,024"),
        ('1,2,3,4,5,6,"' + "A\n" * 4_000 + '",P1,no\n', "501 1,024"),
    ],
)
def test_a_bad_record_in_the_middle_is_named_by_its_line(
    tmp_path: Path, broken: str, said: str, small_blocks: None
) -> None:
    path = written(tmp_path / "a.csv", lines_with(broken))
    with refuses(DataError, *said.split()):
        load_table(path, SCHEMA)
    out = tmp_path / "shards"
    with refuses(DataError, *said.split()):
        split(Table(path, SCHEMA), out, 5)
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"], "nothing is left behind"


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path, small_blocks: None) -> None:
    path = written(tmp_path / "a.csv", table(500))

    def grows(done: int, total: int) -> None:
        with path.open("a") as file:
            file.write("1,2,3,4,5,6,A,P1,no\n")

    for read in (
        lambda: load_table(path, SCHEMA, progress=grows),
        lambda: encode_table(path, SCHEMA, progress=grows),
        lambda: propose_schema(path, label="ill", progress=grows),
        lambda: split(Table(path, SCHEMA, progress=grows), tmp_path / "shards", 5),
    ):
        with refuses(DataError, "changed"):
            read()
    other = written(tmp_path / "b.csv", table(500))
    with refuses(DataError, "changed"), open_table(path):
        os.replace(other, path)
    with refuses(DataError, "read"), open_table(path):
        path.unlink()


def test_decimal_commas_are_one_format_in_all_blocks(tmp_path: Path, small_blocks: None) -> None:
    schema = TableSchema(
        columns=(
            Column(name="dose", role="numeric", low=0, high=10),
            Column(name="ill", role="label", values=("no", "yes")),
        )
    )
    rows = ["5;no\n"] * 400
    rows[300] = "2,5;no\n"
    path = written(tmp_path / "a.csv", ["dose;ill\n", *rows])
    assert load_table(path, schema).inputs[[0, 300], 0].tolist() == [0.5, 0.25]
    for at in (10, 390):  # blocks before the comma, and after it
        mixed = list(rows)
        mixed[at] = "2.5;no\n"
        written(path, ["dose;ill\n", *mixed])
        with refuses(DataError, at + 2, "dose", "'2.5'", "decimal"):
            load_table(path, schema)


# --------------------------------------------------------- schemas of columns with many values


def proposed(
    tmp_path: Path, columns: dict[str, Sequence[object]], **options: Any
) -> dict[str, Any]:
    path = tmp_path / "public.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    found = propose_schema(path, label="ill", **options)
    return {guess.column.name: guess for guess in found.guesses}


def test_of_many_values_the_first_say_the_role_and_all_the_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None
) -> None:
    monkeypatch.setattr(statistics, "MAX_VALUES", 50)
    rows = 400
    days = pd.date_range("2020-01-01", periods=rows).strftime("%Y-%m-%d").tolist()
    ill = ["no", "yes"] * (rows // 2)
    found = proposed(
        tmp_path,
        {
            "dose": [*(i / 7 for i in range(rows - 2)), 999.5, -3],
            "spoilt": [*(i / 7 for i in range(rows - 1)), "n/a"],
            "day": days,
            "spoilt_day": [*days[:-1], "2020-31-01"],
            "patient": [f"P{i // 2}" for i in range(rows)],
            "code": [f"X{i:05d}" for i in range(rows)],
            "ward": [f"ward {i % 40}" for i in range(rows)],
            "ill": ill,
        },
    )
    assert (found["dose"].column.low, found["dose"].column.high) == (-3, 999.5)
    spoilt = found["spoilt"].column
    assert (spoilt.low, spoilt.high) == (0, (rows - 2) / 7)
    holds(found["spoilt"].doubt or "", 1, "missing")
    day = found["day"].column
    assert (str(day.since), day.high) == (days[0], rows - 1)
    assert found["spoilt_day"].column.high == rows - 2
    assert found["patient"].why == "identifies people, by its name: more than 50 in 400 rows"
    assert found["code"].column.role == "ignored"
    assert len(found["ward"].column.values) == 40
    with refuses(DataError, "dose", 50):
        propose_schema(tmp_path / "public.csv", label="dose")


def test_late_decimal_commas_are_seen_in_a_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MAX_VALUES", 50)
    rows = [f"{i};{i % 7};{'ny'[i % 2]}" for i in range(200)]
    path = tmp_path / "public.csv"
    path.write_text("\n".join(["dose;days;ill", *rows, "900,5;1;n"]))
    dose = propose_schema(path, label="ill").schema.columns[0]
    assert (dose.low, dose.high) == (0, 900.5)
    path.write_text("\n".join(["dose;days;ill", *rows, "900,5;1;n", "900.5;1;n"]))
    assert propose_schema(path, label="ill").schema.columns[0].role == "ignored"


def test_long_texts_are_not_all_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_CHARACTERS", 5_000)
    notes = [f"The patient of row {i} was well and went home." for i in range(300)]
    found = proposed(
        tmp_path, {"note": notes, "dose": [i % 7 for i in range(300)], "ill": ["n", "y"] * 150}
    )
    assert found["note"].column.role == "text"
