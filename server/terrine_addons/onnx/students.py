"""Students as ONNX graphs: features and scores in one file, for any runtime and without Terrine.

    export(Path("student"), Path("student.onnx"))

The graph takes what `Student.probabilities` takes, in float32, and says what it says. Encoding rows
of a table and reading pictures are not in it: the schema and the format are in its metadata. ONNX
has no operators that normalise Unicode and hash n-grams, so the graph of texts, too, begins at the
numbers that `encode_rows` makes of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from terrine_client._privacy import PRIVACY_FILE, PrivacyStatement, digest_of
from terrine_models.data.arrays import InputSpec
from terrine_models.features.gradients import (
    COLOUR_CELLS,
    COLOUR_LEVELS,
    DIRECTIONS,
    ENLARGED_SIDE_PIXELS,
    MAX_BANDS,
    MIN_CELL_LENGTH,
    MIN_CONTRAST,
    SMALL_SIDE_PIXELS,
    SMOOTHING,
    averaging,
    enlarging,
)
from terrine_models.features.linear import GRAPH_NEIGHBOURS, RANK_KNOTS
from terrine_models.features.texts import other_columns
from terrine_models.storage.manifests import FeatureSpec, StoreError, sha256
from terrine_models.students.models import (
    BIASES,
    MODEL_FILE,
    WEIGHTS,
    RidgeModel,
    Student,
    TreeModel,
    TreePart,
)
from terrine_protocol.files import write_atomically
from terrine_server.cli.console import fail, say

OPSET = 18
# Of operators for trees.
TREE_DOMAIN, TREE_OPSET = "ai.onnx.ml", 3
# Of the file: the oldest that has these operators, so that runtimes since 2023 read it.
IR_VERSION = 8
INPUT, LABEL, PROBABILITIES = "x", "label", "probabilities"
# Of the keys of its metadata.
PREFIX = "terrine."
MAX_DIFFERENCE = 1e-5
# Between probabilities of the graph and of the student. Both have features in float32 that add up
# in another order, so scores differ by 1e-6 at most, times the scale of a calibration: where this
# is more than 10, as much more is allowed.
EXACT_SCALE = 10
CHECKED_INPUTS = 64
# Of every other checked input, what is at its lowest, as most n-grams of a text are.
SPARSE_SHARE = 0.97
# The least length by which a vector is divided, as PyTorch has it.
TINY = 1e-12

Floats = NDArray[np.float32]


class _Graph:
    """A graph as it is written: each method adds a node and returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._integers: dict[tuple[int, ...], str] = {}

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, values: Any, dtype: type[np.generic] = np.float32) -> str:
        """A tensor of the file."""
        name = f"constant_{len(self.constants)}"
        array = np.ascontiguousarray(values, dtype=dtype)
        self.constants.append(numpy_helper.from_array(array.reshape(np.shape(values)), name))
        return name

    def integers(self, *values: int) -> str:
        """A tensor of some whole numbers, such as axes."""
        if values not in self._integers:
            self._integers[values] = self.constant(np.array(values), np.int64)
        return self._integers[values]

    def plus(self, x: str, y: Any) -> str:
        """A sum: of two results, or of a result and a number."""
        return self("Add", x, y if isinstance(y, str) else self.constant(y))

    def minus(self, x: str, y: Any) -> str:
        """A difference, likewise."""
        return self("Sub", x, y if isinstance(y, str) else self.constant(y))

    def times(self, x: str, y: Any) -> str:
        """A product, likewise."""
        return self("Mul", x, y if isinstance(y, str) else self.constant(y))

    def over(self, x: str, y: Any) -> str:
        """A quotient, likewise."""
        return self("Div", x, y if isinstance(y, str) else self.constant(y))

    def at_least(self, x: str, least: float) -> str:
        """The values, and `least` where they are less."""
        return self("Max", x, self.constant(least))

    def sum(self, x: str, axis: int, keep: bool = False) -> str:
        """The sum over an axis."""
        return self("ReduceSum", x, self.integers(axis), keepdims=int(keep))

    def mean(self, x: str, *axes: int) -> str:
        """The mean over axes."""
        return self("ReduceMean", x, self.integers(*axes), keepdims=0)

    def part(self, x: str, axis: int, start: int, stop: int | None = None, step: int = 1) -> str:
        """What `x[start:stop:step]` has, along an axis."""
        end = np.iinfo(np.int64).max if stop is None else stop
        bounds = (self.integers(each) for each in (start, int(end), axis, step))
        return self("Slice", x, *bounds)

    def flat(self, x: str) -> str:
        """[B, …] as [B, D]."""
        return self("Flatten", x, axis=1)

    def joined(self, parts: Sequence[str]) -> str:
        """Results side by side."""
        return parts[0] if len(parts) == 1 else self("Concat", *parts, axis=1)

    def wider(self, x: str, axis: int) -> str:
        """The result with one more axis, of size 1."""
        return self("Unsqueeze", x, self.integers(axis))

    def unit_length(self, x: str, axis: int, least: float = TINY) -> str:
        """Vectors along an axis, divided by their lengths, or by `least` if they are shorter."""
        length = self("Sqrt", self.sum(self.times(x, x), axis, keep=True))
        return self.over(x, self.at_least(length, least))

    def between(self, x: str, rows: Floats, columns: Floats) -> str:
        """Pictures [B, H, W] as rows · x · columnsᵀ."""
        return self("MatMul", self("MatMul", self.constant(rows), x), self.constant(columns.T))


def _add_oriented_gradients(
    graph: _Graph, pictures: str, size: tuple[int, int], least: float = MIN_CELL_LENGTH
) -> str:
    """`maps.oriented_gradients` of [B, H, W]."""
    height, width = size
    if min(size) < SMALL_SIDE_PIXELS:
        for axis in (1, 2):
            before, after, share = enlarging(size[axis - 1])
            first, second = (
                graph("Gather", pictures, graph.constant(each, np.int64), axis=axis)
                for each in (before, after)
            )
            share = share[:, None] if axis == 1 else share
            pictures = graph.plus(first, graph.times(graph.minus(second, first), share))
        height = width = ENLARGED_SIDE_PIXELS
    padded = graph("Pad", pictures, graph.integers(0, 2, 2, 0, 2, 2), mode="edge")
    side, middle, _ = SMOOTHING
    for axis in (1, 2):
        outer = graph.plus(graph.part(padded, axis, 2), graph.part(padded, axis, 0, -2))
        inner = graph.part(padded, axis, 1, -1)
        padded = graph.plus(graph.times(outer, side), graph.times(inner, middle))
    narrow, low = graph.part(padded, 1, 1, -1), graph.part(padded, 2, 1, -1)
    across = graph.minus(graph.part(narrow, 2, 2), graph.part(narrow, 2, 0, -2))
    down = graph.minus(graph.part(low, 1, 2), graph.part(low, 1, 0, -2))
    squares = graph.plus(graph.times(across, across), graph.times(down, down))
    turn = graph.wider(graph.times(_angle(graph, across, down), DIRECTIONS / (2 * math.pi)), 3)
    apart = graph("Abs", graph.minus(turn, np.arange(DIRECTIONS, dtype=np.float32)))
    apart = graph("Min", apart, graph.minus(graph.constant(float(DIRECTIONS)), apart))
    near = graph("Relu", graph.minus(graph.constant(1.0), apart))
    votes = graph.times(near, graph.wider(graph("Sqrt", squares), 3))
    votes = graph.part(graph.part(votes, 1, 0, height // 2 * 2), 2, 0, width // 2 * 2)
    for axis in (1, 2):
        votes = graph.plus(graph.part(votes, axis, 0, None, 2), graph.part(votes, axis, 1, None, 2))
    fine = _overlapping(graph, votes)
    sparse = graph.part(graph.part(fine, 1, 0, None, 2), 2, 0, None, 2)
    cells = (fine, _overlapping(graph, sparse))
    rooted = [graph.flat(graph("Sqrt", graph.unit_length(each, 3, least))) for each in cells]
    return graph.joined(rooted)


def _overlapping(graph: _Graph, votes: str) -> str:
    for axis in (1, 2):
        votes = graph.plus(graph.part(votes, axis, 1), graph.part(votes, axis, 0, -1))
    return votes


def _angle(graph: _Graph, across: str, down: str) -> str:
    """The angle of a vector, from 0 to 2π. ONNX has the arc tangent of a quotient alone."""
    nothing = graph("Equal", across, graph.constant(0.0))
    safe = graph("Where", nothing, graph.constant(1.0), across)
    angle = graph("Atan", graph.over(down, safe))
    left = graph("Less", across, graph.constant(0.0))
    angle = graph.plus(angle, graph("Where", left, graph.constant(math.pi), graph.constant(0.0)))
    angle = graph("Where", nothing, graph.times(graph("Sign", down), math.pi / 2), angle)
    below = graph("Less", angle, graph.constant(0.0))
    turn = graph("Where", below, graph.constant(2 * math.pi), graph.constant(0.0))
    return graph.plus(angle, turn)


def _add_coloured_gradients(graph: _Graph, pictures: str, shape: tuple[int, int, int]) -> str:
    """`maps.coloured_gradients` of [B, C, H, W]."""
    height, width, channels = shape
    lightness = graph.mean(pictures, 1)
    groups = np.array_split(np.arange(channels), min(channels, MAX_BANDS))
    means = [graph.mean(graph.part(pictures, 1, g[0], g[-1] + 1), 1) for g in groups]
    bands = graph.joined([graph.wider(each, 1) for each in means])
    parts = [_add_oriented_gradients(graph, lightness, (height, width))]
    for band in range(1, len(groups)):
        others = graph.mean(graph.part(bands, 1, 0, band), 1)
        contrast = graph.minus(means[band], others)
        parts.append(_add_oriented_gradients(graph, contrast, (height, width), MIN_CONTRAST))
    cells = graph.flat(graph.between(pictures, averaging(height), averaging(width)))
    parts.append(graph.over(graph.minus(graph.times(cells, 2.0), 1.0), float(COLOUR_CELLS)))
    parts.append(graph.minus(graph.times(graph.mean(pictures, 2, 3), 2.0), 1.0))
    levels = np.linspace(0, 1, COLOUR_LEVELS, dtype=np.float32)
    apart = graph("Abs", graph.minus(graph.wider(pictures, 4), levels))
    near = graph("Relu", graph.minus(graph.constant(1.0), graph.times(apart, COLOUR_LEVELS - 1.0)))
    parts.append(graph.flat(graph("Sqrt", graph.mean(near, 2, 3))))
    return graph.joined(parts)


def _base_features(graph: _Graph, base: str, prepared: str, inputs: InputSpec) -> str:
    """`maps.prepared_features` of rows [B, d], or of pictures [B, C, H, W]."""
    if base == "oriented_gradients":
        return _add_oriented_gradients(graph, graph.mean(prepared, 1), inputs.shape[:2])  # type: ignore[arg-type]
    if base == "coloured_gradients":
        return _add_coloured_gradients(graph, prepared, inputs.shape)  # type: ignore[arg-type]
    if len(inputs.shape) == 1:
        return prepared
    return graph.minus(graph.times(graph.flat(prepared), 2.0), 1.0)


def _add_bins(graph: _Graph, rows: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    """`linear.Bins` of rows [B, columns]."""
    parts = []
    if len(tensors["steps"]):
        columns = graph.constant(tensors["step_columns"], np.int64)
        chosen = graph("Gather", rows, columns, axis=1)
        reached = graph("GreaterOrEqual", chosen, graph.constant(tensors["steps"]))
        parts.append(graph("Cast", reached, to=TensorProto.FLOAT))
    if len(tensors["knots"]):
        columns = graph.constant(tensors["rank_columns"], np.int64)
        chosen = graph.wider(graph("Gather", rows, columns, axis=1), 2)
        knots = graph.constant(tensors["knots"])
        below, within = (graph(each, knots, chosen) for each in ("Less", "LessOrEqual"))
        counts = [graph.sum(graph("Cast", b, to=TensorProto.FLOAT), 2) for b in (below, within)]
        parts.append(graph.over(graph.plus(*counts), 2.0 * RANK_KNOTS))
    return graph.joined(parts)


def _part_scores(
    graph: _Graph,
    spec: FeatureSpec,
    base: str,
    inputs: InputSpec,
    tensors: Mapping[str, NDArray[Any]],
) -> str:
    """Linear scores [B, m] on `maps.FeatureMap.of_base` of data-independent features [B, D].

    In double precision: a calibration may make them many times as large.
    """
    weights = tensors[WEIGHTS].T.astype(np.float64)
    if spec.projection == "nystrom":
        scores = _kernel_scores(graph, spec, base, tensors, weights)
    else:
        features = _features(graph, spec, base, inputs, tensors)
        features = graph("Cast", features, to=TensorProto.DOUBLE)
        scores = graph("MatMul", features, graph.constant(weights, np.float64))
    return graph("Add", scores, graph.constant(tensors[BIASES], np.float64))


def _add_projection(graph: _Graph, base: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    centred = graph.minus(base, tensors["mean"])
    return graph("MatMul", centred, graph.constant(tensors["basis"]))


def _kernel_scores(
    graph: _Graph,
    spec: FeatureSpec,
    base: str,
    tensors: Mapping[str, NDArray[Any]],
    weights: NDArray[Any],
) -> str:
    """Scores on similarities to landmarks (`linear.nystrom`), whose large weights cancel out.

    So similarities have double precision, and weights of their own.
    """
    double = graph("Cast", _add_projection(graph, base, tensors), to=TensorProto.DOUBLE)
    landmarks = tensors["landmarks"].astype(np.float64)
    lengths = graph.sum(graph("Mul", double, double), 1, keep=True)
    lengths = graph("Add", lengths, graph.constant((landmarks**2).sum(axis=1), np.float64))
    products = graph("MatMul", double, graph.constant(2 * landmarks.T, np.float64))
    squared = graph("Max", graph("Sub", lengths, products), graph.constant(0.0, np.float64))
    gamma = graph.constant(-(spec.gamma or 0.0), np.float64)
    similar = graph("Exp", graph("Mul", squared, gamma))
    own = tensors["whitening"].astype(np.float64) @ weights
    return graph("MatMul", similar, graph.constant(own, np.float64))


def _features(
    graph: _Graph,
    spec: FeatureSpec,
    base: str,
    inputs: InputSpec,
    tensors: Mapping[str, NDArray[Any]],
) -> str:
    if spec.projection == "none":
        return base
    if spec.base == "texts":
        return _text_features(graph, spec, base, inputs, tensors)
    if spec.base == "bins":
        base = _add_bins(graph, base, tensors)
    points = _add_projection(graph, base, tensors)
    if spec.projection not in ("graph", "pca", "random"):
        return points
    points = graph.unit_length(points, 1)
    if spec.projection != "graph":
        return points
    return graph.joined([points, _add_extension(graph, points, tensors)])


def _text_features(
    graph: _Graph,
    spec: FeatureSpec,
    rows: str,
    inputs: InputSpec,
    tensors: Mapping[str, NDArray[Any]],
) -> str:
    """`texts.text_features` of rows [B, columns], beside bins of the other columns, and a graph."""
    parts = []
    if spec.steps + spec.ranks:
        others = graph.constant(other_columns(inputs), np.int64)
        binned = _add_bins(graph, graph("Gather", rows, others, axis=1), tensors)
        parts.append(_add_projection(graph, binned, tensors))
    for number, text in enumerate(inputs.texts or ()):
        own = graph.part(rows, 1, text.start, text.start + text.hashed)
        n_grams = graph.over(graph.plus(own, 1.0), 2.0)
        weighed = graph.unit_length(graph.times(n_grams, tensors[f"weights_{number}"]), 1)
        centred = graph.minus(weighed, tensors[f"mean_{number}"])
        points = graph("MatMul", centred, graph.constant(tensors[f"basis_{number}"]))
        parts.append(graph.times(graph.unit_length(points, 1), tensors["lengths"][number]))
    found = graph.joined(parts)
    if not spec.points:
        return found
    return graph.joined([found, _add_extension(graph, graph.unit_length(found, 1), tensors)])


def _add_extension(graph: _Graph, points: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    """`linear.extend`: a weighted mean of the coordinates of the nearest public points."""
    products = graph("MatMul", points, graph.constant(tensors["points"].T))
    nearest, index = f"nearest_{len(graph.nodes)}", f"index_{len(graph.nodes)}"
    among = graph.integers(GRAPH_NEIGHBOURS)
    graph.nodes.append(helper.make_node("TopK", [products, among], [nearest, index], axis=1))
    squared = graph("Relu", graph.minus(graph.constant(2.0), graph.times(nearest, 2.0)))
    own = graph.at_least(graph("Sqrt", graph.part(squared, 1, -1)), 1e-6)
    scales = graph("Gather", graph.constant(tensors["scales"]), index, axis=0)
    weights = graph("Softmax", graph("Neg", graph.over(squared, graph.times(own, scales))), axis=1)
    known = graph("Gather", graph.constant(tensors["coordinates"]), index, axis=0)
    return graph.sum(graph.times(graph.wider(weights, 2), known), 1)


def _tree_scores(graph: _Graph, rows: str, trees: TreePart) -> str:
    """`TreePart.scores` [B, m] of rows [B, columns]."""
    arrays, nodes = trees.arrays, trees.nodes
    tree = np.repeat(np.arange(len(nodes.roots)), arrays.sizes)
    number = np.arange(len(tree)) - nodes.roots[tree]
    first = np.where(nodes.inner, nodes.child - nodes.roots[tree], 0)
    classes = arrays.leaves.shape[1]
    leaf, target = np.nonzero((arrays.leaves != 0) | (np.arange(classes) == 0))
    of_leaf = np.flatnonzero(~nodes.inner)[leaf]
    return graph(
        "TreeEnsembleRegressor",
        rows,
        domain=TREE_DOMAIN,
        n_targets=classes,
        base_values=trees.biases.tolist(),
        nodes_treeids=tree.tolist(),
        nodes_nodeids=number.tolist(),
        nodes_featureids=np.maximum(arrays.feature, 0).tolist(),
        nodes_modes=np.where(nodes.inner, "BRANCH_LEQ", "LEAF").tolist(),
        nodes_values=arrays.threshold.tolist(),
        nodes_truenodeids=first.tolist(),
        nodes_falsenodeids=np.where(nodes.inner, first + 1, 0).tolist(),
        target_treeids=tree[of_leaf].tolist(),
        target_nodeids=number[of_leaf].tolist(),
        target_ids=target.tolist(),
        target_weights=arrays.leaves[leaf, target].tolist(),
    )


def _scores(
    graph: _Graph, prepared: str, student: Student, tensors: Mapping[str, NDArray[Any]]
) -> str:
    """The sum of linear scores [B, m], each on a public map of its own, and of those of trees."""
    bases: dict[str, str] = {}
    scores = ""
    if isinstance(student.network, TreeModel):
        trees = _tree_scores(graph, prepared, student.network.trees)
        scores = graph("Cast", trees, to=TensorProto.DOUBLE)
    for number, spec in enumerate(student.model.features):
        prefix = f"parts.{number}."
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if prefix in name}
        if spec.base not in bases:
            bases[spec.base] = _base_features(graph, spec.base, prepared, student.model.input)
        found = _part_scores(graph, spec, bases[spec.base], student.model.input, own)
        scores = graph("Add", scores, found) if scores else found
    return scores


def make_graph(
    student: Student, digest: str, statement: PrivacyStatement | None
) -> onnx.ModelProto:
    """The model: inputs `x` [B, *shape] to `label` [B] and `probabilities` [B, m].

    digest: SHA-256 of the student's `model.json`, which has that of its weights. statement: its
    `privacy.json`. Raises StoreError for a student of another kind than those of Terrine itself.
    """
    model, graph = student.model, _Graph()
    if not isinstance(student.network, RidgeModel | TreeModel):
        raise StoreError(
            f"A student of the kind {model.architecture} has no ONNX graph; those that `terrine "
            "student train` makes have one."
        )
    inputs, tensors = model.input, student.network.tensors
    unit = graph.over(graph.minus(INPUT, inputs.low), inputs.high - inputs.low)
    if len(inputs.shape) == 1:
        unit = graph.minus(graph.times(unit, 2.0), 1.0)
    elif len(inputs.shape) == 2:
        unit = graph.wider(unit, 1)
    else:
        unit = graph("Transpose", unit, perm=(0, 3, 1, 2))
    scale, shift = model.calibration.scale, np.zeros(len(model.classes))
    shift[1] = model.calibration.shift
    scores = _scores(graph, unit, student, tensors)
    scores = graph("Mul", scores, graph.constant(scale, np.float64))
    scores = graph("Add", scores, graph.constant(shift, np.float64))
    shares = graph("Softmax", scores, axis=1)
    graph.nodes.append(helper.make_node("Cast", [shares], [PROBABILITIES], to=TensorProto.FLOAT))
    if model.threshold is None:
        said = shares
        if model.offsets is not None:
            said = graph("Add", scores, graph.constant(np.array(model.offsets), np.float64))
        last = helper.make_node("ArgMax", [said], [LABEL], axis=1, keepdims=0)
    else:
        second = graph("Squeeze", graph.part(shares, 1, 1, 2), graph.integers(1))
        cut = graph.constant(model.threshold, np.float64)
        reached = graph("GreaterOrEqual", second, cut)
        last = helper.make_node("Cast", [reached], [LABEL], to=TensorProto.INT64)
    graph.nodes.append(last)
    value = helper.make_tensor_value_info
    operators = [helper.make_opsetid("", OPSET)]
    if isinstance(student.network, TreeModel):
        operators.append(helper.make_opsetid(TREE_DOMAIN, TREE_OPSET))
    made = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "student",
            [value(INPUT, TensorProto.FLOAT, ["batch", *inputs.shape])],
            [
                value(LABEL, TensorProto.INT64, ["batch"]),
                value(PROBABILITIES, TensorProto.FLOAT, ["batch", len(model.classes)]),
            ],
            initializer=graph.constants,
        ),
        producer_name="terrine",
        producer_version=version("terrine"),
        opset_imports=operators,
        ir_version=IR_VERSION,
    )
    helper.set_model_props(made, _metadata(student, digest, statement))
    onnx.checker.check_model(made, full_check=True)
    return made


def _metadata(student: Student, digest: str, statement: PrivacyStatement | None) -> dict[str, str]:
    """What a graph does not say: how inputs are made, and what its numbers mean."""
    model = student.model
    found = {
        "classes": json.dumps(model.classes),
        "input": model.input.model_dump_json(),
        "model_sha256": digest,
    }
    if model.threshold is not None:
        found["threshold"] = repr(model.threshold)
    if model.offsets is not None:
        found["offsets"] = json.dumps(model.offsets)
    if model.encoding is not None:
        found["schema"] = model.encoding.model_dump_json(exclude_none=True)
    if model.image is not None:
        found["image"] = model.image.model_dump_json(exclude_none=True)
    if statement is not None:
        found["privacy"] = statement.model_dump_json(exclude_none=True)
    return {f"{PREFIX}{name}": text for name, text in found.items()}


def export(directory: Path, out: Path) -> float:
    """Write a saved student's graph, unless onnxruntime finds other probabilities than the student.

    Beside the student, its digest joins those in `privacy.json`. Returns by how much probabilities
    differ at most, on random inputs. Raises StoreError, and PapersError if `privacy.json` is
    malformed.
    """
    student = Student.load(directory)
    has_papers = (directory / PRIVACY_FILE).exists()
    statement = PrivacyStatement.load(directory) if has_papers else None
    graph = make_graph(student, digest_of(directory / MODEL_FILE), statement)
    data = graph.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    spec, random = student.model.input, np.random.default_rng(0)
    x = random.uniform(spec.low, spec.high, (CHECKED_INPUTS, *spec.shape)).astype(np.float32)
    x[::2][random.random(x[::2].shape) < SPARSE_SHARE] = spec.low
    (found,) = session.run([PROBABILITIES], {INPUT: x})
    apart = float(np.abs(found - student.probabilities(x)).max())
    most = MAX_DIFFERENCE * max(1.0, student.model.calibration.scale / EXACT_SCALE)
    if not apart <= most:
        raise StoreError(
            f"The graph's probabilities differ by {apart:.2g} from the student's, expected at most "
            f"{most:.2g}: nothing was written. Report the student's model.json."
        )
    write_atomically(out, data)
    if statement is not None and out.resolve().parent == directory.resolve():
        files = {**statement.files, out.name: sha256(data)}
        statement.model_copy(update={"files": files}).save(directory)
    return apart


def export_(
    out: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="The .onnx file to write.")],
    student: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of the student.")
    ] = Path("student"),
) -> None:
    """Write a student as an ONNX graph, which any runtime loads without Terrine.

    It takes `x`, float32 of the student's inputs [B, …], and says `label` [B] and `probabilities`
    [B, m]. Encoding the rows of a table, texts among them, and reading pictures are not in it: its
    metadata say how (classes, schema or format, digest of the student, and its privacy.json).
    Before it is written, onnxruntime has found the student's own probabilities with it.

    [bold]Example[/bold]: terrine student export student --onnx student/student.onnx
    """
    if out.suffix.lower() != ".onnx":
        fail(f"--onnx must end in .onnx; {out} does not.")
    apart = export(student, out)
    say(
        f"{out}: {out.stat().st_size:,} bytes. On {CHECKED_INPUTS} random inputs, probabilities "
        f"differ by {apart:.1g} at most from the student's."
    )
