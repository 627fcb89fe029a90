"""The kinds of teacher that Terrine has, and manifests of them all.

Whoever imports `load_manifest` or `StoredEnsemble` from here knows every kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from terrine_models.addons import addons, load_added
from terrine_models.storage.manifests import (
    MANIFEST_FILE,
    POOL_FILE,
    manifest_digest,
    read_verified,
)
from terrine_models.teachers.heads import Heads, HeadTeachers
from terrine_models.teachers.manifests import (
    KINDS,
    ShardTeachers,
    StoredEnsemble,
    TeacherSettings,
    load_manifest,
)
from terrine_models.teachers.margins import MarginTeachers
from terrine_models.teachers.neighbours import NeighbourTeachers
from terrine_models.teachers.networks import Networks, NetworkTeachers
from terrine_models.teachers.sums import SumTeachers
from terrine_models.teachers.trees import Forests, ForestTeachers
from terrine_protocol import EnsembleFacts, InputSpec
from terrine_protocol.base import Record

__all__ = [
    "EnsembleFormat",
    "ForestTeachers",
    "Forests",
    "HeadTeachers",
    "Heads",
    "MarginTeachers",
    "NeighbourTeachers",
    "NetworkTeachers",
    "Networks",
    "Reached",
    "StoredEnsemble",
    "SumTeachers",
    "ensemble_format",
    "load_manifest",
    "trainable",
    "verify",
    "verify_ensemble",
]


def trainable() -> dict[str, type[TeacherSettings]]:
    """The settings of the kinds of teacher that can be trained, by name."""
    return {
        name: kind.settings
        for name, kind in sorted(KINDS.items())
        if issubclass(kind, ShardTeachers)
    }


def verify(directory: Path) -> None:
    """Check every file against its digest. Raises StoreError for the first that differs."""
    for name, digest in load_manifest(directory).files.items():
        read_verified(Path(directory), name, digest)


@dataclass(frozen=True)
class Reached:
    """What those answered who vote for an ensemble elsewhere, if anybody does."""

    answers: Sequence[Mapping[str, object]] = ()
    """By party: values for people, by heading."""
    wrong: str | None = None
    """Why the ensemble cannot vote now."""


class EnsembleFormat:
    """What the directory of an ensemble holds: here a manifest and the weights of its teachers.

    An add-on may have another (`Addon.ensembles`).
    """

    document = MANIFEST_FILE
    """The file whose digest identifies the ensemble."""
    has_manifest = True

    def load(self, directory: Path) -> Record:
        """Read and check the document. Raises StoreError."""
        return load_manifest(directory)

    def facts(self, directory: Path) -> tuple[int, EnsembleFacts]:
        """How many units an ensemble was trained on, and what students see of it."""
        manifest = load_manifest(directory)
        return manifest.units, EnsembleFacts(
            kind=manifest.kind,
            input=InputSpec.model_validate(manifest.input),
            classes=list(manifest.classes),
            teachers=manifest.teachers,
            matches_prior=manifest.teacher.matches_prior,
            disjoint_by=manifest.teacher.declared_disjoint,
            group_column=manifest.partition.group_column if manifest.partition else None,
            encoding=manifest.encoding,
            image=manifest.image,
            designed=POOL_FILE in manifest.files,
            release=manifest.release,
        )

    def digest(self, directory: Path) -> str:
        """SHA-256 of the document: the identity of the ensemble. Raises StoreError."""
        return manifest_digest(directory)

    def verify(self, directory: Path) -> None:
        """Verify all files. Raises StoreError for the first that differs."""
        verify(directory)


def ensemble_format(directory: Path) -> EnsembleFormat:
    """What a directory holds; a manifest, if nothing else is there."""
    for kind in load_added("ensembles"):
        if (Path(directory) / kind.document).exists():
            found: EnsembleFormat = kind()
            return found
    return EnsembleFormat()


def verify_ensemble(directory: Path) -> str:
    """Verify the files of an ensemble of any format; return its identity. Raises StoreError."""
    found = ensemble_format(directory)
    found.verify(directory)
    return found.digest(directory)


for _addon in addons().values():
    if _addon.teachers is not None:
        import_module(_addon.teachers)
