"""What a model takes, told from its graph alone: sizes follow from shapes, never from values.

An operator whose output is as large as some *value* says (`Expand`, `Range`, `NonZero`, …) lets
time and memory depend on what is asked, without any control flow: how long a teacher takes would
tell of its private records. So every tensor is followed through the graph, for as many rows as are
voted on at a time. What comes from weights, and from the *shape* of the input, is computed here, as
exporters write `Shape → Gather → Concat → Reshape`. Whatever else decides a size is refused. The
sizes themselves are those of ONNX's own shape inference, which is told values only where they are
known; where it cannot tell a size, nobody can.

What remains is the time of one kernel on tensors of one size: floats so small that processors slow
down, the depth of the leaf at which a tree ends, the order of what `TopK` sorts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, TensorProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_node_outputs

from .onnx_models import ModelError, first_line

LARGEST = 512 * 2**20
"""Bytes of all tensors that a model holds at a time, beside its weights, for one block of rows."""
FOLLOWED = 2**16
"""Elements of the largest tensor whose values are followed; sizes are computed from a few."""
TEXT = 1024
"""Bytes of the longest text: where labels are texts, their length is the size of a value."""
DEEPEST = 256
"""Levels of a decision tree. How deep its leaves are is told by time, as far as this."""
WHOLE = 2.0**31
"""Numbers of this size and more are not followed as indices."""

ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual
    HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod
    Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus
    Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
LAYERS = """
    ArgMax ArgMin AveragePool BatchNormalization Concat Constant Conv ConvInteger ConvTranspose
    DepthToSpace DequantizeLinear Dropout DynamicQuantizeLinear Einsum EyeLike Flatten Gather
    GatherElements GatherND Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample
    GroupNormalization Hardmax InstanceNormalization LRN LayerNormalization LogSoftmax
    LpNormalization LpPool MatMul MatMulInteger MaxPool MeanVarianceNormalization QLinearConv
    QLinearMatMul QuantizeLinear RMSNormalization Scatter ScatterElements ScatterND Shape Size
    Softmax SpaceToDepth Transpose
"""
LEARNERS = """
    ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LabelEncoder LinearClassifier
    LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler TreeEnsemble
    TreeEnsembleClassifier TreeEnsembleRegressor
"""
REDUCTIONS = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare Squeeze Unsqueeze
"""
ARITHMETIC = """
    Abs Add And Cast Ceil Clip Concat Constant ConstantOfShape CumSum Div Equal Expand Flatten Floor
    Gather Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg NonZero Not Or Pow
    Range ReduceMax ReduceMin ReduceProd ReduceSum Reshape Round ScatterND Sign Slice Split Sqrt
    Squeeze Sub Tile Transpose Unsqueeze Where
"""
DECIDING: dict[str, tuple[int, ...]] = {
    **dict.fromkeys((ELEMENTWISE + LAYERS).split(), ()),
    **dict.fromkeys(REDUCTIONS.split(), (1,)),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (4,)),
    **{
        "AffineGrid": (1,),
        "CenterCropPad": (1,),
        "Col2Im": (1, 2),
        "ConstantOfShape": (0,),
        "CumSum": (1,),
        "Expand": (1,),
        "NonZero": (0,),
        "OneHot": (1,),
        "Pad": (1, 3),
        "Range": (0, 1, 2),
        "Reshape": (1,),
        "Resize": (1, 2, 3),
        "ReverseSequence": (1,),
        "Slice": (1, 2, 3, 4),
        "Split": (1,),
        "Tile": (1,),
        "TopK": (1,),
        "Trilu": (1,),
        "Upsample": (1,),
    },
}
"""The operators of ai.onnx that teachers may use: which of their inputs decide sizes or time."""
LEARNING = frozenset(LEARNERS.split())
"""The operators of ai.onnx.ml that teachers may use. None of their inputs decides a size."""
FOLDED = frozenset(ARITHMETIC.split())
"""The operators with which exporters compute shapes, as they are computed here."""
MOVING = {
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
}
"""Their outputs hold elements of their first input, and no others."""
LOOKED_UP = {
    "Gather": 1,
    "GatherElements": 1,
    "GatherND": 1,
    "Scatter": 1,
    "ScatterElements": 1,
    "ScatterND": 1,
    "ArrayFeatureExtractor": 1,
}
"""Which of their inputs holds indices. One that is out of range makes the model fail."""
FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
WIDE = {TensorProto.INT32, TensorProto.INT64}
RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor, whatever the model is asked."""

    type: int
    """A `TensorProto.DataType`."""
    shape: tuple[int, ...]
    value: NDArray[Any] | None = None
    """Its elements, where they are the same for all inputs, and few."""
    bounds: Bounds | None = None
    """The least and the largest number that it may hold, if it holds finite ones alone."""
    weight: bool = False
    """Whether it is held all the time, as a part of the model."""

    @property
    def size(self) -> int:
        """Bytes."""
        if self.type == TensorProto.STRING:
            return math.prod(self.shape) * (TEXT + 32)
        return math.prod(self.shape) * helper.tensor_dtype_to_np_dtype(self.type).itemsize


def check_sizes(
    model: onnx.ModelProto,
    opsets: Mapping[str, int],
    shape: Sequence[int],
    low: float,
    high: float,
) -> None:
    """Refuse a model whose time or memory depends on values, or that takes too much of it.

    `shape` [rows, …] is that of the block that it is asked about, filled with finite numbers from
    `low` to `high`, or 0. `opsets` are the versions of `ai.onnx` and `ai.onnx.ml`. Raises
    ModelError.
    """
    graph = model.graph
    if graph.sparse_initializer:
        raise ModelError("it has sparse weights; export it with dense ones")
    tensors = {each.name: _weight(each) for each in graph.initializer}
    (given,) = [each for each in graph.input if each.name not in tensors]
    tensors[given.name] = Tensor(
        given.type.tensor_type.elem_type, tuple(shape), bounds=(min(low, 0.0), max(high, 0.0))
    )
    last = {name: i for i, node in enumerate(graph.node) for name in node.input}
    last |= {each.name: len(graph.node) for each in graph.output}
    held = tensors[given.name].size
    for i, node in enumerate(graph.node):
        made = _outputs(node, [tensors[name] if name else None for name in node.input], opsets)
        tensors |= made
        held += sum(each.size for each in made.values() if not each.weight)
        if held > LARGEST:
            raise ModelError(
                f"its tensors take more than {LARGEST // 2**20} MiB at a time on {shape[0]} inputs "
                f"(at {_called(node)}); make it smaller"
            )
        gone = {*node.input, *made} - {""}
        held -= sum(
            tensors[name].size
            for name in gone
            if last.get(name, i) <= i and not tensors[name].weight
        )


def _weight(tensor: TensorProto) -> Tensor:
    _short(tensor.string_data)
    array = numpy_helper.to_array(tensor)
    return Tensor(
        tensor.data_type,
        array.shape,
        array if array.size <= FOLLOWED else None,
        _bounds(array),
        weight=True,
    )


def _outputs(
    node: NodeProto, inputs: Sequence[Tensor | None], opsets: Mapping[str, int]
) -> dict[str, Tensor]:
    """The outputs of a node by name. Raises ModelError."""
    domain = "" if node.domain in ("", "ai.onnx") else node.domain
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    _check_operator(node, domain, attributes, inputs)
    if node.op_type in ("Shape", "Size") and inputs[0] is not None:
        dims = np.array(inputs[0].shape, np.int64)
        of = slice(attributes.get("start", 0), attributes.get("end"))
        value = dims[of] if node.op_type == "Shape" else np.array(dims.prod(), np.int64)
        return {node.output[0]: _computed(value)}
    schema = defs.get_schema(node.op_type, opsets[domain or "ai.onnx"], domain)
    found = _inferred(node, schema, inputs, opsets)
    names = [name for name in node.output if name]
    known = all(each is None or each.value is not None for each in inputs)
    if known and not domain and node.op_type in FOLDED:
        small = all(
            each is not None and math.prod(each.shape) <= FOLLOWED for each in found.values()
        )
        if small or node.op_type == "NonZero":
            return _folded(node, inputs, opsets)
    if domain:
        found |= _learned(node, attributes, inputs, found)
    for name in names:
        if found.get(name) is None:
            raise ModelError(
                f"the size of what {_called(node)} gives cannot be told from the shape of the "
                "input; export it with fixed shapes"
            )
    made = {name: tensor for name, tensor in found.items() if tensor is not None and name in names}
    bounds = _bounded(node, attributes, inputs)
    return {
        name: Tensor(each.type, each.shape, bounds=bounds[min(i, len(bounds) - 1)])
        for i, (name, each) in enumerate((n, made[n]) for n in names)
    }


def _check_operator(
    node: NodeProto,
    domain: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[Tensor | None],
) -> None:
    called = _called(node)
    if node.op_type in RANDOM and not domain:
        raise ModelError(f"it draws random numbers ({node.op_type}): votes must be repeatable")
    if node.op_type == "ZipMap":
        raise ModelError("it has a ZipMap; of scikit-learn's, convert with the option zipmap=False")
    if node.op_type not in (LEARNING if domain else DECIDING):
        raise ModelError(
            f"it uses {node.op_type}, which teachers may not: only operators are taken whose time "
            "and memory follow from shapes alone"
        )
    for each in node.attribute:
        if each.type in (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS):
            raise ModelError(f"{called} has a sparse tensor; export it with dense ones")
        _short([each.s, *each.strings, *each.t.string_data])
    for i in () if domain else DECIDING[node.op_type]:
        decides = inputs[i] if i < len(inputs) else None
        if decides is not None and decides.value is None:
            raise ModelError(
                f"{called} takes a size from values ({node.input[i]}): its time and memory would "
                "depend on what it is asked; export it with fixed shapes"
            )
    match node.op_type:
        case "Dropout" if not _is_false(inputs[2] if len(inputs) > 2 else None):
            raise ModelError(f"{called} may drop at random, as in training; export for inference")
        case "BatchNormalization" if attributes.get("training_mode") or len(node.output) > 1:
            raise ModelError(f"{called} learns from what it is asked; export for inference")
        case "Cast" | "CastLike":
            kind = inputs[1].type if node.op_type == "CastLike" and inputs[1] else attributes["to"]
            one = inputs[0]
            if (
                one
                and one.value is None
                and (one.type == TensorProto.STRING) != (kind == TensorProto.STRING)
            ):
                raise ModelError(f"{called} turns texts to numbers or back, which teachers may not")
        case "Div" | "Mod" if _may_stop(inputs):
            raise ModelError(
                f"{called} divides whole numbers by what may be 0 or less, which ends the process; "
                "divide by positive constants, or in floating point"
            )
        case "TreeEnsembleClassifier" | "TreeEnsembleRegressor" | "TreeEnsemble":
            _check_depth(attributes, called)
        case _:
            pass
    if node.op_type in LOOKED_UP:
        _check_indices(node, attributes, inputs)


def _is_false(mode: Tensor | None) -> bool:
    return mode is None or (mode.value is not None and not mode.value.any())


def _may_stop(inputs: Sequence[Tensor | None]) -> bool:
    """Whether a division stops the process: by 0, or of the least number by -1."""
    by = inputs[1]
    if by is None or by.type in FLOATS:
        return False
    return by.bounds is None or by.bounds[0] <= 0


def _check_depth(attributes: Mapping[str, Any], called: str) -> None:
    """No path from any node is longer than `DEEPEST`, so none goes in circles."""
    true = np.array(attributes.get("nodes_truenodeids", ()), np.int64)
    false = np.array(attributes.get("nodes_falsenodeids", ()), np.int64)
    if "nodes_treeids" in attributes:
        modes = attributes["nodes_modes"]
        branches = np.array([mode != b"LEAF" for mode in modes], bool)
        trees = np.array(attributes["nodes_treeids"], np.int64)
        ids = np.array(attributes.get("nodes_nodeids", ()), np.int64)
        if len({len(true), len(false), len(branches), len(trees), len(ids)}) > 1:
            raise ModelError(f"{called} has trees whose parts are not equally many")
        place = {pair: i for i, pair in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
        if len(place) < len(ids):
            raise ModelError(f"{called} has two nodes of one number in a tree")
        known = zip(trees.tolist(), true.tolist(), false.tolist(), branches.tolist(), strict=True)
        pairs = [
            (place.get((tree, yes), -1), place.get((tree, no), -1)) if branch else (-1, -1)
            for tree, yes, no, branch in known
        ]
        children = np.array(pairs, np.int64).reshape(-1, 2)
    else:
        leaves = [attributes.get(f"nodes_{side}leafs", ()) for side in ("true", "false")]
        if len({len(true), len(false), *map(len, leaves)}) > 1:
            raise ModelError(f"{called} has trees whose parts are not equally many")
        children = np.stack(
            [
                np.where(np.array(ends, bool), -1, to)
                for ends, to in zip(leaves, (true, false), strict=True)
            ],
            axis=1,
        )
    children = np.where(children < len(children), children, -1)
    reached = np.arange(len(children))
    for _ in range(DEEPEST):
        below = children[reached].ravel()
        reached = np.unique(below[below >= 0])
        if not len(reached):
            return
    raise ModelError(f"{called} has a tree of more than {DEEPEST} levels, or one that has no end")


def _check_indices(
    node: NodeProto, attributes: Mapping[str, Any], inputs: Sequence[Tensor | None]
) -> None:
    """Indices fit, whatever their values: a model that fails is asked row by row, which is slow."""
    data, indices = inputs[0], inputs[LOOKED_UP[node.op_type]]
    if data is None or indices is None:
        return
    match node.op_type:
        case "ArrayFeatureExtractor":
            dims, least = data.shape[-1:], 0
        case "GatherND" | "ScatterND":
            first = attributes.get("batch_dims", 0)
            dims = data.shape[first : first + indices.shape[-1]] if indices.shape else ()
            least = -min(dims, default=0)
        case _:
            axis = attributes.get("axis", 0)
            dims = data.shape[axis : axis + 1] if axis >= 0 else data.shape[axis:][:1]
            least = -min(dims, default=0)
    found = indices.bounds
    if not dims or found is None or found[0] < least or found[1] >= min(dims):
        raise ModelError(
            f"{_called(node)} looks up by values ({node.input[1]}) that may be out of range, and "
            "would fail on some inputs; Clip whole numbers to the range first"
        )


def _inferred(
    node: NodeProto,
    schema: defs.OpSchema,
    inputs: Sequence[Tensor | None],
    opsets: Mapping[str, int],
) -> dict[str, Tensor | None]:
    """Types and shapes by ONNX's inference; None where a size is not known."""
    given = {
        name: each
        for name, each in zip(node.input, inputs, strict=True)
        if name and each is not None
    }
    try:
        types = infer_node_outputs(
            schema,
            node,
            {name: helper.make_tensor_type_proto(t.type, t.shape) for name, t in given.items()},
            {
                name: numpy_helper.from_array(t.value, name)
                for name, t in given.items()
                if t.value is not None
            },
            opset_imports=_imports(opsets),
        )
    except Exception as error:  # the checker's and the inference's have no class in common
        raise ModelError(f"{_called(node)} does not fit its inputs: {first_line(error)}") from None
    found: dict[str, Tensor | None] = {}
    for name, kind in types.items():
        tensor = kind.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        sizes = tuple(size for size in dims if size is not None)
        whole = tensor.HasField("shape") and len(sizes) == len(dims)
        found[name] = Tensor(tensor.elem_type, sizes) if whole else None
    return found


def _folded(
    node: NodeProto, inputs: Sequence[Tensor | None], opsets: Mapping[str, int]
) -> dict[str, Tensor]:
    """Compute the outputs of a node all of whose inputs are known."""
    values = {
        name: each.value
        for name, each in zip(node.input, inputs, strict=True)
        if name and each is not None and each.value is not None
    }
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_value_info(name, onnx.TypeProto()) for name in values],
        [helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name],
    )
    one = helper.make_model(graph, opset_imports=_imports(opsets))
    try:
        found = ReferenceEvaluator(one).run(None, values)
    except Exception as error:  # whatever numpy has against them
        raise ModelError(f"{_called(node)} cannot be computed: {first_line(error)}") from None
    names = [name for name in node.output if name]
    return {name: _computed(np.asarray(v)) for name, v in zip(names, found, strict=True)}


def _computed(value: NDArray[Any]) -> Tensor:
    return Tensor(
        helper.np_dtype_to_tensor_dtype(value.dtype),
        value.shape,
        value if value.size <= FOLLOWED else None,
        _bounds(value),
    )


def _bounds(array: NDArray[Any]) -> Bounds | None:
    if array.dtype.kind not in "biuf" or not array.size:
        return (0.0, 0.0) if not array.size else None
    low, high = float(array.min()), float(array.max())
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _bounded(
    node: NodeProto, attributes: Mapping[str, Any], inputs: Sequence[Tensor | None]
) -> tuple[Bounds | None, ...]:
    """Bounds of the outputs' elements; the last one holds for all further outputs."""
    one = inputs[0] if inputs else None
    mine = None if one is None else one.bounds
    two = inputs[1].bounds if len(inputs) > 1 and inputs[1] is not None else None
    whole = one is not None and one.type in WIDE
    match node.op_type:
        case "ArgMax" | "ArgMin" if one is not None:
            return ((0.0, float(max(0, one.shape[attributes.get("axis", 0)] - 1))),)
        case "TopK" if one is not None:
            return mine, (0.0, float(max(0, one.shape[attributes.get("axis", -1)] - 1)))
        case "And" | "Or" | "Xor" | "Not" | "Equal" | "Less" | "Greater":
            return ((0.0, 1.0),)
        case "LessOrEqual" | "GreaterOrEqual" | "IsNaN" | "IsInf":
            return ((0.0, 1.0),)
        case "Cast" if attributes["to"] == TensorProto.BOOL:
            return ((0.0, 1.0),)
        case "Cast" if mine is not None and attributes["to"] in WIDE | FLOATS:
            if max(map(abs, mine)) >= WHOLE:
                return (None,)
            if attributes["to"] in WIDE:
                return ((float(math.trunc(mine[0])), float(math.trunc(mine[1]))),)
            return ((math.floor(mine[0]), math.ceil(mine[1])),)  # rounded at most that far
        case "Clip" if whole:
            high = inputs[2].bounds if len(inputs) > 2 and inputs[2] is not None else None
            if two is not None and high is not None:
                return ((min(two[0], high[0]), max(two[1], high[1])),)
        case "Add" if whole and mine and two:
            return (_small(mine[0] + two[0], mine[1] + two[1]),)
        case "Sub" if whole and mine and two:
            return (_small(mine[0] - two[1], mine[1] - two[0]),)
        case "Mul" if whole and mine and two:
            products = [a * b for a in mine for b in two]
            return (_small(min(products), max(products)),)
        case "Concat":
            return (_joined(inputs),)
        case "Where":
            return (_joined(inputs[1:]),)
        case "ArrayFeatureExtractor":
            return (mine,)
        case name if name in MOVING:
            return (mine,)
        case _:
            pass
    return (None,)


def _small(low: float, high: float) -> Bounds | None:
    return (low, high) if max(abs(low), abs(high)) < WHOLE else None


def _joined(inputs: Sequence[Tensor | None]) -> Bounds | None:
    known = [each.bounds for each in inputs if each is not None and each.bounds is not None]
    if len(known) < len(inputs):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _learned(
    node: NodeProto,
    attributes: Mapping[str, Any],
    inputs: Sequence[Tensor | None],
    found: Mapping[str, Tensor | None],
) -> dict[str, Tensor]:
    """The outputs of ai.onnx.ml's operators whose shape ONNX does not infer, or not rightly."""
    one = inputs[0]
    if one is None:
        return {}
    rows = one.shape[0] if len(one.shape) > 1 else 1
    classes = len(
        attributes.get("classlabels_ints")
        or attributes.get("classlabels_int64s")
        or attributes.get("classlabels_strings")
        or ()
    )
    shapes: list[tuple[int, ...]]
    match node.op_type:
        case "LinearClassifier" | "TreeEnsembleClassifier":
            shapes = [(rows,), (rows, max(2, classes))]
        case "SVMClassifier":
            pairs = classes * (classes - 1) // 2
            wide = attributes.get("prob_a") or not attributes.get("vectors_per_class")
            shapes = [(rows,), (rows, max(2, classes if wide else pairs))]
        case "LinearRegressor":
            shapes = [(rows, attributes.get("targets", 1))]
        case "SVMRegressor":
            shapes = [(rows, 1)]
        case "Normalizer" | "Scaler" | "Imputer" | "Binarizer":
            shapes = [one.shape]
        case "FeatureVectorizer":
            shapes = [(rows, sum(attributes.get("inputdimensions", ())))]
        case "ArrayFeatureExtractor" if inputs[1] is not None:
            shapes = [(*(one.shape[:-1] or (1,)), math.prod(inputs[1].shape))]
        case _:
            return {}
    texts = "classlabels_strings" in attributes
    made: dict[str, Tensor] = {}
    for i, (name, shape) in enumerate(zip(node.output, shapes, strict=False)):
        kind: int = TensorProto.FLOAT
        if len(shapes) == 2 and i == 0:
            kind = TensorProto.STRING if texts else TensorProto.INT64
        elif node.op_type in ("ArrayFeatureExtractor", "Imputer", "Binarizer"):
            kind = one.type
        inferred = found.get(name)
        made[name] = Tensor(inferred.type if inferred is not None else kind, shape)
    return made


def _short(texts: Sequence[bytes]) -> None:
    if any(len(text) > TEXT for text in texts):
        raise ModelError(f"it holds a text of more than {TEXT:,} bytes; name classes shorter")


def _imports(opsets: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid("" if d == "ai.onnx" else d, v) for d, v in opsets.items()]


def _called(node: NodeProto) -> str:
    return f"its {node.op_type} {node.name}".rstrip()
