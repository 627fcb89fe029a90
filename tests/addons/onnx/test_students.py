"""A student as an ONNX graph: any runtime says what the student says, without Terrine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from support.data import taught
from support.processes import Terrine
from support.wording import holds, refuses
from terrine_addons.onnx.students import export
from terrine_client._privacy import PRIVACY_FILE, PrivacyStatement
from terrine_models.data.arrays import InputSpec
from terrine_models.storage.manifests import StoreError, sha256
from terrine_models.students.models import RidgeModel, Student, Task, TreeModel, tree_student
from terrine_models.tables.loading import encoded_input
from terrine_protocol.projects import TextNumbers
from terrine_protocol.schema import TableSchema
from terrine_tables.texts import hash_texts

NAMES = tuple(f"class {letter}" for letter in "abcdefghijklmnopqrstuvwxyzäöüß<&")


def rows(classes: int, count: int = 1500) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Columns with steps, ranks, a common least value and ties."""
    random = np.random.default_rng(classes)
    x = random.random((count, 8), dtype=np.float32)
    x[:, 1] = x[:, 1] > 0.9
    x[:, 2] = np.where(x[:, 2] < 0.7, 0, x[:, 2])
    x[:, 3] = np.round(x[:, 3], 1)
    score = x[:, 0] + x[:, 1] + 0.3 * random.random(count)
    return x, (score * classes / (score.max() + 1e-6)).astype(np.int64)


def pictures(shape: tuple[int, ...], classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Smooth patterns under so much noise that no class is certain; some are even."""
    random = np.random.default_rng(classes)
    labels = random.integers(0, classes, 300)
    patterns = [gaussian_filter(random.random(shape), (2, 2, 0)[: len(shape)]) for _ in NAMES]
    patterns = [(each - each.min()) / np.ptp(each) for each in patterns]
    x = np.stack([patterns[label] for label in labels])
    x = 0.25 * x + 0.4 * random.random(x.shape) + 0.2
    x[0] = 0
    if len(shape) == 3:  # in grey it would be a second point without gradients, and a tie
        x[1] = 1
    return (x * 255).astype(np.uint8), labels


def picture_spec(*shape: int) -> InputSpec:
    return InputSpec(shape=shape, dtype="uint8", low=0, high=255)


def text_spec(others: int) -> InputSpec:
    """A text, and so many numbers before it and after it."""
    text = TextNumbers(start=others, hashed=256)
    return InputSpec(shape=(256 + 2 * others,), dtype="float32", low=0, high=1, texts=(text,))


def reports(spec: InputSpec, classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Encoded texts of words of which some tell the class; some are missing."""
    random = np.random.default_rng(classes)
    labels = random.integers(0, classes, 600)
    words = [f"{letter}{number}word" for letter in "abc"[:classes] for number in range(8)]
    told = [random.choice(8, 4) + 8 * label for label in labels]
    chosen = [[*some, *random.choice(len(words), 4)] for some in told]
    texts = ["" if random.random() < 0.02 else " ".join(words[i] for i in some) for some in chosen]
    x = random.random((600, *spec.shape), dtype=np.float32)
    for text in spec.texts or ():
        x[:, text.start : text.start + text.hashed] = hash_texts(texts, text.hashed)
    return x, labels


TABLE = InputSpec(shape=(8,), dtype="float32", low=0, high=1)
CASES: dict[str, tuple[str, InputSpec, int]] = {
    "table of two classes": ("ridge", TABLE, 2),
    "table of five classes": ("ridge", TABLE, 5),
    "table in another range": ("ridge", TABLE.model_copy(update={"low": -3, "high": 9.5}), 2),
    "few rows": ("ridge", TABLE, 2),
    "trees of two classes": ("trees", TABLE, 2),
    "trees of five classes": ("trees", TABLE.model_copy(update={"low": -3, "high": 9.5}), 5),
    "tiny pictures": ("ridge", picture_spec(3, 3), 2),
    "small grey pictures": ("ridge", picture_spec(12, 13), 3),
    "grey pictures": ("kernel", picture_spec(28, 28), 10),
    "grey pictures of many classes": ("neighbours", picture_spec(20, 21), 30),
    "small coloured pictures": ("ridge", picture_spec(9, 10, 3), 2),
    "coloured pictures": ("kernel", picture_spec(24, 25, 3), 4),
    "coloured pictures by neighbours": ("neighbours", picture_spec(20, 20, 3), 2),
    "pictures of six channels": ("ridge", picture_spec(22, 21, 6), 3),
    "pictures of one channel": ("kernel", picture_spec(20, 20, 1), 2),
    "texts": ("ridge", text_spec(0), 3),
    "texts beside numbers": ("ridge", text_spec(1), 2),
}
BY_NIGHT = {
    "table of five classes",
    "table in another range",
    "small grey pictures",
    "grey pictures of many classes",
    "pictures of six channels",
    "pictures of one channel",
    "texts",
}
"""Each kind, method and number of dimensions is met by day."""


def made(case: str) -> tuple[Student, NDArray[Any]]:
    method, spec, classes = CASES[case]
    x: NDArray[Any]
    if spec.shape == TABLE.shape:
        x, labels = rows(classes)
        if case == "few rows":
            x, labels = x[:60], labels[:60]
        x = (spec.low + x * (spec.high - spec.low)).astype(np.float32)
    elif spec.texts is not None:
        x, labels = reports(spec, classes)
    else:
        x, labels = pictures(spec.shape, classes)
    labels[::7] = -1
    return taught(method, x, labels, spec, NAMES[:classes]), x


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.nightly] * (case in BY_NIGHT)) for case in CASES],
)
def test_the_graph_says_what_the_student_says(case: str, tmp_path: Path) -> None:
    student, x = made(case)
    classes = len(student.model.classes)
    places: dict[str, object] = {"threshold": 0.4}
    if classes > 2:
        places = {"offsets": tuple(np.linspace(-0.5, 0.5, classes).tolist())}
    likeliest, student = student.predict_indices(x), student.with_model(**places)
    student.save(tmp_path)
    export(tmp_path, tmp_path / "student.onnx")
    graph = onnx.load(tmp_path / "student.onnx")
    oldest = onnx.helper.find_min_ir_version_for(graph.opset_import)
    assert graph.ir_version == oldest, "older runtimes would refuse it for nothing"
    session = onnxruntime.InferenceSession(tmp_path / "student.onnx")
    for start in (0, 7):  # batches of any size
        some = x[start : 3 * start or None]
        labels, probabilities = session.run(None, {"x": some.astype(np.float32)})
        np.testing.assert_allclose(probabilities, student.probabilities(some), atol=1e-5)
        differ = labels != student.predict_indices(some)
        assert differ.mean() <= 0.01, "but for those just at the threshold"
        assert len(labels) == len(some)
    assert np.ptp(student.probabilities(x)) > 0.1
    if case.startswith("table"):
        assert (student.predict_indices(x) != likeliest).any()


def test_trees_with_linear_scores_are_one_graph(tmp_path: Path) -> None:
    """As a public model is that answers correct."""
    x, labels = rows(2)
    task = Task(x, TABLE, NAMES[:2])
    student = taught("trees", x, labels, TABLE, NAMES[:2])
    linear = taught("ridge", x, 1 - labels, TABLE, NAMES[:2])
    assert isinstance(student.network, TreeModel)
    assert isinstance(linear.network, RidgeModel)
    both = tree_student(
        task.spec, task.classes, {}, student.network.trees.scaled(2, 1), parts=linear.network.parts
    )
    both.save(tmp_path)
    export(tmp_path, tmp_path / "student.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "student.onnx")
    said = session.run(None, {"x": x})[1]
    np.testing.assert_allclose(said, both.probabilities(x), atol=1e-5)
    apart = (2 * np.log(student.probabilities(x)) + np.log(linear.probabilities(x)))[:, 1]
    apart -= (2 * np.log(student.probabilities(x)) + np.log(linear.probabilities(x)))[:, 0]
    np.testing.assert_allclose(said[:, 1], 1 / (1 + np.exp(-apart - 1)), atol=1e-4)


def test_a_graph_needs_neither_terrine_nor_its_other_libraries(tmp_path: Path) -> None:
    schema = TableSchema.model_validate(
        {
            "columns": [
                {"name": "age", "role": "numeric", "low": 0, "high": 100},
                {"name": "ward", "role": "categorical", "values": ["A", "B"]},
                {"name": "ill", "role": "label", "values": ["no", "<yes>"]},
            ]
        }
    )
    x, labels = rows(2)
    spec = encoded_input(schema)
    x = x[:, : spec.shape[0]]
    student = taught("ridge", x, labels, spec, ("no", "<yes>")).with_model(
        threshold=0.3, encoding=schema
    )
    student.save(tmp_path)
    export(tmp_path, tmp_path / "student.onnx")
    np.save(tmp_path / "x.npy", x)
    code = """
import json, sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "scipy", "safetensors", "onnx") or "terrine" in name:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hide())
import numpy, onnxruntime
session = onnxruntime.InferenceSession("student.onnx")
label, probabilities = session.run(None, {"x": numpy.load("x.npy")})
numpy.savez("said.npz", label=label, probabilities=probabilities)
print(json.dumps(session.get_modelmeta().custom_metadata_map))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    metadata = json.loads(done.stdout)
    assert json.loads(metadata["terrine.classes"]) == ["no", "<yes>"]
    assert TableSchema.model_validate_json(metadata["terrine.schema"]) == schema
    assert metadata["terrine.model_sha256"] == sha256((tmp_path / "model.json").read_bytes())
    assert float(metadata["terrine.threshold"]) == 0.3
    with np.load(tmp_path / "said.npz") as said:
        np.testing.assert_allclose(said["probabilities"], student.probabilities(x), atol=1e-5)
        assert ((said["probabilities"][:, 1] >= 0.3) == said["label"]).mean() > 0.99


def test_beside_the_student_its_digest_joins_the_papers(tmp_path: Path, terrine: Terrine) -> None:
    student, _ = made("few rows")
    student.save(tmp_path)
    stated = {
        "project": "study",
        "ensemble": "wards",
        "manifest_sha256": "0" * 64,
        "opened_at": "2026-03-01T00:00:00Z",
        "unit": "one record",
        "units": 100,
        "epsilon": 1.0,
        "delta": 1e-5,
        "epsilon_spent": 1.0,
        "charges": 7,
        "accounting": "worst_case",
        "rule": {"name": "gdp"},
        "mechanism": {"name": "noisy_votes", "sigma": 9.0},
        "receipts": 0,
        "files": {},
        "versions": {},
        "written_at": "2026-03-02T00:00:00Z",
    }
    (tmp_path / PRIVACY_FILE).write_text(json.dumps(stated))
    out = tmp_path / "student.onnx"
    done = terrine("student", "export", tmp_path, "--onnx", out)
    assert (done.code, done.err) == (0, "")
    statement = PrivacyStatement.load(tmp_path)
    assert statement.files == {"student.onnx": sha256(out.read_bytes())}
    carried = onnxruntime.InferenceSession(out).get_modelmeta().custom_metadata_map
    said = PrivacyStatement.model_validate_json(carried["terrine.privacy"])
    assert said == statement.model_copy(update={"files": {}})

    student = student.with_model(prior=(0.3, 0.7))
    student.save(tmp_path)
    stated["files"] = {"model.json": "0" * 64, "student.onnx": "1" * 64}
    (tmp_path / PRIVACY_FILE).write_text(json.dumps(stated))
    np.save(tmp_path / "real.npy", rows(2)[0][:300])
    done = terrine("student", "calibrate", tmp_path / "real.npy", "--student", tmp_path)
    assert (done.code, done.err) == (0, "")
    holds(done.out, "student.onnx", "export")
    digest = sha256((tmp_path / "model.json").read_bytes())
    assert PrivacyStatement.load(tmp_path).files == {"model.json": digest}


def test_what_cannot_be_exported_is_refused(tmp_path: Path, terrine: Terrine) -> None:
    done = terrine("student", "export", tmp_path / "none", "--onnx", tmp_path / "s.onnx")
    assert done.code == 1
    holds(done.err, "model.json")
    student, _ = made("few rows")
    student.save(tmp_path)
    done = terrine("student", "export", tmp_path, "--onnx", tmp_path / "s.txt")
    assert done.code == 1
    holds(done.err, "s.txt", "--onnx")
    foreign = student.with_model(architecture="forest", features=())
    foreign.save(tmp_path)
    with refuses(StoreError, "forest"):
        export(tmp_path, tmp_path / "s.onnx")
    assert not (tmp_path / "s.onnx").exists()


def test_a_graph_that_says_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student, _ = made("few rows")
    student.save(tmp_path)
    says = Student.probabilities
    monkeypatch.setattr(Student, "probabilities", lambda self, x: says(self, x) + 2e-5)
    with refuses(StoreError, "2e-05", "1e-05"):
        export(tmp_path, tmp_path / "s.onnx")
    assert not (tmp_path / "s.onnx").exists()
