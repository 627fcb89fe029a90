"""Make up a hospital's stays: `export.csv`, `published.csv` and `pool.csv`, here."""

import csv
from pathlib import Path

import numpy as np

WARDS = ("cardiology", "geriatrics", "neurology", "surgery")


def stays(count: int, seed: int) -> list[dict[str, object]]:
    """Stays of half as many patients; old ones, and those in geriatrics, often come back."""
    random = np.random.default_rng(seed)
    ages = random.integers(18, 96, count // 2)
    rows: list[dict[str, object]] = []
    for _ in range(count):
        patient = int(random.integers(count // 2))
        age, ward = int(ages[patient]), WARDS[patient % 4]
        back = random.random() < 0.1 + 0.3 * (age > 65) + 0.4 * (ward == "geriatrics")
        rows.append(
            {
                "patient_id": f"P{patient}",
                "age": age,
                "ward": ward,
                "days": int(random.integers(1, 15)),
                "temperature": round(36 + 3 * random.random(), 1),
                "creatinine": round(0.4 + 2 * random.random(), 2),
                "readmitted": "yes" if back else "no",
            }
        )
    return rows


def write(name: str, rows: list[dict[str, object]], leave_out: tuple[str, ...] = ()) -> None:
    """Write a table with a header."""
    columns = [column for column in rows[0] if column not in leave_out]
    with Path(name).open("w", newline="") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)


write("export.csv", stays(8000, seed=1))  # private
write("published.csv", stays(1500, seed=2))  # public, with labels: another hospital's
write("pool.csv", stays(2000, seed=3), ("patient_id", "readmitted"))  # the student's
