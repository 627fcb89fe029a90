"""Which operators an ONNX teacher may use: those whose outputs have sizes that no value decides.

A model without control flow can still take time and memory that depend on its input: a tensor may
have as many elements as a value says. So every value is followed through the graph. It is constant,
or follows from the shapes of tensors, or from their values; and what decides a size must not follow
from values. By induction all sizes follow from the number of rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from terrine_models.storage.onnx_models import ModelError


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
"""By operator: which of its inputs decide the size of what comes out, or how long it takes."""


def check_operators(graph: Any) -> None:
    """Raise ModelError for an operator that is not known, or whose output has a size by values.

    `graph`: an onnx.GraphProto that the checker of onnx has passed: nodes are in order, and none
    holds another graph.
    """
    constants = {each.name: each for each in graph.initializer}
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
        for each in node.attribute if node.op_type == "Constant" else ():
            if each.name == "value":
                constants[node.output[0]] = each.t
        origins |= dict.fromkeys(node.output, origin)


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
