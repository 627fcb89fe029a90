"""Teachers of scikit-learn and PyTorch, from the fitted objects to labels over HTTP."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Terrine
from onnx_made import mlp
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from terrine_client import Client
from terrine_models.convert import to_onnx
from terrine_models.data import Dataset
from terrine_models.ensemble import Ensemble
from terrine_models.onnx_models import ModelError
from terrine_server.audit.world import serving
from terrine_server.settings import Settings

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[2]
TEACHERS = 9
Predict = Callable[[np.ndarray], np.ndarray]
DISJOINT = "every 9th image, from the 1st to the 9th"


def of_sklearn(x: np.ndarray, y: np.ndarray, i: int) -> tuple[Any, Predict]:
    kinds: list[Any] = [
        LogisticRegression(max_iter=200),
        RandomForestClassifier(10, random_state=i),
        make_pipeline(StandardScaler(), MLPClassifier((16,), max_iter=60, random_state=i)),
    ]
    made = kinds[i % len(kinds)].fit(x, y)
    return made, made.predict


def of_torch(x: np.ndarray, y: np.ndarray, i: int) -> tuple[Any, Predict]:
    torch.manual_seed(i)
    made = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )
    optimizer = torch.optim.Adam(made.parameters(), 0.02)
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(made(torch.tensor(x)), torch.tensor(y)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def predict(inputs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            found: np.ndarray = made.eval()(torch.tensor(inputs)).argmax(1).numpy()
        return found

    return made, predict


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small products wait for each other in several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("trained", [of_sklearn, of_torch])
def test_teachers_you_have_serve_after_three_commands(
    trained: Callable[..., tuple[Any, Predict]], terrine: Terrine, tmp_path: Path, digits: Dataset
) -> None:
    x, y = digits.inputs.reshape(-1, 64).astype(np.float32), digits.labels
    rows, models, counts = x[1200:], tmp_path / "models", np.zeros((597, 10), np.int64)
    models.mkdir()
    for i in range(TEACHERS):
        made, predict = trained(x[i:1200:TEACHERS], y[i:1200:TEACHERS], i)
        to_onnx(made, models / f"{i:02d}.onnx", shape=64)
        counts[np.arange(len(rows)), predict(rows)] += 1

    unpickled = seen_unpickling()
    assert terrine("init").fine
    files = sorted(models.glob("*.onnx"))
    said = terrine(
        *("ensemble", "import", *files, "--name", "digits", "--classes", 10),
        *("--input", "float32:64:0..16", "--records", 1200, "--disjoint-by", DISJOINT),
    ).fine
    assert f"as declared by you and not checked: {DISJOINT}" in said
    assert terrine("ensemble", "register", "digits", "--epsilon", 90, "--delta", 1e-4).fine
    opened = ("project", "open", "study", "--ensemble", "digits", "--mechanism", "gnmax")
    assert terrine(*opened, "--sigma", 1, "--epsilon", 80, "--delta", 1e-5).fine

    directory = tmp_path / "data" / "ensembles" / "digits"
    assert (Ensemble.load(directory).votes(rows) == counts).all()
    assert terrine("ensemble", "verify", "digits").fine
    for shown in (terrine("ensemble", "show", "digits"), terrine("project", "show", "study")):
        assert f"{DISJOINT} (declared by the owner, not checked)" in shown.fine

    unanimous = np.flatnonzero(counts.max(1) == TEACHERS)[:10]
    assert len(unanimous) == 10
    token = terrine("token", "create", "--role", "student", "--project", "study").fine
    with serving(Settings()) as url, Client(url, found_token(token)) as client:
        assert client.project().ensemble.disjoint_by == DISJOINT
        labels = client.label(rows[unanimous]).labels
    assert labels.tolist() == counts[unanimous].argmax(1).tolist()
    assert unpickled == []


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


@pytest.mark.parametrize("library", ["sklearn", "torch"])
def test_the_documented_program_makes_teachers(
    library: str, terrine: Terrine, tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs" / "ensembles.md").read_text()
    blocks = [b for b in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if "to_onnx" in b]
    (program,) = [
        block for block in blocks if f"import {library}" in block or f"from {library}" in block
    ]
    flat = digits.inputs[:400].reshape(400, 64)
    np.savez("private.npz", x=flat, y=digits.labels[:400], classes=digits.classes)
    assert terrine("ensemble", "split", "private.npz", "--teachers", 3, "--out", "shards").fine
    exec(compile(program, "docs/ensembles.md", "exec"), {})
    models = sorted(Path("models").glob("*.onnx"))
    stated = ("--partition", "shards/partition.json", "--disjoint-by", "model i knows shard i")
    assert terrine("ensemble", "import", *models, "--name", "ward", *stated).fine
    if library == "sklearn":
        assert terrine("init").fine
        cap = ("--epsilon", 4, "--delta", 1e-4)
        assert terrine("ensemble", "register", "ward", *cap).fine
        assert "is registered already" in terrine("ensemble", "register", "ward", *cap).refused
        assert terrine("ensemble", "import", *models, "--name", "again", *stated).fine
        again = terrine("ensemble", "register", "again", *cap).refused
        assert "3 of these teachers are in the ensemble ward as well" in again
    votes = Ensemble.load(tmp_path / "data" / "ensembles" / "ward").votes(flat)
    assert (votes.argmax(1) == digits.labels[:400]).mean() > 0.6


def found_token(text: str) -> str:
    found = re.search(r"terrine_\S+", text)
    assert found is not None
    return found.group()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--disjoint-by", " "), "--disjoint-by is empty"),
        (("--input", "float32:8"), "--input takes float32:SHAPE:LOW..HIGH"),
        (("--input", "float32:8:1..0"), "--input takes"),
        (("--classes", "a"), "two or more different names"),
        (("--classes", "a,b"), "expected [32, 2]: one for each class"),
        (("--output", "label"), "it has no output label; its outputs: scores"),
        (("--records", 0), "--records"),
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
        "--records": 100,
    }
    options[str(arguments[0])] = arguments[1]
    flat = [part for option in options.items() for part in option]
    refused = terrine("ensemble", "import", path, "--name", "t", *flat)
    assert refused.code != 0
    assert said in refused.err
    assert "Traceback" not in refused.err
    assert not (tmp_path / "data" / "ensembles" / "t").exists()


def test_a_model_that_cannot_be_converted_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="A dict is no model of torch"):
        to_onnx({}, tmp_path / "x.onnx", shape=3)
    with pytest.raises(ModelError, match="A StandardScaler is no classifier"):
        to_onnx(StandardScaler().fit(np.eye(3)), tmp_path / "x.onnx", shape=3)


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
