"""The kinds of teacher that Terrine has, and manifests of them all.

Whoever imports `load_manifest` or `StoredEnsemble` from here knows every kind.
"""

from __future__ import annotations

from pathlib import Path

from terrine_models.storage.manifests import verified_bytes
from terrine_models.teachers.heads import Heads, HeadTeachers
from terrine_models.teachers.manifests import (
    KINDS,
    ShardTeachers,
    StoredEnsemble,
    TeacherSettings,
    load_manifest,
)
from terrine_models.teachers.neighbours import NeighbourTeachers
from terrine_models.teachers.networks import Networks, NetworkTeachers
from terrine_models.teachers.onnx import ImportedTeachers
from terrine_models.teachers.trees import Forests, ForestTeachers

__all__ = [
    "ForestTeachers",
    "Forests",
    "HeadTeachers",
    "Heads",
    "ImportedTeachers",
    "NeighbourTeachers",
    "NetworkTeachers",
    "Networks",
    "StoredEnsemble",
    "load_manifest",
    "trainable",
    "verify",
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
        verified_bytes(Path(directory), name, digest)
