"""A student: one small model that learns from bought labels, and may be published.

    student = choose(task, answers).student
    student.save(Path("student"))
    Student.load(Path("student")).probabilities(x_new)               # [B, m]

A student has seen public inputs and private answers that were paid for, so its weights are
post-processing: whoever holds them learns nothing about the private data beyond the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator
from scipy.special import softmax
from torch import nn

from terrine_models.data.arrays import DataError, InputSpec
from terrine_models.features.maps import FeatureMap, prepared_features
from terrine_models.features.pixels import prepare
from terrine_models.storage.manifests import (
    FeatureSpec,
    StoreError,
    load_tensors,
    save_tensors,
    versions,
)
from terrine_protocol.files import read, write_atomically
from terrine_protocol.images import ImageFormat
from terrine_protocol.tables import Record, Sha256, TableSchema, first_problem
from terrine_protocol.tables.encoding import Frame, encode_frame

MODEL = "model.json"
WEIGHTS = "model.safetensors"
BLOCK = 512


class Calibration(Record):
    """What makes probabilities of scores: a factor, and for two classes a shift of the second."""

    scale: float = Field(default=1.0, gt=0)
    shift: float = 0.0

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities [B, m] of scores [B, m]."""
        scores = self.scale * scores
        scores[:, 1] += self.shift
        found: NDArray[np.float64] = softmax(scores, axis=1)
        return found


class StudentModel(Record):
    """`model.json`: what is needed to use a student, and how it was made."""

    format: Literal["terrine-student-1"] = "terrine-student-1"
    architecture: str
    """One of `ARCHITECTURES`."""
    input: InputSpec
    features: tuple[FeatureSpec, ...] = ()
    """Of a ridge model: its maps of inputs to features, fitted on public inputs."""
    encoding: TableSchema | None = None
    image: ImageFormat | None = None
    """Of folders of pictures: how they became inputs."""
    classes: tuple[str, ...]
    calibration: Calibration = Calibration()
    threshold: float | None = None
    """Probability from which the second of two classes is predicted; None: the likelier class."""
    training: dict[str, int | float | str]
    versions: dict[str, str]
    weights_sha256: Sha256

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        if (self.architecture == "ridge") != bool(self.features):
            raise ValueError("a ridge model, and no other, states its features")
        if self.threshold is not None and len(self.classes) != 2:
            raise ValueError("only shares of two classes are cut")
        return self


class LinearPart(NamedTuple):
    """Linear scores on one public map: `weights` [d, m] and `biases` [m]."""

    map: FeatureMap
    weights: torch.Tensor
    biases: torch.Tensor


class _Scores(nn.Module):
    """Linear scores on a public map, whose tensors are saved with them."""

    def __init__(self, inputs: InputSpec, classes: int, features: FeatureSpec) -> None:
        super().__init__()
        self.inputs, self.features = inputs, features
        for name, shape in FeatureMap(features, inputs, {}).shapes().items():
            self.register_buffer(name, torch.zeros(shape))
        self.scores = nn.Linear(features.width, classes)

    def forward(self, base: torch.Tensor) -> torch.Tensor:
        known = FeatureMap(self.features, self.inputs, dict(self.named_buffers()))
        scores: torch.Tensor = self.scores(known.of_base(base))
        return scores


class RidgeModel(nn.Module):
    """The sum of linear scores, each on a public map of its own."""

    def __init__(self, inputs: InputSpec, classes: int, features: Sequence[FeatureSpec]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_Scores(inputs, classes, each) for each in features)
        self.bases = [each.base for each in features]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores [B, m] of prepared inputs [B, d] or [B, C, H, W]."""
        base = {name: prepared_features(name, x) for name in dict.fromkeys(self.bases)}
        scores = zip(self.parts, self.bases, strict=True)
        return torch.stack([part(base[name]) for part, name in scores]).sum(0)


class Predictions(NamedTuple):
    """What a student says of inputs."""

    names: NDArray[np.str_]
    """[B], names of classes."""
    probabilities: NDArray[np.float64]
    """[B, m], in the order of `StudentModel.classes`."""


class Student:
    """A trained student. Make one with `selection.choose` or `load`."""

    def __init__(self, network: nn.Module, model: StudentModel) -> None:
        self.network = network.eval()
        self.model = model

    def probabilities(self, x: NDArray[np.generic]) -> NDArray[np.float64]:
        """Class probabilities [B, m] of inputs [B, *shape]; rows sum to 1 up to rounding."""
        if x.shape[1:] != self.model.input.shape:
            raise ValueError(
                f"Inputs have shape {list(x.shape)}, expected "
                f"[B, {', '.join(map(str, self.model.input.shape))}]."
            )
        out = np.empty((len(x), len(self.model.classes)))
        with torch.inference_mode():
            for at in range(0, len(x), BLOCK):
                block = torch.from_numpy(np.asarray(x[at : at + BLOCK], dtype=np.float32))
                scores = self.network(prepare(block, self.model.input))
                out[at : at + BLOCK] = scores.double().numpy()
        return self.model.calibration.probabilities(out)

    def predict(self, x: NDArray[np.generic]) -> NDArray[np.int64]:
        """The class [B] of inputs [B, *shape]: of two, by the threshold; else the most probable."""
        return self.labels(self.probabilities(x))

    def labels(self, probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
        """The class [B] that such probabilities [B, m] stand for."""
        if self.model.threshold is not None:
            return (probabilities[:, 1] >= self.model.threshold).astype(np.int64)
        best: NDArray[np.int64] = probabilities.argmax(1)
        return best

    def said(self, x: NDArray[np.generic]) -> Predictions:
        """Class names and probabilities of inputs [B, *shape]."""
        probabilities = self.probabilities(x)
        names = np.array(self.model.classes)[self.labels(probabilities)]
        return Predictions(names, probabilities)

    def predict_frame(self, frame: Frame) -> Predictions:
        """Class names and probabilities of a data frame's rows, by the student's own schema.

        Frames as for `terrine_protocol.tables.encoding.encode_frame`. Raises DataError as that
        does, and if the student learned from no table.
        """
        if self.model.encoding is None:
            raise DataError(
                "The student learned from no table, so it knows no columns. predict takes arrays "
                f"of shape [B, {', '.join(map(str, self.model.input.shape))}]."
            )
        return self.said(encode_frame(frame, self.model.encoding))

    def with_model(self, **changed: object) -> Student:
        """The same student, described otherwise, as by another threshold."""
        return Student(self.network, self.model.model_copy(update=changed))

    def accuracy(self, x: NDArray[np.generic], labels: NDArray[np.int64]) -> float:
        """Share of inputs [B, *shape] that are classified as `labels` [B]."""
        return float((self.predict(x) == labels).mean())

    def save(self, directory: Path) -> None:
        """Write `model.safetensors` and `model.json`; each replaces an existing file atomically."""
        directory.mkdir(parents=True, exist_ok=True)
        digest = save_tensors(directory / WEIGHTS, dict(self.network.state_dict()))
        self.model = self.model.model_copy(update={"weights_sha256": digest})
        text = self.model.model_dump_json(indent=2, exclude_none=True)
        write_atomically(directory / MODEL, text.encode() + b"\n")

    @classmethod
    def load(cls, directory: Path) -> Student:
        """Load a student. Raises StoreError when a file is missing, altered or malformed."""
        path = Path(directory) / MODEL
        try:
            model = StudentModel.model_validate_json(read(path))
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read ({error.strerror}); expected the directory of a student, "
                "as made by `terrine student train`."
            ) from None
        except ValidationError as error:
            raise StoreError(f"{path} is malformed {first_problem(error)}.") from None
        tensors = load_tensors(Path(directory), WEIGHTS, model.weights_sha256)
        make = ARCHITECTURES.get(model.architecture)
        if make is None:
            raise StoreError(f"{path} is a student of another kind: {model.architecture}.")
        try:
            return cls(make(model, tensors, str(Path(directory) / WEIGHTS)), model)
        except RuntimeError as error:
            weights = Path(directory) / WEIGHTS
            raise StoreError(f"{weights} does not fit {path} ({error}).") from None


def _ridge(model: StudentModel, tensors: Mapping[str, torch.Tensor], where: str) -> nn.Module:
    network = RidgeModel(model.input, len(model.classes), model.features)
    network.load_state_dict(tensors)
    return network


Loaded = Callable[[StudentModel, Mapping[str, torch.Tensor], str], nn.Module]
ARCHITECTURES: dict[str, Loaded] = {"ridge": _ridge}
"""By name: makes a model from its description and its tensors, which are at a place."""


def describe(
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
        versions=versions(),
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
    network = RidgeModel(inputs, len(classes), features)
    state = {}
    for number, part in enumerate(parts):
        tensors = {
            **part.map.tensors,
            "scores.weight": part.weights.T.contiguous(),
            "scores.bias": part.biases,
        }
        state.update({f"parts.{number}.{name}": each for name, each in tensors.items()})
    network.load_state_dict(state)
    return Student(network, describe(inputs, classes, training, encoding, features))
