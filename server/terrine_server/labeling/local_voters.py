"""Ensembles in this process: found through the ledger, verified, loaded on first use.

An ensemble votes only while its files are exactly those that were registered. The manifest's digest
must match the ledger, and every file's digest the manifest. Both are checked again when a file on
disk changes.

Imported teachers vote in a process that each of their ensembles has for itself; it ends with the
ensemble.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
import structlog

from terrine_models.storage.manifests import StoreError, manifest_digest
from terrine_models.teachers.ensemble import VOTING_MEMORY_BYTES, Ensemble, load
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.manifests import VOTING_SECONDS, Manifest, VotingError
from terrine_models.teachers.neighbours import NeighbourEnsemble
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.voters import Neighbourhood, Voters
from terrine_server.privacy import Units
from terrine_server.settings import Settings

log = structlog.get_logger("terrine")

# Inode, size and change time (ctime, which cannot be set) of an ensemble's files.
FileStamp = tuple[tuple[int, int, int], ...]


class RegisteredEnsemble(Protocol):
    """The part of an ensemble's record that says where it is and which one it must be."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def path(self) -> str:
        """Its directory within the data directory."""

    @property
    def manifest_sha256(self) -> str:
        """The digest of its manifest."""


@dataclass(frozen=True)
class LoadedEnsemble:
    """A loaded ensemble, and its files as they were then."""

    ensemble: Ensemble | Neighbourhood
    files: Sequence[str]
    stamp: FileStamp


@dataclass
class _Slot:
    """One ensemble, and where it is."""

    directory: Path
    loading: Lock = field(default_factory=Lock)
    loaded: LoadedEnsemble | None = None


def all_files(manifest: Manifest) -> Sequence[str]:
    """Return the files of all teachers."""
    return manifest.teacher_files


class LocalVoters(Voters):
    """Turns batches of inputs into vote counts, for any registered ensemble."""

    def __init__(
        self,
        data_dir: Path,
        device: str | None = None,
        memory: int = VOTING_MEMORY_BYTES,
        seconds: float = VOTING_SECONDS,
        chosen: Callable[[Manifest], Sequence[str]] = all_files,
    ) -> None:
        """`memory` and `seconds`: see `Ensemble.load`; `chosen`: the files of those who vote."""
        self._data_dir = data_dir
        self._device = device
        self._memory = memory
        self._seconds = seconds
        self._chosen = chosen
        self._slots: dict[tuple[str, str, str], _Slot] = {}
        self._lock = Lock()

    def check(self, record: RegisteredEnsemble) -> None:
        """Load and verify the ensemble if necessary. Raises `EnsembleUnavailable`."""
        self.loaded(record)

    def votes(self, record: RegisteredEnsemble, inputs: np.ndarray) -> np.ndarray:
        """Return the teachers' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Raises `EnsembleUnavailable`.
        """
        ensemble = self.loaded(record).ensemble
        if isinstance(ensemble, Neighbourhood):
            raise EnsembleUnavailable(f"The people of {record.name} vote by their accounts alone.")
        try:
            return ensemble.votes(inputs)
        except (VotingError, StoreError) as error:
            log.warning("imported teachers did not vote", ensemble=record.name, cause=str(error))
            raise EnsembleUnavailable(
                f"The imported teachers of {record.name} did not vote within their limits. Nothing "
                "was charged. Retry later; the server's log says more."
            ) from None

    def neighbourhood(self, record: RegisteredEnsemble) -> Neighbourhood:
        """Return the records of an ensemble whose units vote. Raises `EnsembleUnavailable`."""
        ensemble = self.loaded(record).ensemble
        if isinstance(ensemble, Neighbourhood):
            return ensemble
        raise EnsembleUnavailable(f"{record.name} has trained teachers; no people vote in it.")

    def close(self) -> None:
        """Release the ensembles; the processes of imported ones end."""
        with self._lock:
            self._slots.clear()

    def loaded(self, record: RegisteredEnsemble) -> LoadedEnsemble:
        """Return the ensemble as its files are now. Raises `EnsembleUnavailable`."""
        key = record.name, record.path, record.manifest_sha256
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                # Of an ensemble's editions the last that was asked for: who left is not in memory.
                self._slots = {k: held for k, held in self._slots.items() if k[0] != record.name}
                slot = self._slots[key] = _Slot(self._data_dir / record.path)
        with slot.loading:
            try:
                found = slot.loaded
                if found is None or found.stamp != stamp(slot.directory, found.files):
                    slot.loaded = None
                    found = slot.loaded = self._load(record, slot.directory)
            except (StoreError, OSError) as error:
                raise EnsembleUnavailable(str(error)) from error
            return found

    def _load(self, record: RegisteredEnsemble, directory: Path) -> LoadedEnsemble:
        # The stamp is taken before reading, so that a change in between is noticed later.
        manifest = load_manifest(directory)
        files = ("manifest.json", *manifest.files)
        taken = stamp(directory, files)

        check_manifest(record, directory)  # before native code parses files that nobody checked
        found = load(
            directory,
            self._device,
            memory=self._memory,
            seconds=self._seconds,
            files=self._chosen(manifest),
        )
        check_manifest(record, directory)  # it is the one that was loaded
        if isinstance(found, NeighbourEnsemble):
            units = Units.of(found.units, found.labels, found.manifest.teachers)
            return LoadedEnsemble(Neighbourhood(found, units), files, taken)
        return LoadedEnsemble(found, files, taken)


def local_voters(settings: Settings) -> LocalVoters:
    """Return the voters of a server with these settings."""
    return LocalVoters(settings.data_dir, settings.device, seconds=settings.voting_seconds)


def check_manifest(record: RegisteredEnsemble, directory: Path) -> None:
    """Raise `EnsembleUnavailable` unless the manifest is the one that was registered."""
    if manifest_digest(directory) != record.manifest_sha256:
        raise EnsembleUnavailable(
            f"The manifest in {directory} is not the one that was registered as {record.name}. "
            "Restore it from a backup."
        )


def stamp(directory: Path, files: Sequence[str]) -> FileStamp:
    """Return the stamp of an ensemble's files as they are now. Raises OSError."""
    within = os.fspath(directory)
    found = [os.stat(f"{within}/{name}") for name in files]
    return tuple([(s.st_ino, s.st_size, s.st_ctime_ns) for s in found])
