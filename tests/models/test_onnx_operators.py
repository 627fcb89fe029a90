"""A teacher's time and memory follow from the number of rows: no value decides a size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_made import CLASSES, INPUTS, mlp, model
from refusals import holds, refuses

from terrine_models.data.arrays import InputSpec
from terrine_models.storage.onnx_check import check_content
from terrine_models.storage.onnx_models import ModelError
from terrine_models.storage.onnx_operators import DECIDING

node = helper.make_node
SUM = [node("ReduceSum", ["x", "all"], ["total"], keepdims=0), node("Cast", ["total"], ["n"], to=7)]
"""A whole number that follows from the input: `n`, and as a list of one `ns`."""
LISTED = [*SUM, node("Unsqueeze", ["n", "zero"], ["ns"])]
BACK = [
    node("Flatten", ["grown"], ["flat"]),
    node("ReduceSum", ["flat"], ["extra"], keepdims=1),
    node("Cast", ["extra"], ["more"], to=1),
    node("Gemm", ["x", "w", "b"], ["plain"]),
    node("Add", ["plain", "more"], ["scores"]),
]
"""What `grown` holds finds its way into the scores."""
WEIGHTS: dict[str, np.ndarray] = {
    "w": np.ones((INPUTS, CLASSES), np.float32),
    "b": np.zeros(CLASSES, np.float32),
    "all": np.array([0, 1], np.int64),
    "zero": np.array([0], np.int64),
    "one": np.array(1, np.int64),
    "ones": np.ones((1, 1), np.float32),
    "pair": np.array([0.0, 1.0], np.float32),
    "row": np.ones((1, 1, 1, 1), np.float32),
    "none": np.zeros(0, np.float32),
    "sizes": np.array([1, 1, 1], np.int64),
    "yes": np.array(True),
    "no": np.array(False),
    "half": np.array(0.5, np.float32),
}
BY_VALUE = {
    "ConstantOfShape": [*LISTED, node("ConstantOfShape", ["ns"], ["grown"])],
    "Expand": [*LISTED, node("Concat", ["ns", "ns"], ["two"], axis=0),
               node("Expand", ["ones", "two"], ["grown"])],
    "Tile": [*LISTED, node("Concat", ["ns", "ns"], ["two"], axis=0),
             node("Tile", ["ones", "two"], ["grown"])],
    "Range": [*SUM, node("Range", ["first", "n", "one"], ["numbers"]),
              node("Unsqueeze", ["numbers", "zero"], ["grown"])],
    "Resize": [*LISTED, node("Concat", ["sizes", "ns"], ["four"], axis=0),
               node("Resize", ["row", "none", "none", "four"], ["grown"])],
    "Pad": [*LISTED, node("Concat", ["ns", "ns", "ns", "ns"], ["pads"], axis=0),
            node("Pad", ["ones", "pads"], ["grown"])],
    "OneHot": [*SUM, node("OneHot", ["zero", "n", "pair"], ["grown"])],
    "Reshape": [*LISTED, node("Reshape", ["x", "ns"], ["long"]),
                node("Unsqueeze", ["long", "zero"], ["grown"])],
    "TopK": [*LISTED, node("TopK", ["x", "ns"], ["grown", "which"])],
    "Slice": [*LISTED, node("Slice", ["x", "zero", "ns"], ["grown"])],
    "NonZero": [node("NonZero", ["x"], ["grown"])],
    "Compress": [node("Greater", ["x", "half"], ["large"]), node("Flatten", ["large"], ["flags"]),
                 node("Compress", ["x", "flags"], ["grown"])],
    "Unique": [node("Unique", ["x"], ["single"]), node("Unsqueeze", ["single", "zero"], ["grown"])],
}  # fmt: skip


def made(nodes: list[onnx.NodeProto]) -> bytes:
    weights = {**WEIGHTS, "first": np.array(0, np.int64)}
    used = {name for each in nodes for name in each.input}
    document = model(nodes, {name: value for name, value in weights.items() if name in used})
    return bytes(document.SerializeToString())


@pytest.mark.parametrize("operator", BY_VALUE)
def test_no_value_decides_a_size(operator: str) -> None:
    with pytest.raises(ModelError) as refused:
        check_content(made([*BY_VALUE[operator], *BACK]))
    said = str(refused.value)
    assert operator in said
    if operator in DECIDING:
        holds(said, "size", "values")
    else:
        holds(said, "operators")
    assert "\n" not in said


def test_sizes_may_follow_from_shapes_and_constants() -> None:
    """As exporters write them: the number of rows, and the rest in one."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"]),
        node("Constant", [], ["rest"], value=helper.make_tensor("c", TensorProto.INT64, [1], [-1])),
        node("Concat", ["rows", "rest"], ["wanted"], axis=0),
        node("Reshape", ["x", "wanted"], ["same"]),
        node("Gemm", ["same", "w", "b"], ["scores"]),
    ]
    assert check_content(made(nodes))
    assert check_content(bytes(mlp().SerializeToString()))


@pytest.mark.parametrize("switch", ["yes", "value", "no"])
def test_dropout_is_for_training(switch: str) -> None:
    nodes = [
        *([node("ReduceMax", ["x"], ["most"], keepdims=0)] if switch == "value" else []),
        *([node("Greater", ["most", "half"], ["value"])] if switch == "value" else []),
        node("Dropout", ["x", "half", switch], ["dropped"]),
        node("Gemm", ["dropped", "w", "b"], ["scores"]),
    ]
    if switch == "no":
        assert check_content(made(nodes))
        return
    with refuses(ModelError, "Dropout"):
        check_content(made(nodes))


def test_batch_normalisation_does_not_go_on_learning() -> None:
    names = ["scale", "bias", "mean", "var"]
    nodes = [
        node("BatchNormalization", ["x", *names], ["normal", "m", "v"], training_mode=1),
        node("Gemm", ["normal", "w", "b"], ["scores"]),
    ]
    weights = {name: WEIGHTS[name] for name in ("w", "b")}
    weights |= {name: np.ones(INPUTS, np.float32) for name in names}
    with refuses(ModelError, "BatchNormalization"):
        check_content(bytes(model(nodes, weights).SerializeToString()))


def test_every_operator_that_is_known_is_one_of_onnx() -> None:
    known = {each.name for each in onnx.defs.get_all_schemas_with_history()}
    assert DECIDING.keys() <= known


def test_a_file_that_is_refused_says_so_in_one_line(tmp_path: Path) -> None:
    from terrine_models.storage.onnx_check import CheckRequest, check, probes

    path = tmp_path / "grows.onnx"
    path.write_bytes(made([*BY_VALUE["ConstantOfShape"], *BACK]))
    spec = InputSpec(shape=(INPUTS,), dtype="float32", low=0, high=1)
    request = CheckRequest(paths=(str(path),), spec=spec, classes=("a", "b", "c"))
    with refuses(ModelError, "ConstantOfShape"):
        check(path, request, probes(request))
