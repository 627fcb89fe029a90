"""Make up a hospital's stays: `export.csv`, `published.csv` and `pool.csv`, here."""

import csv
from pathlib import Path
from random import Random

WARDS = ("cardiology", "geriatrics", "neurology", "surgery")


def stays(count: int, seed: int) -> list[dict[str, object]]:
    """Stays of half as many patients; old ones, and those in geriatrics, often come back."""
    random = Random(seed)  # noqa: S311 - these people are made up
    ages = [random.randrange(18, 96) for _ in range(count // 2)]
    rows: list[dict[str, object]] = []
    for _ in range(count):
        patient = random.randrange(count // 2)
        age, ward = ages[patient], WARDS[patient % 4]
        back = random.random() < 0.1 + 0.3 * (age > 65) + 0.4 * (ward == "geriatrics")
        rows.append(
            {
                "patient_id": f"P{patient}",
                "age": age,
                "ward": ward,
                "days": random.randrange(1, 15),
                "temperature": round(36 + 3 * random.random(), 1),
                "creatinine": round(0.4 + 2 * random.random(), 2),
                "readmitted": "yes" if back else "no",
            }
        )
    return rows


def write(path: Path, rows: list[dict[str, object]], leave_out: tuple[str, ...] = ()) -> None:
    """Write a table with a header."""
    columns = [column for column in rows[0] if column not in leave_out]
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)


private = Path("export.csv")
private.touch(mode=0o600)  # as yours should be: nobody else may read it
write(private, stays(8000, seed=1))
write(Path("published.csv"), stays(1500, seed=2))  # public, with labels: another hospital's
write(Path("pool.csv"), stays(2000, seed=3), ("patient_id", "readmitted"))  # the student's
