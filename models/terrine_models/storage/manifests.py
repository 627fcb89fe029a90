"""Ensembles on disk: safetensors files and one `manifest.json` with their digests.

A directory holds `manifest.json`, optionally `maps.safetensors` (the public feature map) and
`teachers-00000.safetensors`, … (the parameters of consecutive teachers, stacked along axis 0).
Teachers that were trained elsewhere are `teachers-00000.onnx`, …, one in each file. The manifest
names every file with its SHA-256, so its own digest identifies the whole ensemble. Nothing is
pickled, and nothing of the training data is stored.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, Self

import torch
from pydantic import ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as render_safetensors

from terrine_models.data.arrays import InputSpec
from terrine_protocol.base import absent
from terrine_protocol.files import read
from terrine_protocol.images import ImageFormat
from terrine_protocol.tables import PublicSource, Record, Sha256, TableSchema

FORMAT: Literal["terrine-ensemble-1"] = "terrine-ensemble-1"
MANIFEST = "manifest.json"
FEATURES = "features.safetensors"
BACKBONE = "backbone.onnx"
MANIFEST_LIMIT = 16 * 2**20
"""Bytes. A larger manifest is refused unread."""

CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
"""Of settings, which are checked when they are made."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$")]
FileName = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9-]*\.(safetensors|onnx)$", max_length=100)
]


class StoreError(Exception):
    """An ensemble's files are missing, malformed or altered; the message names the file."""


class PublicModel(Record):
    """A model that its owner declared public: nobody's private records trained it."""

    name: str
    sha256: Sha256
    width: Annotated[int, Field(ge=1, description="Numbers in each embedding.")]


class FeatureSpec(Record):
    """A public feature map. `fitted_on` is null for a data-independent one."""

    base: Literal["oriented_gradients", "identity", "bins", "backbone"]
    projection: Literal[
        "graph", "pca", "nystrom", "discriminant", "random", "scaled", "whitened", "none"
    ]
    components: Annotated[int, Field(ge=1, description="Numbers from the projection.")]
    coordinates: Annotated[int, Field(ge=0, description="Numbers from the graph.")] = 0
    points: Annotated[int, Field(ge=0, description="Public points in the graph.")] = 0
    landmarks: Annotated[int, Field(ge=0, description="Public points of a Nyström map.")] = 0
    gamma: Annotated[float, Field(gt=0, description="Of its kernel exp(-gamma d²).")] | None = None
    steps: Annotated[int, Field(ge=0, description="Of bins: steps at public quantiles.")] = 0
    ranks: Annotated[int, Field(ge=0, description="Of bins: ranks among public rows.")] = 0
    seed: Annotated[int, Field(ge=0, description="Of the random projection.")] = 0
    fitted_on: PublicSource | None = None
    backbone: PublicModel | None = None

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        if (self.base == "backbone") != (self.backbone is not None):
            raise ValueError("backbone, and no other base, names a public model")
        fitted = self.projection not in ("random", "none")
        if fitted != (self.fitted_on is not None):
            raise ValueError("random and none, and no other projection, are fitted on nothing")
        if (self.base == "bins") != (self.projection in ("scaled", "whitened")):
            raise ValueError("bins, and no other base, are scaled or whitened")
        if (self.base == "bins") != (self.steps + self.ranks > 0):
            raise ValueError("bins, and no other base, have steps or ranks")
        if (self.projection == "graph") != (self.points > 0 and self.coordinates > 0):
            raise ValueError("a graph, and no other projection, has points and coordinates")
        if (self.projection == "nystrom") != (self.landmarks > 0 and self.gamma is not None):
            raise ValueError("nystrom, and no other projection, has landmarks and gamma")
        return self

    @property
    def width(self) -> int:
        """Numbers per input."""
        return self.landmarks or self.components + self.coordinates


class Partition(Record):
    """How records were partitioned among teachers (see `shards.partition_records`)."""

    recipe: Literal["rows", "groups"]
    seed: Annotated[int, Field(ge=0)]
    group_column: str | None = None
    smallest: Annotated[int, Field(ge=1, description="Rows or groups in the smallest shard.")]
    largest: Annotated[int, Field(ge=1, description="Rows or groups in the largest shard.")]


class Foreign(Record):
    """Teachers that were trained elsewhere: what their owner says, and how their files are read."""

    disjoint_by: Annotated[str, Field(min_length=1, max_length=500)]
    """How nobody's records trained two of them, in the owner's words."""
    output: str | None = None
    """Name of the output that is used; null for the only one."""
    opsets: dict[str, Annotated[int, Field(ge=1)]]
    """The newest opset among them, of each domain of operators."""
    salt: Sha256
    """Random: their own files have none, and students see the manifest's digest (see
    `save_tensors`)."""


class Architecture(Record):
    """What one teacher is: `ridge` on features, or a network or forest on the inputs themselves.

    `onnx` is whatever was trained elsewhere.
    """

    name: Literal["ridge", "mlp", "cnn", "forest", "onnx"]
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = ()


class TeacherTraining(Record):
    """Settings under which every teacher was trained; none are known of those trained elsewhere."""

    seed: Annotated[int, Field(ge=0)] | None = None
    augmentations: Annotated[int, Field(ge=0)] | None = None
    """Heads: distorted copies in addition to each original."""
    rotation: Annotated[float, Field(ge=0, le=180)] | None = None
    """Heads with augmentations: the largest angle, in degrees. Without a value, 15."""
    elastic: Annotated[float, Field(ge=0, le=1)] | None = None
    """Heads with augmentations: the largest elastic displacement, as a share of half the side.
    Without a value, 0.036."""
    ridge: Annotated[float, Field(gt=0)] | None = None
    match_prior: bool | None = None
    """Heads and forests: whether each says yes to the share of public rows that its shard does."""
    distorted: bool | None = None
    """Networks: whether every epoch distorts each image anew."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    batch: Annotated[int, Field(ge=1)] | None = None
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    matched_on: PublicSource | None = None
    """Forests: the public rows on which they match their prior. Heads: those of `features`."""
    trees: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Forests: trees in each."""


class EnsemblePlan(Record):
    """Everything about an ensemble that is fixed before its teachers are trained."""

    format: Literal["terrine-ensemble-1"] = FORMAT
    name: Name
    kind: Literal["heads", "networks", "forest", "onnx"]
    architecture: Architecture
    features: FeatureSpec | None
    input: InputSpec
    encoding: TableSchema | None = None
    image: Annotated[ImageFormat | None, Field(exclude_if=absent)] = None
    classes: Annotated[tuple[str, ...], Field(min_length=2, max_length=10_000)]
    teachers: Annotated[int, Field(ge=1, le=1_000_000)]
    units: Annotated[int, Field(ge=1, description="Units in all: rows, or people if grouped.")]
    partition: Partition | None
    training: TeacherTraining
    foreign: Foreign | None = None
    versions: dict[str, str]

    @model_validator(mode="after")
    def _kind_is_coherent(self) -> Self:
        if (self.kind == "heads") != (self.features is not None):
            raise ValueError("heads, and no other teachers, have a feature map")
        if self.image is not None and self.image.shape != self.input.shape:
            raise ValueError("pictures are converted to another shape than that of inputs")
        name = self.architecture.name
        of = {"ridge": "heads", "forest": "forest", "onnx": "onnx"}.get(name, "networks")
        if self.kind != of:
            raise ValueError(f"{name} is not an architecture of kind {self.kind}")
        if (self.kind == "forest") != (self.training.trees is not None):
            raise ValueError("forests, and no other teachers, have trees")
        if self.kind == "forest" and len(self.input.shape) != 1:
            raise ValueError("forests are for the rows of a table")
        if (self.kind == "onnx") != (self.foreign is not None):
            raise ValueError("onnx, and no other kind, says how its files are read")
        if self.partition is None and self.kind != "onnx":
            raise ValueError("only of onnx may it be unknown how records were partitioned")
        if (self.kind == "onnx") != (self.training.seed is None):
            raise ValueError("onnx, and no other kind, was trained without a known seed")
        return self


class Manifest(EnsemblePlan):
    """Everything about an ensemble except its weights, and the digests of their files."""

    files: dict[FileName, Sha256]

    @model_validator(mode="after")
    def _files_are_coherent(self) -> Self:
        suffix = "onnx" if self.kind == "onnx" else "safetensors"
        if not self.teacher_files:
            raise ValueError(f"no teachers-*.{suffix} among the files")
        if self.kind == "onnx" and len(self.teacher_files) != self.teachers:
            raise ValueError(f"{len(self.teacher_files)} files, expected {self.teachers}")
        if (FEATURES in self.files) != (
            self.features is not None and self.features.projection != "none"
        ):
            raise ValueError(
                f"{FEATURES} belongs to a feature map with a projection, and only to that"
            )
        backbone = self.features.backbone if self.features is not None else None
        if self.files.get(BACKBONE) != (backbone.sha256 if backbone is not None else None):
            raise ValueError(f"{BACKBONE} belongs to a feature map with that backbone")
        return self

    @property
    def teacher_files(self) -> list[str]:
        """Names of the files that hold teachers, in the order of the teachers."""
        suffix = "onnx" if self.kind == "onnx" else "safetensors"
        return sorted(f for f in self.files if re.fullmatch(rf"teachers-\d{{5}}\.{suffix}", f))


def sha256(data: bytes) -> str:
    """SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def versions(*others: str) -> dict[str, str]:
    """Versions of the packages that training depends on; `others` in addition to the usual."""
    return {package: version(package) for package in ("numpy", "safetensors", "torch", *others)}


def manifest_digest(directory: Path) -> str:
    """SHA-256 of `manifest.json`: the identity of the ensemble. Raises StoreError."""
    return sha256(_manifest_bytes(Path(directory)))


def load_manifest(directory: Path) -> Manifest:
    """Read and check `manifest.json`. Raises StoreError, which says what is wrong and where."""
    path = Path(directory) / MANIFEST
    try:
        return Manifest.model_validate_json(_manifest_bytes(Path(directory)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise StoreError(f"{path} is malformed at {where}: {first['msg']}") from None


def verify(directory: Path) -> None:
    """Check every file against its digest. Raises StoreError for the first that differs."""
    for name, digest in load_manifest(directory).files.items():
        verified_bytes(Path(directory), name, digest)


def load_tensors(directory: Path, name: str, digest: str) -> dict[str, torch.Tensor]:
    """The tensors of one file, read once: the bytes parsed are the bytes verified.

    Raises StoreError when the file is missing, altered or not a safetensors file.
    """
    data = verified_bytes(Path(directory), name, digest)
    try:
        return parse_safetensors(data)
    except SafetensorError as error:
        raise StoreError(f"{Path(directory) / name} is not a safetensors file: {error}") from None


def verified_bytes(directory: Path, name: str, digest: str) -> bytes:
    """The bytes of one file. Raises StoreError when it is missing or altered."""
    path = directory / name
    try:
        data = read(path, None)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    found = sha256(data)
    if found != digest:
        raise StoreError(
            f"{path} was altered: its SHA-256 is {found}, the manifest says {digest}. "
            "Restore the file from a backup, or train or import the ensemble again."
        )
    return data


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> str:
    """Write a safetensors file, completely or not at all, and return its SHA-256.

    The file contains a random salt. Students see a digest of digests of such files, and training
    is deterministic: without the salt, whoever knew all records but one could retrain with every
    candidate for the last one and compare digests.
    """
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    data = render_safetensors(contiguous, metadata={"salt": secrets.token_hex(32)})
    write_atomically(path, data)
    return sha256(data)


def save_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, completely or not at all."""
    write_atomically(directory / MANIFEST, manifest.model_dump_json(indent=2).encode() + b"\n")


def write_atomically(path: Path, data: bytes, *, public: bool = False) -> None:
    """Replace `path` by `data` so that a crash leaves the old or the new file, never a mixture.

    public: everyone on this machine may read it, whatever the umask: a container's account, too.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            if public:
                os.fchmod(file.fileno(), 0o644)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def document_bytes(path: Path, kind: str, expected: str) -> bytes:
    """The bytes of a manifest or federation. Raises StoreError, saying what is `expected`."""
    try:
        if path.stat().st_size > MANIFEST_LIMIT:
            raise StoreError(f"{path} is larger than {MANIFEST_LIMIT} bytes: not a {kind}")
        return read(path, MANIFEST_LIMIT)
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); expected {expected}") from None


def _manifest_bytes(directory: Path) -> bytes:
    made = "the directory of an ensemble, as made by `terrine ensemble train`"
    return document_bytes(directory / MANIFEST, "manifest", made)
