"""Teachers of other libraries, from the fitted objects to labels over HTTP."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightgbm import LGBMClassifier
from onnxmltools.convert import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from support.onnx_files import mlp, watching
from support.processes import Terrine, seed_noise
from support.wording import holds, says
from terrine_addons.onnx.checking import CheckRequest, check, probes
from terrine_addons.onnx.models import OnnxModel, OnnxTeachers
from terrine_client import Client
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.teachers.ensemble import Ensemble
from terrine_server.app import serving
from terrine_server.cli.ledger import open_current_ledger
from terrine_server.labeling.local_voters import LocalVoters
from terrine_server.settings import Settings

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[3]
TEACHERS = 4
DISJOINT = "model i was trained on shard i alone"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small products wait for each other in several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def documented(library: str) -> str:
    """The program of docs/addons/onnx.md that trains a teacher on each shard."""
    text = (REPOSITORY / "docs" / "addons" / "onnx.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (block,) = [
        b for b in blocks if "model = " in b and re.search(rf"^(import|from) {library}", b, re.M)
    ]
    if says(block, "for", "shard"):
        return str(block)
    imported = block.partition("\n\n")[0]
    model, onnx = re.findall(r"^(?:model|onnx) = .*$", block, re.M)
    program = re.sub(
        r"^from sklearn.*$\n^from skl2onnx.*$", imported, documented("sklearn"), flags=re.M
    )
    program = re.sub(r"^    model = .*$", f"    {model}", program, flags=re.M)
    return re.sub(r"^    onnx = .*$", f"    {onnx}", program, flags=re.M)


@pytest.mark.parametrize(
    "library",
    [
        "sklearn",
        *(pytest.param(x, marks=pytest.mark.nightly) for x in ("torch", "lightgbm", "xgboost")),
    ],
)
def test_teachers_you_have_serve_after_three_commands(
    library: str, terrine: Terrine, tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)  # the documented program has no seed
    seed_noise(monkeypatch)
    flat, labels = digits.inputs.reshape(-1, 64), digits.labels
    models: list[Any] = []
    np.savez("private.npz", x=flat[:960], y=labels[:960], classes=digits.classes)
    split = terrine("ensemble", "split", "private.npz", "--teachers", TEACHERS, "--out", "shards")
    holds(split.fine, TEACHERS, 240)
    program = re.sub(
        r"^    (onnx = |torch\.onnx)",
        r"    models.append(model)\n    \1",
        documented(library),
        flags=re.M,
    )
    exec(compile(program, "docs/addons/onnx.md", "exec"), {"models": models})
    rows = flat[1200:]
    counts = np.zeros((len(rows), 10), np.int64)
    for model in models:
        counts[np.arange(len(rows)), own_predictions(model, rows.astype(np.float32))] += 1

    unpickled = seen_unpickling()
    assert terrine("init").fine
    files = sorted(Path("models").glob("*.onnx"))
    stated = ["--input", "shards/partition.json", "--disjoint-by", DISJOINT]
    stated += [] if library == "torch" else ["--output", "label"]
    said = terrine("ensemble", "import", *files, "--name", "digits", *stated).fine
    holds(said, *DISJOINT.split(), "declared", "checked")
    directory = tmp_path / "data" / "ensembles" / "digits"
    assert (Ensemble.load(directory).votes(rows) == counts).all()
    assert unpickled == []
    if library != "sklearn":  # from here on, all are ONNX files
        return

    cap = ("--epsilon", 90, "--delta", 1e-4)
    assert terrine("ensemble", "register", "digits", *cap).fine
    opened = ("project", "open", "study", "--ensemble", "digits", "--mechanism", "gnmax:sigma=0.5")
    assert terrine(*opened, "--epsilon", 80, "--delta", 1e-5).fine
    for shown in (terrine("ensemble", "show", "digits"), terrine("project", "show", "study")):
        holds(shown.fine, *DISJOINT.split(), "declared", "checked")
    holds(terrine("ensemble", "register", "digits", *cap).refused, "registered", "already")
    assert terrine("ensemble", "import", *files, "--name", "again", *stated).fine
    holds(terrine("ensemble", "register", "again", *cap).refused, TEACHERS, "digits")
    # Noise makes up for a lead of four votes once in a million times at most.
    unanimous = np.flatnonzero(counts.max(1) == TEACHERS)[:3]
    assert len(unanimous) == 3
    token = terrine("token", "create", "--role", "student", "--project", "study").fine
    with serving(Settings()) as url, Client(url, found_token(token)) as client:
        assert client.project().ensemble.disjoint_by == DISJOINT
        answers = client.label(rows[unanimous]).labels
    assert answers.tolist() == counts[unanimous].argmax(1).tolist()
    assert unpickled == []


def test_the_service_opens_no_file_of_another_manifest(terrine: Terrine, tmp_path: Path) -> None:
    path = tmp_path / "one.onnx"
    path.write_bytes(mlp().SerializeToString())
    assert terrine("init").fine
    declared = ("--classes", "a,b,c", "--input", "float32:8:0..1", "--units", 5000)
    imported = ("ensemble", "import", path, "--name", "one", *declared)
    assert terrine(*imported, "--disjoint-by", "only one").fine
    assert terrine("ensemble", "register", "one", "--epsilon", 1, "--delta", 1e-5).fine
    record = open_current_ledger().ensembles.get("one")
    voters = LocalVoters(Settings().data_dir)
    manifest = Settings().ensembles_dir / "one" / "manifest.json"
    registered = manifest.read_bytes()
    manifest.write_bytes(registered + b" ")
    with watching(manifest.with_name("teachers-00000.onnx")) as watch:
        assert not voters.available(record)
        assert not watch.opened()
        manifest.write_bytes(registered)
        assert voters.available(record)
        assert watch.opened()


def own_predictions(model: Any, rows: np.ndarray) -> np.ndarray:
    if not isinstance(model, torch.nn.Module):
        return np.asarray(model.predict(rows))
    with torch.inference_mode():
        return np.asarray(model(torch.tensor(rows)).argmax(1))


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(max_iter=200),
        make_pipeline(StandardScaler(), MLPClassifier((16,), max_iter=40, random_state=0)),
        GradientBoostingClassifier(n_estimators=3, random_state=0),
        GaussianNB(),
        LGBMClassifier(n_estimators=3, num_leaves=7, verbose=-1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_converted_classifiers_choose_as_they_predict(
    model: Any, tmp_path: Path, digits: Dataset
) -> None:
    x = digits.inputs.reshape(-1, 64).astype(np.float32)
    rare = digits.labels[:300] != 4  # a shard that lacks a class
    model.fit(x[:300][rare], digits.labels[:300][rare])
    path = tmp_path / "model.onnx"
    path.write_bytes(converted(model, x[:1]).SerializeToString())
    request = CheckRequest(
        paths=(str(path),),
        spec=InputSpec(shape=(64,), dtype="float32", low=0, high=16),
        classes=digits.classes,
        output="label",
    )
    check(path, request, probes(request))
    teachers = OnnxTeachers([OnnxModel(path.read_bytes(), "label")], digits.classes)
    assert (teachers.choices(x)[:, 0] == model.predict(x)).all()


def converted(model: Any, x: np.ndarray) -> Any:
    """As docs/addons/onnx.md says."""
    if isinstance(model, LGBMClassifier):
        kind = FloatTensorType([None, x.shape[1]])
        return convert_lightgbm(model, initial_types=[("x", kind)], zipmap=False)
    return to_onnx(model, x, options={"zipmap": False})


UNPICKLED: list[str] = []


@cache
def _watch_unpickling() -> None:
    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "pickle.find_class":
            UNPICKLED.append(str(arguments))

    sys.addaudithook(hook)  # for good: there is no way to remove one


def seen_unpickling() -> list[str]:
    """The classes that anything in this process unpickles from now on."""
    _watch_unpickling()
    pickle.loads(pickle.dumps(Path("x")))
    assert UNPICKLED, "the hook itself works"
    UNPICKLED.clear()
    return UNPICKLED


def found_token(text: str) -> str:
    found = re.search(r"terrine_\S+", text)
    assert found is not None
    return found.group()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--disjoint-by", " "), "--disjoint-by empty"),
        (("--input", "float32:8"), "--input float32:SHAPE:LOW..HIGH"),
        (("--input", "float32:8:1..0"), "--input"),
        (("--classes", "a"), "two different names"),
        (("--classes", "a,b"), "expected [32, 2]: class"),
        (("--output", "label"), "output label; scores"),
        (("--units", 0), "--units"),
    ],
)
def test_a_mistake_in_an_import_gets_one_clear_error(
    terrine: Terrine, tmp_path: Path, arguments: tuple[object, ...], said: str
) -> None:
    path = tmp_path / "one.onnx"
    path.write_bytes(mlp().SerializeToString())
    options: dict[str, object] = {
        "--disjoint-by": "one hospital",
        "--input": "float32:8:0..1",
        "--classes": "a,b,c",
        "--units": 100,
    }
    options[str(arguments[0])] = arguments[1]
    flat = [part for option in options.items() for part in option]
    refused = terrine("ensemble", "import", path, "--name", "t", *flat)
    assert refused.code != 0
    holds(refused.err, *said.split())
    assert "Traceback" not in refused.err
    assert not (tmp_path / "data" / "ensembles" / "t").exists()


def test_no_package_can_load_a_pickle() -> None:
    loads = re.compile(
        r"\bimport (pickle|joblib|dill|cloudpickle|shelve|marshal)\b"
        r"|\bfrom (pickle|joblib|dill|cloudpickle|shelve|marshal)\b"
        r"|allow_pickle=True|torch\.load\(|weights_only=False|read_pickle"
    )
    sources = [
        p for room in ("server", "client", "models") for p in (REPOSITORY / room).rglob("*.py")
    ]
    assert len(sources) > 100
    found = [p.name for p in sources if loads.search(p.read_text())]
    assert found == []
