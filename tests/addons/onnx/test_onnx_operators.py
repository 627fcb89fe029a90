"""A model's time and memory follow from the number of rows, and its rows stay apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.onnx_files import CLASSES, INPUTS, mlp, model
from support.wording import holds, refuses
from terrine_addons.onnx import checking
from terrine_addons.onnx.checking import (
    CheckRequest,
    FileFinding,
    check,
    check_content,
    probes,
)
from terrine_addons.onnx.models import ModelError
from terrine_addons.onnx.operators import DECIDING
from terrine_models.data.arrays import InputSpec

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


def whole(name: str, *inputs: str, **attributes: Any) -> list[onnx.NodeProto]:
    """One node that makes numbers like the scores of the input's."""
    return [node(name, ["scored", *inputs], ["scores"], **attributes)]


def tall(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """What follows has the scores as `turned`, [3, rows], and leaves `back`, of that shape."""
    back = node("Transpose", ["back"], ["scores"], perm=[1, 0])
    return [node("Transpose", ["scored"], ["turned"], perm=[1, 0]), *nodes, back]


def added(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """What follows leaves `one`, which is added to all scores."""
    return [*nodes, node("Add", ["scored", "one"], ["scores"])]


def mixed(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """What follows leaves a `square` by which all scores are multiplied."""
    return [*nodes, node("MatMul", ["scored", "square"], ["scores"])]


COUPLING = {
    "DynamicQuantizeLinear": [
        node("DynamicQuantizeLinear", ["scored"], ["q", "scale", "zero"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["scores"]),
    ],
    "Softmax": whole("Softmax", axis=0),
    "LogSoftmax": whole("LogSoftmax", axis=-2),
    "Hardmax": tall(node("Hardmax", ["turned"], ["back"])),
    "LpNormalization": whole("LpNormalization", axis=0),
    "LayerNormalization": whole("LayerNormalization", "ones3", axis=0),
    "MeanVarianceNormalization": whole("MeanVarianceNormalization", axes=[0]),
    "CumSum": whole("CumSum", "at0"),
    "ReduceMax": added(node("ReduceMax", ["scored"], ["one"], axes=[0], keepdims=1)),
    "ReduceMean": added(node("ReduceMean", ["scored"], ["one"], axes=[-2], keepdims=0)),
    "ReduceSum": added(node("ReduceSum", ["scored", "axis0"], ["one"], keepdims=1)),
    "ReduceL2": added(node("ReduceL2", ["scored"], ["one"], keepdims=0)),
    "ArgMax": added(
        node("ArgMax", ["scored"], ["best"], axis=0),
        node("Cast", ["best"], ["one"], to=1),
    ),
    "TopK": added(node("TopK", ["scored", "single"], ["one", "which"], axis=0)),
    "Gather": added(node("Gather", ["scored", "axis0"], ["one"])),
    "GatherElements": [
        node("Cast", ["scored"], ["whole"], to=7),
        node("Sub", ["whole", "whole"], ["first"]),
        node("GatherElements", ["scored", "first"], ["scores"]),
    ],
    "Slice": whole("Slice", "last", "far", "axis0", "last"),
    "Concat": [
        node("Concat", ["ones13", "scored"], ["more"], axis=0),
        node("Slice", ["more", "axis0", "last", "axis0"], ["scores"]),
    ],
    "Gemm": mixed(node("Gemm", ["scored", "scored"], ["square"], transA=1)),
    "MatMul": [
        node("Transpose", ["scored"], ["turned"], perm=[1, 0]),
        node("MatMul", ["scored", "turned"], ["pairs"]),
        node("MatMul", ["pairs", "scored"], ["scores"]),
    ],
    "Einsum": mixed(node("Einsum", ["scored", "scored"], ["square"], equation="bi,bj->ij")),
    "Sub": [
        node("ReduceSum", ["scored", "last"], ["line"], keepdims=0),
        node("Unsqueeze", ["line", "last"], ["column"]),
        node("Sub", ["column", "line"], ["differences"]),
        node("ReduceMax", ["differences"], ["largest"], axes=[1], keepdims=1),
        node("Add", ["scored", "largest"], ["scores"]),
    ],
    "Conv": [
        node("Unsqueeze", ["scored", "axis0"], ["picture"]),
        node("Transpose", ["picture"], ["long"], perm=[0, 2, 1]),
        node("Conv", ["long", "kernel"], ["smooth"], pads=[1, 1]),
        node("Transpose", ["smooth"], ["broad"], perm=[0, 2, 1]),
        node("Squeeze", ["broad", "axis0"], ["scores"]),
    ],
    "LSTM": [
        node("Unsqueeze", ["scored", "axis1"], ["sequence"]),
        node("LSTM", ["sequence", "lstm_w", "lstm_r"], ["states"], hidden_size=CLASSES),
        node("Squeeze", ["states", "middle"], ["scores"]),
    ],
}  # fmt: skip
"""By the operator that is refused: scores of a row that depend on those of the others."""
APART = {
    "Softmax of a row": whole("Softmax", axis=-1),
    "LogSoftmax of a row that stands": [
        node("Transpose", ["scored"], ["turned"], perm=[1, 0]),
        node("LogSoftmax", ["turned"], ["back"], axis=0),
        node("Transpose", ["back"], ["scores"], perm=[1, 0]),
    ],
    "LayerNormalization of a row": whole("LayerNormalization", "ones3"),
    "CumSum of a row": whole("CumSum", "at1"),
    "a sum over a row": added(node("ReduceSum", ["scored", "axis1"], ["one"], keepdims=1)),
    "a mean over all of a constant": added(node("ReduceMean", ["ones3"], ["one"], keepdims=0)),
    "no axes, and nothing to do": whole("ReduceSum", noop_with_empty_axes=1),
    "a quantised constant": added(
        node("DynamicQuantizeLinear", ["ones3"], ["q", "scale", "zero"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["one"]),
    ),
    "columns chosen": whole("Gather", "order", axis=1),
    "a row of a constant": added(node("Gather", ["ones13", "axis0"], ["one"])),
    "columns backwards": whole("Slice", "last", "far", "axis1", "last"),
    "all rows, as x[:]": whole("Slice", "axis0", "most", "axis0", "single"),
    "two of each, and their mean": [
        node("Concat", ["scored", "scored"], ["both"], axis=0),
        node("Split", ["both"], ["one", "other"]),
        node("Add", ["one", "other"], ["scores"]),
    ],
    "rows on the second axis, and a convolution of each": [
        node("Unsqueeze", ["scored", "axis1"], ["picture"]),
        node("Conv", ["picture", "flat"], ["smooth"], pads=[1, 1]),
        node("Squeeze", ["smooth", "axis1"], ["scores"]),
    ],
    "a recurrence along a row": [
        node("Unsqueeze", ["scored", "axis0"], ["sequence"]),
        node("LSTM", ["sequence", "lstm_w", "lstm_r"], ["states"], hidden_size=CLASSES),
        node("Squeeze", ["states", "first2"], ["scores"]),
    ],
}  # fmt: skip
MORE: dict[str, np.ndarray] = {
    "axis0": np.array([0]), "axis1": np.array([1]), "last": np.array([-1]),
    "last2": np.array([-1, -2]), "middle": np.array([1, 2]), "first2": np.array([0, 1]),
    "single": np.array([1]), "far": np.array([-(2**40)]), "most": np.array([2**63 - 1]),
    "at0": np.array(0), "at1": np.array(1), "order": np.array([2, 0, 1]),
    "ones3": np.ones(CLASSES, np.float32), "ones13": np.ones((1, CLASSES), np.float32),
    "kernel": np.full((CLASSES, CLASSES, 3), 0.3, np.float32),
    "flat": np.full((1, 1, 3), 0.3, np.float32),
    "lstm_w": np.full((1, 4 * CLASSES, CLASSES), 0.3, np.float32),
    "lstm_r": np.full((1, 4 * CLASSES, CLASSES), 0.3, np.float32),
}  # fmt: skip
SPEC = InputSpec(shape=(INPUTS,), dtype="float32", low=0, high=1)


def after_scores(nodes: list[onnx.NodeProto], batch: str | int = "batch") -> bytes:
    """A model whose scores are what `nodes` make of the `scored` of a network."""
    proto = mlp()
    proto.graph.node[-1].output[0] = "scored"
    network = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    used = {name for each in nodes for name in each.input}
    weights = network | {name: value for name, value in MORE.items() if name in used}
    made = model([*proto.graph.node, *nodes], weights, batch=batch)
    return bytes(made.SerializeToString())


def checked_here(data: bytes, path: Path) -> FileFinding:
    path.write_bytes(data)
    request = CheckRequest(paths=(str(path),), spec=SPEC, classes=("a", "b", "c"))
    return check(path, request, probes(request))


@pytest.mark.parametrize("operator", COUPLING)
def test_what_combines_the_rows_of_a_batch_is_refused_by_name(operator: str) -> None:
    with pytest.raises(ModelError) as refused:
        check_content(after_scores(COUPLING[operator]))
    said = str(refused.value)
    assert said.startswith(f"{operator} ")
    holds(said, "batch", "others")
    one = after_scores(COUPLING[operator], batch=1)
    assert check_content(one), "of one row there is nothing to combine"


@pytest.mark.parametrize("operator", COUPLING)
def test_the_probe_sees_it_too(
    operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "check_rows", lambda *given: None)
    with refuses(ModelError, "beside", "batch"):
        checked_here(after_scores(COUPLING[operator]), tmp_path / "coupling.onnx")


@pytest.mark.parametrize("what", APART)
def test_what_treats_each_row_by_itself_is_taken(what: str, tmp_path: Path) -> None:
    assert checked_here(after_scores(APART[what]), tmp_path / "apart.onnx").width == CLASSES


UNSEEN = {
    "rows are cut elsewhere": [
        node("Reshape", ["scored", "wide"], ["cut"]),
        node("Transpose", ["cut"], ["scores"], perm=[1, 0]),
    ],
    "each row has the next one's answer": [
        node("Shape", ["scored"], ["shape"]),
        node("Gather", ["shape", "at0"], ["rows"]),
        node("Range", ["at0", "rows", "at1"], ["numbers"]),
        node("Add", ["numbers", "at1"], ["next"]),
        node("Mod", ["next", "rows"], ["turn"]),
        node("Unsqueeze", ["turn", "axis1"], ["places"]),
        node("GatherND", ["scored", "places"], ["scores"]),
    ],
}  # fmt: skip
MORE["wide"] = np.array([CLASSES, -1])


@pytest.mark.parametrize("what", UNSEEN)
def test_the_probe_sees_what_no_operator_shows(what: str, tmp_path: Path) -> None:
    data = after_scores(UNSEEN[what])
    assert check_content(data)
    with refuses(ModelError, "beside", "batch"):
        checked_here(data, tmp_path / "coupling.onnx")
