"""Synthetic hospital stays, in the form of a hospital's export."""

from __future__ import annotations

import csv
import io
from datetime import date, timedelta

import numpy as np

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
    "note": "ignored",
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
