"""Which operators a model may use: time and memory follow from the number of rows alone.

Nor may an operator be seen to combine the rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from terrine_addons.onnx.models import ModelError


class Origin(IntEnum):
    """What a tensor's values follow from."""

    CONSTANT = 0
    SHAPES = 1
    VALUES = 2


# Sizes follow from the sizes of all inputs, and from attributes.
ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual
    HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log LogSoftmax Max
    Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin
    Sinh Softmax Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
LAYERS = """
    ArgMax ArgMin AveragePool BatchNormalization Concat Conv ConvInteger ConvTranspose CumSum
    DepthToSpace DequantizeLinear Det Dropout DynamicQuantizeLinear Einsum EyeLike Flatten Gather
    GatherElements GatherND Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample
    GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization LpPool MatMul
    MatMulInteger MaxPool MeanVarianceNormalization QLinearConv QLinearMatMul QuantizeLinear
    RMSNormalization ScatterElements ScatterND Shape Size SpaceToDepth Transpose Trilu
"""
CLASSICAL = """
    ArrayFeatureExtractor Binarizer Constant FeatureVectorizer Imputer LabelEncoder LinearClassifier
    LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler TreeEnsemble
    TreeEnsembleClassifier TreeEnsembleRegressor ZipMap
"""
REDUCTIONS = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare
"""
# By operator: which of its inputs decide the size of what comes out, or how long it takes.
DECIDING: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(f"{ELEMENTWISE} {LAYERS} {CLASSICAL}".split(), ()),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "GRU": (4,),
    "LSTM": (4,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "RNN": (4,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1, 2),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **dict.fromkeys(REDUCTIONS.split(), (1,)),
}
# Rows in the batch for which sizes are inferred. It is prime, and no size of a model's own is a
# multiple of it, so an axis whose size is one has the rows of the batch.
PROBE_BATCH_ROWS = 1_000_003
LAST_AXIS = "Hardmax LogSoftmax LpNormalization Normalizer Softmax TopK"
FROM_AXIS = "LayerNormalization RMSNormalization"
AXIS = "ArgMax ArgMin Gather GatherElements ScatterElements"
RECURRENT = "GRU LSTM RNN"
FROM_CHANNELS = "Conv ConvInteger ConvTranspose GroupNormalization LRN QLinearConv"
# Operators by the axes of their first input along which they work (`_combined_axes`).
FROM_SPACE = """
    AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample InstanceNormalization LpPool
    MaxPool
"""


def check_operators(graph: Any) -> dict[str, Origin]:
    """Raise ModelError for an operator that is not known, or whose output has a size by values.

    `graph`: an onnx.GraphProto that the checker of onnx has passed: nodes are in order, and none
    holds another graph. Returns what each tensor's values follow from.
    """
    constants = _constants(graph)
    origins: dict[str, Origin] = {each.name: Origin.VALUES for each in graph.input}
    origins |= dict.fromkeys(constants, Origin.CONSTANT)
    origins |= {each.values.name: Origin.CONSTANT for each in graph.sparse_initializer}
    for node in graph.node:
        deciding = DECIDING.get(node.op_type)
        if deciding is None:
            raise ModelError(
                f"it uses {node.op_type}, which is not among the operators whose time and memory "
                "are known to follow from the number of rows alone"
            )
        given = [origins.get(name, Origin.CONSTANT) for name in node.input]
        for at in deciding:
            if at < len(given) and given[at] == Origin.VALUES:
                raise ModelError(
                    f"{node.op_type} makes a tensor whose size depends on values: the time and the "
                    "memory that it takes would depend on the input. Sizes must be constants or "
                    "follow from shapes"
                )
        _check_inference(node, constants)
        origin = max(given, default=Origin.CONSTANT)
        if node.op_type in ("Shape", "Size"):
            origin = min(origin, Origin.SHAPES)
        origins |= dict.fromkeys(node.output, origin)
    return origins


def _check_inference(node: Any, constants: Mapping[str, Any]) -> None:
    """Raise ModelError if a layer is in the mode of training, in which it draws or remembers."""
    from onnx import numpy_helper

    training = False
    if node.op_type == "BatchNormalization":
        switched = any(each.name == "training_mode" and each.i != 0 for each in node.attribute)
        training = switched or sum(map(bool, node.output)) > 1
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
        switch = constants.get(node.input[2])
        training = switch is None or bool(numpy_helper.to_array(switch).any())
    if training:
        raise ModelError(
            f"{node.op_type} is in the mode of training: export the model for inference, as with "
            "model.eval()"
        )


def check_rows(model: Any, opset: int, origins: Mapping[str, Origin]) -> None:
    """Raise ModelError for an operator that can be seen to combine the rows of a batch.

    `model`: an onnx.ModelProto; `opset`: of ai.onnx; `origins`: of `check_operators`. Sizes are
    inferred for a batch of `PROBE_BATCH_ROWS`. No operator may work along an axis that has the
    rows, or make a tensor that has them on two axes, as where each is compared with each, or on
    none, as a sum over all. Where sizes are not known, nothing is refused. A model that takes one
    row at a time cannot combine any.
    """
    sizes = _infer_sizes(model)
    if sizes is None:
        return
    constants = _constants(model.graph)
    for node in model.graph.node:
        known = [sizes[name] for name in node.output if name in sizes and origins[name]]
        if any(len(_with_rows(each)) > 1 for each in known):
            raise _combining(node, "compares each row of a batch with each")
        given = [name for name in node.input if origins.get(name) == Origin.VALUES]
        if given and node.op_type == "DynamicQuantizeLinear":
            raise _combining(node, "takes its scale over all rows of a batch")
        if not any(_with_rows(sizes.get(name, ())) for name in given):
            continue
        first = sizes.get(node.input[0], ()) if node.input[0] in given else ()
        if rows := _with_rows(first):
            along = _combined_axes(node, len(first), opset, constants)
            if rows & {axis % len(first) for axis in along}:
                raise _combining(node, "works along the rows of a batch")
        made = [
            sizes[name] for name in node.output if origins[name] == Origin.VALUES and name in sizes
        ]
        if any(None not in each and not _with_rows(each) for each in made):
            raise _combining(node, "mixes or selects rows of a batch")


def _combining(node: Any, how: str) -> ModelError:
    return ModelError(
        f"{node.op_type} {how}: what it says of one would depend on the others. Export the model "
        "without it, or with a batch of 1: then it is asked about one row at a time"
    )


def _with_rows(sizes: Sequence[int | None]) -> set[int]:
    """The axes that have the rows of the batch."""
    return {axis for axis, size in enumerate(sizes) if size and size % PROBE_BATCH_ROWS == 0}


def _infer_sizes(model: Any) -> dict[str, tuple[int | None, ...]] | None:
    """The sizes of each tensor of known rank for `PROBE_BATCH_ROWS`; None for a model of one."""
    import onnx

    fed = {each.name for each in model.graph.initializer}
    lean = onnx.ModelProto()
    lean.CopyFrom(model)
    for each in lean.graph.initializer:
        if len(each.dims) > 1:  # a weight; what decides a size has one axis
            for kind, _ in each.ListFields():
                if kind.name.endswith("_data"):
                    each.ClearField(kind.name)
    for each in lean.graph.input:
        shape = each.type.tensor_type.shape
        if each.name not in fed and shape.dim:
            if shape.dim[0].dim_value == 1:
                return None
            shape.dim[0].dim_value = PROBE_BATCH_ROWS
    del lean.graph.value_info[:]
    for each in lean.graph.output:
        each.type.tensor_type.ClearField("shape")
    try:
        graph = onnx.shape_inference.infer_shapes(lean, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        return {}
    return {
        each.name: tuple(
            size.dim_value if size.HasField("dim_value") else None
            for size in each.type.tensor_type.shape.dim
        )
        for each in (*graph.input, *graph.value_info, *graph.output)
        if each.type.tensor_type.HasField("shape")
    }


def _combined_axes(node: Any, rank: int, opset: int, constants: Mapping[str, Any]) -> Sequence[int]:
    """The axes along which an operator works: elements that differ in one of them are combined.

    Those of its first input, of that rank; axes may be negative. What changes a size is left out.
    """
    attributes = {each.name: each for each in node.attribute}
    axis = attributes["axis"].i if "axis" in attributes else None
    kind = node.op_type
    if kind in REDUCTIONS.split():
        axes = attributes["axes"].ints if "axes" in attributes else _ints(node, 1, constants)
        computed = axes is None and any(node.input[1:])
        nothing = "noop_with_empty_axes" in attributes and attributes["noop_with_empty_axes"].i
        return axes or (() if computed or nothing else range(rank))
    if kind in ("Softmax", "LogSoftmax", "Hardmax") and opset < 13:
        start = 1 if axis is None else axis % rank
        return range(start, rank)
    if kind in LAST_AXIS.split():
        return (-1 if axis is None else axis,)
    if kind in FROM_AXIS.split():
        return range((-1 if axis is None else axis) % rank, rank)
    if kind in AXIS.split():
        return (axis or 0,)
    if kind in RECURRENT.split():
        return (attributes["layout"].i if "layout" in attributes else 0,)
    if kind in FROM_CHANNELS.split():
        return range(1, rank)
    if kind in FROM_SPACE.split():
        return range(2, rank)
    if kind == "MeanVarianceNormalization":
        return attributes["axes"].ints if "axes" in attributes else (0, 2, 3)
    if kind == "CumSum":
        return _ints(node, 1, constants) or ()
    if kind == "Slice":  # backwards, it keeps the size
        steps, axes = _ints(node, 4, constants) or (), _ints(node, 3, constants)
        places = range(len(steps)) if axes is None else axes
        return [place for place, step in zip(places, steps, strict=False) if step < 0]
    return ()


def _ints(node: Any, place: int, constants: Mapping[str, Any]) -> list[int] | None:
    """The whole numbers that an input of a node holds; None if there is none, or no constant."""
    from onnx import numpy_helper

    if place >= len(node.input) or node.input[place] not in constants:
        return None
    return [int(each) for each in numpy_helper.to_array(constants[node.input[place]]).ravel()]


def _constants(graph: Any) -> dict[str, Any]:
    """The tensors that are in a graph as weights or as constants, by name."""
    return {
        **{each.name: each for each in graph.initializer},
        **{node.output[0]: tensor for node in graph.node for tensor in _tensors(node)},
    }


def _tensors(node: Any) -> Iterator[Any]:
    from onnx import TensorProto, helper

    for each in node.attribute if node.op_type == "Constant" else ():
        if each.name == "value":
            yield each.t
        elif each.name in ("value_int", "value_ints"):
            values = [each.i] if each.name == "value_int" else list(each.ints)
            shape = [] if each.name == "value_int" else [len(values)]
            yield helper.make_tensor("", TensorProto.INT64, shape, values)
