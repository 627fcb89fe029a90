"""UCI's "Diabetes 130-US hospitals for years 1999-2008": hospital stays, several of one patient.

The file has no test part, so patients are split into private and public ones. Of a public patient
one stay is kept: otherwise a student would be measured on patients that it has seen.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.tables.loading import load_table
from terrine_models.tables.roles import propose_schema
from terrine_protocol.tables import Column, TableSchema
from terrine_protocol.tables.files import TableFile, open_file

PATIENT, LABEL = "patient_nbr", "readmitted"
CODES = ("admission_type_id", "discharge_disposition_id", "admission_source_id")
"""Numbers that stand for categories."""
COLUMNS = (
    "encounter_id",
    PATIENT,
    "race",
    "gender",
    "age",
    "weight",
    *CODES,
    "time_in_hospital",
    "payer_code",
    "medical_specialty",
    "num_lab_procedures",
    "num_procedures",
    "num_medications",
    "number_outpatient",
    "number_emergency",
    "number_inpatient",
    "diag_1",
    "diag_2",
    "diag_3",
    "number_diagnoses",
    "max_glu_serum",
    "A1Cresult",
    "metformin",
    "repaglinide",
    "nateglinide",
    "chlorpropamide",
    "glimepiride",
    "acetohexamide",
    "glipizide",
    "glyburide",
    "tolbutamide",
    "pioglitazone",
    "rosiglitazone",
    "acarbose",
    "miglitol",
    "troglitazone",
    "tolazamide",
    "examide",
    "citoglipton",
    "insulin",
    "glyburide-metformin",
    "glipizide-metformin",
    "glimepiride-pioglitazone",
    "metformin-rosiglitazone",
    "metformin-pioglitazone",
    "change",
    "diabetesMed",
    LABEL,
)
UNREAD = (
    "encounter_id",
    "weight",
    "payer_code",
    "medical_specialty",
    "diag_1",
    "diag_2",
    "diag_3",
)
"""An identifier, columns with gaps in many rows, and hundreds of diagnosis codes."""
ANSWERS = {"NO": "no", ">30": "yes", "<30": "yes"}
"""Whether the patient came back at all. Within 30 days one in nine did."""
PUBLIC = 5
"""Every fifth patient is public."""


def read_encounters(path: Path) -> tuple[Dataset, Dataset]:
    """Read `diabetic_data.csv`, plain or .gz: the stays of private patients, and public ones.

    The schema is fitted on the public stays. `patient_nbr` is the group: all stays of a patient go
    to one teacher. Raises DataError.
    """
    rows = _rows(path)
    patients = np.random.default_rng(0).permutation(sorted({row[PATIENT] for row in rows})).tolist()
    first = {row[PATIENT]: row for row in reversed(rows)}
    public = [first[patient] for patient in patients[: len(patients) // PUBLIC]]
    if not public:
        raise DataError(f"{path} has stays of {len(patients)} patients, too few to split.")
    theirs = set(patients[len(public) :])
    private = [row for row in rows if row[PATIENT] in theirs]
    with TemporaryDirectory() as folder:
        train, test = (Path(folder) / name for name in ("private.csv", "public.csv"))
        for file, part in ((train, private), (test, public)):
            _write(file, part)
        schema = propose_schema(test, label=LABEL, group=PATIENT, ignore=UNREAD).schema
        schema = _with_categories(schema, public)
        return (
            replace(load_table(train, schema), name=f"{path}, private patients"),
            replace(load_table(test, schema), name=f"{path}, public patients"),
        )


def _rows(path: Path) -> list[dict[str, str]]:
    """The stays, with the label as yes or no."""
    with open_file(path, lambda first: LABEL in first, digest=False) as file:
        header = file.first
        if absent := [name for name in COLUMNS if name not in header]:
            raise DataError(f"{path} has no column {', '.join(absent)}; expected UCI's 50 columns.")
        found = [row for batch in file.batches(header, True) for row in batch.to_pylist()]
        return [_row(file, at, row) for at, row in enumerate(found)]


def _row(file: TableFile, at: int, row: dict[str, str]) -> dict[str, str]:
    if row[LABEL] not in ANSWERS:
        raise DataError(
            f"{file.where(at)}: {LABEL} is {row[LABEL]!r}, expected {', '.join(ANSWERS)}."
        )
    if not row[PATIENT].isdigit():
        raise DataError(f"{file.where(at)}: {PATIENT} is {row[PATIENT]!r}, expected a number.")
    return row | {LABEL: ANSWERS[row[LABEL]]}


def _write(file: Path, rows: Sequence[dict[str, str]]) -> None:
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _with_categories(schema: TableSchema, public: Sequence[dict[str, str]]) -> TableSchema:
    """The schema with the codes as categories, not as the quantities that they look like."""

    def described(column: Column) -> Column:
        if column.name not in CODES:
            return column
        values = tuple(sorted({row[column.name] for row in public}))
        return Column(name=column.name, role="categorical", values=values)

    return schema.model_copy(update={"columns": tuple(map(described, schema.columns))})
