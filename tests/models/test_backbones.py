"""Heads on a public ONNX backbone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Terrine
from onnx import TensorProto, helper, numpy_helper
from refusals import holds, refuses

from terrine_models.data.arrays import Dataset
from terrine_models.features.backbones import Backbone
from terrine_models.features.maps import PublicData
from terrine_models.storage.manifests import BACKBONE, StoreError, load_tensors, sha256
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Heads, load_manifest, verify
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
    assert manifest.files[BACKBONE] == manifest.teacher.features.backbone.sha256
    assert (
        sha256(path.read_bytes())
        == manifest.files[BACKBONE]
        == sha256((out / BACKBONE).read_bytes())
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
    (out / BACKBONE).write_bytes(path.read_bytes() + b"\0")
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
        Backbone.declare(path, table)
    (tmp_path / "text.onnx").write_text("no model")
    with refuses(StoreError, "text.onnx"):
        Backbone.declare(tmp_path / "text.onnx", digits.spec)
