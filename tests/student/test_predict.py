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
from terrine_models.students.calibration import Cut
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.selection import choose
from terrine_models.tables.designed import DesignedPool
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


def drawn_pool(rows: int, real: pd.DataFrame, prior: tuple[float, ...]) -> DesignedPool:
    """Rows of which each column goes its own way, as those of `real` do not."""
    random = np.random.default_rng(5)
    apart = pd.DataFrame({name: random.permutation(real[name]) for name in real})
    x = encode_frame(people(rows, 4)[0], SCHEMA)
    return DesignedPool(x, encode_frame(apart, SCHEMA), np.array(prior))


def alike(rows: int, seed: int) -> pd.DataFrame:
    """Real rows: whoever is old is in ward A, so that more are ill than of rows drawn apart."""
    age = np.random.default_rng(seed).integers(0, 100, rows)
    return pd.DataFrame({"age": age, "ward": np.where(age > 55, "A", "B")})


@pytest.mark.parametrize("classes", [("no", "=yes"), ("no", "perhaps", "=yes")])
def test_among_real_rows_each_class_is_said_as_often_as_was_released(
    terrine: Terrine, tmp_path: Path, classes: tuple[str, ...]
) -> None:
    """Of designed rows the cut is on drawn ones; `calibrate` and `predict` place it on real."""
    schema = TableSchema.model_validate(
        {
            "columns": [
                *SCHEMA.model_dump()["columns"][:2],
                {"name": "ill", "role": "label", "values": list(classes)},
            ]
        }
    )
    real = alike(2000, 3)
    prior = (0.7, 0.3) if len(classes) == 2 else (0.6, 0.15, 0.25)
    pool = drawn_pool(3000, real, prior)
    truth = (pool.rows[:, 0] > 0.6) & (pool.rows[:, 1] > 0.5)
    shares = 0.1 + 0.8 * np.where(truth[:, None], np.eye(len(classes))[-1], np.eye(len(classes))[0])
    answers = Answers.of_counts(np.rint(1000 * shares).astype(np.int64), teachers=1000, sigma=20.0)
    task = Task(pool.rows, encoded_input(schema), classes, schema, designed=pool)
    made = choose(task, answers, Training("ridge"))
    assert made.choice.cut == Cut("drawn", 2000)
    assert made.student.model.prior == prior

    def shares_of(said: Any) -> list[float]:
        return [float((np.asarray(said) == name).mean()) for name in classes]

    assert max(np.abs(np.subtract(shares_of(made.student.predict_frame(real).names), prior))) > 0.04
    home, x = tmp_path / "student", encode_frame(real, schema)
    made.student.save(home)
    real.to_csv(tmp_path / "real.csv", index=False)
    out = tmp_path / "labels.csv"
    command = ("student", "predict", tmp_path / "real.csv", "--student", home, "--out", out)
    holds(terrine(*command).fine, "2,000", "calibrate")
    found = shares_of([row["label"].lstrip("'") for row in rows_of(out)])
    np.testing.assert_allclose(found, prior, atol=0.03)
    real[:50].to_csv(tmp_path / "few.csv", index=False)
    few = ("student", "predict", tmp_path / "few.csv", "--student", home)
    holds(terrine(*few).err, 50, "2,000")  # of those that were drawn
    holds(terrine("student", "calibrate", tmp_path / "few.csv", "--student", home).refused, 50, 200)

    again = ("student", "calibrate", tmp_path / "real.csv", "--student", home)
    holds(terrine(*again).fine, "2,000")
    kept = Student.load(home)
    assert kept.model.cut == Cut("given", 2000)
    np.testing.assert_allclose(shares_of(kept.predict(x)), prior, atol=0.03)
    assert (kept.predict(x) == made.student.with_cut(x).predict(x)).all()
    assert (kept.probabilities(x) == made.student.probabilities(x)).all()


def test_a_student_is_cut_by_what_was_released_alone(
    terrine: Terrine, student: Student, tmp_path: Path
) -> None:
    frame, _ = people(300, 1)
    frame.to_csv(tmp_path / "new.csv", index=False)
    command = ("student", "calibrate", tmp_path / "new.csv", "--student", tmp_path / "student")
    holds(terrine(*command).refused, "released", "--threshold")
