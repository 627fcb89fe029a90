"""The kinds of teacher that Terrine has, and manifests of them all."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from terrine_models.storage.manifests import MANIFEST, StoreError, manifest_bytes, verified_bytes
from terrine_models.teachers.forests import Forests, ForestTeachers
from terrine_models.teachers.heads import Heads, HeadTeachers
from terrine_models.teachers.importing import ImportedTeachers
from terrine_models.teachers.manifests import KINDS, Manifest, Settings
from terrine_models.teachers.networks import Networks, NetworkTeachers

__all__ = [
    "ForestTeachers",
    "Forests",
    "HeadTeachers",
    "Heads",
    "ImportedTeachers",
    "NetworkTeachers",
    "Networks",
    "load_manifest",
    "trainable",
    "verify",
]


def trainable() -> dict[str, type[Settings]]:
    """The settings of the kinds of teacher that can be trained, by name."""
    return {name: kind.settings for name, kind in KINDS.items() if kind.settings is not None}


def load_manifest(directory: Path) -> Manifest:
    """Read and check `manifest.json`. Raises StoreError, which says what is wrong and where."""
    path = Path(directory) / MANIFEST
    try:
        return Manifest.model_validate_json(manifest_bytes(Path(directory)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise StoreError(f"{path} is malformed at {where}: {first['msg']}") from None


def verify(directory: Path) -> None:
    """Check every file against its digest. Raises StoreError for the first that differs."""
    for name, digest in load_manifest(directory).files.items():
        verified_bytes(Path(directory), name, digest)
