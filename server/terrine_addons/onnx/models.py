"""ONNX models, run by onnxruntime: teachers that were trained elsewhere, and public backbones.

Every session computes in the thread that calls it. By default each would start a thread for every
processor, and a thousand teachers as many thousands, which wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_protocol.base import list_names, map_class_numbers, normalize
from terrine_protocol.errors import TerrineError

# What a model may take as its input.
DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(uint8)": np.dtype(np.uint8),
}

BLOCK_BYTES = 256 * 2**20
# Bytes that a model is thought to compute with for each number of an input.
VALUE_BYTES = 400
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


def choose_classes(values: Values, rows: int, classes: Sequence[str], by_index: bool) -> Ints:
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
