"""Of tables of many kinds, good and bad, what was recorded is read: to the bit, and by the line."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import tables
from support.tables import RECORDED, Case, cases, read, read_in_blocks, stays
from support.wording import refuses
from terrine_models.data.arrays import DataError
from terrine_models.tables.loading import load_table
from terrine_models.tables.proposal import propose_schema
from terrine_tables import files
from terrine_tables.encoding import encode_table
from terrine_tables.formats import csv, text


def places(found: dict[str, Any]) -> dict[str, Any]:
    """What was read, without the wording: of sentences the lines, columns and counts."""
    said = [found.get("refused", ""), *found.get("said", ())]
    named = [re.findall(r"\b(?:line|row|byte|column) \S+|[\d,]+ of [\d,]+", each) for each in said]
    return {**found, "refused": "refused" in found, "said": named}


def held(each: Case, folder: Path, recorded: dict[str, Any]) -> str:
    found = json.loads(json.dumps(read(each, folder)))
    same = places(found) == places(recorded[each.name])
    return "" if same else f"{each.name}: {found} instead of {recorded[each.name]}"


def test_what_was_recorded_is_read(tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text())
    every = list(cases(None))
    assert len(every) > 200
    assert not [wrong for each in every if (wrong := held(each, tmp_path, recorded))]


@pytest.mark.slow
def test_adult_is_read_as_it_was(tmp_path: Path, shared_data: Path) -> None:
    recorded = json.loads(RECORDED.read_text())
    every = list(tables.adult(shared_data / "adult"))
    assert not [wrong for each in every if (wrong := held(each, tmp_path, recorded))]


# ------------------------------------------------------------------------- how often a file is read


class Reads:
    """How often a file was opened, and how many bytes of it were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reads, self.opened, self.bytes = self, 0, 0

        class Counted(io.FileIO):
            def readinto(self, buffer: Any) -> int:
                count = super().readinto(buffer) or 0
                reads.bytes += count
                return count

        def open_regular_file(path: Path) -> io.BufferedReader:
            reads.opened += 1
            return io.BufferedReader(Counted(path))

        for module in (files, csv, text):  # one opens it, the others again where something is wrong
            monkeypatch.setattr(module, "open_regular_file", open_regular_file)

    def of(self, work: Callable[[], object]) -> tuple[int, int]:
        self.opened = self.bytes = 0
        work()
        return self.opened, self.bytes


@pytest.mark.parametrize("name", ["hospital.csv", "hospital.tsv"])
def test_a_csv_file_is_read_once_for_a_schema_and_once_to_encode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read_in_blocks(monkeypatch, 2**12)
    case = next(each for each in cases(None) if each.name == name)
    path = tmp_path / name
    path.write_bytes(case.content)
    reads, once = Reads(monkeypatch), (1, len(case.content))
    assert reads.of(lambda: propose_schema(path, label="readmitted")) == once
    schema = propose_schema(path, label="readmitted").schema
    assert reads.of(lambda: load_table(path, schema)) == once
    assert reads.of(lambda: encode_table(path, schema)) == once


def test_a_parquet_file_is_read_twice_at_most_as_its_digest_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    tables.flights(25_000, 1).to_parquet(path)
    schema = propose_schema(path, label="late").schema
    reads, size = Reads(monkeypatch), path.stat().st_size
    opened, bytes_read = reads.of(lambda: load_table(path, schema))
    assert opened == 1
    assert bytes_read < 2.25 * size, "some of it is read ahead"


def test_only_a_bad_file_is_read_again_to_find_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(stays(300, 100), newline="")
    schema = propose_schema(path, label="readmitted").schema
    path.write_text(stays(300, 100) + "1,P1,surgery,old\n", newline="")
    reads = Reads(monkeypatch)

    def refused() -> None:
        with refuses(DataError, 4, 12):
            load_table(path, schema)

    assert reads.of(refused) == (2, 2 * path.stat().st_size)
