"""UCI's diabetes encounters: patients stay on one side, and the whole experiment runs."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from commands import Terrine
from refusals import holds, refuses

from terrine_experiments.encounters import CODES, COLUMNS, UNREAD, read_encounters
from terrine_experiments.results import FILE
from terrine_experiments.sources import load
from terrine_models.data.arrays import DataError

pytestmark = pytest.mark.nightly

PATIENTS = 700


def stay(number: int, patient: int, random: np.random.Generator) -> dict[str, object]:
    """A row as in the published file: `?` is missing, `None` a test that was not made."""
    before = int(random.integers(0, 6))
    back = before + random.normal() > 2.5
    row: dict[str, object] = dict.fromkeys(COLUMNS, "No")
    row |= {"encounter_id": 2_278_392 + 6 * number, "patient_nbr": 135 + 97 * patient}
    row |= {"race": ("Caucasian", "AfricanAmerican", "?")[patient % 3], "gender": "Female"}
    row |= {"age": f"[{10 * (patient % 9)}-{10 * (patient % 9) + 10})", "weight": "?"}
    row |= {name: 1 + int(random.integers(0, 7)) for name in CODES}
    row |= {"time_in_hospital": int(random.integers(1, 15)), "payer_code": "?"}
    row |= {"medical_specialty": "InternalMedicine", "diag_1": "250.83", "diag_2": "V58"}
    row |= {"diag_3": "?", "number_inpatient": before, "max_glu_serum": "None", "A1Cresult": ">8"}
    for name in ("num_lab_procedures", "num_procedures", "num_medications", "number_diagnoses"):
        row[name] = int(random.integers(1, 60))
    row |= {"number_outpatient": int(random.integers(0, 3)), "number_emergency": 0}
    row |= {"insulin": ("No", "Steady", "Up", "Down")[number % 4], "change": "Ch"}
    return row | {"diabetesMed": "Yes", "readmitted": ("<30", ">30")[number % 2] if back else "NO"}


def write(file: Path, rows: list[dict[str, object]]) -> Path:
    with gzip.open(file, "wt", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return file


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    """Stays of PATIENTS patients, some of whom came up to five times."""
    random = np.random.default_rng(0)
    people = [*range(PATIENTS), *random.integers(0, PATIENTS // 2, PATIENTS)]
    return [stay(number, int(patient), random) for number, patient in enumerate(people)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]) -> Path:
    return write(tmp_path_factory.mktemp("diabetes") / "diabetic_data.csv.gz", rows)


def test_the_experiment_runs_from_the_published_layout(
    experiments: Terrine, file: Path, tmp_path: Path
) -> None:
    options = ("--quick", "--teachers", "30", "--runs", "1", "--epsilon", "40")
    said = experiments("reproduce", "diabetes", file.parent, *options, "--out", tmp_path).fine
    holds(said, "digest", "public")
    (found,) = json.loads((tmp_path / FILE).read_bytes())
    assert found["tested"] == PATIENTS // 5
    assert found["accuracies"][0] > found["majority"] + 0.05
    assert (tmp_path / "diabetes-folds.png").read_bytes().startswith(b"\x89PNG")


def test_patients_are_on_one_side_and_the_unit_of_teachers(
    file: Path, rows: list[dict[str, object]]
) -> None:
    source = load("diabetes", file.parent)
    private, public = source.private, source.test
    assert private.group_column == "patient_nbr"
    assert private.groups is not None
    assert len(np.unique(private.groups)) == PATIENTS - PATIENTS // 5
    assert public.groups is not None
    assert len(np.unique(public.groups)) == len(public) == PATIENTS // 5
    assert len(rows) - len(public) >= len(private) > PATIENTS
    assert private.classes == ("no", "yes")
    schema = private.encoding
    assert schema is not None
    assert schema == public.encoding
    roles = {column.name: column.role for column in schema.columns}
    assert tuple(roles) == COLUMNS
    assert {roles[name] for name in UNREAD} == {"ignored"}
    assert {roles[name] for name in CODES} == {"categorical"}
    assert roles["patient_nbr"] == "group"
    assert roles["readmitted"] == "label"
    assert roles["number_inpatient"] == "numeric"
    described = {column.name: column for column in schema.columns}
    assert described["race"].values == ("AfricanAmerican", "Caucasian")  # ? is missing
    again = load("diabetes", file.parent)
    np.testing.assert_array_equal(again.test.inputs, public.inputs)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"readmitted": "maybe"}, "4 readmitted 'maybe' NO >30 <30"),
        ({"patient_nbr": "?"}, "4 patient_nbr '?' number"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    rows: list[dict[str, object]], changed: dict[str, object], said: str, tmp_path: Path
) -> None:
    with refuses(DataError, *said.split()):
        read_encounters(write(tmp_path / "x.csv.gz", [*rows[:2], rows[2] | changed, *rows[3:9]]))


def test_other_tables_and_too_few_patients_are_refused(
    rows: list[dict[str, object]], tmp_path: Path
) -> None:
    other = tmp_path / "other.csv"
    other.write_text("patient_nbr,readmitted\n1,NO\n")
    with refuses(DataError, "encounter_id", "race"):
        read_encounters(other)
    with refuses(DataError, "split"):
        read_encounters(write(tmp_path / "few.csv.gz", rows[:3]))
