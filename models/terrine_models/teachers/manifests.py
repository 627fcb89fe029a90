"""What an ensemble is: a manifest, and in it the kind of its teachers, which knows how they vote.

A kind of teacher is one `TeacherKind` in one module: what the manifest says of such teachers, what
a user may set, how they are trained, checked and loaded, and how they vote. Nothing else knows one
kind from another.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union

import torch
from pydantic import (
    Field,
    PlainValidator,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from terrine_models.data.arrays import MAX_CLASSES, Dataset, InputSpec
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import (
    BACKBONE_FILE,
    FEATURES_FILE,
    FORMAT,
    IDENTITIES_FILE,
    MANIFEST_FILE,
    FeatureSpec,
    FileName,
    Name,
    Partition,
    StoreError,
    load_tensors,
    manifest_bytes,
    unreadable,
)
from terrine_models.teachers.shards import Shards
from terrine_protocol.base import Record, Sha256, absent
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import write_atomically
from terrine_protocol.projects import ImageFormat, Release
from terrine_protocol.schema import PublicSource, TableSchema

# The tensors of a run of teachers.
Trained = dict[str, torch.Tensor]
# Inputs [b, *shape] to every teacher's choice [b, n].
Choose = Callable[[torch.Tensor], torch.Tensor]
# Scratch memory of oriented gradients, or of one network's layers, for each value of an input.
SCRATCH_BYTES_PER_VALUE = 400
K = TypeVar("K", bound="TeacherKind")


class TeacherSettings(ABC):
    """What a user may say of a kind of teacher: fields with a description are parameters."""

    kind: ClassVar[str]
    """The name of the kind."""

    def feature_map(self, data: Dataset, public: PublicData | None) -> FeatureMap | None:
        """The public map that all teachers share; None if they take the inputs themselves."""
        return None

    @abstractmethod
    def teacher(
        self, data: Dataset, features: FeatureSpec | None, public: PublicData | None
    ) -> ShardTeachers:
        """What the manifest will say. Raises TrainingError for data that do not suit the kind."""


# How long foreign code may take for a block of inputs, unless told otherwise.
VOTING_SECONDS = 60.0


class VotingError(TerrineError):
    """Imported teachers did not vote within their limits; the message says which, and of whom."""


@dataclass(frozen=True)
class VotingLimits:
    """What voting may take."""

    memory: int
    """Bytes beyond the weights, the result and the buffers of the libraries."""
    seconds: float
    """Of foreign code, for a block of inputs."""

    def block(self, each: int, most: int) -> int:
        """How many inputs of `each` bytes may be voted on at a time, at most `most`."""
        return max(1, min(most, self.memory // each // torch.get_num_threads()))


@dataclass(frozen=True)
class Voting:
    """How the teachers of an ensemble vote."""

    choose: Choose
    block: int
    """Inputs voted on at a time: enough for efficient products, few enough that a single input is
    answered quickly."""
    device: str
    padded: bool = True
    """Whether every block has that size. Products round by size, so that otherwise the votes on an
    input would depend on the others of its request."""


class TeacherKind(Record):
    """What each teacher of an ensemble is. Made known by `teacher_kind`."""

    kind: str
    """A `Literal`, by which manifests tell kinds apart."""
    features: FeatureSpec | None = None
    """The public map that all teachers share."""
    suffix: ClassVar[Literal["safetensors", "onnx"]] = "safetensors"
    packages: ClassVar[tuple[str, ...]] = ()
    """Others whose versions the manifest states."""
    divisible: ClassVar[bool] = True
    """Whether some of the teachers may vote in one process and the others in another."""
    salted: ClassVar[bool] = True
    """Whether files of equal teachers differ (see `save_tensors`)."""

    def check(self, plan: EnsemblePlan) -> None:
        """Raise ValueError unless the rest of the manifest suits these teachers."""

    def check_files(self, manifest: Manifest) -> None:
        """Raise ValueError unless the manifest names the files that there must be."""
        files, features = manifest.files, self.features
        if not manifest.teacher_files:
            raise ValueError(f"no teachers-*.{self.suffix} among the files")
        if (FEATURES_FILE in files) != (features is not None and features.projection != "none"):
            raise ValueError(
                f"{FEATURES_FILE} belongs to a feature map with a projection, and only to that"
            )
        backbone = features.backbone if features is not None else None
        if files.get(BACKBONE_FILE) != (backbone.sha256 if backbone is not None else None):
            raise ValueError(f"{BACKBONE_FILE} belongs to a feature map with that backbone")

    @abstractmethod
    def voting(self, stored: StoredEnsemble, limits: VotingLimits, device: str) -> Voting:
        """Load the teachers, verified. Raises StoreError."""

    def inspect(self, directory: Path, manifest: Manifest) -> None:
        """Check, once more than loading does, files that are programs. Raises StoreError."""

    @property
    def matches_prior(self) -> bool:
        """Whether each chooses the second of two classes as often as its own records have it."""
        return False

    @property
    def levelled(self) -> bool:
        """Whether each says every class of as many public rows as any other."""
        return False

    @property
    def declared_disjoint(self) -> str | None:
        """How nobody's records trained two teachers, where only their owner knows."""
        return None

    def described(self) -> dict[str, str]:
        """What `terrine ensemble show` prints of such teachers, beside what all have."""
        return {}


class ShardTeachers(TeacherKind):
    """Teachers that Terrine trains, each on a shard of its own."""

    settings: ClassVar[type[TeacherSettings]]
    """What a user may set."""
    per_file: ClassVar[int] = 50
    """Teachers in a file."""

    def check(self, plan: EnsemblePlan) -> None:
        """Raise ValueError unless it says how records were partitioned."""
        if plan.partition is None:
            raise ValueError(f"of {self.kind} it is known how records were partitioned")

    @abstractmethod
    def train(self, shards: Shards, run: range) -> Trained:
        """Train a run of teachers; its tensors go to one file."""

    @property
    def public_rows(self) -> PublicSource | None:
        """Which public rows teachers that match a prior match it on, as far as it is known."""
        return None if self.features is None else self.features.fitted_on


# The kinds of teacher, by name. `kinds.py` imports those that Terrine has.
KINDS: dict[str, type[TeacherKind]] = {}


def teacher_kind(made: type[K]) -> type[K]:
    """Make a kind of teacher known: a manifest may hold it, and `train --kind` make it."""
    KINDS[made.model_fields["kind"].default] = made
    return made


def _of_its_kind(value: Any) -> TeacherKind:
    if isinstance(value, TeacherKind):
        return value
    known: Any = Union[tuple(KINDS.values())]  # noqa: UP007 - of as many as there are
    adapter: TypeAdapter[TeacherKind] = TypeAdapter(Annotated[known, Field(discriminator="kind")])
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


class EnsemblePlan(Record):
    """Everything about an ensemble that is fixed before its teachers are trained."""

    format: Literal["terrine-ensemble-1"] = FORMAT
    name: Name
    teacher: SerializeAsAny[Annotated[TeacherKind, PlainValidator(_of_its_kind)]]
    """A tagged union of `KINDS`."""
    input: InputSpec
    encoding: TableSchema | None = None
    image: Annotated[ImageFormat | None, Field(exclude_if=absent)] = None
    classes: Annotated[tuple[str, ...], Field(min_length=2, max_length=MAX_CLASSES)]
    teachers: Annotated[int, Field(ge=1, le=100_000_000)]
    units: Annotated[int, Field(ge=1, description="Units in all: rows, or people if grouped.")]
    partition: Partition | None = None
    release: Annotated[Release | None, Field(exclude_if=absent)] = None
    """What was released of the records, and all projects begin with: to design what is asked, or,
    of sums, to answer."""
    versions: dict[str, str]

    @model_validator(mode="before")
    @classmethod
    def _converted(cls, fields: Any) -> Any:
        """Make of what an earlier version wrote what this one reads."""
        # `data`: keyed digests of the private data. Nothing reads it any more.
        if isinstance(fields, dict):
            return {name: value for name, value in fields.items() if name != "data"}
        return fields

    @model_validator(mode="after")
    def _kind_is_coherent(self) -> Self:
        if self.image is not None and self.image.shape != self.input.shape:
            raise ValueError("pictures are converted to another shape than that of inputs")
        self.teacher.check(self)
        return self

    @property
    def kind(self) -> str:
        """The name of the kind of teacher."""
        return self.teacher.kind

    @property
    def seed(self) -> int:
        """Of the partition, and of all training."""
        return 0 if self.partition is None else self.partition.seed


class Manifest(EnsemblePlan):
    """Everything about an ensemble except its weights, and the digests of their files."""

    files: dict[FileName, Sha256]

    @model_validator(mode="after")
    def _files_are_coherent(self) -> Self:
        self.teacher.check_files(self)
        return self

    @property
    def knows_people(self) -> bool:
        """Whether it is known whose the records are: then people can be found."""
        grouped = self.partition is not None and self.partition.recipe == "groups"
        return grouped and IDENTITIES_FILE in self.files

    @property
    def teacher_files(self) -> list[str]:
        """Names of the files that hold teachers, in the order of the teachers."""
        named = re.compile(rf"teachers-\d{{5}}\.{self.teacher.suffix}")
        return sorted(f for f in self.files if named.fullmatch(f))


@dataclass(frozen=True)
class StoredEnsemble:
    """The files of an ensemble, some of whose teachers are to vote. What is read is verified."""

    directory: Path
    manifest: Manifest
    files: Sequence[str]
    """Of the teachers that are to vote."""

    @classmethod
    def open(cls, directory: Path, files: Sequence[str] | None = None) -> StoredEnsemble:
        """Read the manifest; all teachers are to vote, unless `files` names some. Raises
        StoreError."""
        manifest = load_manifest(directory)
        return cls(Path(directory), manifest, manifest.teacher_files if files is None else files)

    def tensors(self, name: str) -> Trained:
        """The tensors of one file. Raises StoreError."""
        return load_tensors(self.directory, name, self.manifest.files[name])

    def parts(self) -> list[tuple[str, Trained]]:
        """The path and the tensors of each file of teachers. Raises StoreError."""
        return [(str(self.directory / name), self.tensors(name)) for name in self.files]

    def stacked(self, shapes: Mapping[str, tuple[int, ...]]) -> Trained:
        """The tensors of all teachers, of one these `shapes`, along axis 0. Raises StoreError."""
        parts = self.parts()
        for where, part in parts:
            rows = len(next(iter(part.values()))) if part else 0
            check_shapes(where, part, {name: (rows, *shape) for name, shape in shapes.items()})
        teachers = {name: torch.cat([part[name] for _, part in parts]) for name in shapes}
        self.check_number(len(next(iter(teachers.values()))))
        return teachers

    def check_number(self, found: int) -> None:
        """Raise StoreError unless all files together hold as many teachers as they should."""
        expected = self.manifest.teachers
        if len(self.files) == len(self.manifest.teacher_files) and found != expected:
            raise StoreError(f"{self.directory} holds {found} teachers, expected {expected}.")


def check_shapes(
    where: str, tensors: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise StoreError unless the tensors have these names and shapes."""
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != dict(expected):
        raise StoreError(f"{where} holds tensors {found}, expected {dict(expected)}.")


def load_manifest(directory: Path) -> Manifest:
    """Read and check `manifest.json`. Raises StoreError, which says what is wrong and where."""
    data = manifest_bytes(Path(directory))
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise unreadable(Path(directory) / MANIFEST_FILE, data, FORMAT, error) from None


def save_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, completely or not at all."""
    write_atomically(directory / MANIFEST_FILE, manifest.model_dump_json(indent=2).encode() + b"\n")
