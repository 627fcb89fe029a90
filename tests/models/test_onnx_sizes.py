"""Imported models whose time or memory depends on values are refused; exporters' own are taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx_made import CLASSES, INPUTS, model, trees

from terrine_models import onnx_check
from terrine_models.onnx_check import Request
from terrine_models.onnx_models import ModelError
from terrine_models.onnx_sizes import DEEPEST, check_sizes

node = helper.make_node
SCORES = np.ones((INPUTS, CLASSES), np.float32)
NUMBERS = {
    "w": SCORES,
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "none": np.array([], np.int64),
    "end": np.array([INPUTS]),
    "0": np.array(0),
    "1": np.array(1),
    "half": np.array(0.5, np.float32),
    "on": np.array(True),
    "off": np.array(False),
    "halves": np.array([0.5], np.float32),
    "table": np.ones((16, CLASSES), np.float32),
    "10": np.array(10),
    "weights": np.ones((1, 4 * INPUTS, 1), np.float32),
    "recurrent": np.ones((1, 4 * INPUTS, INPUTS), np.float32),
}
SECRET = [
    node("Cast", ["x"], ["whole"], to=TensorProto.INT64),
    node("ReduceMax", ["whole"], ["secret"], keepdims=0, axes=[0, 1]),
    node("Reshape", ["secret", "one"], ["n"]),
    node("Greater", ["x", "half"], ["true"]),
]
"""`secret` [] and `n` [1] are numbers, `whole` and `true` [batch, inputs] tensors, of the input's
values."""


def tail(of: str) -> list[NodeProto]:
    """Scores of the input to which the sum of a tensor of any size is added."""
    return [
        node("Cast", [of], ["numbers"], to=TensorProto.FLOAT),
        node("ReduceSum", ["numbers"], ["sum"], keepdims=0),
        node("MatMul", ["x", "w"], ["before"]),
        node("Add", ["before", "sum"], ["scores"]),
    ]


def made(*nodes: NodeProto, of: str = "z", opset: int = 17) -> onnx.ModelProto:
    named = {name for each in [*SECRET, *nodes, *tail(of)] for name in each.input}
    weights = {name: value for name, value in NUMBERS.items() if name in named}
    opsets = (("", opset), ("ai.onnx.ml", 3))
    return model([*SECRET, *nodes, *tail(of)], weights, opsets=opsets)


def said(directory: Path, of: onnx.ModelProto) -> str | None:
    """Why the check refuses a model, if it does."""
    path = directory / "one.onnx"
    path.write_bytes(of.SerializeToString())
    asked = Request([str(path)], [INPUTS], "float32", 0, 1, classes=["a", "b", "c"])
    try:
        onnx_check.check(path, asked, onnx_check.probes(asked))
    except ModelError as error:
        return str(error)
    return None


FROM_VALUES = {
    "ConstantOfShape": made(node("ConstantOfShape", ["n"], ["z"])),
    "Expand": made(node("Expand", ["half", "n"], ["z"])),
    "Tile": made(node("Tile", ["halves", "n"], ["z"])),
    "Range": made(node("Range", ["0", "secret", "1"], ["z"])),
    "Reshape": made(
        node("Concat", ["n", "one"], ["s"], axis=0), node("Reshape", ["x", "s"], ["z"])
    ),
    "Slice": made(node("Slice", ["x", "zero", "n", "one"], ["z"])),
    "TopK": made(node("TopK", ["x", "n"], ["z", "i"])),
    "OneHot": made(
        node("Constant", [], ["both"], value_floats=[0.0, 1.0]),
        node("OneHot", ["whole", "secret", "both"], ["z"]),
    ),
    "NonZero": made(node("NonZero", ["x"], ["z"])),
    "Pad": made(
        node("Concat", ["zero", "zero", "zero", "n"], ["p"], axis=0), node("Pad", ["x", "p"], ["z"])
    ),
    "Resize": made(
        node("Concat", ["one", "n"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["z"], mode="nearest"),
    ),
    "Resize (scales)": made(
        node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        node("Cast", ["one"], ["e"], to=TensorProto.FLOAT),
        node("Concat", ["e", "f"], ["scales"], axis=0),
        node("Resize", ["x", "", "scales"], ["z"], mode="nearest"),
    ),
    "Split": made(
        node("Sub", ["end", "n"], ["rest"]),
        node("Concat", ["n", "rest"], ["parts"], axis=0),
        node("Split", ["x", "parts"], ["z", "other"], axis=1),
    ),
    "CumSum": made(node("CumSum", ["x", "secret"], ["z"])),
    "Trilu": made(node("Trilu", ["x", "secret"], ["z"])),
    "ReduceSum": made(node("ReduceSum", ["x", "n"], ["z"], keepdims=0)),
    "Unsqueeze": made(node("Unsqueeze", ["x", "n"], ["z"])),
    "Squeeze": made(node("Squeeze", ["halves", "n"], ["z"])),
    "LSTM": made(
        node("Unsqueeze", ["x", "zero"], ["u"]),
        node("Transpose", ["u"], ["sequence"], perm=[2, 1, 0]),
        node("Gather", ["whole", "0"], ["lengths64"], axis=1),
        node("Cast", ["lengths64"], ["lengths"], to=TensorProto.INT32),
        node(
            "LSTM",
            ["sequence", "weights", "recurrent", "", "lengths"],
            ["z"],
            hidden_size=INPUTS,
        ),
    ),
}
"""Sizes, or numbers of steps, that are values: each by the operator that takes them."""
UNKNOWN = {
    "Compress": made(
        node("Gather", ["true", "0"], ["row"]),
        node("Compress", ["x", "row"], ["z"], axis=1),
    ),
    "Unique": made(node("Unique", ["x"], ["z"])),
    "NonMaxSuppression": made(
        node("Constant", [], ["shape"], value_ints=[1, -1, 4]),
        node("Reshape", ["x", "shape"], ["boxes"]),
        node("Constant", [], ["shape1"], value_ints=[1, 1, -1]),
        node("ReduceMax", ["boxes"], ["best"], axes=[2], keepdims=1),
        node("Reshape", ["best", "shape1"], ["rated"]),
        node("NonMaxSuppression", ["boxes", "rated", "10"], ["z"]),
    ),
    "RoiAlign": made(
        node("Constant", [], ["shape"], value_ints=[-1, 1, 1, INPUTS]),
        node("Reshape", ["x", "shape"], ["picture"]),
        node("Constant", [], ["four"], value_ints=[-1, 4]),
        node("Reshape", ["x", "four"], ["rois"]),
        node("Gather", ["rois", "0"], ["column"], axis=1),
        node("Cast", ["column"], ["batch"], to=TensorProto.INT64),
        node("RoiAlign", ["picture", "rois", "batch"], ["z"]),
    ),
    "SplitToSequence": made(
        node("SplitToSequence", ["x"], ["s"], axis=0), node("SequenceLength", ["s"], ["z"])
    ),
    "Multinomial": made(node("Multinomial", ["x"], ["z"])),
    "RandomNormalLike": made(node("RandomNormalLike", ["x"], ["z"])),
    "StringNormalizer": made(
        node("Constant", [], ["t"], value_strings=["a", "b"]),
        node("StringNormalizer", ["t"], ["s"]),
        of="x",
    ),
    "TfIdfVectorizer": made(
        node(
            "TfIdfVectorizer",
            ["whole"],
            ["z"],
            max_gram_length=1,
            max_skip_count=0,
            min_gram_length=1,
            mode="TF",
            ngram_counts=[0],
            ngram_indexes=[0],
            pool_int64s=[1],
        )
    ),
}
"""Operators that no teacher needs; an unknown one is refused by its name."""
OTHERWISE = {
    "may drop at random": made(node("Dropout", ["x", "half", "on"], ["z"])),
    "learns from what it is asked": made(
        node("Constant", [], ["ones"], value_floats=[1.0] * INPUTS),
        node(
            "BatchNormalization",
            ["x", "ones", "ones", "ones", "ones"],
            ["z", "mean", "variance"],
            training_mode=1,
        ),
    ),
    "divides whole numbers": made(node("Div", ["whole", "whole"], ["z"])),
    "may be out of range": made(
        node("Add", ["whole", "10"], ["index"]),
        node("Mul", ["index", "10"], ["far"]),
        node("Gather", ["table", "far"], ["z"]),
    ),
    "turns texts to numbers": made(node("Cast", ["x"], ["t"], to=TensorProto.STRING), of="x"),
    "or one that has no end": trees({"nodes_truenodeids": [0, 0, 0]}),
    "a text of more than 1,024 bytes": trees(labelled=True, names=["a", "b", "c" * 2000]),
    "more than 512 MiB at a time": made(
        node("Constant", [], ["wide"], value_ints=[2**20]),
        node("Constant", [], ["column"], value_ints=[1, 1]),
        node("Gather", ["x", "zero"], ["first"], axis=1),
        node("Concat", ["one", "wide"], ["repeats"], axis=0),
        node("Tile", ["first", "repeats"], ["z"]),
    ),
}


@pytest.mark.parametrize("name", FROM_VALUES)
def test_a_size_that_is_a_value_is_refused_by_the_operator_that_takes_it(
    name: str, tmp_path: Path
) -> None:
    why = said(tmp_path, FROM_VALUES[name])
    assert why is not None
    assert f"its {name.partition(' ')[0]} takes a size from values" in why
    assert "export it with fixed shapes" in why
    assert "\n" not in why


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_operator_that_no_teacher_needs_is_refused_by_its_name(
    name: str, tmp_path: Path
) -> None:
    why = said(tmp_path, UNKNOWN[name])
    assert why is not None
    assert name in why
    assert "may not" in why or "random" in why
    assert "\n" not in why


@pytest.mark.parametrize("expected", OTHERWISE)
def test_other_ways_to_tell_by_time_memory_or_failure_are_refused(
    expected: str, tmp_path: Path
) -> None:
    why = said(tmp_path, OTHERWISE[expected])
    assert why is not None
    assert expected in why
    assert "\n" not in why


def test_a_tree_that_is_deeper_than_any_that_is_grown_is_refused(tmp_path: Path) -> None:
    """A path of a million nodes beside one of two would be told by time."""
    levels = DEEPEST + 1
    nodes = 2 * levels + 1
    chain = trees(
        {
            "nodes_treeids": [0] * nodes,
            "nodes_nodeids": list(range(nodes)),
            "nodes_featureids": [0] * nodes,
            "nodes_values": [0.5] * nodes,
            "nodes_modes": ["BRANCH_LEQ", "LEAF"] * levels + ["LEAF"],  # type: ignore[dict-item]
            "nodes_truenodeids": [i + 1 for i in range(nodes)],
            "nodes_falsenodeids": [i + 2 for i in range(nodes)],
        }
    )
    why = said(tmp_path, chain)
    assert why is not None
    assert f"a tree of more than {DEEPEST} levels" in why


@pytest.mark.parametrize(
    "nodes",
    [
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "zero"], ["batch"]),
            node("Constant", [], ["four"], value_ints=[2, 4]),
            node("Concat", ["batch", "four"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["z"]),
        ],
        [
            node("Shape", ["x"], ["shape"]),
            node("ConstantOfShape", ["shape"], ["zeros"]),
            node("Expand", ["half", "shape"], ["halves2"]),
            node("Where", ["true", "halves2", "zeros"], ["z"]),
        ],
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "1"], ["width"]),
            node("Range", ["0", "width", "1"], ["places"]),
            node("Gather", ["x", "places"], ["z"], axis=1),
        ],
        [
            node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
            node("Gather", ["table", "best"], ["z"]),
        ],
        [
            node("Clip", ["whole", "0", "10"], ["index"]),
            node("Gather", ["table", "index"], ["z"]),
        ],
        [node("Dropout", ["x", "half", "off"], ["z"])],
        [node("Div", ["whole", "10"], ["z"])],
    ],
    ids=["reshape", "expand", "range", "best", "clipped", "dropout", "division"],
)
def test_what_exporters_write_is_taken(nodes: list[NodeProto]) -> None:
    opsets = {"ai.onnx": 17, "ai.onnx.ml": 3}
    check_sizes(made(*nodes), opsets, [128, INPUTS], 0, 1)
