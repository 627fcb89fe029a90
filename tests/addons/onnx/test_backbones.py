"""Heads and neighbours on a public ONNX backbone: what it makes of a row, it makes of it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from support.onnx_files import INPUTS, mlp, model, quantised
from support.processes import Terrine
from support.wording import holds, refuses
from terrine_addons.onnx import backbones
from terrine_addons.onnx.backbones import OnnxBackbone
from terrine_addons.onnx.checking import FileFinding
from terrine_addons.onnx.models import OnnxModel
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import (
    BACKBONE_FILE,
    FeatureSpec,
    PublicModel,
    StoreError,
    load_tensors,
    sha256,
)
from terrine_models.teachers.editions import add
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Heads, load_manifest, verify
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build
from terrine_models.teachers.training import train_ensemble

WIDTH = 96


def weights() -> np.ndarray:
    return (np.random.default_rng(5).normal(size=(64, WIDTH)) / 30).astype(np.float32)


def encoder(path: Path) -> Path:
    """Images [batch, 8, 8] to the positive parts of random projections."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8, 8])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(weights(), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return path


@pytest.mark.parametrize("public", [False, True])
def test_heads_vote_on_the_embeddings(
    public: bool, digits: Dataset, tmp_path: Path, out: Path
) -> None:
    path = encoder(tmp_path / "encoder.onnx")
    private = Dataset(
        digits.inputs[:900], digits.labels[:900], digits.classes, digits.spec, name="half"
    )
    known = PublicData.declare("pool", digits.inputs[900:1500]) if public else None
    config = Heads(augmentations=0, width=60, backbone=path)
    manifest = train_ensemble(private, out, name="d", teachers=5, config=config, public=known)
    assert manifest.teacher.features is not None
    assert manifest.teacher.features.base == "backbone"
    assert manifest.teacher.features.projection == ("graph" if public else "none")
    assert manifest.teacher.features.backbone is not None
    assert manifest.files[BACKBONE_FILE] == manifest.teacher.features.backbone.sha256
    assert (
        sha256(path.read_bytes())
        == manifest.files[BACKBONE_FILE]
        == sha256((out / BACKBONE_FILE).read_bytes())
    )
    verify(out)
    manifest.teacher.inspect(out, manifest)
    rows = digits.inputs[1500:]
    votes = Ensemble.load(out).votes(rows)
    assert (votes.argmax(1) == digits.labels[1500:]).mean() > 0.85
    if not public:
        (name,) = manifest.teacher_files
        heads = load_tensors(out, name, manifest.files[name])
        embedded = np.maximum(rows.reshape(len(rows), 64).astype(np.float32) @ weights(), 0)
        scores = np.einsum("nmd,bd->bnm", heads["weights"], embedded) + heads["biases"].numpy()
        expected = (scores.argmax(2)[..., None] == np.arange(10)).sum(1)
        assert (votes == expected).all(1).mean() > 0.99
    (out / BACKBONE_FILE).write_bytes(path.read_bytes() + b"\0")
    with refuses(StoreError, "backbone.onnx"):
        Ensemble.load(out)


def test_a_backbone_on_the_command_line(terrine: Terrine, digits: Dataset, tmp_path: Path) -> None:
    path = encoder(tmp_path / "encoder.onnx")
    np.savez(
        tmp_path / "private.npz",
        x=digits.inputs[:300],
        y=digits.labels[:300],
        classes=digits.classes,
    )
    train = ("ensemble", "train", tmp_path / "private.npz", "--name", "d", "--teachers", 5)
    said = terrine(*train, "--kind", f"networks:backbone={path}").refused
    holds(said, "networks", "'backbone'")
    holds(terrine(*train, "--kind", f"heads:backbone={path}").fine, "backbone", 96)
    holds(terrine("ensemble", "show", "d").fine, "encoder.onnx", "SHA-256")
    assert terrine("init").fine
    assert terrine("ensemble", "register", "d", "--epsilon", 4, "--delta", 1e-4).fine
    assert (
        load_manifest(tmp_path / "data" / "ensembles" / "d").teacher.model_dump()["augmentations"]
        == 2
    )


def test_what_is_no_backbone_is_refused(digits: Dataset, tmp_path: Path) -> None:
    path = encoder(tmp_path / "encoder.onnx")
    table = digits.spec.model_copy(update={"shape": (64,)})
    with refuses(StoreError, "['batch', 8, 8]", "[batch, 64]"):
        OnnxBackbone.declare(path, table)
    (tmp_path / "text.onnx").write_text("no model")
    with refuses(StoreError, "text.onnx"):
        OnnxBackbone.declare(tmp_path / "text.onnx", digits.spec)


# -------------------------------------------------------------------- backbones that combine rows

TABLE = InputSpec(shape=(INPUTS,), dtype="float32", low=0, high=1)
EMBEDDING = 12
NETWORK = [helper.make_node("Gemm", ["s", "w"], ["scores"])]
SOMEBODY = 5


@pytest.fixture
def combining(tmp_path: Path) -> Path:
    """A small network that onnxruntime quantised: of a block of rows, all have one scale."""
    path = quantised(mlp(classes=EMBEDDING), tmp_path)
    rows = rows_of(4)
    both = [OnnxModel(path.read_bytes())(each) for each in (rows, extreme(rows, 3))]
    assert not np.array_equal(both[0][:3], both[1][:3]), "it does combine them"
    return path


@pytest.fixture
def unchecked(combining: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that sees nothing."""
    digest = sha256(combining.read_bytes())
    found = FileFinding(path=str(combining), sha256=digest, output="scores", width=EMBEDDING)
    monkeypatch.setattr(backbones, "_check_backbone", lambda *given: found)


def rows_of(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0, 0.3, (count, INPUTS)).astype(np.float32)


def extreme(rows: NDArray[np.generic], row: int) -> NDArray[np.float32]:
    changed = rows.astype(np.float32)
    changed[row] = 1
    return changed


def records(count: int = 300, persons: int | None = None) -> Dataset:
    x = rows_of(count)
    groups = None if persons is None else np.arange(count) % persons
    column = None if persons is None else "person"
    labels = (x[:, 0] > 0.15).astype(np.int64)
    return Dataset(x, labels, ("no", "yes"), TABLE, groups=groups, group_column=column)


POOL = PublicData.declare("rows", rows_of(400, seed=1))


def foreign(path: Path, width: int) -> FeatureMap:
    """The embeddings themselves as features."""
    data = path.read_bytes()
    source = PublicModel(name=path.name, sha256=sha256(data), width=width)
    spec = FeatureSpec(base="backbone", projection="none", components=width, backbone=source)
    return FeatureMap(spec, TABLE, {}, OnnxBackbone(data, OnnxModel(data), source))


def test_a_quantised_backbone_is_refused_by_name(combining: Path, tmp_path: Path) -> None:
    settings = NeighbourSettings(backbone=combining)
    with refuses(StoreError, "quantised.onnx", "DynamicQuantizeLinear", "batch"):
        build(records(), tmp_path / "out", name="t", public=POOL, settings=settings)
    with refuses(StoreError, "quantised.onnx", "DynamicQuantizeLinear", "batch"):
        train_ensemble(
            records(), tmp_path / "out", name="t", teachers=3, config=Heads(backbone=combining)
        )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("persons", [None, 60])
def test_replacing_one_record_changes_no_other_vote(
    persons: int | None, combining: Path, tmp_path: Path
) -> None:
    data, key = records(persons=persons), bytes(32)
    settings = NeighbourSettings(backbone=combining, near=10)
    known = []
    for name, inputs in (("before", rows_of(300)), ("after", extreme(rows_of(300), SOMEBODY))):
        first, second = tmp_path / name, tmp_path / f"{name}-2"
        now = replace(data, inputs=inputs)
        now = now if persons is None else replace(now, people=tuple(map(str, range(persons))))
        build(now, first, name="t", public=POOL, settings=settings, key=key)
        coming = replace(now, inputs=np.sqrt(inputs))
        if persons is not None:
            coming = replace(coming, people=tuple(f"new {i}" for i in range(persons)))
        if persons is None:  # nobody joins where nobody knows whose records are
            second = first
        else:
            add(first, second, coming, key)
        known.append(NeighbourEnsemble.load(second))
    before, after = known
    units = 300 if persons is None else persons
    others = before.units % units != SOMEBODY
    x = np.concatenate([rows_of(50, seed=2), extreme(rows_of(1), 0)])
    assert np.array_equal(before.units, after.units)
    assert np.array_equal(before.weights(x)[:, others], after.weights(x)[:, others])


@pytest.mark.usefixtures("unchecked")
def test_what_is_said_of_a_query_depends_on_no_other(combining: Path, tmp_path: Path) -> None:
    build(
        records(),
        tmp_path / "neighbours",
        name="t",
        public=POOL,
        settings=NeighbourSettings(backbone=combining, near=10),
    )
    config = Heads(backbone=combining)
    train_ensemble(records(), tmp_path / "heads", name="t", teachers=9, config=config)
    x = rows_of(40, seed=3)
    ask: list[Callable[[NDArray[np.float32]], NDArray[np.generic]]] = [
        NeighbourEnsemble.load(tmp_path / "neighbours").weights,
        Ensemble.load(tmp_path / "heads").votes,
        lambda rows: foreign(combining, EMBEDDING)(torch.from_numpy(rows)).numpy(),
    ]
    for each in ask:
        together, beside = each(x), each(extreme(x, 0))
        assert np.array_equal(together[1:], beside[1:])


def heads_of(data: Dataset, out: Path, backbone: Path) -> torch.Tensor:
    """The weights of nine heads [9, 2, D]."""
    config = Heads(backbone=backbone)
    manifest = train_ensemble(data, out, name="t", teachers=9, config=config)
    (file,) = manifest.teacher_files
    return load_tensors(out, file, manifest.files[file])["weights"]


@pytest.mark.usefixtures("unchecked")
def test_replacing_one_record_changes_one_head(combining: Path, tmp_path: Path) -> None:
    data = records()
    changed = replace(data, inputs=extreme(data.inputs, SOMEBODY))
    before = heads_of(data, tmp_path / "before", combining)
    after = heads_of(changed, tmp_path / "after", combining)
    assert (before != after).any(2).any(1).sum() == 1


def test_an_embedding_that_overflows_stops_one_head_and_no_other(tmp_path: Path) -> None:
    """exp(60 x) is at most 7e7 of the rows in `records`; the square of an extreme one overflows."""
    nodes = [
        helper.make_node("Mul", ["x", "sixty"], ["steep"]),
        helper.make_node("Exp", ["steep"], ["scores"]),
    ]
    path = tmp_path / "steep.onnx"
    made = model(nodes, {"sixty": np.array(60, np.float32)}, classes=INPUTS)
    path.write_bytes(made.SerializeToString())
    data = records()
    before = heads_of(data, tmp_path / "before", path)
    changed = replace(data, inputs=extreme(data.inputs, SOMEBODY))
    after = heads_of(changed, tmp_path / "after", path)
    other = (before != after).any(2).any(1)
    assert other.sum() == 1
    assert before[other].any()
    assert not after[other].any(), "it knows how common classes are"


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (
            [
                helper.make_node("Squeeze", ["h"], ["q"]),
                helper.make_node("Softmax", ["q"], ["s"], axis=1),
                *NETWORK,
            ],
            "fails",
        ),
        (
            [
                helper.make_node("Shape", ["h"], ["shape"]),
                helper.make_node("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
                helper.make_node("ReduceMax", ["sizes"], ["most"], keepdims=0),
                helper.make_node("Mul", ["h", "most"], ["s"]),
                *NETWORK,
            ],
            "one",
        ),
    ],
)
def test_a_backbone_that_does_not_know_what_one_row_is_is_refused(
    nodes: list[onnx.NodeProto], said: str, tmp_path: Path
) -> None:
    """It would be asked about one row, and every embedding would be another than in a batch."""
    path = tmp_path / "several.onnx"
    first = helper.make_node("Identity", ["x"], ["h"])
    weights = {"w": np.ones((INPUTS, 3), np.float32)}
    path.write_bytes(model([first, *nodes], weights).SerializeToString())
    with refuses(StoreError, "several.onnx", said):
        OnnxBackbone.declare(path, TABLE)


def test_a_row_on_which_it_fails_stops_no_other(tmp_path: Path) -> None:
    """Its embedding is zero, as for what is not finite; an error would tell of one record."""
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Slice", ["i", "zero", "one", "one"], ["first"]),
        helper.make_node("Squeeze", ["first", "one"], ["index"]),
        helper.make_node("Gather", ["table", "index"], ["scores"]),
    ]
    table = np.array([[1, 2, 3], [np.nan, 5, np.inf]], np.float32)
    weights = {"table": table, "zero": np.array([0]), "one": np.array([1])}
    path = tmp_path / "failing.onnx"
    path.write_bytes(model(nodes, weights).SerializeToString())
    x = torch.tensor([[0.0], [1], [99], [0]]).repeat(1, INPUTS)
    assert foreign(path, 3)(x).tolist() == [[1, 2, 3], [0, 5, 0], [0, 0, 0], [1, 2, 3]]
