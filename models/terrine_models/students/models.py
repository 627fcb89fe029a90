"""A student: one small model that learns from bought labels, and may be published.

    student = choose(task, answers).student
    student.save(Path("student"))
    Student.load(Path("student")).probabilities(x_new)               # [B, m]

A student has seen public inputs and private answers that were paid for, so its weights are
post-processing: whoever holds them learns nothing about the private data beyond the budget.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError, model_validator
from pydantic.dataclasses import dataclass as validated_dataclass
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array
from scipy.special import softmax

from terrine_models.data.arrays import DataError, InputSpec, number_distinct_rows
from terrine_models.data.workers import side_by_side
from terrine_models.features.arrays import unit_length
from terrine_models.features.bases import BLOCK_IMAGES, prepare, prepared_features
from terrine_models.features.distortions import DRAWS, distorted
from terrine_models.features.fitting import Kind, public_features
from terrine_models.features.linear import (
    GRAPH_NEIGHBOURS,
    MANY_CLASSES,
    confidence_weights,
    extend,
    neighbourhood,
    similarity,
)
from terrine_models.features.maps import FeatureMap, compute_features
from terrine_models.features.public import PublicData
from terrine_models.features.trees import TreeArrays, TreeNodes
from terrine_models.features.views import MIN_GRAPH_POINTS, View, ViewPoints
from terrine_models.storage.manifests import (
    SETTINGS_CONFIG,
    FeatureSpec,
    StoreError,
    load_arrays,
    package_version,
    save_tensors,
)
from terrine_models.students.answers import (
    Answers,
    Bools,
    Floats,
    Ints,
    choose_score_variance,
    find_surroundings,
    fit_near,
    fit_shares,
    fit_softmax,
)
from terrine_models.students.calibration import (
    Calibration,
    Cut,
    CutSource,
    Threshold,
    class_biases,
    place_cut,
)
from terrine_models.tables.designed import DesignedPool
from terrine_protocol.base import Record, Sha256, first_problem, quantity
from terrine_protocol.files import read, write_atomically
from terrine_protocol.projects import ImageFormat
from terrine_protocol.schema import TableSchema
from terrine_tables.columns import index_classes
from terrine_tables.encoding import Frame, encode_frame


@validated_dataclass(frozen=True, config=SETTINGS_CONFIG)
class Training:
    """How a student is trained."""

    method: str = "auto"
    """`auto`, or one of `METHODS`."""
    threshold: Threshold = "prior"
    """From which probability of the second of two classes it is the label."""


# Inputs by which a cut is placed, at least. Of a class of which a quarter is, a share among so many
# has a standard error of three points.
MIN_CUT_ROWS = 200
MODEL_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"
# Names of the tensors of linear scores.
WEIGHTS, BIASES = "scores.weight", "scores.bias"
# With which those of trees begin.
TREES = "trees."
Tensors = Mapping[str, NDArray[Any]]


class StudentModel(Record):
    """`model.json`: what is needed to use a student, and how it was made."""

    format: Literal["terrine-student-1"] = "terrine-student-1"
    architecture: str
    """One of `ARCHITECTURES`."""
    input: InputSpec
    features: tuple[FeatureSpec, ...] = ()
    """Of linear scores: their maps of inputs to features, fitted on public inputs."""
    encoding: TableSchema | None = None
    image: ImageFormat | None = None
    """Of folders of pictures: how they became inputs."""
    classes: tuple[str, ...]
    calibration: Calibration = Calibration()
    threshold: float | None = None
    """Probability from which the second of two classes is predicted; None: the likelier class."""
    offsets: tuple[float, ...] | None = None
    """Of more classes, what is added to the logarithm of each probability before the largest is
    predicted; None: nothing."""
    prior: tuple[float, ...] | None = None
    """Share of each class among the private records, if it was released."""
    cut: Cut | None = None
    """On which rows threshold or offsets were placed by shares of classes; None: on none."""
    training: dict[str, int | float | str]
    versions: dict[str, str]
    weights_sha256: Sha256

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        if self.features and self.architecture not in ("ridge", "trees"):
            raise ValueError("only the linear scores of ridge models and of trees have features")
        if self.architecture == "ridge" and not self.features:
            raise ValueError("a ridge model states its features")
        if self.threshold is not None and len(self.classes) != 2:
            raise ValueError("only shares of two classes are cut")
        if self.offsets is not None and len(self.offsets) != len(self.classes):
            raise ValueError("there is one offset for each class")
        if self.prior is not None and len(self.prior) != len(self.classes):
            raise ValueError("there is one released share for each class")
        return self


class Scorer(Protocol):
    """What a student computes with."""

    @property
    def tensors(self) -> Tensors:
        """What is saved of it, by name."""

    def __call__(self, x: NDArray[np.float32]) -> NDArray[Any]:
        """Scores [B, m] of prepared inputs: rows [B, d], or pictures [B, C, H, W]."""


@dataclass(frozen=True, eq=False)
class LinearPart:
    """Linear scores on one public map: `weights` [d, m] and `biases` [m]."""

    map: FeatureMap
    weights: NDArray[Any]
    biases: NDArray[Any]

    def scores(self, base: NDArray[np.float32]) -> Floats:
        """Scores [B, m] of data-independent features [B, D] (`maps.base_features`)."""
        spec = self.map.spec
        if spec.projection == "nystrom":
            points = self.map.projected(base).astype(np.float64)
            features = similarity(points, self._landmarks, spec.gamma or 0.0)
        else:
            features = self.map.of_base(base).astype(np.float64)
        found: Floats = features @ self._own_weights + self.biases
        return found

    @cached_property
    def _landmarks(self) -> Floats:
        found: Floats = self.map.tensors["landmarks"].astype(np.float64)
        return found

    @cached_property
    def _own_weights(self) -> Floats:
        """Weights [d, m]; of a kernel [L, m], of the similarities themselves. These are large and
        cancel each other out, which single precision would not bear."""
        weights: Floats = self.weights.astype(np.float64)
        if self.map.spec.projection != "nystrom":
            return weights
        whitening: Floats = self.map.tensors["whitening"].astype(np.float64)
        return whitening @ weights


class RidgeModel:
    """The sum of linear scores, each on a public map of its own."""

    def __init__(self, parts: Sequence[LinearPart]) -> None:
        self.parts = tuple(parts)

    def __call__(self, x: NDArray[np.float32]) -> NDArray[Any]:
        """Scores [B, m] of prepared inputs [B, d] or [B, C, H, W]."""
        bases = dict.fromkeys(part.map.spec.base for part in self.parts)
        base = {name: prepared_features(name, x) for name in bases}
        scores = (part.scores(base[part.map.spec.base]) for part in self.parts)
        return functools.reduce(np.add, scores)

    @property
    def tensors(self) -> Tensors:
        """Of each part its map, and weights [m, d] and biases."""
        found = {}
        for number, part in enumerate(self.parts):
            own = {**part.map.tensors, WEIGHTS: part.weights.T, BIASES: part.biases}
            for name, each in own.items():
                found[f"parts.{number}.{name}"] = np.ascontiguousarray(each)
        return found


# In one student.
MAX_TREES = 20_000
# Rows times trees that are walked at a time: few enough to stay in a processor's cache.
MAX_PAIRS = 2**15


@dataclass(frozen=True, eq=False)
class TreePart:
    """Scores that are sums over trees, of rows of a table: of each tree what its leaf has."""

    nodes: TreeNodes
    arrays: TreeArrays
    """leaves: float32[L, m]."""
    biases: NDArray[np.float32]
    """[m], added to the sums."""

    @classmethod
    def of(cls, arrays: TreeArrays, biases: Floats, columns: int) -> TreePart:
        """Trees as they are when they are loaded. leaves: [L, m]."""
        rounded = arrays._replace(leaves=arrays.leaves.astype(np.float32))
        nodes = TreeNodes(arrays.sizes, arrays.feature, arrays.threshold, columns, "the student")
        return cls(nodes, rounded, biases.astype(np.float32))

    def scaled(self, scale: float, shift: float = 0.0) -> TreePart:
        """The same, with scores times `scale`, and then those of the second class shifted."""
        biases = scale * self.biases
        biases[1] += shift
        arrays = self.arrays._replace(leaves=np.float32(scale) * self.arrays.leaves)
        return replace(self, arrays=arrays, biases=biases)

    def scores(self, rows: NDArray[np.float32]) -> Floats:
        """Scores [B, m] of prepared rows [B, columns]."""
        found = np.tile(self.biases.astype(np.float64), (len(rows), 1))
        together = max(1, MAX_PAIRS // max(1, len(rows)))
        for at in range(0, len(self.nodes.roots), together):
            roots = self.nodes.roots[at : at + together]
            leaves = self._leaf[self.nodes.leaves(rows, roots)]
            of_trees = self.arrays.leaves[leaves].reshape(len(roots), *found.shape)
            found += of_trees.sum(axis=0, dtype=np.float64)
        return found

    @cached_property
    def _leaf(self) -> Ints:
        """Which of the leaves a node [N] is; of others, anything."""
        before: Ints = np.cumsum(~self.nodes.inner) - 1
        return before


class TreeModel:
    """Scores of trees, and linear scores that correct them."""

    def __init__(self, trees: TreePart, linear: RidgeModel | None = None) -> None:
        self.trees = trees
        self.linear = linear

    def __call__(self, x: NDArray[np.float32]) -> NDArray[Any]:
        """Scores [B, m] of prepared rows [B, columns]."""
        scores = self.trees.scores(np.ascontiguousarray(x, dtype=np.float32))
        return scores if self.linear is None else scores + self.linear(x)

    @property
    def tensors(self) -> Tensors:
        """Of the trees their nodes, leaves and biases; and of the linear scores what they have."""
        arrays = self.trees.arrays
        own = {**arrays._asdict(), "biases": self.trees.biases}
        found = {f"{TREES}{name}": np.ascontiguousarray(each) for name, each in own.items()}
        return found if self.linear is None else {**found, **self.linear.tensors}


class Predictions(NamedTuple):
    """What a student says of inputs."""

    names: NDArray[np.str_]
    """[B], names of classes."""
    probabilities: NDArray[np.float64]
    """[B, m], in the order of `StudentModel.classes`."""


class Student:
    """A trained student. Make one with `selection.choose` or `load`."""

    def __init__(self, network: Scorer, model: StudentModel) -> None:
        self.network = network
        self.model = model

    def probabilities(self, x: NDArray[np.generic]) -> NDArray[np.float64]:
        """Class probabilities [B, m] of inputs [B, *shape]; rows sum to 1 up to rounding."""
        if x.shape[1:] != self.model.input.shape:
            raise ValueError(
                f"Inputs have shape {list(x.shape)}, expected "
                f"[B, {', '.join(map(str, self.model.input.shape))}]."
            )
        out = np.empty((len(x), len(self.model.classes)))

        def score(at: int) -> None:
            rows = slice(at, at + BLOCK_IMAGES)
            out[rows] = self.network(prepare(np.asarray(x[rows]), self.model.input))

        side_by_side(score, range(0, len(x), BLOCK_IMAGES))
        return self.model.calibration.probabilities(out)

    def predict(self, x: NDArray[np.generic]) -> NDArray[np.str_]:
        """Names of the classes [B] of inputs [B, *shape]; see `predict_indices`."""
        return self.predictions(x).names

    def predict_indices(self, x: NDArray[np.generic]) -> NDArray[np.int64]:
        """The class [B] of inputs [B, *shape], as an index into `StudentModel.classes`.

        Of two classes, by the threshold; of more, the most probable, with its offset if there are.
        """
        return self.labels(self.probabilities(x))

    def labels(self, probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
        """The class [B] that such probabilities [B, m] stand for."""
        if self.model.threshold is not None:
            return (probabilities[:, 1] >= self.model.threshold).astype(np.int64)
        if self.model.offsets is not None:
            probabilities = np.log(np.maximum(probabilities, 1e-12)) + self.model.offsets
        best: NDArray[np.int64] = probabilities.argmax(1)
        return best

    def predictions(self, x: NDArray[np.generic]) -> Predictions:
        """Class names and probabilities of inputs [B, *shape]."""
        probabilities = self.probabilities(x)
        names = np.array(self.model.classes)[self.labels(probabilities)]
        return Predictions(names, probabilities)

    def predict_frame(self, frame: Frame, *, accept_clipped: bool = False) -> Predictions:
        """Class names and probabilities of a data frame's rows, by the student's own schema.

        Frames as for `terrine_tables.encoding.encode_frame`, and so is what is accepted.
        Raises DataError as that does, and if the student learned from no table.
        """
        if self.model.encoding is None:
            raise DataError(
                "The student learned from no table, so it knows no columns. predict takes arrays "
                f"of shape [B, {', '.join(map(str, self.model.input.shape))}]."
            )
        x = encode_frame(frame, self.model.encoding, accept_clipped=accept_clipped)
        return self.predictions(x)

    def with_cut(self, x: NDArray[np.generic], source: CutSource = "given") -> Student:
        """The same student, which says each class as often as its project released, of `x`.

        x: inputs [N, *shape] without labels, of people like those whom the records are about.
        Raises DataError where no shares of classes were released, or of fewer than MIN_CUT_ROWS.
        """
        if self.model.prior is None:
            raise DataError(
                "How common its classes are among the private records was not released, so a "
                "student is not cut by it. `terrine student train --threshold` places the cut."
            )
        if source == "given" and len(x) < MIN_CUT_ROWS:
            raise DataError(
                f"{quantity(len(x), 'input')} cannot show how often a student says a class; give "
                f"at least {MIN_CUT_ROWS} like those that it is for. They need no labels."
            )
        places = place_cut(self.probabilities(x), np.array(self.model.prior))
        return self.with_model(
            threshold=places.threshold, offsets=places.offsets, cut=Cut(source, len(x))
        )

    def with_model(self, **changed: object) -> Student:
        """The same student, described otherwise, as by another threshold."""
        return Student(self.network, self.model.model_copy(update=changed))

    def accuracy(self, x: NDArray[np.generic] | Frame, labels: Any) -> float:
        """Share of inputs that are classified as `labels` [B] say, which name classes.

        x: inputs [B, *shape], or a data frame as for `predict_frame`. labels: as for
        `terrine_tables.columns.index_classes`, which raises ValueError for what is no class.
        """
        truth = np.array(self.model.classes)[index_classes(labels, self.model.classes)]
        said = self.predict(x) if isinstance(x, np.ndarray) else self.predict_frame(x).names
        if len(truth) != len(said):
            raise ValueError(f"There are {len(truth)} labels of {len(said)} inputs.")
        return float((said == truth).mean())

    def save(self, directory: Path) -> None:
        """Write `model.safetensors` and `model.json`; each replaces an existing file atomically."""
        directory.mkdir(parents=True, exist_ok=True)
        digest = save_tensors(directory / WEIGHTS_FILE, self.network.tensors)
        self.model = self.model.model_copy(update={"weights_sha256": digest})
        text = self.model.model_dump_json(indent=2, exclude_none=True)
        write_atomically(directory / MODEL_FILE, text.encode() + b"\n")

    @classmethod
    def load(cls, directory: Path) -> Student:
        """Load a student. Raises StoreError when a file is missing, altered or malformed."""
        path = Path(directory) / MODEL_FILE
        try:
            model = StudentModel.model_validate_json(read(path))
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read ({error.strerror}); expected the directory of a student, "
                "as made by `terrine student train`."
            ) from None
        except ValidationError as error:
            raise StoreError(f"{path} is malformed {first_problem(error)}.") from None
        tensors = load_arrays(Path(directory), WEIGHTS_FILE, model.weights_sha256)
        make = ARCHITECTURES.get(model.architecture)
        if make is None:
            raise StoreError(f"{path} is a student of another kind: {model.architecture}.")
        return cls(make(model, tensors, str(Path(directory) / WEIGHTS_FILE)), model)


def _ridge(model: StudentModel, tensors: Tensors, where: str) -> RidgeModel:
    parts = []
    expected: dict[str, tuple[int, ...]] = {}
    for number, spec in enumerate(model.features):
        prefix = f"parts.{number}."
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        weights, biases = own.pop(WEIGHTS, np.zeros(0)), own.pop(BIASES, np.zeros(0))
        known = FeatureMap(spec, model.input, own)
        shapes = known.shapes() | {WEIGHTS: (len(model.classes), spec.width)}
        shapes |= {BIASES: (len(model.classes),)}
        expected |= {f"{prefix}{name}": shape for name, shape in shapes.items()}
        parts.append(LinearPart(known, np.ascontiguousarray(weights.T), biases))
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != expected:
        raise StoreError(f"{where} holds tensors {found}, {MODEL_FILE} expects {expected}.")
    return RidgeModel(parts)


def _trees(model: StudentModel, tensors: Tensors, where: str) -> TreeModel:
    own = {n.removeprefix(TREES): each for n, each in tensors.items() if n.startswith(TREES)}
    classes = len(model.classes)
    expected: dict[str, tuple[str, tuple[int | None, ...]]] = {
        "sizes": ("int32", (None,)),
        "feature": ("int32", (None,)),
        "threshold": ("float32", (None,)),
        "leaves": ("float32", (None, classes)),
        "biases": ("float32", (classes,)),
    }
    if len(model.input.shape) != 1 or set(own) != set(expected):
        raise StoreError(f"{where} holds trees of {sorted(own)}, expected {sorted(expected)}.")
    for name, (dtype, shape) in expected.items():
        each = own[name]
        fits = each.ndim == len(shape) and all(
            size in (None, got) for size, got in zip(shape, each.shape, strict=True)
        )
        if each.dtype != dtype or not fits or each.size == 0 or not np.isfinite(each).all():
            raise StoreError(
                f"{where}: {name} of trees is {each.dtype} {each.shape}, or not finite."
            )
    biases = own.pop("biases")
    arrays = TreeArrays(**own)
    inner = int((arrays.feature >= 0).sum())
    if (
        len(arrays.sizes) > MAX_TREES
        or len(arrays.threshold) != len(arrays.feature)
        or len(arrays.leaves) != len(arrays.feature) - inner
    ):
        raise StoreError(
            f"{where}: {len(arrays.sizes)} trees of {len(arrays.feature)} nodes, "
            f"{len(arrays.threshold)} thresholds and {len(arrays.leaves)} leaves do not fit."
        )
    nodes = TreeNodes(arrays.sizes, arrays.feature, arrays.threshold, model.input.shape[0], where)
    others = {name: each for name, each in tensors.items() if not name.startswith(TREES)}
    linear = _ridge(model, others, where)
    return TreeModel(TreePart(nodes, arrays, biases), linear if linear.parts else None)


Loaded = Callable[[StudentModel, Tensors, str], Scorer]
# By name: makes a model from its description and its tensors, which are at a place.
ARCHITECTURES: dict[str, Loaded] = {"ridge": _ridge, "trees": _trees}


def describe_student(
    inputs: InputSpec,
    classes: tuple[str, ...],
    training: dict[str, int | float | str],
    encoding: TableSchema | None = None,
    features: tuple[FeatureSpec, ...] = (),
    architecture: str = "ridge",
) -> StudentModel:
    """The `model.json` of a student that is not saved yet."""
    return StudentModel(
        architecture=architecture,
        input=inputs,
        features=features,
        encoding=encoding,
        classes=classes,
        training=training,
        versions={
            name: package_version(name) for name in ("numpy", "safetensors", "scipy", "terrine")
        },
        weights_sha256="0" * 64,
    )


def linear_student(
    inputs: InputSpec,
    classes: tuple[str, ...],
    training: dict[str, int | float | str],
    parts: Sequence[LinearPart],
    encoding: TableSchema | None = None,
) -> Student:
    """A student whose scores are the sum of those of its parts."""
    features = tuple(part.map.spec for part in parts)
    model = describe_student(inputs, classes, training, encoding, features)
    # Laid out as it is when it is loaded: products round by that.
    return Student(_ridge(model, RidgeModel(parts).tensors, "the student"), model)


def tree_student(
    inputs: InputSpec,
    classes: tuple[str, ...],
    training: dict[str, int | float | str],
    trees: TreePart,
    encoding: TableSchema | None = None,
    *,
    parts: Sequence[LinearPart] = (),
) -> Student:
    """A student whose scores are those of trees, and of linear parts that correct them."""
    features = tuple(part.map.spec for part in parts)
    model = describe_student(inputs, classes, training, encoding, features, "trees")
    linear = RidgeModel(parts).tensors if parts else {}
    tensors = {**TreeModel(trees).tensors, **linear}
    return Student(_trees(model, tensors, "the student"), model)


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Task:
    """Public inputs x [N, *shape], what they look like, and the classes that they may be in."""

    x: NDArray[np.generic]
    spec: InputSpec
    classes: tuple[str, ...]
    encoding: TableSchema | None = None
    """Of a table: how its rows became inputs."""
    seed: int = 0
    view: View | None = None
    """How pictures are seen. None: as is usual."""
    designed: DesignedPool | None = None
    """Of designed inputs: what tells how common classes are among natural ones."""
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError if the inputs are not as `spec` says."""
        if self.x.shape[1:] != self.spec.shape:
            raise ValueError(
                f"inputs have shape {self.x.shape}, expected {(len(self.x), *self.spec.shape)}"
            )

    @property
    def is_table(self) -> bool:
        """Whether inputs are rows of a table, not images."""
        return len(self.spec.shape) == 1

    @cached_property
    def inputs(self) -> Ints:
        """Which of the distinct inputs each row [N] is: in a table of few values, rows repeat."""
        return number_distinct_rows(np.asarray(self.x))

    @cached_property
    def _view_points(self) -> ViewPoints:
        first = np.unique(self.inputs, return_index=True)[1]
        return ViewPoints.of(self.spec, np.asarray(self.x), np.sort(first))

    def with_best_view(self, answers: Answers) -> Task:
        """The same task, whose pictures are seen as the answers are learned best."""
        if self.is_table:
            return self
        view = self._view_points.best(answers.shares, answers.known)
        seen: Task = self._cache.setdefault(view, replace(self, view=view, _cache={}))
        return seen

    def without(self, rows: Bools) -> Task:
        """The same task without some of the inputs [N], and without what was computed of them."""
        return replace(self, x=np.asarray(self.x)[~rows], _cache={})

    def with_inputs(self, x: NDArray[np.generic]) -> Task:
        """The same task with other inputs, and without what was computed of these."""
        return replace(self, x=x, _cache={})

    def cached(self, make: Callable[[Task], T]) -> T:
        """What `make` computes of the inputs alone: it is computed once, for all students."""
        if make not in self._cache:
            self._cache[make] = make(self)
        found: T = self._cache[make]
        return found


# Pictures up to which those that are held out have no part in the maps of inputs to features. In a
# map that was fitted on it, a picture lies where no new one would: most are landmarks of the
# kernel, each with a direction of its own, of which its students learn nothing without its answer.
# Of 400 pictures of clothes, 73 % were then right when held out, and 81 % of new ones; of 2,000
# digits, 98.1 and 98.4 %.
MAX_PICTURES_LEFT_OUT = 3_000


class StudentMethod(ABC):
    """One way to train a student. A subclass says whom it suits and how it is fitted."""

    wants: ClassVar[str] = "any inputs"
    """What it is for, in an error message."""
    is_usually_better: ClassVar[bool] = True
    """Where it suits, than the plain student: `auto` takes it unless that is ahead by a standard
    error. Else it has to be ahead itself, by one, by noisy counts of all inputs."""
    min_answers: ClassVar[int] = 0
    """Different inputs with an answer, below which `auto` does not try it."""

    def __init__(self, training: Training) -> None:
        self.training = training

    @classmethod
    def can_learn(cls, task: Task) -> bool:
        """Whether it learns anything from such inputs."""
        return True

    @classmethod
    def suits(cls, task: Task) -> bool:
        """Whether `auto` takes it for such inputs, by public facts alone."""
        return False

    @abstractmethod
    def fit(self, task: Task, answers: Answers) -> Student:
        """Train a student on what is known of the inputs. Raises ValueError if nothing is."""

    def judge(self, task: Task, answers: Answers, folds: Ints) -> Floats:
        """Probabilities [N, m] of inputs by students that did not see the answers of their fold.

        Of few pictures, they did not see the inputs either (MAX_PICTURES_LEFT_OUT). folds: [N], -1
        where an input is never held out; its row is 0.
        """
        held_out = np.zeros((len(task.x), len(task.classes)))
        for fold in np.unique(folds[folds >= 0]):
            rows = folds == fold
            if task.is_table or len(task.x) > MAX_PICTURES_LEFT_OUT:
                held_out[rows] = self.predict_held_out(task, answers, rows)
            else:
                student = self.fit(task.without(rows), answers.of(np.flatnonzero(~rows)))
                held_out[rows] = student.probabilities(task.x[rows])
        return held_out

    def predict_held_out(self, task: Task, answers: Answers, rows: Bools) -> Floats:
        """Probabilities [K, m] of some `rows` [N] by a student that did not see their answers."""
        return self.fit(task, answers.only(~rows)).probabilities(task.x[rows])


# Of an image: as many as teachers' heads have by default.
MIN_FEATURES = 150
# Of an image, where there are many classes. A third are coordinates on the graph, and a class needs
# one of its own: with 150 classes, 450 features fit noisy counts right on 52 % of the inputs, 150
# on 43 %.
FEATURES_PER_CLASS = 3
# A linear share times this has a softmax that is about a probability.
LINEAR_SHARE_FACTOR = 4.0
# Share of the inputs that a class wins, the clearest first, that teach it to others.
TAUGHT_SHARE = 0.97


@dataclass(frozen=True, eq=False)
class Features:
    """A public map, and the features [N, d] of the inputs that it was fitted on."""

    map: FeatureMap
    rows: Floats
    as_new: Floats
    """The same, of each input as if the graph did not have it."""
    spreads: WeakKeyDictionary[Answers, float] = field(default_factory=WeakKeyDictionary)
    """What `choose_spread` chose."""
    _around: dict[float, csr_array] = field(default_factory=dict, repr=False)

    def around(self, voting: float) -> csr_array:
        """The inputs [N, N] around each, of which so many vote (`answers.find_surroundings`)."""
        if voting not in self._around:
            points = self.rows[:, : self.map.spec.components]
            self._around[voting] = find_surroundings(points, voting)
        return self._around[voting]

    @classmethod
    def of(cls, task: Task, kind: Kind) -> Features:
        """Fit the map on the task's inputs."""
        public = PublicData.declare("the student's public inputs", np.asarray(task.x))
        wide = min(FEATURES_PER_CLASS * len(task.classes), len(task.x) // 2)
        known = public_features(task.spec, public, max(MIN_FEATURES, wide), kind, view=task.view)
        rows = compute_features(known, task.x)
        graph = known.spec.points > 0
        return cls(known, rows, compute_features(known, task.x, skip=1) if graph else rows)


def linear_features(task: Task) -> Features:
    """Features for a regression that is linear."""
    return Features.of(task, "graph" if task.spec.texts is None else "fine_graph")


def softmax_features(task: Task) -> Features:
    """Features for one with a link."""
    bins_alone = task.is_table and task.spec.texts is None
    return Features.of(task, "graph" if bins_alone else "fine_graph")


def is_answered_nearby(task: Task, answers: Answers) -> bool:
    """Whether answers are those of the units near each row of a table."""
    return task.is_table and answers.noise > 0 and answers.voting < 1


def choose_spread(task: Task, answers: Answers) -> float:
    """Choose, once, how far scores may spread, of answers of the units near each row."""
    features = task.cached(softmax_features)
    if answers not in features.spreads:
        folds = answers.folds(task.seed, task.inputs)
        near = features.around(answers.voting)
        features.spreads[answers] = choose_score_variance(features.rows, answers, near, folds)
    return features.spreads[answers]


@dataclass(frozen=True, eq=False)
class Regression:
    """Weights [d, m] and biases [m] of scores whose softmax are the shares, on public features."""

    features: Features
    weights: Floats
    biases: Floats

    @classmethod
    def of(
        cls,
        task: Task,
        answers: Answers,
        spread: float | None = None,
        *,
        base: Floats | None = None,
    ) -> Regression:
        """Fit it to what is known. spread: of the votes of those near, if it is chosen already.

        base: scores [N, m] of all inputs to which its own are added, for noisy counts.
        """
        features = task.cached(softmax_features if answers.noise else linear_features)
        if is_answered_nearby(task, answers):
            spread = spread or choose_spread(task, answers)
            near = features.around(answers.voting)
            return cls(features, *fit_near(features.rows, answers, near, spread, base))
        rows, shares = features.rows[answers.known], answers.shares[answers.known]
        if answers.noise:
            base = None if base is None else base[answers.known]
            return cls(
                features, *fit_softmax(rows, shares, answers.noise, spread=spread, base=base)
            )
        weights, biases = fit_shares(rows, shares)
        return cls(features, LINEAR_SHARE_FACTOR * weights, LINEAR_SHARE_FACTOR * biases)

    @property
    def part(self) -> LinearPart:
        """It, as a part of a student."""
        weights, biases = (each.astype(np.float32) for each in (self.weights, self.biases))
        return LinearPart(self.features.map, weights, biases)

    def scores(self, features: Floats) -> Floats:
        """Scores [B, m] of features [B, d]."""
        return features @ self.weights + self.biases

    def probabilities(self, features: Floats) -> Floats:
        """Shares [B, m] of features [B, d]."""
        found: Floats = softmax(self.scores(features), axis=1)
        return found

    def labels(self) -> Ints:
        """Labels [N] of all inputs, -1 for those of each class that are least clear."""
        shares = self.probabilities(self.features.rows)
        winners = shares.argmax(axis=1)
        second, first = np.partition(shares, -2, axis=1)[:, -2:].T
        labels = np.full(len(shares), -1)
        for winner in np.unique(winners):
            rows = np.flatnonzero(winners == winner)
            rows = rows[np.argsort((second - first)[rows], kind="stable")]
            labels[rows[: math.ceil(TAUGHT_SHARE * len(rows))]] = winner
        return labels


class Ridge(StudentMethod):
    """The plainest student: a regression of shares on public features.

    Nothing is random and nothing can diverge. The features are those of teachers' heads, fitted on
    the student's own public inputs, so they use unlabelled inputs too. Of labels the shares are
    linear in the features; of noisy counts they have a link that saturates at 0 and 1, which bears
    a finer graph.
    """

    @classmethod
    def suits(cls, task: Task) -> bool:
        """Everywhere: it is what others are compared with."""
        return True

    def fit(self, task: Task, answers: Answers) -> Student:
        """The student of all that is known."""
        parts = [Regression.of(task, answers).part]
        return linear_student(task.spec, task.classes, {"method": "ridge"}, parts, task.encoding)

    def predict_held_out(self, task: Task, answers: Answers, rows: Bools) -> Floats:
        """Held-out inputs are placed on the graph as new ones would be, by their neighbours."""
        # One choice of two or three for all folds: it says next to nothing of the answers of any.
        spread = choose_spread(task, answers) if is_answered_nearby(task, answers) else None
        regression = Regression.of(task, answers.only(~rows), spread)
        return regression.probabilities(regression.features.as_new[rows])


LANDMARKS = 1500
# Distorted copies of each input.
MAX_COPIES = 3
# Inputs and their copies, together.
MAX_KERNEL_ROWS = 40_000
# Relative to the mean variance of a feature. From 1e-4 to 1e-2 it matters little.
KERNEL_PENALTY = 1e-3
# Of the kernel's scores, in the sum. From 2, which is better for clothes, to 6, which is better for
# digits, it matters by 0.3 points at most, on the training images of both.
KERNEL_WEIGHT = 3.0
# Inputs below which there are too few for a kernel.
MIN_KERNEL_INPUTS = 100


class Copies:
    """Nyström features of public images and of their distorted copies."""

    def __init__(self, task: Task) -> None:
        x = task.x
        public = PublicData.declare("the student's public inputs", np.asarray(x))
        self.map = public_features(task.spec, public, LANDMARKS, "nystrom", view=task.view)
        copies = max(0, min(MAX_COPIES, MAX_KERNEL_ROWS // len(x) - 1))
        random = np.random.Generator(np.random.Philox(task.seed))
        plain = np.asarray(x, dtype=np.float32)
        parts = [_features(self.map, plain)]
        for _ in range(copies):
            draws = random.random((len(x), DRAWS), dtype=np.float32) * 2 - 1
            parts.append(_features(self.map, plain, draws))
        self.rows = np.stack(parts)
        """[1 + copies, N, L], centred; the first are the inputs as they are."""
        self.centre = self.rows.mean(axis=(0, 1))
        self.rows -= self.centre
        self.all = self.gram(np.arange(len(x)))

    def fit(
        self, chosen: Ints, labels: Ints, classes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weights [L, m] and biases [m] by least squares on ±1 targets of the rows `chosen` [K]."""
        targets = np.where(labels[:, None] == np.arange(classes), 1, -1).astype(np.float32)
        level = targets.mean(axis=0)
        others = np.setdiff1d(np.arange(self.rows.shape[1]), chosen)
        gram = self.all - self.gram(others) if len(others) < len(chosen) else self.gram(chosen)
        mean = np.zeros(self.rows.shape[2], np.float32)
        cross = np.zeros((self.rows.shape[2], targets.shape[1]), np.float32)
        for copy in self.rows:
            rows = copy[chosen]
            mean += rows.mean(axis=0) / len(self.rows)
            cross += rows.T @ (targets - level)
        centre = mean.astype(np.float64)
        gram -= len(self.rows) * len(chosen) * np.outer(centre, centre)
        gram[np.diag_indices(len(gram))] += KERNEL_PENALTY * float(gram.diagonal().mean()) + 1e-9
        weights = cho_solve(cho_factor(gram, lower=True), cross).astype(np.float32)
        return weights, level - mean @ weights

    def gram(self, chosen: Ints) -> Floats:
        """Products [L, L] of the features of some rows and of their copies."""
        gram = np.zeros((self.rows.shape[2],) * 2)
        for copy in self.rows:
            rows = copy[chosen]
            gram += rows.T @ rows
        return gram


class Kernel(StudentMethod):
    """The regression, and ridge regression on a Nyström map with distorted copies.

    The kernel learns the labels that were bought and, of all other public inputs, those of the
    regression (Lee, "Pseudo-Label", 2013). The scores of both are added: each is right where the
    other errs.
    """

    wants = "images"

    @classmethod
    def can_learn(cls, task: Task) -> bool:
        """Images alone."""
        return not task.is_table

    @classmethod
    def suits(cls, task: Task) -> bool:
        """Images, of which there are enough for a kernel."""
        return not task.is_table and len(task.x) >= MIN_KERNEL_INPUTS

    def fit(self, task: Task, answers: Answers) -> Student:
        """Learn from the answers and from what the regression says of the other inputs."""
        copies, regression = task.cached(Copies), Regression.of(task, answers)
        weights, biases = self._learned(copies, answers, regression)
        kernel = LinearPart(
            copies.map, KERNEL_WEIGHT * weights, KERNEL_WEIGHT * (biases - copies.centre @ weights)
        )
        how: dict[str, int | float | str] = {"method": "kernel", "copies": len(copies.rows) - 1}
        return linear_student(task.spec, task.classes, how, [regression.part, kernel])

    def predict_held_out(self, task: Task, answers: Answers, rows: Bools) -> Floats:
        """Held-out inputs teach nothing, not even by what the regression says of them."""
        copies, rest = task.cached(Copies), answers.only(~rows)
        regression = Regression.of(task, rest)
        weights, biases = self._learned(copies, rest, regression, rows)
        kernel = (copies.rows[0, rows] @ weights + biases).astype(np.float64)
        scores = regression.scores(regression.features.as_new[rows]) + KERNEL_WEIGHT * kernel
        probabilities: Floats = softmax(scores, axis=1)
        return probabilities

    @staticmethod
    def _learned(
        copies: Copies, answers: Answers, regression: Regression, held_out: Bools | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        labels = regression.labels()
        if not answers.noise:
            labels = np.where(answers.known, answers.labels, labels)
        if held_out is not None:
            labels = np.where(held_out, -1, labels)
        known = np.flatnonzero(labels >= 0)
        return copies.fit(known, labels[known], answers.shares.shape[1])


def _features(
    known: FeatureMap, x: NDArray[np.float32], draws: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Features [N, L] of inputs [N, *shape], distorted by `draws` [N, DRAWS] if there are any."""

    def compute(at: int) -> NDArray[np.float32]:
        rows = slice(at, at + BLOCK_IMAGES)
        block = x[rows] if draws is None else distorted(x[rows], draws[rows], known.inputs)
        found: NDArray[np.float32] = known(block)
        return found

    return np.concatenate(side_by_side(compute, range(0, len(x), BLOCK_IMAGES)))


NEIGHBOUR_FEATURES = 150
# How often shares are averaged over neighbours: where few are known, one more reaches further.
AVERAGING_ROUNDS = 2
# The share of a class among neighbours times this has a softmax that is about a probability.
NEIGHBOUR_SHARE_FACTOR = 4.0


class Neighbourhoods:
    """Public images as points among which near ones mostly are of one class."""

    def __init__(self, task: Task) -> None:
        public = PublicData.declare("the student's public inputs", np.asarray(task.x))
        self.map = public_features(
            task.spec, public, NEIGHBOUR_FEATURES, "discriminant", view=task.view
        )
        weights = confidence_weights(self.map.tensors["between"])
        self.basis = self.map.tensors["basis"] * weights
        found = compute_features(self.map, task.x).astype(np.float32)
        self.points = unit_length(found * weights, 1)

    @cached_property
    def near(self) -> tuple[NDArray[np.float32], Ints, NDArray[np.float32]]:
        """Of each its nearest: weights and indices [N, 1 + GRAPH_NEIGHBOURS], and the scale of
        distances."""
        return neighbourhood(self.points)


class NearestNeighbours(StudentMethod):
    """For many classes: the labels of the nearest public images.

    With few rows of each class, a regression has little to average noise with. Neighbours in
    discriminant directions mostly are of one class, so the noisy shares of each input are shrunk
    towards their average over its neighbours, the more the larger the noise is beside what
    neighbours differ by (empirical Bayes: Efron and Morris, 1973); then rare classes are favoured
    (`class_biases`).
    """

    wants = "images"

    @classmethod
    def can_learn(cls, task: Task) -> bool:
        """Images, and enough to have neighbours."""
        return not task.is_table and len(task.x) > GRAPH_NEIGHBOURS

    @classmethod
    def suits(cls, task: Task) -> bool:
        """Images of many classes."""
        return (
            not task.is_table
            and len(task.classes) >= MANY_CLASSES
            and len(task.x) >= MIN_GRAPH_POINTS
        )

    def fit(self, task: Task, answers: Answers) -> Student:
        """Raises ValueError on too few answers."""
        found, labels = task.cached(Neighbourhoods), self._labels(task, answers)
        known = np.flatnonzero(labels >= 0)
        if len(known) <= GRAPH_NEIGHBOURS:
            raise ValueError(f"{len(known)} labels; neighbours need more than {GRAPH_NEIGHBOURS}")
        points, classes = found.points[known], len(task.classes)
        shown = np.eye(classes, dtype=np.float32)[labels[known]]
        _, _, scales = found.near if len(known) == len(labels) else neighbourhood(points)
        spec = found.map.spec.model_copy(
            update={"projection": "graph", "coordinates": classes, "points": len(points)}
        )
        weights = np.zeros((spec.width, classes), np.float32)
        weights[spec.components :] = NEIGHBOUR_SHARE_FACTOR * np.eye(classes)
        tensors = {
            "mean": found.map.tensors["mean"],
            "basis": found.basis,
            "points": points,
            "scales": scales,
            "coordinates": shown,
        }
        part = LinearPart(
            FeatureMap(spec, task.spec, tensors), weights, np.zeros(classes, np.float32)
        )
        return linear_student(task.spec, task.classes, {"method": "neighbours"}, [part])

    def predict_held_out(self, task: Task, answers: Answers, rows: Bools) -> Floats:
        """What the labels of other folds say of each input."""
        points, labels = task.cached(Neighbourhoods).points, self._labels(task, answers.only(~rows))
        known = np.flatnonzero((labels >= 0) & ~rows)
        shown = np.eye(len(task.classes), dtype=np.float32)[labels[known]]
        _, _, scales = neighbourhood(points[known])
        scores = extend(points[rows], points[known], scales, shown)
        probabilities: Floats = softmax(NEIGHBOUR_SHARE_FACTOR * scores, axis=1)
        return probabilities

    @staticmethod
    def _labels(task: Task, answers: Answers) -> Ints:
        """Labels [N]; of noisy counts, of the shares that are averaged over neighbours."""
        if not answers.noise:
            return answers.labels
        weights, index, _ = task.cached(Neighbourhoods).near
        known, fitted = answers.known.astype(np.float64), answers.shares
        for _ in range(AVERAGING_ROUNDS):
            of_known = weights * known[index]
            of_known /= np.maximum(of_known.sum(axis=1, keepdims=True), 1e-9)
            starts = np.arange(len(fitted) + 1) * index.shape[1]
            near = csr_array((of_known.ravel(), index.ravel(), starts), shape=(len(fitted),) * 2)
            fitted, known = near @ fitted, np.ones(len(fitted))
        own = _own_weight(fitted, answers)
        fitted[answers.known] += own * (answers.shares - fitted)[answers.known]
        if len(task.classes) >= MANY_CLASSES:
            error = answers.noise * math.hypot(
                own, (1 - own) / math.sqrt(AVERAGING_ROUNDS * GRAPH_NEIGHBOURS)
            )
            fitted = fitted + class_biases(fitted, answers.prior, error)
        labels: Ints = fitted.argmax(axis=1)
        return labels


def _own_weight(mean: Floats, answers: Answers) -> float:
    """Weight of an input's own noisy shares against their mean [N, m] over its neighbours.

    It is τ²/(τ² + noise²): τ² is how much the true shares differ from the mean, class by class as
    often as the mean has it.
    """
    expected, differences = mean[answers.known].clip(min=0), (answers.shares - mean)[answers.known]
    squares = (expected * differences**2).sum() / max(expected.sum(), 1e-9)
    own = max(squares - answers.noise**2, 0.0)
    return float(own / (own + answers.noise**2))
