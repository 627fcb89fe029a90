"""ONNX models, run by onnxruntime: teachers that were trained elsewhere, and public backbones.

Every session computes in the thread that calls it. By default each would start a thread for every
processor, and a thousand teachers as many thousands, which wait for each other.
"""

from __future__ import annotations

import hashlib
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from terrine_models.data.arrays import InputSpec
from terrine_models.storage.manifests import StoreError
from terrine_protocol.base import Record, list_names, map_class_numbers, normalize
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import open_regular_file

DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(uint8)": np.dtype(np.uint8),
}
"""What a model may take as its input."""
LABELS = ("tensor(int64)", "tensor(int32)", "tensor(string)")

BLOCK_BYTES = 256 * 2**20
VALUE_BYTES = 400
"""Bytes that a model is thought to compute with for each number of an input."""
MAX_BLOCK_INPUTS = 128

Values = NDArray[Any]
Ints = NDArray[np.int64]


class ModelError(TerrineError):
    """A model cannot be used; the message says why and what to do, and does not name the file."""


class OnnxModel:
    """One model with one input, and the output of it that is used. Threads may share it."""

    def __init__(self, data: bytes, output: str | None = None) -> None:
        """Raises ModelError. `output` names the output; without it there must be only one.

        `data` must have passed the check (`findings`): a native parser reads it.
        """
        self.session = _session(data)
        inputs = self.session.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(each.name for each in inputs) or "none"
            raise ModelError(f"it has {len(inputs)} inputs ({names}), expected one")
        self.input_name: str = inputs[0].name
        if inputs[0].type not in DTYPES:
            raise ModelError(f"its input is {inputs[0].type}, expected one of {', '.join(DTYPES)}")
        self.dtype = DTYPES[inputs[0].type]
        self.shape: tuple[int | str | None, ...] = tuple(inputs[0].shape)
        """Of the input; a name or None where any size is taken. The first is the batch."""
        self.one_by_one = self.shape[:1] == (1,)
        """Whether it takes one row at a time: exporters fix the batch unless told otherwise."""
        found = {each.name: each for each in self.session.get_outputs()}
        if output is None and len(found) > 1:
            outputs = ", ".join(f"{each.name} {each.type}" for each in found.values())
            raise ModelError(f"it has several outputs ({outputs}): choose one with --output")
        if output is not None and output not in found:
            raise ModelError(f"it has no output {output}; its outputs: {', '.join(found)}")
        self.output: str = next(iter(found)) if output is None else output
        self.output_type: str = found[self.output].type

    def __call__(self, x: NDArray[Any]) -> Values:
        """The output on rows [b, *shape]. Raises what onnxruntime raises."""
        if self.dtype == np.uint8 and x.dtype.kind == "f":
            x = np.round(x)
        x = np.asarray(x, self.dtype)
        batches = [x[i : i + 1] for i in range(len(x))] if self.one_by_one else [x]
        found = [self.session.run([self.output], {self.input_name: rows})[0] for rows in batches]
        return np.concatenate(found) if len(found) > 1 else np.asarray(found[0])


class OnnxTeachers:
    """n models that each choose one of m classes. They compute in this very process.

    Where they are imported, that is the process of `voting.py` and no other.
    """

    def __init__(
        self,
        models: Sequence[OnnxModel],
        classes: Sequence[str],
        threads: int = 1,
        by_index: bool = False,
    ) -> None:
        """`threads` of the models compute at a time; `by_index` as for `indices`."""
        self.models, self.classes, self.by_index = list(models), tuple(classes), by_index
        self._threads = ThreadPoolExecutor(threads, "terrine-models")

    def choices(self, x: NDArray[np.generic]) -> Ints:
        """Every teacher's choice [b, n] on rows [b, *shape].

        A teacher always votes. Where it fails, or says nothing that is a class, it votes for the
        first: an error would tell of one teacher what only noisy votes may tell of all. Raises
        MemoryError if one needs more than there is.
        """
        found = np.empty((len(x), len(self.models)), dtype=np.int64)

        def choose(i: int) -> None:
            found[:, i] = self._choices(self.models[i], x)

        for _ in self._threads.map(choose, range(len(self.models))):
            pass
        return found

    def _choices(self, model: OnnxModel, x: NDArray[np.generic]) -> Ints:
        try:
            return choose_classes(model(x), len(x), self.classes, self.by_index)
        except Exception as error:  # whatever it raises must not show; each row as if asked alone
            pass_on_exhaustion(error)
            return np.array([self._alone(model, row, len(x)) for row in x], dtype=np.int64)

    def _alone(self, model: OnnxModel, row: NDArray[np.generic], size: int) -> int:
        try:
            values = model(np.repeat(row[None], size, 0))
            return int(choose_classes(values, size, self.classes, self.by_index)[0])
        except Exception as error:  # see `choices`: it votes all the same
            pass_on_exhaustion(error)
            return 0


def pass_on_exhaustion(error: Exception) -> None:
    """Raise MemoryError for what onnxruntime, or numpy, says when memory is out."""
    if isinstance(error, MemoryError) or "alloc" in str(
        error
    ):  # std::bad_alloc, Failed to allocate
        raise MemoryError from None


def block_of(shape: Sequence[int]) -> int:
    """How many inputs of this shape ONNX models are asked about at a time, always as many."""
    return max(1, min(MAX_BLOCK_INPUTS, BLOCK_BYTES // (VALUE_BYTES * math.prod(shape))))


def choose_classes(
    values: Values, rows: int, classes: Sequence[str], by_index: bool = False
) -> Ints:
    """The classes [rows] that scores [rows, m] or labels [rows] or [rows, 1] choose.

    The highest score, the lowest index of equals; 0 where a score is not finite or a label is no
    class. `by_index` as for `indices`. Raises ModelError for any other shape, and as `indices`.
    """
    if values.dtype.kind == "f":
        if values.shape != (rows, len(classes)):
            raise ModelError(
                f"it gives scores of shape {list(values.shape)} for {rows} inputs, expected "
                f"{[rows, len(classes)]}: one for each class"
            )
        return np.where(np.all(np.isfinite(values), axis=1), values.argmax(axis=1), 0)
    if values.shape not in ((rows,), (rows, 1)):
        raise ModelError(
            f"it gives labels of shape {list(values.shape)} for {rows} inputs, expected {[rows]}"
        )
    labels = indices(values.ravel(), classes, by_index)
    return np.where((labels >= 0) & (labels < len(classes)), labels, 0)


def indices(labels: Values, classes: Sequence[str], by_index: bool = False) -> Ints:
    """Labels as indices: names are looked up; -1 for a name of no class.

    A number is a name where classes are named by numbers, and an index only where they are not, or
    if the labels that the models learned were indices (`by_index`). Raises ModelError if only some
    classes are named by numbers.
    """
    if labels.dtype.kind in "iu":
        try:
            places = None if by_index else map_class_numbers(classes)
        except ValueError as error:
            raise ModelError(f"its {error}") from None
        if places is None:
            return labels.astype(np.int64)
        return np.array([places.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    known = {normalize(name): i for i, name in enumerate(classes)}
    return np.array([known.get(normalize(str(label)), -1) for label in labels], dtype=np.int64)


def labels_expected(classes: Sequence[str], by_index: bool) -> str:
    """Which labels a model may give, for people."""
    if not by_index and map_class_numbers(classes) is not None:
        return f"the numbers that name them are expected: {list_names(classes)}"
    return f"their numbers, 0 to {len(classes) - 1}, or their names are expected"


def require_onnx() -> None:
    """Raise ModelError unless onnxruntime and onnx are installed."""
    missing = [each for each in ("onnxruntime", "onnx") if find_spec(each) is None]
    if missing:
        raise ModelError(
            f"{' and '.join(missing)} is not installed, and ONNX models need it. In a checkout: "
            "pip install '.[onnx]'"
        )


def _session(data: bytes) -> Any:
    require_onnx()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the thread that calls
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.enable_cpu_mem_arena = False  # a thousand arenas would keep what one batch needed
    options.enable_mem_pattern = False
    options.log_severity_level = 4  # what it says may depend on what the model computes
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no class in common
        raise ModelError(f"onnxruntime cannot load it: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 300 characters."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


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
PROBE_BATCH_ROWS = 1_000_003
"""Rows in the batch for which sizes are inferred. It is prime, and no size of a model's own is a
multiple of it, so an axis whose size is one has the rows of the batch."""
LAST_AXIS = "Hardmax LogSoftmax LpNormalization Normalizer Softmax TopK"
FROM_AXIS = "LayerNormalization RMSNormalization"
AXIS = "ArgMax ArgMin Gather GatherElements ScatterElements"
RECURRENT = "GRU LSTM RNN"
FROM_CHANNELS = "Conv ConvInteger ConvTranspose GroupNormalization LRN QLinearConv"
FROM_SPACE = """
    AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample InstanceNormalization LpPool
    MaxPool
"""
"""Operators by the axes of their first input along which they work (`_along`)."""


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
    sizes = _sizes(model)
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
            along = _along(node, len(first), opset, constants)
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


def _sizes(model: Any) -> dict[str, tuple[int | None, ...]] | None:
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


def _along(node: Any, rank: int, opset: int, constants: Mapping[str, Any]) -> Sequence[int]:
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


LOADING_BYTES = 4 * 2**30
"""Bytes of address space that loading may take, beside eight times the files."""
VOTING_BYTES = 2**30
"""Bytes of address space that one model may take on one block of inputs, beside its weights. The
check asks it one; sizes do not depend on values (`check_operators`), so others take as much."""
OOM_SCORE = "500"
"""Added to what makes the kernel end a process when memory runs out: this one, not the server."""
MEMORY_FILE = Path("/proc/self/statm")
SERVERS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent to all processes of a terminal or a service. The server first answers what waits."""
_SIZE = struct.Struct("<Q")


class GuardedProcess:
    """The process, to its parent. It ends with this object, or with its parent, however that ends.

    What is sent and heard are messages of bytes. A TimeoutError is an OSError.
    """

    def __init__(self, module: str) -> None:
        ours, theirs = socket.socketpair()
        paths = os.pathsep.join(path for path in sys.path if path)
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - this very interpreter, and a constant
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # native code prints where it likes
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )
        self._process, self._socket = process, ours
        self.pid = process.pid
        self.end = weakref.finalize(self, _end, process, ours)
        """End it now."""

    def ended(self) -> bool:
        """Whether it is gone, whoever ended it."""
        return self._process.poll() is not None

    def tell(self, message: bytes, seconds: float) -> None:
        """Send a message. Raises OSError."""
        send(self._socket, message, seconds)

    def hear(self, seconds: float) -> bytes:
        """Return the next message. Raises OSError or EOFError."""
        return receive(self._socket, seconds)

    def ask(self, message: bytes, seconds: float) -> bytes:
        """Send a message, and return the next one. Raises OSError or EOFError."""
        self.tell(message, seconds)
        return self.hear(seconds)

    def code(self) -> int:
        """The exit code, after it hung up."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)  # its own code says why
        self.end()
        return self._process.wait()


def name_exit(code: int) -> str:
    """How a process ended, for people."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def parent() -> socket.socket:
    """The parent, to its guarded process, whose first argument is a descriptor."""
    found = socket.socket(fileno=int(sys.argv[1]))
    for number in SERVERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_end_with, args=(found,), daemon=True).start()
    return found


def send(to: socket.socket, message: bytes, seconds: float | None = None) -> None:
    """Send one message. Raises OSError, which a TimeoutError is."""
    to.settimeout(seconds)
    to.sendall(_SIZE.pack(len(message)))
    to.sendall(message)


def receive(source: socket.socket, seconds: float | None = None) -> bytes:
    """Wait for one message. Raises OSError, which a TimeoutError is, or EOFError."""
    deadline = None if seconds is None else time.monotonic() + seconds
    (size,) = _SIZE.unpack(_exactly(source, _SIZE.size, deadline))
    return bytes(_exactly(source, size, deadline))


def confine() -> None:
    """Let this process write no file, leave no core dump, and end first. Raises ModelError."""
    if not MEMORY_FILE.exists():
        raise ModelError("imported models need Linux: their memory cannot be limited here")
    import resource  # not on every system that trains students

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # sockets are not files
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def limit_memory(more: int) -> None:
    """From now on, let this process take so many bytes of address space beyond what it has."""
    import resource

    now = int(MEMORY_FILE.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = now + more if hard == resource.RLIM_INFINITY else min(now + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


@contextmanager
def memory_for(more: int) -> Iterator[None]:
    """As `limit_memory`, for a while."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(more)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _end(process: subprocess.Popen[bytes], ours: socket.socket) -> None:
    ours.close()
    process.kill()
    process.wait()


def _end_with(parent: socket.socket) -> None:
    """End once the parent is gone, however it ended: also in the middle of a vote."""
    poll = select.poll()
    poll.register(parent, 0)  # a hang-up is always reported
    poll.poll()
    os._exit(0)


def _exactly(source: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        source.settimeout(None if deadline is None else max(1e-3, deadline - time.monotonic()))
        received = source.recv_into(rest)
        if not received:
            raise EOFError
        rest = rest[received:]
    return data


MAX_FILE_BYTES = 512 * 2**20
"""Bytes of one file."""
PARSING_BYTES = LOADING_BYTES + 8 * MAX_FILE_BYTES
"""Bytes of address space that the check may take, except what the model does with inputs."""
PROBE_INPUTS = 32
"""Synthetic inputs."""
PROBE_GROUP = 8
"""Inputs that are asked together, to see whether one changes what is said of another."""
DOMAINS = {"": "ai.onnx", "ai.onnx": "ai.onnx", "ai.onnx.ml": "ai.onnx.ml"}
MIN_OPSET = 7
"""Opset of ai.onnx from which onnxruntime promises to run models."""


class CheckRequest(Record):
    """Which files to check, and as what."""

    paths: tuple[str, ...]
    spec: InputSpec
    role: Literal["teacher", "backbone"] = "teacher"
    classes: tuple[str, ...] = ()
    by_index: bool = False
    """Whether numbers as labels are indices even where classes are named by numbers."""
    output: str | None = None
    probe: str | None = None
    """An .npy file of public inputs [P, *shape] to ask as well."""


class FileFinding(Record):
    """What a file is; or, in `refused`, why it is not taken."""

    path: str
    refused: str | None = None
    sha256: str = ""
    output: str = ""
    opsets: dict[str, int] = Field(default_factory=dict)
    width: int = 0
    """Numbers in each output; 1 for a label."""


def main() -> None:
    """Check the files that the parent asks for."""
    import onnx  # noqa: F401 - now, and not in the time of the first file
    import onnxruntime  # noqa: F401

    asking = parent()
    request = CheckRequest.model_validate_json(receive(asking))
    confine()
    limit_memory(PARSING_BYTES)
    probe = probes(request)
    send(asking, b"")
    for path in request.paths:
        try:
            found = check(Path(path), request, probe)
        except (ModelError, OSError) as error:
            found = _refuse(path, getattr(error, "strerror", None) or str(error))
        except MemoryError:
            found = _refuse(
                path, f"it needs more than {VOTING_BYTES // 2**30} GiB beside its weights"
            )
        except Exception as error:  # of libraries that did not expect such a file
            found = _refuse(path, f"it cannot be checked: {first_line(error)}")
        send(asking, found.model_dump_json().encode())


def _refuse(path: str, why: str) -> FileFinding:
    """Why a file is not taken: names from it are in the text, and a terminal may show it."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in why[:400])
    return FileFinding(path=path, refused=shown)


def check(path: Path, request: CheckRequest, probe: NDArray[np.generic]) -> FileFinding:
    """What the file is. Raises ModelError, or OSError if it cannot be read."""
    data = read(path)
    opsets = check_content(data)
    model = OnnxModel(data, request.output)
    _check_input(model, request.spec)
    width = _check_answers(model, request, probe)
    if request.role == "teacher" and width > 1:
        _check_score_order(data, request)
    return FileFinding(
        path=str(path),
        sha256=hashlib.sha256(data).hexdigest(),
        output=model.output,
        opsets=opsets,
        width=width,
    )


def read(path: Path) -> bytes:
    """The bytes of a regular file of at most `MAX_FILE_BYTES`. Raises ModelError or OSError."""
    with open_regular_file(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > MAX_FILE_BYTES:
            raise ModelError(
                f"it has {found.st_size:,} bytes, at most {MAX_FILE_BYTES:,} are taken"
            )
        data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ModelError(f"it has more than {MAX_FILE_BYTES:,} bytes")
        return data


def check_content(data: bytes) -> dict[str, int]:
    """Refuse what a teacher has no need of; return the opset of each domain. Raises ModelError."""
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import defs

    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise ModelError("it is not an ONNX file") from None
    if not model.HasField("graph") or not model.opset_import:
        raise ModelError("it is not an ONNX file: it has no graph or no operator set")
    if model.functions or model.training_info:
        raise ModelError(
            "it defines functions or training of its own; inline the functions with "
            "onnx.inliner.inline_local_functions"
        )
    for message in messages_in(model):
        _check_message(message)
    opsets: dict[str, int] = {}
    newest = {"ai.onnx": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}
    for each in model.opset_import:
        domain = _domain(each.domain)
        if not (MIN_OPSET if domain == "ai.onnx" else 1) <= each.version <= newest[domain]:
            raise ModelError(
                f"it uses opset {each.version} of {domain}; {MIN_OPSET} to {newest['ai.onnx']} of "
                f"ai.onnx and 1 to {newest['ai.onnx.ml']} of ai.onnx.ml are known here"
            )
        opsets[domain] = each.version
    try:  # also whether each operator is in the opset of its domain
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # the checker's own, protobuf's, or of a file that neither expected
        raise ModelError(f"it is not a valid model: {first_line(error)}") from None
    check_rows(model, opsets.get("ai.onnx", MIN_OPSET), check_operators(model.graph))
    return opsets


def _check_message(message: Any) -> None:
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(message)):
        raise ModelError(
            "it holds fields that the installed onnx does not know; a newer onnx may: "
            "pip install --upgrade onnx"
        )
    match type(message).__name__:
        case "TensorProto" if message.data_location != 0 or message.external_data:
            raise ModelError(
                "its weights are in another file (external data). Put them into this one: "
                "onnx.save_model(onnx.load(path), path), or export with external_data=False"
            )
        case "AttributeProto" if message.HasField("g") or message.graphs:
            raise ModelError(
                "it has control flow (a graph inside an operator, as of If, Loop or Scan): "
                "the time that it takes would depend on the input"
            )


def _domain(name: str) -> str:
    if name not in DOMAINS:
        raise ModelError(
            f"it uses operators of the domain {name!r}; only those of ai.onnx and ai.onnx.ml are "
            "taken"
        )
    return DOMAINS[name]


def probes(request: CheckRequest) -> NDArray[np.generic]:
    """Inputs [P, *shape] to ask: the ends and the middle of the range, draws from it, public ones.

    Raises OSError or ValueError if the public ones cannot be read.
    """
    spec = request.spec
    draws = np.random.default_rng(0).uniform(0, 1, (PROBE_INPUTS, *spec.shape))
    draws[0], draws[1], draws[2] = 0, 1, 0.5
    made = spec.low + draws * (spec.high - spec.low)
    if spec.dtype == "uint8":
        made = np.round(made)
    found = np.clip(made, spec.low, spec.high).astype(spec.dtype)
    if request.probe is None:
        return found
    return np.concatenate([found, np.load(request.probe, allow_pickle=False)])


def _check_input(model: OnnxModel, spec: InputSpec) -> None:
    if not model.shape:
        raise ModelError("it does not say which shape its input has")
    fixed = model.shape[0]
    if isinstance(fixed, int) and fixed != 1:
        raise ModelError(
            f"it takes {fixed} rows at a time; export it with a batch of any size, or of 1"
        )
    fits = len(model.shape) == 1 + len(spec.shape) and all(
        not isinstance(size, int) or size == expected
        for size, expected in zip(model.shape[1:], spec.shape, strict=True)
    )
    if not fits:
        raise ModelError(
            f"its input has shape {list(model.shape)}, expected [batch, "
            f"{', '.join(map(str, spec.shape))}]"
        )


def _check_answers(model: OnnxModel, request: CheckRequest, probe: NDArray[np.generic]) -> int:
    """Ask the probe, twice, and rows of it beside others: only the row itself may matter.

    Returns how many numbers it answers for a row.
    """
    with _asking():
        if request.role == "teacher":  # a backbone is never asked about so many
            model(np.resize(probe, (block_of(request.spec.shape), *request.spec.shape)))
        first, again = np.asarray(model(probe)), np.asarray(model(probe))
    if first.dtype.kind not in "fiuOU":
        raise ModelError(
            f"its output {model.output} is {model.output_type}; expected scores (floating point) "
            "or labels. Of scikit-learn's, convert with the option zipmap=False"
        )
    scores = first.dtype.kind == "f"
    if request.role == "backbone":
        if not scores or first.ndim != 2 or first.shape[0] != len(probe) or not first.shape[1]:
            raise ModelError(f"its output is {first.dtype} {list(first.shape)}, expected [B, D]")
    else:
        choose_classes(first, len(probe), request.classes, request.by_index)
    if scores and not np.isfinite(first).all():
        row = int(np.flatnonzero(~np.isfinite(first).all(1))[0])
        which = f"public input {row - PROBE_INPUTS}" if row >= PROBE_INPUTS else f"probe {row}"
        raise ModelError(f"its output is not finite on {which}; are range and dtype right?")
    if not scores:
        known = indices(first.ravel(), request.classes, request.by_index)
        odd = first.ravel()[(known < 0) | (known >= len(request.classes))]
        if len(odd):
            raise ModelError(
                f"it gives the label {odd[0]!r}, which is none of the classes: "
                f"{labels_expected(request.classes, request.by_index)}"
            )
    if not np.array_equal(first, again):
        raise ModelError(
            "it answers the same input differently, by chance; export it for inference"
        )
    with _asking():
        apart = _keeps_rows_apart(model, probe)
    if not apart:
        raise ModelError(
            "what it answers to an input depends on what is asked beside it. Export it so that it "
            "takes each row of a batch by itself, or with a batch of 1"
        )
    if request.role == "backbone":
        with _asking():
            alone = [np.asarray(model(row[None])).ravel() for row in probe[:PROBE_GROUP]]
        if not all(map(_is_close, alone, first)):
            raise ModelError(
                "it answers otherwise about one row than about several; export it with a batch of "
                "any size"
            )
    return first.shape[1] if scores else 1


def _is_close(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether embeddings are equal except for rounding: products round by the number of rows.

    A backbone is only ever asked about one, so it must know what to do with one.
    """
    much = 1e-3 * float(np.abs(other).max())
    return one.shape == other.shape and np.allclose(one, other, 0, much)


def _check_score_order(data: bytes, request: CheckRequest) -> None:
    """Refuse a model whose scores are of the classes in another order. Raises ModelError.

    Only classifiers of ai.onnx.ml name the classes of their scores, and not where these are
    indices.
    """
    import onnx

    every = list(range(len(request.classes)))
    for node in onnx.ModelProto.FromString(data).graph.node:
        for attribute in node.attribute:
            if attribute.name == "classlabels_strings":
                labels = np.array([name.decode(errors="replace") for name in attribute.strings])
            elif attribute.name in ("classlabels_ints", "classlabels_int64s"):
                if request.by_index or not _are_numbered(request.classes):
                    continue
                labels = np.array(attribute.ints, dtype=np.int64)
            else:
                continue
            places = indices(labels, request.classes).tolist()
            if sorted(places) == every != places:
                raise ModelError(
                    f"its scores are of the classes {list_names(labels.astype(str).tolist())}, in "
                    f"this order, and not of {list_names(request.classes)}: name the classes in "
                    "its order"
                )


def _are_numbered(classes: Sequence[str]) -> bool:
    try:
        return map_class_numbers(classes) is not None
    except ValueError:
        return False


@contextmanager
def _asking() -> Iterator[None]:
    """Give a model memory for its answers, and raise ModelError for whatever it raises."""
    try:
        with memory_for(VOTING_BYTES):
            yield
    except MemoryError:
        raise
    except Exception as error:  # onnxruntime's errors have no class in common
        if "alloc" in str(error):
            raise MemoryError from None
        raise ModelError(f"it fails on inputs of this kind: {first_line(error)}") from None


def _keeps_rows_apart(model: OnnxModel, probe: NDArray[np.generic]) -> bool:
    """Whether it answers the same about rows while those beside them are replaced by extremes.

    The rows that stay are near the middle of the range; those beside them are so, too, or all at
    its lowest or highest end: then a scale, a mean or a maximum over the batch is another. Answers
    must be equal to the last bit, as the number of rows, by which products round, stays the same.
    """
    low, high, centre = probe[0], probe[1], probe[2].astype(np.float64)
    middle = (centre + (probe[3 : 3 + PROBE_GROUP] - centre) / 10).astype(probe.dtype)
    for kept in (slice(0, None, 2), slice(1, None, 2)):
        answers = []
        for beside in (middle, low, high):
            batch = np.empty_like(middle)
            batch[:] = beside
            batch[kept] = middle[kept]
            answers.append(np.asarray(model(batch))[kept])
        if any(not np.array_equal(each, answers[0]) for each in answers[1:]):
            return False
    return True


if __name__ == "__main__":
    main()


START_SECONDS = 120.0
"""Seconds until the check must be ready."""
CHECK_SECONDS = 120.0
"""That one file may take."""
MAX_SHOWN_FINDINGS = 5
"""Refusals that an error names."""


def findings(request: CheckRequest, seconds: float = CHECK_SECONDS) -> list[FileFinding]:
    """What each file is, in order. A file that kills the check, or outlasts it, is refused.

    Raises StoreError if the check itself cannot run: onnx or onnxruntime is missing.
    """
    try:
        require_onnx()
    except ModelError as error:
        raise StoreError(f"{error}.") from None
    found: list[FileFinding] = []
    while rest := request.paths[len(found) :]:
        found += _run(request.model_copy(update={"paths": rest}), seconds)
    return found


def checked(request: CheckRequest, names: Sequence[Path] | None = None) -> list[FileFinding]:
    """As `findings`. Raises StoreError unless all are taken; `names` are the user's."""
    found = findings(request)
    called = [Path(each.path) for each in found] if names is None else names
    refused = {
        path: each.refused
        for path, each in zip(called, found, strict=True)
        if each.refused is not None
    }
    refuse(refused, len(found))
    return found


def refuse(why: Mapping[Path, str], count: int) -> None:
    """Raise StoreError if any of `count` files is refused."""
    if not why:
        return
    shown = [f"{path}: {reason}." for path, reason in list(why.items())[:MAX_SHOWN_FINDINGS]]
    more = [f"… and {len(why) - MAX_SHOWN_FINDINGS} more."] if len(why) > MAX_SHOWN_FINDINGS else []
    raise StoreError("\n".join([f"{len(why)} of {count} files cannot be used:", *shown, *more]))


def _run(request: CheckRequest, seconds: float) -> list[FileFinding]:
    """Findings of the first files, up to and including one that ended the process."""
    process = GuardedProcess("terrine_addons.onnx.models")
    found: list[FileFinding] = []
    try:
        try:
            process.ask(request.model_dump_json().encode(), START_SECONDS)
        except (OSError, EOFError):
            raise StoreError(
                "The check of ONNX files cannot start; is onnx installed whole?"
            ) from None
        for path in request.paths:
            try:
                found.append(FileFinding.model_validate_json(process.hear(seconds)))
            except TimeoutError:
                why = f"its check took longer than {seconds:g} s"
            except (OSError, EOFError):
                why = f"it ended the process that checked it ({name_exit(process.code())})"
            else:
                continue
            return [*found, FileFinding(path=path, refused=why)]
        return found
    finally:
        process.end()


def messages_in(message: Any) -> Iterator[Any]:
    """A protocol buffer message and all those in it."""
    yield message
    for kind, value in message.ListFields():
        if kind.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from messages_in(each)
