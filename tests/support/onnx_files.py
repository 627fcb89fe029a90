"""ONNX files made by hand, well-formed and hostile; and who opens files."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUTS, HIDDEN, CLASSES = 8, 16, 3
Change = Callable[[onnx.ModelProto], None]


def mlp(seed: int = 0, inputs: int = INPUTS, classes: int = CLASSES) -> onnx.ModelProto:
    """A network [batch, inputs] → scores [batch, classes] with random weights."""
    draws = np.random.default_rng(seed)
    weights = {
        "w1": draws.normal(size=(inputs, HIDDEN)).astype(np.float32),
        "b1": draws.normal(size=HIDDEN).astype(np.float32),
        "w2": draws.normal(size=(HIDDEN, classes)).astype(np.float32),
        "b2": np.zeros(classes, np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["scores"]),
    ]
    return model(nodes, weights, inputs=inputs, classes=classes)


def quantised(made: onnx.ModelProto, directory: Path) -> Path:
    """A model as onnxruntime quantises it: the scale of activations is taken over all rows."""
    from onnxruntime.quantization import quantize_dynamic

    plain, path = directory / "plain.onnx", directory / "quantised.onnx"
    onnx.save(made, plain)
    quantize_dynamic(plain, path)
    return path


def model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray] | None = None,
    *,
    inputs: int = INPUTS,
    classes: int = CLASSES,
    output: int = TensorProto.FLOAT,
    opsets: tuple[tuple[str, int], ...] = (("", 17), ("ai.onnx.ml", 3)),
    batch: str | int = "batch",
) -> onnx.ModelProto:
    """A model of these nodes from `x` to `scores`, valid or not."""
    shape = [batch] if output != TensorProto.FLOAT else [batch, classes]
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, inputs])],
        [helper.make_tensor_value_info("scores", output, shape)],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def trees(
    changed: dict[str, list[int] | list[float]] | None = None,
    *,
    labelled: bool = False,
    names: list[str] | None = None,
) -> onnx.ModelProto:
    """A tree that asks whether the first number exceeds a half, with attributes changed.

    With `labelled`, the label is an output as well: a number, or one of `names`.
    """
    attributes: dict[str, list[int] | list[float] | list[str]] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "class_treeids": [0, 0],
        "class_nodeids": [1, 2],
        "class_ids": [0, 1],
        "class_weights": [1.0, 1.0],
        "classlabels_int64s": [0, 1, 2],
    }
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml"
    )
    if names is not None:
        attributes["classlabels_strings"] = names
        del attributes["classlabels_int64s"]
    for name, value in (attributes | (changed or {})).items():
        node.attribute.append(helper.make_attribute(name, value))
    made = model([node])
    if labelled:
        kind = TensorProto.INT64 if names is None else TensorProto.STRING
        made.graph.output.append(helper.make_tensor_value_info("label", kind, ["batch"]))
    return made


def with_external_data(location: str) -> onnx.ModelProto:
    """A network whose first weights are said to be in another file."""
    made = mlp()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "512"}.items():
        tensor.external_data.add(key=key, value=value)
    return made


def corpus(seed: int, outside: Path) -> Iterator[tuple[str, bytes]]:
    """Files by name: mutated at random, malformed with intent, and reaching for `outside`."""
    draws = np.random.default_rng(seed)
    whole = {"mlp": mlp().SerializeToString(), "trees": trees().SerializeToString()}
    for name, data in whole.items():
        for i in range(50):
            flipped = np.frombuffer(data, np.uint8).copy()
            places = draws.integers(0, len(data), draws.integers(1, 6))
            flipped[places] = draws.integers(0, 256, len(places))
            yield f"{name}-flipped-{i}", flipped.tobytes()
        for i in range(20):
            yield f"{name}-cut-{i}", data[: draws.integers(0, len(data))]
        for i in range(15):
            a, b = sorted(draws.integers(0, len(data), 2))
            yield f"{name}-repeated-{i}", data[:b] + data[a:]
    for i in range(10):
        yield f"noise-{i}", draws.bytes(int(draws.integers(1, 3000)))
    yield "empty", b""
    yield "text", b"model: digits\n"
    yield "zip", b"PK\x03\x04" + draws.bytes(200)
    yield "pickle", b"\x80\x04cos\nsystem\n\x8c\x04true\x85R."
    for name, made in _malformed(outside):
        yield name, made.SerializeToString()


def _malformed(outside: Path) -> Iterator[tuple[str, onnx.ModelProto]]:
    for i, location in enumerate(
        (str(outside), f"../{outside.name}", f"../../{outside.name}", outside.name, "", "/dev/zero")
    ):
        yield f"external-{i}", with_external_data(location)
        inside = with_external_data(location)
        tensor = inside.graph.initializer.pop(0)
        constant = helper.make_node("Constant", [], ["w1"], value=tensor)
        inside.graph.node.insert(0, constant)
        yield f"external-constant-{i}", inside
        nested = mlp()
        branch = helper.make_graph([constant], "branch", [], [])
        nested.graph.node.append(
            helper.make_node("If", ["w1"], ["q"], then_branch=branch, else_branch=branch)
        )
        yield f"external-nested-{i}", nested
    for name, change in CHANGES.items():
        made = mlp()
        change(made)
        yield name, made
    for name, nodes in NODES.items():
        yield name, model(nodes, {"big": np.array([2**40], np.int64), "w": _weights()})
    for field in ("nodes_truenodeids", "nodes_falsenodeids", "nodes_featureids", "class_nodeids"):
        for value in (-1, 0, 3, 2**31, 2**62):
            yield (
                f"trees-{field}-{value}",
                trees({field: [value] * (3 if field[0] == "n" else 2)}),
            )
    yield "trees-short", trees({"nodes_values": [0.5]})
    yield "trees-nothing", trees({"nodes_treeids": [0], "nodes_nodeids": [0]})
    yield "trees-class-99", trees({"class_ids": [0, 99]})


def _weights() -> np.ndarray:
    return np.ones((INPUTS, CLASSES), np.float32)


def _dims(*dims: int) -> Change:
    def change(made: onnx.ModelProto) -> None:
        del made.graph.initializer[0].dims[:]
        made.graph.initializer[0].dims.extend(dims)

    return change


def _fill(value: float) -> Change:
    def change(made: onnx.ModelProto) -> None:
        filled = np.full((HIDDEN, CLASSES), value, np.float32)
        made.graph.initializer[2].CopyFrom(numpy_helper.from_array(filled, "w2"))

    return change


def _opset(domain: str, version: int) -> Change:
    def change(made: onnx.ModelProto) -> None:
        del made.opset_import[:]
        made.opset_import.add(domain=domain, version=version)

    return change


def _own_function(made: onnx.ModelProto) -> None:
    made.functions.add(name="Gemm", domain="")


def _in_circles(made: onnx.ModelProto) -> None:
    made.graph.node[0].input[0] = "r"


def _no_graph(made: onnx.ModelProto) -> None:
    made.ClearField("graph")


def _deep(made: onnx.ModelProto) -> None:
    graph = helper.make_graph([], "inner", [], [])
    for _ in range(20):
        graph = helper.make_graph([helper.make_node("Loop", [], [], body=graph)], "g", [], [])
    made.graph.node.add(op_type="Loop").attribute.append(helper.make_attribute("body", graph))


CHANGES: dict[str, Change] = {
    "dims-huge": _dims(2**40, 2**20),
    "dims-overflow": _dims(2**62, 4),
    "dims-negative": _dims(-8, 16),
    "dims-none": _dims(),
    "dims-other": _dims(4, 16),
    "weights-nan": _fill(np.nan),
    "weights-infinite": _fill(np.inf),
    "weights-overflowing": _fill(3e38),
    "opset-0": _opset("", 0),
    "opset-negative": _opset("", -1),
    "opset-999": _opset("", 999),
    "opset-other": _opset("com.example", 1),
    "opset-microsoft": _opset("com.microsoft", 1),
    "function": _own_function,
    "circle": _in_circles,
    "no-graph": _no_graph,
    "deep": _deep,
    "no-output": lambda made: made.graph.ClearField("output"),
    "no-input": lambda made: made.graph.ClearField("input"),
    "no-weights": lambda made: made.graph.ClearField("initializer"),
    "no-nodes": lambda made: made.graph.ClearField("node"),
    "two-inputs": lambda made: made.graph.input.append(
        helper.make_tensor_value_info("z", TensorProto.FLOAT, [1])
    ),
    "type-of-weights": lambda made: setattr(made.graph.initializer[0], "data_type", 999),
    "type-of-input": lambda made: setattr(
        made.graph.input[0].type.tensor_type, "elem_type", TensorProto.STRING
    ),
    "future-ir": lambda made: setattr(made, "ir_version", 10_000),
    "long-name": lambda made: setattr(made.graph.node[0], "op_type", "Gemm" * 100_000),
}
NODES: dict[str, list[onnx.NodeProto]] = {
    "unknown": [helper.make_node("Teleport", ["x"], ["scores"])],
    "custom": [helper.make_node("Gemm", ["x", "w"], ["scores"], domain="com.example")],
    "aten": [helper.make_node("ATen", ["x"], ["scores"], domain="org.pytorch.aten")],
    "random": [helper.make_node("RandomNormalLike", ["x"], ["scores"])],
    "memory": [
        helper.make_node("ConstantOfShape", ["big"], ["z"]),
        helper.make_node("ReduceSum", ["z"], ["s"], keepdims=0),
        helper.make_node("Gemm", ["x", "w", "s"], ["scores"]),
    ],
    "tiled": [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Concat", ["big", "big"], ["two"], axis=0),
        helper.make_node("Tile", ["f", "two"], ["scores"]),
    ],
    "mixing": [
        helper.make_node("Softmax", ["x"], ["s"], axis=0),
        helper.make_node("Gemm", ["s", "w"], ["scores"]),
    ],
    "index": [helper.make_node("Gather", ["x", "big"], ["scores"], axis=1)],
    "width": [helper.make_node("Identity", ["x"], ["scores"])],
    "not-finite": [
        helper.make_node("Gemm", ["x", "w"], ["s"]),
        helper.make_node("Sub", ["s", "s"], ["zero"]),
        helper.make_node("Div", ["s", "zero"], ["scores"]),
    ],
}


IN_ACCESS, IN_OPEN = 0x1, 0x20


class Watch:
    """Watches one file."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._handle: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if (
            self._handle < 0
            or libc.inotify_add_watch(self._handle, os.fsencode(path), IN_ACCESS | IN_OPEN) < 0
        ):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))

    def opened(self) -> bool:
        """Whether the file was opened or read since the last call."""
        try:
            return bool(os.read(self._handle, 2**16))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._handle)


@contextmanager
def watching(path: Path) -> Iterator[Watch]:
    watch = Watch(path)
    try:
        yield watch
    finally:
        watch.close()
