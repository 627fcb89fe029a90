"""A trained student is used on tables, frames, arrays and pictures, without a server."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from support.data import taught
from support.processes import Terrine
from support.wording import holds, refuses
from terrine_models.data.arrays import DataError, InputSpec
from terrine_models.students.answers import Answers
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.selection import choose
from terrine_models.tables.loading import encoded_input
from terrine_protocol.errors import ClippedError
from terrine_protocol.projects import ImageFormat
from terrine_protocol.schema import TableSchema
from terrine_tables.encoding import encode_frame

SCHEMA = TableSchema.model_validate(
    {
        "columns": [
            {"name": "age", "role": "numeric", "low": 0, "high": 100},
            {"name": "ward", "role": "categorical", "values": ["A", "B"]},
            {"name": "ill", "role": "label", "values": ["no", "=yes"]},
        ]
    }
)


def people(rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"age": random.integers(0, 100, rows), "ward": random.choice(["A", "B"], rows)}
    )
    return frame, ((frame.age > 60) & (frame.ward == "A")).to_numpy().astype(np.int64)


@pytest.fixture
def student(tmp_path: Path) -> Student:
    """Of a table, with a threshold of its own."""
    frame, truth = people(600, 0)
    task = Task(encode_frame(frame, SCHEMA), encoded_input(SCHEMA), ("no", "=yes"), SCHEMA)
    made = choose(task, Answers.of_labels(truth, 2), Training(threshold=0.3))
    made.student.save(tmp_path / "student")
    return made.student


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_table_is_predicted_by_the_schema_that_the_student_holds(
    terrine: Terrine, student: Student, tmp_path: Path
) -> None:
    frame, truth = people(300, 1)
    frame.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "labels.csv"
    options = ("--student", tmp_path / "student", "--out", out)
    assert "300 inputs" in terrine("student", "predict", tmp_path / "new.csv", *options).fine
    said = student.predict_frame(frame)
    assert (said.names == np.array(["no", "=yes"])[truth]).mean() > 0.85
    written = rows_of(out)
    assert [row["label"].lstrip("'") for row in written] == said.names.tolist()
    assert all(row["label"] in ("no", "'=yes") for row in written)  # no cell is a formula
    command = ("student", "predict", tmp_path / "new.csv", *options[:2])
    text = out.read_bytes().decode()
    for printed in (terrine(*command), terrine(*command, "--out", "-")):
        assert printed.out.replace("\r\n", "\n") == text.replace("\r\n", "\n")
    assert not Path("-").exists()
    yes = [float(row["probability_=yes"]) for row in written]
    np.testing.assert_allclose(yes, said.probabilities[:, 1], rtol=1e-5)
    assert ((said.probabilities[:, 1] >= 0.3) == (said.names == "=yes")).all()


def test_arrays_and_pictures_are_predicted_too(terrine: Terrine, tmp_path: Path) -> None:
    spec = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=255)
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    x = (random.integers(0, 60, (60, 8, 8)) + 150 * labels[:, None, None]).astype(np.uint8)
    image = ImageFormat(height=8, width=8, grey=True)
    made = taught("ridge", x, labels, spec, ("dark", "light")).with_model(image=image)
    made.save(tmp_path / "student")
    np.save(tmp_path / "new.npy", x[:5])
    (tmp_path / "pictures").mkdir()
    for i in range(5):
        Image.fromarray(x[i]).save(tmp_path / "pictures" / f"{i}.png")
    for given in ("new.npy", "pictures"):
        out = tmp_path / f"{given}.csv"
        options = ("--student", tmp_path / "student", "--out", out)
        terrine("student", "predict", tmp_path / given, *options).fine  # noqa: B018 - asserts
        written = rows_of(out)
        assert [row["label"] for row in written] == ["dark", "light", "dark", "light", "dark"]
    assert [row["file"] for row in written] == [f"{i}.png" for i in range(5)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("new.csv", "new.csv column"),
        ("pictures", "folders pictures"),
        ("new.npy", "[4, 9]"),
        ("missing.npy", "missing.npy"),
    ],
)
def test_what_does_not_suit_the_student_is_refused(
    terrine: Terrine, student: Student, tmp_path: Path, given: str, said: str
) -> None:
    (tmp_path / "new.csv").write_text("age,room\n1,A\n")
    (tmp_path / "pictures").mkdir()
    np.save(tmp_path / "new.npy", np.zeros((4, 9), np.float32))
    command = ("student", "predict", tmp_path / given, "--student", tmp_path / "student")
    holds(terrine(*command).refused, *said.split())


def test_an_empty_column_is_predicted_from_only_where_it_is_accepted(
    terrine: Terrine, student: Student, tmp_path: Path
) -> None:
    frame = people(20, 1)[0].assign(ward=None)
    frame.to_csv(tmp_path / "new.csv", index=False)
    command = ("student", "predict", tmp_path / "new.csv", "--student", tmp_path / "student")
    refused = terrine(*command)
    assert refused.code == 1
    holds(refused.err, "ward", 20, "--accept-clipped")
    out = tmp_path / "labels.csv"
    holds(terrine(*command, "--accept-clipped", "--out", out).fine, 20)
    with refuses(ClippedError, "ward", 20, "accept_clipped=True"):
        student.predict_frame(frame)
    with pytest.warns(UserWarning, match="ward"):
        assert len(student.predict_frame(frame, accept_clipped=True).names) == 20


def test_a_student_of_arrays_knows_no_columns() -> None:
    spec = InputSpec(shape=(2,), dtype="float32", low=0, high=1)
    x: Any = np.random.default_rng(0).random((20, 2)).astype(np.float32)
    made = taught("ridge", x, np.arange(20) % 2, spec, ("a", "b"))
    with refuses(DataError, "table"):
        made.predict_frame(people(3, 0)[0])
